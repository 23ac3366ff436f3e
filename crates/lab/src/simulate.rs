//! Machine descriptions as models for the simulator, and what of them is uncertain.

pub(crate) mod allocator;
pub(crate) mod samples;

use core::cell::Cell;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread;

use framewright_report::error::{Error, Result};
use framewright_report::stats::quantile_of_sorted;
use framewright_sim::clock::{Rng, mix};
use framewright_sim::model::{Bandwidth, Batches, Caches, Fitted, Kernel, Latency, Shape, drift_pages};
use framewright_sim::{Model, model};

use crate::machine::{Machine, Parameter};
use crate::toml_file::TomlFile;

/// The parameters that were fitted to measurements and then frozen.
const FITTED: &str = include_str!("../../../machines/calibration/fitted.toml");

/// The measurements that they were fitted to.
pub const MEASURED: &str = include_str!("../../../machines/calibration/xeon-gold-5320.csv");

/// Error of each order's prediction by a fit to all other orders.
const LEFT_OUT: &str = include_str!("../../../machines/calibration/left-out.toml");

/// Latency of memory at full bandwidth, as a multiple of idle latency, for machines whose description does not say: on
/// a Xeon Gold 6140 it rose from 92 to 166 ns.
const SATURATED: f64 = 166.0 / 92.0;

/// Cycles of a locked compare-and-swap of a line in the first-level cache, on any x86 of the last ten years
/// (instruction tables say 17 to 20).
const EXCHANGE_CYCLES: f64 = 18.0;
/// Work of two busy hardware threads of a core together, as a multiple of one, where a guest shares its cores with
/// threads of which it is not told: that of all machines in `machines/` with two threads a core.
const HIDDEN_YIELD: f64 = 1.25;
/// Core cycles of a mispredicted branch: 15 to 20 cycles in tables of microarchitectures since 2015.
const MISPREDICT_CYCLES: f64 = 17.0;

/// The fitted parameters.
///
/// # Errors
/// The file is wrong. It is part of this crate, and a test reads it.
pub fn fitted() -> Result<Fitted> {
    let file = TomlFile::embedded("machines/calibration", "fitted.toml", FITTED);
    let values: BTreeMap<String, f64> = file.parse()?;
    let named = Fitted::NAMES.map(|name| values.get(name).copied().unwrap_or(f64::NAN));
    if named.iter().any(|value| value.is_nan()) {
        return Err(file.error(None, "a parameter is missing"));
    }
    Ok(Fitted::from_values(named))
}

/// For each of `count` models how far the model itself is off, as a factor on the times that it predicts: what the
/// orders were off by that had been left out of the fit, a quantile from each of `count` strata. A model's factor is
/// one and the same for all variants, so that it is no part of a change.
///
/// # Errors
/// The file is wrong. It is part of this crate, and a test reads it.
pub fn model_errors(count: usize, seed: u64) -> Result<Vec<f64>> {
    let file = TomlFile::embedded("machines/calibration", "left-out.toml", LEFT_OUT);
    // Of ln(simulated / measured), ascending.
    let quantiles = file.parse::<BTreeMap<String, Vec<f64>>>()?.remove("quantiles").unwrap_or_default();
    if quantiles.is_empty() || !quantiles.is_sorted() {
        return Err(Error::failed("machines/calibration/left-out.toml: quantiles are not ascending"));
    }
    let mut rng = Rng::new(mix(seed ^ 0x0ff_b1a5));
    let factor = |at: f64| (-quantile_of_sorted(&quantiles, at)).exp();
    Ok(strata(0.0, 1.0, count.max(1), &mut rng).into_iter().map(factor).collect())
}

/// How much longer a core takes for private work that another guest's thread works on for that share of the time.
pub(crate) fn slower(core_shared: f64) -> f64 {
    1.0 + core_shared * (2.0 / HIDDEN_YIELD - 1.0)
}

