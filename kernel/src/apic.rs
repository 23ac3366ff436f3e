//! The local APIC, in its memory-mapped form: starting and waking CPUs, and its timer.
#![expect(unsafe_code, reason = "the APIC is a device in memory")]

use core::hint;
use core::ptr;

use crate::arch::{self, InterruptsOff};
use crate::clock;

/// The interrupt that wakes a CPU.
pub(crate) const WAKE: u8 = 0x40;
/// The interrupt that is raised when another one went away before it was taken.
pub(crate) const SPURIOUS: u8 = 0xff;

const BASE: usize = 0xfee0_0000;
const SPURIOUS_VECTOR: usize = 0xf0;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const TIMER: usize = 0x320;
const TIMER_COUNT: usize = 0x380;
const TIMER_DIVIDER: usize = 0x3e0;

const ENABLE: u32 = 1 << 8;
const PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const INIT: u32 = 5 << 8;
const START: u32 = 6 << 8;

fn read(register: usize) -> u32 {
    let at = ptr::with_exposed_provenance::<u32>(BASE + register);
    // SAFETY: every CPU has its APIC there, and it is mapped; reading a register has no effect.
    unsafe { at.read_volatile() }
}

fn write(register: usize, value: u32) {
    let at = ptr::with_exposed_provenance_mut::<u32>(BASE + register);
    // SAFETY: as above; what is written below raises interrupts that have handlers, or starts CPUs that wait.
    unsafe { at.write_volatile(value) };
}

/// Masks all interrupts of the old controllers: firmware leaves its timer on, with the number of an exception.
pub(crate) fn silence_legacy() {
    arch::out8(0x21, 0xff);
    arch::out8(0xa1, 0xff);
}

/// Lets the running CPU take interrupts from others.
pub(crate) fn start() {
    write(SPURIOUS_VECTOR, ENABLE | u32::from(SPURIOUS));
}

fn send(apic: u32, command: u32) {
    write(COMMAND_HIGH, apic << 24);
    write(COMMAND_LOW, command);
    while read(COMMAND_LOW) & PENDING != 0 {
        hint::spin_loop();
    }
}

/// Wakes a CPU that sleeps.
pub(crate) fn wake(apic: u32) {
    // The two halves of a command must not be torn apart.
    let _off = InterruptsOff::new();
    send(apic, ASSERT | u32::from(WAKE));
}

/// Resets a CPU and has it run the trampoline in page `page`; see `entry.s`. Interrupts are off.
pub(crate) fn start_cpu(apic: u32, page: u8) {
    send(apic, ASSERT | INIT);
    clock::wait_ms(10);
    send(apic, ASSERT | START | u32::from(page));
}

/// Timer counts of a nap: 50 µs in the emulator, whose timer counts nanoseconds; about that elsewhere.
const NAP: u32 = 50_000;
/// The timer counts each cycle of its bus.
const UNDIVIDED: u32 = 0b1011;

/// Sleeps for some microseconds, or until it is woken.
pub(crate) fn nap() {
    let _off = InterruptsOff::new();
    write(TIMER_DIVIDER, UNDIVIDED);
    write(TIMER, u32::from(WAKE));
    write(TIMER_COUNT, NAP);
    arch::sleep();
}
