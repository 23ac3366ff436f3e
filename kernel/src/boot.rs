//! From the firmware's map to a running allocator, by the steps of the core's boot room.
#![expect(unsafe_code, reason = "early memory becomes the allocator's own structures")]

use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, size_of};
use core::ops::Range;
use core::{ptr, slice};

use framewright::boot::early::{Early, Request, Where};
use framewright::boot::map::{self, Home, MemoryMap};
use framewright::boot::spans::Span;
use framewright::boot::zones::{Division, HandOver, Movable, NodePart, Part, Room, Rules};
use framewright::frame::Pageblock;
use framewright::pcp::Pcp;
use framewright::sync::QueueNode;
use framewright::units::SECTION_PAGES;
use framewright::zone::Zone;
use framewright::{Config, Frame, Memory, NodeId, Pfn, Plan, ZoneId, ZoneSpec, ZoneType};
use framewright_kernel::{args, pvh};

use crate::kernel::{Kernel, MAX_BAD, Page, Pages};
use crate::machine::{List, Machine};
use crate::metal::{Metal, MetalWord};
use crate::paging::{self, FRAMES, LARGE_PAGE, PAGE};
use crate::percpu::MAX_CPUS;
use crate::{arch, log};

/// Room for what boot itself writes down. A machine with more is refused with a line that says so.
const MAX_RANGES: usize = 512;
const MAX_ZONES: usize = 64;
const MAX_NODES: usize = crate::machine::MAX_NODES;
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

/// A value that boot makes once and that stays for ever.
struct Made<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: written once, by the boot CPU, before another one runs; shared only as `&T` after that.
unsafe impl<T> Sync for Made<T> {}

impl<T> Made<T> {
    const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// Once, before another CPU runs.
    unsafe fn put(&'static self, value: T) -> &'static T {
        // SAFETY: by the caller's promise.
        unsafe { (*self.0.get()).write(value) }
    }
}

static KERNEL: Made<Kernel> = Made::new();
static CPU_NODES: Made<[NodeId; MAX_CPUS]> = Made::new();

/// Boots.
pub(crate) fn run(machine: &'static Machine) -> &'static Kernel {
    machine.print();
    let mut kinds = [Span::default(); MAX_RANGES];
    let mut homes = [Span::default(); MAX_RANGES];
    let mut reserved = [Span::default(); MAX_RANGES];
    let mut map = MemoryMap::new(&mut kinds, &mut homes);
    read_map(&mut map, machine);
    let bad = plant_bad_frames(&mut map, machine);
    let mut early = Early::new(map, &mut reserved);
    reserve_image(&mut early);

    let nowhere = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 0 };
    let mut specs = [nowhere; MAX_ZONES];
    let mut parts = [Part { present: 0, deferred_from: Pfn(0) }; MAX_ZONES];
    let mut nodes =
        [NodePart { node: NodeId(0), present: 0, movable_from: None, first_deferred: None }; MAX_NODES];
    let movable = if args::find(machine.command_line(), "movable_node").is_some() {
        Movable::HotPluggable
    } else {
        Movable::None
    };
    let room = Room { specs: &mut specs, parts: &mut parts, nodes: &mut nodes };
    let rules = Rules { movable, ..Rules::default() };
    let division = Division::new(early.map(), rules, room).unwrap_or_else(|error| panic!("zones: {error}"));
    print_zones(&division);

    let cpu_nodes = cpu_nodes(machine);
    let config = Config::default();
    let plan = Plan::new(division.specs, cpu_nodes, &config).unwrap_or_else(|error| panic!("plan: {error}"));
    map_descriptors(&mut early, &division);
    let memory = tables(&mut early, &plan);
    let pages = Pages::new(division.specs, cpu_nodes, config, memory, None);
    let pages = pages.unwrap_or_else(|error| panic!("allocator: {error}"));
    // SAFETY: `run` is called once, by the boot CPU.
    let kernel = unsafe { KERNEL.put(Kernel { machine, pages, cpu_nodes, bad }) };

    let mut free = [const { Pfn(0)..Pfn(0) }; MAX_RANGES];
    log!("Early memory: {} KiB reserved of {} KiB", early.reserved_pages() * 4, early.map().pages() * 4);
    let hand_over = HandOver::new(early, &division, &mut free).unwrap_or_else(|error| panic!("{error}"));
    for range in hand_over.free() {
        kernel
            .pages
            .add_memory(range.start, range.end.0 - range.start.0)
            .unwrap_or_else(|error| panic!("adding {range:?}: {error}"));
    }
    kernel.pages.resize_pcps();
    kernel
}

const fn kind(kind: pvh::Kind) -> map::Kind {
    match kind {
        pvh::Kind::Usable => map::Kind::Usable,
        pvh::Kind::Acpi => map::Kind::AcpiTables,
        pvh::Kind::AcpiNvs => map::Kind::AcpiStorage,
        pvh::Kind::Unusable => map::Kind::Unusable,
        pvh::Kind::Reserved => map::Kind::Reserved,
    }
}

fn read_map(map: &mut MemoryMap<'_>, machine: &Machine) {
    for range in machine.ranges.iter() {
        map.add(range.start, range.bytes, kind(range.kind)).unwrap_or_else(|error| panic!("{error}"));
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

fn cpu_nodes(machine: &Machine) -> &'static [NodeId] {
    let mut nodes = [NodeId(0); MAX_CPUS];
    for (node, cpu) in nodes.iter_mut().zip(machine.cpus.iter()) {
        *node = cpu.node;
    }
    // SAFETY: `run` calls this once.
    unsafe { &CPU_NODES.put(nodes)[..machine.cpus.len()] }
}

/// Early memory: `pages` frames in a row.
fn early_pages(early: &mut Early<'_>, pages: u64, align: u64, node: NodeId) -> Pfn {
    // What is mapped one to one ends; memory behind that can be managed, but not used so early.
    let within = Pfn(0)..Pfn(paging::DIRECT_END / PAGE);
    let request = Request { align, within, place: Where::Preferably(node), ..Request::new(pages) };
    early.alloc(&request).unwrap_or_else(|error| panic!("early memory: {error}"))
}

fn zeroed_pages(early: &mut Early<'_>, pages: u64, align: u64, node: NodeId) -> Pfn {
    let pfn = early_pages(early, pages, align, node);
    // SAFETY: allocated just now, mapped, and whole pages.
    unsafe { arch::zero(crate::kernel::memory(pfn), (pages * PAGE) as usize) };
    pfn
}

/// Maps room for the descriptors of every section that has memory, on that memory's node. Sections without
/// memory have none: whoever reaches for a descriptor there gets a page fault, not a wrong answer.
fn map_descriptors(early: &mut Early<'_>, division: &Division<'_>) {
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
            let block = zeroed_pages(early, per_section, per_section, spec.node);
            let mut table = || zeroed_pages(early, 1, 1, NodeId(0));
            // SAFETY: the section's own place, mapped once; the frames were allocated for it.
            unsafe { paging::map(FRAMES + section * LARGE_PAGE, block, true, &mut table) };
            sections += 1;
            next = section + 1;
        }
    }
    log!("Frame descriptors: {sections} sections, {} MiB", sections * 2);
}