/// Costs of a machine, with each parameter as `choose` has it: by name, from its description.
///
/// # Errors
/// The description lacks the sizes of caches, or has cores of more than two threads.
pub fn model_of(machine: &Machine, mut choose: impl FnMut(&str, Parameter) -> f64) -> Result<Model> {
    if machine.threads_per_core > 2 {
        let (name, threads) = (&machine.name, machine.threads_per_core);
        return Err(Error::failed(format_args!(
            "{name}: cores of {threads} threads are not simulated, only of 1 or 2"
        )));
    }
    let all = machine.parameters();
    let mut get = |name: &str| {
        all.iter().find(|(known, _)| *known == name).map(|(name, parameter)| choose(name, *parameter))
    };
    let missing = |name: &str| Error::failed(format_args!("{}: no {name} to simulate with", machine.name));
    let mut need = |name: &str| get(name).ok_or_else(|| missing(name));
    let ns_per_cycle = 1000.0 / need("frequency_mhz")?;
    let lines = |kib: f64| (kib * 1024.0) as u32 / model::LINE as u32;
    let same_l3 = need("latency_ns.same_l3")?;
    let same_l3_dirty = need("latency_ns.same_l3_dirty").unwrap_or(same_l3);
    let other_l3 = need("latency_ns.other_l3").unwrap_or(same_l3_dirty);
    let other_l3_remote = need("latency_ns.other_l3_home_remote").unwrap_or(other_l3);
    let other_socket = need("latency_ns.cross_socket").unwrap_or(other_l3_remote);
    let node_read = need("bandwidth_gbps.socket_read")?;
    let dram = need("latency_ns.dram_local")?;
    let cores = machine.cores_per_node;
    let slower = slower(need("core_shared").unwrap_or(0.0));
    let model = Model {
        shape: Shape {
            sockets: machine.sockets as u16,
            nodes: machine.nodes as u16,
            cores_per_node: cores as u16,
            cores_per_l3: machine.cores_per_l3.unwrap_or(cores).min(cores) as u16,
            threads_per_core: machine.threads_per_core as u16,
        },
        latency: Latency {
            l2: need("cycles.l2")? * ns_per_cycle,
            l3: need("cycles.l3")? * ns_per_cycle,
            sibling: need("latency_ns.smt_sibling").unwrap_or(same_l3),
            same_l3: [same_l3, same_l3_dirty],
            other_l3: [other_l3, other_l3_remote],
            other_die: need("latency_ns.cross_die").unwrap_or(other_socket),
            other_socket: [other_socket, need("latency_ns.cross_socket_dirty").unwrap_or(other_socket)],
            dram: [dram, need("latency_ns.dram_remote").unwrap_or(dram)],
        },
        bandwidth: Bandwidth {
            node_read,
            node_mixed: need("bandwidth_gbps.socket_mixed").unwrap_or(node_read),
            core: need("bandwidth_gbps.core")?,
            saturated: need("latency_ns.dram_saturated").map_or(SATURATED, |ns| ns / dram),
        },
        caches: Caches {
            l1: lines(need("cache_kib.l1")?),
            l2: lines(need("cache_kib.l2")?),
            l3: lines(need("cache_kib.l3")?),
        },
        pause_ns: need("cycles.pause")? * ns_per_cycle,
        mispredict_ns: need("cycles.mispredict").unwrap_or(MISPREDICT_CYCLES) * ns_per_cycle,
        guesses: false,
        exchange_ns: need("cycles.exchange").unwrap_or(EXCHANGE_CYCLES) * ns_per_cycle,
        smt_yield: need("smt_yield").unwrap_or(2.0),
        store_exposed: need("store_exposed")?,
        fitted: fitted()?,
        own_access_ns: need("cycles.access").ok().map(|cycles| cycles * ns_per_cycle),
        // A load of what has just been stored, and an addition to it.
        own_hit_ns: (need("cycles.l1")? + 1.0) * ns_per_cycle,
        transfers: 1.0,
        drift_pages: drift_pages(
            (cores * machine.nodes * machine.threads_per_core) as u16,
            machine.gib_per_node as f64,
        ),
        kernel: match machine.kernel_ns {
            None => None,
            Some(_) => Some(Kernel {
                page_fault: need("kernel_ns.page_fault")?,
                page_free: need("kernel_ns.page_free")?,
                lru: Batches {
                    link: need("kernel.lru_batch").unwrap_or(0.0) as usize,
                    unlink: need("kernel.lru_free_batch").unwrap_or(0.0) as usize,
                },
            }),
        },
    };
    Ok(model.with_slower_cores(slower))
}

