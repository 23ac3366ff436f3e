//! Part `locks` of `validation`: plain lists in user space, one for all behind a lock or with a head that is exchanged, and one
//! for each core.
//!
//! What is not known of the run has priors (`studies/priors/user_lists.toml`): transfers, measured on another model of the
//! processor, the work around a call, and whether blocks lie in caches. Of more models than are wanted, those stay that
//! agree with the open rows of the locked list.

use framewright_host::Order;
use framewright_sim::Model;
use framewright_sim::bench::{Bench, Case, Outcome, list_called};
use framewright_sim::calibration::{self, Target};
use framewright_sim::clock::mix;
use framewright_sim::list_locked::Kind as List;

use crate::error::{Error, Result};
use crate::result::{Better, Kind, Part as ResultPart};
use crate::simulate::{self, in_parallel, model_errors, sampled_models};
use crate::study::declare::*;
use crate::study::identify::{MISFIT, Priors, keep};
use crate::study::naive;
use crate::study::run::{Run, close_simulated, four_fifths, progress};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "user_lists",
        about: "Plain lists in user space: behind a lock, with a head that is exchanged, and one for each core.",
        kinds: &[Kind::Simulated],
        metrics: &quantities! {
            bulk_get_ns "ns" Lower Main "Time of one allocation."
            bulk_put_ns "ns" Lower Main "Time of one free."
            rand_put_ns "ns" Lower Main "Time of one free in random order."
            repeat_pair_ns "ns" Lower Main "Time of an allocation and its free."
        },
        options: &[SIMULATED[0], SIMULATED[1]],
        needs: &[Need::Model],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, locks)],
};

/// The lists, and the names of their columns.
const LISTS: [(List, &str); 3] =
    [(List::Locked, "list_locked"), (List::Cas, "list_cas"), (List::Local, "list_local")];
/// Models that are drawn for each that is wanted.
const DRAWN: usize = 4;
/// Figures of one run are not independent of one another: so many of them count as one.
const ALIKE: f64 = 3.0;

fn priors() -> Result<Priors> {
    Priors::parse("user_lists.toml", include_str!("../../../../studies/priors/user_lists.toml"))
}

/// A machine, and what the run on it is like.
#[derive(Clone, Debug)]
struct Drawn {
    model: Model,
    call_ns: f64,
    /// Blocks of each core in the run, if they are more than caches hold.
    long: Option<u64>,
}

impl Drawn {
    fn case(&self, bench: Bench, kind: List, cores: u16) -> Case {
        let shared = (8000 / u64::from(cores)).clamp(300, 2000);
        let blocks = if kind == List::Local { 4000 } else { shared };
        let stands_for = self.long.unwrap_or(blocks);
        Case { bench, order: Order::ZERO, cores, blocks, stands_for }
    }

    fn run(&self, bench: Bench, kind: List, cores: u16, seed: u64) -> std::io::Result<Outcome> {
        list_called(&self.model, kind, &self.case(bench, kind, cores), self.call_ns, seed)
    }

    /// Logarithms of simulated over measured, of the open rows.
    fn errors(&self, seed: u64) -> Result<Vec<f64>> {
        let mut errors = Vec::new();
        for row in open_rows()?.iter().filter(|row| row.target == Target::List) {
            let outcome =
                self.run(row.case.bench, List::Locked, row.case.cores, seed).map_err(Error::failed)?;
            let both = [(row.get_ns, outcome.get_ns), (row.put_ns, outcome.put_ns)];
            errors.extend(both.into_iter().filter_map(|(was, is)| Some((is? / was?).ln())));
        }
        Ok(errors)
    }
}

/// What was measured of the locked list, with all else that is open.
fn open_rows() -> Result<Vec<calibration::Measured>> {
    calibration::parse(simulate::MEASURED).map_err(|line| {
        Error::failed(format_args!("machines/calibration/xeon-gold-5320.csv:{line}: not a measurement"))
    })
}

/// So many models of what may have been.
fn drawn(run: &Run<'_>, count: usize) -> Result<Vec<Drawn>> {
    let models = sampled_models(run.machine, count, run.seed)?;
    let draws = priors()?.draws(count, run.seed);
    models
        .into_iter()
        .zip(&draws)
        .map(|(model, draw)| {
            let long = (draw.get("long")? >= 0.5).then_some(draw.get("long_blocks")? as u64);
            let model = Model { transfers: draw.get("transfers")?, ..model };
            Ok(Drawn { model, call_ns: draw.get("call_ns")?, long })
        })
        .collect()
}

/// The logarithm of how much a model counts whose figures are off by so much.
fn weight(errors: &[f64]) -> f64 {
    let squares: f64 = errors.iter().map(|error| (error / MISFIT).powi(2)).sum();
    -0.5 * squares / ALIKE
}

