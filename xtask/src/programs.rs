//! Huge pages of ten recorded programs, `docs/validation/programs.md`.

use core::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Result, printed, run, target};

const PAGE: &str = "docs/validation/programs.md";

/// Programs, and what each is. The trace of a compile is the one that defaults were tuned on.
const PROGRAMS: [(&str, &str); 10] = [
    ("compile", "C compiles by make"),
    ("programs/sqlite", "a database"),
    ("programs/redis", "a key-value store under load, with a snapshot"),
    ("programs/nginx", "a web server under load"),
    ("programs/java", "a JVM that collects garbage"),
    ("programs/node", "a JavaScript engine that collects garbage"),
    ("programs/go", "a build in Go"),
    ("programs/numpy", "Python with arrays"),
    ("programs/git", "a clone and a repack"),
    ("programs/ffmpeg", "a media encoder"),
];

/// Programs that were recorded after the ten had chosen the interval of compaction and the type of page cache.
const UNSEEN: [(&str, &str); 3] = [
    ("programs/perl", "an interpreter with a hash"),
    ("programs/sort", "a sort of files, and a compressor"),
    ("programs/gxx", "a compile of C++"),
];

/// Programs that were chosen and recorded when the allocator was finished.
const AFTERWARDS: [(&str, &str); 4] = [
    ("programs/postgres", "a database server with a process for each client"),
    ("programs/imagemagick", "image processing on two threads"),
    ("programs/archive", "an archiver, and a compressor on two threads"),
    ("programs/browser", "a browser that shows a page"),
];

/// Whose figures: a heading, and what `replay --new` takes.
const SUBJECTS: [(&str, &str); 3] = [
    ("Linux 6.7", "preset=linux_v6_7"),
    ("and compaction", "preset=linux_v6_7,compaction_proactiveness=98"),
    ("Framewright", "preset=framewright"),
];

/// Columns of figures: those of the subjects, and what is possible.
const COLUMNS: usize = SUBJECTS.len() + 1;

/// A heading, the metric, and the one that says what is possible.
const METRICS: [(&str, &str, &str); 4] = [
    ("mean", "huge_available_percent", "huge_possible_percent[repeat=1]"),
    ("end", "huge_available_percent[at=end]", "huge_possible_percent[repeat=1,at=end]"),
    ("mean of the 15th run", "huge_available_percent[repeat=15]", "huge_possible_percent[repeat=15]"),
    ("its end", "huge_available_percent[repeat=15,at=end]", "huge_possible_percent[repeat=15,at=end]"),
];

const HEAD: &str = "\
# Huge pages of ten programs

Written by `cargo xtask programs`. Each trace is replayed in memory that it nearly fills (1.3 times what it uses at its peak, 16 MiB at
least), fifteen times; behind each run one of twenty blocks that the program left stays for good. The figures are the share of the free
memory that could be had as huge pages, in percent: on average over the first run, at its end, on average over the fifteenth, and at its
end. They are counted, and repeat exactly. *Possible*: what whole huge pages could be of the free memory, if the program's frames lay side
by side; little where memory is small. nginx's last runs do not fit beside what has stayed: requests are refused there, under all three.
When the last round of its fifteenth run comes, 457 frames are free, fewer than a huge page has: what is possible at its end no round can
make, and the mean of the ten ends cannot be above 88.9.
*And compaction*: Linux 6.7 with Framewright's `compaction_proactiveness`, 98 instead of 20. Linux makes a round of compaction every 500
ms of the trace, Framewright every 50. A row's best figure is **bold**. [traces/programs/record](../../traces/programs/record) says how the programs were run.
";

const UNSEEN_HEAD: &str = "\
## Three programs that were not looked at before

They were recorded after rounds of compaction came every 50 ms, and page cache was requested as Linux does
([decision 22](../decisions/0022-pageblocks-are-emptied-in-the-background.md)): what the ten chose is judged by these.
That pageblocks move of which more than half is in use, up to 15/16, was chosen afterwards, and changed none of these figures by more than 1.4.
";

const AFTERWARDS_HEAD: &str = "\
## Programs recorded after the allocator was finished

Chosen by what they are, before any of them was recorded or replayed, and recorded on 2026-11-28: no rule and no number of the
allocator has seen them. [traces/programs/record](../../traces/programs/record) makes them:
`sudo traces/programs/record target/release/framewright postgres imagemagick archive browser`. The last runs of postgres and archive do
not fit beside what has stayed: requests are refused under all three, the most under Framewright. It refuses no single page while one
is free (a counter put into the replay for once); in postgres it serves more requests of 64 pages, and what these hold later ones lack.
";

