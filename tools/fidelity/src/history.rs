//! What the kernel's per-CPU lists held, as far as the events of a recording tell.
//!
//! A list is a stack: a free puts a block at its head, an allocation takes the block at its head, a refill puts blocks
//! at its tail, and only if it is empty. The events name each block. So the blocks on a list are known from the first
//! event on, and so are three things that no event tells:
//!
//! * How many blocks a list held at the start: the blocks that came off it before its first refill, and had not come
//!   onto it since the start.
//! * Allocations without an event (`alloc_pages_bulk` has none; the kernel takes the stacks of its threads through it):
//!   where an allocation takes a block from below others, or a refill comes although blocks are left, those others were
//!   taken before.
//! * When `vmstat_update` let the lists shrink (Linux 6.7 and later, `decay_pcp_high`): once a second, but the second's
//!   beginning is not known. It is chosen so that `high`, with the growth that the refills tell, ends as
//!   `/proc/zoneinfo` at the end has it. A recording with the events `ticks` says when it ran on which CPU.
//!
//! Nothing here depends on a preset.

use std::collections::{HashMap, VecDeque};

use framewright_trace::trace::{Event, EventKind, Trace};
use framewright_workload::target::Mobility;

use super::zone::Zone;

/// Lists of one CPU in Linux from 5.13 on with huge pages: three types of orders 0 to 3, and of order 9 one for movable
/// blocks and one for all others.
pub(crate) const LISTS: usize = 14;

/// Largest batch of a refill or drain, in batches: `CONFIG_PCP_BATCH_SCALE_MAX` as the kernel's default has it.
const MOST_BATCHES: u32 = 32;

/// Nanoseconds between two calls of `vmstat_update`.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The list of an order and a type; `None` where an order has none.
#[must_use]
pub(crate) const fn list_of(order: u8, mobility: Mobility) -> Option<usize> {
    match (order, mobility) {
        (0..=3, Mobility::Unmovable) => Some(order as usize * 3),
        (0..=3, Mobility::Movable) => Some(order as usize * 3 + 1),
        (0..=3, Mobility::Reclaimable) => Some(order as usize * 3 + 2),
        (9, Mobility::Movable) => Some(13),
        (9, _) => Some(12),
        _ => None,
    }
}

/// Order and type of a list.
#[must_use]
pub(crate) const fn kind_of(list: usize) -> (u8, Mobility) {
    let mobility = match list % 3 {
        0 => Mobility::Unmovable,
        1 => Mobility::Movable,
        _ => Mobility::Reclaimable,
    };
    if list < 12 { ((list / 3) as u8, mobility) } else { (9, mobility) }
}

/// As the kernel numbers the first three migratetypes; what it has beside them waits on the movable lists.
#[must_use]
pub(crate) const fn mobility(migratetype: Option<u8>) -> Mobility {
    match migratetype {
        Some(0) => Mobility::Unmovable,
        Some(2) => Mobility::Reclaimable,
        _ => Mobility::Movable,
    }
}

/// Actions of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Allocated a block.
    Alloc,
    /// Freed one.
    Free,
    /// Took this number of blocks off its list without an event.
    Took(u32),
    /// Put a block onto its list without an event.
    Put,
}

/// One step of a CPU in the zone that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Time on the recording's clock.
    pub time_ns: u64,
    /// Which CPU.
    pub cpu: u16,
    /// Order of the blocks.
    pub order: u8,
    /// Type of their list.
    pub mobility: Mobility,
    /// First frame of the block in the trace; 0 where no event tells it.
    pub pfn: u64,
    /// The action.
    pub what: What,
}

/// Events on the CPUs of a recorded machine in one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Blocks on each list of each CPU at the start.
    pub start: Vec<[u32; LISTS]>,
    /// All steps in order.
    pub steps: Vec<Step>,
    /// Pages that were allocated without an event.
    pub hidden_pages: u64,
    /// Pages at the start that were on lists from which no thread took: they stand on one list in `start`.
    pub idle_pages: u64,
    /// Nanoseconds after the start at which lists first shrink; then every [`SECOND`].
    pub first_tick: Option<u64>,
    /// Times at which lists shrank, by CPU, if the recording has them.
    pub ticks: Vec<(u64, u16)>,
}

/// A block on a list.
#[derive(Clone, Copy)]
struct Block {
    pfn: u64,
    /// The next event of the block is a free: it leaves the list without one.
    leaves_hidden: bool,
}

