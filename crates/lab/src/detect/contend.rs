//! `contend` on this machine, on one CPU and on two. One CPU shows the time of the instructions around each access. Two
//! show how much longer a zone's lock is held beside the order-0 lists than away from them: the cost of a store to a
//! line that another CPU polls.

use framewright_report::error::{Error, Result};
use framewright_report::stats::quantile_of_sorted as quantile;
use framewright_sim::Model;
use framewright_subject::load::{Load, Sample};
use framewright_subject::modelled::modelled;
use framewright_workload::probe;

use super::measure::{Field, Measured};
use crate::configure::Setup;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::settings::Settings;
use crate::simulate::{central_model, in_parallel, slower};
use crate::study::library::pair;

/// CPUs that contend.
const CPUS: usize = 2;
/// Rounds, after one that touches the memory.
const ROUNDS: u64 = 9;
/// Transfers that a store may wait for, ascending; the first and the last bound the result.
const EXPOSED: [f64; 3] = [0.1, 1.5, 3.0];
/// Times of an access on one CPU that are simulated, ascending, as multiples of the machine's.
const TIMES: [f64; 3] = [0.5, 1.5, 4.0];
/// Factor by which other loads on one CPU differ from this one: bulk and copies of two traces on the EPYC guest of
/// 2026-11-24 (docs/validation/here.md; learned).
const OTHER_LOADS: f64 = 1.15;
const KINDS: [&str; 2] = ["queued", "ticket"];
const PLACES: [&str; 3] = ["with_order0_lists", "other_end", "own_line"];

/// Every lock kind with every place of the lock, kind by kind.
fn setups() -> Result<Vec<Setup>> {
    let pairs = KINDS.into_iter().flat_map(|kind| PLACES.map(|place| (kind, place)));
    let setup = |(kind, place)| {
        let pairs = format!(
            "preset=linux_v5_4,batch=31,high=186,lock_kind={kind},lock_place={place},lock_timing=true"
        );
        let settings = Settings::from_pairs(&pairs).map_err(Error::failed)?;
        Setup::default().with(&settings).map(Setup::compact)
    };
    pairs.map(setup).collect()
}

/// The lock's hold beside the lists, over the mean of the other two places.
fn ratio([beside, end, own_line]: [f64; 3]) -> f64 {
    2.0 * beside / (end + own_line)
}

fn go_on(stop: &Interrupt) -> Result<()> {
    if stop.is_raised() { Err(Error::failed("contend was not measured to its end")) } else { Ok(()) }
}

/// By kind: the ratios of all rounds, ascending.
fn measured(setups: &[Setup], stop: &Interrupt) -> Result<Vec<Vec<f64>>> {
    let load = Load::bulk(CPUS);
    let pairs = setups.iter().map(|setup| pair(setup, &load)).collect::<Result<Vec<_>>>()?;
    let mut ratios = vec![Vec::new(); KINDS.len()];
    for round in 0..=ROUNDS {
        go_on(stop)?;
        let held: Vec<f64> = pairs.iter().map(|pair| pair.held_ns(&load, round)).collect();
        for (ratios, held) in ratios.iter_mut().zip(held.chunks_exact(PLACES.len())).filter(|_| round > 0) {
            ratios.push(ratio([held[0], held[1], held[2]]));
        }
    }
    ratios.iter_mut().for_each(|ratios| ratios.sort_by(f64::total_cmp));
    Ok(ratios)
}

/// By kind: the ratio with each of [`EXPOSED`].
fn simulated(setups: &[Setup], load: &Load<'_>, model: &Model, stop: &Interrupt) -> Result<Vec<Vec<f64>>> {
    let work: Vec<(f64, &Setup)> =
        EXPOSED.into_iter().flat_map(|exposed| setups.iter().map(move |setup| (exposed, setup))).collect();
    let held = in_parallel(
        &work,
        |(exposed, setup)| {
            go_on(stop)?;
            let model = Model { store_exposed: *exposed, ..model.clone() };
            Ok(modelled(&model, setup.config, load, 1).map_err(Error::failed)?.lock[2])
        },
        || (),
    );
    let held = held.into_iter().collect::<Result<Vec<f64>>>()?;
    let each = held.chunks_exact(PLACES.len()).map(|held| ratio([held[0], held[1], held[2]]));
    let each: Vec<f64> = each.collect();
    Ok((0..KINDS.len()).map(|kind| each.iter().skip(kind).step_by(KINDS.len()).copied().collect()).collect())
}

/// The place in `points` at which the simulated value is the measured one, between neighbours in proportion.
fn place(points: [f64; 3], simulated: &[f64], measured: f64) -> f64 {
    let at = simulated.windows(2).position(|ends| measured <= ends[1].max(ends[0]));
    let at = at.unwrap_or(simulated.len() - 2);
    let share = (measured - simulated[at]) / (simulated[at + 1] - simulated[at]).max(1e-9);
    points[at] + share.clamp(0.0, 1.0) * (points[at + 1] - points[at])
}

/// ns of an allocation and a free in bulk.
fn pair_ns(sample: &Sample) -> f64 {
    sample.measurement.metrics.iter().map(|metric| metric.value).sum()
}

/// By multiple of the machine's time of an access: ns of an allocation and a free on one CPU.
fn simulated_alone(setup: &Setup, model: &Model) -> Result<Vec<f64>> {
    let access_ns = model.own_access_ns.unwrap_or(model.fitted.access_ns);
    let at = |times: &f64| {
        let model = Model { own_access_ns: Some(times * access_ns), ..model.clone() };
        let sample = modelled(&model, setup.config, &Load::bulk(1), 1).map_err(Error::failed)?;
        Ok(pair_ns(&sample))
    };
    in_parallel(&TIMES, at, || ()).into_iter().collect()
}

