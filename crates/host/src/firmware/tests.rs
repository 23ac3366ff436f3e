//! Each reader on what it should understand, and on what it must refuse or at least survive.

use std::fs;

use framewright::boot::zones::Rules;
use tempfile::TempDir;

use super::*;

const HOME: fn(u16, bool) -> Home = |node, hot_pluggable| Home { node: NodeId(node), hot_pluggable };

const LOG: &str = "\
[    0.000000] Linux version 6.1.0
[    0.000000] BIOS-provided physical RAM map:
[    0.000000] BIOS-e820: [mem 0x0000000000000000-0x000000000009fbff] usable
[    0.000000] BIOS-e820: [mem 0x000000000009fc00-0x000000000009ffff] reserved
[    0.000000] BIOS-e820: [mem 0x0000000000100000-0x00000000bffdffff] usable
[    0.000000] BIOS-e820: [mem 0x00000000bffe0000-0x00000000bfffffff] ACPI data
[    0.000000] BIOS-e820: [mem 0x0000000100000000-0x000000043fffffff] usable
[    0.000000] BIOS-e820: [mem 0x0000000440000000-0x000000083fffffff] persistent (type 7)
[    0.000000] BIOS-e820: [mem 0x000000fd00000000-0x000000ffffffffff] type 20
[    0.012345] ACPI: SRAT: Node 0 PXM 0 [mem 0x00000000-0x23fffffff]
[    0.012345] ACPI: SRAT: Node 1 PXM 1 [mem 0x240000000-0x43fffffff] hotplug
[    0.012345] ACPI: SRAT: Node 0 PXM 0 [mem 0x00100000-0xbfffffff]
";

#[test]
fn a_kernel_log_has_ranges_and_nodes() {
    let read = read_e820("log", LOG).expect("it is a log");
    let kinds: Vec<_> = read.map.ranges.iter().map(|range| range.2).collect();
    let Kind::Usable = kinds[0] else { panic!("{kinds:?}") };
    assert_eq!(kinds[1..4], [Kind::Reserved, Kind::Usable, Kind::AcpiTables]);
    assert_eq!(kinds[5..], [Kind::Persistent, Kind::Reserved]);
    assert_eq!(read.map.ranges[0], (0, 0x9_fc00, Kind::Usable), "the last byte belongs to it");
    assert_eq!(read.map.nodes[1], (0x2_4000_0000, 0x2_0000_0000, HOME(1, true)));
    let map = read.map.divide(Rules::default(), |_| Ok(())).expect("it boots");
    let nodes: Vec<_> = map.nodes.iter().map(|part| (part.node.0, part.present)).collect();
    assert_eq!(nodes, [(0, 0x9f + 0xb_fee0 + 0x14_0000), (1, 0x20_0000)]);
}

#[test]
fn a_log_of_the_old_kind() {
    let text = "BIOS-e820: 0000000000000000 - 000000000009fc00 (usable)\n\
                BIOS-e820: 000000000009fc00 - 00000000000a0000 (reserved)\n";
    let read = read_e820("log", text).expect("it is a log");
    assert_eq!(read.map.ranges, [(0, 0x9_fc00, Kind::Usable), (0x9_fc00, 0x400, Kind::Reserved)]);
}

#[test]
fn a_table_has_ranges_nodes_and_cpus() {
    let text = "# two nodes\n0x0-0x9fbff usable\n0x100000 +3071M usable # below the hole\n\n\
                0x100000000 +0x200000000 usable\nnode 0 0x0-0x1ffffffff\nnode 1 0x200000000-0x2ffffffff hotplug\n\
                cpus 0-1,4 node 0\ncpus 2-3 node 1\n";
    let read = read_e820("table", text).expect("it is a table");
    assert_eq!(read.map.ranges[1], (0x10_0000, 3071 << 20, Kind::Usable));
    assert_eq!(read.map.nodes, [(0, 8 << 30, HOME(0, false)), (8 << 30, 4 << 30, HOME(1, true))]);
    assert_eq!(read.cpu_nodes, [0, 0, 1, 1, 0].map(NodeId));
}

