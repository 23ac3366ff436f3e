//! `framewright replay`.

use framewright_report::result::TraceId;
use framewright_workload::replay::Ageing;

use crate::answer::{self, SHARE, SHARE_RANGE};
use crate::booting::report::enough_memory;
use crate::command::*;
use crate::configure::Measures;
use crate::doctor::Kernel;
use crate::modelled::{self, Modelled};

const EXAMPLES: &str = "\
Examples:
  framewright replay compile.parquet
  framewright replay compile.parquet --new vm.percpu_pagelist_high_fraction=8
  framewright replay compile.parquet --new batch=7,high=42 --samples 20
  framewright replay compile.parquet --machine epyc-7742-2s --copies 8

A CONFIG is a list of key=value pairs with commas between them, applied in
order. `framewright settings` lists the keys; sysctl names serve as well. --new
changes the baseline's settings: with --base preset=linux_v5_4, the column of
--new lock_place=own_line differs in the lock alone.
Presets: framewright, linux_v3_0, linux_v5_4, linux_v6_1, linux_v6_7,
linux_v6_16.";

/// Run a trace on real threads under two or more configurations
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace that was recorded or imported
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// Configuration of the baseline [default: the preset nearest to the trace's kernel]
    #[arg(long, value_name = "CONFIG")]
    base: Option<String>,

    /// Settings that another configuration changes in the baseline; may be given again [default: preset=framewright]
    #[arg(long, value_name = "CONFIG")]
    new: Vec<String>,

    /// Threads to replay on; the traced CPUs are shared out to them [default: this machine's CPUs]
    #[arg(long, value_name = "N", value_parser = count)]
    threads: Option<u32>,

    /// Memory of each allocator, in MiB or as 4G [default: the largest zone of the trace's machine; for huge pages 1.3
    /// times what the trace uses]
    #[arg(long, value_name = "MIB", value_parser = |text: &str| mib(text, 1, 1 << 24))]
    memory: Option<u64>,

    /// Simulate the replay on this machine instead: a name, an alias, or a TOML file
    #[arg(long, value_name = "MACHINE", conflicts_with_all = ["threads", "memory"])]
    machine: Option<String>,

    /// Copies that run together on the simulated machine, each from another place in the trace [default: 1]
    #[arg(long, value_name = "N", requires = "machine", conflicts_with_all = ["threads", "memory"],
          value_parser = count)]
    copies: Option<u32>,

    /// Measurements of each configuration, interleaved, or models of the simulated machine
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = count)]
    samples: u32,

    #[command(flatten)]
    seed: Seed,

    #[command(flatten)]
    report: ReportArgs,
}

/// Replays a trace under the baseline and every other configuration.
///
/// # Errors
/// The trace cannot be read or holds nothing, or a setting does not exist.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let threads = args.threads.map_or_else(cpus_here, |threads| threads as usize);
    check_threads(threads)?;
    // What can be refused without the trace is, before it is read.
    let columns = setups(args, "")?.0.len();
    if let Some(mib) = args.memory {
        // Huge pages are measured in several allocators at a time.
        let frames = (mib << 8) * columns.min(cpus_here()) as u64;
        enough_memory(frames, BYTES_PER_FRAME, "choose a smaller --memory")?;
    }
    let machine = args.machine.as_deref().filter(|name| is_path(name)).map(Path::new);
    let inputs: Vec<&Path> = machine.into_iter().chain([args.trace.as_path()]).collect();
    let reporter = session.begin(&args.report, &inputs)?;
    let (trace, id) = shipped::read(&args.trace)?;
    let (setups, settings) = setups(args, &trace.meta.kernel)?;
    if let Some(name) = &args.machine {
        let machine = Machine::find(name)?;
        let modelled = Modelled::new(&trace, &machine, args.copies.unwrap_or(1) as usize)?;
        let mut part = modelled::part(&machine, &setups[0].0, args.seed.seed);
        describe(&mut part, &setups, &settings, id, &trace);
        let progress = Progress::interruptible("replay", u64::from(args.samples) * setups.len() as u64);
        modelled.simulate(&setups, args.samples, &mut part, &progress)?;
        let ended = ended(&part, args.samples, progress);
        let document = session.document(format!("replay {} on {}", args.trace.display(), machine.name));
        return reporter.end(document, part, ended);
    }
    let mut replay = Replay::new(&trace, threads, args.memory.map(|mib| mib << 8))?;
    if args.memory.is_none() {
        replay.enlarge(largest_zone(&trace));
    }
    let mut part =
        Part::new("replay", "trace", Kind::Measured, "host").baseline(&*setups[0].0).seed(args.seed.seed);
    part.headline = Some("ns_per_operation".to_owned());
    describe(&mut part, &setups, &settings, id, &trace);
    let noise = Noise::before();
    let progress = Progress::interruptible("replay", (u64::from(args.samples) + 1) * setups.len() as u64);
    replay.measure(&setups, args.samples, &mut part, &progress)?;
    let ageing = Ageing { seed: args.seed.seed, ..Ageing::default() };
    replay.age(&setups, &ageing, &mut part, &progress)?;
    noise.after(&mut part);
    let ended = ended(&part, args.samples, progress);
    reporter.end(session.document(format!("replay {}", args.trace.display())), part, ended)
}