/// Carves slices out of one piece of early memory.
struct Carver {
    at: usize,
}

impl Carver {
    /// Room for `len` of `T`, counted only.
    fn count<T>(&mut self, len: usize) -> usize {
        let at = self.at.next_multiple_of(align_of::<T>().max(64));
        self.at = at + len * size_of::<T>();
        at
    }

    /// Room for `len` of `T`.
    fn take<T>(&mut self, len: usize) -> &'static mut [MaybeUninit<T>] {
        let start = ptr::with_exposed_provenance_mut(self.count::<T>(len));
        // SAFETY: `tables` has counted this room, which is early memory that nobody else has; no two slices
        // overlap. Any bytes are a `MaybeUninit`.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}

/// The allocator's own structures, in early memory; descriptors where `map_descriptors` has mapped them.
fn tables(early: &mut Early<'_>, plan: &Plan) -> Memory<'static, Metal, Page> {
    let mut room = Carver { at: 0 };
    room.count::<Pageblock<Metal>>(plan.pageblocks);
    room.count::<MetalWord>(plan.slots);
    room.count::<Pcp<'_, Metal>>(plan.pcps);
    room.count::<Zone<Metal>>(plan.zones);
    room.count::<QueueNode<Metal>>(plan.queue);
    room.count::<ZoneId>(plan.zonelist);
    let pages = (room.at as u64).div_ceil(PAGE);
    log!("Allocator tables: {} KiB, {} slots of per-CPU lists", pages * 4, plan.slots);
    let start = zeroed_pages(early, pages, 1, NodeId(0));
    let mut room = Carver { at: (start.0 * PAGE) as usize };
    let descriptors = (FRAMES as usize) + plan.base.0 as usize * size_of::<Frame<Metal, Page>>();
    // SAFETY: descriptors, pageblocks, words and queue nodes of this platform are valid as zeroes, which the
    // memory holds; of a descriptor any bytes are valid, and it is set up before its pageblock is present.
    // Descriptors of sections without memory are not mapped: the core reads none whose pageblock is absent. The
    // zonelist is numbers.
    unsafe {
        Memory {
            frames: slice::from_raw_parts(ptr::with_exposed_provenance(descriptors), plan.frames),
            pageblocks: room.take(plan.pageblocks).assume_init_ref(),
            slots: room.take(plan.slots).assume_init_ref(),
            pcps: room.take(plan.pcps),
            zones: room.take(plan.zones),
            queue: room.take(plan.queue).assume_init_ref(),
            zonelist: room.take(plan.zonelist).assume_init_mut(),
        }
    }
}
