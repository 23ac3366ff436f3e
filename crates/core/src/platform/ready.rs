//! Ready platforms, which need no porting code: [`OneCpu`], and [`Metal`] for kernels on x86-64 and 64-bit Arm.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{PinnedCpu, Platform, Word};
use crate::units::CpuId;

/// One CPU on which no interrupt handler allocates or frees: a boot loader, the start of a unikernel, a simulator, an
/// index of blocks that one thread owns. The type is its own proof of being on that CPU: `allocator.cpu(&OneCpu)`.
///
/// It executes no locked instruction. An [`Allocator`](crate::Allocator) on it is neither `Send` nor `Sync`, so that
/// safe code cannot reach it from a second thread. Code that puts it into a `static` declares it `Sync`, and thereby
/// promises that one thread at a time calls it and that no interrupt handler does. It has no clock: times are 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCpu;

// SAFETY: words and cells are plain memory. Nothing on it is shared between threads, as the type's documentation
// demands.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Platform for OneCpu {
    type Word = PlainWord;
    type Cell<T> = UnsafeCell<T>;
    type Pin = Self;

    fn relax() {}

    fn now_ns() -> u64 {
        0
    }

    unsafe fn clear(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: by the caller's promise; zeroes are a word that holds 0.
        unsafe { start.write_bytes(0, bytes) };
        true
    }
}

// SAFETY: the views made of it stay on the one thread that has the allocator.
#[expect(unsafe_code, reason = "see above")]
unsafe impl PinnedCpu for OneCpu {
    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
}

/// The word of [`OneCpu`]: one read and one write where other words have one locked instruction. Use from two threads
/// is no undefined behaviour, but loses updates.
#[derive(Debug, Default)]
pub struct PlainWord(AtomicU64);

impl PlainWord {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

// SAFETY: on one thread, program order is the total order, and no other access comes between a read and the write after
// it.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Word for PlainWord {
    #[inline(always)]
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[inline(always)]
    fn load(&self, _: Ordering) -> u64 {
        self.get()
    }

    #[inline(always)]
    fn store(&self, value: u64, _: Ordering) {
        self.set(value);
    }

    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64, _: Ordering, _: Ordering) -> Result<u64, u64> {
        let held = self.get();
        if held != current {
            return Err(held);
        }
        self.set(new);
        Ok(held)
    }

    #[inline(always)]
    fn swap(&self, value: u64, _: Ordering) -> u64 {
        let held = self.get();
        self.set(value);
        held
    }

    #[inline(always)]
    fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        let held = self.get();
        self.set(held.wrapping_add(value));
        held
    }
}

/// A kernel on the bare machine, with any number of CPUs: x86-64, 64-bit Arm, and others that have a 64-bit atomic
/// word.
///
/// Locks are queued and spin, memory is cleared with plain stores, and the code that provides descriptors clears them.
/// A kernel that defers descriptors, parks waiting CPUs or drains remotely writes a platform of its own; it can use
/// these words and cells, and [`PinnedTo`].
#[derive(Clone, Copy, Debug)]
pub struct Metal;

// SAFETY: words and cells are plain memory.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Platform for Metal {
    type Word = AtomicU64;
    type Cell<T> = UnsafeCell<T>;
    type Pin = PinnedTo;

    fn relax() {
        core::hint::spin_loop();
    }

    /// The machine's counter: nanoseconds on 64-bit Arm; on x86-64 cycles of the time stamp counter, which count up to
    /// five times as fast. It is used for waiting times in statistics and for the pause after a failed remote drain. 0
    /// on other machines.
    fn now_ns() -> u64 {
        counter()
    }

    unsafe fn clear(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: by the caller's promise; zeroes are a word that holds 0.
        unsafe { start.write_bytes(0, bytes) };
        true
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an instruction")]
fn counter() -> u64 {
    // SAFETY: every x86-64 has this instruction, which reads a register.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "instructions")]
fn counter() -> u64 {
    let (ticks, hertz): (u64, u64);
    // SAFETY: both registers may be read at every level where a kernel runs.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) ticks, out(reg) hertz,
            options(nomem, nostack, preserves_flags));
    }
    ns_of(ticks, hertz)
}

/// Nanoseconds of `ticks` of a counter that counts `hertz` a second; one that does not say its rate counts seconds.
#[cfg(any(test, target_arch = "aarch64"))]
fn ns_of(ticks: u64, hertz: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(hertz.max(1))) as u64
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    0
}

/// The proof that a kernel's code stays on one CPU, and that no other code uses its lists. A plain number: making and
/// keeping one costs nothing.
pub struct PinnedTo {
    cpu: CpuId,
    /// Keeps the proof on the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl PinnedTo {
    /// The proof for a CPU.
    ///
    /// # Safety
    /// While the proof is used, the caller runs on this CPU, or acts for it while it is offline, and no interrupt
    /// handler or other task uses another proof for it: interrupts are off, or preemption is off and no handler
    /// allocates.
    #[expect(unsafe_code, reason = "the caller vouches for the CPU")]
    #[must_use]
    pub const unsafe fn new(cpu: CpuId) -> Self {
        Self { cpu, _thread: PhantomData }
    }
}

impl fmt::Debug for PinnedTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedTo").field(&self.cpu).finish()
    }
}

// SAFETY: as its `new` demands.
#[expect(unsafe_code, reason = "see above")]
unsafe impl PinnedCpu for PinnedTo {
    fn cpu(&self) -> CpuId {
        self.cpu
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

    use super::*;

    /// One CPU: no clock, no barrier for others, CPU 0. A kernel's CPU has its number and a counter that goes on.
    #[test]
    #[expect(unsafe_code, reason = "the proof of a CPU")]
    fn each_platform_has_its_clock_and_its_cpu() {
        assert_eq!((OneCpu::now_ns(), OneCpu::heavy_barrier(), OneCpu.cpu()), (0, false, CpuId(0)));
        // SAFETY: no allocator sees it.
        assert_eq!(unsafe { PinnedTo::new(CpuId(3)) }.cpu(), CpuId(3));
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            let first = Metal::now_ns();
            assert!((0..10_000_000).any(|_| Metal::now_ns() > first), "{first} and no more");
        }
        assert_eq!((ns_of(48, 24_000_000), ns_of(5, 0)), (2000, 5_000_000_000));
        assert_eq!(ns_of(u64::MAX, 1_000_000_000), u64::MAX);
    }

    /// Each operation does what an atomic word's does.
    #[test]
    fn a_plain_word_is_like_an_atomic_one() {
        fn results<W: Word>() -> [u64; 8] {
            let word = W::new(5);
            let swapped = [word.swap(7, AcqRel), word.load(Acquire)];
            let added = [word.fetch_add(u64::MAX, AcqRel), word.load(Relaxed)];
            let kept = word.compare_exchange(7, 1, AcqRel, Relaxed).expect_err("it is 6");
            let exchanged = word.compare_exchange(6, 9, AcqRel, Relaxed).expect("it is 6");
            let now = word.load(Relaxed);
            word.store(3, Release);
            [swapped[0], swapped[1], added[0], added[1], kept, exchanged, now, word.load(Relaxed)]
        }
        assert_eq!(results::<PlainWord>(), [5, 7, 7, 6, 6, 6, 9, 3]);
        assert_eq!(results::<PlainWord>(), results::<AtomicU64>());
    }
}
