//! `framewright study`.

mod queue;

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, stderr};
use std::time::Instant;

use framewright_report::error::did_you_mean;
use framewright_report::summary::{marks, part_line, summary};

use crate::command::*;
use crate::progress::aside;
use crate::study::workload::Opt;
use crate::study::{Job, Plan, Run, jobs, traced};
use queue::Event;

const EXAMPLES: &str = "\
Examples:
  framewright study
  framewright study all --quick
  framewright study pcp-reset --kind measured
  framewright study pcp-reset --part structure --machine skylake-8167m-2s
  framewright study all --kind simulated --samples 20 -o predictions.json
  framewright study zone-reclaim --style mmtests-2011 --scale 4
  framewright study refill-check --part huge --trace huge.json
  framewright study ./mine.toml

Without a study, lists them. A study of your own is a TOML file that says what
differs: docs/guide/study.md explains it, `framewright workloads` lists what its
parts can run, `framewright settings` what its variants can set.";

/// Run published experiments, or one of your own
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A study, a TOML file of your own, or all; without it, studies are listed
    #[arg(value_name = "STUDY")]
    study: Option<String>,

    /// Only this part of the study
    #[arg(long, value_name = "PART", requires = "study")]
    part: Option<String>,

    /// Only results of this kind
    #[arg(long, value_name = "KIND", requires = "study")]
    kind: Option<Kind>,

    /// Machine of derived and simulated parts, instead of the study's: a name or a TOML file
    #[arg(long, value_name = "MACHINE", requires = "study")]
    machine: Option<String>,

    /// Measurements of each variant, interleaved, and models of each simulated machine
    #[arg(long, value_name = "N", value_parser = count, requires = "study")]
    samples: Option<u32>,

    /// Fewer measurements, fewer models, shorter simulated runs
    #[arg(long, requires = "study")]
    quick: bool,

    /// Memory map size for the init parts, in GiB or as 1T [default: 32; 8 with --quick]
    #[arg(long, value_name = "GIB", value_parser = |text: &str| gib(text, 2, 1024), requires = "study")]
    memory: Option<u64>,

    /// Memory of the files parts, and what they write, in multiples of the study's own [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = scale, requires = "study")]
    scale: Option<f64>,

    /// Print the tables of every part also for `all`
    #[arg(long, requires = "study")]
    details: bool,

    /// Run a simulated part once per variant and write each virtual CPU's timeline, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", requires = "part",
          conflicts_with_all = ["kind", "samples", "quick", "memory", "scale", "details", "style", "output", "html",
                                "plot", "all_statistics"])]
    trace: Option<PathBuf>,

    #[command(flatten)]
    seed: Seed,

    #[command(flatten)]
    report: ReportArgs,
}

