//! A trace on a modelled machine: `replay --machine`.
//!
//! Each traced CPU becomes a virtual one; copies of the program run beside one another, each beginning somewhere else
//! in the trace. Every configuration runs on the same models.

use std::collections::{BTreeMap, BTreeSet};

use framewright_host::{Order, Pfn};
use framewright_report::error::{Error, Result};
use framewright_report::quantity::{Quantity, describe, quantities};
use framewright_report::result::{Kind, Part};
use framewright_report::stats::{max, median, min};
use framewright_report::table::significant;
use framewright_sim::Model;
use framewright_sim::clock::{Ps, mix};
use framewright_sim::queue::{Network, Station};
use framewright_sim::replay::{Act, Copy, Op, Outcome, run};
use framewright_sim::stage::migratetype;
use framewright_trace::trace::{Event, EventKind, Trace};
use framewright_workload::replay::{Live, MAX_ORDER, PageCache, Released};

use crate::configure::Setup;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::quantity::{NETWORK, TIMES, TRAFFIC, ZONE_LOCK, joined};
use crate::replaying::{Compiled, page_cache};
use crate::simulate::allocator::allocator;
use crate::simulate::samples::{Interval, add_moved, close_simulated};
use crate::simulate::{in_parallel, sampled_models};

/// Events of all copies together: enough for several drains of every list, in seconds.
const EVENTS: usize = 400_000;
const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// Longest trace. Models count picoseconds, of which 64 bits hold 213 days.
const LONGEST_NS: u64 = 100 * DAY_NS;

/// A trace and the machine it is to run on.
#[derive(Debug)]
pub struct Modelled<'a> {
    machine: &'a Machine,
    /// CPUs of the trace, ascending.
    threads: Vec<u16>,
    /// By copy: its events.
    traced: Vec<Vec<&'a Event>>,
    copies: Compiled<Vec<Copy>>,
    /// Pages of files.
    page_cache_frames: u64,
    /// Events of each copy, and of the trace.
    events: [usize; 2],
    /// Frees that all copies together leave out.
    left_out: usize,
}

impl<'a> Modelled<'a> {
    /// Prepares `copies` copies of a trace.
    ///
    /// # Errors
    /// The trace holds nothing to replay, or takes too long, or the machine has too few CPUs.
    pub fn new(trace: &'a Trace, machine: &'a Machine, copies: usize) -> Result<Self> {
        let usable: Vec<&Event> = trace.allocations_and_frees().collect();
        if usable.is_empty() {
            return Err(Error::failed("the trace has no allocations and no frees to replay"));
        }
        if let Some(event) = usable.iter().find(|event| event.order > MAX_ORDER) {
            return Err(Error::failed(format_args!(
                "the trace has an event of order {}: {MAX_ORDER} is the largest",
                event.order
            )));
        }
        if trace.duration_ns() > LONGEST_NS {
            return Err(Error::failed(format_args!(
                "from its first event to its last the trace takes {} days; models run at most {}: record a shorter one",
                trace.duration_ns() / DAY_NS,
                LONGEST_NS / DAY_NS
            )));
        }
        let mut threads: Vec<u16> = usable.iter().map(|event| event.cpu).collect();
        threads.sort_unstable();
        threads.dedup();
        let (cpus, most) = (threads.len() * copies, machine.cpus() as usize);
        if threads.len() > most {
            let (traced, name) = (threads.len(), &machine.name);
            return Err(Error::usage(format_args!(
                "the trace has {traced} CPUs, and {name} has {most}: choose a larger machine"
            )));
        }
        if cpus > most {
            return Err(Error::usage(format_args!(
                "{copies} copies of {} traced CPUs need {cpus} CPUs, and {} has {most}: at most {} copies fit",
                threads.len(),
                machine.name,
                most / threads.len()
            )));
        }
        let each = (EVENTS / copies).clamp(1, usable.len());
        let begin = |copy: usize| copy * usable.len() / copies;
        let events_of = |copy: usize| -> Vec<&Event> {
            let first = begin(copy);
            (0..each).map(|n| usable[(first + n) % usable.len()]).collect()
        };
        let traced: Vec<_> = (0..copies).map(events_of).collect();
        let (copies, left_out) = compile_all(&traced, &threads, PageCache::AsTraced);
        if copies.iter().all(|copy| copy.slots == 0) {
            return Err(Error::failed(
                "the trace frees only blocks from before its start, which models do not have",
            ));
        }
        let of_files = traced.iter().flatten().filter(|event| event.is_page_cache());
        Ok(Self {
            machine,
            page_cache_frames: of_files.map(|event| 1 << event.order).sum(),
            copies: Compiled::new(copies),
            left_out,
            threads,
            traced,
            events: [each, usable.len()],
        })
    }

