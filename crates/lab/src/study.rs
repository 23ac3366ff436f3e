//! Studies: experiments as data (`studies/*.toml`), and what runs them.

mod bulk;
mod disk;
mod first_touch;
mod initialise;
mod kernbench;
mod page_test;
mod parallel_init;
mod plan;
mod pressure;
mod ready;
pub mod registry;
mod replay;
mod run;
mod simulated;
pub(crate) mod structure;
mod tasks;
pub mod traced;
mod validation;
pub mod workload;

pub use plan::{Metric, Part, Plan, Variant};
pub use run::{Job, Run, jobs};
