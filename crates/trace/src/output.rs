//! Where results go: checked and opened before work begins, and written whole or not at all.
//!
//! [`Output::open`] is the one function that opens what `-o` and the like name. It fails at once where nothing can be
//! written, so that no recording and no measurement is lost for a mistyped path.
//!
//! | what the path names | what is written |
//! |---|---|
//! | nothing, or a regular file | a file without a name in the same folder, which takes the name when it is complete |
//! | a symbolic link | likewise, where the link leads; the link stays |
//! | a device, a FIFO, a socket, standard output | through it, as a shell's `>` does |
//! | a folder | refused |
//! | a regular file in a folder where no file can be made, or that is a mount point | over the file itself |
//!
//! A file without a name ([`O_TMPFILE`](https://man7.org/linux/man-pages/man2/open.2.html)) vanishes with its process,
//! however that ends. File systems that lack it get a hidden file beside the target; one that a killed process left is
//! removed when the same target is written again.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

use crate::error::Error;

/// More links than this lead nowhere, as for the kernel.
const MOST_LINKS: usize = 40;

/// Where this process can name its open files.
const OPEN_FILES: &str = "/proc/self/fd";

/// A place to write to, open.
#[derive(Debug)]
pub struct Output {
    /// As the user named it.
    path: PathBuf,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Straight into what is there.
    Through(File),
    /// Over a regular file whose folder takes no other file.
    Over(File),
    /// A new file that takes the target's name when it is complete.
    Beside {
        file: File,
        target: PathBuf,
        /// Its own name until then, if it needs one.
        hidden: Option<Hidden>,
    },
}

/// A file that is removed unless it was renamed.
#[derive(Debug)]
struct Hidden(PathBuf);

impl Drop for Hidden {
    fn drop(&mut self) {
        // Gone already when it has its final name.
        let _ = fs::remove_file(&self.0);
    }
}

impl Output {
    /// Opens `path` for writing. What is there stays as it is until [`finish`](Self::finish).
    ///
    /// A FIFO blocks until it has a reader, as everywhere.
    ///
    /// # Errors
    /// It cannot be written: no such folder, no permission, a folder, a read-only or full file system. Or it is `-`,
    /// which would not be what its writer means.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path == Path::new("-") {
            let what = "standard output is /dev/stdout, and a file of this name ./-";
            return Err(Error::io("write", path, io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let way = open(path).map_err(|cause| Error::io("write", path, cause))?;
        Ok(Self { path: path.to_path_buf(), way })
    }

    /// The path, as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path names a file that holds what was written: not a device, a pipe or standard output.
    #[must_use]
    pub const fn stays(&self) -> bool {
        !matches!(self.way, Way::Through(_))
    }

    /// Whether finishing would replace this file: an input that is named as output as well.
    #[must_use]
    pub fn replaces(&self, input: &Path) -> bool {
        let target = match &self.way {
            Way::Through(_) => return false,
            Way::Over(file) => file.metadata(),
            Way::Beside { target, .. } => fs::metadata(target),
        };
        matches!((target, fs::metadata(input)), (Ok(a), Ok(b)) if same(&a, &b))
    }

    /// Whether both would make one file, however each path spells it: the one that is finished last would replace the
    /// first.
    #[must_use]
    pub fn is_also(&self, second: &Self) -> bool {
        let place = |output: &Self| match &output.way {
            Way::Through(_) | Way::Over(_) => None,
            Way::Beside { target, .. } => {
                Some((fs::canonicalize(folder(target)).ok()?, target.file_name()?.to_owned()))
            }
        };
        let one_place = matches!((place(self), place(second)), (Some(a), Some(b)) if a == b);
        one_place || self.replaces(&second.path)
    }

    /// Writes all of it. A regular file appears whole or not at all, except where its folder takes no second file.
    ///
    /// # Errors
    /// It could not be written. A regular file that was there before is there still.
    pub fn finish(self, bytes: &[u8]) -> Result<(), Error> {
        self.finish_with(|out| out.write_all(bytes))
    }

    /// Like [`finish`](Self::finish), for content that `write` writes piece by piece. It may be called twice.
    ///
    /// # Errors
    /// As [`finish`](Self::finish), and errors of `write`.
    pub fn finish_with(self, write: impl Fn(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
        let Self { path, way } = self;
        way.write(&write).map_err(|cause| Error::io("write", &path, cause))
    }
}

/// Writes a file whole or not at all: opens it and finishes it at once.
///
/// # Errors
/// As [`Output::open`] and [`Output::finish`].
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    Output::open(path)?.finish(bytes)
}

fn same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

fn open(path: &Path) -> io::Result<Way> {
    let there = match fs::metadata(path) {
        Ok(there) => Some(there),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
        Err(cause) => return Err(cause),
    };
    if let Some(there) = &there {
        if there.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        // A second description of the same file would write over what this process prints there.
        for stream in [io::stdout().as_fd(), io::stderr().as_fd()] {
            let file = File::from(stream.try_clone_to_owned()?);
            if file.metadata().is_ok_and(|open| same(&open, there)) {
                return Ok(Way::Through(file));
            }
        }
        if there.file_type().is_socket() || !there.is_file() {
            return OpenOptions::new().write(true).open(path).map(Way::Through);
        }
        // A file that may not be written must not be replaced either, whatever its folder allows.
        OpenOptions::new().write(true).open(path)?;
    }
    let target = resolve(path)?;
    match beside(&target, there.as_ref()) {
        Err(cause) if there.is_some() && folder_is_closed(&cause) => {
            OpenOptions::new().write(true).open(&target).map(Way::Over)
        }
        way => way,
    }
}

/// No new file can be made there, but one that exists may still be written.
fn folder_is_closed(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Where symbolic links lead, whether there is something or not.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&at) {
            Ok(to) => at = folder(&at).join(to),
            Err(_) => return Ok(at),
        }
    }
    Err(Errno::LOOP.into())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file in the target's folder, with the rights and the owner of what it will replace.