/// One list of one CPU.
#[derive(Clone, Default)]
struct List {
    /// From the tail to the head. Below them lie blocks of before the start until the first refill.
    blocks: VecDeque<Block>,
    /// Blocks of before the start that have come off so far.
    initial: u32,
    /// Whether it was refilled: nothing of before the start is left.
    was_empty: bool,
}

/// What is followed for one CPU.
#[derive(Clone)]
struct Cpu {
    lists: [List; LISTS],
    /// The list that the running refill fills.
    refilling: Option<usize>,
    /// Pages that the running refill has brought, and those on all lists after each event: time, pages on the lists
    /// (relative to the start), pages by which a refill made `high` grow.
    counts: Vec<(u64, i64, u32)>,
    count: i64,
}

impl History {
    /// History of `zone` in a trace from `start` on; `end`: the zone at the recording's end, if that is known. O(n).
    #[must_use]
    pub(crate) fn of(trace: &Trace, zone: &Zone, start: u64, end: Option<&Zone>) -> Self {
        let inside = |event: &&Event| event.time_ns >= start && zone.holds(event);
        let events: Vec<&Event> = trace.events.iter().filter(inside).collect();
        let (types, leaves_hidden) = look_ahead(&events);
        let mut follow = Follow::new(zone);
        for (index, event) in events.iter().enumerate() {
            follow.event(event, types[index], leaves_hidden[index]);
        }
        let mut history = follow.finish(zone, start, end);
        history.ticks = ticks(trace);
        if !history.ticks.is_empty() {
            history.first_tick = None;
        }
        history
    }
}

/// When `vmstat_update` ran on which CPU, where the recording has the events `ticks`.
fn ticks(trace: &Trace) -> Vec<(u64, u16)> {
    let symbols = trace.notes.iter().filter(|note| note.name == "/proc/kallsyms");
    let mut lines = symbols.flat_map(|note| note.text.lines().map(str::split_whitespace));
    let address = lines.find_map(|mut words| {
        let address = words.next()?;
        (words.nth(1) == Some("vmstat_update")).then(|| u64::from_str_radix(address, 16).ok()).flatten()
    });
    let Some(address) = address else { return Vec::new() };
    let field = format!("function={address}");
    let of_it = |text: &str| text.split_whitespace().any(|word| word == field);
    let runs = trace.notes.iter().filter(|note| note.name == "workqueue_execute_start" && of_it(&note.text));
    runs.map(|note| (note.time_ns, note.cpu)).collect()
}

/// For each event the type of the list that it concerns, and whether the next event of its block is a free. A free does
/// not report a type: it is that under which the block leaves the list again, else the one that its pageblock has in
/// the nearest event.
fn look_ahead(events: &[&Event]) -> (Vec<Mobility>, Vec<bool>) {
    /// Frames of a pageblock.
    const PAGEBLOCK: u64 = 512;
    let mut types = vec![None; events.len()];
    let mut hidden = vec![false; events.len()];
    let mut next: HashMap<u64, (EventKind, Option<u8>)> = HashMap::new();
    let mut pageblocks: HashMap<u64, Option<u8>> = HashMap::new();
    for (index, event) in events.iter().enumerate().rev() {
        if event.kind == EventKind::PageFreeBatched {
            continue;
        }
        let following = next.insert(event.pfn, (event.kind, event.migratetype));
        hidden[index] = following.is_some_and(|(kind, _)| kind == EventKind::PageFree);
        let pageblock = event.pfn / PAGEBLOCK;
        types[index] = event.migratetype;
        if event.migratetype.is_some() {
            pageblocks.insert(pageblock, event.migratetype);
        } else {
            // A refill's event has the type that was asked for, of whatever pageblock.
            let leaves = following.filter(|(kind, _)| *kind != EventKind::PageAllocZoneLocked);
            let leaves = leaves.and_then(|(_, migratetype)| migratetype);
            types[index] = leaves.or_else(|| pageblocks.get(&pageblock).copied().flatten());
        }
    }
    pageblocks.clear();
    for (event, kind) in events.iter().zip(&mut types) {
        let pageblock = event.pfn / PAGEBLOCK;
        if event.migratetype.is_some() {
            pageblocks.insert(pageblock, event.migratetype);
        } else if kind.is_none() {
            *kind = pageblocks.get(&pageblock).copied().flatten();
        }
    }
    (types.into_iter().map(mobility).collect(), hidden)
}

/// Follows the lists through the events.
struct Follow {
    cpus: Vec<Cpu>,
    steps: Vec<Step>,
    /// On which list of which CPU a block lies.
    places: HashMap<u64, (u16, usize)>,
    hidden_pages: u64,
    batch: u32,
}