    /// The copies that run under this setup.
    fn copies(&self, setup: &Setup) -> &[Copy] {
        self.copies.of(setup, |page_cache| compile_all(&self.traced, &self.threads, page_cache).0)
    }

    /// Runs every configuration on as many models of the machine, or until `progress` is interrupted, and adds what
    /// came out to `part`.
    ///
    /// # Errors
    /// The machine cannot be simulated, or a configuration is refused.
    pub fn simulate(
        &self,
        setups: &[(String, Setup)],
        models: u32,
        part: &mut Part,
        progress: &Progress,
    ) -> Result<()> {
        part.paired = true;
        part.settings = setups.iter().map(|(name, setup)| (name.clone(), setup.described())).collect();
        part.condition("copies", self.traced.len());
        let models = sampled_models(self.machine, models as usize, part.seed)?;
        let work: Vec<_> = models
            .iter()
            .zip(1_u64..)
            .flat_map(|(model, n)| setups.iter().map(move |setup| (model, n, setup)))
            .collect();
        let outcomes = in_parallel(
            &work,
            |(model, n, (_, setup))| {
                if progress.is_interrupted() {
                    return None;
                }
                let allocator = allocator(self.machine, setup);
                Some(run(model, &allocator, self.copies(setup), mix(part.seed ^ n << 32)))
            },
            || progress.step("simulated"),
        );
        let mut hashes = Vec::new();
        let mut outcomes = outcomes.into_iter();
        // Only models on which every configuration ran.
        while let Some(of_model) = outcomes.by_ref().take(setups.len()).collect::<Option<Vec<_>>>()
            && !of_model.is_empty()
        {
            let model = &models[hashes.len() / setups.len()];
            for ((name, _), outcome) in setups.iter().zip(of_model) {
                let outcome = outcome.map_err(Error::failed)?;
                hashes.push(outcome.events.hash);
                self.bound(part, name, &outcome, model);
                add(part, name, &outcome);
            }
        }
        self.explain(part, hashes.len() / setups.len().max(1));
        part.notes.extend(page_cache(self.page_cache_frames, setups));
        close_simulated(part, hashes, Interval::LowestToHighest);
        self.say_bounds(part);
        part.settle();
        Ok(())
    }

    /// CPUs of the copies.
    fn cpus(&self) -> u16 {
        (self.traced.len() * self.threads.len()) as u16
    }

    /// Adds at how many CPUs that do the same the zone lock and the nodes' memory saturate, and what they allow at
    /// most.
    fn bound(&self, part: &mut Part, variant: &str, outcome: &Outcome, model: &Model) {
        /// Transfers of a line between two holds of a contended lock: between two and five. The least, so that no run
        /// exceeds the bound.
        const HAND_OVER: f64 = 2.0;
        let (cpus, pages) = (self.cpus(), (outcome.pages as f64).max(1.0));
        let nodes: BTreeSet<u16> = (0..cpus).map(|cpu| model.shape.node_of(cpu)).collect();
        let nodes = nodes.len().max(1) as f64;
        let [locks, wait, hold] = outcome.lock.map(|count| count as f64 / pages);
        let hand_over = locks * HAND_OVER * model.latency.same_l3[0] * model.transfers;
        // A CPU's time for a page, what its pace leaves idle included, without waiting.
        let cycle = outcome.elapsed.as_ns() * f64::from(cpus) / pages;
        let demand = hold + hand_over;
        let station = Station { name: "zone".to_owned(), demand_ns: demand };
        let think_ns = (cycle - wait - demand).max(0.0);
        let network = Network { think_ns, sibling: 0.0, variation: 1.0, stations: vec![station] };
        for bound in network.bounds() {
            part.figure("saturated_at_cpus[lock=zone]").sample(variant, nodes * bound.saturated_at);
            part.figure("most_per_second[lock=zone]").sample(variant, nodes * 1e9 * bound.per_ns);
        }
        let busiest = outcome.moved.bandwidth.iter().copied().fold(0.0, f64::max);
        if busiest > 0.0 {
            part.figure("saturated_at_cpus[memory=node]").sample(variant, f64::from(cpus) / busiest);
            part.figure("most_per_second[memory=node]")
                .sample(variant, f64::from(cpus) * 1e9 / cycle / busiest);
        }
    }

