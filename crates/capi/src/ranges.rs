//! What a thread asks for besides single blocks of any place: a given block, a given range, many together, zeroes;
//! frames whose memory is bad; free memory that a hook is told of; allocations that fail on purpose.
#![expect(unsafe_code, reason = "C passes pointers and functions")]

use core::ffi::c_void;
use core::ops::Range;
use core::slice;
use core::time::Duration;

use framewright_host::{FaultRule, Flags, HwpoisonError, Hwpoisoned, Order, Pfn, Request};

use crate::arena::{FW_NO_FRAME, FW_ORDERS};
use crate::cpu::{allocated, kind, order_of};
use crate::handle::{arena_of, cpu_of, fw_arena, fw_cpu, lend};
use crate::status::{self, Failure, fw_error, fw_status, of_place, plain, tried};

/// Allocates the block of `order` at frame `pfn`, and no other; it counts as unmovable. If it cannot be had, the
/// thread's last error names what is in the way (`FW_WHY_IN_USE` and those after it). O(orders), and what drains take.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc_at(cpu: *mut fw_cpu, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let order = tried!(order_of(order));
    cpu.alloc_at(Pfn(pfn), order).map_or_else(|error| of_place(&error).tell(error), |()| fw_status::FW_OK)
}

/// As `fw_alloc`, and the block holds zeroes. O(bytes), unless free memory holds them anyway (`FW_INIT_ON_FREE`).
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc_zeroed(cpu: *mut fw_cpu, order: u32, migratetype: u32) -> u64 {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) }, FW_NO_FRAME);
    let (order, migratetype) = tried!(kind(order, migratetype), FW_NO_FRAME);
    allocated(cpu.alloc_with(&Request::new(order, migratetype).with(Flags::ZERO)))
}

/// Allocates up to `count` blocks into `frames` and returns how many; fewer if memory runs short, and then the thread's
/// last error says what lacked. A pageblock's worth in each hold of a zone's lock.
///
/// # Safety
/// `cpu` is NULL or was a handle, and `frames` is NULL or has room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc_bulk(
    cpu: *mut fw_cpu,
    order: u32,
    migratetype: u32,
    frames: *mut u64,
    count: usize,
) -> usize {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) }, 0);
    let (order, migratetype) = tried!(kind(order, migratetype), 0);
    if frames.is_null() {
        status::null("the place for the frames is NULL");
        return 0;
    }
    // The caller's memory need not be initialised.
    for n in 0..count {
        // SAFETY: room for `count`, by the caller's promise.
        unsafe { frames.add(n).write(FW_NO_FRAME) };
    }
    // SAFETY: written just now; a `Pfn` is a number, by its layout.
    let out: &mut [Pfn] = unsafe { slice::from_raw_parts_mut(frames.cast(), count) };
    let mut got = 0;
    while got < count {
        got += cpu.alloc_bulk(order, migratetype, &mut out[got..]);
        if got == count {
            break;
        }
        // Why there are no more, unless a thread has freed one since.
        out[got] = Pfn(allocated(cpu.alloc(order, migratetype)));
        if out[got].0 == FW_NO_FRAME {
            break;
        }
        got += 1;
    }
    got
}

/// Frees the `count` blocks in `frames`, all of one order, past the lists of the CPU and in few holds of a zone's lock.
/// Returns how many were freed. Those that are refused stay as they are; the thread's last error says why the first of
/// them was.
///
/// # Safety
/// As `fw_free` for each, and `frames` is NULL or holds `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_bulk(
    cpu: *mut fw_cpu,
    order: u32,
    frames: *const u64,
    count: usize,
) -> usize {
    // SAFETY: by the caller's promise.
    let (Ok(cpu), Ok(order)) = (unsafe { cpu_of(cpu) }, order_of(order)) else { return 0 };
    if frames.is_null() {
        status::null("the frames are NULL");
        return 0;
    }
    // SAFETY: by the caller's promise; a `Pfn` is a number, by its layout.
    let blocks: &[Pfn] = unsafe { slice::from_raw_parts(frames.cast(), count) };
    // SAFETY: by the caller's promise.
    match unsafe { cpu.free_bulk(order, blocks) } {
        Ok(()) => count,
        Err(error) => {
            status::fail(Failure::Free(error.first));
            count - error.refused
        }
    }
}