/// An error with the number of samples, if Ctrl-C ended the work.
pub(super) fn ended(part: &Part, samples: u32, progress: Progress) -> Result<()> {
    let done = part.metrics.iter().map(|metric| metric.of(&part.baseline).len()).max().unwrap_or(0);
    progress.ended(done, samples as usize, "samples")
}

/// Names the columns, the trace, and settings that do nothing here.
fn describe(part: &mut Part, setups: &[(String, Setup)], settings: &[Settings], id: TraceId, trace: &Trace) {
    let measures = if part.kind == Kind::Simulated { Measures::ModelledTrace } else { Measures::Trace };
    for ((name, setup), settings) in setups.iter().zip(settings) {
        *part = core::mem::replace(part, Part::new("", "", Kind::Derived, "")).variant(name);
        for what in setup.without_effect(settings, measures) {
            part.note(format!("Warning: {what}"));
        }
    }
    for warning in alike(setups) {
        part.note(warning);
    }
    part.trace = Some(id);
    match Samples::of(trace) {
        Some(samples) => share(part, &samples),
        None => {
            part.note("The allocator's share of the recorded run is not known: the trace has no samples.");
        }
    }
    if let Some(lost) = trace.meta.lost_events.filter(|&lost| lost > 0) {
        part.note(format!("Warning: {lost} events were lost when this was recorded."));
    }
    if let kib @ 5.. = trace.meta.page_kib {
        part.note(format!(
            "Warning: the traced kernel's pages have {kib} KiB; here each has 4 KiB, and a huge page 512 of them."
        ));
    }
    if trace.meta.cut {
        part.note("Warning: recording stopped before the command ended: what follows is not replayed.");
    }
}

/// Warns of columns that are the same configuration: a setting was given the value that it has.
fn alike(setups: &[(String, Setup)]) -> Vec<String> {
    let warning = |(n, (name, setup)): (usize, &(String, Setup))| {
        let (known, _) = setups[..n].iter().find(|(_, earlier)| earlier == setup)?;
        Some(format!(
            "Warning: {name} is the same configuration as {known}: what differs between them is noise."
        ))
    };
    setups.iter().enumerate().filter_map(warning).collect()
}

/// Adds the allocator's share of the recorded run, with its interval.
fn share(part: &mut Part, samples: &Samples) {
    let share = samples.share_of(&Doing::ALLOCATOR);
    part.condition(SHARE, format!("{:.3}", share.percent));
    part.condition(SHARE_RANGE, format!("{:.4} to {:.4}", share.low, share.high));
}

/// What an allocator and its replay keep for a frame of memory, rounded up: 13 bytes.
const BYTES_PER_FRAME: u64 = 16;
/// Rounds of a prediction.
const PREDICTED_SAMPLES: u32 = 6;

/// The prediction of a replay for a change of settings, in a sentence.
pub(super) fn prediction(
    trace: &Trace,
    base: &Settings,
    new: &Settings,
    seed: u64,
    stop: &Interrupt,
) -> Result<String> {
    let preset = Settings::from_pairs(&format!("preset={}", nearest_preset(&trace.meta.kernel)))?;
    let baseline = Setup::default().with(&preset)?.with(base)?;
    let setups = [("base".to_owned(), baseline), ("new".to_owned(), baseline.with(new)?)];
    let mut replay = Replay::new(trace, cpus_here(), None)?;
    replay.enlarge(largest_zone(trace));
    let mut part = Part::new("replay", "trace", Kind::Measured, "host").baseline("base").variant("new");
    if let Some(samples) = Samples::of(trace) {
        share(&mut part, &samples);
    }
    let progress = Progress::until(stop, "predict", u64::from(PREDICTED_SAMPLES + 1) * 2);
    replay.measure(&setups, PREDICTED_SAMPLES, &mut part, &progress)?;
    let ageing = Ageing { seed, ..Ageing::default() };
    replay.age(&setups, &ageing, &mut part, &progress)?;
    Ok(answer::in_a_sentence(&part, "new"))
}

/// The preset nearest to a kernel's release; the newest one if that is not known.
pub(super) fn nearest_preset(release: &str) -> &'static str {
    Kernel::parse(release).map_or("linux_v6_16", |kernel| kernel.preset().0)
}

/// Frames that are described at most if nothing else is asked for: 64 GiB take 128 MiB of descriptors.
const MOST_FRAMES: u64 = 1 << 24;

