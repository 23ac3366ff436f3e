//! Part `kernbench` of `pcp-reset`, simulated: a slice out of a kernel compile, scaled to the whole.
//!
//! What a compile does has priors (`studies/priors/kernbench.toml`). Of a baseline's figures, user time says how many pages there were,
//! by how many a second of user time has; how many a second has is solved for such that the baseline's ratio of system to user time
//! comes out, and each model is weighed by how likely that is. No work is added to explain what is missing.

mod profile;

use std::sync::Arc;

use framewright_sim::Model;
use framewright_sim::clock::{Ps, mix};
use framewright_sim::kernbench::{self, Load, Outcome, Pace, Profile};

use crate::error::{Error, Result};
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::shipped;
use crate::simulate::sampled_models;
use crate::study::declare::*;
use crate::study::identify::{self, Draw, Priors, Solved};
use crate::study::run::{Configured, Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::simulated::allocator;
use crate::study::tasks::{self, amount, published};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "kernbench",
        about: "A kernel compile with a job for each CPU, made of the compiler runs of a recorded one.",
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
                modelled_system_percent "%" None Cause "Share of the baseline's system time that is simulated."
                pages_per_user_second "1/s" None Cause "Pages allocated in a second of user time."
            },
            TASK_CAUSES,
        ),
        options: &[SIMULATED[1], SIMULATED[2]],
        needs: &[Need::Model, Need::Kernel],
        is_bound: true,
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, run)],
};

/// What the recorded compile's compiler is called.
const COMPILER: &str = "cc1";
/// Names of the times, as in the table and in the durations below it.
const NAMES: [(&str, &str); 3] = [("user", "user"), ("syst", "system"), ("elsp", "elapsed")];
/// Processes have so many times fewer pages than recorded: a slice is much shorter than any of them, and memory has to be filled first.
const SHORTENED: u32 = 4;
/// How long a slice is: some hundred holds of a contended lock for each CPU.
const SLICE: Ps = Ps(12_000_000_000);
/// The same for a first look.
const QUICK: Ps = Ps(4_000_000_000);
/// Slices at most in which a model's pages for each user second are found.
const TRIES: usize = 4;
/// An allocation, a free and the lists of pages in use, with nobody in the way, in ns: what a slice adds to the machine's own costs.
const UNCONTENDED_NS: f64 = 200.0;

/// Said of results whose intervals have it.
pub(crate) const WORK_ERROR: &str = "Work that waits for nobody has an error in the change, one for each model: what orders left out of the fit \
                                     are off by. It was learned after the second blind round.";

/// The priors.
pub(crate) fn priors() -> Result<Priors> {
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

    /// Seconds at the end, or between, in which one task runs, if that is this share of idle time.
    fn serial_seconds(&self, serial: f64) -> f64 {
        serial * self.idle() / self.cpus
    }

    /// Time between jobs as a multiple of the time in them, while they run side by side.
    fn wait(&self, serial: f64) -> f64 {
        (1.0 - serial) * self.idle() / (self.user + self.system)
    }

    /// User, system and elapsed seconds of so many pages, if one takes this.
    fn seconds(&self, serial: f64, pages: f64, of: PerPage) -> [f64; 3] {
        let (user, system) = (of.user_ns * pages / 1e9, of.system_ns * pages / 1e9);
        let side_by_side = (user + system) / self.cpus * (1.0 + self.wait(serial));
        [user, system, side_by_side + self.serial_seconds(serial)]
    }
}

/// What a page takes, in ns.
#[derive(Clone, Copy, Debug, Default)]
struct PerPage {
    user_ns: f64,
    system_ns: f64,
    /// Of it, what is not simulated.
    other_ns: f64,
}

/// One model with all that was drawn for it.
struct Sample {
    model: Model,
    draw: Draw,
    seed: u64,
}

/// A slice, and how it has to begin.
struct Tried {
    load: Load,
    per_page: PerPage,
    outcome: Outcome,
}

impl Tried {
    /// What a page takes if work that waits for nobody takes so many times as long.
    fn with_error(&self, error: f64) -> PerPage {
        let waits = self.outcome.waits_ns() / (self.outcome.usage.pages as f64).max(1.0);
        let work = (self.per_page.system_ns - waits).max(0.0);
        PerPage { system_ns: self.per_page.system_ns + (error - 1.0) * work, ..self.per_page }
    }
}

