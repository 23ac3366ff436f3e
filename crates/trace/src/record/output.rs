//! The file that a recording went to.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::OFlags;

use super::User;
use crate::error::Error;

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
