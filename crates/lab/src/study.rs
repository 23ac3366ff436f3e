//! Studies: experiments as data (`studies/*.toml`), and what runs them.

mod bulk;
mod initialise;
mod plan;
mod pressure;
mod published;
mod ready;
mod replay;
mod run;
mod simulated;
pub(crate) mod structure;
mod validation;

pub use plan::{Metric, Part, Plan, Variant};
pub use run::{Run, run};
