//! `doctor --interval`: of each interval a line for each zone, with free blocks by order and the rates of what the
//! allocator counts.

use std::thread;
use std::time::{Instant, SystemTime};

use super::{Rate, huge_percent, rates, zone_json};
use crate::command::*;
use crate::doctor::{Root, State};
use crate::session::now;

/// Longest time until a signal is heeded.
const LOOK: Duration = Duration::from_millis(50);
/// Orders of free blocks.
const ORDERS: usize = 11;
/// Rates below this are 0 in text.
const LEAST_SHOWN: f64 = 0.05;

/// Prints `count` intervals, or intervals until a signal comes.
pub(super) fn follow(root: &Root, every: Duration, count: Option<u32>, session: &Session) -> Result<()> {
    let stop = Interrupt::watched();
    let read = || Ok::<_, Error>((State::read(root)?, root.memory_wait_us(), Instant::now()));
    // What showing an interval takes, as on a terminal that is held, is part of the next.
    let (mut before, mut waited_before, mut begin) = read()?;
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        while begin.elapsed() < every {
            if stop.is_raised() {
                return Ok(());
            }
            thread::sleep(LOOK.min(every.saturating_sub(begin.elapsed())));
        }
        let (after, waited_after, end) = read()?;
        let seconds = (end - begin).as_secs_f64();
        let mut rates = rates(&before, &after, seconds);
        if let (Some(before), Some(after)) = (waited_before, waited_after) {
            let value = (after - before) / seconds / 1e4;
            rates.push(Rate {
                name: "waiting_percent",
                words: "% of the time tasks waited for memory",
                value,
            });
        }
        show(&after, &rates, shown == 0, session)?;
        (before, waited_before, begin) = (after, waited_after, end);
        shown += 1;
    }
    Ok(())
}

/// Prints an interval: JSON on a line of its own, CSV below its heads the first time, or a table.
fn show(state: &State, rates: &[Rate], first: bool, session: &Session) -> Result<()> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = match session.format {
        Format::Json => {
            let zones: Vec<_> = state.zones.iter().map(zone_json).collect();
            let rates: serde_json::Map<_, _> =
                rates.iter().map(|rate| (rate.name.to_owned(), rate.value.into())).collect();
            format!("{}\n", serde_json::json!({ "time": seconds, "zones": zones, "per_second": rates }))
        }
        Format::Csv => csv(state, rates, first, seconds),
        Format::Table | Format::Markdown | Format::Toml => {
            let text = table(state, rates, &now()).render(session.format, &session.terminal);
            return session.terminal.print(&format!("{}{text}", if first { "" } else { "\n" }));
        }
    };
    session.terminal.print_data(&text)
}

/// A line for each zone; the rates of the machine stand in each.
fn csv(state: &State, rates: &[Rate], first: bool, seconds: u64) -> String {
    let mut text = String::new();
    let mut push = |cells: Vec<String>| text += &format!("{}\n", cells.join(","));
    if first {
        let heads = ["time", "zone", "free", "huge_percent", "on_lists"].map(str::to_owned).into_iter();
        let orders = (0..ORDERS).map(|order| format!("free_{order}"));
        push(heads.chain(orders).chain(rates.iter().map(|rate| rate.name.to_owned())).collect());
    }
    for zone in &state.zones {
        let cells = [
            seconds.to_string(),
            zone.title(),
            zone.free.to_string(),
            format!("{:.1}", huge_percent(zone)),
            zone.on_lists().to_string(),
        ];
        let blocks = (0..ORDERS).map(|order| zone.blocks.get(order).copied().unwrap_or(0).to_string());
        let rates = rates.iter().map(|rate| format!("{:.1}", rate.value));
        push(cells.into_iter().chain(blocks).chain(rates).collect());
    }
    text
}

/// A heading with the rates that are not 0, and a row for each zone.
fn table(state: &State, rates: &[Rate], time: &str) -> Listing {
    let rates = rates.iter().filter(|rate| rate.value >= LEAST_SHOWN);
    let rates: Vec<String> = rates.map(|rate| format!("{:.1} {}", rate.value, rate.words)).collect();
    let rates = if rates.is_empty() { "nothing".to_owned() } else { rates.join(", ") };
    let heads = ["zone", "free MiB", "huge %", "on lists", "free blocks of orders 0, 1, ... 10"];
    let mut listing = Listing::new(&format!("{time}, a second: {rates}"), &heads);
    for zone in &state.zones {
        let blocks: Vec<String> = zone.blocks.iter().map(u64::to_string).collect();
        listing.row([
            zone.title(),
            state.mib(zone.free).to_string(),
            format!("{:.0}", huge_percent(zone)),
            zone.on_lists().to_string(),
            blocks.join(" "),
        ]);
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright_report::terminal::Terminal;

    #[test]
    fn an_interval_is_as_it_was_read() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/linux-6.12-nodes.tar.gz");
        let state = State::read(&Root::open(root.as_ref()).expect("a snapshot")).expect("a system");
        let mut after = state.clone();
        for (name, more) in [("pgalloc_normal", 24_690), ("pgfree", 20_000), ("compact_fail", 1)] {
            *after.vmstat.entry(name.to_owned()).or_default() += more;
        }
        let rates = rates(&state, &after, 2.0);
        let terminal = Terminal { width: Some(80), ..Terminal::plain() };
        let text = table(&after, &rates, "2026-11-26T11:00:00Z").render(Format::Table, &terminal);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        insta::assert_snapshot!("interval", text);
        let idle = table(&state, &[], "2026-11-26T11:00:00Z").render(Format::Markdown, &terminal);
        assert!(idle.starts_with("### 2026-11-26T11:00:00Z, a second: nothing\n"), "{idle}");
    }
}
