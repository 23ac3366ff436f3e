//! Part `aim7` of `lock-line`, simulated: a slice out of a run of aim7's `page_test`, scaled to the whole.

use framewright_host::framewright::policy::pcp::Sizing;
use framewright_sim::Model;
use framewright_sim::bench::Linux;
use framewright_sim::clock::{Ps, mix};
use framewright_sim::kernbench::Outcome;
use framewright_sim::page_test::{self, Load, PAGES_PER_JOB};

use crate::error::{Error, Result};
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::{in_parallel, sampled_models};
use crate::study::run::{Configured, Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::simulated::allocator;
use crate::study::tasks::{self, Amounts, PerPage, add, amount, published};
use crate::study::{Part, Plan};

/// Per-CPU lists of Linux v3.17 in any large zone: its batch was capped at 512 KiB, a quarter of that, less one.
const LISTS: Sizing = Sizing { batch: 31, high_min: 186, high_max: 186 };
/// How long a slice is: each user runs at least once.
const SLICE: Ps = Ps(30_000_000_000);
/// The same for a first look.
const QUICK: Ps = Ps(10_000_000_000);

/// The run that the baseline is of.
struct Whole {
    jobs: f64,
    /// CPUs busy on average.
    busy: f64,
    /// What a page took.
    goal: PerPage,
}

struct Study<'a> {
    run: &'a Run<'a>,
    whole: Whole,
    load: Load,
    /// Varied settings with the name they give a metric, and the variants under each. The first of the first is the
    /// baseline that was published.
    settings: Vec<(String, Vec<Configured>)>,
}

/// Runs the part.
///
/// # Errors
/// The machine cannot be simulated, or the plan lacks a figure of the baseline.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let jobs = amount(part, "jobs")?;
    let [user, system, elapsed] =
        [published(part, "user_time")?, published(part, "system_time")?, published(part, "elapsed_time")?];
    let pages = jobs * f64::from(PAGES_PER_JOB);
    let study = Study {
        run,
        whole: Whole {
            jobs,
            busy: (user + system) / elapsed,
            goal: PerPage { user_ns: user * 1e9 / pages, system_ns: system * 1e9 / pages },
        },
        load: Load {
            cpus: (amount(part, "busy_cpus")? as u16).min(run.machine.cpus() as u16),
            users: amount(part, "users_per_cpu")? as u16,
            user_ns: 0.0,
            other_ns: 0.0,
            slice: if run.quick { QUICK } else { SLICE },
        },
        settings: part
            .combinations()
            .iter()
            .map(|varied| Ok((name(varied), configured(plan, varied)?)))
            .collect::<Result<_>>()?,
    };
    let models = sampled_models(run.machine, run.models as usize, run.seed)?;
    let progress = progress(plan, part, tasks::rounds(run.quick) + models.len());
    let central = study.central_amounts(|| progress.step("amounts of work"))?;
    let samples: Vec<(Model, u64)> =
        models.into_iter().zip((1..).map(|n: u64| mix(run.seed ^ n << 32))).collect();
    let simulated = in_parallel(
        &samples,
        |(model, seed)| study.simulate(model, central, *seed),
        || progress.step("jobs"),
    );
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut hashes = Vec::new();
    for simulated in simulated {
        let (amounts, outcomes) = simulated?;
        let mut outcomes = outcomes.iter();
        for (parameters, variants) in &study.settings {
            for (variant, outcome) in variants.iter().zip(outcomes.by_ref()) {
                study.add(&mut result, part, parameters, &variant.variant, amounts, outcome);
                hashes.push(outcome.events.hash);
            }
        }
    }
    result.note(format!(
        "A surrogate: {} CPUs, each with {} users (estimated) who run job after job; {PAGES_PER_JOB} faults a job. Amounts of user \
         work and of kernel work that is not modelled are such that the baseline under the first kind of lock takes about the \
         published times.",
        study.load.cpus, study.load.users
    ));
    note_models(&mut result, samples.len());
    close_simulated(&mut result, hashes);
    Ok(result)
}

fn name(varied: &Settings) -> String {
    let one = |(key, value): (&str, &crate::settings::Value)| {
        format!("{}={value}", key.trim_start_matches("lock_"))
    };
    varied.iter().map(one).collect::<Vec<_>>().join(",")
}

