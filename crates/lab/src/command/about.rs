//! Commands that show what this program knows: machines, settings, workloads, schemas, its own options.

pub mod completions;
pub mod machines;
pub mod schema;
pub mod settings;
pub mod workloads;
