//! `framewright study`.

use std::path::PathBuf;

use crate::cli::{ReportArgs, Session};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::result::Kind;
use crate::shipped;
use crate::study::{Plan, Run, run as run_study, traced};
use crate::table::{Format, Style};

const EXAMPLES: &str = "\
Examples:
  framewright study
  framewright study pcp-reset
  framewright study all --quick
  framewright study pcp-reset --part structure --machine skylake-8167m-2s
  framewright study validation --samples 20 --format json
  framewright study refill-check --samples 40 -o refill.json --plot
  framewright study parallel-init --memory 16
  framewright study all --kind simulated --samples 20 -o predictions.json
  framewright study zone-reclaim --style mmtests-2011 --scale 4
  framewright study refill-check --part huge --trace huge.json
  framewright study ./mine.toml";

/// Run published experiments, or one of your own
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A study, a TOML file of your own, or all
    #[arg(default_value = "all", value_name = "STUDY")]
    pub study: String,

    /// Only this part of the study
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,

    /// Only what came about in this way
    #[arg(long, value_name = "KIND")]
    pub kind: Option<Kind>,

    /// The machine that derived and simulated parts are about, in place of the study's: a name or a TOML file
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<String>,

    /// Measurements of each variant, taken in turns, and models of each machine that are simulated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: Option<u32>,

    /// Fewer measurements, fewer models, shorter simulated runs: a first look
    #[arg(long)]
    pub quick: bool,

    /// GiB of memory described where its initialisation is measured [default: 64, quickly 16]
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u64).range(2..=1024))]
    pub memory: Option<u64>,

    /// Memory, and what is written to outgrow it, in multiples of a study's own [default: 1]
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale, hide_default_value = true)]
    pub scale: f64,

    /// Run a simulated part once for each variant and write what each virtual CPU did when, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", requires = "part")]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as a heading")]
    pub report: ReportArgs,
}

/// Runs a study or all of them, and shows a table and a plot of each part.
///
/// # Errors
/// No study, part or machine of the name, or what a part says.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    // Of all studies, each gets less time.
    let whole = args.study == "all" && args.part.is_none();
    let mut plans = if args.study == "all" { Plan::all()? } else { vec![Plan::find(&args.study)?] };
    if whole {
        // It is about the simulator, not about an allocator, and takes longer than all others.
        plans.retain(|plan| plan.name() != "validation");
    }
    if let Some(name) = &args.part {
        // Of all studies, those that have the part; a single study without it says so itself.
        let has = |plan: &Plan| plan.parts().iter().any(|part| part.name == *name);
        if plans.iter().any(has) {
            plans.retain(has);
        } else {
            plans.truncate(1);
        }
    }
    if let (Some(path), Some(part)) = (&args.trace, &args.part) {
        let [plan] = plans.as_slice() else {
            return Err(Error::failed("a trace is of one study: name it"));
        };
        let machine = Machine::find(args.machine.as_deref().unwrap_or(plan.machine()))?;
        let spans = traced::write(plan, part, &machine, args.report.seed, path)?;
        let text = format!("{spans} spans in {}: open it with ui.perfetto.dev.\n", path.display());
        return session.terminal.print(&text);
    }
    let trace = shipped::trace()?;
    let mut document = session.document(format!("study {}", args.study));
    let mut left_out = Vec::new();
    for plan in &plans {
        let machine = Machine::find(args.machine.as_deref().unwrap_or(plan.machine()))?;
        let wanted = Run {
            part: args.part.as_deref(),
            kind: args.kind,
            machine: &machine,
            samples: args.samples.unwrap_or(if args.quick { QUICK } else { SAMPLES }),
            models: args.samples.unwrap_or(match (args.quick, args.study.as_str()) {
                (true, _) => QUICK,
                (false, "all") => MODELS_OF_ALL,
                (false, _) => SAMPLES,
            }),
            quick: args.quick,
            costly_samples: args.samples.unwrap_or(match (args.quick, whole) {
                (true, _) => 1,
                (false, true) => 2,
                (false, false) => 3,
            }),
            costly_models: args.samples.unwrap_or(if args.quick { 1 } else { MODELS_OF_ALL }),
            scale: args.scale,
            memory_gib: args.memory.unwrap_or(if args.quick { 16 } else { 64 }),
            seed: args.report.seed,
            trace: &trace,
        };
        let (parts, simulated) = run_study(plan, &wanted)?;
        document.results.extend(parts);
        left_out.extend(simulated.into_iter().map(|part| format!("{} {part}", plan.name())));
    }
    if let (true, Some(kind)) = (document.results.is_empty(), args.kind) {
        let what = kind.to_string().to_lowercase();
        return Err(Error::failed(format_args!("nothing of {} is {what}", args.study)));
    }
    // The studies' own styles print what their authors printed. Where only a few parts of that can be measured on
    // this host, and for several studies, the default is the style that explains itself.
    let reading = session.format == Format::Table;
    let report = ReportArgs {
        plot: args.report.plot || reading,
        html: args.report.html.clone().or_else(|| (whole && reading).then(|| REPORT.into())),
        ..args.report.clone()
    };
    let style = match plans.as_slice() {
        [plan] if plan.is_measurable() => plan.style(),
        _ => Style::Framewright,
    };
    session.report(&document, &report, style)?;
    if let (true, Some(path)) = (reading, &report.html) {
        session.terminal.print(&format!("\nAll of this with plots, as one page: {}\n", path.display()))?;
    }
    if reading && !left_out.is_empty() {
        let list = left_out.join(", ");
        session.terminal.print(&format!("\nNot simulated yet: {list}.\n"))?;
    }
    Ok(())
}

fn scale(text: &str) -> core::result::Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (0.1..=32.0).contains(factor));
    factor.ok_or_else(|| "expected a factor from 0.1 to 32".to_owned())
}

/// The page that the main command leaves in the current folder.
const REPORT: &str = "framewright-report.html";

/// Samples of each variant, if nothing else is asked for.
const SAMPLES: u32 = 10;
/// Models of each machine in a run of all studies, which should end within minutes, and where one takes seconds.
const MODELS_OF_ALL: u32 = 4;
/// Samples and models where a first look is asked for.
const QUICK: u32 = 2;