/// Runs the part.
///
/// # Errors
/// The machine cannot be simulated, or the part does not say what is unknown.
pub(crate) fn locks(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let count = run.models as usize;
    let prior = drawn(run, DRAWN * count)?;
    let cores = (run.machine.cores_per_node * run.machine.nodes) as u16;
    let errors = in_parallel(&prior, |drawn| drawn.errors(run.seed), || ());
    let weights: Vec<f64> = errors.into_iter().map(|errors| Ok(weight(&errors?))).collect::<Result<_>>()?;
    let kept = keep(&weights, count, run.seed);
    let chosen: Vec<&Drawn> = kept.models.iter().map(|&n| &prior[n]).collect();
    let own = model_errors(count, run.seed)?;
    let mut work = Vec::new();
    for (kind, name) in LISTS {
        for bench in [Bench::Bulk, Bench::Rand, Bench::Repeat] {
            for cores in 1..=cores {
                let models = chosen.iter().zip(&own).zip(1..);
                work.extend(models.map(|((drawn, own), n)| {
                    (kind, name, bench, cores, *drawn, *own, mix(run.seed ^ n << 32))
                }));
            }
        }
    }
    let progress = progress(plan, part, work.len());
    let outcomes = in_parallel(
        &work,
        |&(kind, _, bench, cores, drawn, _, seed)| drawn.run(bench, kind, cores, seed),
        || progress.step("locks"),
    );
    let mut result =
        ResultPart::new(plan.name(), &part.name, Kind::Simulated, &run.machine.name).seed(run.seed);
    for (_, name) in LISTS {
        result = result.variant(name);
    }
    let mut result = result.baseline(LISTS[0].1);
    let mut hashes = Vec::new();
    for ((_, name, bench, cores, _, own, _), outcome) in work.iter().zip(outcomes) {
        let outcome = outcome.map_err(Error::failed)?;
        hashes.push(outcome.events.hash);
        let figures: &[(&str, Option<f64>)] = match bench {
            Bench::Bulk => &[("bulk_get_ns", outcome.get_ns), ("bulk_put_ns", outcome.put_ns)],
            Bench::Rand => &[("rand_put_ns", outcome.put_ns)],
            Bench::Repeat => &[("repeat_pair_ns", outcome.get_ns)],
        };
        for (family, value) in figures {
            if let Some(value) = value {
                let entry = result.metric(format!("{family}[cores={cores}]"), "ns", Better::Lower);
                entry.sample(name, value * own);
            }
        }
    }
    let open = open_rows()?;
    for metric in &mut result.metrics {
        let family = metric.family().to_owned();
        let cores = metric.parameters().find(|(name, _)| *name == "cores").and_then(|(_, n)| n.parse().ok());
        for (_, list) in LISTS {
            let law = cores.and_then(|cores| naive::list(&open, run.machine, list, &family, cores));
            metric.naive.extend(law.map(|law| (list.to_owned(), law)));
        }
    }
    close_simulated(&mut result, hashes);
    four_fifths(&mut result);
    result.note(format!(
        "Each of {count} samples is one of {} models (which count as {:.1} equally good ones), chosen by how well it agrees with the \
         open rows of the locked list on 2 and 8 cores; times the model's own error, from orders left out of the fit. \
         Intervals are the middle four fifths.",
        prior.len(),
        kept.effective
    ));
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_misses_counts_for_less() {
        assert!(weight(&[0.0; 10]) > weight(&[0.3; 10]) + 3.0);
        assert_eq!(drawn_long(), [false, true], "short runs and long ones");
    }

    /// Whether there are short and long runs among the drawn ones.
    fn drawn_long() -> Vec<bool> {
        let machine = crate::machine::Machine::find("xeon-gold-5320").expect("it is built in");
        let trace = crate::shipped::trace().expect("it is built in");
        let drawn = drawn(&Run::shortest(&machine, &trace), 10).expect("drawn");
        let mut long: Vec<bool> = drawn.iter().map(|drawn| drawn.long.is_some()).collect();
        long.sort_unstable();
        long.dedup();
        long
    }

    #[test]
    fn every_list_is_predicted_on_every_number_of_cores() {
        let plan = Plan::find("validation").expect("it is built in");
        let mut machine = crate::machine::Machine::find("xeon-gold-5320").expect("it is built in");
        machine.cores_per_node = 8;
        let trace = crate::shipped::trace().expect("it is built in");
        let run = Run { models: 2, ..Run::shortest(&machine, &trace) };
        let part = plan.parts().iter().find(|part| part.name == "locks").expect("a part");
        let result = locks(&plan, part, &run).expect("simulated");
        assert_eq!(result.metrics.len(), 4 * 8);
        for metric in &result.metrics {
            for (_, name) in LISTS {
                let [low, high] = metric.interval[name];
                assert!(metric.of(name).len() == 2 && low > 0.0 && low <= high, "{} {name}", metric.name);
            }
        }
        let of = |metric: &str, name: &str| result.find(metric).expect(metric).of(name)[0];
        assert!(of("bulk_get_ns[cores=8]", "list_locked") > 5.0 * of("bulk_get_ns[cores=2]", "list_locked"));
        assert!(
            of("repeat_pair_ns[cores=8]", "list_local") < 1.2 * of("repeat_pair_ns[cores=1]", "list_local")
        );
    }
}
