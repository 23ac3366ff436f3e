use std::fs;
use std::path::{Path, PathBuf};

use super::{Finding, Root, Severity, State, examine};

/// A virtual machine with two CPUs and 21 GiB under Linux 6.18, as its files were.
const REAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/linux-6.18-vm2");

/// A copy of that system with changes.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("framewright-doctor-{name}-{}", std::process::id()));
        copy(Path::new(REAL), &root);
        Self(root)
    }

    fn replace(&self, file: &str, from: &str, to: &str) -> &Self {
        let path = self.0.join(file);
        let text = fs::read_to_string(&path).expect("it is there");
        assert!(text.contains(from), "{from} in {file}");
        fs::write(&path, text.replace(from, to)).expect("written");
        self
    }

    fn write(&self, file: &str, text: &str) -> &Self {
        fs::write(self.0.join(file), text).expect("written");
        self
    }

    /// Adds files to a folder of control groups.
    fn group(&self, path: &str, files: &[(&str, String)]) {
        let folder = self.0.join("sys/fs/cgroup").join(path);
        fs::create_dir_all(&folder).expect("made");
        files.iter().for_each(|(file, text)| fs::write(folder.join(file), text).expect("written"));
    }

    fn findings(&self) -> Vec<Finding> {
        examine(&Root::open(&self.0).expect("a folder"), None).expect("it can be read").1
    }

    fn find(&self, id: &str) -> Finding {
        let findings = self.findings();
        let found = findings.iter().find(|finding| finding.id == id);
        found.unwrap_or_else(|| panic!("{id} in {findings:?}")).clone()
    }

    fn is_fine(&self, id: &str) {
        let findings = self.findings();
        assert!(findings.iter().all(|finding| finding.id != id), "{findings:?}");
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the temporary directory can be written");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("listed");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

#[test]
fn a_real_system_is_read_whole_and_its_lists_are_as_the_rules_say() {
    let (state, findings) =
        examine(&Root::open(Path::new(REAL)).expect("a folder"), None).expect("it can be read");
    assert_eq!(
        state.zones.iter().map(|zone| zone.name.as_str()).collect::<Vec<_>>(),
        ["DMA", "DMA32", "Normal"]
    );
    assert!(state.release.starts_with("6.18.") && state.online == 2, "{}", state.release);
    for zone in &state.zones {
        assert_eq!((zone.pagesets.len(), zone.blocks.len()), (2, 11), "{}", zone.name);
        assert!(zone.min < zone.low && zone.low < zone.high && zone.managed <= zone.present);
        let sets = &zone.pagesets;
        assert!(sets.iter().all(|(_, set)| set.bounds.is_some_and(|(low, high)| low < high)), "{sets:?}");
    }
    assert!(findings.iter().all(|finding| finding.id != "pcp-undersized"), "{findings:?}");
    assert_eq!(state.distances, [[10]]);
}

/// The fault of *pcp-reset*: lists of the size that a nearly empty zone had.
#[test]
fn lists_that_were_sized_too_early_are_found() {
    let copy = Copy::new("pcp");
    let zoneinfo = fs::read_to_string(copy.0.join("proc/zoneinfo")).expect("there");
    let batch = zoneinfo.lines().rev().find(|line| line.trim_start().starts_with("batch:")).expect("lists");
    copy.replace("proc/zoneinfo", batch, "              batch:    7");
    let finding = copy.find("pcp-undersized");
    assert_eq!((finding.severity, finding.study), (Severity::Error, Some("pcp-reset")));
    assert!(finding.read.starts_with("batch 7, high_min "), "{finding:?}");
    assert!(
        finding.expected.starts_with("batch 63, high_min ") && finding.expected.contains("Linux 6.18"),
        "{finding:?}"
    );
    // Under the rule of 2019, without bounds.
    let old: String = zoneinfo
        .lines()
        .filter(|line| !line.contains("high_m"))
        .map(|line| match line.split_whitespace().next() {
            Some("high:") => "              high:     42\n".to_owned(),
            Some("batch:") => "              batch:    7\n".to_owned(),
            _ => format!("{line}\n"),
        })
        .collect();
    copy.write("proc/zoneinfo", &old).write("proc/sys/kernel/osrelease", "5.3.0\n");
    let finding = copy.find("pcp-undersized");
    assert!(finding.expected.starts_with("batch 63, high 378: the rule of Linux 5.3"), "{finding:?}");
    let good = old.replace("high:     42\n", "high:     378\n").replace("batch:    7\n", "batch:    63\n");
    copy.write("proc/zoneinfo", &good).is_fine("pcp-undersized");
}

/// Watermarks as the kernel shows them have the boost in them; lists were sized by those without.
#[test]
fn a_boosted_zone_has_lists_of_the_right_size() {
    let copy = Copy::new("boost");
    let zoneinfo = fs::read_to_string(copy.0.join("proc/zoneinfo")).expect("there");
    // As Linux 6.1 shows it: no bounds, and the lower one is `high`.
    let shown: String = zoneinfo
        .lines()
        .filter(|line| !line.contains("high:  ") && !line.contains("high_max"))
        .map(|line| line.replace("high_min:", "high:    ") + "\n")
        .collect();
    copy.write("proc/zoneinfo", &shown).write("proc/sys/kernel/osrelease", "6.1.0\n");
    copy.is_fine("pcp-undersized");
    let (others, normal) = shown.split_once("zone   Normal").expect("there");
    let boosted = [("boost    ", 0), ("min      ", 13_605), ("low      ", 17_006), ("high     ", 20_407)];
    let normal = boosted.iter().fold(normal.to_owned(), |text, (name, pages)| {
        text.replacen(&format!("  {name}{pages}"), &format!("  {name}{}", pages + 20_000), 1)
    });
    copy.write("proc/zoneinfo", &format!("{others}zone   Normal{normal}"));
    copy.is_fine("pcp-undersized");
    assert!(copy.find("watermark-boosted").read.starts_with("boost 20000 pages on top of low 17006"));
}

/// Linux doubled the batch in v4.19.
#[test]
fn an_older_kernels_lists_are_as_large_as_it_makes_them() {
    let copy = Copy::new("older");
    copy.replace("proc/zoneinfo", "batch:    63", "batch:    31");
    for release in ["3.10.0-1160.el7.x86_64", "4.14.336", "4.18.20"] {
        copy.write("proc/sys/kernel/osrelease", release);
        copy.is_fine("pcp-undersized");
    }
    copy.write("proc/sys/kernel/osrelease", "4.19.0");
    copy.find("pcp-undersized");
}

/// As of Linux 3.0, where a zone's present pages are those that it manages.
#[test]
fn a_kernel_that_shows_no_managed_pages_has_them_all() {
    let copy = Copy::new("no-managed");
    let text = fs::read_to_string(copy.0.join("proc/zoneinfo")).expect("there");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("managed"));
    copy.write("proc/zoneinfo", &lines.map(|line| format!("{line}\n")).collect::<String>());
    copy.is_fine("zone-not-managed");
    let state = State::read(&Root::open(&copy.0).expect("a folder")).expect("it can be read");
    assert!(state.zones.iter().all(|zone| zone.managed == zone.present && zone.present > 0));
}

