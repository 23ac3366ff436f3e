//! `boot` and `study parallel-init`, as a user runs them.

use framewright_report::result::{Document, Kind, Part};

use crate::{Scratch, document, refusal, text};

fn part<'a>(document: &'a Document, name: &str) -> &'a Part {
    document.results.iter().find(|part| part.part == name).unwrap_or_else(|| panic!("part {name}"))
}

fn two(part: &Part, metric: &str) -> (f64, f64) {
    let metric = part.find(metric).unwrap_or_else(|| panic!("{metric} in {part:?}"));
    (metric.of("before")[0], metric.of("after")[0])
}

#[test]
fn the_256_cpu_machine_has_the_known_lists_before_and_after() {
    let document = document(&["boot", "--machine", "rome", "--lazy"]);
    let lists = part(&document, "lists");
    assert_eq!(lists.kind, Kind::Derived);
    assert_eq!(lists.metrics.len(), 3);
    for (name, counts) in [
        ("lists[batch=1,high=0]", (256.0, 256.0)),
        ("lists[batch=7,high=42]", (512.0, 0.0)),
        ("lists[batch=63,high=378]", (256.0, 768.0)),
    ] {
        assert_eq!(two(lists, name), counts, "{name}");
    }
    let config = "preset=linux_v5_4,pcp_reset=false";
    let vanilla = text(&["boot", "--machine", "rome", "--lazy", "--config", config]);
    assert!(
        vanilla.contains("not resized (batch/high): 256 of 1/0, 512 of 7/42, 256 of 63/378\n"),
        "{vanilla}"
    );
}