struct Study<'a> {
    run: &'a Run<'a>,
    whole: Whole,
    profile: Arc<Profile>,
    variants: Vec<Configured>,
    priors: Priors,
}

/// Runs the part.
///
/// # Errors
/// The machine cannot be simulated, or the plan lacks a figure of the baseline.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let trace = shipped::kernel()?;
    let profile = profile::of(&trace, COMPILER)
        .ok_or_else(|| Error::failed(format_args!("the trace has no run of {COMPILER}")))?;
    let study = Study {
        run,
        whole: Whole::of(part, run.machine.cpus())?,
        profile: Arc::new(profile.shortened(SHORTENED)),
        variants: configured(plan, &Settings::default())?,
        priors: priors()?,
    };
    tasks::described(run.machine)?;
    let iterations = amount(part, "iterations")?;
    let samples = study.samples()?;
    let progress = progress(plan, part, samples.len() + run.models.max(1) as usize);
    let posterior = identify::condition(
        &samples,
        run.models,
        run.seed,
        &progress,
        |sample| study.solve(sample),
        |solved| solved.log_weight,
        |sample, solved| study.others(sample, solved),
    )?;
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut hashes = Vec::new();
    let (mut modelled, mut misfits, mut pages_of) = (Vec::new(), Vec::new(), Vec::new());
    for one in &posterior.kept {
        let (sample, solved) = (&samples[one.model], &posterior.baselines[one.model]);
        let base = &solved.brought;
        let pages = study.whole.user * 1e9 / base.per_page.user_ns;
        let serial = sample.draw.get("serial_idle")?;
        modelled.push(1.0 - base.per_page.other_ns / base.per_page.system_ns);
        misfits.push(solved.misfit.exp() - 1.0);
        pages_of.push(pages);
        for (variant, tried) in study.variants.iter().zip(core::iter::once(base).chain(&one.change)) {
            // The baseline comes out as it was published whatever part of it waits; the change does not.
            let error = if core::ptr::eq(tried, base) { 1.0 } else { one.work };
            let seconds = study.whole.seconds(serial, pages, tried.with_error(error));
            for ((name, long), value) in NAMES.into_iter().zip(seconds) {
                let family = format!("{name}_seconds");
                tasks::add(&mut result, part, &family, "", &variant.variant, value);
                // What the whole script took beyond the compiles does not change.
                let duration = format!("duration_{long}_seconds");
                let setup = published(part, &duration)? - iterations * published(part, &family)?;
                tasks::add(&mut result, part, &duration, "", &variant.variant, iterations * value + setup);
            }
            tasks::add_causes(&mut result, "", &variant.variant, &tried.outcome);
            hashes.push(tried.outcome.events.hash);
            if variant.variant == plan.baseline() {
                let share = 100.0 * (1.0 - tried.per_page.other_ns / tried.per_page.system_ns);
                result.figure("modelled_system_percent").sample(&variant.variant, share);
                let rate = solved.value;
                result.figure("pages_per_user_second").sample(&variant.variant, rate);
            }
        }
    }
    let share = identify::median(modelled);
    result.note(format!(
        "{:.0} % of the baseline's system time is what is simulated: faults, frees, processes, and the waits for locks (median of the \
         models). {}",
        100.0 * share,
        verdict(share, identify::median(misfits.iter().map(|misfit| misfit.abs()).collect())),
    ));
    result.note(format!(
        "{} models were drawn from studies/priors/kernbench.toml; in each, pages per user second are such that the baseline's system \
         time comes out ({:.0} million pages, {:.0} per user second: medians), and it counts by how likely they are. Those kept count as {:.1} equally \
         good ones.",
        samples.len(),
        identify::median(pages_of) / 1e6,
        identify::median(posterior.kept.iter().map(|one| posterior.baselines[one.model].value).collect()),
        posterior.effective,
    ));
    result.note(WORK_ERROR);
    result.note(format!(
        "A slice of {:.0} ms on {} CPUs, begun with every CPU in the middle of something; processes of the recorded compile with {SHORTENED} \
         times fewer pages.",
        study.slice().as_ns() / 1e6,
        run.machine.cpus(),
    ));
    note_models(&mut result, posterior.kept.len());
    close_simulated(&mut result, hashes);
    Ok(result)
}

