//! The entry of the boot CPU (from `entry.s`), and symbols that the precompiled core library names.
#![expect(unsafe_code, reason = "assembly and the linker find these by name")]

use core::arch::global_asm;

use crate::exit::{self, Verdict};

global_asm!(include_str!("entry.s"), options(att_syntax));

/// The boot CPU, in 64-bit mode, on the boot stack.
#[unsafe(no_mangle)]
extern "C" fn boot_cpu_main(start_info: u64) -> ! {
    crate::main(start_info)
}

/// Nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    exit::now(Verdict::Failure)
}