/// Runs a study or all of them, and shows a table and a plot of each part.
///
/// # Errors
/// No study, part or machine of the name, an option that changes nothing, or what a part says.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let Some(name) = &args.study else { return list(args, session) };
    let whole = name == "all" && args.part.is_none();
    let files = [Some(name), args.machine.as_ref()].into_iter().flatten().filter(|name| is_path(name));
    let mut inputs: Vec<&Path> = files.map(Path::new).collect();
    // What runs may outlive this function: an interrupt does not wait for it.
    let plans: &[Plan] = chosen(name, args.part.as_deref())?.leak();
    let find = |plan: &Plan| Machine::find(args.machine.as_deref().unwrap_or(plan.machine()));
    let machines: &[Machine] = plans.iter().map(find).collect::<Result<Vec<_>>>()?.leak();
    if let (Some(path), Some(part)) = (&args.trace, &args.part) {
        let ([plan], [machine]) = (plans, machines) else {
            return Err(Error::usage("--trace shows one study: name it"));
        };
        if session.format != Format::Table {
            return Err(Error::usage("--trace has a format of its own; leave --format out"));
        }
        let spans = traced::write(plan, part, machine, args.seed.seed, open_beside(path, &inputs)?)?;
        let text = format!("{spans} spans in {}: open it with ui.perfetto.dev.\n", path.display());
        return session.terminal.print(&text);
    }
    let mut work = Vec::new();
    for (plan, machine) in plans.iter().zip(machines) {
        let all = jobs(plan, args.part.as_deref(), args.kind)?;
        work.extend(all.into_iter().map(|job| (job, machine)));
    }
    if let (true, Some(kind)) = (work.is_empty(), args.kind) {
        return Err(Error::failed(nothing(name, args.part.as_deref(), kind)));
    }
    check_options(args, &work)?;

    let files = work.iter().map(|(job, _)| job.files()).collect::<Result<Vec<_>>>()?.concat();
    for file in &files {
        std::fs::metadata(file).map_err(|cause| Error::io("read", file, &cause))?;
    }
    inputs.extend(files.iter().map(PathBuf::as_path));

    let reading = session.format == Format::Table;
    let reporter = session.begin(&args.report, &inputs)?;
    let options = Options { args, name, whole };
    // The studies' own styles print what their authors printed: where all parts can be measured on this host, on the
    // page and with --all. On a terminal the answer comes first.
    let printed = match plans {
        [plan] if plan.is_measurable() => plan.style,
        _ => Style::Framewright,
    };
    let style = args.report.style.unwrap_or(printed);
    let on_terminal = if args.report.all_statistics { style } else { args.report.style.unwrap_or_default() };
    let mut document = session.document(format!("study {name}"));
    document.studies = plans.iter().map(Plan::text).collect();
    let shown = Shown {
        session,
        reporter: &reporter,
        details: reading && (!whole || args.details),
        style: on_terminal,
        machine: args.machine.as_deref(),
    };
    let ended = run_jobs(&work, &options, &shown, &mut document);
    let interrupted = matches!(ended, Ok(Ended { interrupted: true, .. }));
    finish(&shown, &document, ended.as_ref().ok())?;
    if args.quick && reading && !document.results.is_empty() {
        session.terminal.print(LEFT_OUT)?;
    }
    if !document.results.is_empty() {
        if reading {
            reporter.save(&document, style)?;
        } else {
            reporter.finish(&document, style)?;
        }
        let page = match &args.report.html {
            Some(path) => format!("All of this with plots, as one page: {}\n", path.display()),
            None if whole => "--html FILE.html writes all of this as one page, with plots.\n".to_owned(),
            None => String::new(),
        };
        if reading {
            session.terminal.print(&page)?;
        }
    }
    let ended = ended?;
    if document.results.is_empty() && !interrupted {
        return Err(Error::failed(ended.skipped.join("; ")));
    }
    if interrupted {
        let (done, all) = (document.results.len(), work.len());
        return Err(Error::failed(format_args!("interrupted: {done} of {all} parts were done")));
    }
    Ok(())
}

/// The studies of a name. `all` leaves out the one about the simulator itself, which takes longer than all others.
fn chosen(name: &str, part: Option<&str>) -> Result<Vec<Plan>> {
    if name != "all" {
        return Ok(vec![Plan::find(name)?]);
    }
    let mut plans = Plan::all()?;
    match part {
        None => plans.retain(|plan| plan.name != "validation"),
        Some(part) => {
            let has_part = |plan: &Plan| plan.parts.iter().any(|known| known.name == part);
            if !plans.iter().any(has_part) {
                let parts = plans.iter().flat_map(|plan| &plan.parts).map(|part| part.name.as_str());
                let hint = did_you_mean(part, parts.clone());
                let fix = if hint.is_empty() { "; `framewright study` lists them" } else { &hint };
                return Err(Error::usage(format_args!("no study has a part `{part}`{fix}")));
            }
            plans.retain(has_part);
        }
    }
    Ok(plans)
}

fn nothing(study: &str, part: Option<&str>, kind: Kind) -> String {
    part.map_or_else(
        || format!("nothing of {study} is {kind}"),
        |part| format!("part {part} of {study} cannot be {kind}"),
    )
}

/// Refuses options that none of the parts heeds.
fn check_options(args: &Args, work: &[Work]) -> Result<()> {
    let given = [
        (Opt::Machine, args.machine.is_some()),
        (Opt::Samples, args.samples.is_some()),
        (Opt::Quick, args.quick),
        (Opt::Scale, args.scale.is_some()),
        (Opt::Memory, args.memory.is_some()),
    ];
    for (option, _) in given.into_iter().filter(|(_, given)| *given) {
        let mut heeded = false;
        for (job, _) in work {
            heeded |= job.workload()?.declaration().heeds(option, job.kind);
        }
        if !heeded {
            let parts: Vec<String> =
                work.iter().map(|(job, _)| format!("{} ({})", job.part.name, job.kind)).collect();
            let flag = option.flag();
            return Err(Error::usage(format_args!(
                "{flag} changes nothing of what is run: {}",
                parts.join(", ")
            )));
        }
    }
    Ok(())
}

/// A part, and the machine that it is about.
type Work = (Job<'static>, &'static Machine);