    /// Says the bounds in a sentence for each configuration.
    fn say_bounds(&self, part: &mut Part) {
        let value = |name: &str, variant: &str| {
            let samples = part.find(name)?.of(variant);
            (!samples.is_empty()).then(|| [min(samples), median(samples), max(samples)])
        };
        let sentence = |variant: &String| {
            let [low, middle, high] = value("saturated_at_cpus[lock=zone]", variant)?;
            let next = value("saturated_at_cpus[memory=node]", variant)
                .map_or_else(String::new, |[_, memory, _]| {
                    format!("; a node's memory at {}", significant(memory, 3))
                });
            let most = value("most_per_second[lock=zone]", variant)?[1];
            let [low, middle, high] = [low, middle, high].map(|cpus| significant(cpus, 3));
            Some(format!(
                "{variant}: the zone lock saturates at {middle} CPUs [{low}, {high}] that do the same, at {} million pages a second{next}.",
                significant(most / 1e6, 3)
            ))
        };
        let sentences: Vec<String> = part.variants.iter().filter_map(sentence).collect();
        for sentence in sentences {
            part.note(sentence);
        }
    }

    fn explain(&self, part: &mut Part, models: usize) {
        let [each, all] = self.events;
        part.note(format!(
            "{} of the program on {} of {} virtual CPUs: each replays {each} of the {all} events{}{}, at the recorded \
             pace. Clearing pages and page faults are not part of it.",
            match self.traced.len() {
                1 => "One copy".to_owned(),
                copies => format!("{copies} copies"),
            },
            self.cpus(),
            self.machine.cpus(),
            if self.traced.len() > 1 { ", from an offset of its own" } else { "" },
            match (self.left_out, self.traced.len()) {
                (0, _) => String::new(),
                (frees, 1) => format!(" but for {frees} frees of blocks that are not its own"),
                (frees, _) => format!(" but for frees of blocks that are not its own ({frees} in all)"),
            }
        ));
        if u32::from(self.cpus()) > self.machine.cores_per_node * self.machine.nodes {
            part.note(
                "Some CPUs share a core: the time between two operations, pauses too, counts as work and is longer there.",
            );
        }
        part.note(format!(
            "{models} models of {}, between which its estimated parameters vary.",
            self.machine.name
        ));
    }
}

/// The operations of each copy, and how many frees are left out.
fn compile_all(copies: &[Vec<&Event>], threads: &[u16], page_cache: PageCache) -> (Vec<Copy>, usize) {
    let mut left_out = 0;
    let compiled = copies.iter().map(|events| compile(events, threads, page_cache, &mut left_out)).collect();
    (compiled, left_out)
}

