//! `doctor --interval`: of each interval a line for each zone, with free blocks by order and the rates of what the
//! allocator counts.

use core::time::Duration;
use std::thread;
use std::time::{Instant, SystemTime};

use framewright_report::error::Result;
use framewright_report::table::Format;

use super::{huge_percent, zone_json};
use crate::doctor::{Root, State};
use crate::interrupt::Interrupt;
use crate::session::Session;

/// Counters of `/proc/vmstat` whose rates are shown: names, and how they begin there.
const RATES: [(&str, &str); 6] = [
    ("allocated", "pgalloc_"),
    ("stalls", "allocstall"),
    ("compact_stalls", "compact_stall"),
    ("compact_fails", "compact_fail"),
    ("pages_moved", "pgmigrate_success"),
    ("huge_fallbacks", "thp_fault_fallback"),
];
/// Longest time until a signal is heeded.
const LOOK: Duration = Duration::from_millis(50);
/// Orders of free blocks.
const ORDERS: usize = 11;

/// Time that tasks waited for memory (PSI), in microseconds since boot.
fn waited(root: &Root) -> Option<f64> {
    let text = root.read("proc/pressure/memory").ok()?;
    text.lines().next()?.rsplit_once("total=")?.1.trim().parse().ok()
}

/// Prints `count` intervals, or intervals until a signal comes.
pub(super) fn follow(root: &Root, every: Duration, count: Option<u32>, session: &Session) -> Result<()> {
    let stop = Interrupt::watched();
    let (mut before, mut waited_before) = (State::read(root)?, waited(root));
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        let begin = Instant::now();
        while begin.elapsed() < every {
            if stop.is_raised() {
                return Ok(());
            }
            thread::sleep(LOOK.min(every.saturating_sub(begin.elapsed())));
        }
        let (after, waited_after) = (State::read(root)?, waited(root));
        let seconds = begin.elapsed().as_secs_f64();
        let mut rates: Vec<(&str, f64)> = RATES
            .iter()
            .map(|&(name, prefix)| {
                let moved = after.counters(prefix).saturating_sub(before.counters(prefix));
                (name, moved as f64 / seconds)
            })
            .collect();
        if let (Some(before), Some(after)) = (waited_before, waited_after) {
            rates.push(("waiting_percent", (after - before) / seconds / 1e4));
        }
        show(&after, &rates, shown == 0, session)?;
        (before, waited_before) = (after, waited_after);
        shown += 1;
    }
    Ok(())
}

/// Prints an interval: JSON on a line of its own, or rows, below their heads the first time.
fn show(state: &State, rates: &[(&str, f64)], first: bool, session: &Session) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    if session.format == Format::Json {
        let zones: Vec<_> = state.zones.iter().map(zone_json).collect();
        let rates: serde_json::Map<_, _> =
            rates.iter().map(|(name, rate)| ((*name).to_owned(), (*rate).into())).collect();
        let json = serde_json::json!({ "time": now, "zones": zones, "per_second": rates });
        return session.terminal.print_data(&format!("{json}\n"));
    }
    let mut text = String::new();
    let mut push = |cells: Vec<String>| {
        text += &cells.join(if session.format == Format::Csv { "," } else { "  " });
        text.push('\n');
    };
    let orders = (0..ORDERS).map(|order| format!("free_{order}"));
    if first {
        let heads = ["time", "zone", "free", "huge_percent", "on_lists"].map(str::to_owned);
        push(
            heads.into_iter().chain(orders).chain(rates.iter().map(|(name, _)| (*name).to_owned())).collect(),
        );
    }
    for zone in &state.zones {
        let on_lists: u64 = zone.pagesets.iter().map(|(_, set)| set.count).sum();
        let cells = [
            now.to_string(),
            zone.title(),
            zone.free.to_string(),
            format!("{:.1}", huge_percent(zone)),
            on_lists.to_string(),
        ];
        let blocks = (0..ORDERS).map(|order| zone.blocks.get(order).copied().unwrap_or(0).to_string());
        push(
            cells
                .into_iter()
                .chain(blocks)
                .chain(rates.iter().map(|(_, rate)| format!("{rate:.1}")))
                .collect(),
        );
    }
    session.terminal.print_data(&text)
}