/// What a baseline's modelled share, and how far its figures are off, allow to be said.
pub(crate) fn verdict(share: f64, misfit: f64) -> &'static str {
    if share < 0.5 {
        "Baseline not explained: most of its system time is not simulated, and no figure of a change is a prediction."
    } else if misfit > 0.15 {
        "Baseline not explained: no model comes near its figures, and no figure of a change is a prediction."
    } else {
        "The baseline is explained."
    }
}

impl Study<'_> {
    fn slice(&self) -> Ps {
        if self.run.quick { QUICK } else { SLICE }
    }

    /// Half as many again as are to be kept.
    fn samples(&self) -> Result<Vec<Sample>> {
        let count = identify::drawn(self.run.models, self.run.quick);
        let models = sampled_models(self.run.machine, count, self.run.seed)?;
        let draws = self.priors.draws(count, self.run.seed);
        let seed = |n: u64| mix(self.run.seed ^ n << 32);
        let all = models.into_iter().zip(draws).zip(1..);
        all.map(|((model, draw), n)| {
            Ok(Sample { model: identify::with_errors(model, &draw)?, draw, seed: seed(n) })
        })
        .collect()
    }

    /// The load with so many pages per second of user time.
    fn load(&self, sample: &Sample, rate: f64, pace: Pace) -> Result<Load> {
        let Sample { model, draw, .. } = sample;
        let slowdown = with_sibling(model);
        let user_ns = 1e9 / rate / slowdown;
        let system_ns = draw.get("system_ns_per_page")? / slowdown;
        let kernel = model.kernel.unwrap_or_else(|| unreachable!("it was asked for"));
        let clear_ns = 4096.0 / model.bandwidth.core;
        let simulated =
            kernel.page_fault + kernel.page_free + clear_ns + UNCONTENDED_NS + self.process_ns(model);
        Ok(Load {
            user_factor: user_ns * self.profile.pages_per_job() / self.profile.work_per_job().max(1.0),
            other_ns: (system_ns - simulated).max(0.0),
            wait: self.whole.wait(draw.get("serial_idle")?),
            slice: self.slice(),
            pace,
            cached: draw.get("cached")?,
        })
    }

    /// Making and ending processes, for each page, alone on a core.
    fn process_ns(&self, model: &Model) -> f64 {
        let kernel = model.kernel.unwrap_or_else(|| unreachable!("it was asked for"));
        let each = kernel.fork + kernel.exec + kernel.exit + 2.0 * kernel.context_switch;
        // Processes are shortened, too.
        each * self.profile.processes_per_job() / (f64::from(SHORTENED) * self.profile.pages_per_job())
    }

    fn try_out(&self, sample: &Sample, variant: &Configured, load: Load) -> Result<Tried> {
        let allocator = allocator(self.run.machine, &variant.setup);
        let outcome = kernbench::run(&sample.model, &allocator, &self.profile, &load, sample.seed)
            .map_err(Error::failed)?;
        let pace = outcome.paid.pace(&outcome.usage, load.pace);
        let user_ns =
            load.user_factor * self.profile.work_per_job() / self.profile.pages_per_job() * pace.user;
        let other_ns = load.other_ns * pace.user;
        // Each page is faulted once and freed once: a slice may have more of one than of the other.
        let system_ns = pace.fault_ns + pace.free_ns + other_ns + self.process_ns(&sample.model) * pace.user;
        Ok(Tried { load: Load { pace, ..load }, per_page: PerPage { user_ns, system_ns, other_ns }, outcome })
    }

    fn solve(&self, sample: &Sample) -> Result<Solved<Tried>> {
        let goal = self.whole.system / self.whole.user;
        let tries = if self.run.quick { 2 } else { TRIES };
        self.priors.solve("pages_per_user_second", tries, |rate, before: Option<&Tried>| {
            let pace = before.map_or_else(|| contended(&sample.model), |before| before.load.pace);
            let load = self.load(sample, rate, pace)?;
            // The first try is only to see how long things take.
            let load = if before.is_none() { Load { slice: QUICK, ..load } } else { load };
            let tried = self.try_out(sample, &self.variants[0], load)?;
            let of = tried.per_page;
            Ok(((of.system_ns / of.user_ns / goal).ln(), tried))
        })
    }

    /// The other variants: a slice to see how long things take, and one that begins accordingly.
    fn others(&self, sample: &Sample, solved: &Solved<Tried>) -> Result<Vec<Tried>> {
        self.variants[1..]
            .iter()
            .map(|variant| {
                let pace = Pace { user: with_sibling(&sample.model), ..Pace::default() };
                let load = self.load(sample, solved.value, pace)?;
                let first = self.try_out(sample, variant, Load { slice: QUICK, ..load })?;
                self.try_out(sample, variant, Load { slice: self.slice(), ..first.load })
            })
            .collect()
    }
}

