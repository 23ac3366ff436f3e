//! This project's allocator as what is measured: on threads of this machine, on simulated CPUs, and while it boots.
//!
//! The drivers of [`framewright_workload`] and the allocator are generic, so that each is compiled where it is used.
//! All uses whose speed is a result are here, behind functions that are not generic: they are compiled once, for speed,
//! and the command around them is compiled fast.
//!
//! | module | what it holds |
//! |---|---|
//! | `bare` | an arena without memory as a [`Target`](framewright_workload::target::Target) |
//! | [`load`] | what a host's threads do to it, with the times of its zone lock |
//! | [`modelled`] | the same on a modelled machine |
//! | [`scaling`] | workloads on 1 to all CPUs of a modelled machine, on an allocator or on none |
//! | [`boot`] | boot of a memory map, with threads as CPUs |
//! | [`bad_block`] | a bad page that a refill finds |
//! | [`programs`] | programs that write more to real files than there is memory |
#![deny(unsafe_code)]

pub mod bad_block;
mod bare;
pub mod boot;
pub mod load;
pub mod modelled;
pub mod programs;
pub mod scaling;

use framewright::stat::Totals;
use framewright_host::{Arena, ArenaError, Backing, Config};
use framewright_sim::world::StructPage;
use framewright_trace::trace::Trace;
use framewright_workload::bench::{Allocator, Measurement, Runner, Threads};
use framewright_workload::replay::{Aged, Ageing, Options, Plan, Report, age_while, replay};

pub use bare::{Bare, Slot};

use load::Load;

/// Size of a frame descriptor, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Descriptor {
    /// 8 bytes: nothing of the user's.
    #[default]
    Compact = 8,
    /// 64 bytes, as Linux' `struct page`.
    Struct64 = 64,
}

/// An arena of either descriptor size.
#[derive(Debug)]
pub enum Subject {
    /// Descriptors of 8 bytes.
    Compact(Bare),
    /// Descriptors of 64 bytes.
    Struct64(Bare<StructPage>),
}

/// Runs the same expression on either arena.
macro_rules! with {
    ($subject:expr, $arena:ident => $body:expr) => {
        match $subject {
            $crate::Subject::Compact($arena) => $body,
            $crate::Subject::Struct64($arena) => $body,
        }
    };
}
pub(crate) use with;

impl Subject {
    /// An arena of `frames` described frames for `cpus` threads.
    ///
    /// # Errors
    /// The configuration is refused, or the system has no address space for the descriptors.
    pub fn new(config: Config, descriptor: Descriptor, frames: u64, cpus: usize) -> Result<Self, ArenaError> {
        let builder = Arena::builder().pages(frames).cpus(cpus).backing(Backing::Described).config(config);
        match descriptor {
            Descriptor::Compact => builder.build().map(|arena| Self::Compact(Bare::new(arena))),
            Descriptor::Struct64 => {
                builder.build_with(|_| StructPage::default()).map(|arena| Self::Struct64(Bare::new(arena)))
            }
        }
    }

    /// Counts of the allocator's operations since it was made.
    pub fn totals(&self) -> Totals {
        with!(self, arena => arena.allocator().totals())
    }

    /// Replays a plan once. The subject should be fresh, for as many CPUs as the plan has threads.
    pub fn replay(&self, plan: &Plan) -> Report {
        with!(self, arena => replay(plan, arena, &Options::default()))
    }

    /// Runs a trace again and again (see [`age_while`]). `None` if `go_on` said no.
    pub fn age(
        &self,
        trace: &Trace,
        plan: &Plan,
        ageing: &Ageing,
        go_on: &dyn Fn() -> bool,
    ) -> Option<Vec<Aged>> {
        with!(self, arena => age_while(trace, plan, arena, ageing, go_on))
    }

    /// Runs one round of a load on threads.
    pub fn perform(&self, load: &Load<'_>, round: u64) -> Measurement {
        with!(self, arena => load.perform(&Threads(arena), round))
    }
}

/// Runs the workloads of `bench` on arenas of this configuration, with descriptors of 8 bytes.
pub fn runner(name: &str, config: Config) -> Box<dyn Runner> {
    Box::new(Allocator::new(name, move |frames, cpus| {
        let builder = Arena::builder().pages(frames).cpus(cpus).backing(Backing::Described).config(config);
        builder.build().map(Bare::<()>::new).map_err(|error| error.to_string())
    }))
}