/// Linux before v4.6 has neither `vm.watermark_scale_factor` nor `defer`, before v5.9 no `vm.compaction_proactiveness`.
#[test]
fn no_older_kernel_is_told_to_set_what_it_lacks() {
    let copy = Copy::new("lacks");
    copy.write("proc/buddyinfo", "Node 0, zone   Normal 400000 100000 10 5 1 0 0 0 0 0 0\n");
    copy.write(
        "proc/vmstat",
        "compact_fail 900\ncompact_success 100\nallocstall_normal 500\npgalloc_normal 1000000\n",
    );
    copy.write("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    copy.write("sys/kernel/mm/transparent_hugepage/defrag", "[always] madvise never\n");
    copy.write("proc/sys/vm/min_free_kbytes", "90112\n");
    let told = |release: &str| {
        copy.write("proc/sys/kernel/osrelease", release);
        let ids = ["allocation-stalls", "compaction-failing", "fragmented", "huge-faults-compact"];
        ids.map(|id| copy.find(id))
            .map(|found| format!("{} {}", found.advice, found.shell.unwrap_or_default()))
    };
    let [stalls, failing, fragmented, _] = told("3.10.0-1160.el7.x86_64");
    assert!(stalls.contains("vm.min_free_kbytes=180224") && !stalls.contains("scale_factor"), "{stalls}");
    assert!(failing.contains("echo madvise") && !failing.contains("defer"), "{failing}");
    assert!(!fragmented.contains("proactiveness"), "{fragmented}");
    assert_eq!(copy.find("huge-faults-compact").expected, "madvise");
    let [stalls, failing, fragmented, _] = told("6.1.0");
    assert!(stalls.contains("vm.watermark_scale_factor=20") && failing.contains("echo defer"), "{stalls}");
    assert!(fragmented.contains("vm.compaction_proactiveness"), "{fragmented}");
    assert_eq!(copy.find("huge-faults-compact").expected, "madvise, the kernel's default");
}

/// As of Arm servers whose kernel has pages of 64 KiB: 1 MiB, the most that a refill is computed from, is 16 of them.
#[test]
fn pages_may_be_larger() {
    let copy = Copy::new("pages");
    let root = Root::open(&copy.0).expect("a folder");
    let state = || State::read(&root).expect("it can be read");
    let free = state().zones.iter().map(|zone| zone.free).sum::<u64>();
    copy.replace("proc/zoneinfo", "batch:    63", "batch:    3");
    copy.write("proc/meminfo", &format!("MemFree:       {} kB\n", 4 * free + 100));
    copy.find("pcp-undersized");
    assert_eq!((state().page_kib, state().mib(512)), (4, 2));
    copy.write("proc/meminfo", &format!("MemTotal: 640 kB\nMemFree:       {} kB\n", 64 * free - 100));
    copy.is_fine("pcp-undersized");
    assert_eq!((state().page_kib, state().mib(512), state().total), (64, 32, Some(10)));
    // A huge page is what a page of a page table maps: there of order 13, on POWER of order 5.
    let blocks = "0 0 0 0 9000 0 0 0 0 0 0 0 0 0";
    copy.write("proc/buddyinfo", &format!("Node 0, zone   Normal {blocks}\n"));
    assert!(
        copy.find("fragmented").read.contains("in blocks below order 13; the largest free block has order 4")
    );
    copy.write("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
    assert!(copy.find("fragmented").read.contains("in blocks below order 5;"));
    copy.write(
        "proc/buddyinfo",
        &format!("Node 0, zone   Normal {}\n", blocks.replace("9000 0", "9000 9000")),
    );
    copy.is_fine("fragmented");
    copy.write("proc/meminfo", "MemTotal: 640 kB\n");
    assert_eq!(state().page_kib, 4, "it does not say");
}

#[test]
fn what_is_wrong_elsewhere_is_found_too() {
    let copy = Copy::new("rest");
    copy.is_fine("zone-reclaim-on");
    copy.write("proc/sys/vm/zone_reclaim_mode", "1\n");
    assert_eq!(copy.find("zone-reclaim-on").severity, Severity::Warning);
    copy.write("sys/devices/system/node/node0/distance", "10 32\n");
    assert_eq!(copy.find("zone-reclaim-on").severity, Severity::Info);
    copy.write("proc/sys/vm/percpu_pagelist_high_fraction", "8\n").find("pcp-fraction-set");
    copy.write("proc/buddyinfo", "Node 0, zone   Normal 400000 100000 10 5 1 0 0 0 0 0 0\n");
    let fragmented = copy.find("fragmented");
    assert!(
        fragmented.read.starts_with("100 % of 2344 MiB free are in blocks below order 9"),
        "{fragmented:?}"
    );
    assert_eq!(fragmented.zone.as_deref(), Some("node 0 Normal"));
    copy.write("proc/vmstat", "compact_fail 900\ncompact_success 100\nallocstall_normal 500\npgalloc_normal 1000000\n\
                               thp_fault_alloc 10\nthp_fault_fallback 990\noom_kill 2\nnuma_hit 90\nnuma_miss 10\n");
    for id in
        ["compaction-failing", "allocation-stalls", "huge-faults-fail", "oom-kills", "remote-allocations"]
    {
        copy.find(id);
    }
    copy.write("proc/vmstat", "compact_fail 9\ncompact_success 1\n");
    copy.is_fine("compaction-failing");
    let zoneinfo = fs::read_to_string(copy.0.join("proc/zoneinfo")).expect("there");
    let normal = zoneinfo.find("zone   Normal").expect("there");
    let figure = |name: &str| {
        let line =
            zoneinfo[normal..].lines().find(|line| line.trim_start().starts_with(name)).expect("a figure");
        line.to_owned()
    };
    copy.replace("proc/zoneinfo", &figure("boost"), "        boost    512");
    copy.replace("proc/zoneinfo", &figure("managed"), "        managed  100000");
    assert!(copy.find("watermark-boosted").read.starts_with("boost 512 pages"));
    let finding = copy.find("zone-not-managed");
    assert!(finding.read.starts_with("managed 100000 of "), "{finding:?}");
    let severities: Vec<Severity> = copy.findings().iter().map(|finding| finding.severity).collect();
    assert!(severities.is_sorted_by(|a, b| a >= b), "{severities:?}");
}

/// Counters are judged by their recent growth; growth before that is information.
#[test]
fn an_old_incident_is_no_warning() {
    let copy = Copy::new("window");
    let old =
        "compact_fail 900\ncompact_success 100\nallocstall_normal 500\npgalloc_normal 1000000\noom_kill 2\n";
    copy.write("proc/vmstat", old).write("proc/uptime", "100.00 1.0\n");
    let root = Root::open(&copy.0).expect("a folder");
    let before = State::read(&root).expect("it can be read");
    copy.write("proc/uptime", "160.00 1.0\n");
    let severities = |findings: &[Finding], id: &str| {
        let found = findings
            .iter()
            .find(|finding| finding.id == id)
            .unwrap_or_else(|| panic!("{id} in {findings:?}"));
        (found.severity, found.read.clone())
    };
    let (_, quiet) = examine(&root, Some(&before)).expect("it can be read");
    for id in ["compaction-failing", "allocation-stalls", "oom-kills"] {
        let (severity, read) = severities(&quiet, id);
        assert_eq!(severity, Severity::Info, "{id}");
        assert!(read.contains("since boot") && read.ends_with("not in the last 60 s"), "{read}");
    }
    copy.write("proc/vmstat", &old.replace("allocstall_normal 500", "allocstall_normal 900"));
    let (_, now) = examine(&root, Some(&before)).expect("it can be read");
    let (severity, read) = severities(&now, "allocation-stalls");
    assert!(
        severity == Severity::Warning
            && read.starts_with("allocstall 400 for 0 allocated pages in the last 60 s"),
        "{read}"
    );
    assert_eq!(severities(&now, "oom-kills").0, Severity::Info);
    let after = State::read(&root).expect("it can be read");
    assert!(before.may_precede(&after) && !after.may_precede(&before), "in a boot counters only grow");
}

/// Memory that the system counts and no zone has yet is being initialised; other missing memory cannot be handed out.
#[test]
fn memory_under_initialisation_is_not_lost() {
    let copy = Copy::new("deferred");
    let (state, _) = examine(&Root::open(&copy.0).expect("a folder"), None).expect("it can be read");
    let (missing, managed) =
        (state.zones[2].present - 100_000, state.zones.iter().map(|zone| zone.managed).sum::<u64>());
    let left = managed - state.zones[2].managed + 100_000;
    let line = format!("        managed  {}\n", state.zones[2].managed);
    copy.replace("proc/zoneinfo", &line, "        managed  100000\n");
    copy.find("zone-not-managed");
    copy.write("proc/meminfo", &format!("MemTotal:       {} kB\n", 4 * (left + missing)));
    copy.is_fine("zone-not-managed");
    assert_eq!(copy.find("zone-being-initialised").severity, Severity::Info);
    copy.write("proc/meminfo", &format!("MemTotal:       {} kB\n", 4 * left));
    copy.find("zone-not-managed");
}

#[test]
fn huge_pages_and_memory_control_groups_are_looked_at() {
    let copy = Copy::new("groups");
    copy.write("sys/kernel/mm/transparent_hugepage/defrag", "[always] defer madvise never\n");
    assert!(
        copy.find("huge-faults-compact").shell.is_some_and(|line| line.starts_with("echo madvise > /sys/"))
    );
    copy.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    copy.find("huge-pages-off");
    copy.is_fine("huge-faults-compact");
    for (group, limit, used, killed) in [
        // Of a container, which sees no group but its own.
        ("", "1000", "980", 0),
        ("a/full", "1000", "990", 0),
        ("a/roomy", "1000", "100", 0),
        ("free", "max", "990", 9),
        ("killed", "1000", "1", 3),
    ] {
        let events = format!("low 0\noom 0\noom_kill {killed}\n");
        let files = [
            ("memory.max", limit.to_owned()),
            ("memory.current", used.to_owned()),
            ("memory.events", events),
        ];
        copy.group(group, &files);
    }
    let root = Root::open(&copy.0).expect("a folder");
    assert_eq!(root.limited_groups(), ["", "a/full", "a/roomy", "killed"]);
    let expected = [(Severity::Warning, "/"), (Severity::Warning, "a/full"), (Severity::Info, "killed")]
        .map(|(severity, group)| (severity, group.to_owned()));
    groups_are_found(&copy, &expected);
    let found = copy.find("memory-group-full");
    assert!(found.read.ends_with(" 0, /sys/fs/cgroup"), "{}", found.read);
    assert_eq!(found.shell.as_deref(), Some("cat /sys/fs/cgroup/memory.stat"));
}

/// As of systemd without `unified_cgroup_hierarchy`, and of this project's own machines.
#[test]
fn memory_control_groups_of_version_1_are_looked_at() {
    let copy = Copy::new("groups-1");
    for (group, limit, used, killed) in [
        ("memory", (u64::MAX / 2) & !4095, 990, 9),
        ("memory/kubepods/burstable/pod/full", 1000, 990, 0),
        ("memory/killed", 1000, 1, 3),
        // Another controller's.
        ("cpu/full", 1000, 990, 0),
    ] {
        let control = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {killed}\n");
        let [limit, used] = [limit, used].map(|bytes| format!("{bytes}\n"));
        let files = [
            ("memory.limit_in_bytes", limit),
            ("memory.usage_in_bytes", used),
            ("memory.oom_control", control),
        ];
        copy.group(group, &files);
    }
    let expected = [
        (Severity::Warning, "memory/kubepods/burstable/pod/full".to_owned()),
        (Severity::Info, "memory/killed".to_owned()),
    ];
    groups_are_found(&copy, &expected);
}

/// The groups that are found, in the folder and in an archive of it.
fn groups_are_found(copy: &Copy, expected: &[(Severity, String)]) {
    let of_groups = |findings: Vec<Finding>| -> Vec<(Severity, String)> {
        let groups = findings.into_iter().filter(|finding| finding.id == "memory-group-full");
        groups
            .map(|finding| (finding.severity, finding.read.split(':').next().unwrap_or_default().to_owned()))
            .collect()
    };
    assert_eq!(of_groups(copy.findings()), expected);
    let root = Root::open(&copy.0).expect("a folder");
    let saved = copy.0.join("saved.tar");
    fs::write(&saved, root.archive().expect("it has zoneinfo")).expect("written");
    assert_eq!(
        of_groups(examine(&Root::open(&saved).expect("an archive"), None).expect("it can be read").1),
        expected
    );
}

/// For reading, the same finding of two zones is one; each zone keeps what was read of it.
#[test]
fn the_same_finding_of_two_zones_is_said_once() {
    let copy = Copy::new("joined");
    let zoneinfo = fs::read_to_string(copy.0.join("proc/zoneinfo")).expect("there");
    let batch = zoneinfo.lines().rev().find(|line| line.trim_start().starts_with("batch:")).expect("lists");
    copy.replace("proc/zoneinfo", batch, "              batch:    7");
    let findings = copy.findings();
    assert_eq!(findings.iter().filter(|finding| finding.id == "pcp-undersized").count(), 2);
    let joined: Vec<Finding> =
        super::joined(&findings).into_iter().filter(|finding| finding.id == "pcp-undersized").collect();
    let [finding] = &joined[..] else { panic!("{joined:?}") };
    assert_eq!(finding.zone.as_deref(), Some("node 0 DMA32, node 0 Normal"));
    assert!(
        finding.read.starts_with("node 0 DMA32: batch 7")
            && finding.read.contains("; node 0 Normal: batch 7"),
        "{finding:?}"
    );
    assert!(
        finding
            .shell
            .as_deref()
            .is_some_and(|line| line.starts_with("sysctl -w vm.percpu_pagelist_high_fraction=8;"))
    );
}

#[test]
fn an_archive_that_ends_between_two_files_is_not_taken_for_whole() {
    let whole = Root::open(Path::new(REAL)).and_then(|root| root.archive()).expect("an archive");
    let path = std::env::temp_dir().join(format!("framewright-between-{}.tar", std::process::id()));
    // Where the headers of files begin: 512 bytes with the archive's magic.
    let begins = (1..whole.len() / 512).map(|n| 512 * n).filter(|at| whole[at + 257..].starts_with(b"ustar"));
    let mut ends: Vec<usize> = begins.collect();
    assert!(ends.len() > 10, "{ends:?}");
    ends.push(whole.len() - 1024);
    for end in ends {
        fs::write(&path, &whole[..end]).expect("written");
        let error = Root::open(&path).map(drop).expect_err("it is cut").to_string();
        assert!(error.contains("the archive is cut off or damaged"), "{end}: {error}");
    }
    fs::write(&path, &whole).expect("written");
    assert!(Root::open(&path).is_ok());
    fs::remove_file(&path).expect("it was there");
}

#[test]
fn files_that_are_missing_or_damaged_are_no_panic() {
    let error = examine(&Root::open(Path::new("/nonexistent")).expect("not a file"), None)
        .expect_err("there is none")
        .to_string();
    assert!(error.starts_with("cannot read /nonexistent/proc/zoneinfo"), "{error}");
    let copy = Copy::new("damaged");
    for file in
        ["proc/buddyinfo", "proc/vmstat", "proc/sys/kernel/osrelease", "sys/devices/system/cpu/online"]
    {
        fs::remove_file(copy.0.join(file)).expect("ours");
        copy.findings();
    }
    let whole = fs::read(copy.0.join("proc/zoneinfo")).expect("there");
    for length in (0..whole.len()).step_by(97) {
        fs::write(copy.0.join("proc/zoneinfo"), &whole[..length]).expect("written");
        let _ = examine(&Root::open(&copy.0).expect("a folder"), None);
    }
    for wrong in [
        "",
        "x\n",
        "Node x, zone Normal\n",
        "Node 0, zone Normal\n  pages free -1\n",
        "Node 0, zone Normal\n cpu: x\n",
    ] {
        fs::write(copy.0.join("proc/zoneinfo"), wrong).expect("written");
        let error = examine(&Root::open(&copy.0).expect("a folder"), None).expect_err("refused").to_string();
        assert!(error.contains("proc/zoneinfo:"), "{error}");
    }
}

/// An archive of the system's files gives the findings of the folder, in every form of archive.
#[test]
fn an_archive_that_was_made_elsewhere_is_examined_like_the_system() {
    let folder = Root::open(Path::new(REAL)).expect("a folder");
    let bytes = folder.archive().expect("it has zoneinfo");
    let copy = Copy::new("archive");
    let (plain, packed, by_tar) =
        (copy.0.join("saved.tar"), copy.0.join("saved.tar.gz"), copy.0.join("by-tar.tgz"));
    fs::write(&plain, &bytes).expect("written");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, &bytes).expect("in memory");
    fs::write(&packed, gzip.finish().expect("in memory")).expect("written");
    let tar = std::process::Command::new("tar")
        .args(["-czf"])
        .arg(&by_tar)
        .args(["-C", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"), "./linux-6.18-vm2"])
        .status();
    assert!(tar.expect("tar can be run").success());
    let (state, findings) = examine(&folder, None).expect("it can be read");
    for path in [plain, packed, by_tar] {
        let root = Root::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let (again, found) = examine(&root, None).expect("it can be read");
        assert_eq!(found, findings, "{}", path.display());
        assert_eq!(
            (again.zones, again.vmstat, again.sysctl),
            (state.zones.clone(), state.vmstat.clone(), state.sysctl.clone())
        );
        assert_eq!(
            (again.distances, again.node_cpus, again.online),
            (state.distances.clone(), state.node_cpus.clone(), 2)
        );
        assert_eq!(root.archive().expect("as before"), bytes, "{}", path.display());
    }
    let wrong = copy.0.join("wrong.tar");
    fs::write(&wrong, [7; 2000]).expect("written");
    assert!(Root::open(&wrong).expect_err("no archive").to_string().contains("wrong.tar"));
    let mut empty = tar::Builder::new(Vec::new());
    empty.finish().expect("in memory");
    fs::write(&wrong, empty.into_inner().expect("in memory")).expect("written");
    assert!(Root::open(&wrong).expect_err("nothing in it").to_string().contains("no proc/zoneinfo"));
}

/// Linux counts one event under several names: by zone, by who scanned and by what was scanned, and with a reason.
#[test]
fn nothing_is_counted_twice() {
    let copy = Copy::new("counters");
    copy.write(
        "proc/vmstat",
        "pgalloc_dma 1\npgalloc_normal 2\npgalloc_device 4\nallocstall 8\npgscan_direct 16\n\
         pgscan_direct_throttle 32\npgscan_direct_movable 64\nthp_fault_fallback 128\n\
         thp_fault_fallback_charge 256\n",
    );
    let state = State::read(&Root::open(&copy.0).expect("a folder")).expect("it can be read");
    let counted =
        ["pgalloc", "allocstall", "pgscan_direct", "thp_fault_fallback"].map(|name| state.counters(name));
    assert_eq!(counted, [7, 8, 16 + 64, 128]);
}
