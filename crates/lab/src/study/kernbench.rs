//! Part `kernbench` of `pcp-reset`: a kernel compile on all CPUs, by a closed queueing network.
//!
//! Published user and system time of the *baseline*, and priors of how many pages a second of user time has and what
//! the kernel does for each without contention (`studies/priors/kernbench.toml`), leave what a page waits. Mean value
//! analysis says what demand of the zone's lock that implies. What the change alters in it is counted and timed in
//! slices of the real allocator on one node.

use framewright_sim::outcome::{Outcome, Pace};
use framewright_sim::page_fault::{self, Load};
use framewright_sim::queue::Network;

use crate::study::declare::*;
use crate::study::identify::{self, median};
use crate::study::page_fault::{demands, explained};
use crate::study::tasks::{self, published};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "kernbench",
        about: "A kernel compile with a job for each CPU.",
        kinds: &[Kind::Simulated],
        keys: &[key("iterations", Takes::Whole(1, 1000), None, "Compiles in the published durations.")],
        metrics: joined!(Quantity;
            &quantities! {
                user_seconds "s" Lower Main "User CPU time of a compile."
                syst_seconds "s" Lower Main "System CPU time of a compile."
                elsp_seconds "s" Lower Main "Wall time of a compile."
                duration_user_seconds "s" Lower Main "User CPU time of the whole test."
                duration_system_seconds "s" Lower Main "System CPU time of the whole test."
                duration_elapsed_seconds "s" Lower Main "Wall time of the whole test."
                waiting_percent "%" Lower Cause "Share of system time that is spent waiting for the zones' locks."
            },
            &NETWORK,
            TASK_CAUSES,
        ),
        options: &[SIMULATED[1], SIMULATED[2]],
        needs: &[Need::Model, Need::Kernel],
        is_bound: true,
        varies: 0,
    },
    runners: &[(Kind::Simulated, run)],
};

/// Names of the times, as in the table and in the durations below it.
const NAMES: [(&str, &str); 3] = [("user", "user"), ("syst", "system"), ("elsp", "elapsed")];
/// Pages of a process in a slice: those of a compiler's run, four times fewer.
const PAGES: u32 = 2048;
/// How long a slice is.
const SLICE: Ps = Ps(6_000_000_000);
/// The same for a first look.
const QUICK: Ps = Ps(2_000_000_000);
/// How far the slices' demand may be from the implied one: a factor.
const FAR: f64 = 2.5;

fn priors() -> Result<Priors> {
    Priors::parse("kernbench.toml", include_str!("../../../../studies/priors/kernbench.toml"))
}

/// The compile that the baseline ran, in seconds of all CPUs together.
struct Whole {
    cpus: f64,
    user: f64,
    system: f64,
    elapsed: f64,
}

impl Whole {
    fn of(part: &Part, cpus: u32) -> Result<Self> {
        Ok(Self {
            cpus: f64::from(cpus),
            user: published(part, "user_seconds")?,
            system: published(part, "syst_seconds")?,
            elapsed: published(part, "elsp_seconds")?,
        })
    }

    fn idle(&self) -> f64 {
        (self.elapsed * self.cpus - self.user - self.system).max(0.0)
    }

    /// Time between jobs as a multiple of the time in them, while they run side by side.
    fn wait(&self, serial: f64) -> f64 {
        (1.0 - serial) * self.idle() / (self.user + self.system)
    }

    /// User, system and elapsed seconds, if a page takes this: user and system time in ns.
    fn seconds(&self, serial: f64, pages: f64, [user, system]: [f64; 2]) -> [f64; 3] {
        let (user, system) = (user * pages / 1e9, system * pages / 1e9);
        let side_by_side = (user + system) / self.cpus * (1.0 + self.wait(serial));
        [user, system, side_by_side + serial * self.idle() / self.cpus]
    }
}

/// What a model makes of every variant.
struct Predicted {
    /// By variant: user, system and elapsed seconds.
    seconds: Vec<[f64; 3]>,
    /// By variant: the share of system time that waits, and the bounds.
    causes: Vec<[f64; 3]>,
    outcomes: Vec<Outcome>,
    over_implied: f64,
}

