//! `framewright doctor`.

mod interval;
mod watch;

use crate::command::record::seconds;
use crate::command::*;
use crate::doctor::{Finding, Root, Severity, State, Zone, examine, joined};

const EXAMPLES: &str = "\
Examples:
  framewright doctor
  framewright doctor --root ./copied-from-another-machine
  framewright doctor --save server7.tar
  framewright doctor --root server7.tar
  framewright doctor --watch
  framewright doctor --format json
  framewright doctor --interval 60 --format csv >>zones.csv
  framewright doctor --fail-on warning
  framewright doctor --since yesterday.tar

Reads /proc/zoneinfo, buddyinfo, vmstat and meminfo, /proc/sys/vm, huge pages,
nodes and memory control groups in /sys; a copy of these files serves as well.
Needs no root. Of counters, what they count in the second that it takes decides,
or with --since what they counted since a saved state.

Exit status: 0; 1 if nothing could be read; 4 if --fail-on found something.";

/// Examine the page allocator of this Linux, or of a copy of its files
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Root of the Linux system to read /proc and /sys from: a folder, or a .tar or .tar.gz that was made elsewhere
    #[arg(long, value_name = "DIR|TAR", default_value = "/")]
    root: PathBuf,

    /// Write the files that are read to a tar archive, to be examined elsewhere, and examine nothing
    #[arg(long, value_name = "FILE.tar", conflicts_with = "watch")]
    save: Option<PathBuf>,

    /// Judge counters by their growth since this state, which --save wrote
    #[arg(long, value_name = "DIR|TAR", conflicts_with_all = ["watch", "interval", "save"])]
    since: Option<PathBuf>,

    /// Redraw every second, with the rates of what the allocator counts, until q or Ctrl-C
    #[arg(long)]
    watch: bool,

    /// Print zones and rates every so many seconds: free blocks by order, pages on per-CPU lists, stalls, compaction
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["watch", "save", "fail_on"])]
    interval: Option<Duration>,

    /// End after N intervals
    #[arg(long, value_name = "N", value_parser = count, requires = "interval",
          conflicts_with_all = ["watch", "save", "since", "fail_on"])]
    count: Option<u32>,

    /// Exit with 4 if a finding is at least as severe as this
    #[arg(long, value_enum, value_name = "SEVERITY", conflicts_with_all = ["watch", "save"])]
    fail_on: Option<Severity>,
}

/// Examines a system.
///
/// # Errors
/// It cannot be read.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    if let Some(path) = &args.save {
        if session.format != Format::Table {
            return Err(Error::usage("--save writes a tar archive; leave --format out"));
        }
        let output = open_beside(path, &[&args.root])?;
        let stays = output.stays();
        output.finish(&Root::open(&args.root)?.archive()?).map_err(Error::failed)?;
        if stays {
            notice(&format!("Saved to {0}: `framewright doctor --root {0}` examines it.", path.display()));
        }
        return Ok(());
    }
    let root = Root::open(&args.root)?;
    if args.watch {
        return watch::watch(&root, session);
    }
    if let Some(every) = args.interval {
        return interval::follow(&root, every, args.count, session);
    }
    let earlier = earlier(args, &root)?;
    let (state, findings) = examine(&root, earlier.as_ref())?;
    if let (Some(path), Some(earlier)) = (&args.since, &earlier)
        && !earlier.may_precede(&state)
    {
        return Err(Error::usage(format_args!(
            "{} was not saved earlier in the same boot as {}: the kernel is another, or was started since",
            path.display(),
            args.root.display()
        )));
    }
    let shown = show(args, &state, &findings, session);
    let severe = |finding: &&Finding| args.fail_on.is_some_and(|least| finding.severity >= least);
    let found: Vec<&str> = findings.iter().filter(severe).map(|finding| finding.id).collect();
    if found.is_empty() { shown } else { Err(Error::found(format_args!("found {}", found.join(", ")))) }
}

/// Time that the counters of a running system are watched.
const WINDOW: Duration = Duration::from_secs(1);

/// The state that counters are compared with: a saved one, or of a running system that of a second ago.
fn earlier(args: &Args, root: &Root) -> Result<Option<State>> {
    if let Some(path) = &args.since {
        return State::read(&Root::open(path)?).map(Some);
    }
    if args.root != Path::new("/") {
        return Ok(None);
    }
    let state = State::read(root)?;
    std::thread::sleep(WINDOW);
    Ok(Some(state))
}

fn show(args: &Args, state: &State, findings: &[Finding], session: &Session) -> Result<()> {
    match session.format {
        Format::Json => {
            let json = serde_json::json!({
                "root": args.root, "kernel": state.release, "cpus": state.online,
                "zones": state.zones.iter().map(zone_json).collect::<Vec<_>>(), "findings": findings,
            });
            session.terminal.print_data(&format!("{json:#}\n"))
        }
        Format::Table => session.terminal.print(&text(&args.root, state, findings, &session.terminal)),
        Format::Csv | Format::Markdown | Format::Toml => {
            let heads = ["id", "severity", "zone", "read", "expected", "do", "shell"];
            let mut listing = Listing::new("", &heads);
            for finding in findings {
                let [zone, shell] = [&finding.zone, &finding.shell].map(|text| text.as_deref().unwrap_or(""));
                let Finding { id, read, expected, advice, .. } = finding;
                let cells = [id, finding.severity.name(), zone, read, expected, advice, shell];
                listing.row(cells.map(str::to_owned));
            }
            session.print_lists(&[zones(state), listing])
        }
    }
}