/// Replays the traces with the released command, which is built of the present tree, and writes the page.
pub(crate) fn refresh(root: &Path) -> Result<()> {
    run("cargo", &["build", "--release"])?;
    let mut tables = [(); METRICS.len()].map(|()| String::new());
    let mut means = [[0.0; COLUMNS]; METRICS.len()];
    let mut behind = Vec::new();
    for (program, what) in PROGRAMS {
        let Replayed { figures, .. } = replay(root, program)?;
        let name = program.rsplit('/').next().unwrap_or(program);
        for (((row, table), mean), (metric, ..)) in
            figures.iter().zip(&mut tables).zip(&mut means).zip(METRICS)
        {
            let _ = write!(table, "| {name}, {what} |");
            let best = row[..SUBJECTS.len()].iter().copied().fold(0.0, f64::max);
            for (n, (figure, mean)) in row.iter().zip(mean).enumerate() {
                let mark = if n < SUBJECTS.len() && best - figure < 0.05 { "**" } else { "" };
                let _ = write!(table, " {mark}{figure:.1}{mark} |");
                *mean += figure / PROGRAMS.len() as f64;
            }
            table.push('\n');
            let [linux, compacting, ours, _] = *row;
            if linux.max(compacting) - ours > 0.05 {
                behind.push(format!("{name}, {metric} ({ours:.1} for {:.1})", linux.max(compacting)));
            }
        }
    }
    let mut page = HEAD.to_owned();
    let names = SUBJECTS.map(|(name, _)| format!(" {name} |")).concat() + " possible |";
    let cells = |figures: &[f64]| figures.iter().map(|figure| format!(" {figure:.1} |")).collect::<String>();
    let _ = write!(page, "\n## Means of the ten\n\n| |{names}\n|---|--:|--:|--:|--:|\n");
    for ((metric, ..), means) in METRICS.iter().zip(&means) {
        let _ = writeln!(page, "| {metric} |{}", cells(means));
    }
    let count = PROGRAMS.len() * METRICS.len();
    let _ = write!(page, "\nBehind the better Linux in {} of {count} cells", behind.len());
    page += &if behind.is_empty() { ".\n".to_owned() } else { format!(": {}.\n", behind.join("; ")) };
    for ((metric, ..), table) in METRICS.iter().zip(&tables) {
        let _ = write!(page, "\n## {metric}\n\n| program |{names}\n|---|--:|--:|--:|--:|\n{table}");
    }
    for (head, programs) in [(UNSEEN_HEAD, &UNSEEN[..]), (AFTERWARDS_HEAD, &AFTERWARDS)] {
        let _ = write!(page, "\n{head}\n| |{names}\n|---|--:|--:|--:|--:|\n");
        let mut behind = 0;
        for (program, what) in programs {
            let Replayed { figures, refused } = replay(root, program)?;
            let name = program.rsplit('/').next().unwrap_or(program);
            for (row, (metric, ..)) in figures.iter().zip(METRICS) {
                let _ = writeln!(page, "| {name}, {what}: {metric} |{}", cells(row));
                let [linux, compacting, ours, _] = *row;
                behind += usize::from(linux.max(compacting) - ours > 0.05);
            }
            if refused.iter().any(|&count| count > 0.0) {
                let counts = refused.map(|count| format!(" {count} |")).concat();
                let _ = writeln!(page, "| {name}, {what}: requests refused in the 15 runs |{counts} |");
            }
        }
        let count = programs.len() * METRICS.len();
        let _ = writeln!(page, "\nBehind the better Linux in {behind} of {count} cells.");
    }
    fs::write(root.join(PAGE), page).map_err(|cause| format!("{PAGE}: {cause}"))
}

/// One program's figures.
struct Replayed {
    /// A row a metric, a column a subject, and what is possible under the last.
    figures: [[f64; COLUMNS]; METRICS.len()],
    /// By subject: allocations that found no block.
    refused: [f64; SUBJECTS.len()],
}

fn replay(root: &Path, program: &str) -> Result<Replayed> {
    let trace = format!("traces/{program}.parquet");
    let [base, new @ ..] = SUBJECTS.map(|(_, config)| config);
    let mut command = Command::new(target().join("release/framewright"));
    command.current_dir(root).args(["replay", &trace, "-q", "--samples", "1", "--format", "json"]);
    command.args(["--base", base]);
    new.iter().for_each(|config| _ = command.args(["--new", config]));
    let saved = printed(&mut command).map_err(|cause| format!("{trace}: {cause}"))?;
    let saved: Value = serde_json::from_str(&saved).map_err(|cause| format!("{trace}: {cause}"))?;
    let metrics = saved["results"][0]["metrics"].as_array().ok_or("a result without metrics")?;
    let variants = &saved["results"][0]["variants"];
    let mean = |name: &str, subject: usize| {
        let metric = metrics.iter().find(|metric| metric["name"] == name);
        let variant = variants[subject].as_str().unwrap_or_default();
        let figure = metric.and_then(|metric| metric["samples"][variant][0].as_f64());
        figure.ok_or_else(|| format!("{trace}: no {name} of {variant}"))
    };
    let mut figures = [[0.0; COLUMNS]; METRICS.len()];
    for (row, (_, metric, possible)) in figures.iter_mut().zip(METRICS) {
        for (subject, figure) in row[..SUBJECTS.len()].iter_mut().enumerate() {
            *figure = mean(metric, subject)?;
        }
        row[SUBJECTS.len()] = mean(possible, SUBJECTS.len() - 1)?;
    }
    let mut refused = [0.0; SUBJECTS.len()];
    for (subject, count) in refused.iter_mut().enumerate() {
        *count = mean("failed_allocations[memory=tight]", subject)?;
    }
    Ok(Replayed { figures, refused })
}