fn range(pfn: u64, pages: u64) -> Result<Range<Pfn>, fw_status> {
    match pfn.checked_add(pages) {
        Some(end) if pages > 0 => Ok(Pfn(pfn)..Pfn(end)),
        _ => Err(status::argument("the range is empty, or wraps around")),
    }
}

/// Allocates `pages` frames from `pfn` on, whichever they are. What is movable there is moved away, if `fw_set_migrate`
/// has said how. The range is allocated as blocks, each as large as its place and the range let it be.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc_contig(cpu: *mut fw_cpu, pfn: u64, pages: u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let range = tried!(range(pfn, pages));
    status::ended(cpu.alloc_contig_range(range).map_err(|error| of_place(&error.place).tell(error)))
}

/// Frees what `fw_alloc_contig` has allocated, if none of it was split or freed.
///
/// # Safety
/// As `fw_free`, for all of the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_contig(cpu: *mut fw_cpu, pfn: u64, pages: u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let range = tried!(range(pfn, pages));
    // SAFETY: by the caller's promise.
    status::freed(unsafe { cpu.free_contig_range(range) })
}

/// A run of contiguous frames.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_run {
    /// The first frame.
    pub pfn: u64,
    /// Number of frames.
    pub pages: u64,
}

/// Allocates `pages` frames in few runs of contiguous frames, writes these to `runs`, ascending, and returns how many
/// there are, at most `room`. They have fewer frames if there is no room for more runs, or if memory runs short; then
/// the thread's last error says what lacked. A run is freed by `fw_free_range`, in any parts. O(runs), and O(runs × log
/// runs) to sort them.
///
/// # Safety
/// `cpu` is NULL or was a handle, and `runs` is NULL or has room for `room` runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc_runs(
    cpu: *mut fw_cpu,
    pages: u64,
    migratetype: u32,
    runs: *mut fw_run,
    room: usize,
) -> usize {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) }, 0);
    let (order, migratetype) = tried!(kind(0, migratetype), 0);
    if runs.is_null() {
        status::null("the place for the runs is NULL");
        return 0;
    }
    // No run is empty.
    let most = pages.min(cpu.arena().counts().managed) as usize;
    let mut out = vec![Pfn(0)..Pfn(0); room.min(most)];
    let (mut len, mut left) = (0, pages);
    for run in cpu.alloc_runs(pages, migratetype, &mut out) {
        let run = fw_run { pfn: run.start.0, pages: run.end.0 - run.start.0 };
        // SAFETY: there are at most `room`, by the caller's promise.
        unsafe { runs.add(len).write(run) };
        (len, left) = (len + 1, left - run.pages);
    }
    if left > 0 && len < room {
        // Why there are no more, unless a thread has freed one since.
        let pfn = allocated(cpu.alloc(order, migratetype));
        if pfn != FW_NO_FRAME {
            // SAFETY: it was allocated just now.
            let freed = unsafe { cpu.free(Pfn(pfn), order) };
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
    len
}

/// Frees `pages` frames from `pfn` on, whatever blocks they were allocated in: of a block that reaches beyond them, the
/// part inside. If a frame is refused, the thread's last error says which and why; all frames before it are free.
///
/// # Safety
/// As `fw_free`, for all of the range. Of a block that is cut, the owners of the other parts make no call at the same
/// time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_range(cpu: *mut fw_cpu, pfn: u64, pages: u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let range = tried!(range(pfn, pages));
    // SAFETY: by the caller's promise.
    status::freed(unsafe { cpu.free_range(range) })
}

/// Outcome of `fw_hwpoison`: the frame was free, and is out of use.
pub const FW_HWPOISON_WITHDRAWN: u32 = 0;
/// It is in use, in the block of `order` at `pfn`, and goes out of use when that is freed.
pub const FW_HWPOISON_IN_USE: u32 = 1;
/// It is on the list of CPU `cpu`, and goes out of use when it comes back from there.
pub const FW_HWPOISON_LISTED: u32 = 2;

/// Outcome of `fw_hwpoison`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_hwpoisoned {
    /// One of `FW_HWPOISON_…`.
    pub what: u32,
    /// With `FW_HWPOISON_IN_USE`: the block's order.
    pub order: u32,
    /// With `FW_HWPOISON_IN_USE`: the block's first frame.
    pub pfn: u64,
    /// With `FW_HWPOISON_LISTED`: the number of that CPU.
    pub cpu: u32,
}