#[test]
fn a_small_machine_boots_and_says_what_it_did() {
    let log = text(&["boot", "--machine", "haswell-vm", "--threads", "2"]);
    for line in [
        "] boot of haswell-2699v3-vm4: 4 CPUs, descriptors of 8 bytes\n",
        "] map: [mem 0x0000000000001000-0x0000000000f9efff] usable\n",
        "] node 0: [mem 0x0000000001000000-0x000000006fffffff]\n",
        "] zone: node 0 Normal  [mem 0x0000000100000000-0x000000037fffffff] 2621440 pages present, deferred from \
         0x108000000\n",
        "] early part: 486743 pages managed after ",
        "] node 0 deferred pages initialised in ",
        " ms: 2547712 pages, 2 threads\n",
        "] per-CPU lists resized (batch/high): 4 of 1/0, 8 of 63/378\n",
        "] memory: 12137820K/12320376K available, 182556K reserved\n",
        "] phases, ms: map ",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
    let document = document(&["boot", "--machine", "haswell-vm", "--config", "descriptor_bytes=64"]);
    let zones = part(&document, "zones");
    assert_eq!(two(zones, "managed_pages[zone=2,node=0,type=Normal]"), (32768.0, 2_580_480.0));
    let time = part(&document, "time");
    assert_eq!((time.kind, time.machine.as_str()), (Kind::Measured, "host"));
    for phase in ["map", "structures", "early", "deferred", "finish"] {
        assert!(time.find(&format!("phase_ms[phase={phase}]")).is_some(), "{phase}");
    }
    assert_eq!(time.find("deferred_init_pages[node=0]").expect("counted").of("boot"), [2_547_712.0]);
}

const LOG: &str = "\
BIOS-e820: [mem 0x0000000000000000-0x000000000009fbff] usable
BIOS-e820: [mem 0x000000000009fc00-0x000000000009ffff] reserved
BIOS-e820: [mem 0x0000000000100000-0x00000000bfffffff] usable
BIOS-e820: [mem 0x0000000100000000-0x000000043fffffff] usable
ACPI: SRAT: Node 0 PXM 0 [mem 0x00000000-0x23fffffff]
ACPI: SRAT: Node 1 PXM 1 [mem 0x240000000-0x43fffffff]
";

#[test]
fn a_kernel_log_and_a_copied_system_boot() {
    let scratch = Scratch::new("boot-maps");
    let map = scratch.file("dmesg", LOG);
    for split in ["one_thread_per_node", "all_cpus", "all_cpus_by_section"] {
        let config = format!("deferred_init={split}");
        let document =
            document(&["boot", "--map", &map, "--cpus", "6", "--threads", "3", "--config", &config]);
        let zones = part(&document, "zones");
        let (early, all) = two(zones, "managed_pages[zone=2,node=0,type=Normal]");
        assert!(early < all && all <= f64::from(0x14_0000), "{early} {all}");
        assert_eq!(two(zones, "present_pages[zone=3,node=1,type=Normal]").1, f64::from(0x20_0000));
        assert!(part(&document, "time").find("deferred_init_ms[node=1]").is_some());
    }
    scratch.file("proc/iomem", "00001000-0009fbff : System RAM\n100000000-1ffffffff : System RAM\n");
    scratch.file("sys/devices/system/node/node0/cpulist", "0-2\n");
    let root = scratch.0.display().to_string();
    let log = text(&["boot", "--root", &root]);
    assert!(log.contains(": 3 CPUs,") && log.contains("node 0 deferred pages"), "{log}");
}

#[test]
fn what_cannot_boot_is_refused_in_one_line() {
    let scratch = Scratch::new("boot-refused");
    let wrong = scratch.file("wrong", "0x0-0xfff usable\n0x5000-0x1000 usable\n");
    let error = refusal(&["boot", "--map", &wrong], 1);
    assert!(error.contains("wrong:2: the range ends at 0x1000, before it begins at 0x5000"), "{error}");
    let none = scratch.file("none", "0x0-0xfff reserved\n");
    assert!(refusal(&["boot", "--map", &none], 1).contains("holds no memory"));
    let binary = scratch.file("binary", [0xff, 0xfe, 1]);
    assert!(refusal(&["boot", "--map", &binary], 1).contains("byte 0 is not UTF-8"));
    let map = scratch.file("map", LOG);
    assert!(refusal(&["boot", "--map", &map, "--srat", &map], 1).contains("no SRAT"));
    assert!(refusal(&["boot", "--map", "/nonexistent"], 1).contains("cannot read /nonexistent"));
    assert!(refusal(&["boot", "--machine", "rom"], 2).contains("did you mean `rome`"));
    assert!(refusal(&["boot", "--machine", "rome", "--map", &map], 2).contains("cannot be used with"));
    assert!(
        refusal(&["boot", "--machine", "rome", "--config", "deferred_init=none"], 2).contains("all_cpus")
    );
    let huge = scratch.file("huge", "0x100000000 +100T usable\n");
    let error = refusal(&["boot", "--map", &huge], 1);
    assert!(error.contains("MiB are available") && error.contains("--lazy"), "{error}");
    assert!(text(&["boot", "--map", &huge, "--lazy"]).contains("stay uninitialised"));
}

#[test]
fn initialisation_is_measured_beside_a_memset() {
    let run = |name: &str| {
        let all = document(&["study", "parallel-init", "--part", name, "--memory", "2", "--samples", "1"]);
        part(&all, name).clone()
    };
    for name in ["host", "fragmented"] {
        let part = run(name);
        assert_eq!(part.variants, ["one_thread_per_node", "all_cpus", "all_cpus_by_section"]);
        for metric in ["init_gbps", "memset_gbps", "init_of_memset_percent"] {
            let metric = part.find(&format!("{metric}[threads=1]")).expect("measured");
            assert!(part.variants.iter().all(|variant| metric.of(variant)[0] > 0.0));
        }
        let first_touch = part.metrics.iter().any(|metric| metric.family() == "first_touch_init_gbps");
        assert_eq!(first_touch, name == "host");
    }
    let ready = run("ready");
    let ready = ready.find("ready_ms[gib=1024]").expect("measured");
    assert!(ready.of("struct64")[0] > 50.0 * ready.of("compact")[0], "{ready:?}");
}

#[test]
fn the_machines_of_the_study_boot_in_the_simulator() {
    let scratch = Scratch::new("boot-machines");
    let file = scratch.file("machines.json", "");
    let arguments = ["study", "parallel-init", "--part", "machines", "--samples", "1", "-o", &file];
    let theirs = text(&[&arguments[..], &["--style", "deferred-init-2020"]].concat());
    assert!(theirs.contains("machine skylake-8167m-2s") && !theirs.contains("NaN"), "{theirs}");
    assert!(!theirs.contains("not simulated yet"), "{theirs}");
    let document = Document::read(file.as_ref()).expect("a result");
    let machines = part(&document, "machines");
    assert_eq!(machines.metrics.len(), 12);
    for metric in machines.metrics.iter().filter(|metric| metric.family() == "deferred_init_ms") {
        let published = metric.published.expect("from the study's file").mean;
        let sample = |variant: &str| metric.of(variant)[0];
        let one_thread = sample("one_thread_per_node");
        // A core's bandwidth while it initialises is known; small guests start threads and take faults, too.
        assert!((one_thread / published - 1.0).abs() < 0.2, "{}: {one_thread} for {published}", metric.name);
        assert!(
            sample("all_cpus") < one_thread / 1.5 && sample("all_cpus_by_section") < one_thread / 1.5,
            "{}",
            metric.name
        );
    }
    let read = text(&["compare", &file, "--style", "deferred-init-2020"]);
    // The same tables and notes, with a mean before the last, which says what the figures rest on.
    let (tables, basis) = theirs.split_at(theirs.rfind("Basis of the figures").expect("a last note"));
    assert!(read.starts_with(tables) && read.ends_with(basis), "{read}");
}