struct Study<'a> {
    run: &'a Run<'a>,
    whole: Whole,
    variants: Vec<Configured>,
}

impl Study<'_> {
    /// Runs every variant on one model of a node.
    fn predicted(&self, model: &Model, draw: &Draw, seed: u64) -> Result<Predicted> {
        let Whole { user, system, cpus, .. } = self.whole;
        let serial = draw.get("serial_idle")?;
        let pages = user * draw.get("pages_per_user_second")?;
        let [user_ns, system_ns] = [user, system].map(|seconds| seconds * 1e9 / pages);
        // A page that takes more without contention than was published waits for nothing.
        let alone = draw.get("system_ns_per_page")?.min(system_ns);
        let idle = (user_ns + system_ns) * self.whole.wait(serial);
        let cycle = user_ns + system_ns + idle;
        let threads = f64::from(model.shape.threads_per_core);
        let works = if threads > 1.0 { 2.0 / model.smt_yield - 1.0 } else { 0.0 };
        // Idle time is not work that a sibling slows down.
        let sibling = works * (user_ns + alone) / (user_ns + alone + idle);
        let node = (cpus / f64::from(self.run.machine.nodes)) as u32;
        let waits = [("zone", system_ns - alone)];
        let base = Network::implied(node, cycle, &waits, sibling, draw.get("variation")?);
        let outcomes = self
            .variants
            .iter()
            .map(|variant| self.slice(variant, model, draw, user_ns, seed))
            .collect::<Result<Vec<_>>>()?;
        let all = outcomes.iter().map(|outcome| demands(model, draw, outcome)).collect::<Result<Vec<_>>>()?;
        let demanded = all[0][0].max(1e-9);
        let over_implied = demanded / base.stations[0].demand_ns.max(1e-9);
        let scale = over_implied.recip().powf(draw.get("scales")?);
        let mut predicted = Predicted { seconds: Vec::new(), causes: Vec::new(), outcomes, over_implied };
        let held = base.stations[0].demand_ns;
        let before = base.reached(node);
        let thinks = before.cycle_ns - before.wait_ns[0] - held;
        for demand in all {
            let mut network = base.clone();
            let demand = (held + (demand[0] - demanded) * scale).max(0.0);
            network.stations[0].demand_ns = demand;
            let reached = network.reached(node);
            let slower = (reached.cycle_ns - reached.wait_ns[0] - demand) / thinks.max(1e-9);
            let kernel = (alone - held).max(0.0) * slower + demand + reached.wait_ns[0];
            predicted.seconds.push(self.whole.seconds(serial, pages, [user_ns * slower, kernel]));
            let nodes = f64::from(self.run.machine.nodes);
            let bound =
                network.bounds().first().map_or([0.0; 2], |bound| [bound.saturated_at, bound.per_ns * 1e9]);
            predicted.causes.push([
                100.0 * reached.wait_ns[0] / kernel.max(1e-9),
                bound[0] * nodes,
                bound[1] * nodes,
            ]);
        }
        Ok(predicted)
    }

    fn slice(
        &self,
        variant: &Configured,
        model: &Model,
        draw: &Draw,
        user_ns: f64,
        seed: u64,
    ) -> Result<Outcome> {
        let load = Load {
            processes: model.shape.cpus(),
            pages: PAGES,
            user_ns,
            slice: if self.run.quick { QUICK } else { SLICE },
            pace: Pace { user: 1.5, fault_ns: 5000.0, free_ns: 5000.0 },
            cached: draw.get("cached")?,
        };
        let allocator = allocator(self.run.machine, &variant.setup);
        page_fault::run(model, &allocator, &load, seed).map_err(Error::failed)
    }
}

