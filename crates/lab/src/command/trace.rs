//! `framewright trace`.

use std::path::PathBuf;

use clap::Subcommand;
use framewright_report::error::{Error, Result};
use framewright_report::table::{Format, Listing};
use framewright_trace::kernel_time::{self, Doing, Samples};
use framewright_trace::trace::Trace;

use crate::command::export;
use crate::configure::Setup;
use crate::profile::{Profile, Share, time, type_name};
use crate::replaying::Replay;
use crate::session::Session;
use crate::settings::Settings;
use crate::shipped;

const EXAMPLES: &str = "\
Examples:
  framewright trace summary compile.parquet
  framewright trace summary compile.parquet --config preset=linux_v5_4
  framewright trace summary compile.parquet --format json
  framewright trace export compile.parquet --to perfetto -o compile.json";

/// Show what a trace holds, and what its page allocations cost
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "clap would show it as a heading")]
    pub what: What,
}

/// Ways to show a trace.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    /// Allocations by order, type and thread, lifetimes, and the share of the run's CPU time
    Summary(SummaryArgs),
    /// Write it for ui.perfetto.dev, or for flame graphs
    Export(export::Args),
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

/// Says what a trace holds, or writes it for other tools.
///
/// # Errors
/// It cannot be read, replayed or written, or a setting does not exist.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let args = match &args.what {
        What::Summary(args) => args,
        What::Export(_) if session.format != Format::Table => {
            return Err(Error::usage("trace export has formats of its own, --to; leave --format out"));
        }
        What::Export(args) => return export::run(args, session),
    };
    let setup = Setup::from_settings(&Settings::from_pairs(&args.config)?)?;
    let (trace, id) = shipped::read(&args.trace)?;
    let profile = Profile::of(&trace);
    let cost = cost(&trace, &setup)?;
    let kernel = Samples::of(&trace);
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
            "kernel": shares_json(kernel.as_ref()),
        });
        return session.terminal.print_data(&format!("{json:#}\n"));
    }
    let facts = if session.format == Format::Csv {
        numbers(&profile, &cost, kernel.as_ref())
    } else {
        facts(&trace, &profile, &cost, kernel.as_ref(), args)
    };
    let parts = [
        facts,
        by("order", profile.orders.iter().map(|(order, share)| (order.to_string(), *share)), &profile),
        by("type", profile.types.iter().map(|(of, share)| (type_name(*of), *share)), &profile),
        by("thread", profile.comms.iter().take(args.top).cloned(), &profile),
    ];
    let texts: Vec<String> =
        parts.iter().map(|part| part.render(session.format, &session.terminal)).collect();
    session.terminal.print(&texts.join("\n"))
}