fn beside(target: &Path, there: Option<&fs::Metadata>) -> io::Result<Way> {
    // `x/` and `x/.` are folders that are not there.
    let ends_so = |name: &&OsStr| target.as_os_str().as_bytes().ends_with(name.as_bytes());
    let name = target.file_name().filter(ends_so).ok_or(io::ErrorKind::IsADirectory)?;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let nameless = match Path::new(OPEN_FILES).exists() {
        true => rustix::fs::openat(CWD, folder(target), flags, Mode::from_raw_mode(0o666)),
        // Without /proc such a file could not be given a name.
        false => Err(Errno::OPNOTSUPP),
    };
    let (file, hidden) = match nameless {
        Ok(file) => (File::from(file), None),
        // What file systems and old kernels say that have no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            remove_leftovers(folder(target), name);
            let path = hidden_name(target, name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            (file, Some(Hidden(path)))
        }
        Err(cause) => return Err(cause.into()),
    };
    if let Some(there) = there {
        // Root may give the file to its owner; others keep it, which is all they can.
        let _ = fchown(&file, Some(there.uid()), Some(there.gid()));
        file.set_permissions(Permissions::from_mode(there.mode() & 0o7777))?;
    }
    Ok(Way::Beside { file, target: target.to_path_buf(), hidden })
}

/// `.NAME.PID.framewright`, in the folder of NAME.
fn hidden_name(target: &Path, name: &OsStr) -> PathBuf {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.framewright", process::id()));
    target.with_file_name(hidden)
}