/// How much longer work takes while the sibling works, too.
fn with_sibling(model: &Model) -> f64 {
    if model.shape.threads_per_core > 1 { 2.0 / model.smt_yield } else { 1.0 }
}

/// What to begin with where half of the time is system time.
fn contended(model: &Model) -> Pace {
    Pace { user: with_sibling(model), fault_ns: 15_000.0, free_ns: 15_000.0 }
}

#[cfg(test)]
mod tests {
    use framewright_workload::trace::Trace;

    use super::*;
    use crate::machine::Machine;

    #[test]
    fn every_figure_is_there_and_larger_lists_take_the_lock_less_often() {
        let plan = Plan::find("pcp-reset").expect("it is built in");
        let mut machine = Machine::find("epyc-7742-2s").expect("it is built in");
        machine.cores_per_node = 4;
        let trace = Trace::default();
        let run = Run::shortest(&machine, &trace);
        let part = plan.parts().iter().find(|part| part.name == "kernbench").expect("a part");
        let result = super::run(&plan, part, &run).expect("simulated");
        let of = |name: &str, variant: &str| result.find(name).expect(name).of(variant)[0];
        // By user time it is known how much is done.
        assert!((of("user_seconds", "vanilla") / 13_249.5 - 1.0).abs() < 1e-9);
        // Sixteen CPUs do not wait as long as 256 do, and no work is put in place of that.
        assert!(of("syst_seconds", "vanilla") < 9_000.0);
        for metric in &part.metrics {
            let found = result.find(&metric.name).expect("a figure");
            assert_eq!((found.samples.len(), found.published), (2, metric.published), "{}", metric.name);
        }
        let locks = |variant| of("zone_lock_acquisitions_per_page[zone=0]", variant);
        assert!(locks("reset") < locks("vanilla") / 4.0, "lists nine times as large");
        assert!(result.notes.iter().any(|note| note.contains("aseline not explained")), "{:?}", result.notes);
    }

    #[test]
    fn the_whole_is_put_together_from_pages_as_it_was_taken_apart() {
        let whole = Whole { cpus: 256.0, user: 13_249.5, system: 14_760.3, elapsed: 162.42 };
        let pages = 3e8;
        let of = PerPage {
            user_ns: whole.user * 1e9 / pages,
            system_ns: whole.system * 1e9 / pages,
            other_ns: 0.0,
        };
        let [user, system, elapsed] = whole.seconds(0.75, pages, of);
        assert!((user - 13_249.5).abs() < 1e-6 && (system - 14_760.3).abs() < 1e-6);
        assert!((elapsed - 162.42).abs() < 1e-9, "{elapsed}");
        // 32.6 % of the time is idle; a quarter of that while jobs run.
        assert!((1.0 / (1.0 + whole.wait(0.75)) - 0.892).abs() < 1e-3, "{}", whole.wait(0.75));
    }

    #[test]
    fn a_baseline_that_is_not_simulated_is_not_explained() {
        assert!(verdict(0.8, 0.05).starts_with("The baseline"));
        assert!(verdict(0.4, 0.05).starts_with("Baseline not explained: most"));
        assert!(verdict(0.8, 0.3).starts_with("Baseline not explained: no model"));
    }
}