/// The operations of one copy. Frees of blocks that it did not allocate are left out.
fn compile(events: &[&Event], threads: &[u16], page_cache: PageCache, left_out: &mut usize) -> Copy {
    let mut copy = Copy { threads: vec![Vec::new(); threads.len()], ..Copy::default() };
    // Time since the copy's first event: of it, and of the last operation of each thread. All threads have one clock,
    // so that those which took turns when they were recorded take turns here.
    let (mut now, mut before) = (0, None);
    let mut last: BTreeMap<usize, u64> = BTreeMap::new();
    let mut live = Live::default();
    let mut pages = 0_u64;
    for event in events {
        // No time passes where the trace begins again.
        now += before.replace(event.time_ns).map_or(0, |before| event.time_ns.saturating_sub(before));
        let Some(order) = Order::new(event.order).filter(|&order| Pfn(event.pfn).is_aligned(order)) else {
            continue;
        };
        let thread = threads.binary_search(&event.cpu).unwrap_or(0);
        let mut push = |slot, order: Order, act| {
            let since = now - last.insert(thread, now).unwrap_or(0);
            copy.threads[thread].push(Op { gap: Ps(since * 1000), slot, order, act });
        };
        let released = live.release(event.pfn, event.order);
        if event.kind == EventKind::PageAlloc {
            // What was there before was freed unseen; it stays allocated here.
            let slot = copy.slots as u32;
            copy.slots += 1;
            live.insert(event.pfn, event.order, slot);
            pages += order.pages();
            copy.pages = copy.pages.max(pages);
            push(slot, order, Act::Alloc(migratetype(page_cache.mobility(event))));
            continue;
        }
        let is_known = |released: &Released| !matches!(released, Released::Unknown(..));
        *left_out += usize::from(!released.iter().any(is_known));
        for released in released {
            let (owner, order, offset) = match released {
                Released::Whole(owner) => (owner, owner.order, None),
                Released::Part(owner, pfn, order) => (owner, order, Some((pfn - owner.start) as u32)),
                Released::Unknown(..) => continue,
            };
            let [order, whole] =
                [order, owner.order].map(|order| Order::new(order).expect("that of the allocation"));
            let act = offset.map_or(Act::Free, |offset| Act::FreePart { offset, whole });
            pages -= order.pages();
            push(owner.slot, order, act);
        }
    }
    copy
}

/// Metrics of simulated replays.
const QUANTITIES: &[Quantity] = joined!(Quantity;
    &quantities! {
        in_allocator_percent "%" Lower Main "Share of the CPUs' time that is spent in the allocator."
        zone_lock_acquisitions_per_page "1" Lower Main "Acquisitions of the zone lock per allocated page."
        elapsed_ms "ms" Lower Main "Time until the last copy ends."
    },
    &TIMES,
    &ZONE_LOCK,
    &NETWORK,
    &TRAFFIC,
);

fn add(part: &mut Part, variant: &str, outcome: &Outcome) {
    let [locks, wait, hold] = outcome.lock.map(|count| count as f64);
    let (pages, each) = ((outcome.pages as f64).max(1.0), locks.max(1.0));
    for (name, value) in [
        ("in_allocator_percent", 100.0 * outcome.share),
        ("alloc_ns", outcome.alloc_ns),
        ("free_ns", outcome.free_ns),
        ("zone_lock_acquisitions_per_page", locks / pages),
        ("zone_lock_wait_ns", wait / each),
        ("zone_lock_hold_ns", hold / each),
        ("elapsed_ms", outcome.elapsed.as_ns() / 1e6),
    ] {
        part.figure(name).sample(variant, value);
    }
    add_moved(part, &|name| name, variant, &outcome.moved, pages);
    describe(part, QUANTITIES);
}

