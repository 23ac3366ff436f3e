//! The folder of a recording: pages of the kernel's buffers, and what it takes to read them. It is removed when the
//! recording ends. If the recorder is killed, the folder stays, and [`finish`] makes a trace of it.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use parquet::file::metadata::KeyValue;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::attribute::Whose;
use super::drain::Decoder;
use super::spool::{Spool, is_full};
use super::{Raw, Stream};
use crate::error::{Error, Place};
use crate::trace::{Meta, Note, Trace, columns};

const SUFFIX: &str = ".recording";
/// Held locked by the recorder: its process, and the boot of the kernel.
const RECORDER: &str = "recorder";
/// Texts of [`Instance::layouts`](super::tracefs::Instance::layouts).
const LAYOUTS: &str = "layouts";
const META: &str = "meta";
const NAMES: &str = "names";
const WHOSE: &str = "whose";
const STATES: &str = "states";
/// Files of a CPU's events and samples begin so.
const EVENTS: &str = "events-";
const SAMPLES: &str = "samples-";

/// The folder of a recording that runs.
pub(super) struct Folder {
    folder: TempDir,
    _locked: File,
}

impl Folder {
    /// A new one within a folder. Its owner's alone, like the trace: it names the command with all its arguments.
    pub(super) fn create(within: &Path) -> Result<Self, Error> {
        let create = || {
            let mut builder = tempfile::Builder::new();
            let private =
                builder.prefix("framewright-").suffix(SUFFIX).permissions(Permissions::from_mode(0o700));
            let folder = private.tempdir_in(within)?;
            let locked = File::create(folder.path().join(RECORDER))?;
            flock(&locked, FlockOperation::LockExclusive)?;
            Ok(Self { folder, _locked: locked })
        };
        let folder: Self = create().map_err(|cause| Error::io("write", within, cause))?;
        folder.save(RECORDER, [std::process::id().to_string(), boot()])?;
        Ok(folder)
    }

    /// The error for which no trace can be made of the recording, which stays: a later version may read it.
    pub(super) fn kept(self, error: Error) -> Error {
        let Error::CannotRecord { what, fix } = error else { return error };
        let path = self.folder.keep();
        Error::CannotRecord { what: format!("{what}; what was recorded is in {}", path.display()), fix }
    }

    fn save(&self, name: &str, fields: impl IntoIterator<Item = String>) -> Result<(), Error> {
        let path = self.folder.path().join(name);
        let text: String = fields.into_iter().flat_map(|field| [field, "\0".to_owned()]).collect();
        fs::write(&path, text).map_err(|cause| Error::io("write", &path, cause))
    }

    /// As [`save`](Self::save), while events come. Where these have filled the disk already, the recording ends, and
    /// only one that is killed needs the file.
    fn save_if_room(&self, name: &str, fields: impl IntoIterator<Item = String>) -> Result<(), Error> {
        match self.save(name, fields) {
            Err(Error::Io { cause, .. }) if is_full(&cause) => Ok(()),
            saved => saved,
        }
    }

    /// Keeps how the pages are laid out, and where they come from.
    pub(super) fn save_head(&self, layouts: &[String], meta: &Meta) -> Result<(), Error> {
        self.save(LAYOUTS, layouts.iter().cloned())?;
        let pairs = columns::to_pairs(meta);
        self.save(META, pairs.into_iter().flat_map(|pair| [pair.key, pair.value.unwrap_or_default()]))
    }

    /// Keeps the names of the threads that there are, and the kernel's states at the start.
    pub(super) fn save_start(&self, names: &HashMap<u32, String>, states: &[Note]) -> Result<(), Error> {
        self.save_if_room(NAMES, names.iter().flat_map(|(pid, name)| [pid.to_string(), name.clone()]))?;
        let fields = |note: &Note| [note.time_ns.to_string(), note.name.clone(), note.text.clone()];
        self.save_if_room(STATES, states.iter().flat_map(fields))
    }

    /// Keeps whose events are picked.
    pub(super) fn save_whose(&self, whose: &Whose) -> Result<(), Error> {
        match whose {
            Whose::All => self.save_if_room(WHOSE, ["all".to_owned()]),
            Whose::Trees(roots) => self.save_if_room(WHOSE, roots.iter().map(u32::to_string)),
        }
    }

    /// Spools of a CPU's events, and if it is sampled, of its samples.
    pub(super) fn spools(&self, cpu: u16, sampled: bool) -> Result<(Spool, Option<Spool>), Error> {
        let path = self.folder.path();
        let create = |kind: &str| Spool::create(&path.join(format!("{kind}{cpu}")));
        let spools = || Ok((create(EVENTS)?, sampled.then(|| create(SAMPLES)).transpose()?));
        spools().map_err(|cause| Error::io("write", path, cause))
    }
}

