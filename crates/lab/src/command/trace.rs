//! `framewright trace`.

use clap::Subcommand;
use framewright_trace::kernel_time;

use crate::command::*;
use crate::command::{export, replay::nearest_preset};
use crate::profile::{Profile, Share, size, time, type_name};

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
    what: What,
}

/// Ways to show a trace.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    /// Show allocations by order, type and thread, lifetimes, and the share of the run's CPU time
    Summary(SummaryArgs),
    /// Write a trace for ui.perfetto.dev, or for flame graphs
    Export(export::Args),
}

/// Arguments of `trace summary`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SummaryArgs {
    /// A trace that was recorded or imported
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// Configuration of the replay, as key=value pairs with commas between them [default: the preset nearest to the
    /// trace's kernel]
    #[arg(long, value_name = "CONFIG")]
    config: Option<String>,

    /// Most thread names to show
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = |text: &str| whole(text, 0, u32::MAX))]
    top: u32,
}

/// Shows the contents of a trace, or writes it for other tools.
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
    let given = args.config.as_deref().map(Settings::from_pairs).transpose()?;
    if given.as_ref().is_some_and(|given| given.iter().next().is_none()) {
        return Err(Error::usage("--config '' sets nothing: leave it out"));
    }
    let (trace, id) = shipped::read(&args.trace)?;
    let nearest = || format!("preset={}", nearest_preset(&trace.meta.kernel));
    let config = args.config.clone().unwrap_or_else(nearest);
    let setup = Setup::default().with(&given.map_or_else(|| Settings::from_pairs(&config), Ok)?)?;
    let profile = Profile::of(&trace);
    let is_idle = profile.all.allocations + profile.frees == 0;
    let cost = if is_idle { Cost::default() } else { cost(&trace, &setup)? };
    let cost = Cost { config, ..cost };
    let kernel = Samples::of(&trace);
    if session.format == Format::Json {
        let shares =
            |share: &Share| serde_json::json!({ "allocations": share.allocations, "pages": share.pages });
        let orders: serde_json::Map<_, _> =
            profile.orders.iter().map(|(order, share)| (order.to_string(), shares(share))).collect();
        let types: serde_json::Map<_, _> =
            profile.types.iter().map(|(kind, share)| (type_name(*kind), shares(share))).collect();
        let comms: Vec<_> = profile
            .comms
            .iter()
            .take(args.top as usize)
            .map(|(comm, share)| serde_json::json!({ "comm": comm, "of": shares(share) }))
            .collect();
        let lifetimes: Vec<_> = QUANTILES.iter().map(|(name, q)| (*name, profile.lifetime_ns(*q))).collect();
        let lifetimes: serde_json::Map<_, _> =
            lifetimes.into_iter().map(|(name, ns)| (name.to_owned(), ns.into())).collect();
        let json = serde_json::json!({
            "trace": id, "duration_ns": profile.duration_ns, "allocations": profile.all.allocations,
            "pages": profile.all.pages, "page_bytes": trace.meta.bytes(1), "frees": profile.frees, "peak_pages": profile.peak_pages,
            "orders": orders, "types": types, "comms": comms, "lifetime_ns": lifetimes,
            "kept": shares(&profile.kept), "config": cost.config, "replayed_cpu_ns": cost.refused.is_none().then_some(cost.cpu_ns),
            "unseen_frees": profile.unseen_frees, "lost_events": trace.meta.lost_events, "cut": trace.meta.cut,
            "kernel": shares_json(kernel.as_ref()),
        });
        return session.terminal.print_data(&format!("{json:#}\n"));
    }
    let facts = if session.format == Format::Csv {
        numbers(&profile, &cost, kernel.as_ref())
    } else {
        facts(&trace, &profile, &cost, kernel.as_ref(), args)
    };
    session.print_lists(&tables(facts, &profile, args))
}

/// The facts, and the allocations by order, type and thread.
fn tables(facts: Listing, profile: &Profile, args: &SummaryArgs) -> [Listing; 4] {
    [
        facts,
        by("order", profile.orders.iter().map(|(order, share)| (order.to_string(), *share)), profile),
        by("type", profile.types.iter().map(|(kind, share)| (type_name(*kind), *share)), profile),
        by("thread", profile.comms.iter().take(args.top as usize).cloned(), profile),
    ]
}