fn hwpoison_failed(pfn: u64, error: HwpoisonError) -> fw_status {
    let status = match error {
        HwpoisonError::Foreign => fw_status::FW_ERR_ARGUMENT,
        HwpoisonError::NotReady => fw_status::FW_ERR_BUSY,
        HwpoisonError::Already | HwpoisonError::NotPoisoned | HwpoisonError::NoWords => {
            fw_status::FW_ERR_REFUSED
        }
    };
    fw_error { pfn, ..fw_error::of(status) }.tell(error)
}

/// Takes a frame out of use whose memory is bad: immediately if it is free, else as soon as its block is freed. Telling
/// its user is the caller's affair. Says in `out`, if that is not NULL, what has become of it.
///
/// If a thread that stays in a call, as in a reclaimer, frees or splits the block at this moment, the mark may be lost:
/// the frame is handed out again.
///
/// # Safety
/// `cpu` is NULL or was a handle; `out` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_hwpoison(cpu: *mut fw_cpu, pfn: u64, out: *mut fw_hwpoisoned) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let mut done = fw_hwpoisoned::default();
    match tried!(cpu.hwpoison(Pfn(pfn)).map_err(|error| hwpoison_failed(pfn, error))) {
        Hwpoisoned::Withdrawn => done.what = FW_HWPOISON_WITHDRAWN,
        Hwpoisoned::InUse { pfn, order } => {
            (done.what, done.order, done.pfn) = (FW_HWPOISON_IN_USE, order.get().into(), pfn.0);
        }
        Hwpoisoned::Listed(cpu) => (done.what, done.cpu) = (FW_HWPOISON_LISTED, cpu.0.into()),
    }
    // SAFETY: by the caller's promise.
    unsafe { status::give(out, done) };
    fw_status::FW_OK
}

/// Takes back `fw_hwpoison`.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_unpoison(cpu: *mut fw_cpu, pfn: u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    cpu.unpoison(Pfn(pfn)).map_or_else(|error| hwpoison_failed(pfn, error), |()| fw_status::FW_OK)
}

/// A block that `fw_report_free` tells of.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_block {
    /// Its first frame.
    pub pfn: u64,
    /// Its order.
    pub order: u32,
}

/// Hook for free blocks. It may do with their memory what it likes until it returns; not 0 if it has taken note
/// of them, 0 if it wants no more.
pub type fw_report_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, blocks: *const fw_block, count: usize) -> u32>;

/// Tells `report` of free blocks of at least `order`, and of at least a pageblock, that were not told of since a user
/// last had them: a hypervisor may take their memory away until then. Returns the base pages in them. The arena needs
/// `FW_FREE_REPORTING`.
///
/// # Safety
/// `cpu` is NULL or was a handle; `report` may be called with `context` during this call, and does not use the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_report_free(
    cpu: *mut fw_cpu,
    order: u32,
    report: fw_report_fn,
    context: *mut c_void,
) -> u64 {
    // SAFETY: by the caller's promise.
    let (Ok(cpu), Ok(order)) = (unsafe { cpu_of(cpu) }, order_of(order)) else { return 0 };
    let Some(report) = report else {
        status::null("the function is NULL");
        return 0;
    };
    if !cpu.arena().allocator().config().free_reporting {
        plain(fw_status::FW_ERR_SETUP, "the arena was made without FW_FREE_REPORTING: nothing is reported");
        return 0;
    }
    let mut blocks = Vec::new();
    let hook = |free: &[(Pfn, Order)]| {
        blocks.clear();
        blocks.extend(free.iter().map(|(pfn, order)| fw_block { pfn: pfn.0, order: order.get().into() }));
        // SAFETY: by the caller's promise.
        unsafe { report(context, blocks.as_ptr(), blocks.len()) != 0 }
    };
    cpu.report_free(order, hook).pages
}

/// Which allocations fail on purpose. All zeroes but for `probability` 100 and `times` 1: the next one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_fault {
    /// Bit `k`: allocations of order `k` are counted, to `FW_MAX_ORDER`. 0: all.
    pub orders: u32,
    /// Percent of the candidates that fail, 0 to 100.
    pub probability: u32,
    /// Every so-many-th that is counted is a candidate; 0 counts as 1.
    pub interval: u32,
    /// Failures until no more fail; 0: without end.
    pub times: u32,
    /// Seed of the draw.
    pub seed: u64,
}

