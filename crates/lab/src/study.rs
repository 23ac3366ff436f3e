//! Studies: experiments as data (`studies/*.toml`), and what runs them.

mod bulk;
mod initialise;
mod plan;
mod published;
mod ready;
mod replay;
mod run;
pub(crate) mod structure;

pub use plan::{Metric, Part, Plan, Variant};
pub use run::{Run, run};
