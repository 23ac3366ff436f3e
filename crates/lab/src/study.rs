//! Studies: experiments as data (`studies/*.toml`), and what runs them.

mod bulk;
mod declare;
mod first_touch;
mod hold;
mod identify;
mod initialise;
mod job;
mod kernbench;
pub(crate) mod library;
mod own_bench;
mod page_fault;
mod parallel_init;
mod plan;
mod pressure;
mod reading;
mod ready;
pub mod registry;
mod replay;
mod run;
mod scaling;
mod simulated;
pub(crate) mod structure;
mod tasks;
pub mod traced;
mod validation;
pub mod workload;

pub use job::{Job, jobs};
pub use plan::{Metric, Part, Plan, Variant};
pub use run::{Configured, Run, configured, result_part};
