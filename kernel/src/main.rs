//! A small kernel that boots a machine with Framewright as its page allocator, and then uses it hard.
//!
//! # The modules, each using only those above it
//! | module | what it holds |
//! |---|---|
//! | `arch` | instructions that Rust has no name for |
//! | `exit` | the emulator's exit device: the only way to end a run |
//! | `lock` | a spin lock |
//! | `clock` | the time stamp counter, and the length of a tick |
//! | `serial` | the console, and `log!` |
//! | `apic` | starting and waking CPUs, and a timer |
//! | `percpu` | what each CPU owns: number, segments, stacks for interrupts |
//! | `metal` | the allocator's platform: words, cells, the pin that is "interrupts off" |
//! | `trap` | exceptions end the run with a report; a panic does, too |
//! | `paging` | page tables |
//! | `machine` | the firmware's description: memory, nodes, CPUs |
//! | `kernel` | the allocator, its page descriptors, and how kernel code allocates |
//! | `smp` | secondary CPUs: starting, giving them work, stopping |
//! | `boot` | from the firmware's map to a running allocator |
//! | `clients` | other people's crates on the allocator, with the feature of that name |
//! | `scenario` | the runs that use the booted allocator |
//! | `entry` | the boot CPU's first instructions |
#![no_std]
#![no_main]
#![deny(unsafe_code)]

mod apic;
mod arch;
mod boot;
#[cfg(feature = "clients")]
mod clients;
mod clock;
mod entry;
mod exit;
mod kernel;
mod lock;
mod machine;
mod metal;
mod paging;
mod percpu;
mod scenario;
mod serial;
mod smp;
mod trap;

use crate::boot::Phases;
use crate::exit::Verdict;
use crate::machine::Machine;

/// The boot CPU's way from power-on to the end.
fn main(start_info: u64) -> ! {
    serial::start();
    percpu::start_boot_cpu();
    trap::start();
    clock::start();
    apic::silence_legacy();
    apic::start();
    let mut phases = Phases::new();
    let machine = Machine::read(start_info);
    paging::forget_page_0();
    let (kernel, booting) = boot::run(machine, &mut phases);
    kernel::install(kernel);
    arch::interrupts_on();
    smp::start_all(kernel);
    phases.end("cpus");
    boot::late::run(kernel, booting);
    phases.end("deferred");
    phases.print();
    scenario::run(kernel);
    log!("all done");
    exit::now(Verdict::Success)
}