/// CPU time of the trace's allocations and frees on this machine, in this allocator's code.
#[derive(Default)]
struct Cost {
    config: String,
    cpu_ns: f64,
    ns_per_operation: f64,
    /// Why it is not known, if it is not.
    refused: Option<String>,
}

/// Replays of which the fastest counts: other work on the machine disturbed it least.
const REPLAYS: u32 = 5;

fn cost(trace: &Trace, setup: &Setup) -> Result<Cost> {
    let replay = match Replay::new(trace, 1, None) {
        Ok(replay) => replay,
        Err(why) => return Ok(Cost { refused: Some(why.to_string()), ..Cost::default() }),
    };
    let mut costs = Vec::new();
    replay.repeated(setup, REPLAYS, |report| {
        let cpu_ns = report.cpu_ns.saturating_sub(report.waited_cpu_ns) as f64;
        costs.push(Cost { cpu_ns, ns_per_operation: report.cpu_ns_per_operation(), ..Cost::default() });
        true
    })?;
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
    fact("run", format!("{} from the first event to the last", time(profile.duration_ns as f64)));
    let recorded = [&*trace.meta.recorded_at, &*trace.meta.attribution];
    let recorded: Vec<_> = recorded.into_iter().filter(|text| !text.is_empty()).collect();
    if !recorded.is_empty() {
        fact("recorded", recorded.join(", "));
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
    let rate = match profile.duration_ns {
        0 => String::new(),
        ns => format!(" ({:.0} a second)", allocations as f64 * 1e9 / ns as f64),
    };
    fact("allocations", format!("{allocations}{rate} of {pages} pages, {}", size(trace.meta.bytes(pages))));
    let unseen = match profile.unseen_frees {
        0 => String::new(),
        unseen => format!(", {unseen} of them not of the trace's allocations"),
    };
    fact("frees", format!("{}{unseen}", profile.frees));
    fact("most in use", format!("{} of these allocations", size(trace.meta.bytes(profile.peak_pages))));
    let lifetimes: Vec<String> = QUANTILES
        .iter()
        .filter_map(|(name, quantile)| {
            Some(format!("{name} {}", time(profile.lifetime_ns(*quantile)? as f64)))
        })
        .collect();
    fact(
        "lifetimes",
        match lifetimes.len() {
            0 => "no block is freed".to_owned(),
            _ => format!("{}, of blocks that are freed", lifetimes.join(", ")),
        },
    );
    let kept = profile.kept;
    fact("still allocated", format!("{} blocks of {} pages at the end", kept.allocations, kept.pages));
    if trace.meta.cut {
        fact(
            "incomplete",
            "recording stopped before the command ended; what it freed later counts as allocated".into(),
        );
    }
    if trace.meta.lost_events != Some(0) {
        fact(
            "lost events",
            trace.meta.lost_events.map_or_else(|| "unknown".to_owned(), |lost| lost.to_string()),
        );
    }
    let replayed = match &cost.refused {
        _ if allocations + profile.frees == 0 => {
            "nothing: the trace has no allocations and no frees".to_owned()
        }
        Some(why) => format!("not: {why}"),
        None => format!(
            "{} in user space under {} ({:.1} ns an operation); a kernel takes longer",
            time(cost.cpu_ns),
            cost.config,
            cost.ns_per_operation,
        ),
    };
    fact("replayed here", replayed);
    listing
}

/// CPU time of the kernel, by samples.
fn in_the_kernel(samples: &Samples, reading_ns: u64, fact: &mut impl FnMut(&str, String)) {
    let percent = |part: Doing| format!("{:.2}", samples.share_of(&[part]).percent);
    let share = |parts: &[Doing]| {
        let kernel_time::Share { cpu_ns, percent, low, high } = samples.share_of(parts);
        format!("{percent:.2} % [{low:.2}, {high:.2}], {}", time(cpu_ns))
    };
    let lost = if samples.lost > 0 { format!(", {} lost", samples.lost) } else { String::new() };
    fact("CPU time", format!("{} ({} samples{lost}); of it:", time(samples.cpu_ns()), samples.count()));
    fact(" page allocation", share(&Doing::ALLOCATOR));
    fact(
        "  its parts",
        format!(
            "allocating {}, freeing {}, waiting for zone locks {} %",
            percent(Doing::Allocating),
            percent(Doing::Freeing),
            percent(Doing::ZoneLock)
        ),
    );
    fact(" clearing pages", share(&[Doing::Clearing]));
    fact(
        " beside it",
        format!(
            "reclaim {}, compaction {}, LRU locks {}, cgroup locks {} %",
            percent(Doing::Reclaiming),
            percent(Doing::Compacting),
            percent(Doing::LruLock),
            percent(Doing::GroupLock)
        ),
    );
    let sites: Vec<String> = samples
        .call_sites()
        .take(CALL_SITES)
        .map(|(site, percent)| format!("{site} {percent:.0} %"))
        .collect();
    if !sites.is_empty() {
        fact(" call sites", format!("{} of the time of allocating", sites.join(", ")));
    }
    let samples_cost =
        if samples.is_cost_known() { "" } else { " for its events; that of samples is not known" };
    let reader = match reading_ns {
        0 => String::new(),
        ns => format!(", and {} of the reader of the kernel's buffers", time(ns as f64)),
    };
    fact(
        "recording cost",
        format!("{:.1} % more CPU time of the run{samples_cost}{reader}", samples.recording_percent()),
    );
}

/// The facts as bare numbers.
fn numbers(profile: &Profile, cost: &Cost, kernel: Option<&Samples>) -> Listing {
    let mut listing = Listing::new("", &["", ""]);
    let mut fact = |name: &str, value: f64| listing.row([name.to_owned(), value.to_string()]);
    for (name, value) in [
        ("duration_ns", profile.duration_ns),
        ("allocations", profile.all.allocations),
        ("pages", profile.all.pages),
        ("frees", profile.frees),
        ("unseen_frees", profile.unseen_frees),
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
    if cost.refused.is_none() {
        fact("replayed_cpu_ns", cost.cpu_ns);
    }
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

#[cfg(test)]
mod tests {
    use framewright_trace::trace::{Event, EventKind, Note};

    use super::*;

    /// The screen of a shipped trace, with these samples of the kernel, if any; the figures of this machine are made
    /// up.
    fn screen(samples: Option<&str>) -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/compile.parquet");
        let mut trace = Trace::read(path.as_ref()).expect("shipped");
        if let Some(text) = samples {
            let (name, text) = ("kernel_samples".to_owned(), text.to_owned());
            trace.notes.push(Note { time_ns: 0, cpu: 0, pid: 0, comm: 0, name, text });
            trace.meta.reading_ns = 153_000_000;
        }
        let args = SummaryArgs { trace: "compile.parquet".into(), config: None, top: 3 };
        let cost = Cost {
            config: "preset=linux_v6_16".to_owned(),
            cpu_ns: 6.2e6,
            ns_per_operation: 9.3,
            refused: None,
        };
        let profile = Profile::of(&trace);
        let facts = facts(&trace, &profile, &cost, Samples::of(&trace).as_ref(), &args);
        let terminal = Terminal { width: Some(80), ..Terminal::plain() };
        let texts = tables(facts, &profile, &args).map(|part| part.render(Format::Table, &terminal));
        texts.join("\n")
    }

    /// What was freed after the recording had stopped counts as allocated, and what came before it only as freed.
    #[test]
    fn a_recording_that_was_cut_is_not_told_as_whole() {
        let event = |time_ns, kind, pfn| Event { time_ns, kind, pfn, ..Event::default() };
        let mut trace = Trace {
            events: vec![
                event(0, EventKind::PageAlloc, 8),
                event(1, EventKind::PageFree, 9),
                event(2, EventKind::PageAlloc, 10),
                event(3, EventKind::PageFree, 8),
            ],
            ..Trace::default()
        };
        trace.comms.intern("p");
        // An import has no date.
        trace.meta.attribution = "all events of the imported file".to_owned();
        let mut said = |cut, lost_events| {
            (trace.meta.cut, trace.meta.lost_events) = (cut, lost_events);
            let args = SummaryArgs { trace: "t".into(), config: None, top: 3 };
            let facts = facts(&trace, &Profile::of(&trace), &Cost::default(), None, &args);
            facts.render(Format::Table, &Terminal::plain())
        };
        let whole = said(false, Some(0));
        assert!(!whole.contains("lost events") && !whole.contains("incomplete"), "{whole}");
        assert!(whole.contains("recorded          all events of the imported file\n"), "{whole}");
        assert!(whole.contains("frees             2, 1 of them not of the trace's allocations"), "{whole}");
        let cut = said(true, None);
        assert!(cut.contains("incomplete        recording stopped before the command ended"), "{cut}");
        assert!(cut.contains("lost events       unknown"), "{cut}");
        assert!(said(false, Some(7)).contains("lost events       7"));
    }

    /// A huge page of Arm's kernels with pages of 64 KiB is of order 13.
    #[test]
    fn what_cannot_be_replayed_is_told_all_the_same() {
        let huge = Event { order: 13, ..Event::default() };
        let mut trace = Trace { events: vec![huge], ..Trace::default() };
        trace.comms.intern("p");
        let bytes = trace.to_bytes().expect("a trace");
        let trace = Trace::read_bytes(&bytes, "t").expect("it is read again");
        let args = SummaryArgs { trace: "t".into(), config: None, top: 3 };
        let cost = cost(&trace, &Setup::default()).expect("told");
        let said =
            facts(&trace, &Profile::of(&trace), &cost, None, &args).render(Format::Table, &Terminal::plain());
        assert!(said.contains("1 of 8192 pages, 32 MiB"), "{said}");
        assert!(said.contains("replayed here     not: event 0 has order 13: 10 is the largest"), "{said}");
    }

    /// As of Arm servers.
    #[test]
    fn pages_have_the_size_that_the_traced_kernel_gave_them() {
        let events = vec![Event::default()];
        for (page_kib, size) in [(0, "4 KiB"), (4, "4 KiB"), (16, "16 KiB"), (64, "64 KiB")] {
            let mut trace = Trace { events: events.clone(), ..Trace::default() };
            trace.comms.intern("p");
            trace.meta.page_kib = page_kib;
            let args = SummaryArgs { trace: "t".into(), config: None, top: 3 };
            let facts = facts(&trace, &Profile::of(&trace), &Cost::default(), None, &args);
            let said = facts.render(Format::Table, &Terminal::plain());
            assert!(said.contains(&format!("allocations       1 of 1 pages, {size}\n")), "{said}");
            assert!(said.contains(&format!("most in use       {size} of these")), "{said}");
        }
    }

    /// As `perf record` leaves it: nothing of it says what it cost.
    #[test]
    fn a_cost_that_was_not_measured_is_not_said_to_be_none() {
        let samples = Samples::of(&Trace {
            notes: vec![Note {
                time_ns: 0,
                cpu: 0,
                pid: 0,
                comm: 0,
                name: "kernel_samples".to_owned(),
                text: "period_ns=1001001 lost=0\n98 user\n2 a;ring_buffer_lock_reserve\n".to_owned(),
            }],
            ..Trace::default()
        });
        let mut said = Vec::new();
        in_the_kernel(&samples.expect("samples"), 0, &mut |name, text| said.push((name.to_owned(), text)));
        let (_, cost) = said.iter().find(|(name, _)| name == "recording cost").expect("it is said");
        assert_eq!(cost, "2.0 % more CPU time of the run for its events; that of samples is not known");
    }

    #[test]
    fn a_summary_is_as_it_was_read() {
        let fault = "handle_mm_fault;do_anonymous_page";
        let samples = format!(
            "period_ns=1001001 lost=0 block_ns=900 sample_ns=30000\n30000 user\n\
             210 {fault};__alloc_frozen_pages_noprof;get_page_from_freelist;rmqueue\n\
             40 filemap_add_folio;__alloc_frozen_pages_noprof;rmqueue\n\
             90 exit_mmap;free_unref_folios\n\
             800 {fault};clear_page_erms\n\
             450 {fault};__traceiter_mm_page_alloc\n\
             3000 do_syscall_64\n"
        );
        for (name, samples) in [("trace-summary", Some(&*samples)), ("trace-summary-without-samples", None)] {
            let screen = screen(samples);
            assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
            insta::assert_snapshot!(name, screen);
        }
    }
}