impl Follow {
    fn new(zone: &Zone) -> Self {
        let cpu = Cpu {
            lists: core::array::from_fn(|_| List::default()),
            refilling: None,
            counts: Vec::new(),
            count: 0,
        };
        Self {
            cpus: vec![cpu; zone.lists.len()],
            steps: Vec::new(),
            places: HashMap::new(),
            hidden_pages: 0,
            batch: zone.lists.first().map_or(1, |lists| lists.size.batch),
        }
    }

    fn event(&mut self, event: &Event, mobility: Mobility, leaves_hidden: bool) {
        if usize::from(event.cpu) >= self.cpus.len() || event.kind == EventKind::PageFreeBatched {
            return;
        }
        let block = Block { pfn: event.pfn, leaves_hidden };
        let Some(number) = list_of(event.order, mobility) else {
            return match event.kind {
                EventKind::PageAlloc => self.step(event, mobility, What::Alloc),
                EventKind::PageFree => self.step(event, mobility, What::Free),
                _ => {}
            };
        };
        let cpu = usize::from(event.cpu);
        let pages = 1_i64 << event.order;
        if event.kind != EventKind::PageAllocZoneLocked {
            self.cpus[cpu].refilling = None;
        }
        let mut grown = 0;
        match event.kind {
            EventKind::PageAlloc => {
                self.take(event, mobility, number);
                self.step(event, mobility, What::Alloc);
                self.cpus[cpu].count -= pages;
            }
            EventKind::PageFree => {
                self.step(event, mobility, What::Free);
                self.cpus[cpu].lists[number].blocks.push_back(block);
                self.places.insert(event.pfn, (event.cpu, number));
                self.cpus[cpu].count += pages;
            }
            EventKind::PageAllocZoneLocked => {
                if self.cpus[cpu].refilling.replace(number) != Some(number) {
                    let left = self.cpus[cpu].lists[number].blocks.len();
                    self.hide(event, mobility, number, left);
                    self.cpus[cpu].lists[number].was_empty = true;
                    grown = if event.order > 0 { self.batch } else { 0 };
                }
                // What a refill of single pages brings is what it makes `high` grow by; others grow it by a batch.
                grown += if event.order == 0 { 1 } else { 0 };
                self.cpus[cpu].lists[number].blocks.push_front(block);
                self.places.insert(event.pfn, (event.cpu, number));
                self.cpus[cpu].count += pages;
            }
            EventKind::PagePcpuDrain => {
                self.places.remove(&event.pfn);
                let list = &mut self.cpus[cpu].lists[number];
                match list.blocks.iter().position(|block| block.pfn == event.pfn) {
                    Some(place) => drop(list.blocks.remove(place)),
                    None if !list.was_empty => list.initial += 1,
                    None => {}
                }
                self.cpus[cpu].count -= pages;
            }
            EventKind::PageFreeBatched => {}
        }
        let cpu = &mut self.cpus[cpu];
        cpu.counts.push((event.time_ns, cpu.count, grown));
    }

    /// Takes the block of an allocation off its list.
    fn take(&mut self, event: &Event, mobility: Mobility, number: usize) {
        let cpu = usize::from(event.cpu);
        match self.places.remove(&event.pfn) {
            Some(place) if place == (event.cpu, number) => {
                // Whatever lies above it has left already.
                let blocks = &self.cpus[cpu].lists[number].blocks;
                let above = blocks.iter().rev().position(|block| block.pfn == event.pfn).unwrap_or(0);
                self.hide(event, mobility, number, above);
                self.cpus[cpu].lists[number].blocks.pop_back();
            }
            place => {
                if let Some((holder, list)) = place {
                    self.cpus[usize::from(holder)].lists[list].blocks.retain(|block| block.pfn != event.pfn);
                }
                let list = &self.cpus[cpu].lists[number];
                let above = list.blocks.iter().rev().take_while(|block| block.leaves_hidden).count();
                self.hide(event, mobility, number, above);
                let list = &mut self.cpus[cpu].lists[number];
                if list.blocks.is_empty() && !list.was_empty {
                    list.initial += 1;
                } else {
                    self.step(event, mobility, What::Put);
                    self.cpus[cpu].count += 1 << event.order;
                }
            }
        }
    }

    /// Takes blocks off the head of a list that have left it without an event.
    fn hide(&mut self, event: &Event, mobility: Mobility, number: usize, blocks: usize) {
        if blocks == 0 {
            return;
        }
        let cpu = &mut self.cpus[usize::from(event.cpu)];
        let list = &mut cpu.lists[number].blocks;
        for block in list.drain(list.len() - blocks..) {
            self.places.remove(&block.pfn);
        }
        let pages = (blocks as u64) << event.order;
        cpu.count -= pages as i64;
        self.hidden_pages += pages;
        self.step(event, mobility, What::Took(blocks as u32));
    }

