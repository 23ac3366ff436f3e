//! Part `kernbench` of `pcp-reset`, simulated: a slice out of a kernel compile, scaled to the whole.

mod profile;

use std::sync::Arc;

use framewright_sim::Model;
use framewright_sim::clock::{Ps, Rng, mix};
use framewright_sim::kernbench::{self, Load, Outcome, Profile};

use crate::error::{Error, Result};
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::{in_parallel, sampled_models, strata};
use crate::study::run::{Configured, Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::simulated::allocator;
use crate::study::tasks::{self, Amounts, PerPage, amount, published};
use crate::study::{Part, Plan};

/// What the recorded compile's compiler is called.
const COMPILER: &str = "cc1";
/// Names of the times, as in the table and in the durations below it.
const NAMES: [(&str, &str); 3] = [("user", "user"), ("syst", "system"), ("elsp", "elapsed")];

/// The compile that the baseline ran, in seconds of all CPUs together.
struct Whole {
    cpus: f64,
    user: f64,
    system: f64,
    elapsed: f64,
}

/// What the whole is made of, in one sample.
#[derive(Clone, Copy)]
struct Shape {
    /// Objects that are compiled.
    objects: f64,
    /// Share of idle time in which one task runs alone, such as the last linking: the rest is between jobs.
    serial: f64,
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

    /// Seconds at the end, or between, in which one task runs.
    fn serial_seconds(&self, shape: Shape) -> f64 {
        shape.serial * self.idle() / self.cpus
    }

    /// Share of time that CPUs are busy while jobs run side by side.
    fn busy_share(&self, shape: Shape) -> f64 {
        let busy = self.user + self.system;
        busy / (busy + (1.0 - shape.serial) * self.idle())
    }

    /// What one page of one job takes.
    fn goal(&self, shape: Shape, profile: &Profile) -> PerPage {
        let pages = shape.objects * profile.pages_per_job();
        PerPage { user_ns: self.user * 1e9 / pages, system_ns: self.system * 1e9 / pages }
    }

    fn load(&self, shape: Shape, profile: &Profile, amounts: Amounts, rounds: f64) -> Load {
        let job_ns = (self.user + self.system) * 1e9 / shape.objects;
        let wait_ns = job_ns * (1.0 / self.busy_share(shape) - 1.0);
        let slice_ns = rounds * profile.jobs.len() as f64 * (job_ns + wait_ns) / self.cpus;
        Load {
            user_factor: amounts.user_ns * profile.pages_per_job() / profile.work_per_job().max(1.0),
            other_ns: amounts.other_ns,
            wait_ns,
            slice: Ps::from_ns(slice_ns),
        }
    }

    /// User, system and elapsed seconds of the whole, from those of a page.
    fn seconds(&self, shape: Shape, profile: &Profile, of: PerPage) -> [f64; 3] {
        let pages = shape.objects * profile.pages_per_job();
        let (user, system) = (of.user_ns * pages / 1e9, of.system_ns * pages / 1e9);
        let side_by_side = (user + system) / (self.cpus * self.busy_share(shape));
        [user, system, side_by_side + self.serial_seconds(shape)]
    }
}

/// One sample: the model, the whole's make-up, the seed.
struct Sample {
    model: Model,
    shape: Shape,
    seed: u64,
}

/// What a sample gave: the amounts of work, and each variant's slice, with all work and with what is modelled alone.
struct Simulated {
    amounts: Amounts,
    variants: Vec<[Outcome; 2]>,
}

/// Runs the part.
///
/// # Errors
/// The machine cannot be simulated, the trace has no compiler, or the plan lacks a figure of the baseline.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let profile = profile::of(run.compile()?, COMPILER)
        .ok_or_else(|| Error::failed(format_args!("the trace has no run of {COMPILER}")))?;
    let study = Study {
        run,
        whole: Whole::of(part, run.machine.cpus())?,
        profile: Arc::new(profile),
        variants: configured(plan, &Settings::default())?,
        rounds: if run.quick { 0.25 } else { 1.0 },
    };
    let iterations = amount(part, "iterations")?;
    let central =
        Shape { objects: amount(part, "objects")?, serial: amount(part, "serial_idle_percent")? / 100.0 };
    let samples = study.samples(central)?;
    let progress = progress(plan, part, tasks::rounds(run.quick) + samples.len());
    let first = study.central_amounts(central, || progress.step("amounts of work"))?;
    let simulated =
        in_parallel(&samples, |sample| study.simulate(sample, first), || progress.step("compiles"));
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut hashes = Vec::new();
    let mut modelled = 0.0;
    for (sample, simulated) in samples.iter().zip(simulated) {
        let Simulated { amounts, variants } = simulated?;
        for (variant, [outcome, bare]) in study.variants.iter().zip(&variants) {
            let seconds = |of| study.whole.seconds(sample.shape, &study.profile, PerPage::of(of, amounts));
            for (parameters, times) in [("", seconds(outcome)), ("other_work=none", seconds(bare))] {
                for ((name, _), value) in NAMES.into_iter().zip(times) {
                    let family = format!("{name}_seconds");
                    tasks::add(&mut result, part, &family, parameters, &variant.variant, value);
                }
            }
            for ((name, long), value) in NAMES.into_iter().zip(seconds(outcome)) {
                // What the whole script took beyond the compiles does not change.
                let duration = format!("duration_{long}_seconds");
                let compile = published(part, &format!("{name}_seconds"))?;
                let setup = published(part, &duration)? - iterations * compile;
                tasks::add(&mut result, part, &duration, "", &variant.variant, iterations * value + setup);
            }
            tasks::add_causes(&mut result, "", &variant.variant, outcome);
            hashes.extend([outcome.events.hash, bare.events.hash]);
        }
        let base = PerPage::of(&variants[0][0], amounts);
        modelled += 1.0 - amounts.other_ns * (base.user_ns / amounts.user_ns) / base.system_ns;
    }
    let modelled = 100.0 * modelled / samples.len() as f64;
    result.note(format!(
        "Amounts of user work and of kernel work that is not modelled are such that {} takes about the published user and \
         system time; {modelled:.0} % of its system time is faults, the allocator and its locks. With other_work=none that is all \
         there is: allocations follow one another faster, and locks are wanted more.",
        plan.baseline()
    ));
    result.note(format!(
        "A slice of {:.0} ms in which all {} recorded jobs happen once, on {} CPUs, scaled to {} objects (estimated); {:.0} % of \
         idle time (estimated) is serial and does not change.",
        study.whole.load(central, &study.profile, first, study.rounds).slice.as_ns() / 1e6,
        study.profile.jobs.len(),
        run.machine.cpus(),
        central.objects,
        100.0 * central.serial,
    ));
    note_models(&mut result, samples.len());
    close_simulated(&mut result, hashes);
    Ok(result)
}