/// What the allocations and frees of a trace take on this machine, in Framewright's own code.
struct Cost {
    cpu_ns: f64,
    ns_per_operation: f64,
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

/// Call sites that are shown.
const CALL_SITES: usize = 5;

fn facts(
    trace: &Trace,
    profile: &Profile,
    cost: &Cost,
    kernel: Option<&Samples>,
    args: &SummaryArgs,
) -> Listing {
    let mut listing = Listing::new(&args.trace.display().to_string(), &["", ""]);
    let mut fact = |name: &str, value: String| listing.row([name.to_owned(), value]);
    let seconds = (profile.duration_ns as f64 / 1e9).max(1e-9);
    fact("run", format!("{} from the first event to the last", time(profile.duration_ns as f64)));
    if !trace.meta.recorded_at.is_empty() {
        fact("recorded", format!("{}, {}", trace.meta.recorded_at, trace.meta.attribution));
    }
    match kernel {
        Some(samples) => in_the_kernel(samples, trace.meta.reading_ns, &mut fact),
        None => {
            fact(
                "share of the run",
                "not known: the trace has no samples of the kernel; record it again".to_owned(),
            );
        }
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
    let kept = profile.kept;
    fact("still allocated", format!("{} blocks of {} pages at the end", kept.allocations, kept.pages));
    if let Some(lost) = trace.meta.lost_events.filter(|lost| *lost > 0) {
        fact("lost events", lost.to_string());
    }
    fact(
        "replayed here",
        format!(
            "{} in user space under {} ({:.1} ns each); a kernel takes longer",
            time(cost.cpu_ns),
            args.config,
            cost.ns_per_operation,
        ),
    );
    listing
}

/// What the kernel took, by samples.
fn in_the_kernel(samples: &Samples, reading_ns: u64, fact: &mut impl FnMut(&str, String)) {
    let percent = |parts: &[Doing]| format!("{:.2} %", samples.share_of(parts).percent);
    let share = |parts: &[Doing]| {
        let kernel_time::Share { cpu_ns, percent, low, high } = samples.share_of(parts);
        format!("{percent:.2} % [{low:.2}, {high:.2}], {}", time(cpu_ns))
    };
    let lost = if samples.lost > 0 { format!(", {} lost", samples.lost) } else { String::new() };
    fact("CPU time", format!("{} ({} samples{lost}); of it:", time(samples.cpu_ns()), samples.count()));
    fact(
        " page allocation",
        format!(
            "{}: allocating {}, freeing {}, waiting for zone locks {}",
            share(&Doing::ALLOCATOR),
            percent(&[Doing::Allocating]),
            percent(&[Doing::Freeing]),
            percent(&[Doing::ZoneLock])
        ),
    );
    fact(" clearing pages", share(&[Doing::Clearing]));
    fact(
        " beside it",
        format!(
            "reclaim {}, compaction {}; waiting for LRU locks {}, for memory-cgroup locks {}",
            percent(&[Doing::Reclaiming]),
            percent(&[Doing::Compacting]),
            percent(&[Doing::LruLock]),
            percent(&[Doing::GroupLock])
        ),
    );
    let sites: Vec<String> = samples
        .call_sites()
        .take(CALL_SITES)
        .map(|(site, percent)| format!("{site} {percent:.0} %"))
        .collect();
    if !sites.is_empty() {
        fact(" allocated by", format!("{} of the time of allocating", sites.join(", ")));
    }
    fact(
        "recording cost",
        format!(
            "{:.1} % more CPU time in the run, and {} for reading the kernel's buffers",
            samples.recording_percent(),
            time(reading_ns as f64)
        ),
    );
}

/// The same as bare numbers.
fn numbers(profile: &Profile, cost: &Cost, kernel: Option<&Samples>) -> Listing {
    let mut listing = Listing::new("", &["", ""]);
    let mut fact = |name: &str, value: f64| listing.row([name.to_owned(), value.to_string()]);
    for (name, value) in [
        ("duration_ns", profile.duration_ns),
        ("allocations", profile.all.allocations),
        ("pages", profile.all.pages),
        ("frees", profile.frees),
        ("peak_pages", profile.peak_pages),
        ("kept_blocks", profile.kept.allocations),
        ("kept_pages", profile.kept.pages),
    ] {
        fact(name, value as f64);
    }
    for (name, quantile) in QUANTILES {
        if let Some(ns) = profile.lifetime_ns(quantile) {
            fact(&format!("lifetime_{name}_ns"), ns as f64);
        }
    }
    fact("replayed_cpu_ns", cost.cpu_ns);
    if let Some(samples) = kernel {
        fact("cpu_ns", samples.cpu_ns());
        for part in Doing::PARTS {
            fact(&format!("{}_percent", part.name()), samples.share_of(&[part]).percent);
        }
    }
    listing
}

/// The shares of a run's CPU time, for JSON; null if they are not known.
fn shares_json(kernel: Option<&Samples>) -> serde_json::Value {
    let Some(samples) = kernel else { return serde_json::Value::Null };
    let share = |parts: &[Doing]| {
        let kernel_time::Share { cpu_ns, percent, low, high } = samples.share_of(parts);
        serde_json::json!({ "cpu_ns": cpu_ns, "percent": percent, "low": low, "high": high })
    };
    let parts: serde_json::Map<_, _> =
        Doing::PARTS.iter().map(|part| (part.name().to_owned(), share(&[*part]))).collect();
    let sites: Vec<_> = samples
        .call_sites()
        .take(CALL_SITES)
        .map(|(site, percent)| serde_json::json!({ "function": site, "percent": percent }))
        .collect();
    serde_json::json!({
        "cpu_ns": samples.cpu_ns(), "samples": samples.count(), "lost": samples.lost,
        "page_allocation": share(&Doing::ALLOCATOR), "parts": parts, "call_sites": sites,
        "recording_percent": samples.recording_percent(),
    })
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
