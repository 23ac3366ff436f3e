//! `framewright trace`.

use std::path::PathBuf;

use clap::Subcommand;
use framewright_workload::trace::Trace;

use crate::configure::Setup;
use crate::error::{Error, Result};
use crate::profile::{Profile, Share, time, type_name};
use crate::replaying::Replay;
use crate::session::Session;
use crate::settings::Settings;
use crate::shipped;
use crate::table::{Format, Listing};

const EXAMPLES: &str = "\
Examples:
  framewright trace summary compile.parquet
  framewright trace summary compile.parquet --config preset=linux_v5_4
  framewright trace summary compile.parquet --format json";

/// Say what a trace holds, and what its allocations can have cost
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "clap would show it as a heading")]
    pub what: What,
}

/// What is to be said of a trace.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    /// Allocations by order, type and thread, lifetimes, and the share of the run that they take
    Summary(SummaryArgs),
}

/// Arguments of `trace summary`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SummaryArgs {
    /// A trace that was recorded or imported
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Configuration whose allocations are timed: key=value pairs with commas between them
    #[arg(long, value_name = "CONFIG", default_value = "preset=linux_v6_7")]
    pub config: String,

    /// Threads that appear at most
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub top: usize,
}

/// Says what a trace holds.
///
/// # Errors
/// It cannot be read or replayed, or a setting does not exist.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let What::Summary(args) = &args.what;
    let setup = Setup::from_settings(&Settings::from_pairs(&args.config)?)?;
    let (trace, id) = shipped::read(&args.trace)?;
    let profile = Profile::of(&trace);
    let cost = cost(&trace, &setup)?;
    if session.format == Format::Json {
        let shares =
            |share: &Share| serde_json::json!({ "allocations": share.allocations, "pages": share.pages });
        let orders: serde_json::Map<_, _> =
            profile.orders.iter().map(|(order, share)| (order.to_string(), shares(share))).collect();
        let types: serde_json::Map<_, _> =
            profile.types.iter().map(|(of, share)| (type_name(*of), shares(share))).collect();
        let comms: Vec<_> = profile
            .comms
            .iter()
            .take(args.top)
            .map(|(comm, share)| serde_json::json!({ "comm": comm, "of": shares(share) }))
            .collect();
        let lifetimes: Vec<_> = QUANTILES.iter().map(|(name, q)| (*name, profile.lifetime_ns(*q))).collect();
        let lifetimes: serde_json::Map<_, _> =
            lifetimes.into_iter().map(|(name, ns)| (name.to_owned(), ns.into())).collect();
        let json = serde_json::json!({
            "trace": id, "duration_ns": profile.duration_ns, "allocations": profile.all.allocations,
            "pages": profile.all.pages, "frees": profile.frees, "peak_pages": profile.peak_pages,
            "orders": orders, "types": types, "comms": comms, "lifetime_ns": lifetimes,
            "kept": shares(&profile.kept), "config": args.config, "allocator_cpu_ns": cost.cpu_ns,
            "allocator_percent_of_run": cost.percent(&profile),
        });
        return session.terminal.print_data(&format!("{json:#}\n"));
    }
    let parts = [
        facts(&trace, &profile, &cost, args),
        by("order", profile.orders.iter().map(|(order, share)| (order.to_string(), *share)), &profile),
        by("type", profile.types.iter().map(|(of, share)| (type_name(*of), *share)), &profile),
        by("thread", profile.comms.iter().take(args.top).cloned(), &profile),
    ];
    let texts: Vec<String> =
        parts.iter().map(|part| part.render(session.format, &session.terminal)).collect();
    session.terminal.print(&texts.join("\n"))
}

/// What the allocations and frees of a trace take on this machine.
struct Cost {
    cpu_ns: f64,
    ns_per_operation: f64,
}

impl Cost {
    /// As a share of one CPU's time while the trace was recorded.
    fn percent(&self, profile: &Profile) -> f64 {
        100.0 * self.cpu_ns / (profile.duration_ns as f64).max(1.0)
    }
}

/// Replays so often; the fastest is least disturbed.
const REPLAYS: usize = 5;

fn cost(trace: &Trace, setup: &Setup) -> Result<Cost> {
    let replay = Replay::new(trace, 1, None)?;
    let mut costs = Vec::new();
    for _ in 0..REPLAYS {
        let report = replay.once(setup)?;
        let cpu_ns = report.cpu_ns.saturating_sub(report.waited_cpu_ns) as f64;
        costs.push(Cost { cpu_ns, ns_per_operation: report.cpu_ns_per_operation() });
    }
    let least = costs.into_iter().min_by(|a, b| a.cpu_ns.total_cmp(&b.cpu_ns));
    least.ok_or_else(|| Error::failed("nothing was replayed"))
}

/// Quantiles of the lifetimes.
const QUANTILES: [(&str, f64); 4] = [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

fn facts(trace: &Trace, profile: &Profile, cost: &Cost, args: &SummaryArgs) -> Listing {
    let mut listing = Listing::new(&args.trace.display().to_string(), &["", ""]);
    let mut fact = |name: &str, value: String| listing.row([name.to_owned(), value]);
    let seconds = (profile.duration_ns as f64 / 1e9).max(1e-9);
    fact("run", format!("{} from the first event to the last", time(profile.duration_ns as f64)));
    if !trace.meta.recorded_at.is_empty() {
        fact("recorded", format!("{}, {}", trace.meta.recorded_at, trace.meta.attribution));
    }
    let Share { allocations, pages } = profile.all;
    fact(
        "allocations",
        format!(
            "{allocations} ({:.0} a second) of {pages} pages, {} MiB",
            allocations as f64 / seconds,
            pages >> 8
        ),
    );
    fact("frees", profile.frees.to_string());
    fact("most in use", format!("{} MiB", profile.peak_pages >> 8));
    let lifetimes: Vec<String> = QUANTILES
        .iter()
        .filter_map(|(name, quantile)| {
            Some(format!("{name} {}", time(profile.lifetime_ns(*quantile)? as f64)))
        })
        .collect();
    fact(
        "lifetimes",
        if lifetimes.is_empty() { "no block is freed".to_owned() } else { lifetimes.join(", ") },
    );
    fact("kept to the end", format!("{} blocks of {} pages", profile.kept.allocations, profile.kept.pages));
    if let Some(lost) = trace.meta.lost_events.filter(|lost| *lost > 0) {
        fact("lost events", lost.to_string());
    }
    fact(
        "in the allocator",
        format!(
            "{} on this machine under {} ({:.1} ns each): {:.3} % of one CPU's time in that run",
            time(cost.cpu_ns),
            args.config,
            cost.ns_per_operation,
            cost.percent(profile)
        ),
    );
    fact(
        "so",
        "a faster allocator can save at most that; page faults, clearing and accounting come on top of it"
            .to_owned(),
    );
    listing
}

/// Allocations under each heading.
fn by(what: &str, shares: impl Iterator<Item = (String, Share)>, profile: &Profile) -> Listing {
    let mut listing = Listing::new("", &[what, "allocations", "pages", "% of pages"]);
    for (name, share) in shares {
        let percent = 100.0 * share.pages as f64 / profile.all.pages.max(1) as f64;
        listing.row([name, share.allocations.to_string(), share.pages.to_string(), format!("{percent:.1}")]);
    }
    listing
}
