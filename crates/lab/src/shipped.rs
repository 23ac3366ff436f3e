//! Traces: the one that comes with the command, so that studies need neither root nor a recording, and a user's.

use std::path::Path;
use std::sync::OnceLock;

use framewright_trace::trace::Trace;
use sha2::{Digest as _, Sha256};

use framewright_report::error::{Error, Result};
use framewright_report::result::TraceId;

/// `traces/compile.parquet`; `traces/README.md` tells how it was recorded.
static COMPILE: &[u8] = include_bytes!("../../../traces/compile.parquet");

/// The recorded compile, and what results call it. The first call decodes it, in a quarter of a second.
///
/// # Errors
/// The embedded file is damaged, which a test of this crate refuses to let happen.
pub fn compile() -> Result<&'static (Trace, TraceId)> {
    static DECODED: OnceLock<(Trace, TraceId)> = OnceLock::new();
    if let Some(decoded) = DECODED.get() {
        return Ok(decoded);
    }
    let decoded = named(COMPILE, "traces/compile.parquet")?;
    Ok(DECODED.get_or_init(|| decoded))
}

/// A trace file, and what results call it.
///
/// # Errors
/// It cannot be read, or is no trace.
pub fn read(path: &Path) -> Result<(Trace, TraceId)> {
    let mut sha256 = Sha256::new();
    let trace = Trace::read_with(path, |bytes| sha256.update(bytes)).map_err(Error::failed)?;
    Ok((trace, id(path.display().to_string(), sha256)))
}

fn named(bytes: &[u8], name: &str) -> Result<(Trace, TraceId)> {
    let trace = Trace::read_bytes(bytes, name).map_err(Error::failed)?;
    Ok((trace, id(name.to_owned(), Sha256::new_with_prefix(bytes))))
}

fn id(name: String, sha256: Sha256) -> TraceId {
    let sha256 = sha256.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    TraceId { name, sha256 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_named_by_its_content() {
        // As sha256sum prints it.
        let (_, id) = compile().expect("it is built in");
        assert_eq!(id.sha256, "5da3295fc90cd6187cf2ab844c8d7b3c6fd2abe8d06152bd6b0a838b65b55520");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/compile.parquet");
        assert_eq!(read(path.as_ref()).expect("it is there").1.sha256, id.sha256);
    }
}
