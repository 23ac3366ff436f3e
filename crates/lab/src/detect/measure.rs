//! Costs of a machine's parts, measured on the CPUs that this process may use.

use core::time::Duration;
use std::time::Instant;

use framewright_workload::probe::{self, Figure, Stream};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::clock;
use super::system::{Place, System};
use crate::interrupt::Interrupt;

/// Estimates for figures that could not be measured: those of servers of the last ten years.
const LINE_NS: f64 = 50.0;
const FAR_LINE_NS: f64 = 120.0;
const DRAM_NS: f64 = 100.0;
const CORE_GBPS: f64 = 12.0;
const MHZ: f64 = 3000.0;
const CACHE_KIB: [f64; 3] = [32.0, 1024.0, 32768.0];

/// Bytes that memory is measured with, at most and at least.
const MOST: usize = 256 << 20;
const LEAST: usize = 64 << 20;
/// Longest time that cores are kept busy before the first measurement, while their clock rises.
const WARM_UP: Duration = Duration::from_millis(300);
/// A thread that gets less than this share of its CPU's time measures the scheduler: wherever it is preempted within
/// a burst, and wherever it holds a lock that another thread waits for.
const LEAST_GIVEN: f64 = 0.8;
/// Looks until one finds that the CPUs are this process's: something else may run for a moment.
const LOOKS: u32 = 5;

/// A field of the description.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) value: f64,
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    pub(super) source: &'static str,
    pub(super) how: String,
}

impl Field {
    fn measured(figure: Figure, how: impl Into<String>) -> Self {
        let Figure { value, low, high } = figure;
        Self { value, low: Some(low), high: Some(high), source: "measured", how: how.into() }
    }

    fn nominal(value: f64, how: impl Into<String>) -> Self {
        Self { value, low: None, high: None, source: "nominal", how: how.into() }
    }

    fn estimate(value: f64, how: impl Into<String>) -> Self {
        Self { value, low: None, high: None, source: "estimate", how: how.into() }
    }
}