/// An empty part for a trace on a machine.
pub fn part(machine: &Machine, baseline: &str, seed: u64) -> Part {
    let mut part =
        Part::new("replay", "trace", Kind::Simulated, &*machine.name).baseline(baseline).seed(seed);
    part.headline = Some("alloc_ns".to_owned());
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::shipped;

    fn event(time_ns: u64, cpu: u16, kind: EventKind, pfn: u64, order: u8) -> Event {
        Event { time_ns, pfn, cpu, order, migratetype: Some(1), kind, ..Event::default() }
    }

    /// Copies of a trace on one model of a machine: the value of a metric.
    fn simulated(events: Vec<Event>, machine: &str, copies: usize, preset: &str) -> impl Fn(&str) -> f64 {
        let trace = Trace { events, ..Trace::default() };
        let machine = Machine::find(machine).expect("it is built in");
        let setup = Setup::default().with(&Settings::from_pairs(preset).expect("pairs")).expect("settings");
        let modelled = Modelled::new(&trace, &machine, copies).expect("it has CPUs enough");
        let mut part = part(&machine, preset, 1);
        let progress = Progress::new("replay", 1);
        modelled.simulate(&[(preset.to_owned(), setup)], 1, &mut part, &progress).expect("simulated");
        move |metric| part.find(metric).expect(metric).of(&part.baseline)[0]
    }

    #[test]
    fn no_run_exceeds_the_bound_of_its_lock() {
        const BLOCKS: u64 = 1000;
        // Order 3 has no per-CPU list in Linux v5.4.
        let kind = |n: u64| if n.is_multiple_of(2) { EventKind::PageAlloc } else { EventKind::PageFree };
        let events: Vec<Event> =
            (0..2 * BLOCKS).map(|n| event(200 * n, 0, kind(n), 8 * (n / 2 % 50), 3)).collect();
        for machine in ["skylake-4s", "xeon-gold-5320", "epyc-7742-2s"] {
            for copies in [1, 2, 3, 8] {
                let value = simulated(events.clone(), machine, copies, "preset=linux_v5_4");
                let rate = (8 * BLOCKS * copies as u64) as f64 / value("elapsed_ms") * 1e3;
                let most = value("most_per_second[lock=zone]");
                assert!(rate <= most, "{machine}, {copies} copies: {rate} pages a second, at most {most}");
            }
        }
    }

    /// Each traced CPU works in a second of its own.
    #[test]
    fn cpus_that_took_turns_take_turns_and_wait_for_no_lock() {
        const CPUS: u16 = 4;
        const BLOCKS: u64 = 2000;
        let mut events = Vec::new();
        for cpu in 0..CPUS {
            for n in 0..2 * BLOCKS {
                let kind = if n < BLOCKS { EventKind::PageAlloc } else { EventKind::PageFree };
                let time_ns = u64::from(cpu) * 1_000_000_000 + n * 1000;
                events.push(event(time_ns, cpu, kind, 1_000_000 * u64::from(cpu) + 4 * (n % BLOCKS), 2));
            }
        }
        let value = simulated(events, "xeon-gold-5320", 1, "preset=linux_v6_16");
        // What the lock's line takes from one CPU to the next is part of a wait.
        let wait = value("zone_lock_wait_ns");
        assert!(wait < 30.0, "{wait} ns");
        let elapsed = value("elapsed_ms");
        assert!((3004.0..3050.0).contains(&elapsed), "{elapsed} ms from the first to the last");
    }

    /// As of a server that ran before it was recorded.
    #[test]
    fn frees_of_what_was_there_before_are_left_out_and_said_to_be() {
        let free = |n: u64| event(1000 * n, 0, EventKind::PageFree, 100 + n, 0);
        let mut trace = Trace { events: (0..5).map(free).collect(), ..Trace::default() };
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let error = Modelled::new(&trace, &machine, 1).expect_err("no block of the trace's").to_string();
        assert!(error.contains("frees only blocks from before"), "{error}");
        let mut large = Trace { events: vec![event(0, 0, EventKind::PageAlloc, 0, 13)], ..Trace::default() };
        large.comms.intern("p");
        let error = Modelled::new(&large, &machine, 1).expect_err("no order of ours").to_string();
        assert!(error.contains("order 13: 10 is the largest"), "{error}");
        trace.events.push(event(6000, 0, EventKind::PageAlloc, 1, 0));
        trace.events.push(event(7000, 0, EventKind::PageFree, 1, 0));
        let modelled = Modelled::new(&trace, &machine, 1).expect("it has CPUs enough");
        let mut part = part(&machine, "framewright", 1);
        let setups = [("framewright".to_owned(), Setup::default())];
        modelled.simulate(&setups, 1, &mut part, &Progress::new("replay", 1)).expect("simulated");
        let said =
            "each replays 7 of the 7 events but for 5 frees of blocks that are not its own, at the recorded";
        assert!(part.notes.iter().any(|note| note.contains(said)), "{:?}", part.notes);
    }

    /// Each value of each setting on the same model, under the presets of lists and of bits.
    #[test]
    fn settings_without_effect_change_no_figure() {
        use crate::configure::{Measures, SETTINGS, Takes};
        let machine = Machine::with_cores("xeon-gold-5320", 2);
        let mut events: Vec<Event> = Vec::new();
        for n in 0..300 {
            let order = [0, 0, 1, 9][n as usize % 4];
            events.push(event(1000 * n, (n % 2) as u16, EventKind::PageAlloc, 512 * n, order));
            if n >= 100 {
                let (before, order) = (n - 100, [0, 0, 1, 9][(n - 100) as usize % 4]);
                events.push(event(1000 * n + 500, 0, EventKind::PageFree, 512 * before, order));
            }
        }
        let trace = Trace { events, ..Trace::default() };
        let modelled = Modelled::new(&trace, &machine, 1).expect("it has CPUs enough");
        let figures = |setup: Setup| {
            let mut part = part(&machine, "it", 1);
            let setups = [("it".to_owned(), setup)];
            let simulated = modelled.simulate(&setups, 1, &mut part, &Progress::new("replay", 1));
            simulated.is_ok().then_some(part.event_log_hash)
        };
        let mut told = Vec::new();
        for preset in ["preset=linux_v6_1", "preset=framewright"] {
            let base =
                Setup::default().with(&Settings::from_pairs(preset).expect("pairs")).expect("a preset");
            let as_it_is = figures(base);
            for setting in SETTINGS.iter().filter(|setting| setting.name != "preset") {
                let values: Vec<String> = match setting.takes {
                    Takes::Words(words) => words.iter().map(|word| (*word).to_owned()).collect(),
                    Takes::Whole(least, most) => vec![least.to_string(), most.min(1 << 10).to_string()],
                    Takes::Flag => vec!["true".to_owned(), "false".to_owned()],
                    _ => vec!["1:2:3:4".to_owned()],
                };
                for value in values {
                    let changed = Settings::from_pairs(&format!("{}={value}", setting.name)).expect("a pair");
                    let setup = base.with(&changed).expect("it takes this");
                    if !setup.without_effect(&changed, Measures::ModelledTrace).is_empty() {
                        told.push(setting.name);
                        assert_eq!(figures(setup), as_it_is, "{preset}, {}={value}", setting.name);
                    }
                }
            }
        }
        told.dedup();
        assert!(told.len() > 8, "{told:?}");
    }

    /// What is between two operations may be work or a pause: the trace does not say. Models take it for work.
    #[test]
    fn where_cpus_share_cores_the_pace_is_said_to_be_slower() {
        let kind = |n: u64| if n.is_multiple_of(2) { EventKind::PageAlloc } else { EventKind::PageFree };
        let events: Vec<Event> = (0..200).map(|n| event(10_000 * n, 0, kind(n), 8, 0)).collect();
        let trace = Trace { events, ..Trace::default() };
        let machine = Machine::with_cores("skylake-2s", 2);
        let setups = [("framewright".to_owned(), Setup::default())];
        let cores = machine.cores_per_node * machine.nodes;
        let ran = |copies: u32| {
            let modelled = Modelled::new(&trace, &machine, copies as usize).expect("it has CPUs enough");
            let mut part = part(&machine, "framewright", 1);
            modelled.simulate(&setups, 1, &mut part, &Progress::new("replay", 1)).expect("simulated");
            let slower = part.notes.iter().any(|note| note.contains("share a core"));
            (part.find("elapsed_ms").expect("a metric").of("framewright")[0], slower)
        };
        let (alone, shared) = (ran(cores), ran(2 * cores));
        assert!(shared.0 > 1.3 * alone.0 && !alone.1 && shared.1, "{alone:?} {shared:?}");
    }

    /// Two CPUs free a huge page frame by frame, or in parts of several sizes, as a split one is.
    #[test]
    fn blocks_are_freed_in_parts() {
        for parts in [vec![0; 512], vec![0, 0, 1, 2, 3, 4, 5, 6, 7, 8]] {
            let mut events = Vec::new();
            for round in 0..20 {
                let mut now = 10_000_000 * round;
                events.push(event(now, 0, EventKind::PageAlloc, 512, 9));
                let mut at = 512;
                for (n, &order) in parts.iter().enumerate() {
                    now += 1000 * (n as u64 % 2);
                    events.push(event(now + 1_000_000, n as u16 % 2, EventKind::PageFree, at, order));
                    at += 1 << order;
                }
            }
            let all: Vec<&Event> = events.iter().collect();
            let copy = compile(&all, &[0, 1], PageCache::AsTraced, &mut 0);
            let ops = copy.threads.iter().map(Vec::len).sum::<usize>();
            assert_eq!((copy.slots, copy.pages, ops), (20, 512, events.len()));
            let value = simulated(events, "xeon-gold-5320", 1, "preset=linux_v6_16");
            assert!(value("free_ns") > 0.0);
        }
    }

    /// Where the recording has frees of lists only.
    #[test]
    fn frees_of_lists_are_frees_if_there_are_no_others() {
        let kind =
            |n: u64| if n.is_multiple_of(2) { EventKind::PageAlloc } else { EventKind::PageFreeBatched };
        let events: Vec<Event> = (0..2000).map(|n| event(200 * n, 0, kind(n), 8, 0)).collect();
        let value = simulated(events, "xeon-gold-5320", 1, "preset=linux_v6_16");
        assert!(value("free_ns") > 0.0);
    }

    #[test]
    fn the_shipped_compile_runs_on_a_machine_we_do_not_have_and_larger_lists_spare_locks() {
        let trace = &shipped::compile().expect("it is built in").0;
        let trace = Trace { events: trace.events[..60_000].to_vec(), ..trace.clone() };
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let modelled = Modelled::new(&trace, &machine, 2).expect("it has CPUs enough");
        let setup = |pairs: &str| {
            let settings = Settings::from_pairs(pairs).expect("pairs");
            (pairs.to_owned(), Setup::default().with(&settings).expect("settings"))
        };
        let setups =
            [setup("preset=linux_v5_4,batch=7,high=42"), setup("preset=linux_v5_4,batch=63,high=378")];
        let mut part = part(&machine, &setups[0].0, 1);
        modelled.simulate(&setups, 2, &mut part, &Progress::new("replay", 4)).expect("simulated");
        let value = |name: &str, n: usize| part.find(name).expect(name).of(&setups[n].0)[0];
        let locks = |n| value("zone_lock_acquisitions_per_page", n);
        assert!(locks(1) < locks(0) / 3.0, "{} {}", locks(0), locks(1));
        assert!(value("alloc_ns", 0) > 0.0 && value("in_allocator_percent", 0) < 100.0);
        let bound = |n: usize| value("saturated_at_cpus[lock=zone]", n);
        assert!(bound(1) > bound(0), "larger lists let more CPUs in: {} {}", bound(0), bound(1));
        let samples = part.find("saturated_at_cpus[lock=zone]").expect("it is there").of(&setups[1].0);
        let saturated = significant(median(samples), 3);
        let said = format!("{}: the zone lock saturates at {saturated} CPUs", setups[1].0);
        assert!(part.notes.iter().any(|note| note.starts_with(&said)), "{said}: {:?}", part.notes);
        let small = Machine::with_cores("xeon-gold-5320", 1);
        let error = Modelled::new(&trace, &small, 1).expect_err("too few CPUs").to_string();
        assert!(error.contains("the trace has 2 CPUs, and xeon-gold-5320 has 1: choose a larger"), "{error}");
        let error = Modelled::new(&trace, &machine, 100).expect_err("too many").to_string();
        assert!(error.contains("at most 13 copies fit"), "{error}");
        let mut leap = Trace { events: trace.events[..10].to_vec(), ..trace.clone() };
        leap.events[9].time_ns = u64::MAX;
        let error = Modelled::new(&leap, &machine, 1).expect_err("too long").to_string();
        assert!(error.contains("models run at most 100: record a shorter one"), "{error}");
    }
}
