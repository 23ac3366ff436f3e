//! An entry of the table of workloads.

use crate::error::Result;
use crate::result::{Kind, Part as ResultPart};
use crate::study::workload::Declaration;
use crate::study::{Part, Plan, Run};

pub(crate) type Runner = fn(&Plan, &Part, &Run<'_>) -> Result<ResultPart>;

/// A workload of this crate: what it is, and a function for each way to run it.
pub(crate) struct BuiltIn {
    pub(crate) declaration: Declaration,
    pub(crate) runners: &'static [(Kind, Runner)],
}