/// The model with every parameter as described.
///
/// # Errors
/// As [`model_of`].
pub fn central_model(machine: &Machine) -> Result<Model> {
    model_of(machine, |_, parameter| parameter.value)
}

/// `count` models between which every uncertain parameter varies over its whole interval: a Latin hypercube. Each
/// parameter has each of its `count` strata once, in an order of its own.
///
/// # Errors
/// As [`model_of`].
pub fn sampled_models(machine: &Machine, count: usize, seed: u64) -> Result<Vec<Model>> {
    let count = count.max(1);
    let mut rng = Rng::new(mix(seed ^ 0x1a71_4cbe));
    let uncertain: Vec<(&str, Vec<f64>)> = machine
        .parameters()
        .into_iter()
        .filter_map(|(name, parameter)| {
            let (low, high) = parameter.interval();
            if low >= high {
                return None;
            }
            Some((name, strata(low, high, count, &mut rng)))
        })
        .collect();
    (0..count)
        .map(|sample| {
            model_of(machine, |name, parameter| {
                let varied = uncertain.iter().find(|(known, _)| *known == name);
                varied.map_or(parameter.value, |(_, strata)| strata[sample])
            })
        })
        .collect()
}

/// `count` values from `low` to `high`, one in each of as many strata, in random order.
pub(crate) fn strata(low: f64, high: f64, count: usize, rng: &mut Rng) -> Vec<f64> {
    let mut strata: Vec<f64> =
        (0..count).map(|stratum| low + (high - low) * (stratum as f64 + rng.unit()) / count as f64).collect();
    rng.shuffle(&mut strata);
    strata
}

/// 1, 2, 4, … and last `all`.
pub(crate) fn doubled(all: u16) -> impl Iterator<Item = u16> {
    (0..).map(|n| 1 << n).take_while(move |&n| n < all).chain([all])
}

/// Limit on the threads that simulate at a time, over all parts.
struct Turns {
    free: Mutex<usize>,
    given_back: Condvar,
}

static TURNS: LazyLock<Turns> =
    LazyLock::new(|| Turns { free: Mutex::new(cpus_here()), given_back: Condvar::new() });

thread_local! {
    /// True while this thread has a turn.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// CPUs that this process may run on.
pub(crate) fn cpus_here() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A turn; given back when dropped.
struct Turn;

impl Turn {
    fn wait() -> Self {
        let free = TURNS.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = TURNS.given_back.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        HAS_TURN.set(true);
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HAS_TURN.set(false);
        *TURNS.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        TURNS.given_back.notify_one();
    }
}

/// Runs `work` on each item, on as many threads as the host has CPUs; the results are in the items' order. `done` is
/// called on this thread after each. Of all threads that are in such work at a time, as many go on as the host has
/// CPUs.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    mut done: impl FnMut(),
) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let keep = |index: usize| {
        let result = work(&items[index]);
        *results[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    };
    take_turns(items.len(), &keep, &mut done);
    let result = |slot: Mutex<Option<R>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(result).collect()
}

