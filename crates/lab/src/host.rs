//! The machine that a command runs on, as far as it bears on what is measured.

use std::fs;
use std::path::Path;
use std::thread;

use serde::{Deserialize, Serialize};

/// A fingerprint of the host, saved with every result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Model name of the CPU.
    pub cpu: String,
    /// CPUs that this process may run on.
    pub cpus: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Memory that the kernel manages, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How the frequency of CPU 0 is chosen, such as `performance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// When the kernel uses transparent huge pages: `always`, `madvise` or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent_hugepage: Option<String>,
    /// Whether the kernel sees a hypervisor below it: timings then include other guests.
    #[serde(default, rename = "virtual", skip_serializing_if = "Option::is_none")]
    pub is_virtual: Option<bool>,
}

impl Host {
    /// This machine. What cannot be read is left out; nothing here can fail.
    #[must_use]
    pub fn probe() -> Self {
        let cpus = thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Self::from_root(Path::new("/"), cpus)
    }

    /// The machine whose `/proc` and `/sys` lie under `root`.
    fn from_root(root: &Path, cpus: u64) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let cpuinfo = read("proc/cpuinfo").unwrap_or_default();
        let line = |path: &str| read(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        Self {
            cpu: cpu_model(&cpuinfo),
            cpus,
            kernel: format!(
                "{} {}",
                line("proc/sys/kernel/ostype").unwrap_or_else(|| std::env::consts::OS.to_owned()),
                line("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned())
            ),
            memory_bytes: read("proc/meminfo").as_deref().and_then(memory_bytes),
            governor: line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            transparent_hugepage: read("sys/kernel/mm/transparent_hugepage/enabled")
                .as_deref()
                .and_then(chosen)
                .map(str::to_owned),
            is_virtual: field(&cpuinfo, "flags")
                .map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        }
    }

    /// One line for the top of a table, such as `AMD EPYC 7742, 256 CPUs, 251 GiB, Linux 6.1.0`.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut summary = format!("{}, {} CPU{}", self.cpu, self.cpus, if self.cpus == 1 { "" } else { "s" });
        if let Some(bytes) = self.memory_bytes {
            summary += &format!(", {:.0} GiB", bytes as f64 / f64::from(1 << 30));
        }
        if !self.kernel.is_empty() {
            summary += &format!(", {}", self.kernel);
        }
        if self.is_virtual == Some(true) {
            summary += ", virtual";
        }
        if let Some(governor) = &self.governor {
            summary += &format!(", governor {governor}");
        }
        summary
    }
}

/// The first value of a `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// The CPU's model as `/proc/cpuinfo` has it: x86 gives a name, ARM only numbers.
fn cpu_model(cpuinfo: &str) -> String {
    if let Some(name) = field(cpuinfo, "model name").or_else(|| field(cpuinfo, "Model")) {
        return name.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    match (field(cpuinfo, "CPU implementer"), field(cpuinfo, "CPU part")) {
        (Some(implementer), Some(part)) => {
            format!("{} implementer {implementer} part {part}", std::env::consts::ARCH)
        }
        _ => format!("unknown {}", std::env::consts::ARCH),
    }
}

/// `MemTotal` of `/proc/meminfo`, which is in KiB.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kib: u64 = field(meminfo, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory that can be used without swapping, in bytes; `None` if the system does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = field(&meminfo, "MemAvailable")?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The word in square brackets: what is chosen among what could be.
fn chosen(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_pc_says() {
        let root = std::env::temp_dir().join(format!("framewright-host-{}", std::process::id()));
        let files = [
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD  EPYC 7742\nflags\t\t: fpu hypervisor\n"),
            ("proc/meminfo", "MemTotal:       24633812 kB\nMemFree: 1 kB\n"),
            ("proc/sys/kernel/ostype", "Linux\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-18\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ];
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            fs::write(path, content).expect("written");
        }
        let host = Host::from_root(&root, 2);
        fs::remove_dir_all(&root).expect("removed");
        assert_eq!(
            host,
            Host {
                cpu: "AMD EPYC 7742".to_owned(),
                cpus: 2,
                kernel: "Linux 6.1.0-18".to_owned(),
                memory_bytes: Some(24_633_812 * 1024),
                governor: Some("performance".to_owned()),
                transparent_hugepage: Some("madvise".to_owned()),
                is_virtual: Some(true),
            }
        );
        assert_eq!(
            host.summary(),
            "AMD EPYC 7742, 2 CPUs, 23 GiB, Linux 6.1.0-18, virtual, governor performance"
        );
    }

    #[test]
    fn an_empty_system_is_still_a_host() {
        let host = Host::from_root(Path::new("/nonexistent"), 1);
        assert_eq!(host.memory_bytes, None);
        assert!(host.summary().contains("1 CPU,"), "{}", host.summary());
    }

    #[test]
    fn arm_has_numbers_for_a_name() {
        let model = cpu_model("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n");
        assert!(model.ends_with("implementer 0x41 part 0xd0c"), "{model}");
        assert_eq!(memory_bytes("MemTotal: many kB\n"), None);
    }
}
