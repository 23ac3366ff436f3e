//! Studies: experiments as data (`studies/*.toml`), and what runs them.

mod bulk;
mod plan;
mod replay;
mod run;
mod structure;

pub use plan::{Metric, Part, Plan, Published, Variant};
pub use run::{Run, run};
