//! The kernel's trace file system: a trace instance of our own, its events, its buffers.
//!
//! An instance is a directory under `instances/` with buffers, clock and enabled events of its own, so
//! neither a recording nor its end touches another tool's tracing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::error::Error;

const MOUNT_POINT: &str = "/sys/kernel/tracing";
const PREFIX: &str = "framewright-";

const AS_ROOT: &str = "run as root, for example with sudo";
const CONFIG: &str = "use a kernel built with CONFIG_FTRACE and CONFIG_EVENT_TRACING";
const LOCKDOWN: &str = "check the kernel's lockdown and tracing settings";

/// The place where the kernel's tracing is. If it was not mounted, it is while this exists.
pub(super) struct Root {
    path: PathBuf,
    /// Keeps it mounted, also against another recording that mounted it and ends first.
    held: Option<File>,
    mounted: bool,
}

impl Root {
    /// Finds it, mounted if it was not.
    pub(super) fn find() -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(missing("tracing a whole system takes root", AS_ROOT));
        }
        let path = PathBuf::from(MOUNT_POINT);
        if !path.is_dir() {
            return Err(missing(format!("{MOUNT_POINT} is missing, so this kernel has no tracefs"), CONFIG));
        }
        let mut root = Self { path, held: None, mounted: false };
        if !root.path.join("instances").is_dir() {
            mount("tracefs", MOUNT_POINT, "tracefs", MountFlags::empty(), None).map_err(|cause| {
                missing(
                    format!("tracefs cannot be mounted on {MOUNT_POINT}: {}", io::Error::from(cause)),
                    LOCKDOWN,
                )
            })?;
            root.mounted = true;
        }
        root.held = File::open(&root.path).ok();
        Ok(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.held = None;
        if self.mounted {
            // Another process may use it by now; then it stays.
            let _ = unmount(MOUNT_POINT, UnmountFlags::empty());
        }
    }
}

/// A trace instance, removed with its buffers when dropped, and by a watchdog if this process is killed before.
pub(super) struct Instance {
    path: PathBuf,
    watchdog: Child,
}

/// Waits until the recorder's end of a pipe is closed, however it ends; then ends what the recorder has left.
const WATCHDOG: &str = "\
trap '' INT TERM HUP QUIT
read -r _
echo 0 > \"$1/tracing_on\"
echo 0 > \"$1/events/enable\"
n=0
while [ -d \"$1\" ] && ! rmdir \"$1\" && [ $n -lt 1000 ]; do n=$((n + 1)); sleep 0.1; done
[ -z \"$2\" ] || umount \"$2\"
";

impl Instance {
    /// Creates an instance that traces nothing yet, and removes those that killed recorders left.
    pub(super) fn create(root: &Root) -> Result<Self, Error> {
        let instances = root.path.join("instances");
        remove_orphans(&instances);
        let path = instances.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|cause| missing(format!("{} cannot be created: {cause}", path.display()), LOCKDOWN))?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "framewright-watchdog"])
            .arg(&path)
            .args(root.mounted.then_some(MOUNT_POINT))
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let watchdog = watchdog.map_err(|cause| {
            let _ = fs::remove_dir(&path);
            missing(
                format!("/bin/sh, which would end the recording if it is killed: {cause}"),
                "install a shell",
            )
        })?;
        let instance = Self { path, watchdog };
        instance.set("tracing_on", "0")?;
        Ok(instance)
    }

    /// Writes one of the instance's settings.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let path = self.path.join(name);
        fs::write(&path, value).map_err(|cause| Error::io("write", &path, cause))
    }

    /// Reads one of the instance's files.
    pub(super) fn get(&self, name: &str) -> Result<String, Error> {
        let path = self.path.join(name);
        read_text(&path).map_err(|cause| Error::io("read", &path, cause))
    }

    /// All events of a group, `GROUP/NAME`, in order of their names; none if there is no such group.
    pub(super) fn group(&self, group: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path.join("events").join(group)).into_iter().flatten().flatten();
        let events = entries.filter(|entry| entry.path().join("format").exists());
        let mut names: Vec<String> =
            events.filter_map(|entry| Some(format!("{group}/{}", entry.file_name().to_str()?))).collect();
        names.sort();
        names
    }

    /// True if there is an event `GROUP/NAME`.
    pub(super) fn has(&self, event: &str) -> bool {
        self.path.join("events").join(event).join("format").exists()
    }

    /// Texts with the layouts of the pages of [`open_pages`](Self::open_pages) and of these events, `GROUP/NAME`.
    pub(super) fn layouts(&self, events: &[String]) -> Result<Vec<String>, Error> {
        let mut texts = vec![self.get("events/header_page")?, self.get("events/header_event")?];
        for event in events {
            let path = self.path.join("events").join(event).join("format");
            texts.push(read_text(&path).map_err(|cause| match cause.kind() {
                io::ErrorKind::NotFound => missing(format!("this kernel has no tracepoint {event}"), CONFIG),
                _ => Error::io("read", &path, cause),
            })?);
        }
        Ok(texts)
    }

    /// CPUs that have a buffer.
    pub(super) fn cpus(&self) -> Result<Vec<u16>, Error> {
        let path = self.path.join("per_cpu");
        let entries = fs::read_dir(&path).map_err(|cause| Error::io("read", &path, cause))?;
        let mut cpus: Vec<u16> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok())
            .collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// A CPU's buffer as raw pages; reading takes them out of the buffer and does not wait for more.
    pub(super) fn open_pages(&self, cpu: u16) -> Result<File, Error> {
        let path = self.path.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        file.map_err(|cause| Error::io("open", &path, cause))
    }

    /// Events that a CPU's buffer had no room for.
    pub(super) fn lost(&self, cpu: u16) -> Result<u64, Error> {
        let stats = self.get(&format!("per_cpu/cpu{cpu}/stats"))?;
        let count = |name: &str| -> u64 {
            let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
        };
        Ok(count("overrun") + count("commit overrun") + count("dropped events"))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Buffers are freed with the directory; should it fail, the next recording tries again.
        let _ = self.set("tracing_on", "0");
        let _ = fs::remove_dir(&self.path);
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// Reads one of the kernel's texts. The first read asks for all of it: some of these files answer only one.
fn read_text(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut text = vec![0; 1 << 16];
    let mut length = 0;
    loop {
        match file.read(&mut text[length..])? {
            0 => break,
            more => length += more,
        }
        if length == text.len() {
            text.resize(2 * length, 0);
        }
    }
    text.truncate(length);
    String::from_utf8(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Removes instances whose recorder is gone: it was killed before it could.
fn remove_orphans(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let recorder = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if let Some(pid) = recorder
            && (pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists())
        {
            // It may still be in use; then it stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn missing(what: impl Into<String>, fix: &'static str) -> Error {
    Error::CannotRecord { what: what.into(), fix }
}
