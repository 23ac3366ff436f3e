//! Instructions that Rust has no name for, and the memory functions that compiled code calls (`memory.s`).
#![expect(
    unsafe_code,
    reason = "ports, model-specific registers and page tables are reached by instructions"
)]

use core::arch::{asm, global_asm};
use core::marker::PhantomData;

global_asm!(include_str!("memory.s"), options(att_syntax));

/// Writes a byte to a port.
pub(crate) fn out8(port: u16, value: u8) {
    // SAFETY: a port write touches no memory of ours; devices that do are told of work through their own memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

/// Writes four bytes to a port.
pub(crate) fn out32(port: u16, value: u32) {
    // SAFETY: as in `out8`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) };
}

/// Reads a byte from a port.
pub(crate) fn in8(port: u16) -> u8 {
    let value;
    // SAFETY: as in `out8`.
    unsafe { asm!("in al, dx", out("al") value, in("dx") port, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads four bytes from a port.
#[cfg(feature = "clients")]
pub(crate) fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: as in `out8`.
    unsafe { asm!("in eax, dx", out("eax") value, in("dx") port, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes a model-specific register.
///
/// # Safety
/// The register exists, and what it changes keeps the kernel running.
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: by the caller's promise.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high, options(nostack)) };
}

/// The address that a page fault was about.
pub(crate) fn fault_address() -> u64 {
    let address;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// The physical address of this CPU's page tables.
pub(crate) fn page_tables() -> u64 {
    let address: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address & !0xfff
}

/// Forgets what this CPU remembers of the page at `address`.
pub(crate) fn forget_page(address: u64) {
    // SAFETY: the next access reads the page tables again; nothing else happens.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Forgets what this CPU remembers of all pages that are not global.
#[cfg(feature = "clients")]
pub(crate) fn forget_all() {
    // SAFETY: as in `forget_page`; the root stays.
    unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags)) };
}

/// The flag that is set while interrupts are taken.
const INTERRUPTS: u64 = 1 << 9;

/// Interrupts are off for as long as this lives; then they are as before.
pub(crate) struct InterruptsOff {
    flags: u64,
    /// It belongs to the CPU that made it.
    stays: PhantomData<*const ()>,
}

impl InterruptsOff {
    /// Turns interrupts off.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let flags: u64;
        // SAFETY: pushes and pops the flags. Not `nomem`: what follows in the program stays after it.
        unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
        Self { flags, stays: PhantomData }
    }
}

impl Drop for InterruptsOff {
    #[inline(always)]
    fn drop(&mut self) {
        if self.flags & INTERRUPTS != 0 {
            interrupts_on();
        }
    }
}

#[inline(always)]
pub(crate) fn interrupts_off() {
    // SAFETY: as above.
    unsafe { asm!("cli", options(nostack)) };
}

/// Whether this CPU takes interrupts.
pub(crate) fn interrupts_are_on() -> bool {
    let flags: u64;
    // SAFETY: pushes and pops the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(nomem, preserves_flags)) };
    flags & INTERRUPTS != 0
}

/// Turns interrupts on.
#[inline(always)]
pub(crate) fn interrupts_on() {
    // SAFETY: every gate has a handler and a stack before the first call (`trap`, `percpu`).
    unsafe { asm!("sti", options(nostack)) };
}

/// Sleeps until the next interrupt, which is taken. Interrupts are off before and after. One that came in
/// between is not lost: `sti` takes effect behind the next instruction.
pub(crate) fn sleep() {
    // SAFETY: as in `interrupts_on`.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Sleeps until this CPU is reset.
pub(crate) fn halt() -> ! {
    loop {
        // SAFETY: nothing wakes this but a reset; a machine check may, so again.
        unsafe { asm!("cli", "hlt", options(nostack)) };
    }
}

/// Copies physical memory, which is mapped one to one. By instruction, since the loader's structures may be
/// at address 0, where Rust has no objects.
///
/// # Safety
/// The memory is mapped and holds nothing that Rust code writes to during the call.
pub(crate) unsafe fn copy_physical(to: &mut [u8], from: u64) {
    // SAFETY: readable by the caller's promise; `to` is ours and as long.
    unsafe {
        asm!("rep movsb", inout("rcx") to.len() => _, inout("rdi") to.as_mut_ptr() => _,
            inout("rsi") from => _, options(nostack, preserves_flags));
    }
}

/// Zeroes memory: the processor's own fill.
///
/// # Safety
/// `bytes` bytes from `start` on, a multiple of 8 and aligned to 8, are the caller's to write.
pub(crate) unsafe fn zero(start: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!("rep stosq", inout("rcx") bytes / 8 => _, inout("rdi") start => _, in("rax") 0_u64,
            options(nostack, preserves_flags));
    }
}
