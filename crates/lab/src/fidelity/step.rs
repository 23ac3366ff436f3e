//! An operation that refilled or drained lists.

use core::fmt;

/// An operation that refilled or drained lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of the operation.
    pub op: u64,
    /// CPU that it ran on.
    pub cpu: u16,
    /// Pages that went from the zone to the lists.
    pub refilled: u64,
    /// Pages that went back.
    pub drained: u64,
    /// Pages on the CPU's lists afterwards.
    pub count: u32,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, cpu, refilled, drained, count } = self;
        write!(
            f,
            "operation {op} on CPU {cpu} refilled {refilled} and drained {drained} pages, {count} on the lists"
        )
    }
}
