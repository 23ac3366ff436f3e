//! Settings of a running kernel: their files below `/proc/sys` and `/sys`, and the journal with what they were.
//!
//! The journal is written, and is on disk, before the first setting is changed, and is removed when all are as they
//! were. One that is found later belongs to a process that was killed: its settings are brought back.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use framewright_report::error::{Error, Result};
use framewright_trace::proc::chosen;
use serde::{Deserialize, Serialize};

use crate::configure::Setting;
use crate::progress::say;

/// Folder of transparent huge pages.
const HUGE_PAGES: &str = "sys/kernel/mm/transparent_hugepage";
/// Pairs of settings of which Linux uses one: a write of either makes its partner 0, which only a write of the partner
/// undoes. Most of them refuse to be written 0.
const PARTNERS: [[&str; 2]; 3] = [
    ["vm.dirty_bytes", "vm.dirty_ratio"],
    ["vm.dirty_background_bytes", "vm.dirty_background_ratio"],
    ["vm.overcommit_kbytes", "vm.overcommit_ratio"],
];
/// The journal, below the root.
const JOURNAL: &str = "run/framewright-try.json";

/// A setting to be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Its name as sysctl has it, or `transparent_hugepage`.
    pub name: String,
    /// The value to be tried.
    pub value: String,
    /// Its value now.
    pub previous: String,
    path: PathBuf,
    /// The file and the content that bring that value back: its own, or of an unused one of [`PARTNERS`], the other's.
    restored_by: (PathBuf, String),
}

/// State that is written before the first change.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    pid: u32,
    /// Start of that process, by `/proc/PID/stat`: numbers come again.
    started: String,
    /// Files and what they held.
    settings: Vec<(PathBuf, String)>,
}

/// Settings of a kernel, changed and brought back when this is dropped.
#[derive(Debug)]
pub struct Knobs {
    knobs: Vec<Knob>,
    journal: PathBuf,
}

impl Knob {
    /// Reads `NAME=VALUE`: a sysctl, one of the allocator's settings that is a sysctl, or
    /// `transparent_hugepage[.FILE]`.
    ///
    /// # Errors
    /// There is no such setting below `root`, or it is that value already.
    pub fn parse(root: &Path, text: &str) -> Result<Self> {
        let Some((name, value)) =
            text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty())
        else {
            return Err(Error::usage(format_args!(
                "--set {text}: expected NAME=VALUE, such as vm.swappiness=10"
            )));
        };
        let known = if name.contains('.') { None } else { Setting::find(name).ok() };
        let name = match (known, known.and_then(Setting::sysctl)) {
            (Some(_), None) => {
                return Err(Error::usage(format_args!(
                    "--set {text}: {name} is a setting of this allocator and not in Linux; `framewright replay` takes it"
                )));
            }
            (_, Some(sysctl)) => sysctl,
            (None, None) => name,
        };
        let path = match name.strip_prefix("transparent_hugepage") {
            Some("") => root.join(HUGE_PAGES).join("enabled"),
            Some(rest) => root.join(HUGE_PAGES).join(rest.trim_start_matches(['.', '/']).replace('.', "/")),
            None => sysctl_path(root, name),
        };
        if name.contains("..") || name.starts_with('/') {
            return Err(Error::usage(format_args!("--set {text}: {name} is no name of a setting")));
        }
        let previous = read(&path).map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => Error::usage(format_args!(
                "--set {text}: this kernel has no such setting, which would be {}",
                path.display()
            )),
            _ => Error::failed(format_args!("--set {text}: cannot read {}: {cause}", path.display())),
        })?;
        // As the kernel writes a value of several words.
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        if previous == value {
            return Err(Error::usage(format_args!(
                "--set {text}: it is {value} already, so nothing would be compared"
            )));
        }
        let partner = PARTNERS.iter().find(|pair| pair.contains(&name) && previous == "0");
        let partner = partner.and_then(|[a, b]| {
            let path = sysctl_path(root, if name == *a { b } else { a });
            let used = read(&path).ok()?;
            Some((path, used))
        });
        let restored_by = partner.unwrap_or_else(|| (path.clone(), previous.clone()));
        Ok(Self { name: name.to_owned(), value, previous, path, restored_by })
    }
}

fn sysctl_path(root: &Path, name: &str) -> PathBuf {
    root.join("proc/sys").join(name.replace('.', "/"))
}

/// The value in a file: of several words the one in brackets.
fn read(path: &Path) -> std::io::Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(chosen(&text).unwrap_or(&text).split_whitespace().collect::<Vec<_>>().join(" "))
}

fn write(path: &Path, value: &str) -> Result<()> {
    // Not created: a file that is not there is no setting.
    let file = File::options().write(true).truncate(true).open(path);
    file.and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|cause| Error::failed(format_args!("cannot write {value} to {}: {cause}", path.display())))
}

/// Start of a process in the kernel's ticks; `None` if there is no such process, or it has ended and its parent has not
/// asked for that yet.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let lives = fields.next()? != "Z";
    fields.nth(18).filter(|_| lives).map(str::to_owned)
}

