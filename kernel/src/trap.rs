//! Exceptions and panics: each prints what and where, and fails the run.
#![expect(unsafe_code, reason = "the interrupt table holds addresses of assembly code")]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::apic::{SPURIOUS, WAKE};
use crate::exit::{self, Verdict};
use crate::percpu::{InterruptStack, TablePointer};
use crate::{arch, percpu, serial};

global_asm!(include_str!("vectors.s"), options(att_syntax));

const CODE_SEGMENT: u64 = 0x08;
const EXCEPTIONS: usize = 32;
/// Bytes between the stubs in `vectors.s`.
const STUB_BYTES: u64 = 16;

unsafe extern "C" {
    static exception_stubs: u8;
    static wake_vector: u8;
    static spurious_vector: u8;
}

struct InterruptTable(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: written by the boot CPU before another one runs; the processor reads it.
unsafe impl Sync for InterruptTable {}

static TABLE: InterruptTable = InterruptTable(UnsafeCell::new([[0; 2]; 256]));

/// An interrupt gate on a stack of its own.
const fn gate(handler: u64, stack: InterruptStack) -> [u64; 2] {
    let low = handler & 0xffff | CODE_SEGMENT << 16 | (stack as u64) << 32 | 0x8e << 40;
    [low | (handler >> 16 & 0xffff) << 48, handler >> 32]
}

/// Fills the interrupt table and loads it.
pub(crate) fn start() {
    // SAFETY: no other CPU runs yet; the addresses are those of code that keeps to the processor's rules.
    unsafe {
        let table = &mut *TABLE.0.get();
        let stubs = &raw const exception_stubs as u64;
        for (n, entry) in table[..EXCEPTIONS].iter_mut().enumerate() {
            let stack = if matches!(n, 2 | 8 | 18) { InterruptStack::Abort } else { InterruptStack::Fault };
            *entry = gate(stubs + STUB_BYTES * n as u64, stack);
        }
        table[usize::from(WAKE)] = gate(&raw const wake_vector as u64, InterruptStack::Wake);
        table[usize::from(SPURIOUS)] = gate(&raw const spurious_vector as u64, InterruptStack::Wake);
    }
    load();
}

/// Makes the running CPU use the table.
pub(crate) fn load() {
    let table = TablePointer { limit: size_of::<[[u64; 2]; 256]>() as u16 - 1, base: TABLE.0.get() as u64 };
    // SAFETY: the table is complete and stays.
    unsafe { asm!("lidt [{}]", in(reg) &raw const table, options(readonly, nostack, preserves_flags)) };
}

/// Registers that `vectors.s` saves of an exception.
#[repr(C)]
struct Exception {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    flags: u64,
    rsp: u64,
    ss: u64,
}

const REGISTERS: [&str; 15] =
    ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

const fn exception_name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        2 => "non-maskable interrupt",
        3 => "breakpoint",
        6 => "invalid opcode",
        8 => "double fault",
        13 => "general protection fault",
        14 => "page fault",
        18 => "machine check",
        _ => "exception",
    }
}

#[unsafe(no_mangle)]
extern "C" fn exception_report(exception: &Exception) -> ! {
    first_report_only();
    let cpu = percpu::current().number;
    let (name, vector) = (exception_name(exception.vector), exception.vector);
    let (rip, error) = (exception.rip, exception.error);
    if vector == 14 {
        let what = if error & 2 != 0 { "writing" } else { "reading" };
        let why = if error & 1 != 0 { "not allowed" } else { "not mapped" };
        let at = arch::fault_address();
        serial::last_words(format_args!(
            "kernel failure on {cpu:?}: page fault {what} {at:#x} ({why}) at {rip:#x}"
        ));
    } else {
        serial::last_words(format_args!(
            "kernel failure on {cpu:?}: {name} (vector {vector}, error {error:#x}) at {rip:#x}"
        ));
    }
    for (name, value) in REGISTERS.iter().zip(exception.registers) {
        serial::last_words(format_args!("  {name:<3} {value:#018x}"));
    }
    let (rsp, flags) = (exception.rsp, exception.flags);
    serial::last_words(format_args!("  rsp {rsp:#018x} flags {flags:#x}"));
    exit::now(Verdict::Failure)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    first_report_only();
    let cpu = percpu::current().number;
    let message = info.message();
    match info.location() {
        Some(at) => serial::last_words(format_args!("kernel failure on {cpu:?}: {message}\n  at {at}")),
        None => serial::last_words(format_args!("kernel failure on {cpu:?}: {message}")),
    }
    exit::now(Verdict::Failure)
}

/// One CPU reports. Another one that fails during it waits for the end; the same one, failing while it reports,
/// ends the run itself.
fn first_report_only() {
    static REPORTER: AtomicU32 = AtomicU32::new(u32::MAX);
    let cpu = u32::from(percpu::current().number.0);
    match REPORTER.compare_exchange(u32::MAX, cpu, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {}
        Err(reporter) if reporter == cpu => exit::now(Verdict::Failure),
        Err(_) => arch::halt(),
    }
}
