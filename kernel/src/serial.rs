//! The console: the first serial port.

use core::fmt::{self, Write};

use crate::lock::SpinLock;
use crate::{arch, clock};

const PORT: u16 = 0x3f8;

struct Console;

static CONSOLE: SpinLock<Console> = SpinLock::new(Console);

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while arch::in8(PORT + 5) & 0x20 == 0 {}
            arch::out8(PORT, byte);
        }
        Ok(())
    }
}

/// Sets the port up: 115200 baud, 8 bits, no interrupts.
pub(crate) fn start() {
    for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7)] {
        arch::out8(PORT + register, value);
    }
}

/// Prints a line with the time before it.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let us = clock::now_ns() / 1000;
    // The console takes everything: there is no error to handle.
    let _ = writeln!(CONSOLE.lock(), "[{:5}.{:06}] {text}", us / 1_000_000, us % 1_000_000);
}

/// Prints a line even if the console is in use by a CPU that never comes back.
pub(crate) fn last_words(text: fmt::Arguments<'_>) {
    let _ = writeln!(CONSOLE.lock_or_break(), "{text}");
}

/// Prints a line to the console, with the time before it.
#[macro_export]
macro_rules! log {
    ($($text:tt)*) => { $crate::serial::line(format_args!($($text)*)) };
}
