//! From the firmware's map to a running allocator, by the steps of the core's boot modules.
//!
//! | module | what it holds |
//! |---|---|
//! | `early` | the map, early allocation, the allocator's own structures |
//! | `late` | the rest of the memory, on all CPUs |
//! | `phases` | how long each step took |
#![expect(unsafe_code, reason = "what boot makes stays for ever")]

mod early;
pub(crate) mod late;
mod phases;

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

use framewright::boot::late::{Booting, deferred};
use framewright::defer::Deferred;
use framewright::policy::init::Split;
use framewright_kernel::args;

use crate::kernel::{Kernel, Page, Pages};
use crate::machine::{MAX_NODES, Machine};
use crate::metal::Metal;

pub(crate) use phases::Phases;

/// A value that boot makes once and that stays.
struct Made<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: written once, by the boot CPU, before another one runs; what is shared then is `Sync` by itself.
unsafe impl<T> Sync for Made<T> {}

impl<T> Made<T> {
    const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// Once, before another CPU runs.
    unsafe fn put(&'static self, value: T) -> &'static T {
        // SAFETY: by the caller's promise.
        unsafe { (*self.0.get()).write(value) }
    }
}

/// Filled in place: too large for a stack.
struct NotesCell(UnsafeCell<early::Notes>);

// SAFETY: as for `Made`.
unsafe impl Sync for NotesCell {}

static NOTES: NotesCell = NotesCell(UnsafeCell::new(early::Notes::new()));
static DEFERRED: Made<Deferred<'static, Metal>> = Made::new();
static KERNEL: Made<Kernel> = Made::new();

/// The kernel with the early part of its memory; the rest is to come ([`late::run`]).
pub(crate) type Early = Booting<'static, 'static, Metal, Page>;

/// Boots as far as one CPU can. Called once.
///
/// # Panics
/// The machine cannot be booted; each with a line that says why.
pub(crate) fn run(machine: &'static Machine, phases: &mut Phases) -> (&'static Kernel, Early) {
    machine.print();
    // SAFETY: once, as `run` is called.
    let prepared = early::prepare(machine, unsafe { &mut *NOTES.0.get() });
    phases.end("map");
    let early::Prepared { division, free, config, memory, deferred: room, cpu_nodes, bad } = prepared;
    let split = match args::find(machine.command_line(), "deferred") {
        None | Some("all_cpus_by_section") => Split::AllCpusBySection,
        Some("all_cpus") => Split::AllCpus,
        Some("one_thread_per_node") => Split::OneThread,
        Some(unknown) => panic!("deferred={unknown}: one_thread_per_node, all_cpus or all_cpus_by_section"),
    };
    let rest = deferred(&division, free, cpu_nodes, split, room);
    let mut room = [0; MAX_NODES * MAX_NODES];
    let distances = Some(machine.distance_table(&mut room));
    let pages = Pages::with_distances(division.specs, cpu_nodes, distances, config, memory, None);
    let mut pages = pages.unwrap_or_else(|error| panic!("allocator: {error}"));
    // SAFETY: both once, as `run` is called.
    let kernel = unsafe {
        pages.defer_and_clear(DEFERRED.put(rest));
        KERNEL.put(Kernel { machine, pages, cpu_nodes, bad })
    };
    phases.end("structures");
    let early = kernel.pages.begin().expect("memory was left for later, and boot begins once");
    phases.end("early");
    (kernel, early)
}