    fn step(&mut self, event: &Event, mobility: Mobility, what: What) {
        let Event { time_ns, cpu, order, pfn, .. } = *event;
        self.steps.push(Step { time_ns, cpu, order, mobility, pfn, what });
    }

    fn finish(self, zone: &Zone, start: u64, end: Option<&Zone>) -> History {
        let mut history =
            History { hidden_pages: self.hidden_pages, steps: self.steps, ..History::default() };
        for (cpu, recorded) in self.cpus.iter().zip(&zone.lists) {
            let mut blocks: [u32; LISTS] = core::array::from_fn(|number| cpu.lists[number].initial);
            let known: u64 = (0..LISTS).map(|number| u64::from(blocks[number]) << kind_of(number).0).sum();
            let idle = u64::from(recorded.count).saturating_sub(known);
            // Reclaimable pages are the least likely to be taken; a list that was empty once had no others.
            if let Some(number) = [2, 0, 1].into_iter().find(|&number| !cpu.lists[number].was_empty) {
                blocks[number] += idle as u32;
                history.idle_pages += idle;
            }
            history.start.push(blocks);
        }
        history.first_tick = end.and_then(|end| first_tick(&self.cpus, zone, start, end));
        history
    }
}

/// When lists first shrank: the hundredth of a second for which `high` of all CPUs ends nearest to what it was at the
/// end, and near it the best millisecond. `None` if `high` does not move. O(100 n).
fn first_tick(cpus: &[Cpu], zone: &Zone, start: u64, end: &Zone) -> Option<u64> {
    const FINE: u64 = 1_000_000;
    const COARSE: u64 = 10 * FINE;
    let tuned = zone.lists.iter().all(|lists| lists.size.is_tuned());
    if !tuned || end.lists.len() != zone.lists.len() {
        return None;
    }
    let far = |&first: &u64| -> u64 {
        let lists = cpus.iter().zip(&zone.lists).zip(&end.lists);
        lists.map(|((cpu, from), to)| u64::from(high_at_end(cpu, from, start, first).abs_diff(to.high))).sum()
    };
    let coarse = (0..SECOND / COARSE).map(|step| step * COARSE).min_by_key(far)?;
    let near = coarse.saturating_sub(COARSE)..(coarse + COARSE).min(SECOND);
    near.step_by(FINE as usize).min_by_key(far)
}

/// `high` of a CPU at the end if its lists first shrink `first` nanoseconds after the start.
fn high_at_end(cpu: &Cpu, from: &super::zone::Lists, start: u64, first: u64) -> u32 {
    let size = from.size;
    let mut high = from.high;
    let mut count = i64::from(from.count);
    let mut tick = start + first;
    for &(time, change, grown) in &cpu.counts {
        while time >= tick {
            let kept = u32::try_from(count).unwrap_or(0).saturating_sub(size.batch * MOST_BATCHES);
            if high > size.high_min {
                high = kept.max(high - high / 8).max(size.high_min);
            }
            tick += SECOND;
        }
        high = size.clamp_high(high.saturating_add(grown));
        count = i64::from(from.count) + change;
    }
    high
}

#[cfg(test)]
mod tests {
    use framewright_trace::trace::Note;

    use super::*;
    use crate::zone::tests::ZONEINFO;
    use EventKind::{PageAlloc, PageAllocZoneLocked as Refill, PageFree, PagePcpuDrain as Drain};

    fn history(events: &[(EventKind, u64, u8, Option<u8>)]) -> History {
        let zone = Zone::largest(ZONEINFO).unwrap();
        let event =
            |(n, &(kind, pfn, order, migratetype)): (usize, &(EventKind, u64, u8, Option<u8>))| Event {
                time_ns: n as u64,
                pfn: zone.start + pfn,
                gfp: 0,
                pid: 1,
                comm: 0,
                cpu: 0,
                order,
                migratetype,
                kind,
            };
        let trace = Trace { events: events.iter().enumerate().map(event).collect(), ..Trace::default() };
        History::of(&trace, &zone, 0, None)
    }

    #[test]
    fn lists_and_their_kinds_match() {
        for list in 0..LISTS {
            let (order, mobility) = kind_of(list);
            assert_eq!(list_of(order, mobility), Some(list));
        }
        assert_eq!(list_of(9, Mobility::Reclaimable), Some(12));
        assert_eq!(list_of(4, Mobility::Movable), None);
    }

