//! Framewright as the frame allocator of ostd: what stands between its trait and the core.
#![expect(unsafe_code, reason = "a kernel vouches for its CPUs and its memory")]

use core::alloc::Layout;
use core::array;
use core::ptr::NonNull;

use framewright::platform::{Metal, PinnedTo};
use framewright::{
    Allocator, Config, Cpu, CpuId, Memory, Migratetype::Movable, NodeId, Order, Pfn, Plan, ZoneSpec, ZoneType,
};
use ostd::cpu::{PinCurrentCpu, num_cpus};
use ostd::irq::DisabledLocalIrqGuard;
use ostd::mm::{PAGE_SIZE, Paddr, frame::GlobalFrameAllocator};

// SAFETY: a frame is a power of two.
const ONE: Layout = unsafe { Layout::from_size_align_unchecked(PAGE_SIZE, PAGE_SIZE) };
const CPUS: usize = 64;
const NODES: &[NodeId; CPUS] = &[NodeId(0); CPUS];
/// Where ostd maps all memory.
const LINEAR: usize = 0xffff_8000_0000_0000;

type View = Cpu<'static, 'static, Metal>;
struct Static<T>(T);
// SAFETY: an allocator's words are atomics and its cells are behind its locks; a CPU uses its own view and pin, interrupts off.
unsafe impl<T> Send for Static<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Static<T> {}

/// Ranges that came before the first allocation, which ostd makes when it has given all.
static RANGES: spin::Mutex<([(Paddr, usize); 16], usize)> = spin::Mutex::new(([(0, 0); 16], 0));
static PINS: spin::Once<Static<[PinnedTo; CPUS]>> = spin::Once::new();
static ALLOCATOR: spin::Once<Static<Allocator<'static, Metal>>> = spin::Once::new();
/// One for each CPU: making one takes longer than an allocation.
static VIEWS: spin::Once<Static<[View; CPUS]>> = spin::Once::new();

fn pfn(addr: Paddr) -> Pfn {
    Pfn((addr / PAGE_SIZE) as u64)
}

#[cold]
fn make() -> Static<Allocator<'static, Metal>> {
    let mut ranges = RANGES.lock();
    let len = ranges.1;
    let ranges = &mut ranges.0[..len];
    let start =
        pfn(ranges.iter().map(|range| range.0).min().unwrap()).block_start(framewright::units::MAX_ORDER);
    let end = pfn(ranges.iter().map(|range| range.0 + range.1).max().unwrap());
    let zones = [ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start, pages: end.0 - start.0 }];
    let (nodes, config) = (&NODES[..num_cpus()], Config::default());
    let plan = Plan::new(&zones, nodes, &config).unwrap();
    let bytes = plan.layout::<Metal, ()>().unwrap().size().next_multiple_of(PAGE_SIZE);
    let room = ranges.iter_mut().find(|range| range.1 >= bytes && range.0 + bytes <= 1 << 32).unwrap();
    let memory = NonNull::new((LINEAR + room.0) as *mut u8).unwrap();
    *room = (room.0 + bytes, room.1 - bytes);
    // SAFETY: the range is ours, mapped, and cut off.
    let memory = unsafe {
        memory.write_bytes(0, bytes);
        Memory::carve(&plan, memory)
    };
    let allocator = Allocator::new(&zones, nodes, config, memory, None).unwrap();
    ranges
        .iter()
        .filter(|range| range.1 > 0)
        .for_each(|&(addr, size)| allocator.add_memory(pfn(addr), (size / PAGE_SIZE) as u64).unwrap());
    allocator.resize_pcps();
    Static(allocator)
}

#[cold]
fn views() -> Static<[View; CPUS]> {
    // SAFETY: a CPU uses its own, with interrupts off.
    let pins = PINS.call_once(|| {
        Static(array::from_fn(|n| unsafe { PinnedTo::new(CpuId(n.min(num_cpus() - 1) as u16)) }))
    });
    Static(array::from_fn(|n| ALLOCATOR.call_once(make).0.cpu(&pins.0[n])))
}

ostd::cpu_local_cell! {
    static VIEW: *const View = core::ptr::null();
}

/// This CPU's view; `None` before its first slow call.
#[inline(always)]
fn view() -> Option<&'static View> {
    // SAFETY: null, or this CPU's view, which is for ever. Callers have interrupts off.
    unsafe { VIEW.load().as_ref() }
}

fn find_view(guard: &DisabledLocalIrqGuard) -> &'static View {
    view().unwrap_or_else(|| {
        VIEW.store(&VIEWS.call_once(views).0[u32::from(guard.current_cpu()) as usize]);
        view().unwrap()
    })
}

/// Frames come back one by one from any CPU, so that blocks are split here.
#[inline(never)]
fn alloc_rest(guard: DisabledLocalIrqGuard, layout: Layout) -> Option<Paddr> {
    let cpu = find_view(&guard);
    let range = cpu.alloc_layout(layout, Movable).ok()?;
    // SAFETY: allocated just now.
    unsafe { cpu.split_range(range.clone()) }.unwrap();
    Some(range.start.0 as usize * PAGE_SIZE)
}

/// ostd also frees frames of its early allocator, which it never gave: memory to be added.
#[inline(never)]
fn free_rest(guard: DisabledLocalIrqGuard, addr: Paddr, size: usize) {
    let cpu = find_view(&guard);
    // SAFETY: ostd owns what it frees.
    if unsafe { cpu.free_range(pfn(addr)..pfn(addr + size)) }.is_err() {
        cpu.allocator().add_memory(pfn(addr), (size / PAGE_SIZE) as u64).expect("neither allocated nor new");
    }
}

pub struct Frames;

impl GlobalFrameAllocator for Frames {
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let guard = ostd::irq::disable_local();
        if layout == ONE
            && let Some(pfn) = view().and_then(|cpu| cpu.alloc_hit(Order::ZERO, Movable))
        {
            return Some(pfn.0 as usize * PAGE_SIZE);
        }
        alloc_rest(guard, layout)
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        let guard = ostd::irq::disable_local();
        if size != PAGE_SIZE || !view().is_some_and(|cpu| cpu.free_hit(pfn(addr), Order::ZERO)) {
            free_rest(guard, addr, size);
        }
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        if let Some(allocator) = ALLOCATOR.get() {
            return allocator.0.add_memory(pfn(addr), (size / PAGE_SIZE) as u64).unwrap();
        }
        let mut ranges = RANGES.lock();
        let len = ranges.1;
        ranges.0[len] = (addr, size);
        ranges.1 += 1;
    }
}
