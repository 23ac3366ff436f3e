//! Part `aim7` of `lock-line`, simulated: a slice out of a run of aim7's `page_test`, scaled to the whole.
//!
//! What is not known has priors (`studies/priors/page_test.toml`). How many pages a job frees at once is page_test's 16
//! unless the published system time says otherwise: it is solved for such that this comes out, and each model is
//! weighed by how likely that is. Nothing is added to explain what is missing.

use framewright_host::framewright::policy::pcp::Sizing;
use framewright_sim::Model;
use framewright_sim::bench::Linux;
use framewright_sim::clock::{Ps, mix};
use framewright_sim::kernbench::Outcome;
use framewright_sim::page_test::{self, Load, ROUNDS};

use crate::error::{Error, Result};
use crate::result::{Better, Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::sampled_models;
use crate::study::declare::*;
use crate::study::identify::{self, Draw, Priors, Solved};
use crate::study::kernbench::{WORK_ERROR, verdict};
use crate::study::run::{Configured, Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::simulated::allocator;
use crate::study::tasks::{self, add, amount, described, published};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "page_test",
        about: "aim7's page_test: jobs that shrink and grow a heap and dirty each page.",
        kinds: &[Kind::Simulated],
        keys: &[
            key("jobs", Takes::Whole(1, i64::MAX), None, "Jobs of the published run."),
            key("busy_cpus", Takes::Whole(1, 65536), None, "CPUs that were busy."),
            key("users_per_cpu", Takes::Whole(1, 1024), None, "Users that each CPU serves."),
        ],
        metrics: joined!(Quantity;
            &quantities! {
                jobs_per_minute "jobs/min" Higher Main "Throughput."
                elapsed_time "s" Lower Main "Wall time."
                system_time "s" Lower Main "System CPU time."
                user_time "s" None Main "User CPU time."
                voluntary_context_switches "1" None Main "Tasks that slept."
                involuntary_context_switches "1" None Main "Tasks that lost their CPU."
                pages_per_shrink "pages" None Cause "Pages that a job frees at once."
                root_anon_vma_acquisitions_per_page "1" Lower Cause "Acquisitions of the semaphore of the root of anonymous memory, per allocated page."
                root_anon_vma_wait_ns "ns" Lower Cause "Time waited for it, per acquisition."
                root_anon_vma_hold_ns "ns" Lower Cause "Time it is held, per acquisition."
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

/// Per-CPU lists of Linux v3.17 in any large zone: its batch was capped at 512 KiB, a quarter of that, less one.
const LISTS: Sizing = Sizing { batch: 31, high_min: 186, high_max: 186 };
/// How long a slice is.
const SLICE: Ps = Ps(8_000_000_000);
/// The same for a first look.
const QUICK: Ps = Ps(4_000_000_000);
/// Slices at most in which a model's pages are found.
const TRIES: usize = 3;
/// Below this, `shares_root` means that all users' heaps have a common root.
const ONE_ROOT: f64 = 0.75;

fn priors() -> Result<Priors> {
    Priors::parse("page_test.toml", include_str!("../../../../studies/priors/page_test.toml"))
}

/// The run that the baseline is of.
struct Whole {
    jobs: f64,
    /// CPUs busy on average.
    busy: f64,
    user: f64,
    system: f64,
}

/// One model with all that was drawn for it.
struct Sample {
    model: Model,
    draw: Draw,
    seed: u64,
}

/// A slice.
struct Tried {
    load: Load,
    /// User and system time of the whole, in seconds.
    user: f64,
    system: f64,
    outcome: Outcome,
}

struct Study<'a> {
    run: &'a Run<'a>,
    whole: Whole,
    cpus: u16,
    users: u16,
    priors: Priors,
    /// Varied settings with the name they give a metric, and the variants under each. The first of the first is the
    /// baseline that was published.
    settings: Vec<(String, Vec<Configured>)>,
}

/// Runs the part.
///
/// # Errors
/// The machine cannot be simulated, or the plan lacks a figure of the baseline.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let [user, system, elapsed] =
        [published(part, "user_time")?, published(part, "system_time")?, published(part, "elapsed_time")?];
    described(run.machine)?;
    let study = Study {
        run,
        whole: Whole { jobs: amount(part, "jobs")?, busy: (user + system) / elapsed, user, system },
        cpus: (amount(part, "busy_cpus")? as u16).min(run.machine.cpus() as u16),
        users: amount(part, "users_per_cpu")? as u16,
        priors: priors()?,
        settings: part
            .combinations()
            .iter()
            .map(|varied| Ok((name(varied), configured(plan, varied)?)))
            .collect::<Result<_>>()?,
    };
    let samples = study.samples()?;
    let progress = progress(plan, part, samples.len() + run.models.max(1) as usize);
    let posterior = identify::condition(
        &samples,
        run.models,
        run.seed,
        &progress,
        |sample| study.solve(sample),
        |solved| solved.log_weight,
        |sample, solved| study.all(sample, solved),
    )?;
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut hashes = Vec::new();
    let mut shares = Vec::new();
    for one in &posterior.kept {
        let mut tried = one.change.iter();
        let mut base = None;
        for (parameters, variants) in &study.settings {
            for (variant, tried) in variants.iter().zip(tried.by_ref()) {
                let base = *base.get_or_insert(tried);
                // The baseline comes out as it was published whatever part of it waits; the change does not.
                let error = if core::ptr::eq(tried, base) { 1.0 } else { one.work };
                study.add(&mut result, part, parameters, &variant.variant, (tried, error), base);
                hashes.push(tried.outcome.events.hash);
            }
        }
        if let Some(base) = base {
            let usage = base.outcome.usage;
            shares.push(usage.root_anon_vma.wait.as_ns() / usage.system.as_ns().max(1.0));
        }
        result
            .metric("pages_per_shrink", "pages", Better::None)
            .sample(plan.baseline(), f64::from(posterior.baselines[one.model].brought.load.pages));
    }
    let off = |one: &identify::One<_>| posterior.baselines[one.model].misfit.exp_m1().abs();
    result.note(format!(
        "{} CPUs, each with {} users (estimated) who run job after job. All of the system time is simulated or has a prior; {:.0} % of it \
         is waiting for the semaphore of the root of anonymous memory (median). {}",
        study.cpus,
        study.users,
        100.0 * identify::median(shares),
        verdict(1.0, identify::median(posterior.kept.iter().map(off).collect())),
    ));
    result.note(format!(
        "{} models were drawn from studies/priors/page_test.toml; in each, the pages that a job frees at once are such that the baseline's system \
         time comes out, and it counts by how likely they are. Those kept count as {:.1} equally good ones.",
        samples.len(),
        posterior.effective,
    ));
    result.note(WORK_ERROR);
    result.note(
        "Why tasks sleep, and how long their slices are, is not modelled: the published context switches are scaled by elapsed time.",
    );
    note_models(&mut result, posterior.kept.len());
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
    /// Half as many again as are to be kept.
    fn samples(&self) -> Result<Vec<Sample>> {
        let count = identify::drawn(self.run.models, self.run.quick);
        let models = sampled_models(self.run.machine, count, self.run.seed)?;
        let all = models.into_iter().zip(self.priors.draws(count, self.run.seed)).zip(1_u64..);
        all.map(|((model, draw), n)| {
            let mut model = identify::with_errors(model, &draw)?;
            if let Some(kernel) = &mut model.kernel {
                kernel.page_fault = draw.get("fault_ns")?;
            }
            Ok(Sample { model, draw, seed: mix(self.run.seed ^ n << 32) })
        })
        .collect()
    }

    /// Runs a slice in which a job frees so many pages at once.
    fn slice(&self, variant: &Configured, sample: &Sample, pages: f64) -> Result<Tried> {
        let Sample { model, draw, seed } = sample;
        let pages = pages.round().max(1.0);
        let faults = self.whole.jobs * f64::from(ROUNDS) * pages;
        let slowdown = if model.shape.threads_per_core > 1 { 2.0 / model.smt_yield } else { 1.0 };
        let user_ns = self.whole.user * 1e9 / faults / slowdown;
        let load = Load {
            cpus: self.cpus,
            users: self.users,
            pages: pages as u32,
            user_ns,
            call_ns: draw.get("call_ns")?,
            tree_ns: draw.get("tree_ns")?,
            shared: if draw.get("shares_root")? < ONE_ROOT { 1.0 } else { 0.0 },
            slice: if self.run.quick { QUICK } else { SLICE },
        };
        let allocator = Linux { sizing: LISTS, ..allocator(self.run.machine, &variant.setup) };
        let outcome = page_test::run(model, &allocator, &load, *seed).map_err(Error::failed)?;
        let usage = &outcome.usage;
        let user = user_ns * usage.user.as_ns() / usage.work.as_ns().max(1.0) * faults / 1e9;
        let system = usage.system.as_ns() / (usage.pages as f64).max(1.0) * faults / 1e9;
        Ok(Tried { load, user, system, outcome })
    }

    fn baseline(&self) -> Result<&Configured> {
        let first = self.settings.first().and_then(|(_, variants)| variants.first());
        first.ok_or_else(|| Error::failed("a part without variants"))
    }

    fn solve(&self, sample: &Sample) -> Result<Solved<Tried>> {
        let baseline = self.baseline()?;
        let tries = if self.run.quick { 2 } else { TRIES };
        self.priors.solve("pages_per_shrink", tries, |pages, _| {
            let tried = self.slice(baseline, sample, pages)?;
            Ok(((tried.system / self.whole.system).ln(), tried))
        })
    }

    /// A slice of each variant.
    fn all(&self, sample: &Sample, solved: &Solved<Tried>) -> Result<Vec<Tried>> {
        let all = self.settings.iter().flat_map(|(_, variants)| variants);
        all.map(|variant| self.slice(variant, sample, solved.value)).collect()
    }

    fn add(
        &self,
        result: &mut ResultPart,
        part: &Part,
        parameters: &str,
        variant: &str,
        (tried, error): (&Tried, f64),
        base: &Tried,
    ) {
        let faults = self.whole.jobs * f64::from(ROUNDS) * f64::from(tried.load.pages);
        let waits = tried.outcome.waits_ns() / (tried.outcome.usage.pages as f64).max(1.0) * faults / 1e9;
        let user = tried.user * error;
        let system = tried.system + (error - 1.0) * (tried.system - waits).max(0.0);
        let elapsed = (user + system) / self.whole.busy;
        let longer = elapsed * self.whole.busy / (base.user + base.system);
        for (family, value) in [
            ("jobs_per_minute", self.whole.jobs * 60.0 / elapsed),
            ("elapsed_time", elapsed),
            ("system_time", system),
            ("user_time", user),
        ] {
            add(result, part, family, parameters, variant, value);
        }
        for family in ["voluntary_context_switches", "involuntary_context_switches"] {
            if let Ok(published) = published(part, family) {
                add(result, part, family, parameters, variant, published * longer);
            }
        }
        let usage = &tried.outcome.usage;
        let pages = (usage.pages as f64).max(1.0);
        let each = (usage.root_anon_vma.locks as f64).max(1.0);
        for (family, unit, value) in [
            ("root_anon_vma_acquisitions_per_page", "1", usage.root_anon_vma.locks as f64 / pages),
            ("root_anon_vma_wait_ns", "ns", usage.root_anon_vma.wait.as_ns() / each),
            ("root_anon_vma_hold_ns", "ns", usage.root_anon_vma.hold.as_ns() / each),
        ] {
            result.metric(format!("{family}[{parameters}]"), unit, Better::Lower).sample(variant, value);
        }
        tasks::add_causes(result, parameters, variant, &tried.outcome);
    }
}

#[cfg(test)]
mod tests {
    use framewright_workload::trace::Trace;

    use super::*;
    use crate::machine::Machine;

    #[test]
    fn every_figure_is_there_and_the_semaphore_is_taken_as_often_as_counted() {
        let plan = Plan::find("lock-line").expect("it is built in");
        let mut machine = Machine::find("ivy-bridge-ex-4s").expect("it is built in");
        machine.cores_per_node = 2;
        let trace = Trace::default();
        let run = Run::shortest(&machine, &trace);
        let part = plan.parts().iter().find(|part| part.name == "aim7").expect("a part");
        let result = super::run(&plan, part, &run).expect("simulated");
        let of = |name: &str, variant: &str| result.find(name).expect(name).of(variant)[0];
        for metric in &part.metrics {
            for kind in ["ticket", "queued"] {
                let name = format!("{}[kind={kind}]", metric.name);
                let found = result.find(&name).expect(&name);
                assert_eq!(found.samples.len(), 3, "{name}");
                assert_eq!(found.published.is_some(), metric.published.is_some() && kind == "ticket");
            }
        }
        assert!(of("jobs_per_minute[kind=ticket]", "with_order0_lists") > 0.0);
        // Growing by each page, and thrice for shrinking by all of them; or never.
        let pages = of("pages_per_shrink", "with_order0_lists");
        let locks = of("root_anon_vma_acquisitions_per_page[kind=ticket]", "own_line");
        assert!(locks == 0.0 || (locks - 1.0 - 3.0 / pages).abs() < 0.05, "{locks} of {pages}");
        assert!(of("lru_lock_acquisitions_per_page[kind=ticket]", "own_line") > 0.0);
    }
}