/// Calls `work` with each number below `count`, as [`in_parallel`] says. Not generic: threads and a channel for each
/// type of work would be a twentieth of this crate's code.
fn take_turns(count: usize, work: &(dyn Fn(usize) + Sync), done: &mut dyn FnMut()) {
    // A thread that has a turn already would wait for itself.
    let waits = !HAS_TURN.get();
    let next = Mutex::new(0..count);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel::<()>();
        for _ in 0..cpus_here().min(count.max(1)) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let taken = next.lock().map_or(None, |mut range| range.next());
                    let Some(index) = taken else { break };
                    let turn = waits.then(Turn::wait);
                    work(index);
                    drop(turn);
                    if send.send(()).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        receive.into_iter().for_each(|()| done());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Source;

    #[test]
    fn every_built_in_machine_can_be_simulated() {
        for machine in Machine::all().expect("all are valid") {
            let model = central_model(&machine).expect("it has all that is needed");
            assert_eq!(u32::from(model.shape.cpus()), machine.cpus(), "{}", machine.name);
        }
    }

    #[test]
    fn cores_of_more_than_two_threads_cannot_be_simulated() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let wide = |threads_per_core| central_model(&Machine { threads_per_core, ..machine.clone() });
        wide(2).expect("a thread has a sibling");
        let error = wide(4).expect_err("a thread has three siblings").to_string();
        assert!(error.contains("4 threads"), "{error}");
    }

    #[test]
    fn a_guest_that_shares_its_cores_takes_longer_for_what_it_does_in_them() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let shared = |share: f64| {
            let core_shared = Parameter { value: share, source: Source::Measured, low: None, high: None };
            central_model(&Machine { core_shared: Some(core_shared), ..machine.clone() }).expect("a model")
        };
        let alone = central_model(&machine).expect("a model");
        assert_eq!(shared(0.0), alone);
        let slow = shared(1.0);
        assert!((slow.fitted.access_ns / alone.fitted.access_ns - 1.6).abs() < 1e-9, "{slow:?}");
        assert_eq!((slow.latency, slow.bandwidth), (alone.latency, alone.bandwidth), "outside of the core");
    }

    #[test]
    fn samples_cover_every_stratum_of_an_estimate_and_leave_measurements_alone() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let models = sampled_models(&machine, 20, 1).expect("models");
        let central = central_model(&machine).expect("a model");
        assert!(models.iter().all(|model| model.latency.same_l3 == central.latency.same_l3), "measured");
        // A pause of 140 cycles is an estimate: 105 to 175, one sample in each twentieth.
        let mut strata: Vec<i64> = models
            .iter()
            .map(|model| ((model.pause_ns * 2.2 - 105.0) / 70.0 * 20.0).floor() as i64)
            .collect();
        strata.sort_unstable();
        assert_eq!(strata, (0..20).collect::<Vec<_>>());
        assert_ne!(models, sampled_models(&machine, 20, 2).expect("models"), "the seed decides");
    }

    #[test]
    fn a_models_own_error_is_what_the_fit_has_left() {
        let errors = model_errors(20, 1).expect("a file");
        assert_eq!(errors.len(), 20);
        let low = errors.iter().copied().fold(f64::MAX, f64::min);
        let high = errors.iter().copied().fold(f64::MIN, f64::max);
        assert!(low < 0.95 && high > 1.05 && low > 0.5 && high < 2.0, "{low} {high}");
        assert_ne!(errors, model_errors(20, 2).expect("a file"), "the seed decides which model has which");
    }

    #[test]
    fn work_within_work_and_work_beside_work_end() {
        let items: Vec<u64> = (0..8).collect();
        let sum = |&n: &u64| in_parallel(&items, |m| n * m, || {}).iter().sum::<u64>();
        thread::scope(|scope| {
            let both = [0, 1].map(|_| scope.spawn(|| in_parallel(&items, sum, || {})));
            for sums in both {
                assert_eq!(sums.join().expect("it ends"), items.iter().map(|n| n * 28).collect::<Vec<_>>());
            }
        });
    }

    #[test]
    fn parallel_results_are_in_order() {
        let items: Vec<u64> = (0..100).collect();
        let mut steps = 0;
        let squares = in_parallel(&items, |n| n * n, || steps += 1);
        assert_eq!(squares, items.iter().map(|n| n * n).collect::<Vec<_>>());
        assert_eq!(steps, 100);
    }
}