/// Number of this boot of the kernel: after another boot its functions have new addresses.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Folders of killed recorders within a folder.
#[must_use]
pub fn unfinished(within: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(within).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_left = |path: &PathBuf| path.to_string_lossy().ends_with(SUFFIX) && lock(path).is_ok();
    paths.filter(is_left).collect()
}

/// Takes the lock of a recorder that is gone.
fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder.join(RECORDER))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// The trace of what a killed recorder left in its folder: all that came out of the kernel's buffers.
///
/// # Errors
/// It is no such folder, its recorder still runs, or something in it cannot be read.
pub(crate) fn finish(folder: &Path) -> Result<Trace, Error> {
    let refused = |what: &str, fix| Error::refused(&folder.display().to_string(), Place::Unknown, what, fix);
    let _locked = lock(folder).map_err(|cause| match cause.kind() {
        io::ErrorKind::WouldBlock => refused("a recording that still runs", "wait for its end, or end it"),
        io::ErrorKind::PermissionDenied => Error::io("read", folder, cause),
        _ => refused(
            "no folder of a recording",
            "give a file, or the folder NAME.recording that a killed `framewright record` left",
        ),
    })?;
    let load = |name: &str| {
        let path = folder.join(name);
        let text = fs::read_to_string(&path).map_err(|cause| Error::io("read", &path, cause))?;
        let mut fields: Vec<String> = text.split('\0').map(str::to_owned).collect();
        fields.pop();
        Ok::<_, Error>(fields)
    };
    let started = "the recorder was killed before the command began";
    let begun = |name: &str| load(name).map_err(|_| refused(started, "remove the folder, and record again"));
    let (recorder, decoder) = (load(RECORDER)?, Decoder::parse(&begun(LAYOUTS)?)?);
    let pair = |pair: &[String]| KeyValue::new(pair[0].clone(), pair[1].clone());
    let meta = columns::from_pairs(&begun(META)?.chunks_exact(2).map(pair).collect::<Vec<_>>());
    let names = begun(NAMES)?;
    let names = names.chunks_exact(2).filter_map(|pair| Some((pair[0].parse().ok()?, pair[1].clone())));
    let whose = begun(WHOSE)?;
    let whose = if whose == ["all"] {
        Whose::All
    } else {
        Whose::Trees(whose.iter().filter_map(|pid| pid.parse().ok()).collect())
    };
    let pid = recorder.first().and_then(|pid| pid.parse().ok()).unwrap_or(0);
    let state = |fields: &[String]| {
        let (name, text) = (fields[1].clone(), fields[2].clone());
        Note { time_ns: fields[0].parse().unwrap_or(0), cpu: 0, pid, comm: 0, name, text }
    };
    let mut streams = Vec::new();
    let unreadable = |cause| Error::io("read", folder, cause);
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for (start, is_samples) in [(EVENTS, false), (SAMPLES, true)] {
            if let Some(cpu) = name.strip_prefix(start).and_then(|cpu| cpu.parse().ok()) {
                let pages = Spool::left(&path).map_err(|cause| Error::io("read", &path, cause))?;
                streams.push(Stream { cpu, pages, is_samples });
            }
        }
    }
    // Of reports at the same time, those of the first stream come first.
    streams.sort_by_key(|stream| (stream.cpu, stream.is_samples));
    let is_sampled = streams.iter().any(|stream| stream.is_samples) && recorder.get(1) == Some(&boot());
    let raw = Raw {
        streams,
        whose,
        names: names.collect(),
        states: begun(STATES)?.chunks_exact(3).map(state).collect(),
        meta: Meta { cut: true, ..meta },
        lost: None,
        recorder: pid,
        is_sampled,
        cost: None,
    };
    Ok(raw.made(&decoder)?.trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_that_cannot_be_read_is_not_lost() {
        let within = tempfile::tempdir().unwrap();
        let left = || fs::read_dir(within.path()).unwrap().flatten().map(|entry| entry.path()).next();
        let folder = Folder::create(within.path()).unwrap();
        folder.save(META, ["a".to_owned()]).unwrap();
        drop(folder);
        assert_eq!(left(), None);
        let folder = Folder::create(within.path()).unwrap();
        folder.save(META, ["a".to_owned()]).unwrap();
        let error = folder.kept(Error::CannotRecord { what: "an odd event".into(), fix: "report it" });
        let path = left().expect("it stays");
        assert_eq!(fs::read(path.join(META)).unwrap(), b"a\0");
        let said =
            format!("cannot record: an odd event; what was recorded is in {}; report it", path.display());
        assert_eq!(error.to_string(), said);
    }
}
