//! Framewright as the frame allocator of ostd: all code between its trait and the core.
#![expect(unsafe_code, reason = "a kernel vouches for its CPUs and its memory")]

use core::alloc::Layout;
use core::array;
use core::ops::Range;
use core::ptr::NonNull;

use framewright::platform::{Metal, PinnedTo};
use framewright::{Allocator, Config, Cpu, CpuId, Migratetype::Movable, NodeId, Order, Pfn};
use ostd::cpu::{PinCurrentCpu, num_cpus};
use ostd::irq::DisabledLocalIrqGuard;
use ostd::mm::{PAGE_SIZE, Paddr, frame::GlobalFrameAllocator};
use spin::Once;

// SAFETY: a frame is a power of two.
const ONE: Layout = unsafe { Layout::from_size_align_unchecked(PAGE_SIZE, PAGE_SIZE) };
const CPUS: usize = 64;
static NODES: [NodeId; CPUS] = [NodeId(0); CPUS];
/// Start of ostd's mapping of all memory, of which the first 4 GiB are there when the allocator is made.
const LINEAR: usize = 0xffff_8000_0000_0000;

type View = Cpu<'static, 'static, Metal>;
struct Static<T>(T);
// SAFETY: an allocator's words are atomics and its cells are behind its locks; a CPU uses its own view and pin,
// interrupts off.
unsafe impl<T> Send for Static<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Static<T> {}

/// Ranges that came before the first allocation, which ostd makes when it has given all; and how many.
static RANGES: spin::Mutex<([Range<Pfn>; 16], usize)> = spin::Mutex::new(([const { Pfn(0)..Pfn(0) }; 16], 0));
static ALLOCATOR: Once<Static<Allocator<'static, Metal>>> = Once::new();
static PINS: Once<Static<[PinnedTo; CPUS]>> = Once::new();
/// One for each CPU: making one takes longer than an allocation.
static VIEWS: Once<Static<[View; CPUS]>> = Once::new();
ostd::cpu_local_cell! {
    static VIEW: *const View = core::ptr::null();
}

fn frames(addr: Paddr, size: usize) -> Range<Pfn> {
    Pfn((addr / PAGE_SIZE) as u64)..Pfn(((addr + size) / PAGE_SIZE) as u64)
}

/// This CPU's view; `None` before its first slow call.
#[inline(always)]
fn view() -> Option<&'static View> {
    // SAFETY: null, or this CPU's view, which stays. Callers have interrupts off.
    unsafe { VIEW.load().as_ref() }
}

#[cold]
fn make() -> Static<Allocator<'static, Metal>> {
    let (ranges, len) = &mut *RANGES.lock();
    let address = |range: &Range<Pfn>| {
        let start = (LINEAR + range.start.0 as usize * PAGE_SIZE) as *mut u8;
        NonNull::new(start).filter(|_| range.end <= Pfn((1 << 32) / PAGE_SIZE as u64))
    };
    // SAFETY: ostd gives the ranges away, and maps those below 4 GiB.
    Static(
        unsafe { Allocator::over(&mut ranges[..*len], &NODES[..num_cpus()], Config::default(), address) }
            .unwrap(),
    )
}

#[cold]
fn make_view(guard: &DisabledLocalIrqGuard) -> &'static View {
    let views = VIEWS.call_once(|| {
        // SAFETY: a CPU uses its own, with interrupts off.
        let pin = |n: usize| unsafe { PinnedTo::new(CpuId(n.min(num_cpus() - 1) as u16)) };
        let pins = &PINS.call_once(|| Static(array::from_fn(pin))).0;
        Static(array::from_fn(|n| ALLOCATOR.call_once(make).0.cpu(&pins[n])))
    });
    let view = &views.0[u32::from(guard.current_cpu()) as usize];
    VIEW.store(view);
    view
}

#[inline(never)]
fn alloc_rest(guard: DisabledLocalIrqGuard, layout: Layout) -> Option<Paddr> {
    let range = view().unwrap_or_else(|| make_view(&guard)).alloc_split(layout, Movable).ok()?;
    Some(range.start.0 as usize * PAGE_SIZE)
}

/// ostd also frees frames of its early allocator, which it never gave: memory to be added.
#[inline(never)]
fn free_rest(guard: DisabledLocalIrqGuard, range: Range<Pfn>) {
    let cpu = view().unwrap_or_else(|| make_view(&guard));
    // SAFETY: ostd owns what it frees.
    if unsafe { cpu.free_range(range.clone()) }.is_err() {
        cpu.allocator()
            .add_memory(range.start, range.end.0 - range.start.0)
            .expect("neither allocated nor new");
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
        let range = frames(addr, size);
        if size != PAGE_SIZE || !view().is_some_and(|cpu| cpu.free_hit(range.start, Order::ZERO)) {
            free_rest(guard, range);
        }
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        if ALLOCATOR.get().is_some() {
            return self.dealloc(addr, size);
        }
        let (ranges, len) = &mut *RANGES.lock();
        ranges[*len] = frames(addr, size);
        *len += 1;
    }
}
