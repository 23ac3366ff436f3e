//! The time stamp counter. Its rate is found with the interval timer, whose rate is known.
//!
//! Under `--icount` the counter counts executed instructions, of all CPUs together, and repeats bit for bit.
#![expect(unsafe_code, reason = "reading the counter is an intrinsic")]

use core::hint;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch;

/// Rate of the interval timer, in hertz.
const TIMER_HZ: u64 = 1_193_182;
const CALIBRATION_MS: u64 = 10;

/// Ticks in a millisecond, and the tick at which the clock was started.
static TICKS_PER_MS: AtomicU64 = AtomicU64::new(1);
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Present value of the counter.
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every 64-bit CPU has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Finds the counter's rate, in ten milliseconds.
pub(crate) fn start() {
    let count = (TIMER_HZ * CALIBRATION_MS / 1000) as u16;
    // Channel 2 counts down once, with its gate open and the speaker off; bit 5 says when it is through.
    arch::out8(0x61, (arch::in8(0x61) & !2) | 1);
    arch::out8(0x43, 0xb0);
    arch::out8(0x42, count as u8);
    arch::out8(0x42, (count >> 8) as u8);
    let begin = ticks();
    while arch::in8(0x61) & 0x20 == 0 {
        hint::spin_loop();
    }
    let per_ms = (ticks() - begin) / CALIBRATION_MS;
    TICKS_PER_MS.store(per_ms.max(1), Ordering::Relaxed);
    STARTED.store(begin, Ordering::Relaxed);
}

/// Ticks in a millisecond.
pub(crate) fn ticks_per_ms() -> u64 {
    TICKS_PER_MS.load(Ordering::Relaxed)
}

/// Nanoseconds since the clock was started.
pub(crate) fn now_ns() -> u64 {
    let ticks = ticks().saturating_sub(STARTED.load(Ordering::Relaxed));
    (u128::from(ticks) * 1_000_000 / u128::from(ticks_per_ms())) as u64
}

/// Spins for `milliseconds`.
pub(crate) fn wait_ms(ms: u64) {
    let until = ticks() + ms * ticks_per_ms();
    while ticks() < until {
        hint::spin_loop();
    }
}
