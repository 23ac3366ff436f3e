//! Shares of a recording's samples beside an independent `perf record` of the same program, judged in another way: by whether
//! any function of a stack belongs to the page allocator.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use framewright_workload::kernel_time::{Doing, Samples};
use framewright_workload::record::{Options, record};

use crate::common::Folder;

/// Faults pages in and gives them back, 4 GiB in all.
const FAULTS: &str = r"
#include <sys/mman.h>
int main(void) {
    for (int round = 0; round < 64; round++) {
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

/// Rounds of each program, in each of which it runs plainly, under perf and recorded.
const ROUNDS: usize = 6;

/// Samples of a program that are in page allocation, and all its samples, by perf.
fn by_perf(folder: &Folder, program: &str) -> [f64; 2] {
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
    let found = stacks.iter().filter(|stack| allocates(stack) || frees(stack)).count();
    [found as f64, stacks.len() as f64]
}

/// CPU time of all children that have ended so far, in the kernel's ticks: user and system.
fn children() -> [f64; 2] {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    [13, 14].map(|n| fields[n].parse().unwrap())
}

/// CPU time that `run` takes in children.
fn cpu_of(run: impl FnOnce()) -> [f64; 2] {
    let before = children();
    run();
    let after = children();
    [after[0] - before[0], after[1] - before[1]]
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
        ("compile", format!("cc -O1 -c -o {place}/many.o {place}/many.c")),
        ("database", format!("rm -f {place}/x.db; sqlite3 {place}/x.db <{place}/database.sql")),
    ] {
        let mut theirs = [0.0; 2];
        let (mut shares, mut recording, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.iter_mut().zip(by_perf(&folder, &program)).for_each(|(sum, more)| *sum += more);
            let run = || assert!(Command::new("sh").args(["-c", &program]).status().unwrap().success());
            let plain = cpu_of(run);
            let command = ["sh", "-c", &program].map(OsString::from);
            let mut made = None;
            let recorded = cpu_of(|| made = Some(record(&command, &Options::default()).unwrap()));
            pairs.push(100.0 * (recorded.iter().sum::<f64>() / plain.iter().sum::<f64>() - 1.0));
            let samples = Samples::of(&made.unwrap().trace).expect("the kernel can be sampled");
            shares.push(samples.share_of(&Doing::ALLOCATOR));
            recording.push(samples.recording().percent);
            let [user, system] = cpu_ms(&samples);
            let parts = samples.share_of(&Doing::PARTS).cpu_ns / 1e6;
            assert!(
                parts <= system,
                "{name}: {parts} ms in parts, {system} ms in the kernel, {user} outside"
            );
        }
        let mean = |of: &dyn Fn(usize) -> f64| (0..ROUNDS).map(of).sum::<f64>() / ROUNDS as f64;
        let [low, ours, high] =
            [mean(&|n| shares[n].low), mean(&|n| shares[n].percent), mean(&|n| shares[n].high)];
        let theirs = 100.0 * theirs[0] / theirs[1];
        let said = mean(&|n| recording[n]);
        let found = mean(&|n| pairs[n]);
        let variance = mean(&|n| (pairs[n] - found).powi(2)) / (ROUNDS - 1) as f64;
        println!(
            "{name}: perf {theirs:.2} %, recorded {ours:.2} % [{low:.2}, {high:.2}]; recording cost {said:.1} %, pairs of \
             runs {found:.1} ±{:.1} %",
            variance.sqrt()
        );
        assert!(theirs <= 1.3 * high && theirs >= low / 1.3, "{name}: {theirs} {ours} [{low}, {high}]");
        // Within a third, or where runs differ more than that, within three standard errors of the pairs' mean.
        let room = (found / 3.0).max(3.0 * variance.sqrt());
        assert!((said - found).abs() <= room, "{name}: {said} % said, {pairs:?} % found");
    }
}

/// CPU time by samples outside and inside the kernel.
fn cpu_ms(samples: &Samples) -> [f64; 2] {
    let system = samples.system_ns() / 1e6;
    [samples.cpu_ns() / 1e6 - system, system]
}