impl Study<'_> {
    fn slice(&self, variant: &Configured, model: &Model, amounts: Amounts, seed: u64) -> Result<Outcome> {
        let load = Load { user_ns: amounts.user_ns, other_ns: amounts.other_ns, ..self.load };
        let allocator = Linux { sizing: LISTS, ..allocator(self.run.machine, &variant.setup) };
        page_test::run(model, &allocator, &load, seed).map_err(Error::failed)
    }

    fn baseline(&self) -> Result<&Configured> {
        let first = self.settings.first().and_then(|(_, variants)| variants.first());
        first.ok_or_else(|| Error::failed("a part without variants"))
    }

    /// Amounts of work with the machine as it is described.
    fn central_amounts(&self, done: impl Fn()) -> Result<Amounts> {
        let model = tasks::described(self.run.machine)?;
        let baseline = self.baseline()?;
        Amounts::found(self.whole.goal, &model, tasks::rounds(self.run.quick), |amounts| {
            let outcome = self.slice(baseline, &model, amounts, self.run.seed);
            done();
            outcome
        })
    }

    /// One slice to move the amounts to this model's, then one of each variant.
    fn simulate(&self, model: &Model, central: Amounts, seed: u64) -> Result<(Amounts, Vec<Outcome>)> {
        let tried = self.slice(self.baseline()?, model, central, seed)?;
        let amounts = central.towards(self.whole.goal, PerPage::of(&tried, central));
        let all = self.settings.iter().flat_map(|(_, variants)| variants);
        let outcomes = all.map(|variant| self.slice(variant, model, amounts, seed)).collect::<Result<_>>()?;
        Ok((amounts, outcomes))
    }

    fn add(
        &self,
        result: &mut ResultPart,
        part: &Part,
        parameters: &str,
        variant: &str,
        amounts: Amounts,
        outcome: &Outcome,
    ) {
        let per_page = PerPage::of(outcome, amounts);
        let pages = self.whole.jobs * f64::from(PAGES_PER_JOB);
        let (user, system) = (per_page.user_ns * pages / 1e9, per_page.system_ns * pages / 1e9);
        let elapsed = (user + system) / self.whole.busy;
        let switches = |count: u64| count as f64 * pages / outcome.usage.pages.max(1) as f64;
        for (family, value) in [
            ("jobs_per_minute", self.whole.jobs * 60.0 / elapsed),
            ("elapsed_time", elapsed),
            ("system_time", system),
            ("user_time", user),
            ("voluntary_context_switches", switches(outcome.usage.voluntary)),
            ("involuntary_context_switches", switches(outcome.usage.involuntary)),
        ] {
            add(result, part, family, parameters, variant, value);
        }
        tasks::add_causes(result, parameters, variant, outcome);
    }
}

#[cfg(test)]
mod tests {
    use framewright_workload::trace::Trace;

    use super::*;
    use crate::machine::Machine;

    #[test]
    fn the_baseline_is_met_and_every_figure_is_there() {
        let plan = Plan::find("lock-line").expect("it is built in");
        let mut machine = Machine::find("ivy-bridge-ex-4s").expect("it is built in");
        machine.cores_per_node = 2;
        let trace = Trace::default();
        let run = Run::shortest(&machine, &trace);
        let part = plan.parts().iter().find(|part| part.name == "aim7").expect("a part");
        let result = super::run(&plan, part, &run).expect("simulated");
        let of = |name: &str, variant: &str| result.find(name).expect(name).of(variant)[0];
        let jobs = of("jobs_per_minute[kind=ticket]", "with_order0_lists");
        assert!((jobs / 84_568.0 - 1.0).abs() < 0.1, "{jobs}");
        for metric in &part.metrics {
            for kind in ["ticket", "queued"] {
                let name = format!("{}[kind={kind}]", metric.name);
                let found = result.find(&name).expect(&name);
                assert_eq!(found.samples.len(), 3, "{name}");
                assert_eq!(found.published.is_some(), metric.published.is_some() && kind == "ticket");
            }
        }
        assert!(of("involuntary_context_switches[kind=queued]", "own_line") > 1e6);
        // Batches of 14: at 14 faults of the 16 after each shrinking, at the shrinking, and two for the 16 pages.
        let locks = of("lru_lock_acquisitions_per_page[kind=ticket]", "own_line");
        assert!((3.0 / 16.0..4.5 / 16.0).contains(&locks), "{locks}");
        assert!(of("line_wait_ns[line=lru_lock_node_0,kind=ticket]", "own_line") > 0.0);
    }
}
