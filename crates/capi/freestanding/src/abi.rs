//! What C calls, and what it gives.
#![expect(unsafe_code, reason = "C passes addresses")]

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use framewright::platform::PinnedTo;
use framewright::{
    Allocator, Config, CpuId, Memory, Migratetype, NodeId, Order, Pfn, Plan, Platform, ZoneSpec, ZoneType,
};

unsafe extern "C" {
    safe fn fwk_relax();
    safe fn fwk_now_ns() -> u64;
    safe fn fwk_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    fwk_panic()
}

/// The kernel's CPUs.
struct Metal;

// SAFETY: words are the machine's own, cells are plain memory, `clear` does nothing and says so.
unsafe impl Platform for Metal {
    type Word = AtomicU64;
    type Cell<T> = UnsafeCell<T>;
    type Pin = PinnedTo;

    fn relax() {
        fwk_relax();
    }

    fn now_ns() -> u64 {
        fwk_now_ns()
    }
}

/// `struct fwk_machine`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Machine {
    first: u64,
    frames: u64,
    cpus: u32,
}

/// Head of the tables. They borrow from the memory after it.
pub struct Fwk(Allocator<'static, Metal>);

const NODE: NodeId = NodeId(0);
/// CPUs are all on node 0: one row for all machines.
static CPU_NODES: [NodeId; u16::MAX as usize] = [NODE; u16::MAX as usize];

fn describe(machine: &Machine) -> Option<([ZoneSpec; 1], &'static [NodeId], Plan)> {
    let start = Pfn(machine.first);
    let zones = [ZoneSpec { node: NODE, kind: ZoneType::Normal, start, pages: machine.frames }];
    let cpus = CPU_NODES.get(..usize::try_from(machine.cpus).ok()?)?;
    let plan = Plan::new(&zones, cpus, &Config::framewright()).ok()?;
    Some((zones, cpus, plan))
}

/// Layout of what C gives memory for, and the offset of the allocator's tables in it.
fn layout(plan: &Plan) -> Option<(Layout, usize)> {
    Layout::new::<Fwk>().extend(plan.layout::<Metal, ()>().ok()?).ok()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_bytes(machine: *const Machine) -> u64 {
    // SAFETY: NULL or valid, by the caller's promise.
    let plan = unsafe { machine.as_ref() }.and_then(describe);
    let layout = plan.and_then(|(_, _, plan)| layout(&plan));
    layout.map_or(0, |(layout, _)| layout.size().next_multiple_of(4096) as u64)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_init(memory: *mut u8, machine: *const Machine) -> *mut Fwk {
    // SAFETY: NULL or valid, by the caller's promise.
    let Some((zones, cpus, plan)) = unsafe { machine.as_ref() }.and_then(describe) else {
        return core::ptr::null_mut();
    };
    if memory.is_null() || !memory.addr().is_multiple_of(4096) {
        return core::ptr::null_mut();
    }
    let (Some((_, tables)), Some(start)) = (layout(&plan), NonNull::new(memory)) else {
        return core::ptr::null_mut();
    };
    let fwk = memory.cast::<Fwk>();
    // SAFETY: the memory is as large as `fwk_bytes` says, zeroed, aligned to a page, and the allocator's for good.
    // Words are `AtomicU64`.
    let tables = unsafe { Memory::carve(&plan, start.add(tables)) };
    match Allocator::new(&zones, cpus, Config::framewright(), tables, None) {
        Ok(allocator) => {
            // SAFETY: room for it, as above.
            unsafe { fwk.write(Fwk(allocator)) };
            fwk
        }
        Err(_) => core::ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_add(fwk: *const Fwk, first: u64, frames: u64) -> i32 {
    // SAFETY: NULL or from `fwk_init`, by the caller's promise.
    let added = unsafe { fwk.as_ref() }.is_some_and(|fwk| fwk.0.add_memory(Pfn(first), frames).is_ok());
    if added { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_ready(fwk: *const Fwk) {
    // SAFETY: as above.
    if let Some(fwk) = unsafe { fwk.as_ref() } {
        fwk.0.resize_pcps();
    }
}

/// The allocator and the pin of a CPU that it has.
unsafe fn as_cpu<'a>(fwk: *const Fwk, cpu: u32) -> Option<(&'a Fwk, PinnedTo)> {
    // SAFETY: NULL or from `fwk_init`, by the caller's promise.
    let fwk = unsafe { fwk.as_ref() }?;
    let cpu = CpuId(u16::try_from(cpu).ok()?);
    // SAFETY: the kernel makes one call at a time as one CPU, by the header's rules; each call has one pin.
    (cpu.index() < fwk.0.cpus()).then(|| (fwk, unsafe { PinnedTo::new(cpu) }))
}

fn order_of(order: u32) -> Option<Order> {
    Order::new(u8::try_from(order).ok()?)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_alloc(fwk: *const Fwk, cpu: u32, order: u32, kind: u32) -> u64 {
    let kinds = [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable];
    // SAFETY: by the header's rules.
    let (Some((fwk, pin)), Some(order), Some(&kind)) =
        (unsafe { as_cpu(fwk, cpu) }, order_of(order), kinds.get(kind as usize))
    else {
        return u64::MAX;
    };
    fwk.0.cpu(&pin).alloc(order, kind).map_or(u64::MAX, |pfn| pfn.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_free(fwk: *const Fwk, cpu: u32, frame: u64, order: u32) -> i32 {
    // SAFETY: by the header's rules.
    let (Some((fwk, pin)), Some(order)) = (unsafe { as_cpu(fwk, cpu) }, order_of(order)) else { return -1 };
    if fwk.0.cpu(&pin).free(Pfn(frame), order).is_ok() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_drain(fwk: *const Fwk, cpu: u32) {
    // SAFETY: by the header's rules.
    if let Some((fwk, pin)) = unsafe { as_cpu(fwk, cpu) } {
        fwk.0.cpu(&pin).drain();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_free_frames(fwk: *const Fwk) -> u64 {
    // SAFETY: NULL or from `fwk_init`, by the caller's promise.
    unsafe { fwk.as_ref() }.map_or(0, |fwk| fwk.0.free_pages() + fwk.0.pcp_pages())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwk_verify(fwk: *const Fwk) -> u64 {
    // SAFETY: as above.
    let account = unsafe { fwk.as_ref() }.and_then(|fwk| fwk.0.verify().ok());
    account.map_or(u64::MAX, |account| account.allocated)
}
