//! Studies: experiments as data (`studies/*.toml`), and what runs them.

mod bulk;
mod initialise;
mod parallel_init;
mod plan;
mod ready;
mod replay;
mod run;
mod simulated;
pub(crate) mod structure;
pub mod traced;
mod validation;

pub use plan::{Metric, Part, Plan, Variant};
pub use run::{Run, run};
