//! Framewright as the frame allocator of ostd: all code between its trait and the core.
#![expect(unsafe_code, reason = "a kernel vouches for its CPUs and its memory")]

use core::{alloc::Layout, ops::Range, ptr::null};

use framewright::kernel::{KernelAllocator, KernelCpu, frames_of, linear};
use framewright::{Config, CpuId, Migratetype::Movable, Order, Pfn};
use ostd::cpu::{PinCurrentCpu, num_cpus};
use ostd::irq::{DisabledLocalIrqGuard, disable_local};
use ostd::mm::{PAGE_SIZE, Paddr, frame::GlobalFrameAllocator};

/// Start of ostd's mapping of all memory, of which the first 4 GiB are there when the allocator is made.
const LINEAR: usize = 0xffff_8000_0000_0000;
const MAPPED: Pfn = Pfn((4 << 30) / PAGE_SIZE as u64);

static KERNEL: KernelAllocator<64> = KernelAllocator::new();
ostd::cpu_local_cell! {
    static VIEW: *const KernelCpu = null();
}

/// This CPU's view; `None` before its first slow call.
fn view() -> Option<&'static KernelCpu> {
    // SAFETY: null, or this CPU's view, which stays. Callers have interrupts off.
    unsafe { VIEW.load().as_ref() }
}

#[cold]
fn make_view(guard: &DisabledLocalIrqGuard) -> &'static KernelCpu {
    let memory = linear(LINEAR, PAGE_SIZE, MAPPED);
    // SAFETY: ostd boots on one CPU, gives its ranges away and maps those below 4 GiB. Interrupts are off.
    let view = unsafe {
        KERNEL.make(num_cpus(), Config::default(), memory).expect("ostd names enough memory");
        KERNEL.cpu(CpuId(u32::from(guard.current_cpu()) as u16)).expect("the CPU is one of them")
    };
    VIEW.store(view);
    view
}

#[inline(never)]
fn alloc_rest(guard: DisabledLocalIrqGuard, layout: Layout) -> Option<Paddr> {
    let range = view().unwrap_or_else(|| make_view(&guard)).alloc_split(layout, Movable).ok()?;
    Some(range.start.0 as usize * PAGE_SIZE)
}

/// ostd also frees frames of its early allocator, which it never gave.
#[inline(never)]
fn free_rest(guard: DisabledLocalIrqGuard, range: Range<Pfn>) {
    let cpu = view().unwrap_or_else(|| make_view(&guard));
    // SAFETY: ostd owns what it frees.
    unsafe { cpu.free_or_add(range) }.expect("neither allocated nor new");
}

pub struct Frames;

impl GlobalFrameAllocator for Frames {
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let guard = disable_local();
        let cpu = view().filter(|_| layout.size() == PAGE_SIZE && layout.align() <= PAGE_SIZE);
        match cpu.and_then(|cpu| cpu.alloc_hit(Order::ZERO, Movable)) {
            Some(pfn) => Some(pfn.0 as usize * PAGE_SIZE),
            None => alloc_rest(guard, layout),
        }
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        let guard = disable_local();
        let range = frames_of(addr, size, PAGE_SIZE);
        if size != PAGE_SIZE || !view().is_some_and(|cpu| cpu.free_hit(range.start, Order::ZERO)) {
            free_rest(guard, range);
        }
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        // SAFETY: ostd boots on one CPU, and gives the range away.
        if unsafe { KERNEL.give(frames_of(addr, size, PAGE_SIZE)) }.is_err() {
            self.dealloc(addr, size);
        }
    }
}