#[test]
fn refusals_are_one_line_with_the_line_and_what_stands_there() {
    let long = format!("BIOS-e820: [mem 0x{}", "1".repeat(200));
    for (text, says) in [
        ("", "t: no memory range: expected"),
        ("nothing here", "t:1: expected `0xFIRST-0xLAST` or `0xFIRST +SIZE`: `nothing here`"),
        (
            "0x0-0xfff usable\n0x9-0x5 usable",
            "t:2: the range ends at 0x5, before it begins at 0x9: `0x9-0x5 usable`",
        ),
        ("0x0-0xffffffffffffffff usable", "t:1: the range is the whole address space"),
        ("0x0-0x1ffffffffffffffff usable", "t:1: expected `0xFIRST-"),
        ("0x0-0xfff usabel", "t:1: expected a kind behind the range: usable"),
        ("0x0 +17200000000G usable", "t:1: expected `0xFIRST-"),
        ("node 9999 0x0-0x1", "t:1: expected a node's number"),
        ("node 0 0x0-0xfff\nnode 1 0x800-0x1fff", "t:2: a part of the range belongs to node 0 already"),
        ("cpus 0-3 node 0\ncpus 2 node 1", "t:2: CPU 2 has a node already"),
        ("cpus 0-3,2 node 0", "t:1: CPU 2 has a node already"),
        ("cpus 0-99999999 node 0", "t:1: expected CPUs such as"),
        (
            "x\nBIOS-e820: [mem 0x0-0xfff] wet",
            "t:2: no known kind of memory: `BIOS-e820: [mem 0x0-0xfff] wet`",
        ),
        ("BIOS-e820: [mem 0x0-0xfff", "t:1: expected `[mem 0xFIRST-0xLAST]`"),
        (&long, "t:1: expected `[mem"),
    ] {
        let error = read_e820("t", text).expect_err(text).to_string();
        assert!(error.starts_with(says), "{error}");
        assert!(!error.contains('\n') && error.chars().count() < 250, "{error}");
    }
}

