//! The machine that a command runs on, as far as it bears on what is measured.

use std::thread;

use framewright_trace::proc::{Machine, chosen};
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
    /// Use of transparent huge pages: `always`, `madvise` or `never`.
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
        Self::of(&Machine::this(), cpus)
    }

    fn of(machine: &Machine, cpus: u64) -> Self {
        let (name, release) = machine.kernel();
        let processors = machine.cpus();
        Self {
            cpu: processors.model(),
            cpus,
            kernel: format!(
                "{} {}",
                name.unwrap_or_else(|| std::env::consts::OS.to_owned()),
                release.unwrap_or_else(|| "unknown".to_owned())
            ),
            memory_bytes: machine.memory("MemTotal"),
            governor: machine.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            transparent_hugepage: machine
                .read("sys/kernel/mm/transparent_hugepage/enabled")
                .as_deref()
                .and_then(chosen)
                .map(str::to_owned),
            is_virtual: processors.are_virtual(),
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

/// Memory that can be used without swapping, in bytes; `None` if the system does not say.
pub fn available_bytes() -> Option<u64> {
    Machine::this().memory("MemAvailable")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

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
        let host = Host::of(&Machine::below(&root), 2);
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
        let host = Host::of(&Machine::below(Path::new("/nonexistent")), 1);
        assert_eq!(host.memory_bytes, None);
        assert!(host.summary().contains("1 CPU,"), "{}", host.summary());
    }
}