impl Knobs {
    /// Writes the present values to the journal, so that they can be restored after any end of this process.
    ///
    /// # Errors
    /// Another process tries settings, or the journal cannot be written.
    pub fn hold(root: &Path, knobs: Vec<Knob>) -> Result<Self> {
        undo(root)?;
        let journal = root.join(JOURNAL);
        let pid = std::process::id();
        let settings = knobs.iter().map(|knob| knob.restored_by.clone()).collect();
        let text =
            serde_json::to_string(&Journal { pid, started: started(pid).unwrap_or_default(), settings })
                .map_err(Error::failed)?;
        let failed = |cause: &std::io::Error| Error::io("write", &journal, cause);
        let mut file = File::options().write(true).create_new(true).open(&journal).map_err(|cause| {
            match cause.kind() {
                ErrorKind::AlreadyExists => {
                    Error::failed("another `framewright try` is running: wait for it")
                }
                ErrorKind::PermissionDenied => Error::failed(
                    "only root changes settings of the kernel: run `sudo $(which framewright) try …`",
                ),
                _ => failed(&cause),
            }
        })?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|cause| failed(&cause))?;
        Ok(Self { knobs, journal })
    }

    /// Sets what is tried, or what was before.
    ///
    /// # Errors
    /// The kernel refuses a value.
    pub fn set(&self, tried: bool) -> Result<()> {
        for knob in &self.knobs {
            let (path, value) = &knob.restored_by;
            let (path, value) = if tried { (&knob.path, &knob.value) } else { (path, value) };
            write(path, value)?;
        }
        // Later: a setting may change one that was set before.
        for knob in &self.knobs {
            let value = if tried { &knob.value } else { &knob.previous };
            let found = read(&knob.path).map_err(|cause| Error::io("read", &knob.path, &cause))?;
            if found != *value {
                return Err(Error::failed(format_args!(
                    "{}={value} does not stay: the kernel set it to {found}",
                    knob.name
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Knobs {
    fn drop(&mut self) {
        let mut all = true;
        // The other way round, as some depend on others.
        for knob in self.knobs.iter().rev() {
            if read(&knob.path).is_ok_and(|now| now == knob.previous) {
                continue;
            }
            let (path, value) = &knob.restored_by;
            if let Err(error) = write(path, value) {
                say(&format!("framewright: {}={} could not be restored: {error}", knob.name, knob.previous));
                all = false;
            }
        }
        if all {
            let _ = fs::remove_file(&self.journal);
        }
    }
}

/// Restores the settings that a killed `try` left changed; returns a line for each.
///
/// # Errors
/// The journal cannot be read, or a setting not be written.
pub fn undo(root: &Path) -> Result<Vec<String>> {
    let path = root.join(JOURNAL);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::io("read", &path, &cause)),
    };
    let Ok(journal) = serde_json::from_str::<Journal>(&text) else {
        // It was killed while it wrote this, before it changed anything.
        fs::remove_file(&path).map_err(|cause| Error::io("remove", &path, &cause))?;
        return Ok(Vec::new());
    };
    if started(journal.pid).is_some_and(|started| started == journal.started) {
        return Ok(Vec::new());
    }
    let mut said = Vec::new();
    for (file, previous) in journal.settings.iter().rev() {
        if read(file).is_ok_and(|now| now == *previous) {
            continue;
        }
        write(file, previous)?;
        said.push(format!(
            "{} is {previous} again, as before a `framewright try` that was killed",
            file.display()
        ));
    }
    fs::remove_file(&path).map_err(|cause| Error::io("remove", &path, &cause))?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with two settings.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("framewright-try-{name}-{}", std::process::id()));
            let khugepaged = format!("{HUGE_PAGES}/khugepaged");
            for folder in ["proc/sys/vm", &khugepaged, "run"] {
                fs::create_dir_all(root.join(folder)).expect("the temporary directory can be written");
            }
            for (name, text) in [
                ("compaction_proactiveness", "20\n"),
                ("dirty_bytes", "0\n"),
                ("dirty_ratio", "20\n"),
                ("lowmem_reserve_ratio", "256\t256\t32\t0\n"),
            ] {
                fs::write(root.join("proc/sys/vm").join(name), text).expect("written");
            }
            fs::write(root.join(khugepaged).join("defrag"), "1\n").expect("written");
            fs::write(root.join(HUGE_PAGES).join("enabled"), "always [madvise] never\n").expect("written");
            Self(root)
        }

        fn values(&self) -> [String; 2] {
            ["proc/sys/vm/compaction_proactiveness", "sys/kernel/mm/transparent_hugepage/enabled"]
                .map(|name| read(&self.0.join(name)).expect("there"))
        }

        fn knobs(&self) -> Vec<Knob> {
            ["vm.compaction_proactiveness=98", "transparent_hugepage=always"]
                .map(|text| Knob::parse(&self.0, text).expect("a setting"))
                .to_vec()
        }

        fn has_journal(&self) -> bool {
            self.0.join(JOURNAL).exists()
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn settings_are_changed_in_turn_and_brought_back() {
        let fake = Fake::new("turn");
        let knobs = Knobs::hold(&fake.0, fake.knobs()).expect("held");
        assert!(fake.has_journal());
        let refused = Knobs::hold(&fake.0, fake.knobs()).expect_err("one at a time").to_string();
        assert!(refused.contains("another `framewright try`"), "{refused}");
        knobs.set(true).expect("set");
        assert_eq!(fake.values(), ["98", "always"]);
        knobs.set(false).expect("set");
        assert_eq!(fake.values(), ["20", "madvise"]);
        knobs.set(true).expect("set");
        drop(knobs);
        assert_eq!(fake.values(), ["20", "madvise"]);
        assert!(!fake.has_journal());
    }

    #[test]
    fn what_a_killed_process_changed_is_undone_and_what_a_living_one_changed_is_not() {
        let fake = Fake::new("killed");
        let knobs = Knobs::hold(&fake.0, fake.knobs()).expect("held");
        knobs.set(true).expect("set");
        assert_eq!(undo(&fake.0).expect("nothing to do"), Vec::<String>::new(), "this process lives");
        assert_eq!(fake.values(), ["98", "always"]);
        // As after SIGKILL: nothing was brought back, and the number is another process's.
        core::mem::forget(knobs);
        let journal = fs::read_to_string(fake.0.join(JOURNAL)).expect("there");
        let start = format!("\"started\":\"{}\"", started(std::process::id()).expect("it lives"));
        assert!(journal.contains(&start), "{journal}");
        fs::write(fake.0.join(JOURNAL), journal.replace(&start, "\"started\":\"1\"")).expect("written");
        assert_eq!(undo(&fake.0).expect("undone").len(), 2);
        assert_eq!(fake.values(), ["20", "madvise"]);
        assert!(!fake.has_journal() && undo(&fake.0).expect("nothing").is_empty());
        // One that was killed while it wrote had changed nothing.
        fs::write(fake.0.join(JOURNAL), &journal[..20]).expect("written");
        assert!(undo(&fake.0).expect("nothing").is_empty() && !fake.has_journal());
    }

    /// Linux refuses 0 for `vm.dirty_bytes`; a write of `vm.dirty_ratio` makes it so.
    #[test]
    fn an_unused_one_of_two_partners_comes_back_by_the_other() {
        let fake = Fake::new("partners");
        let [bytes, ratio] = ["dirty_bytes", "dirty_ratio"].map(|name| fake.0.join("proc/sys/vm").join(name));
        let held = |text: &str| Knobs::hold(&fake.0, vec![Knob::parse(&fake.0, text).expect("a setting")]);
        let tried = held("vm.dirty_bytes=16777216").expect("held");
        tried.set(true).expect("set");
        // As Linux does.
        fs::write(&ratio, "0\n").expect("written");
        drop(tried);
        let now = |file| read(file).expect("there");
        assert_eq!((now(&bytes), now(&ratio)), ("16777216".to_owned(), "20".to_owned()));
        assert!(!fake.has_journal());
        // The one that is used comes back by itself.
        fs::write(&bytes, "0\n").expect("written");
        let tried = held("vm.dirty_ratio=30").expect("held");
        tried.set(true).expect("set");
        drop(tried);
        assert_eq!((now(&bytes), now(&ratio)), ("0".to_owned(), "20".to_owned()));
    }

    #[test]
    fn wrong_names_and_values_are_refused() {
        let fake = Fake::new("wrong");
        for (text, expected) in [
            ("vm.compaction_proactiveness", "expected NAME=VALUE"),
            ("vm.compaction_proactiveness=20", "it is 20 already"),
            ("vm.nothing=1", "no such setting"),
            ("lock_place=own_line", "not in Linux"),
            ("/etc/passwd=1", "no name of a setting"),
            ("vm/../../x..=1", "no name of a setting"),
        ] {
            let error = Knob::parse(&fake.0, text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let by_own_name = Knob::parse(&fake.0, "compaction_proactiveness=98").expect("it is a sysctl");
        assert_eq!(
            (by_own_name.name.as_str(), by_own_name.previous.as_str()),
            ("vm.compaction_proactiveness", "20")
        );
        let words = Knob::parse(&fake.0, "vm.lowmem_reserve_ratio=128  64 32 0").expect("a sysctl");
        assert_eq!((&*words.previous, &*words.value), ("256 256 32 0", "128 64 32 0"));
        let file = Knob::parse(&fake.0, "transparent_hugepage.khugepaged.defrag=0").expect("a file");
        assert!(file.path.ends_with("transparent_hugepage/khugepaged/defrag"));
        // A kernel that takes another value than it was given is not believed.
        let mut knobs = fake.knobs();
        knobs[0].path = PathBuf::from("/dev/full");
        let held = Knobs::hold(&fake.0, knobs).expect("held");
        assert!(held.set(true).is_err());
        core::mem::forget(held);
    }
}