/// Arguments of the command, as each part needs them.
struct Options<'a> {
    args: &'a Args,
    name: &'a str,
    whole: bool,
}

impl Options<'_> {
    fn of(&self, machine: &'static Machine) -> Run<'static> {
        let Self { args, name, whole } = self;
        Run {
            machine,
            asked: args.machine.is_some(),
            samples: args.samples.unwrap_or(match (args.quick, whole) {
                (true, _) => QUICK,
                (false, true) => SAMPLES_OF_ALL,
                (false, false) => SAMPLES,
            }),
            models: args.samples.unwrap_or(match (args.quick, *name) {
                (true, _) => QUICK,
                (false, "all") => MODELS_OF_ALL,
                (false, _) => SAMPLES,
            }),
            quick: args.quick,
            // Two are as little of a verdict as one.
            costly_samples: args.samples.unwrap_or(if args.quick || *whole { 1 } else { 3 }),
            costly_models: args.samples.unwrap_or(if args.quick { 1 } else { MODELS_OF_ALL }),
            scale: args.scale.unwrap_or(1.0),
            memory_gib: args.memory.unwrap_or(if args.quick { 8 } else { 32 }),
            seed: args.seed.seed,
        }
    }
}

/// Way in which results are shown as they come.
struct Shown<'a> {
    session: &'a Session,
    reporter: &'a Reporter<'a>,
    details: bool,
    style: Style,
    /// Machine that was asked for.
    machine: Option<&'a str>,
}

/// End of a run of parts.
struct Ended {
    interrupted: bool,
    skipped: Vec<String>,
}

/// Runs all parts, shows each when it is done, and adds it to the document. An interrupt ends it between parts, and
/// within a part without its result.
fn run_jobs(
    work: &[Work],
    options: &Options<'_>,
    shown: &Shown<'_>,
    document: &mut Document,
) -> Result<Ended> {
    let stop = Interrupt::watched();
    let noise = Noise::before();
    let mut ended = Ended { interrupted: false, skipped: Vec::new() };
    let quiet = stderr().is_terminal();
    let begin = Instant::now();
    if options.whole && options.args.kind.is_none() && options.args.samples.is_none() {
        notice(&format!(
            "{} parts, {}; Ctrl-C shows what is done by then",
            work.len(),
            lasts(options.args.quick)
        ));
    }
    let mut tasks = Vec::new();
    for &(job, machine) in work {
        match job.hindrance(machine)? {
            Some(why) => ended
                .skipped
                .push(format!("{} {} ({}) is skipped: {why}", job.plan.name, job.part.name, job.kind)),
            None => tasks.push((job, options.of(machine))),
        }
    }
    let order = queue::order(tasks.iter().map(|(job, _)| job.kind), options.whole);
    let (jobs, count): (Vec<Job<'_>>, _) = (tasks.iter().map(|(job, _)| *job).collect(), tasks.len());
    let (mut begun, mut done) = (0, Vec::new());
    let interrupted = queue::run(tasks, &order, options.whole, &stop, |event| {
        let (n, mut result) = match event {
            Event::Begins(n) => {
                begun += 1;
                if !quiet {
                    let Job { plan, part, kind } = jobs[n];
                    let since = since(begin.elapsed());
                    notice(&format!("[{begun}/{count}] {} {}, {kind}{since}", plan.name, part.name));
                }
                return Ok(());
            }
            Event::Ends(n, result) => (n, (*result)?),
        };
        if result.kind == Kind::Measured {
            noise.after(&mut result);
        }
        // The document has them in the order of the studies, however they came.
        let at = done.partition_point(|&known| known < n);
        done.insert(at, n);
        document.results.insert(at, result);
        aside(|| shown.part(&document.results[at], document))
    })?;
    ended.interrupted = interrupted;
    Ok(ended)
}

/// `, after 1:05`, if that is a second or more.
fn since(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds == 0 { String::new() } else { format!(", after {}:{:02}", seconds / 60, seconds % 60) }
}

impl Shown<'_> {
    /// Shows one part: its tables and plots, or of all studies a line.
    fn part(&self, part: &Part, document: &Document) -> Result<()> {
        let terminal = &self.session.terminal;
        if self.session.format != Format::Table {
            return Ok(());
        }
        if !self.details {
            return terminal.print(&part_line(part, terminal));
        }
        let first = document.results.len() == 1;
        let alone = Document { results: vec![part.clone()], ..document.clone() };
        terminal.print(if first { "" } else { "\n" })?;
        self.reporter.show_part(&alone, self.style)
    }
}