/// Core cycles of the instructions around an access: those at which the simulated load takes as long as the measured
/// one on one CPU.
///
/// # Errors
/// The machine cannot be simulated, or `stop` was raised.
pub(super) fn access(machine: &Machine, looks: &mut Measured, stop: &Interrupt) -> Result<Field> {
    let setup = &setups()?[PLACES.len() - 1];
    let load = Load::bulk(1);
    let pair = pair(setup, &load)?;
    let cpu = probe::allowed_cpus().into_iter().take(1).collect::<Vec<usize>>();
    let mut rounds = Vec::new();
    for round in 0..=ROUNDS {
        go_on(stop)?;
        let mut around = looks.look(&cpu);
        let sample = pair.sample(&load, round);
        around.extend(looks.look(&cpu));
        if round > 0 {
            rounds.push((pair_ns(&sample), around));
        }
    }
    // As on a core of its own.
    let alone = |(ns, around): &(f64, Vec<f64>)| ns / slower(looks.shared(around));
    let mut measured: Vec<f64> = rounds.iter().map(alone).collect();
    measured.sort_by(f64::total_cmp);
    let model = central_model(machine)?;
    let simulated = simulated_alone(setup, &model)?;
    let cycles = machine.cycles.access.as_ref().map_or(1.0, |access| access.value);
    let at = |share: f64| cycles * place(TIMES, &simulated, quantile(&measured, share));
    Ok(Field {
        value: at(0.5),
        low: Some(at(0.25) / OTHER_LOADS),
        high: Some(at(0.75) * OTHER_LOADS),
        source: "measured",
        how: format!(
            "contend: an allocation and a free take {:.1} ns on one CPU with a core of its own, {ROUNDS} rounds; low and high: quartiles, x/÷ {OTHER_LOADS}",
            quantile(&measured, 0.5)
        ),
    })
}

/// Transfers that a store to a polled line waits for, by both lock kinds.
///
/// # Errors
/// The machine cannot be simulated, or `stop` was raised.
pub(super) fn store_exposed(machine: &Machine, stop: &Interrupt) -> Result<Field> {
    let setups = setups()?;
    let measured = measured(&setups, stop)?;
    let simulated = simulated(&setups, &Load::bulk(CPUS), &central_model(machine)?, stop)?;
    let at = |share: f64| -> Vec<f64> {
        let kinds = simulated.iter().zip(&measured);
        kinds.map(|(simulated, measured)| place(EXPOSED, simulated, quantile(measured, share))).collect()
    };
    let (low, middle, high) = (at(0.25), at(0.5), at(0.75));
    let [queued, ticket] = [0, 1].map(|kind| quantile(&measured[kind], 0.5));
    Ok(Field {
        value: f64::midpoint(middle[0], middle[1]),
        low: Some(low[0].min(low[1])),
        high: Some(high[0].max(high[1])),
        source: "measured",
        how: format!(
            "contend: the zone lock is held {queued:.2} (queued) and {ticket:.2} (ticket) times as long beside the order-0 lists as away from \
             them, {ROUNDS} rounds; low and high: quartiles of both kinds"
        ),
    })
}

#[cfg(test)]
mod tests {
    use framewright_workload::bench::{Case, Scale, Workload};

    use super::*;

    #[test]
    fn a_ratio_is_found_again_between_those_that_are_simulated() {
        let simulated = [1.0, 1.4, 2.0];
        for (ratio, transfers) in [(0.5, 0.1), (1.0, 0.1), (1.4, 1.5), (1.7, 2.25), (9.0, 3.0)] {
            assert!((place(EXPOSED, &simulated, ratio) - transfers).abs() < 1e-9, "{ratio}");
        }
    }

    #[test]
    fn what_a_modelled_machine_shows_says_what_it_was_made_with() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let model = Model { store_exposed: 1.5, ..central_model(&machine).expect("a model") };
        let setups = setups().expect("settings");
        // An eighth of what is measured: all of it would take a quarter of a minute.
        let scale = Scale { frames: 1 << 13, operations: 1 << 12, ..Scale::default() };
        let load = Load::Bench(Case { workload: Workload::Bulk, order: 0, cpus: CPUS }, scale);
        let curves = simulated(&setups, &load, &model, &Interrupt::watched()).expect("simulated");
        for (kind, curve) in KINDS.iter().zip(&curves) {
            assert!(
                curve[2] > 1.3 * curve[0],
                "{kind}: waiting stores lengthen the hold beside the lists: {curve:?}"
            );
            assert!((place(EXPOSED, curve, curve[1]) - 1.5).abs() < 0.3, "{kind}: {curve:?}");
        }
    }

    #[test]
    fn a_modelled_machine_with_slow_accesses_is_recognised_by_its_time_on_one_cpu() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let setup = &setups().expect("settings")[0];
        let model = central_model(&machine).expect("a model");
        let curve = simulated_alone(setup, &model).expect("simulated");
        let access_ns = model.own_access_ns.unwrap_or(model.fitted.access_ns);
        let slow = Model { own_access_ns: Some(2.5 * access_ns), ..model };
        let sample = modelled(&slow, setup.config, &Load::bulk(1), 1).expect("simulated");
        let times = place(TIMES, &curve, pair_ns(&sample));
        assert!((times - 2.5).abs() < 0.1, "{times}: {curve:?}");
    }
}