/// Removes hidden files for the same target whose process is gone.
fn remove_leftovers(folder: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let prefix = [b".", name.as_bytes(), b"."].concat();
    for entry in entries.flatten() {
        let file = entry.file_name();
        let pid = file.as_bytes().strip_prefix(&*prefix).and_then(|rest| rest.strip_suffix(b".framewright"));
        let pid = pid.and_then(|pid| str::from_utf8(pid).ok()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Way {
    fn write(self, write: &dyn Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        match self {
            // Devices and pipes have nothing to bring to a disk.
            Self::Through(file) => all(&file, write),
            Self::Over(file) => over(&file, write),
            Self::Beside { file, target, hidden } => {
                all(&file, write)?;
                file.sync_all()?;
                let hidden = match hidden {
                    Some(hidden) => hidden,
                    None => match name(&file, &target)? {
                        Some(hidden) => hidden,
                        None => return Ok(()),
                    },
                };
                match fs::rename(&hidden.0, &target) {
                    // The file is a mount of its own, as in containers.
                    Err(cause) if cause.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                        over(&OpenOptions::new().write(true).open(&target)?, write)
                    }
                    renamed => renamed,
                }
            }
        }
    }
}

/// Writes everything to a file, through a buffer.
fn all(file: &File, write: &dyn Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush()
}

fn over(file: &File, write: &dyn Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    file.set_len(0)?;
    all(file, write)?;
    file.sync_all()
}

/// Gives a file without a name the target's name, or if that is taken, a hidden one to rename.
fn name(file: &File, target: &Path) -> io::Result<Option<Hidden>> {
    let descriptor = format!("{OPEN_FILES}/{}", file.as_raw_fd());
    let link = |to: &Path| linkat(CWD, &descriptor, CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(target) {
        Ok(()) => return Ok(None),
        Err(Errno::EXIST) => {}
        Err(cause) => return Err(cause.into()),
    }
    let hidden = hidden_name(target, target.file_name().unwrap_or_default());
    // This process alone has the name; what is there it left itself.
    let _ = fs::remove_file(&hidden);
    link(&hidden)?;
    Ok(Some(Hidden(hidden)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn names(folder: &TempDir) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .expect("it is there")
            .map(|entry| entry.expect("listed").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_keeps_its_content_until_all_is_written_and_its_rights_after() {
        let scratch = TempDir::new().expect("the temporary directory can be written");
        let path = scratch.path().join("x.json");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("ours");
        let output = Output::open(&path).expect("it can be written");
        assert!(output.replaces(&path) && !output.replaces(Path::new("/dev/null")));
        assert_eq!(fs::read_to_string(&path).expect("there"), "old");
        output.finish(b"new").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o640);
        drop(Output::open(&scratch.path().join("never.json")).expect("it can be written"));
        assert_eq!(names(&scratch), ["x.json"], "what was not finished leaves nothing");
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let scratch = TempDir::new().expect("the temporary directory can be written");
        fs::create_dir(scratch.path().join("results")).expect("made");
        symlink("results/1.json", scratch.path().join("latest.json")).expect("made");
        let path = scratch.path().join("latest.json");
        for content in ["first", "second"] {
            write(&path, content.as_bytes()).expect("written");
            assert!(fs::symlink_metadata(&path).expect("there").is_symlink());
            let file = scratch.path().join("results/1.json");
            assert_eq!(fs::read_to_string(file).expect("there"), content);
        }
        symlink("round", scratch.path().join("round")).expect("made");
        assert!(Output::open(&scratch.path().join("round")).is_err());
    }

    #[test]
    fn devices_are_written_through_and_folders_refused() {
        let device = Path::new("/dev/null");
        write(device, b"all of it").expect("it takes everything");
        assert!(fs::metadata(device).expect("there").file_type().is_char_device());
        let full = write(Path::new("/dev/full"), b"more").expect_err("it takes nothing").to_string();
        assert!(full.starts_with("cannot write /dev/full: No space left"), "{full}");
        for folder in ["/tmp", "/tmp/", "/", ".", "/tmp/none/", "/tmp/none/."] {
            let error = Output::open(Path::new(folder)).expect_err("a folder").to_string();
            assert!(error.ends_with("name a file, not a directory"), "{error}");
        }
        for path in ["/nonexistent/x", "", "/dev/null/x", "-"] {
            assert!(Output::open(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn hidden_files_of_processes_that_are_gone_are_removed() {
        let scratch = TempDir::new().expect("the temporary directory can be written");
        // No process has this number: the kernel's limit is 2^22.
        for name in [".x.json.4194305.framewright", ".y.json.4194305.framewright", ".x.json.1.framewright"] {
            fs::write(scratch.path().join(name), "half").expect("written");
        }
        remove_leftovers(scratch.path(), OsStr::new("x.json"));
        assert_eq!(names(&scratch), [".x.json.1.framewright", ".y.json.4194305.framewright"]);
    }
}
