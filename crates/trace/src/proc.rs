//! What `/proc` and `/sys` say of the machine: one reader for recordings, results and memory checks.
//!
//! Nothing here fails: what cannot be read is `None`, or a word that says so.

use core::ops::RangeInclusive;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a machine: this one's, or a copy of them below another folder.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn this() -> Self {
        Self::below(Path::new("/"))
    }

    /// The machine whose `proc` and `sys` lie below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A file of it, such as `proc/zoneinfo`. Bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn read(&self, path: &str) -> Option<String> {
        fs::read(self.root.join(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file of one line, without the white space around it; `None` if it is empty, too.
    #[must_use]
    pub fn line(&self, path: &str) -> Option<String> {
        self.read(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Name and release of the kernel, such as `Linux` and `6.1.0-18`.
    #[must_use]
    pub fn kernel(&self) -> (Option<String>, Option<String>) {
        (self.line("proc/sys/kernel/ostype"), self.line("proc/sys/kernel/osrelease"))
    }

    /// A field of `/proc/meminfo` in bytes, such as `MemTotal`.
    #[must_use]
    pub fn memory(&self, name: &str) -> Option<u64> {
        memory(&self.read("proc/meminfo")?, name)
    }

    /// CPUs by `/proc/cpuinfo`; empty if it has none.
    #[must_use]
    pub fn cpus(&self) -> Cpus {
        Cpus(self.read("proc/cpuinfo").unwrap_or_default())
    }
}

/// The text of `/proc/cpuinfo`.
#[derive(Clone, Debug)]
pub struct Cpus(String);

impl Cpus {
    /// Number of CPUs that are online.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lines().filter(|line| line.starts_with("processor")).count()
    }

    /// The model: x86 gives a name, Arm only numbers.
    #[must_use]
    pub fn model(&self) -> String {
        let field = |name| field(&self.0, name);
        if let Some(name) = field("model name").or_else(|| field("Model")) {
            return name.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        match (field("CPU implementer"), field("CPU part")) {
            (Some(implementer), Some(part)) => {
                format!("{} implementer {implementer} part {part}", std::env::consts::ARCH)
            }
            _ => format!("unknown {}", std::env::consts::ARCH),
        }
    }

    /// Whether the kernel sees a hypervisor below it; `None` where the kernel lists no flags.
    #[must_use]
    pub fn are_virtual(&self) -> Option<bool> {
        field(&self.0, "flags").map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
    }
}

/// The first value of a `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// Bytes that `/proc/meminfo` has under a name. It counts in KiB.
#[must_use]
pub fn memory(meminfo: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(meminfo, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The word in square brackets: which of its words a setting of `/sys` is set to.
#[must_use]
pub fn chosen(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// Signals of this process, bit n - 1 for signal n, by a line of `/proc/self/status`: `SigIgn`, those that it ignores,
/// or `SigCgt`, those that it has handlers for. None where the system does not say.
#[must_use]
pub fn signals(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, line).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
}

/// Ranges of a list such as `0-3,8`; parts that are no numbers are left out.
pub fn ranges(list: &str) -> impl Iterator<Item = RangeInclusive<usize>> {
    list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_and_named() {
        let pc = Cpus(
            "processor\t: 0\nmodel name\t: AMD  EPYC 7742\nflags\t\t: fpu hypervisor\nprocessor\t: 1\n"
                .into(),
        );
        assert_eq!((pc.count(), pc.model().as_str(), pc.are_virtual()), (2, "AMD EPYC 7742", Some(true)));
        let arm = Cpus("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n".into());
        assert!(arm.model().ends_with("implementer 0x41 part 0xd0c"), "{}", arm.model());
        assert_eq!((arm.count(), arm.are_virtual()), (1, None));
        assert!(Cpus(String::new()).model().starts_with("unknown "));
    }

    #[test]
    fn lists_have_ranges() {
        assert_eq!(ranges("0-2, 8,x,9-\n").flatten().collect::<Vec<_>>(), [0, 1, 2, 8]);
        assert_eq!(ranges("").count(), 0);
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("always"), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        assert_eq!(memory("MemTotal:       24633812 kB\nMemFree: 1 kB\n", "MemFree"), Some(1024));
        for wrong in ["MemFree: many kB\n", "MemFree: 1\n", "MemFree: 18446744073709551615 kB\n", ""] {
            assert_eq!(memory(wrong, "MemFree"), None, "{wrong}");
        }
    }
}
