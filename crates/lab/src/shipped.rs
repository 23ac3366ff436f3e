//! The trace that comes with the command, so that studies need neither root nor a recording.

use framewright_workload::trace::Trace;

use crate::error::{Error, Result};

/// `traces/compile.parquet`; `traces/README.md` says how it was recorded.
static COMPILE: &[u8] = include_bytes!("../../../traces/compile.parquet");

/// The recorded compile.
///
/// # Errors
/// The embedded file is damaged, which a test of this crate refuses to let happen.
pub fn trace() -> Result<Trace> {
    Trace::read_bytes(COMPILE, "traces/compile.parquet").map_err(Error::failed)
}
