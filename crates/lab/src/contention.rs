//! Waits for locks and cache lines that perf measured, beside those that the simulator predicts.
//!
//! Two texts are read: what `perf lock contention` prints, by caller, by thread or by lock, and the report of
//! `perf c2c report --stdio`. A lock's address says nothing to a reader of another run, so waits are added up by the
//! function that waited; the functions that take the zone lock and the LRU lock are known here.

use std::collections::BTreeMap;

use crate::result::{Better, Document, Kind, Part};

/// Functions of Linux 5.10 to 6.18 that take a zone's lock, as perf names the caller. Which of them are inlined depends on
/// the kernel.
const ZONE_LOCK: [&str; 18] = [
    "__free_pages_ok",
    "__isolate_free_page",
    "__rmqueue_pcplist",
    "free_frozen_page_commit",
    "free_one_page",
    "free_pcppages_bulk",
    "free_unref_folios",
    "free_unref_page",
    "free_unref_page_commit",
    "free_unref_page_list",
    "get_page_from_freelist",
    "isolate_freepages_block",
    "reserve_highatomic_pageblock",
    "rmqueue",
    "rmqueue_buddy",
    "rmqueue_bulk",
    "rmqueue_pcplist",
    "unreserve_highatomic_pageblock",
];

/// Functions that take the lock of LRU lists.
const LRU_LOCK: [&str; 16] = [
    "__page_cache_release",
    "check_move_unevictable_folios",
    "evict_folios",
    "folio_batch_move_lru",
    "folio_isolate_lru",
    "folio_lruvec_lock",
    "folio_lruvec_lock_irq",
    "folio_lruvec_lock_irqsave",
    "folios_put_refs",
    "isolate_migratepages_block",
    "lru_note_cost",
    "move_folios_to_lru",
    "pagevec_lru_move_fn",
    "release_pages",
    "shrink_active_list",
    "shrink_inactive_list",
];

/// Names that are listed one by one; the others are added up as `other`.
const LISTED: usize = 20;

/// Waits of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Wait {
    contended: f64,
    total_ns: f64,
    max_ns: f64,
}

/// Loads of a line that another CPU had modified.
#[derive(Clone, Debug, Default, PartialEq)]
struct Line {
    address: String,
    share: f64,
    hits: f64,
    remote: f64,
    /// The function that has most of them.
    function: Option<String>,
}

/// Where a text breaks, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line, from 1.
    pub line: usize,
    /// Why, without the line.
    pub what: String,
}

/// The part of a result that a report makes; `None` if the text is neither report. O(length).
///
/// # Errors
/// A row that is cut off or has other columns.
pub fn read(text: &str) -> Option<Result<Part, Fault>> {
    let mut lines = text.lines();
    if lines.clone().any(|line| line.contains("Shared Data Cache Line Table")) {
        return Some(read_lines(text).map(|lines| lines_part(&lines)));
    }
    lines
        .any(|line| line.contains("contended") && line.contains("total wait"))
        .then(|| read_locks(text).map(|waits| locks_part(&waits)))
}