/// Counts of a rule's effects since it was set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_fault_counts {
    /// Allocations that were counted.
    pub seen: u64,
    /// Those of them that failed for it.
    pub failed: u64,
}

/// Has allocations fail on purpose, so that a program shows what it does then; NULL: no longer. Replaces the rule
/// before. The arena needs `FW_FAULT_INJECTION`.
///
/// # Safety
/// `arena` is NULL or was a handle; `fault` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_inject(arena: *mut fw_arena, fault: *const fw_fault) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    // SAFETY: by the caller's promise.
    let fault = unsafe { fault.as_ref() };
    if fault.is_some_and(|fault| fault.orders >> FW_ORDERS != 0 || fault.probability > 100) {
        return status::argument("the rule names an order above FW_MAX_ORDER, or more than 100 percent");
    }
    let rule = fault.map(|fault| FaultRule {
        orders: if fault.orders == 0 { u16::MAX } else { fault.orders as u16 },
        probability: fault.probability as u8,
        interval: fault.interval,
        times: (fault.times != 0).then_some(fault.times),
        seed: fault.seed,
    });
    if kept.arena.allocator().inject(rule.as_ref()) {
        return fw_status::FW_OK;
    }
    plain(fw_status::FW_ERR_SETUP, "the arena was made without FW_FAULT_INJECTION: nothing fails on purpose")
}

/// Counts of the effects of the rule of `fw_inject`.
///
/// # Safety
/// `arena` is NULL or was a handle; `out` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_injected(arena: *const fw_arena, out: *mut fw_fault_counts) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    // SAFETY: by the caller's promise.
    let out = tried!(unsafe { status::place(out, "the place for the counts is NULL") });
    let counts = kept.arena.allocator().fault_counts();
    *out = fw_fault_counts { seen: counts.seen, failed: counts.failed };
    fw_status::FW_OK
}

/// Gives the memory of free blocks of at least `order` back to the system, and returns the base pages that were in
/// memory. They come again as zeroes when they are touched. Nothing goes back of locked memory, of the caller's, or
/// with `FW_POISON` or `FW_INIT_ON_FREE`, nor while a node has fewer than 1,024 free base pages above its low mark. The
/// pool of `FW_BACKING_HUGETLB` keeps what it gets set aside for the arena; Linux before v6.9 may give it to another
/// process, and then the next touch is a fault (`SIGBUS`). O(pages of the arena / 512), and two system calls for each
/// block.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_trim(cpu: *mut fw_cpu, order: u32) -> u64 {
    // SAFETY: by the caller's promise.
    let (Ok(cpu), Ok(order)) = (unsafe { cpu_of(cpu) }, order_of(order)) else { return 0 };
    cpu.trim(order).pages
}

/// Function that a thread runs while its CPU is idle.
pub type fw_idle_fn = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Runs `function`, which waits for something, and leaves the pages on the lists of this CPU within reach of other
/// threads during that. The handle is closed until it returns.
///
/// # Safety
/// `cpu` is NULL or was a handle; `function` may be called with `context`, and returns: no `longjmp`, no end of the
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_idle(cpu: *mut fw_cpu, function: fw_idle_fn, context: *mut c_void) -> fw_status {
    let Some(function) = function else { return status::null("the function is NULL") };
    // SAFETY: by the caller's promise, both.
    unsafe { lend(cpu, || function(context)) }
}

/// Has the lists of every CPU given back to the zones: those of CPUs that no thread holds immediately, those of
/// attached threads when they next answer (see `fw_answer`), for which this waits at most `nanoseconds`. Writes to
/// `left`, if that is not NULL, the base pages that are still on lists; `FW_ERR_BUSY` if there are any. The calling
/// thread's own lists are drained with `fw_drain`.
///
/// # Safety
/// `arena` is NULL or was a handle; `left` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_drain_wait(arena: *mut fw_arena, nanoseconds: u64, left: *mut u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    let pages = kept.arena.drain_all(Duration::from_nanos(nanoseconds)).iter().map(|(_, pages)| pages).sum();
    // SAFETY: by the caller's promise.
    unsafe { status::give(left, pages) };
    if pages == 0 {
        return fw_status::FW_OK;
    }
    plain(fw_status::FW_ERR_BUSY, "an attached thread has not answered yet: it keeps pages on its lists")
}
