//! The platform of threads on this machine: words are atomics, cells are plain memory, and a CPU is a number
//! that one thread at a time holds.
//!
//! Everything here compiles to the bare instruction: the layouts that the core's cache-line arguments rest
//! on are asserted below.
#![expect(unsafe_code, reason = "a shared cell hands out pointers, and a pin is a promise")]

use core::cell::{Cell, UnsafeCell};
use core::hint;
use core::mem::{align_of, size_of};
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::thread;

use framewright::config::LockKind;
use framewright::frame::Pageblock;
use framewright::pcp::Pcp;
use framewright::sync::QueueNode;
use framewright::zone::Zone;
use framewright::{CpuId, Frame, PinnedCpu, Platform};

use crate::{clear, os};

/// Threads of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host;

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none. A memory
// barrier of every running thread of this process orders what a compiler fence keeps in order.
unsafe impl Platform for Host {
    type Word = AtomicU64;
    type Cell<T> = UnsafeCell<T>;
    type Pin = HostPin;

    // A thread may lose its processor while it holds a lock, or while it is next in a queue.
    const LOCK: LockKind = LockKind::Parking;

    const DRAINS_REMOTELY: bool = true;

    #[inline(always)]
    fn light_barrier() {
        compiler_fence(Ordering::SeqCst);
    }

    fn heavy_barrier() -> bool {
        os::membarrier()
    }

    fn park(word: &AtomicU64, expected: u64) {
        os::wait_on(word, expected);
    }

    fn unpark(word: &AtomicU64) {
        os::wake_one(word);
    }

    /// A pause; every [`PAUSES_PER_YIELD`]-th time the processor is offered to other threads, so that a waiter
    /// does not spin through the time slice that a preempted lock holder needs.
    #[inline]
    fn relax() {
        thread_local!(static PAUSES: Cell<u32> = const { Cell::new(0) });
        let pauses = PAUSES.get().wrapping_add(1);
        PAUSES.set(pauses);
        if pauses.is_multiple_of(PAUSES_PER_YIELD) {
            thread::yield_now();
        } else {
            hint::spin_loop();
        }
    }

    #[inline]
    fn now_ns() -> u64 {
        os::now_ns()
    }

    #[inline]
    unsafe fn clear(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: valid for writes and ours alone, by the caller's promise.
        unsafe { clear::clear(start, bytes) };
        true
    }
}

/// Pauses before a waiter yields: some tenths of a millisecond, less than a time slice. A waiter that yields gives a
/// whole slice to the thread that shares its processor, while a lock that is handed over in order waits for exactly
/// that waiter. With 128, a busy loop beside each of two threads cut their throughput to a hundredth; with 100,000 to a
/// quarter.
pub const PAUSES_PER_YIELD: u32 = 1 << 14;

/// The right to use the lists of one CPU.
///
/// [`Arena::attach`](crate::Arena::attach) makes sure that one thread at a time has it. The thread that runs the core
/// allocator without an arena makes pins himself.
#[derive(Debug)]
pub struct HostPin(CpuId);

impl HostPin {
    /// The pin of a CPU.
    ///
    /// # Safety
    /// Of all pins of the same CPU of the same allocator, one at a time is used, and what was done under the
    /// one before happens before what is done under this one.
    #[must_use]
    pub const unsafe fn new(cpu: CpuId) -> Self {
        Self(cpu)
    }
}

// SAFETY: `new` hands the contract to its caller. The number never changes.
unsafe impl PinnedCpu for HostPin {
    #[inline(always)]
    fn cpu(&self) -> CpuId {
        self.0
    }
}

// What the core's documentation says of descriptors and cache lines holds on this platform.
const _: () = {
    assert!(size_of::<AtomicU64>() == 8 && align_of::<AtomicU64>() == 8);
    assert!(size_of::<UnsafeCell<[u8; 56]>>() == 56 && align_of::<UnsafeCell<[u8; 56]>>() == 1);
    assert!(size_of::<Frame<Host, ()>>() == 8);
    assert!(size_of::<Frame<Host, [u8; 56]>>() == 64);
    assert!(size_of::<Frame<Host, [u64; 7]>>() == 64);
    assert!(size_of::<Pageblock<Host>>() == 16);
    assert!(align_of::<Pcp<'_, Host>>() == 128);
    assert!(align_of::<Zone<Host>>() == 64);
    assert!(align_of::<QueueNode<Host>>() == 64);

    let zone = Zone::<Host>::layout();
    let [with_order0_lists, other_end, own_line] = zone.locks;
    assert!(with_order0_lists == 0 && other_end == 992 && own_line == 1024);
    assert!(zone.order0_lists == 16 && zone.order0_count == 96);
    assert!(zone.order10_lists == 896 && zone.isolated_count == 984);
    // The lock shares a line with the order-0 lists; with the end of order 10; with nothing.
    assert!(with_order0_lists / 64 == zone.order0_lists / 64);
    assert!(other_end / 64 == zone.isolated_count / 64);
    assert!(own_line / 64 > zone.isolated_count / 64 && zone.cold >= own_line + 64);
    assert!(own_line / 64 != zone.bins / 64 && own_line / 64 != zone.untouched / 64);
    assert!(own_line / 64 != zone.counters / 64);
    assert!(zone.counters.is_multiple_of(64));
};