    #[test]
    fn what_a_list_held_is_what_came_off_before_its_first_refill() {
        let told = history(&[
            (PageAlloc, 1, 0, Some(1)),
            (PageFree, 1, 0, None),
            (PageAlloc, 1, 0, Some(1)),
            (PageAlloc, 2, 0, Some(1)),
            (PageAlloc, 9, 2, Some(0)),
            (Refill, 3, 0, Some(1)),
            (Refill, 4, 0, Some(1)),
            (PageAlloc, 3, 0, Some(1)),
            (Drain, 4, 0, Some(1)),
            (Refill, 5, 0, Some(1)),
        ]);
        assert_eq!(told.start[0][1], 2);
        assert_eq!(told.start[0][6], 1, "unmovable blocks of order 2");
        assert_eq!((told.hidden_pages, told.steps.len()), (0, 6));
        assert_eq!(told.idle_pages, (21036 - 2 - 4) + 34846);
        assert_eq!(told.start[0][2], 21036 - 2 - 4, "on a list that was never empty");
    }

    #[test]
    fn blocks_that_left_without_an_event_are_found() {
        // Two pages are refilled and taken unseen; the refill that follows tells. Then one from above another.
        let told = history(&[
            (Refill, 1, 0, Some(0)),
            (Refill, 2, 0, Some(0)),
            (PageAlloc, 1, 0, Some(0)),
            (Refill, 3, 0, Some(1)),
            (Refill, 4, 0, Some(0)),
            (Refill, 5, 0, Some(0)),
            (PageAlloc, 5, 0, Some(0)),
            (PageFree, 2, 0, None),
            (PageFree, 4, 0, None),
            (PageAlloc, 4, 0, Some(0)),
        ]);
        let hidden: Vec<_> = told
            .steps
            .iter()
            .filter(|step| matches!(step.what, What::Took(_)))
            .map(|step| (step.time_ns, step.what))
            .collect();
        assert_eq!(hidden, [(4, What::Took(1)), (6, What::Took(1))]);
        assert_eq!(told.hidden_pages, 2);
        assert!(told.start[0].iter().sum::<u32>() == 21036, "{:?}", told.start[0]);
    }

    #[test]
    fn a_block_from_elsewhere_is_put_first() {
        let told = history(&[
            (Refill, 1, 0, Some(0)),
            (Refill, 2, 0, Some(0)),
            (PageAlloc, 7, 0, Some(0)),
            (PageAlloc, 1, 0, Some(0)),
        ]);
        let what: Vec<_> = told.steps.iter().map(|step| step.what).collect();
        assert_eq!(what, [What::Put, What::Alloc, What::Alloc]);
    }

    #[test]
    fn recorded_ticks_are_those_of_one_function() {
        let note = |time_ns, cpu, name: &str, text: &str| Note {
            time_ns,
            cpu,
            pid: 1,
            comm: 0,
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let mut trace = Trace::default();
        trace.notes.push(note(5, 1, "workqueue_execute_start", "work=9 function=255"));
        trace.notes.push(note(6, 0, "workqueue_execute_start", "work=9 function=2550"));
        trace.notes.push(note(7, 0, "workqueue_execute_start", "work=9 function=255"));
        assert_eq!(ticks(&trace), [], "no line says what 255 is");
        trace.notes.push(note(
            0,
            0,
            "/proc/kallsyms",
            "00000000000000fe t other\n00000000000000ff t vmstat_update",
        ));
        assert_eq!(ticks(&trace), [(5, 1), (7, 0)]);
    }

    #[test]
    fn the_tick_is_where_high_ends_as_recorded() {
        let zone = Zone::largest(ZONEINFO).unwrap();
        let mut cpu = Follow::new(&zone).cpus.remove(0);
        // A refill of 1,000 pages at each tenth of a second, for three seconds.
        cpu.counts = (1..=30).map(|n| (n * SECOND / 10, -5000, 1000)).collect();
        let cpus = vec![cpu.clone(), cpu];
        let mut end = zone.clone();
        for first in [30_000_000, 430_000_000, 930_000_000] {
            for (lists, from) in end.lists.iter_mut().zip(&zone.lists) {
                lists.high = high_at_end(&cpus[0], from, 0, first);
            }
            let found = first_tick(&cpus, &zone, 0, &end).unwrap();
            assert_eq!(found * 10 / SECOND, first * 10 / SECOND, "in the same gap between refills");
        }
    }
}