/// Runs the part.
///
/// # Errors
/// The machine cannot be simulated, or the plan lacks a figure of the baseline.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    tasks::check(run.machine)?;
    let study = Study {
        run,
        whole: Whole::of(part, run.machine.cpus())?,
        variants: configured(plan, &Settings::default())?,
    };
    let iterations = WORKLOAD.value::<f64>(part, "iterations");
    let count = run.models.max(1) as usize;
    let node = Machine { nodes: 1, sockets: 1, ..run.machine.clone() };
    let models = sampled_models(&node, count, run.seed)?;
    let draws = priors()?.draws(count, run.seed);
    let samples: Vec<(Model, Draw, u64)> = models
        .into_iter()
        .zip(draws)
        .zip(1_u64..)
        .map(|((model, draw), n)| Ok((identify::with_errors(model, &draw)?, draw, mix(run.seed ^ n << 32))))
        .collect::<Result<_>>()?;
    let progress = progress(plan, part, count);
    let predict = |(model, draw, seed): &(Model, Draw, u64)| study.predicted(model, draw, *seed);
    let all = in_parallel(&samples, predict, || progress.step("simulated"));
    let all: Vec<Predicted> = all.into_iter().collect::<Result<_>>()?;
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut hashes = Vec::new();
    for predicted in &all {
        for (n, variant) in study.variants.iter().enumerate() {
            let name = &variant.variant;
            for ((short, long), value) in NAMES.into_iter().zip(predicted.seconds[n]) {
                let family = format!("{short}_seconds");
                tasks::add(&mut result, part, &family, "", name, value);
                // What the whole script took beyond the compiles does not change.
                let duration = format!("duration_{long}_seconds");
                let setup = published(part, &duration)? - iterations * published(part, &family)?;
                tasks::add(&mut result, part, &duration, "", name, iterations * value + setup);
            }
            let [waiting, cpus, most] = predicted.causes[n];
            result.figure("waiting_percent").sample(name, waiting);
            result.figure("saturated_at_cpus[lock=zone]").sample(name, cpus);
            result.figure("most_per_second[lock=zone]").sample(name, most);
            tasks::add_causes(&mut result, "", name, &predicted.outcomes[n]);
            hashes.push(predicted.outcomes[n].events.hash);
        }
    }
    let ratio = median(all.iter().map(|predicted| predicted.over_implied).collect());
    result.note(format!(
        "A page takes {ratio:.2} times as much of the zone lock in the slices as the published baseline implies (median of the models). {}",
        explained(ratio, FAR),
    ));
    close_models(&mut result, count, hashes, Interval::FourFifths);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_as_published_and_larger_lists_take_the_lock_less_often() {
        let (plan, part) = Plan::with_part("pcp-reset", "kernbench");
        let machine = Machine::find("epyc-7742-2s").expect("it is built in");
        let result = super::run(&plan, &part, &Run::shortest(&machine)).expect("simulated");
        let value = |name: &str, variant: &str| result.find(name).expect(name).of(variant)[0];
        for (name, published) in
            [("user_seconds", 13_249.5), ("syst_seconds", 14_760.3), ("elsp_seconds", 162.42)]
        {
            assert!(
                (value(name, "vanilla") / published - 1.0).abs() < 0.03,
                "{name} {}",
                value(name, "vanilla")
            );
        }
        for metric in &part.metrics {
            let found = result.find(&metric.name).expect("a figure");
            assert_eq!((found.samples.len(), found.published), (2, metric.published), "{}", metric.name);
        }
        let locks = |variant| value("zone_lock_acquisitions_per_page[zone=0]", variant);
        assert!(locks("reset") < locks("vanilla") / 4.0, "lists nine times as large");
        assert!(value("syst_seconds", "reset") < 0.7 * value("syst_seconds", "vanilla"));
        assert!(value("user_seconds", "reset") > value("user_seconds", "vanilla"), "siblings no longer wait");
    }

    #[test]
    fn the_whole_is_put_together_from_pages_as_it_was_taken_apart() {
        let whole = Whole { cpus: 256.0, user: 13_249.5, system: 14_760.3, elapsed: 162.42 };
        let pages = 3e8;
        let [user, system, elapsed] =
            whole.seconds(0.75, pages, [whole.user * 1e9 / pages, whole.system * 1e9 / pages]);
        assert!((user - 13_249.5).abs() < 1e-6 && (system - 14_760.3).abs() < 1e-6);
        assert!((elapsed - 162.42).abs() < 1e-9, "{elapsed}");
        // 32.6 % of the time is idle; a quarter of that while jobs run.
        assert!((1.0 / (1.0 + whole.wait(0.75)) - 0.892).abs() < 1e-3, "{}", whole.wait(0.75));
    }
}