struct Study<'a> {
    run: &'a Run<'a>,
    whole: Whole,
    profile: Arc<Profile>,
    variants: Vec<Configured>,
    /// How often everything recorded happens in a slice.
    rounds: f64,
}

impl Study<'_> {
    /// Models, and how the whole is made up in each: estimates vary by a quarter.
    fn samples(&self, central: Shape) -> Result<Vec<Sample>> {
        let models = sampled_models(self.run.machine, self.run.models as usize, self.run.seed)?;
        let mut rng = Rng::new(mix(self.run.seed ^ 0x6b65_726e));
        let mut vary = |value: f64| strata(0.75 * value, 1.25 * value, models.len(), &mut rng);
        let (objects, serial) = (vary(central.objects), vary(central.serial));
        let shapes = objects.into_iter().zip(serial).map(|(objects, serial)| Shape { objects, serial });
        let seed = |n: u64| mix(self.run.seed ^ n << 32);
        Ok(models
            .into_iter()
            .zip(shapes)
            .zip(1..)
            .map(|((model, shape), n)| Sample { model, shape, seed: seed(n) })
            .collect())
    }

    fn slice(
        &self,
        variant: &Configured,
        model: &Model,
        shape: Shape,
        amounts: Amounts,
        seed: u64,
    ) -> Result<Outcome> {
        // Without other work twice as much happens in the same time.
        let rounds = if amounts.other_ns > 0.0 { self.rounds } else { self.rounds / 2.0 };
        let load = self.whole.load(shape, &self.profile, amounts, rounds);
        let allocator = allocator(self.run.machine, &variant.setup);
        kernbench::run(model, &allocator, &self.profile, &load, seed).map_err(Error::failed)
    }

    /// Amounts of work with the machine as it is described.
    fn central_amounts(&self, shape: Shape, done: impl Fn()) -> Result<Amounts> {
        let model = tasks::described(self.run.machine)?;
        let rounds = tasks::rounds(self.run.quick);
        Amounts::found(self.whole.goal(shape, &self.profile), &model, rounds, |amounts| {
            let outcome = self.slice(&self.variants[0], &model, shape, amounts, self.run.seed);
            done();
            outcome
        })
    }

    /// One slice to move the amounts to this model's, then one of each variant.
    fn simulate(&self, sample: &Sample, first: Amounts) -> Result<Simulated> {
        let Sample { model, shape, seed } = sample;
        let goal = self.whole.goal(*shape, &self.profile);
        let tried = self.slice(&self.variants[0], model, *shape, first, *seed)?;
        let amounts = first.towards(goal, PerPage::of(&tried, first));
        let bare = Amounts { other_ns: 0.0, ..amounts };
        let of = |variant| {
            Ok([
                self.slice(variant, model, *shape, amounts, *seed)?,
                self.slice(variant, model, *shape, bare, *seed)?,
            ])
        };
        Ok(Simulated { amounts, variants: self.variants.iter().map(of).collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use framewright_workload::trace::Trace;

    use super::*;
    use crate::machine::Machine;
    use crate::shipped;

    #[test]
    fn the_baseline_is_met_and_every_figure_is_there() {
        let plan = Plan::find("pcp-reset").expect("it is built in");
        let mut machine = Machine::find("epyc-7742-2s").expect("it is built in");
        machine.cores_per_node = 4;
        let whole = shipped::trace().expect("it is built in");
        // The first few, small compiles.
        let trace = Trace { events: whole.events[..40_000].to_vec(), ..whole };
        let run = Run::shortest(&machine, &trace);
        let part = plan.parts().iter().find(|part| part.name == "kernbench").expect("a part");
        let result = super::run(&plan, part, &run).expect("simulated");
        let of = |name: &str, variant: &str| result.find(name).expect(name).of(variant)[0];
        let near = |value: f64, goal: f64| (value / goal - 1.0).abs() < 0.15;
        assert!(near(of("user_seconds", "vanilla"), 13_249.5), "{result:?}");
        assert!(near(of("syst_seconds", "vanilla"), 14_760.3), "{result:?}");
        for metric in &part.metrics {
            let found = result.find(&metric.name).expect("a figure");
            assert_eq!((found.samples.len(), found.published), (2, metric.published), "{}", metric.name);
        }
        let locks = |variant| of("zone_lock_acquisitions_per_page[zone=0]", variant);
        assert!(locks("reset") < locks("vanilla") / 4.0, "lists nine times as large");
    }

    #[test]
    fn the_whole_is_put_together_from_pages_as_it_was_taken_apart() {
        let whole = Whole { cpus: 256.0, user: 13_249.5, system: 14_760.3, elapsed: 162.42 };
        let shape = Shape { objects: 28_000.0, serial: 0.75 };
        let op = kernbench::Op { act: kernbench::Act::Fault, pages: 9000, work_ns: 1_000_000 };
        let profile = Profile { jobs: vec![vec![vec![op]]] };
        let [user, system, elapsed] = whole.seconds(shape, &profile, whole.goal(shape, &profile));
        assert!((user - 13_249.5).abs() < 1e-6 && (system - 14_760.3).abs() < 1e-6);
        assert!((elapsed - 162.42).abs() < 1e-9, "{elapsed}");
        // 32.6 % of the time is idle; a quarter of that while jobs run.
        assert!((whole.busy_share(shape) - 0.892).abs() < 1e-3, "{}", whole.busy_share(shape));
    }
}
