//! The early part: the map, early allocation, and the memory of the allocator's own structures.
#![expect(unsafe_code, reason = "early memory becomes the allocator's own structures")]

use core::alloc::Layout;
use core::mem::size_of;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::{ptr, slice};

use framewright::boot::early::{Early, EarlyRequest};
use framewright::boot::map::{self, Home, MemoryMap};
use framewright::boot::spans::Span;
use framewright::boot::zones::{Buffers, Division, NodePart, Part, Rules};
use framewright::config::{Experiment, RefillCheck};
use framewright::defer::{DeferredMemory, ZoneCursor};
use framewright::units::SECTION_PAGES;
use framewright::{Config, Frame, Memory, NodeId, Pfn, Plan, ZoneSpec, ZoneType};
use framewright_kernel::args;

use crate::kernel::{MAX_BAD, Page};
use crate::machine::{List, Machine};
use crate::metal::Metal;
use crate::paging::{self, FRAMES, LARGE_PAGE, PAGE};
use crate::percpu::MAX_CPUS;
use crate::{arch, log};

/// Room for the tables that boot fills. A machine with more is refused with a line that names the table.
const MAX_RANGES: usize = 512;
const MAX_NODES: usize = crate::machine::MAX_NODES;
/// Limit on the number of zones.
const MAX_ZONES: usize = 64;
/// The first 64 KiB stay out of use: page 0, the trampoline, and what firmware keeps there.
const LOW_BYTES: u64 = 64 << 10;

const _: () = {
    let section = SECTION_PAGES * size_of::<Frame<Metal, Page>>() as u64;
    assert!(section == LARGE_PAGE, "the descriptors of a section fill one large page");
};

unsafe extern "C" {
    static kernel_start: u8;
    static kernel_end: u8;
}

/// Tables that boot fills. They stay: memory that is left for later is read long after the early part.
pub(super) struct Notes {
    kinds: [Span<map::Kind>; MAX_RANGES],
    homes: [Span<Home>; MAX_RANGES],
    reserved: [Span<()>; MAX_RANGES],
    free: [Range<Pfn>; MAX_RANGES],
    specs: [ZoneSpec; MAX_ZONES],
    parts: [Part; MAX_ZONES],
    nodes: [NodePart; MAX_NODES],
    cpu_nodes: [NodeId; MAX_CPUS],
}

impl Notes {
    pub(super) const fn new() -> Self {
        let nowhere = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 0 };
        let nobody = NodePart { node: NodeId(0), present: 0, movable_from: None, first_deferred: None };
        let home = Home { node: NodeId(0), hot_pluggable: false };
        Self {
            kinds: [Span { start: 0, end: 0, tag: map::Kind::Usable }; MAX_RANGES],
            homes: [Span { start: 0, end: 0, tag: home }; MAX_RANGES],
            reserved: [Span { start: 0, end: 0, tag: () }; MAX_RANGES],
            free: [const { Pfn(0)..Pfn(0) }; MAX_RANGES],
            specs: [nowhere; MAX_ZONES],
            parts: [Part { present: 0, deferred_from: Pfn(0) }; MAX_ZONES],
            nodes: [nobody; MAX_NODES],
            cpu_nodes: [NodeId(0); MAX_CPUS],
        }
    }
}

/// A machine's memory, brought into order, with what the allocator needs of it taken.
pub(super) struct Prepared {
    pub(super) division: Division<'static>,
    pub(super) free: &'static [Range<Pfn>],
    pub(super) config: Config,
    pub(super) memory: Memory<'static, Metal, Page>,
    pub(super) deferred: DeferredMemory<'static, Metal>,
    pub(super) cpu_nodes: &'static [NodeId],
    pub(super) bad: List<Pfn, MAX_BAD>,
}

