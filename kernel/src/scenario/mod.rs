//! Scenarios: work of the kernel once it has booted.
//!
//! | module | what it holds |
//! |---|---|
//! | `support` | random numbers, and what must hold between scenarios |
//! | `selftest` | all memory, in every mix of orders, on all CPUs |
//! | `bench` | instructions or time of an allocation and a free |
//! | `hotplug` | CPUs and memory go and come back |
//! | `quarantine` | a frame goes bad |
//! | `exhaust` | a node runs out of memory, then the whole machine |
//! | `others` | other people's crates: a disk, page tables; with the feature `clients` |
//! | `failures` | faults that must end the run with an error |

mod bench;
mod exhaust;
mod failures;
mod hotplug;
#[cfg(feature = "clients")]
mod others;
mod quarantine;
mod selftest;
mod support;

use framewright_kernel::args;

use crate::kernel::Kernel;
use crate::log;

/// A name, what happens, and the code.
struct Scenario {
    name: &'static str,
    what: &'static str,
    run: fn(&'static Kernel),
}

/// Those that pass, in the order in which `all` runs them.
const PASSING: [Scenario; 6] = [
    Scenario { name: "selftest", what: "allocate everything on all CPUs, check, free", run: selftest::run },
    Scenario {
        name: "exhaust",
        what: "a node runs out and falls back; the machine runs out",
        run: exhaust::run,
    },
    Scenario { name: "cpus", what: "CPUs go offline and come back", run: hotplug::cpus },
    Scenario { name: "memory", what: "memory goes offline and comes back", run: hotplug::memory },
    Scenario { name: "quarantine", what: "a frame goes bad and is found", run: quarantine::run },
    Scenario { name: "bench", what: "cost of an allocation and a free", run: bench::run },
];

/// Those that must fail the run.
const FAILING: [Scenario; 5] = [
    Scenario { name: "page-fault", what: "a null pointer is written through", run: failures::page_fault },
    Scenario {
        name: "stack-overflow",
        what: "a secondary CPU runs off its stack",
        run: failures::stack_overflow,
    },
    Scenario {
        name: "boot-stack-overflow",
        what: "the boot CPU runs off its stack",
        run: failures::boot_stack_overflow,
    },
    Scenario { name: "double-free", what: "a page is freed twice", run: failures::double_free },
    Scenario {
        name: "corruption",
        what: "a free page's descriptor is overwritten",
        run: failures::corruption,
    },
];

/// Those of other people's crates, which are linked on request.
#[cfg(feature = "clients")]
const OTHERS: [Scenario; 2] = [
    Scenario { name: "disk", what: "virtio-drivers reads and writes a disk", run: others::disk },
    Scenario { name: "tables", what: "x86_64 maps pages of both sizes", run: others::tables },
];
#[cfg(not(feature = "clients"))]
const OTHERS: [Scenario; 0] = [];

/// Runs what the command line names with `scenario=`, or all that pass; `clients` are those of other people's crates.
pub(crate) fn run(kernel: &'static Kernel) {
    let name = args::find(kernel.machine.command_line(), "scenario").unwrap_or("all");
    if name == "boot" {
        return;
    }
    let mut found = false;
    for scenario in PASSING.iter().chain(&FAILING).chain(&OTHERS) {
        let is_passing = PASSING.iter().any(|passing| passing.name == scenario.name);
        let is_others = OTHERS.iter().any(|others| others.name == scenario.name);
        if scenario.name == name || (name == "all" && is_passing) || (name == "clients" && is_others) {
            found = true;
            log!("scenario {}: {}", scenario.name, scenario.what);
            let before = support::Books::read(kernel);
            (scenario.run)(kernel);
            before.must_balance(kernel);
            log!("scenario {}: passed", scenario.name);
        }
    }
    if !found {
        for scenario in PASSING.iter().chain(&FAILING).chain(&OTHERS) {
            log!("{:<16} {}", scenario.name, scenario.what);
        }
        panic!(
            "no scenario is called {name}; those above are, `all` is the first {}, `boot` is none",
            PASSING.len()
        );
    }
}
