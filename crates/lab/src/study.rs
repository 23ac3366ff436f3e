//! Studies: experiments as data (`studies/*.toml`), and what runs them.

mod bulk;
mod plan;
mod replay;
mod run;
mod simulated;
mod structure;
mod validation;

pub use plan::{Metric, Part, Plan, Published, Variant};
pub use run::{Run, run};