/// Brings the firmware's map into order, divides it, and takes what the allocator needs.
///
/// # Panics
/// The map is refused, or has no memory; each with a line that names the reason.
pub(super) fn prepare(machine: &'static Machine, notes: &'static mut Notes) -> Prepared {
    let Notes { kinds, homes, reserved, free, specs, parts, nodes, cpu_nodes } = notes;
    let mut map = MemoryMap::new(kinds, homes);
    read_map(&mut map, machine);
    let bad = plant_bad_frames(&mut map, machine);
    let mut early = Early::new(map, reserved);
    reserve_image(&mut early);

    let room = Buffers { specs, parts, nodes };
    let is_given = |word| args::find(machine.command_line(), word).is_some();
    let movable_node = is_given("movable_node");
    let rules = Rules { movable_node, defer: !is_given("nodefer"), ..Rules::default() };
    let division = Division::new(early.map(), rules, room).unwrap_or_else(|error| panic!("zones: {error}"));
    print_zones(&division);

    for (node, cpu) in cpu_nodes.iter_mut().zip(machine.cpus.iter()) {
        *node = cpu.node;
    }
    let cpu_nodes = &cpu_nodes[..machine.cpus.len()];
    let refill_check = if is_given("check") { RefillCheck::AfterUnlock } else { RefillCheck::Off };
    let config =
        Config { experiment: Experiment { refill_check, ..Experiment::default() }, ..Config::default() };
    let plan = Plan::new(division.specs, cpu_nodes, &config).unwrap_or_else(|error| panic!("plan: {error}"));
    map_descriptors(&mut early, &division, is_given("prefault"));
    let (memory, deferred) = tables(&mut early, &plan, cpu_nodes.len());
    let (taken, all) = (early.reserved_pages(), early.map().pages());
    let count = division.free(&early).count();
    assert!(count <= free.len(), "there are more free ranges than the {} there is room for", free.len());
    let free = &mut free[..count];
    free.iter_mut().zip(division.free(&early)).for_each(|(place, range)| *place = range);
    let available: u64 = free.iter().map(|range| range.end.0 - range.start.0).sum();
    log!("Memory: {}K/{}K available, {}K reserved", available * 4, all * 4, taken * 4);
    Prepared { division, free, config, memory, deferred, cpu_nodes, bad }
}

fn read_map(map: &mut MemoryMap<'_>, machine: &Machine) {
    for range in machine.ranges.iter() {
        map.add(range.start, range.bytes, range.kind).unwrap_or_else(|error| panic!("{error}"));
    }
    for near in machine.memory.iter() {
        let home = Home { node: near.node, hot_pluggable: near.hotplug };
        map.add_node(near.start, near.end - near.start, home).unwrap_or_else(|error| panic!("{error}"));
    }
    let counts = map.counts();
    if counts.overlapped + counts.cut + counts.empty > 0 {
        log!(
            "Memory map: {} B said twice, {} ranges cut, {} empty",
            counts.overlapped,
            counts.cut,
            counts.empty
        );
    }
}

/// Plants the `bad=N` frames of the command line, spread over the memory above the first GiB (or 16 MiB, if that is
/// all), as if firmware had found them.
fn plant_bad_frames(map: &mut MemoryMap<'_>, machine: &Machine) -> List<Pfn, MAX_BAD> {
    let mut bad = List::new(Pfn(0));
    let wanted = args::number(machine.command_line(), "bad").unwrap_or(0).min(MAX_BAD as u64);
    let pages = map.pages();
    for n in 0..wanted {
        // Odd steps of a fixed fraction: no two alike, and few of them aligned.
        let mut skip = (pages / 64).max(4096) + n * (pages / (wanted + 1)) * 63 / 64 + 7 * n;
        let frame = map.memory().find_map(|piece| {
            let found = (skip < piece.pages()).then(|| piece.range.start.add(skip));
            skip = skip.saturating_sub(piece.pages());
            found
        });
        if let Some(frame) = frame {
            bad.push(frame);
        }
    }
    for frame in bad.iter() {
        map.add(frame.0 * PAGE, PAGE, map::Kind::Unusable).unwrap_or_else(|error| panic!("{error}"));
        log!("Memory: bad frame at {frame:?}");
    }
    bad
}