/// A zone with all that was read of it, in pages; `free_blocks` by order.
fn zone_json(zone: &Zone) -> serde_json::Value {
    let lists: Vec<_> = zone
        .pagesets
        .iter()
        .map(|(cpu, set)| {
            serde_json::json!({ "cpu": cpu, "count": set.count, "high": set.high, "batch": set.batch })
        })
        .collect();
    serde_json::json!({
        "node": zone.node, "name": zone.name, "present": zone.present, "managed": zone.managed, "free": zone.free,
        "boost": zone.boost, "min": zone.min, "low": zone.low, "high": zone.high, "free_blocks": zone.blocks,
        "huge_percent": huge_percent(zone), "lists": lists,
    })
}

/// Share of a zone's free memory in blocks of at least the order of a huge page.
fn huge_percent(zone: &Zone) -> f64 {
    100.0 * zone.free_huge() as f64 / zone.free_in_blocks().max(1) as f64
}

/// Growth of a counter in a second.
struct Rate {
    /// Its name in JSON and CSV.
    name: &'static str,
    words: &'static str,
    value: f64,
}

/// Counters of `/proc/vmstat` whose rates are shown: name, words, and the name there, without that of a zone.
const RATES: [(&str, &str, &str); 10] = [
    ("allocated", "pages allocated", "pgalloc"),
    ("freed", "pages freed", "pgfree"),
    ("faults", "faults", "pgfault"),
    ("stalls", "allocations that reclaimed", "allocstall"),
    ("scanned_by_kswapd", "pages scanned by kswapd", "pgscan_kswapd"),
    ("scanned_directly", "pages scanned directly", "pgscan_direct"),
    ("compact_stalls", "allocations that compacted", "compact_stall"),
    ("compact_fails", "compactions that failed", "compact_fail"),
    ("pages_moved", "pages moved", "pgmigrate_success"),
    ("huge_fallbacks", "huge faults that fell back", "thp_fault_fallback"),
];

fn rates(before: &State, after: &State, seconds: f64) -> Vec<Rate> {
    let rate = |(name, words, counter)| {
        let moved = after.counters(counter).saturating_sub(before.counters(counter));
        Rate { name, words, value: moved as f64 / seconds.max(1e-3) }
    };
    RATES.into_iter().map(rate).collect()
}

fn text(root: &Path, state: &State, findings: &[Finding], terminal: &Terminal) -> String {
    let heading = format!("Linux {} at {}, {} CPUs", state.release, root.display(), state.online);
    let mut out = paragraph(&heading, terminal.width, "  ", Tone::Plain, terminal) + "\n";
    out += &zones(state).render(Format::Table, terminal);
    out.push('\n');
    if findings.is_empty() {
        return out + "Nothing found that should be otherwise.\n";
    }
    // What follows a name stays to the right of it.
    const NAMES: usize = 12;
    let mut push = |name: &str, text: &str, tone: Tone| {
        let room = terminal.columns().saturating_sub(name.chars().count());
        for (n, line) in wrapped(text, Some(room), "").iter().enumerate() {
            let before = if n == 0 { name.to_owned() } else { " ".repeat(NAMES) };
            out += &format!("{}\n", terminal.paint(&format!("{before}{line}"), tone));
        }
    };
    for finding in joined(findings) {
        let tone = if finding.severity == Severity::Info { Tone::Heading } else { Tone::Worse };
        let zone = finding.zone.as_ref().map_or_else(String::new, |zone| format!(" ({zone})"));
        push("", &format!("{}: {}{zone}", finding.severity.name(), finding.id), tone);
        for (what, text) in [
            ("read", &finding.read),
            ("expected", &finding.expected),
            ("why", &finding.why),
            ("do", &finding.advice),
        ] {
            push(&format!("  {what:<10}"), text, Tone::Plain);
        }
        if let Some(shell) = &finding.shell {
            push("  shell     ", shell, Tone::Plain);
        }
        if let Some(study) = finding.study {
            push("  see       ", &format!("framewright study {study}"), Tone::Dim);
        }
    }
    out
}

/// A line for each zone.
fn zones(state: &State) -> Listing {
    let heads = ["zone", "managed MiB", "free MiB", "huge blocks", "low MiB", "batch", "high"];
    let mut listing = Listing::new("", &heads);
    for zone in &state.zones {
        let range = |field: fn(&crate::doctor::Pageset) -> u64| {
            let all = || zone.pagesets.iter().map(|(_, set)| field(set));
            match (all().min(), all().max()) {
                (Some(least), Some(most)) if least == most => least.to_string(),
                (Some(least), Some(most)) => format!("{least}-{most}"),
                _ => String::new(),
            }
        };
        let mib = |pages: u64| state.mib(pages).to_string();
        listing.row([
            zone.title(),
            mib(zone.managed),
            mib(zone.free),
            format!("{:.0} %", huge_percent(zone)),
            mib(zone.low),
            range(|set| set.batch),
            range(|set| set.high),
        ]);
    }
    listing
}
