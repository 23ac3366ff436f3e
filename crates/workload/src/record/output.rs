//! The file that a recording goes to.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::OFlags;

use super::User;
use crate::error::Error;

/// Whether a trace can be written there, asked before anything is recorded.
///
/// # Errors
/// Its folder cannot be written to, or it is a folder itself.
pub fn check_output(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::io("write", path, io::ErrorKind::IsADirectory.into()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder).map(|_| ()).map_err(|cause| Error::io("write", path, cause))
}

/// Makes a trace its owner's alone, because it names the command with all its arguments; the owner is `user`, if
/// there is one. What is no regular file, or has other names, stays as it is.
///
/// # Errors
/// Owner or mode cannot be changed.
pub fn keep_private(path: &Path, user: Option<&User>) -> Result<(), Error> {
    let failed = |cause| Error::io("give away", path, cause);
    // Neither a link nor a pipe that somebody put there in the meantime.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return Ok(()) };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Ok(());
    }
    file.set_permissions(PermissionsExt::from_mode(0o600)).map_err(failed)?;
    user.map_or(Ok(()), |user| fchown(&file, Some(user.uid()), Some(user.gid()))).map_err(failed)
}
