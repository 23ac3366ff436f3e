//! Shares of a recording's samples beside an independent `perf record` of the same program, judged in another way: by
//! whether any function of a stack belongs to the page allocator.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::process::Command;

use framewright_trace::kernel_time::{Doing, Samples};
use framewright_trace::record::{Options, record};

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

/// Rounds of each program, in each of which it runs plainly and recorded, in every second round the other way round;
/// and in how many it runs under perf as well.
const ROUNDS: usize = 10;
const BY_PERF: usize = 4;

/// Samples of a program's processes that are in page allocation, and all their samples, by perf. It samples the whole
/// machine, as events of a task end before the task gives its memory back at its exit, where a compiler frees most.
fn by_perf(folder: &Folder, program: &str) -> [f64; 2] {
    let [data, root] = ["perf.data", "root"].map(|name| folder.path().join(name));
    let program = format!("echo $$ >{}; {program}", root.display());
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-a", "-e", "cpu-clock", "-F", "1999", "-g", "-o"])
        .arg(&data)
        .args(["--", "sh", "-c", &program]);
    assert!(perf.status().expect("perf of Debian's linux-perf").success());
    let mut script = Command::new("perf");
    script.args(["script", "--show-task-events", "-F", "pid,ip,sym", "-i"]).arg(&data);
    let text = script.output().expect("perf").stdout;
    let text = String::from_utf8_lossy(&text);
    let mut processes = HashSet::from([fs::read_to_string(root).unwrap().trim().to_owned()]);
    let contains = |stack: &str, names: &[&str]| names.iter().any(|name| stack.contains(name));
    let allocates = |stack: &str| {
        contains(stack, &["__alloc_frozen_pages", "__alloc_pages", "get_page_from_freelist", "rmqueue"])
            && !contains(stack, &["clear_page", "try_to_free_pages", "compact_zone", "trace_event"])
    };
    let frees = |stack: &str| {
        contains(stack, &["free_unref_", "free_frozen_page", "free_pcppages", "__free_pages"])
            && !contains(stack, &["trace_event"])
    };
    let (mut found, mut all) = (0.0, 0.0);
    for sample in text.split("\n\n") {
        let (tasks, stack): (Vec<&str>, Vec<&str>) =
            sample.lines().partition(|line| line.contains(" PERF_RECORD_"));
        // FORK(process:thread):(parent:thread)
        for fork in tasks.iter().filter_map(|line| line.split_once("PERF_RECORD_FORK(")) {
            let pids: Vec<&str> = fork.1.split(['(', ')', ':']).filter(|pid| !pid.is_empty()).collect();
            if processes.contains(pids[2]) {
                processes.insert(pids[0].to_owned());
            }
        }
        let Some((_, stack)) = stack.split_first().filter(|(pid, _)| processes.contains(pid.trim())) else {
            continue;
        };
        let stack = stack.join("\n");
        all += 1.0;
        found += f64::from(allocates(&stack) || frees(&stack));
    }
    [found, all]
}

/// CPU time that `run` takes in children, in the kernel's ticks.
fn cpu_of(run: impl FnOnce()) -> f64 {
    let children = || -> f64 {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        [13, 14].map(|n| fields[n].parse::<f64>().unwrap()).iter().sum()
    };
    let before = children();
    run();
    children() - before
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
        for round in 0..ROUNDS {
            if round < BY_PERF {
                theirs.iter_mut().zip(by_perf(&folder, &program)).for_each(|(sum, more)| *sum += more);
            }
            let command = ["sh", "-c", &program].map(OsString::from);
            let (mut made, mut times) = (None, [0.0; 2]);
            for recorded in [round % 2 == 1, round % 2 == 0] {
                times[usize::from(recorded)] = cpu_of(|| {
                    if recorded {
                        made = Some(record(&command, &Options::default()).unwrap());
                    } else {
                        assert!(Command::new("sh").args(["-c", &program]).status().unwrap().success());
                    }
                });
            }
            pairs.push(100.0 * (times[1] / times[0] - 1.0));
            let samples = Samples::of(&made.unwrap().trace).expect("the kernel can be sampled");
            shares.push(samples.share_of(&Doing::ALLOCATOR));
            recording.push(samples.recording_percent());
            let [user, system] = cpu_ms(&samples);
            let parts = samples.share_of(&Doing::PARTS).cpu_ns / 1e6;
            assert!(
                parts <= system,
                "{name}: {parts} ms in parts, {system} ms in the kernel, {user} outside"
            );
        }
        let mean = |figure: &dyn Fn(usize) -> f64| (0..ROUNDS).map(figure).sum::<f64>() / ROUNDS as f64;
        let [low, ours, high] =
            [mean(&|n| shares[n].low), mean(&|n| shares[n].percent), mean(&|n| shares[n].high)];
        let theirs = 100.0 * theirs[0] / theirs[1];
        // Medians, as other work on the machine meets a few of the runs; the error of the pairs' is that of quartiles.
        let sorted = |values: &[f64]| {
            let mut values = values.to_vec();
            values.sort_by(f64::total_cmp);
            values
        };
        let (said, pairs) = (sorted(&recording), sorted(&pairs));
        let middle = |values: &[f64]| f64::midpoint(values[ROUNDS / 2 - 1], values[ROUNDS / 2]);
        let (said, found) = (middle(&said), middle(&pairs));
        let error = 1.25 * (pairs[ROUNDS * 3 / 4] - pairs[ROUNDS / 4]) / 1.35 / (ROUNDS as f64).sqrt();
        println!(
            "{name}: perf {theirs:.2} %, recorded {ours:.2} % [{low:.2}, {high:.2}]; recording cost {said:.1} %, pairs of \
             runs {found:.1} ±{error:.1} %",
        );
        assert!(theirs <= 1.3 * high && theirs >= low / 1.3, "{name}: {theirs} {ours} [{low}, {high}]");
        // Within a third, or where runs differ more than that, within three standard errors of the pairs' median.
        let room = (found / 3.0).max(3.0 * error);
        assert!((said - found).abs() <= room, "{name}: {said} % said, {pairs:?} % found");
    }
}

/// CPU time by samples outside and inside the kernel.
fn cpu_ms(samples: &Samples) -> [f64; 2] {
    let system = samples.system_ns() / 1e6;
    [samples.cpu_ns() / 1e6 - system, system]
}
