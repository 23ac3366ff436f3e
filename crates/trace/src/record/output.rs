//! The file that a recording went to.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::User;
use crate::error::Error;
use crate::trace::Trace;

/// Writes a trace to a new file in the folder for temporary files, and returns its path: for one that could not be
/// written where it belongs, as its disk is full. It is its owner's alone; that is `user`, if there is one.
///
/// # Errors
/// It cannot be written there, either.
pub fn write_elsewhere(trace: &Trace, user: Option<&User>) -> Result<PathBuf, Error> {
    let bytes = trace.to_bytes()?;
    let failed = |cause| Error::io("write", &std::env::temp_dir(), cause);
    let mut file =
        tempfile::Builder::new().prefix("framewright-").suffix(".parquet").tempfile().map_err(failed)?;
    file.write_all(&bytes).map_err(failed)?;
    let path = file.into_temp_path().keep().map_err(|kept| failed(kept.error))?;
    keep_private(&path, user).map(|()| path)
}

/// Makes a trace its owner's alone, because it names the command with all its arguments; the owner is `user`, if
/// there is one. What is no regular file, or has other names, stays as it is.
///
/// # Errors
/// Owner or mode cannot be changed.
pub fn keep_private(path: &Path, user: Option<&User>) -> Result<(), Error> {
    let failed = |cause| Error::io("give away", path, cause);
    // Neither a link nor a pipe that another process put there in the meantime.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return Ok(()) };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Ok(());
    }
    file.set_permissions(PermissionsExt::from_mode(0o600)).map_err(failed)?;
    user.map_or(Ok(()), |user| fchown(&file, Some(user.uid()), Some(user.gid()))).map_err(failed)
}
