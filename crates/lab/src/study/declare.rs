//! Declarations of this crate's workloads: their type, and the keys, quantities and options that several of them have.
//! Each of their files imports all of this, and with it the names that most of them use.
//!
//! A workload declares itself beside the function that runs it, as a [`BuiltIn`] that the registry lists.

use core::str::FromStr;

use framewright_host::Order;

pub(crate) use framewright_report::error::{Error, Result};
pub(crate) use framewright_report::quantity::{Quantity, quantities};
pub(crate) use framewright_report::result::{Kind, Part as ResultPart};
pub(crate) use framewright_sim::Model;
pub(crate) use framewright_sim::clock::{Ps, Rng, mix};

pub(crate) use super::identify::{Draw, Priors};
pub(crate) use super::run::{
    Configured, Run, configured, in_turn, keep_declared, machines, metric, on_models, progress, result_part,
};
pub(crate) use super::workload::{Declaration, Key, Need, Opt, Takes};
pub(crate) use super::{Metric, Part, Plan};
pub(crate) use crate::configure::Setup;
pub(crate) use crate::machine::Machine;
pub(crate) use crate::quantity::{NETWORK, TIMES, TRAFFIC, ZONE_LOCK, ZONE_LOCK_CAUSES, joined};
pub(crate) use crate::settings::Settings;
pub(crate) use crate::simulate::allocator::{allocator, main_zone, zone_sizing};
pub(crate) use crate::simulate::samples::{Interval, add_moved, close_models, close_simulated, note_models};
pub(crate) use crate::simulate::{cpus_here, doubled, in_parallel, model_errors, sampled_models, strata};

pub(crate) type Runner = fn(&Plan, &Part, &Run<'_>) -> Result<ResultPart>;

/// A workload of this crate: its declaration, and a function for each way to run it.
pub(crate) struct BuiltIn {
    pub(crate) declaration: &'static Declaration,
    pub(crate) runners: &'static [(Kind, Runner)],
}

impl BuiltIn {
    /// Value of a key: the part's, or the declared default. Both were checked when the study was read.
    pub(crate) fn text(&self, part: &Part, name: &str) -> String {
        let default =
            || self.declaration.keys.iter().find(|key| key.name == name)?.default.map(str::to_owned);
        part.workload.get(name).map(ToString::to_string).or_else(default).unwrap_or_default()
    }

    /// Like [`text`](Self::text), of a key that is a number or a flag.
    pub(crate) fn value<T: FromStr + Default>(&self, part: &Part, name: &str) -> T {
        self.text(part, name).parse().unwrap_or_default()
    }
}

/// Order of the blocks of a part.
pub(crate) fn order(part: &Part) -> Order {
    let given = part.workload.get(ORDER.name).and_then(|order| order.to_string().parse().ok());
    given.and_then(Order::new).unwrap_or(Order::ZERO)
}

pub(crate) const fn key(
    name: &'static str,
    takes: Takes,
    default: Option<&'static str>,
    about: &'static str,
) -> Key {
    Key { name, takes, default, about }
}

pub(crate) const ORDER: Key = key("order", Takes::Whole(0, 10), Some("0"), "Order of the blocks.");
pub(crate) const CPUS: Key = key(
    "cpus",
    Takes::Whole(1, 1024),
    Some("2"),
    "The most CPUs: 1, 2, 4, … up to it, as far as the machine has them.",
);
pub(crate) const HUGE_PAGES: Key =
    key("huge_pages", Takes::Whole(1, 1 << 20), None, "Order-9 blocks that each CPU allocates and clears.");

/// Quantities of every run of a simulated kernel's tasks.
pub(crate) const TASK_CAUSES: &[Quantity] = joined!(Quantity;
    &quantities! { zone_lock_acquisitions_per_page "1" Lower Cause "Acquisitions of a zone's lock per allocated page." },
    &ZONE_LOCK_CAUSES,
    &quantities! {
        lru_lock_acquisitions_per_page "1" Lower Cause "Acquisitions of the LRU lock per allocated page."
        lru_lock_wait_ns "ns" Lower Cause "Time waited for the LRU lock, per acquisition."
        lru_lock_hold_ns "ns" Lower Cause "Time the LRU lock is held, per acquisition."
    },
    &TRAFFIC,
);

/// Options that every measured part heeds which takes samples.
pub(crate) const MEASURED: [(Opt, Kind); 2] = [(Opt::Samples, Kind::Measured), (Opt::Quick, Kind::Measured)];
/// Options that every simulated part heeds.
pub(crate) const SIMULATED: [(Opt, Kind); 3] =
    [(Opt::Machine, Kind::Simulated), (Opt::Samples, Kind::Simulated), (Opt::Quick, Kind::Simulated)];