/// Managed pages of the largest zone that the trace's `/proc/zoneinfo` shows; 0 if it has none.
fn largest_zone(trace: &Trace) -> u64 {
    let zones = trace.notes.iter().find(|note| note.name == "/proc/zoneinfo").into_iter();
    let managed =
        zones.flat_map(|note| note.text.lines()).filter_map(|line| line.trim().strip_prefix("managed"));
    managed.filter_map(|pages| pages.trim().parse().ok()).max().unwrap_or(0).min(MOST_FRAMES)
}

/// The baseline and what is compared with it, by the names of their columns; and what was set for each.
type Setups = (Vec<(String, Setup)>, Vec<Settings>);

/// # Errors
/// A setting that does not exist, or a configuration that is given twice or changes nothing.
fn setups(args: &Args, kernel: &str) -> Result<Setups> {
    let nearest = format!("preset={}", nearest_preset(kernel));
    let base = args.base.as_deref().unwrap_or(&nearest);
    let common = Settings::from_pairs(base)?;
    let baseline = Setup::default().with(&common)?;
    let mut setups = vec![(if base.is_empty() { "preset=framewright" } else { base }.to_owned(), baseline)];
    let mut all = vec![common];
    let default = ["preset=framewright".to_owned()];
    for config in if args.new.is_empty() { &default[..] } else { &args.new } {
        let changes = Settings::from_pairs(config)?;
        if changes.iter().next().is_none() {
            return Err(Error::usage("--new '' changes nothing of the baseline"));
        }
        // A preset replaces what the baseline set.
        let name = if changes.get("preset").is_some() { config.clone() } else { format!("base + {config}") };
        if setups.iter().any(|(known, _)| *known == name) {
            return Err(Error::usage(format_args!("configuration `{config}` is given twice")));
        }
        setups.push((name, baseline.with(&changes)?));
        all.push(changes);
    }
    Ok((setups, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_with_the_value_that_it_has_is_named() {
        let setups: Vec<_> = ["preset=framewright", "engine=framewright", "batch=63", "high=378"]
            .map(|pairs| {
                let settings = Settings::from_pairs(pairs).expect("pairs");
                (pairs.to_owned(), Setup::default().with(&settings).expect("settings"))
            })
            .into();
        let same = |name: &str, known: &str| {
            format!(
                "Warning: {name} is the same configuration as {known}: what differs between them is noise."
            )
        };
        let expected = [same("engine=framewright", "preset=framewright"), same("high=378", "batch=63")];
        assert_eq!(alike(&setups), expected);
    }

    /// Only warnings are shown above the rows.
    #[test]
    fn a_trace_that_lacks_events_is_warned_of() {
        let warnings = |cut, lost_events| {
            let mut trace = Trace::default();
            (trace.meta.cut, trace.meta.lost_events) = (cut, lost_events);
            let mut part = Part::new("replay", "trace", Kind::Measured, "host");
            describe(&mut part, &[], &[], TraceId { name: String::new(), sha256: String::new() }, &trace);
            part.notes.into_iter().filter(|note| note.starts_with("Warning: ")).collect::<Vec<_>>()
        };
        assert_eq!(warnings(false, Some(0)), [""; 0]);
        assert_eq!(warnings(false, Some(3)), ["Warning: 3 events were lost when this was recorded."]);
        let cut = "Warning: recording stopped before the command ended: what follows is not replayed.";
        assert_eq!(warnings(true, None), [cut]);
        let of_pages = |page_kib| {
            let mut trace = Trace::default();
            trace.meta.page_kib = page_kib;
            let mut part = Part::new("replay", "trace", Kind::Measured, "host");
            describe(&mut part, &[], &[], TraceId { name: String::new(), sha256: String::new() }, &trace);
            part.notes.into_iter().filter(|note| note.starts_with("Warning: ")).collect::<Vec<_>>()
        };
        assert_eq!([of_pages(0), of_pages(4)], [[""; 0]; 2]);
        let large = "Warning: the traced kernel's pages have 64 KiB; here each has 4 KiB, and a huge page 512 of them.";
        assert_eq!(of_pages(64), [large]);
    }

    #[test]
    fn the_base_is_the_preset_nearest_to_the_traced_kernel() {
        for (kernel, preset) in [
            ("6.18.44-fc-v657", "linux_v6_16"),
            ("7.0.0", "linux_v6_16"),
            ("6.12.9-amd64", "linux_v6_7"),
            ("6.1.0-18-amd64", "linux_v6_1"),
            ("5.14.0-427.el9", "linux_v6_1"),
            ("5.13.19", "linux_v5_4"),
            ("3.10.0-1160.el7", "linux_v3_0"),
            ("", "linux_v6_16"),
        ] {
            assert_eq!(nearest_preset(kernel), preset, "{kernel}");
        }
    }
}