type Fields = Vec<(&'static str, Field)>;

pub(super) struct Measured {
    pub(super) cycle: Field,
    pub(super) smt_yield: Option<Field>,
    /// Transfers that a store to a polled line waits for.
    pub(super) store_exposed: Option<Field>,
    /// Share of the time in which another guest's thread works on the same core.
    pub(super) core_shared: Option<Field>,
    /// Times of a step that fills a core, of all CPUs, at several moments.
    wide: Vec<f64>,
    pub(super) latency: Fields,
    pub(super) bandwidth: Fields,
    pub(super) cycles: Fields,
    pub(super) caches: Fields,
    pub(super) missing: Vec<String>,
    /// Other programs run on the CPUs: only short bursts can be measured.
    pub(super) is_disturbed: bool,
    /// Ends measuring when it is raised.
    stop: Option<Interrupt>,
}

impl Default for Measured {
    /// A machine of which nothing could be measured.
    fn default() -> Self {
        let none = "an assumption: nothing was measured";
        let all = |fields: &[(&'static str, f64)]| -> Fields {
            fields.iter().map(|(name, value)| (*name, Field::estimate(*value, none))).collect()
        };
        Self {
            cycle: Field::estimate(MHZ, none),
            smt_yield: None,
            store_exposed: None,
            core_shared: None,
            wide: Vec::new(),
            latency: all(&[("same_l3", LINE_NS), ("dram_local", DRAM_NS)]),
            bandwidth: all(&[("socket_read", CORE_GBPS), ("core", CORE_GBPS)]),
            cycles: all(&[("pause", 50.0), ("l1", 5.0), ("l2", 14.0), ("l3", 60.0)]),
            caches: all(&[("l1", CACHE_KIB[0]), ("l2", CACHE_KIB[1]), ("l3", CACHE_KIB[2])]),
            missing: Vec::new(),
            is_disturbed: false,
            stop: None,
        }
    }
}

/// Distance of two CPUs, with the names of its fields and the value to assume if it cannot be measured.
struct Near {
    field: &'static str,
    modified: Option<&'static str>,
    holds: fn(&Place, &Place) -> bool,
    otherwise: f64,
}

const NEAR: [Near; 5] = [
    Near { field: "smt_sibling", modified: None, holds: |a, b| a.core == b.core, otherwise: 15.0 },
    Near {
        field: "same_l3",
        modified: Some("same_l3_dirty"),
        holds: |a, b| a.core != b.core && a.l3 == b.l3 && a.node == b.node,
        otherwise: LINE_NS,
    },
    Near {
        field: "other_l3",
        modified: None,
        holds: |a, b| a.l3 != b.l3 && a.node == b.node,
        otherwise: FAR_LINE_NS,
    },
    Near {
        field: "cross_die",
        modified: None,
        holds: |a, b| a.node != b.node && a.package == b.package,
        otherwise: FAR_LINE_NS,
    },
    Near {
        field: "cross_socket",
        modified: Some("cross_socket_dirty"),
        holds: |a, b| a.package != b.package,
        otherwise: FAR_LINE_NS,
    },
];

impl Measured {
    pub(super) fn of(system: &System, allowed: &[usize], stop: &Interrupt) -> Self {
        let usable = usable(system, allowed);
        let mut measured = Self { latency: Vec::new(), stop: Some(stop.clone()), ..Self::default() };
        let Some(first) = usable.first().copied() else {
            measured.latency = Self::default().latency;
            measured.missing.push(
                "the system does not say on which CPUs this process may run: nothing is measured".to_owned(),
            );
            return measured;
        };
        if usable.len() < system.cpus.len() {
            measured.missing.push(format!(
                "this process may run on {} of {} CPUs: measured on those",
                usable.len(),
                system.cpus.len()
            ));
        }
        if let Some(what) = disturbed(&usable) {
            measured.is_disturbed = true;
            measured.missing.push(format!(
                "{what}: bandwidth_gbps and store_exposed are assumptions, and cycles.access is that of a short loop, about half of \
                 what an allocator takes; run it again while they rest"
            ));
        }
        let look = || probe::on_cpu(first.cpu, probe::cycle).map(|cycle| 1000.0 / cycle.value);
        let before = look();
        let cpus: Vec<usize> = usable.iter().map(|at| at.cpu).collect();
        measured.look(&cpus);
        measured.transfers(&usable);
        measured.look(&cpus);
        let bytes = memory_bytes(system);
        probe::on_cpu(first.cpu, || measured.alone(system, bytes));
        measured.look(&cpus);
        measured.remote(&usable, bytes);
        measured.streams(&usable, bytes);
        measured.look(&cpus);
        if let (Some(before), Some(after)) = (before, look()) {
            measured.missing.extend(clock::doubts(before, after, system.nominal_mhz));
        }
        measured
    }

    /// Looks whether these CPUs have their cores to themselves. Returns the time of a step that fills a core, by CPU.
    pub(super) fn look(&mut self, cpus: &[usize]) -> Vec<f64> {
        let wide: Vec<f64> = probe::wide_on(cpus).into_iter().flatten().collect();
        self.wide.extend(&wide);
        wide
    }

    /// Share of these looks that found another thread on the core.
    pub(super) fn shared(&self, looks: &[f64]) -> f64 {
        let least = self.wide.iter().copied().fold(f64::INFINITY, f64::min);
        let shared = looks.iter().filter(|&&wide| is_shared(wide, least)).count();
        shared as f64 / looks.len().max(1) as f64
    }

    /// Describes whether this guest has had its cores to itself during all looks.
    pub(super) fn set_core_shared(&mut self) {
        self.core_shared = core_shared(&self.wide);
    }

    /// Measures a figure; if there is none, keeps a line about it.
    fn take(&mut self, what: &str, measure: impl FnOnce() -> Option<Figure>) -> Option<Figure> {
        let interrupted = self.stop.as_ref().is_some_and(Interrupt::is_raised);
        let figure = if interrupted { None } else { measure() };
        if figure.is_none() {
            let why = if interrupted { "was not measured any more" } else { "could not be measured in time" };
            self.missing.push(format!("{what} {why}: an assumption"));
        }
        figure
    }

    /// A field as it is measured, or else with a value to assume.
    fn field(
        &mut self,
        name: &str,
        otherwise: f64,
        how: String,
        measure: impl FnOnce() -> Option<Figure>,
    ) -> Field {
        match self.take(name, measure) {
            Some(figure) => Field::measured(figure, how),
            None => Field::estimate(otherwise, "an assumption"),
        }
    }

    /// Lines between CPUs, for each distance that there is: the nearest pair in number and the farthest.
    fn transfers(&mut self, usable: &[Place]) {
        for Near { field, modified, holds, otherwise } in NEAR {
            let pairs = || {
                let all = usable.iter().enumerate();
                all.flat_map(|(n, a)| usable[n + 1..].iter().map(move |b| (a, b)))
                    .filter(|(a, b)| holds(a, b))
            };
            let Some(near) = pairs().next() else {
                // The simulator needs this one of every machine.
                if field == "same_l3" {
                    let how =
                        "an assumption: no two CPUs here share a last-level cache and are different cores";
                    self.missing.push(format!("{field}: {how}"));
                    self.latency.push((field, Field::estimate(otherwise, how)));
                }
                continue;
            };
            let far = pairs().next_back().filter(|far| *far != near);
            let both = |measure: fn(usize, usize) -> Option<Figure>| {
                let figures: Vec<Figure> = [Some(near), far]
                    .into_iter()
                    .flatten()
                    .filter_map(|(a, b)| measure(a.cpu, b.cpu))
                    .collect();
                joined(&figures)
            };
            let pairs = match far {
                Some((a, b)) => format!("CPUs {} and {}, {} and {}", near.0.cpu, near.1.cpu, a.cpu, b.cpu),
                None => format!("CPUs {} and {}", near.0.cpu, near.1.cpu),
            };
            let how = format!("compare-and-swap in turn, one way: {pairs}");
            let between = self.field(field, otherwise, how, || both(probe::ping_pong));
            self.latency.push((field, between));
            if let Some(modified) = modified
                && let Some(figure) = self.take(modified, || both(probe::read_modified))
            {
                let how = format!("chain of reads of lines that the other has just written: {pairs}");
                self.latency.push((modified, Field::measured(figure, how)));
            }
        }
    }

    /// Replaces the cycles of an access.
    pub(super) fn set_access(&mut self, field: Field) {
        if let Some((_, access)) = self.cycles.iter_mut().find(|(name, _)| *name == "access") {
            *access = field;
        }
    }

    /// Measurements of one CPU alone.
    fn alone(&mut self, system: &System, bytes: usize) {
        for (level, (name, field)) in self.caches.iter_mut().enumerate() {
            match &system.caches[level] {
                Some(cache) => *field = Field::nominal(cache.kib, cache.from.clone()),
                None => {
                    *field = Field::estimate(CACHE_KIB[level], format!("an assumption: {name} was not found"))
                }
            }
        }
        let cycle = self.take("frequency_mhz", probe::cycle);
        if let Some(cycle) = cycle {
            let how = "steps of four cycles, each of which waits for the one before";
            self.cycle = Field::measured(cycle.map(|ns| 1000.0 / ns), how);
        }
        let ns = cycle.map_or(1000.0 / MHZ, |cycle| cycle.value);
        let mut cycles = Vec::new();
        let size = |level: usize| (self.caches[level].1.value * 1024.0) as usize;
        let [l1, l2, l3] = [size(0), size(1), size(2)];
        // A guest may have less of a last level than it is told.
        let beyond_l2 = (4 * l2).min(l3 / 2).min(MOST);
        let chain = |bytes: usize| format!("chain of reads through {} KiB", bytes >> 10);
        type Measure<'a> = &'a dyn Fn() -> Option<Figure>;
        let rows: [(_, Measure<'_>, _, _); 6] = [
            ("pause", &probe::pause, "pauses in a row".to_owned(), 50.0),
            ("exchange", &probe::exchange, "atomic additions in a row".to_owned(), 18.0),
            (
                "access",
                &probe::access,
                "accesses of code like an allocator's; low: steps that do not wait for one another, high: that do".to_owned(),
                1.5,
            ),
            ("l1", &|| probe::chase(l1 / 2, 8), chain(l1 / 2), 5.0),
            ("l2", &|| probe::chase(l2 / 2, 8), chain(l2 / 2), 14.0),
            ("l3", &|| unwalked(beyond_l2), chain(beyond_l2), 60.0),
        ];
        for (name, measure, how, otherwise) in rows {
            let in_cycles = || measure().map(|figure| figure.map(|time| time / ns));
            cycles.push((name, self.field(name, otherwise, how, in_cycles)));
        }
        self.cycles = cycles;
        let how = format!("{}, less the walk through the page tables", chain(bytes));
        let field = self.field("dram_local", DRAM_NS, how, || unwalked(bytes));
        self.latency.push(("dram_local", field));
    }

    /// Memory that belongs to another node.
    fn remote(&mut self, usable: &[Place], bytes: usize) {
        let Some(first) = usable.first() else { return };
        let Some(remote) = usable.iter().find(|at| at.node != first.node) else { return };
        let measure = || {
            probe::on_cpu(first.cpu, || {
                let together = probe::chase_from(bytes, 8, remote.cpu)?;
                Some(without_walk(probe::chase_from(bytes, 1, remote.cpu)?, together))
            })
        };
        if let Some(figure) = self.take("dram_remote", measure) {
            let how =
                format!("the same from CPU {} through memory first touched by CPU {}", first.cpu, remote.cpu);
            self.latency.push(("dram_remote", Field::measured(figure, how)));
        }
    }

    fn streams(&mut self, usable: &[Place], bytes: usize) {
        let Some(first) = usable.first() else { return };
        // One CPU of each core: a node's.
        let mut node: Vec<&Place> = Vec::new();
        for at in usable.iter().filter(|at| at.node == first.node) {
            if node.iter().all(|known| known.core != at.core) {
                node.push(at);
            }
        }
        let cpus: Vec<usize> = node.iter().map(|at| at.cpu).collect();
        let mut bandwidth = Vec::new();
        for (name, cpus, how) in [
            ("socket_read", &cpus[..], Stream::Read),
            ("socket_mixed", &cpus[..], Stream::Change),
            ("core", &cpus[..1], Stream::Read),
        ] {
            let what = if how == Stream::Read { "read" } else { "read and written back" };
            let mib = bytes >> 20;
            let source = format!("CPUs {cpus:?} at once, {mib} MiB {what}; low is the median round");
            let field = match self.is_disturbed {
                true => Field::estimate(CORE_GBPS, "an assumption"),
                false => self.field(name, CORE_GBPS, source, || probe::stream(cpus, bytes, how)),
            };
            bandwidth.push((name, field));
        }
        self.bandwidth = bandwidth;
        if let Some(sibling) = usable.iter().find(|at| at.core == first.core && at.cpu != first.cpu) {
            let alone = probe::on_cpu(first.cpu, probe::access);
            let both = std::thread::scope(|scope| {
                let second = scope.spawn(|| probe::on_cpu(sibling.cpu, probe::access));
                let alone = probe::on_cpu(first.cpu, probe::access);
                second.join().ok().flatten().and(alone)
            });
            if let (Some(alone), Some(both)) = (alone, both) {
                let times = (2.0 * alone.value / both.value).clamp(1.0, 2.0);
                let how =
                    format!("accesses on CPUs {} and {} at once, to those on one", first.cpu, sibling.cpu);
                self.smt_yield = Some(Field::estimate(times, how));
            }
        }
    }
}

/// Whether another thread works on a core on which a step that fills it takes `wide`, and `least` alone. With such a
/// thread it takes up to twice as long.
fn is_shared(wide: f64, least: f64) -> bool {
    wide > 1.2 * least
}

/// The field from all looks; none if there were none.
fn core_shared(wide: &[f64]) -> Option<Field> {
    let least = wide.iter().copied().min_by(f64::total_cmp)?;
    let shared = wide.iter().filter(|&&wide| is_shared(wide, least)).count();
    Some(Field {
        value: shared as f64 / wide.len() as f64,
        // The least took it alone.
        low: Some(0.0),
        high: Some(f64::from(u8::from(shared > 0))),
        source: "measured",
        how: format!(
            "{shared} of {} looks found code that fills a core slower than the fastest, {least:.2} ns a step, by more than a fifth; low and \
             high: of one moment",
            wide.len()
        ),
    })
}

/// A warning where other programs have begun to run while the machine was measured.
pub(super) fn disturbance(system: &System, allowed: &[usize]) -> Option<String> {
    let what = disturbed(&usable(system, allowed))?;
    Some(format!(
        "{what} when it was measured: bandwidth_gbps, cycles.access and store_exposed may be theirs; run it again while they rest"
    ))
}

/// The CPUs that this process may run on.
fn usable(system: &System, allowed: &[usize]) -> Vec<Place> {
    system.cpus.iter().copied().filter(|at| allowed.contains(&at.cpu)).collect()
}

/// Warms the CPUs up. Says how much of one's time this process did not get, if it is much each time that it looks.
fn disturbed(usable: &[Place]) -> Option<String> {
    let mut most = 0.0_f64;
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(WARM_UP);
        }
        most = most.max(warm_up(usable));
        if most >= LEAST_GIVEN {
            return None;
        }
    }
    Some(format!("other programs, or a limit on this one, had {:.0} % of a CPU's time", 100.0 * (1.0 - most)))
}

/// Keeps all CPUs busy until their clocks no longer rise, each for itself. Returns the least share of its time that a
/// CPU gave its thread.
fn warm_up(usable: &[Place]) -> f64 {
    let cpu_seconds = || {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Some(seconds(usage.user_time()) + seconds(usage.system_time()))
    };
    let warm = |at: &Place| {
        probe::pin_to(at.cpu);
        let (begin, before) = (Instant::now(), cpu_seconds());
        let look = || probe::cycle().map(|cycle| 1000.0 / cycle.value);
        clock::settle(look, || begin.elapsed() > WARM_UP);
        let (wall, after) = (begin.elapsed().as_secs_f64(), cpu_seconds());
        after.zip(before).map_or(1.0, |(after, before)| (after - before) / wall)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = usable.iter().map(|at| scope.spawn(move || warm(at))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(1.0)).fold(1.0, f64::min)
    })
}