/// An SRAT of `records`, with its length and checksum.
fn srat(revision: u8, records: &[Vec<u8>]) -> Vec<u8> {
    let mut table = vec![0; 48];
    table[..4].copy_from_slice(b"SRAT");
    table[8] = revision;
    table.extend(records.concat());
    let length = table.len() as u32;
    table[4..8].copy_from_slice(&length.to_le_bytes());
    table[9] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

fn memory(domain: u32, start: u64, bytes: u64, flags: u32) -> Vec<u8> {
    let mut record = vec![0; 40];
    (record[0], record[1]) = (1, 40);
    record[2..6].copy_from_slice(&domain.to_le_bytes());
    record[8..16].copy_from_slice(&start.to_le_bytes());
    record[16..24].copy_from_slice(&bytes.to_le_bytes());
    record[28..32].copy_from_slice(&flags.to_le_bytes());
    record
}

fn x2apic(domain: u32, flags: u32) -> Vec<u8> {
    let mut record = vec![0; 24];
    (record[0], record[1]) = (2, 24);
    record[4..8].copy_from_slice(&domain.to_le_bytes());
    record[12..16].copy_from_slice(&flags.to_le_bytes());
    record
}

fn apic(domain: u32) -> Vec<u8> {
    let [low, rest @ ..] = domain.to_le_bytes();
    [&[0, 16, low, 7, 1, 0, 0, 0, 0], rest.as_slice(), &[0; 4]].concat()
}

#[test]
fn an_srat_gives_memory_and_cpus_their_nodes() {
    let table = srat(
        3,
        &[
            apic(0x0102_0304),
            x2apic(5, 1),
            x2apic(6, 0),
            vec![4, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            memory(5, 0x1000, 0x2000, 1),
            memory(0x0102_0304, 0x8000, 0x1000, 3),
            memory(9, 0x9000, 0x1000, 0),
            memory(9, 0, 0, 1),
        ],
    );
    let read = read_srat("SRAT", &table).expect("it is one");
    assert_eq!(read.domains, [0x0102_0304, 5, 9]);
    assert_eq!(read.cpu_nodes, [NodeId(0), NodeId(1)]);
    assert_eq!(read.memory, [(0x1000, 0x2000, HOME(1, false)), (0x8000, 0x1000, HOME(0, true))]);
    let old = srat(1, &[memory(0xffff_ff02, 0, 0x1000, 1)]);
    assert_eq!(read_srat("SRAT", &old).expect("it is one").domains, [2], "eight bits in the first revision");
}

#[test]
fn a_damaged_srat_is_refused_with_the_byte() {
    let good = srat(3, &[memory(0, 0, 0x1000, 1)]);
    let refusal = |table: &[u8]| read_srat("SRAT", table).expect_err("refused").to_string();
    assert!(refusal(b"SRAT").starts_with("SRAT: no SRAT: expected"));
    assert!(refusal(&good[..60]).starts_with("SRAT: its header says 88 bytes, but there are 60"));
    let mut bad = good.clone();
    bad[60] ^= 4;
    assert_eq!(refusal(&bad), "SRAT: the checksum is wrong by 0x04: the table is damaged");
    assert!(refusal(&srat(3, &[vec![1, 0, 0]])).contains("the record at byte 48 has no length"));
    assert!(refusal(&srat(3, &[vec![1, 4, 0, 0]])).contains("byte 48 is of type 1 and has 4 bytes, not 40"));
    assert!(
        refusal(&srat(3, &[memory(0, u64::MAX, 2, 1)])).contains("byte 48 describes 0x2 bytes at 0xffff")
    );
    let crowd: Vec<_> = (0..1025).map(|domain| x2apic(domain, 1)).collect();
    assert!(refusal(&srat(3, &crowd)).contains("names domain 1024: more than 1024 domains"));
}

/// Damage of every kind to texts and tables: nothing panics, what is refused is refused in one line, and what is not
/// makes a map or another refusal.
#[test]
fn no_input_makes_a_reader_panic() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut next = move |below: usize| rng.usize(..below);
    let table = srat(3, &[apic(1), x2apic(2, 1), memory(1, 0, 1 << 30, 1), memory(2, 1 << 30, 1 << 30, 3)]);
    let iomem =
        "00001000-0009fbff : System RAM\n00100000-bfffffff : System RAM\n  01000000-02209987 : Kernel code\n";
    let pieces = [
        "-",
        "0x",
        "[mem ",
        "]",
        "usable",
        "+",
        "G",
        "node 1 ",
        " : ",
        "ffffffffffffffff",
        "\n",
        "\u{1f9e0}",
        " ",
    ];
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..20_000 {
        let mut bytes = [LOG.as_bytes(), iomem.as_bytes(), &table, b"0x0 +1G usable\n"][round % 4].to_vec();
        for _ in 0..=next(4) {
            let at = next(bytes.len());
            match next(4) {
                0 => bytes[at] = next(256) as u8,
                1 => bytes.truncate(at + 1),
                2 => drop(bytes.splice(at..at, pieces[next(pieces.len())].bytes())),
                _ => drop(bytes.splice(at..(at + next(9)).min(bytes.len()), [])),
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        if bytes.starts_with(b"SRAT") && bytes.len() > 9 {
            // Past the checksum, to what it guards.
            let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
            bytes[9] = bytes[9].wrapping_sub(sum);
        }
        let text = String::from_utf8_lossy(&bytes);
        let results = [
            read_e820("t", &text).map(|read| read.map),
            linux::iomem("t", &text).map(|read| read.map),
            read_srat("t", &bytes)
                .map(|read| FirmwareMap { ranges: vec![(0, 4 << 30, Kind::Usable)], nodes: read.memory }),
        ];
        for result in results {
            match result {
                Ok(map) => {
                    accepted += 1;
                    drop(map.divide(Rules::default(), |_| Ok(())).map_err(|error| error.to_string()));
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

/// A copy of a system's files, removed at the end.
fn root(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().expect("made");
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        fs::write(path, content).expect("written");
    }
    root
}

const IOMEM: &str = "\
00000000-00000fff : Reserved
00001000-0009fbff : System RAM
0009fc00-000fffff : Reserved
  000f0000-000fffff : System ROM
00100000-bfffffff : System RAM
  01000000-02209987 : Kernel code
  30000000-3fffffff : Crash kernel
c0000000-febfffff : PCI Bus 0000:00
100000000-43fffffff : System RAM
440000000-83fffffff : Persistent Memory
  440000000-63fffffff : System RAM (kmem)
840000000-93fffffff : Soft Reserved
  840000000-93fffffff : dax0.0
    840000000-93fffffff : System RAM (kmem)
";

#[test]
fn a_linux_with_two_nodes() {
    let block = |n: usize| format!("sys/devices/system/node/node{}/memory{n}/state", u8::from(n >= 72));
    let blocks: Vec<String> = (0..136).filter(|n| !(24..32).contains(n)).map(block).collect();
    let mut files = vec![
        ("proc/iomem", IOMEM),
        ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("sys/devices/system/node/node1/cpulist", "2-3\n"),
        ("sys/devices/system/node/possible", "0-1\n"),
    ];
    files.extend(blocks.iter().map(|block| (block.as_str(), "online\n")));
    let root = root(&files);
    let read = read_linux(root.path()).expect("all is there");
    assert_eq!(read.cpu_nodes, [0, 0, 1, 1].map(NodeId));
    let homes: Vec<_> =
        read.map.nodes.iter().map(|(start, bytes, home)| (start >> 27, bytes >> 27, home.node.0)).collect();
    assert_eq!(homes, [(0, 24, 0), (32, 40, 0), (72, 64, 1)]);
    let claimed: Vec<_> = read.claimed.iter().map(|claimed| (claimed.start, claimed.what.as_str())).collect();
    assert_eq!(claimed, [(0x100_0000, "Kernel code"), (0x3000_0000, "Crash kernel")]);
    let map = read.map.divide(Rules::default(), |_| Ok(())).expect("it boots");
    let nodes: Vec<_> = map.nodes.iter().map(|part| part.node.0).collect();
    assert_eq!(nodes, [0, 1]);
    let behind: Vec<_> = read.map.ranges.iter().filter(|&&(start, ..)| start >= 0x4_4000_0000).collect();
    let kmem = [(0x4_4000_0000, 0x2_0000_0000, Kind::Usable), (0x8_4000_0000, 0x1_0000_0000, Kind::Usable)];
    assert_eq!(behind, [&kmem[0], &kmem[1]], "memory on persistent and on soft reserved memory");
}

#[test]
fn a_linux_that_hides_or_lacks_something_says_so() {
    let root = root(&[("proc/iomem", "00000000-00000000 : Reserved\n00000000-00000000 : System RAM\n")]);
    let error = read_linux(root.path()).expect_err("nothing to read").to_string();
    assert!(error.ends_with("run this as root, or give a kernel log with --map"), "{error}");
    let error = read_linux(&root.path().join("none")).expect_err("no such file").to_string();
    assert!(error.contains("none/proc/iomem: cannot be read: "), "{error}");
    fs::write(root.path().join("proc/iomem"), "00001000-0009fbff : System RAM\n00z : System RAM\n")
        .expect("written");
    let error = read_linux(root.path()).expect_err("damaged").to_string();
    assert!(error.contains("proc/iomem:2: expected `FIRST-LAST : NAME`: `00z"), "{error}");
    fs::write(root.path().join("proc/iomem"), IOMEM).expect("written");
    assert!(read_linux(root.path()).expect("one node").map.nodes.is_empty());
    for node in ["node0", "node1"] {
        fs::create_dir_all(root.path().join("sys/devices/system/node").join(node)).expect("made");
    }
    let error = read_linux(root.path()).expect_err("whose memory?").to_string();
    assert!(error.contains("2 nodes without memory blocks, and no SRAT"), "{error}");
    let table = srat(3, &[memory(0, 0, 4 << 30, 1), memory(1, 4 << 30, 64 << 30, 1)]);
    fs::create_dir_all(root.path().join("sys/firmware/acpi/tables")).expect("made");
    fs::write(root.path().join("sys/firmware/acpi/tables/SRAT"), table).expect("written");
    assert_eq!(read_linux(root.path()).expect("from the table").map.nodes.len(), 2);
}

/// This machine: as root its memory is what it says it has; else the refusal says why.
#[test]
fn this_machine_boots_or_hides_its_addresses() {
    match read_linux("/".as_ref()) {
        Ok(read) => {
            let map = read.map.divide(Rules::default(), |_| Ok(())).expect("it did boot");
            let present: u64 = map.parts.iter().map(|part| part.present).sum();
            let info = fs::read_to_string("/proc/meminfo").expect("every Linux has it");
            let kib: u64 = info.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("MemTotal");
            assert!(present * 4 >= kib && present * 4 < kib * 2, "{present} pages, {kib} KiB");
            assert!(!read.cpu_nodes.is_empty());
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("as root") || error.contains("cannot be read"), "{error}");
        }
    }
}