fn reserve_image(early: &mut Early<'_>) {
    let (start, end) = (&raw const kernel_start as u64, &raw const kernel_end as u64);
    log!("Kernel image: [mem {start:#018x}-{:#018x}]", end - 1);
    for (start, bytes) in [(0, LOW_BYTES), (start, end - start)] {
        let frames = early.map().touched(start, bytes);
        early.reserve(frames).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn print_zones(division: &Division<'_>) {
    log!("Zone ranges:");
    for (spec, part) in division.specs.iter().zip(division.parts) {
        log!(
            "  Node {} {:<8} [mem {:#018x}-{:#018x}] present {} deferred from {:?}",
            spec.node.0,
            spec.kind,
            spec.start.0 * PAGE,
            spec.end().0 * PAGE - 1,
            part.present,
            part.deferred_from
        );
    }
}

/// Early memory: `pages` frames in a row.
fn early_pages(early: &mut Early<'_>, pages: u64, align: u64, node: NodeId) -> Pfn {
    // What is mapped one to one ends; memory behind that can be managed, but not used so early.
    let within = Pfn(0)..Pfn(paging::DIRECT_END / PAGE);
    let request = EarlyRequest { align, within, near: Some(node), ..EarlyRequest::new(pages) };
    early.alloc(&request).unwrap_or_else(|error| panic!("early memory: {error}"))
}

fn zeroed_pages(early: &mut Early<'_>, pages: u64, align: u64, node: NodeId) -> Pfn {
    let pfn = early_pages(early, pages, align, node);
    // SAFETY: allocated just now, mapped, and whole pages.
    unsafe { arch::zero(crate::kernel::memory(pfn), (pages * PAGE) as usize) };
    pfn
}

/// Maps room for the descriptors of every section that has memory, on that memory's node. Sections without
/// memory have none: code that reads a descriptor there gets a page fault, not a wrong answer.
///
/// They may hold anything: each is cleared when its memory is initialised. With `touched` the emulator's host is
/// made to provide the memory now, so that it does not do so while that is timed.
fn map_descriptors(early: &mut Early<'_>, division: &Division<'_>, touched: bool) {
    let per_section = LARGE_PAGE / PAGE;
    let mut sections = 0;
    let mut next = 0;
    for spec in division.specs {
        let first = (spec.start.0 / SECTION_PAGES).max(next);
        for section in first..spec.end().0.div_ceil(SECTION_PAGES) {
            let frames = Pfn(section * SECTION_PAGES)..Pfn((section + 1) * SECTION_PAGES);
            let has_memory = |range: &Range<Pfn>| range.start < frames.end && frames.start < range.end;
            if !early.map().memory().any(|piece| has_memory(&piece.range)) {
                continue;
            }
            let block = early_pages(early, per_section, per_section, spec.node);
            for page in (block.0..block.0 + per_section).take_while(|_| touched) {
                // SAFETY: early memory, allocated just now.
                unsafe { crate::kernel::memory(Pfn(page)).write_volatile(0) };
            }
            let mut table = || zeroed_pages(early, 1, 1, NodeId(0));
            // SAFETY: the section's own place, mapped once; the frames were allocated for it.
            unsafe { paging::map(FRAMES + section * LARGE_PAGE, block, true, &mut table) };
            sections += 1;
            next = section + 1;
        }
    }
    log!("Frame descriptors: {sections} sections, {} MiB", sections * 2);
}

/// The allocator's own structures, in early memory; descriptors where `map_descriptors` has mapped them.
fn tables(
    early: &mut Early<'_>,
    plan: &Plan,
    cpus: usize,
) -> (Memory<'static, Metal, Page>, DeferredMemory<'static, Metal>) {
    let layout = plan.tables_layout::<Metal>().expect("tables fit the address space");
    let (layout, cursors) = layout.extend(array::<ZoneCursor<'_, Metal>>(plan.zones)).expect("as above");
    let (layout, slots) = layout.extend(array::<AtomicU64>(cpus)).expect("as above");
    let pages = (layout.size() as u64).div_ceil(PAGE);
    log!("Allocator tables: {} KiB, {} slots of per-CPU lists", pages * 4, plan.slots);
    let start = crate::kernel::memory(zeroed_pages(early, pages, 1, NodeId(0)));
    let descriptors = (FRAMES as usize) + plan.base.0 as usize * size_of::<Frame<Metal, Page>>();
    // SAFETY: early memory, zeroed, of the layouts' size and alignment. Words of this platform are `AtomicU64`; any
    // bytes are a valid descriptor, and it is set up before its pageblock is present. Descriptors of sections without
    // memory are not mapped: the core reads none whose pageblock is absent.
    unsafe {
        let frames = slice::from_raw_parts(ptr::with_exposed_provenance(descriptors), plan.frames);
        let memory = Memory::carve_beside(plan, frames, NonNull::new(start).expect("not page 0"));
        let zones = slice::from_raw_parts_mut(start.add(cursors).cast(), plan.zones);
        (memory, DeferredMemory { zones, slots: slice::from_raw_parts(start.add(slots).cast(), cpus) })
    }
}

fn array<T>(len: usize) -> Layout {
    Layout::array::<T>(len).expect("tables fit the address space")
}