/// As much memory as no cache holds, but no more than a quarter of what is available.
fn memory_bytes(system: &System) -> usize {
    let l3 = system.caches[2].as_ref().map_or(0, |cache| (cache.kib * 1024.0) as usize);
    let available = system.available_bytes.map_or(LEAST, |bytes| usize::try_from(bytes / 4).unwrap_or(MOST));
    (4 * l3).clamp(LEAST, MOST).min(available.max(1 << 20)) & !4095
}

/// The range over several pairs of CPUs, with the middle of their figures.
fn joined(figures: &[Figure]) -> Option<Figure> {
    let first = figures.first()?;
    let low = figures.iter().map(|figure| figure.low).fold(first.low, f64::min);
    let high = figures.iter().map(|figure| figure.high).fold(first.high, f64::max);
    let value = figures.iter().map(|figure| figure.value).sum::<f64>() / figures.len() as f64;
    Some(Figure { value, low, high })
}

/// A read through `bytes` of memory, less the walk through the page tables, which is a parameter of its own in the
/// simulator.
fn unwalked(bytes: usize) -> Option<Figure> {
    let together = probe::chase(bytes, 8)?;
    Some(without_walk(probe::chase(bytes, 1)?, together))
}

/// Of one read in each page, every read walks; of eight together, every eighth.
fn without_walk(alone: Figure, together: Figure) -> Figure {
    let walkless =
        |alone: f64, together: f64| ((8.0 * together - alone) / 7.0).clamp(0.5 * together, together);
    Figure {
        value: walkless(alone.value, together.value),
        low: walkless(alone.value, together.low),
        high: together.high,
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_core_is_shared_while_code_that_fills_it_takes_longer() {
        let field = core_shared(&[1.3, 1.0, 2.1, 1.0, 1.1]).expect("looks");
        assert_eq!((field.value, field.low, field.high), (0.4, Some(0.0), Some(1.0)));
        let alone = core_shared(&[1.0, 1.05]).expect("looks");
        assert_eq!((alone.value, alone.low, alone.high), (0.0, Some(0.0), Some(0.0)));
        assert!(core_shared(&[]).is_none());
    }

    /// Four loops on two CPUs made the allocator's run eight times as long, and the description said nothing of it.
    #[test]
    fn programs_that_have_the_cpu_are_noticed() {
        let Some(&cpu) = probe::allowed_cpus().first() else { return };
        let place = Place { cpu, core: 0, l3: 0, node: 0, package: 0 };
        let over = AtomicBool::new(false);
        let said = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    probe::pin_to(cpu);
                    while !over.load(Ordering::Relaxed) {
                        core::hint::spin_loop();
                    }
                });
            }
            let said = disturbed(&[place]);
            over.store(true, Ordering::Relaxed);
            said
        });
        assert!(said.as_ref().is_some_and(|said| said.ends_with("% of a CPU's time")), "{said:?}");
    }
}