/// Adds what the simulator says of the same locks: how the wait is shared out.
///
/// # Errors
/// The result has no locks: one line of words.
pub fn beside(part: &mut Part, simulated: &Document) -> Result<(), String> {
    let mut waits: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for theirs in simulated.results.iter().filter(|theirs| theirs.kind == Kind::Simulated) {
        let of = |name: &str| {
            let metric = theirs.metrics.iter().find(|metric| metric.name == name)?;
            let samples = metric.of(&theirs.baseline);
            (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
        };
        for metric in &theirs.metrics {
            let lock = match metric.family() {
                "zone_lock_wait_ns" => "zone",
                "lru_lock_wait_ns" => "lru",
                _ => continue,
            };
            let taken = metric.name.replacen("_wait_ns", "_acquisitions_per_page", 1);
            if let (Some(wait), Some(taken)) = (of(&metric.name), of(&taken)) {
                *waits.entry(lock).or_default().entry("wait").or_default() += wait * taken;
            }
        }
    }
    let sum: f64 = waits.values().flat_map(BTreeMap::values).sum();
    if sum <= 0.0 {
        return Err("it has no simulated waits for zone or LRU locks".to_owned());
    }
    for lock in ["zone", "lru"] {
        let wait: f64 = waits.get(lock).map_or(0.0, |waits| waits.values().sum());
        part.metric(format!("lock_wait_share[lock={lock}]"), "%", Better::None)
            .sample("simulated", 100.0 * wait / sum);
    }
    part.variants.push("simulated".to_owned());
    part.note("Shares are of what is waited for the zone and the LRU locks, on either side; the simulator knows no others.");
    Ok(())
}

fn read_locks(text: &str) -> Result<BTreeMap<String, Wait>, Fault> {
    let mut waits: BTreeMap<String, Wait> = BTreeMap::new();
    let mut columns = 0;
    for (number, line) in text.lines().enumerate() {
        if line.contains("contended") && line.contains("total wait") {
            // What comes behind the four figures: `type caller`, `pid comm`, `address symbol`, …
            columns = line.split("avg wait").nth(1).unwrap_or("").split_whitespace().count();
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if columns == 0 || words.is_empty() || line.starts_with(['#', '=']) {
            continue;
        }
        let Ok(contended) = words[0].parse::<f64>() else {
            // Another table follows, or a summary.
            columns = 0;
            continue;
        };
        let fault = |what: &str| Fault { line: number + 1, what: what.to_owned() };
        let figures: Option<Vec<f64>> = words
            .get(1..7)
            .and_then(|words| words.chunks(2).map(|pair| nanoseconds(pair[0], pair[1])).collect());
        let figures =
            figures.ok_or_else(|| fault("expected a number of waits and three times with units"))?;
        let rest = &words[7..];
        let name = rest
            .get(columns - 1..)
            .filter(|name| !name.is_empty())
            .or_else(|| rest.get(rest.len().checked_sub(1)?..));
        let name = name.ok_or_else(|| fault("names nothing that was waited for"))?.join(" ");
        let name = name.split('+').next().unwrap_or_default();
        let wait = waits.entry(label(name)).or_default();
        wait.contended += contended;
        wait.total_ns += figures[0];
        wait.max_ns = wait.max_ns.max(figures[1]);
    }
    if waits.is_empty() {
        return Err(Fault { line: 1, what: "no lock was waited for, or the text was cut off".to_owned() });
    }
    Ok(waits)
}

/// `1.39 ms` in nanoseconds.
fn nanoseconds(number: &str, unit: &str) -> Option<f64> {
    let scale = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    number
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite() && *number >= 0.0)
        .map(|number| number * scale)
}

/// What a parameter of a metric may hold.
fn label(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.:-/".contains(c);
    text.chars().take(64).map(|c| if allowed(c) { c } else { '_' }).collect()
}

fn locks_part(waits: &BTreeMap<String, Wait>) -> Part {
    let mut part = Part::new("contention", "locks", Kind::Measured, "host").baseline("measured");
    let sum_of = |names: &[&str]| {
        let mut sum = Wait::default();
        for name in names {
            if let Some(wait) = waits.get(*name) {
                sum.contended += wait.contended;
                sum.total_ns += wait.total_ns;
                sum.max_ns = sum.max_ns.max(wait.max_ns);
            }
        }
        sum
    };
    let [zone, lru] = [sum_of(&ZONE_LOCK), sum_of(&LRU_LOCK)];
    let add = |part: &mut Part, family: &str, of: &str, wait: &Wait| {
        for (what, unit, value) in [
            ("contended", "1", wait.contended),
            ("total_wait_ns", "ns", wait.total_ns),
            ("max_wait_ns", "ns", wait.max_ns),
            ("avg_wait_ns", "ns", wait.total_ns / wait.contended.max(1.0)),
        ] {
            part.metric(format!("{family}_{what}{of}"), unit, Better::Lower).sample("measured", value);
        }
    };
    for (name, wait) in [("zone_lock", &zone), ("lru_lock", &lru)] {
        add(&mut part, name, "", wait);
    }
    let both = zone.total_ns + lru.total_ns;
    if both > 0.0 {
        for (lock, wait) in [("zone", zone), ("lru", lru)] {
            let share = 100.0 * wait.total_ns / both;
            part.metric(format!("lock_wait_share[lock={lock}]"), "%", Better::None).sample("measured", share);
        }
    }
    let mut sorted: Vec<(&String, &Wait)> = waits.iter().collect();
    sorted.sort_by(|a, b| b.1.total_ns.total_cmp(&a.1.total_ns));
    let (listed, others) = sorted.split_at(sorted.len().min(LISTED));
    for (name, wait) in listed {
        add(&mut part, "lock", &format!("[caller={name}]"), wait);
    }
    let mut other = Wait::default();
    for (_, wait) in others {
        other.contended += wait.contended;
        other.total_ns += wait.total_ns;
        other.max_ns = other.max_ns.max(wait.max_ns);
    }
    if other.contended > 0.0 {
        add(&mut part, "lock", "[caller=other]", &other);
    }
    part
}

fn read_lines(text: &str) -> Result<Vec<Line>, Fault> {
    let mut lines: Vec<Line> = Vec::new();
    let mut table = "";
    // The line that the rows of the second table are about.
    let mut about: Option<usize> = None;
    for (number, row) in text.lines().enumerate() {
        let titles = ["Shared Data Cache Line Table", "Shared Cache Line Distribution Pareto"];
        if let Some(title) = titles.into_iter().find(|title| row.contains(title)) {
            table = title;
            continue;
        }
        let words: Vec<&str> = row.split_whitespace().collect();
        if table.is_empty() || words.is_empty() || row.starts_with(['#', '=']) || words[0].starts_with('-') {
            continue;
        }
        let fault = |what: &str| Fault { line: number + 1, what: what.to_owned() };
        if table == "Shared Data Cache Line Table" {
            let address = words.get(1).filter(|word| word.starts_with("0x"));
            let share = words.iter().position(|word| word.ends_with('%'));
            let (Some(address), Some(share)) = (address, share) else {
                return Err(fault(
                    "expected a row with an address and a share of all hits in modified lines",
                ));
            };
            // Behind the share: all hits, those in this node, those in another.
            let figures: Option<Vec<f64>> = words
                .get(share + 1..share + 4)
                .and_then(|words| words.iter().map(|word| word.parse().ok()).collect());
            let (Some(figures), Ok(percent)) = (figures, words[share].trim_end_matches('%').parse::<f64>())
            else {
                return Err(fault("expected three counts behind the share"));
            };
            lines.push(Line {
                address: (*address).to_owned(),
                share: percent,
                hits: figures[0],
                remote: figures[2],
                function: None,
            });
        } else if words.last().is_some_and(|word| word.starts_with("0x")) && !row.contains('%') {
            about = lines.iter().position(|line| Some(&line.address.as_str()) == words.last());
        } else if let (Some(about), Some(mark)) =
            (about, words.iter().position(|word| matches!(*word, "[k]" | "[.]")))
            && let Some(function) = words.get(mark + 1)
        {
            // Rows come with the most hits first.
            lines[about].function.get_or_insert_with(|| label(function));
        }
    }
    if lines.is_empty() {
        return Err(Fault { line: 1, what: "no line was shared, or the text was cut off".to_owned() });
    }
    Ok(lines)
}

fn lines_part(lines: &[Line]) -> Part {
    let mut part = Part::new("contention", "lines", Kind::Measured, "host").baseline("measured");
    for (index, line) in lines.iter().take(LISTED).enumerate() {
        let of = match &line.function {
            Some(function) => format!("[line={},function={function}]", index + 1),
            None => format!("[line={}]", index + 1),
        };
        for (what, unit, value) in [
            ("hits_in_modified", "1", line.hits),
            ("remote_hits_in_modified", "1", line.remote),
            ("share_of_hits", "%", line.share),
        ] {
            part.metric(format!("line_{what}{of}"), unit, Better::Lower).sample("measured", value);
        }
        part.note(format!("Line {} is at {}.", index + 1, line.address));
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `perf lock contention` of perf 6.1 on a 6.18 kernel, shortened, and two rows of the allocator.
    const LOCKS: &str = "\
 contended   total wait     max wait     avg wait         type   caller

         1      8.09 ms      8.09 ms      8.09 ms      rwsem:R   exc_page_fault+0x1d8
        17      1.65 ms      1.41 ms     96.79 us     spinlock   call_timer_fn+0x29
         4     40.00 us     20.00 us     10.00 us     spinlock   rmqueue_bulk+0x3c
         6     60.00 us     30.00 us     10.00 us     spinlock   rmqueue_bulk+0x9f
         2    300.00 us    200.00 us    150.00 us     spinlock   folio_lruvec_lock_irqsave+0x5c

=== output for debug===
bad: 0, total: 30
";

    const THREADS: &str = "\
 contended   total wait     max wait     avg wait          pid   comm

         2      8.12 ms      8.09 ms      4.06 ms        11124   lto cgu.1
";

    const LINES: &str = "\
=================================================
           Shared Data Cache Line Table
=================================================
#
#        ----------- Cacheline ----------      Tot  ------- Load Hitm -------    Total
# Index             Address  Node  PA cnt     Hitm    Total  LclHitm  RmtHitm  records
# .....  ..................  ....  ......  .......  .......  .......  .......  .......
#
      0  0xffff88ffbb2f6bc0     0    8223   37.22%     2049      934     1115    19190
      1  0xffff88ffbb2f6c00     0       1   12.50%      688      688        0     3190

=================================================
      Shared Cache Line Distribution Pareto
=================================================
#
  -------------------------------------------------------------
      0     1115      934     3122        0        0  0xffff88ffbb2f6bc0
  -------------------------------------------------------------
          45.20%   38.22%   0.00%    0.00%    0.00%                 0x0     0       1  0xffffffff8113f5a2       432       320       300     2000        48  [k] native_queued_spin_lock_slowpath  [kernel.kallsyms]  qspinlock.c:382   0  1
          10.20%    8.22%   0.00%    0.00%    0.00%                0x40     0       1  0xffffffff8113f5a2       432       320       300     2000        48  [k] rmqueue_bulk  [kernel.kallsyms]  page_alloc.c:1   0  1
";

    fn value(part: &Part, name: &str) -> f64 {
        part.find(name).unwrap_or_else(|| panic!("no {name}")).of("measured")[0]
    }

    #[test]
    fn waits_are_added_up_by_function() {
        let part = read(LOCKS).unwrap().unwrap();
        assert_eq!(value(&part, "zone_lock_contended"), 10.0);
        assert_eq!(value(&part, "zone_lock_total_wait_ns"), 100_000.0);
        assert_eq!(value(&part, "zone_lock_max_wait_ns"), 30_000.0);
        assert_eq!(value(&part, "lock_avg_wait_ns[caller=rmqueue_bulk]"), 10_000.0);
        assert_eq!(value(&part, "lock_wait_share[lock=zone]"), 25.0);
        assert_eq!(value(&part, "lock_total_wait_ns[caller=exc_page_fault]"), 8_090_000.0);
        let threads = read(THREADS).unwrap().unwrap();
        assert_eq!(value(&threads, "lock_contended[caller=lto_cgu.1]"), 2.0);
    }

    #[test]
    fn lines_have_the_function_with_most_hits() {
        let part = read(LINES).unwrap().unwrap();
        let of = "[line=1,function=native_queued_spin_lock_slowpath]";
        assert_eq!(value(&part, &format!("line_hits_in_modified{of}")), 2049.0);
        assert_eq!(value(&part, &format!("line_remote_hits_in_modified{of}")), 1115.0);
        assert_eq!(value(&part, "line_share_of_hits[line=2]"), 12.5);
    }

    #[test]
    fn a_simulated_result_stands_beside() {
        let mut simulated = Part::new("bulk", "scaling", Kind::Simulated, "two-nodes").baseline("a");
        for (name, value) in [
            ("zone_lock_wait_ns[zone=0,cpus=4]", 90.0),
            ("zone_lock_acquisitions_per_page[zone=0,cpus=4]", 0.1),
            ("lru_lock_wait_ns[cpus=4]", 30.0),
            ("lru_lock_acquisitions_per_page[cpus=4]", 0.1),
        ] {
            simulated.metric(name, "1", Better::Lower).sample("a", value);
        }
        let host = crate::host::Host::default();
        let document = Document::new("study bulk", host).with(simulated);
        let mut part = read(LOCKS).unwrap().unwrap();
        beside(&mut part, &document).unwrap();
        let share = part.find("lock_wait_share[lock=zone]").unwrap();
        assert_eq!((share.of("measured"), share.of("simulated")), (&[25.0][..], &[75.0][..]));
        let empty = Document::new("study bulk", crate::host::Host::default());
        assert!(beside(&mut part, &empty).is_err());
    }

    #[test]
    fn what_is_cut_off_is_refused_with_its_line() {
        let cut = LOCKS.replace("1.41 ms     96.79 us     spinlock   call_timer_fn+0x29", "1.41");
        assert_eq!(read(&cut).unwrap().unwrap_err().line, 4);
        let cut = LINES.replace("   37.22%     2049      934     1115    19190", "   37.22%     2049");
        assert_eq!(read(&cut).unwrap().unwrap_err().line, 9);
        assert!(
            read(" contended   total wait     max wait     avg wait         type   caller\n")
                .unwrap()
                .is_err()
        );
        assert!(read("comm 1 [000] 1.0: kmem:mm_page_alloc:").is_none());
    }
}
