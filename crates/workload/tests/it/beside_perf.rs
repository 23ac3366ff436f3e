//! Shares of a recording's samples beside an independent `perf record` of the same program, judged in another way: by whether
//! any function of a stack belongs to the page allocator.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use framewright_workload::kernel_time::{Doing, Samples};
use framewright_workload::record::{Options, record};

use crate::common::Folder;

/// Faults pages in and gives them back, 16 GiB in all.
const FAULTS: &str = r"
#include <sys/mman.h>
int main(void) {
    for (int round = 0; round < 256; round++) {
        char *pages = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(pages, 64 << 20, MADV_NOHUGEPAGE);
        for (long at = 0; at < 64 << 20; at += 4096) pages[at] = 1;
        munmap(pages, 64 << 20);
    }
    return 0;
}
";
const DATABASE: &str = "
create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000000)
insert into t(b) select printf('%.*c', i % 100, 'x') from n;
create index i on t(b);
delete from t where a % 3 = 0;
vacuum;
";

/// Percent of the samples of a program that are in page allocation, by perf.
fn by_perf(folder: &Folder, program: &str) -> f64 {
    let data = folder.path().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-F", "1999", "-g", "-o"])
        .arg(&data)
        .args(["--", "sh", "-c", program]);
    assert!(perf.status().expect("perf of Debian's linux-perf").success());
    let text =
        Command::new("perf").args(["script", "-F", "ip,sym", "-i"]).arg(&data).output().expect("perf").stdout;
    let text = String::from_utf8_lossy(&text);
    let stacks: Vec<&str> = text.split("\n\n").filter(|stack| !stack.trim().is_empty()).collect();
    let has = |stack: &str, names: &[&str]| names.iter().any(|name| stack.contains(name));
    let allocates = |stack: &&&str| {
        has(stack, &["__alloc_frozen_pages", "__alloc_pages", "get_page_from_freelist", "rmqueue"])
            && !has(stack, &["clear_page", "try_to_free_pages", "compact_zone", "trace_event"])
    };
    let frees = |stack: &&&str| {
        has(stack, &["free_unref_", "free_frozen_page", "free_pcppages", "__free_pages"])
            && !has(stack, &["trace_event"])
    };
    100.0 * stacks.iter().filter(|stack| allocates(stack) || frees(stack)).count() as f64
        / stacks.len() as f64
}

#[test]
#[ignore = "takes root, perf, cc and sqlite3; ./test --full installs and runs it"]
fn the_share_of_page_allocation_is_that_which_perf_finds() {
    let folder = Folder::new("beside-perf");
    let place = folder.path().display();
    fs::write(folder.path().join("faults.c"), FAULTS).unwrap();
    fs::write(folder.path().join("database.sql"), DATABASE).unwrap();
    let compile: String = (0..3000)
        .map(|n| format!("int f{n}(int a) {{ int s = {n}; for (int i = 0; i < a; i++) s += s * i + f{}(i); return s; }}\n", n.max(1) - 1))
        .collect();
    fs::write(folder.path().join("many.c"), format!("int f0(int);\n{compile}")).unwrap();
    let made = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(folder.path().join("faults"))
        .arg(folder.path().join("faults.c"))
        .status();
    assert!(made.expect("cc").success());
    for (name, program) in [
        ("faults", format!("{place}/faults")),
        ("compile", format!("for n in 1 2 3 4 5 6 7 8; do cc -O1 -c -o {place}/many.o {place}/many.c; done")),
        (
            "database",
            format!(
                "for n in 1 2 3 4; do rm -f {place}/x.db; sqlite3 {place}/x.db <{place}/database.sql; done"
            ),
        ),
    ] {
        let theirs = by_perf(&folder, &program);
        let command = ["sh", "-c", &program].map(OsString::from);
        let recording = record(&command, &Options::default()).unwrap();
        let samples = Samples::of(&recording.trace).expect("the kernel can be sampled");
        let ours = samples.share_of(&Doing::ALLOCATOR);
        println!(
            "{name}: perf {theirs:.2} %, recorded {:.2} % [{:.2}, {:.2}]",
            ours.percent, ours.low, ours.high
        );
        assert!(theirs <= 1.3 * ours.high && theirs >= ours.low / 1.3, "{name}: {theirs} {ours:?}");
        assert!(samples.share_of(&Doing::PARTS).percent < 100.0, "{name}: {samples:?}");
    }
}