/// Ends what is printed: the legend of the tables, and the summary.
fn finish(shown: &Shown<'_>, document: &Document, ended: Option<&Ended>) -> Result<()> {
    let terminal = &shown.session.terminal;
    if shown.session.format != Format::Table || document.results.is_empty() {
        return Ok(());
    }
    if shown.details {
        terminal.print(&shown.reporter.legend(document, shown.style))?;
    }
    let summary = summary(document, terminal);
    if document.results.len() > 1 && !summary.is_empty() {
        if let Some(busy) = document.results.iter().rev().find_map(|part| part.conditions.get(BUSY)) {
            let text = format!("Noise: {busy}: quiet the machine before you trust what was measured here.");
            terminal.print("\n")?;
            terminal.print(&paragraph(&text, Some(terminal.columns()), "  ", Tone::Worse, terminal))?;
        }
        terminal.print(&format!("\n{summary}"))?;
        let marks = marks(shown.machine);
        terminal.print(&paragraph(&marks, Some(terminal.columns()), "", Tone::Plain, terminal))?;
    }
    for skipped in ended.map_or(&[][..], |ended| &ended.skipped) {
        terminal.print(&format!("{skipped}.\n"))?;
    }
    Ok(())
}

/// Lists the studies and their parts.
fn list(args: &Args, session: &Session) -> Result<()> {
    if args.report != ReportArgs::default() {
        return Err(Error::usage("name a study, or all; without one, studies are listed and nothing is run"));
    }
    let plans = Plan::all()?;
    if session.format == Format::Json {
        let list: Vec<serde_json::Value> = plans.iter().map(json).collect();
        return session.terminal.print_json(&list);
    }
    let mut listing = Listing::new("", &["study", "year", "change or question, and its parts"]);
    for plan in &plans {
        let year = plan.year.map_or_else(String::new, |year| year.to_string());
        listing.row([plan.name.clone(), year, plan.short.clone()]);
        listing.row([String::new(), String::new(), parts(plan)]);
    }
    session.terminal.print(&listing.render(session.format, &session.terminal))?;
    if session.format == Format::Table {
        session.print_below(&format!(
            "`framewright study NAME` runs one, `study all` runs all but validation: it takes {}, with --quick {}.",
            lasts(false),
            lasts(true)
        ))?;
    }
    Ok(())
}

/// The parts of a study by kind: `measured here: contend; simulated: contend, page_fault1`.
fn parts(plan: &Plan) -> String {
    let kinds =
        [(Kind::Measured, "measured here"), (Kind::Simulated, "simulated"), (Kind::Derived, "derived")];
    let named = kinds.iter().filter_map(|(kind, title)| {
        let names = plan.parts.iter().filter(|part| part.kinds.contains(kind)).map(|part| part.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        (!names.is_empty()).then(|| format!("{title}: {names}"))
    });
    named.collect::<Vec<_>>().join("; ")
}

/// Time that all studies take on 2 CPUs, as measured on an idle EPYC guest.
const fn lasts(quick: bool) -> &'static str {
    if quick { "less than a minute" } else { "3 to 5 minutes on 2 CPUs" }
}

fn json(plan: &Plan) -> serde_json::Value {
    let parts: Vec<BTreeMap<&str, serde_json::Value>> = plan
        .parts
        .iter()
        .map(|part| {
            BTreeMap::from([
                ("name", part.name.clone().into()),
                ("about", part.about.clone().into()),
                ("kinds", part.kinds.iter().map(ToString::to_string).collect::<Vec<_>>().into()),
            ])
        })
        .collect();
    serde_json::json!({
        "name": plan.name, "year": plan.year, "short": plan.short, "question": plan.question,
        "machine": plan.machine(), "parts": parts,
    })
}

fn scale(text: &str) -> core::result::Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (0.1..=32.0).contains(factor));
    factor.ok_or_else(|| "expected a factor from 0.1 to 32".to_owned())
}

/// Samples of each variant, if nothing else is asked for.
const SAMPLES: u32 = 10;
/// Samples in a run of all studies, which should end within minutes.
const SAMPLES_OF_ALL: u32 = 8;
/// Models of each machine in a run of all studies, which should end within minutes, and where one takes seconds.
const MODELS_OF_ALL: u32 = 4;
/// Samples and models where a first look is asked for.
const QUICK: u32 = 2;
/// Note about the work that a first look leaves out, in lines of 80 columns.
const LEFT_OUT: &str = "\
--quick: 1 or 2 samples and models, a quarter of the programs that write files,
curves at few numbers of CPUs, no hand-over and random frees in scaling.
";
