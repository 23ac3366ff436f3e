//! Readers of tables, and computations that touch no machine. Their tests run on the host.
//!
//! | module | what it holds |
//! |---|---|
//! | [`bytes`] | little-endian fields of a byte slice |
//! | [`pvh`] | the boot protocol's start info and memory map |
//! | [`acpi`] | firmware tables: CPUs, memory affinity, distances |
//! | [`args`] | the kernel's command line |
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

pub mod acpi;
pub mod args;
pub mod bytes;
pub mod pvh;
