//! `framewright compare`.

use framewright_report::compare::{
    Regression, Saved, Sort, add_means, keep_changed, keep_metrics, keep_part, merge, regressions,
    sort_metrics,
};
use framewright_report::result::Source;
use framewright_report::table::markdown_lines;

use crate::command::*;
use crate::session::COMMIT;

const EXAMPLES: &str = "\
Examples:
  framewright compare before.json after.json
  framewright compare run.json --style mmtests-2019
  framewright compare before.json after.json --changed --sort change
  framewright compare before.json after.json --metric 'alloc_ns*' --fail-over 5

With several files the first is the baseline, and a variant that they share
becomes a table whose columns are the files. With one file its own variants are
compared.

Exit status: 0, 1 for a file that is no result, 2 for wrong usage, 3 if a metric
got worse by more than --fail-over.
";

/// Show saved results, and what changed between them
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Results saved with -o; the first is the baseline
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,

    /// Only metrics that match: * stands for any text, ? for any character
    #[arg(long, value_name = "PATTERN")]
    metric: Option<String>,

    /// Only this part
    #[arg(long, value_name = "PART")]
    part: Option<String>,

    /// Only metrics that are clearly better, worse or different in some column
    #[arg(long)]
    changed: bool,

    /// Order of the metrics within a part
    #[arg(long, value_enum, value_name = "ORDER")]
    sort: Option<Sort>,

    /// Fail if the median of a metric is worse by more than this, and not by chance; of too few samples to judge that,
    /// in any case
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_over: Option<f64>,

    #[command(flatten)]
    report: ReportArgs,
}

pub(super) fn percent(text: &str) -> core::result::Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.0..).contains(&percent) => Ok(percent),
        _ => Err("expected a percentage of 0 or more, such as 5".to_owned()),
    }
}

/// Compares saved results.
///
/// # Errors
/// A file is no result, the files have nothing in common, or a metric regressed.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    let reporter = session.begin(&args.report, &inputs)?;
    let mut document = merge(&Saved::read_all(&args.files)?)?;
    if !document.sources.is_empty() {
        document.commit = COMMIT.map(str::to_owned);
    }
    let mut parts = document.results.iter();
    if args.fail_over.is_some() && parts.all(|part| part.others().next().is_none()) {
        return Err(Error::usage("--fail-over has nothing to compare: name a second result"));
    }
    if let Some(pattern) = &args.metric {
        keep_metrics(&mut document, pattern)?;
    }
    if let Some(part) = &args.part {
        keep_part(&mut document, part)?;
    }
    if args.changed {
        keep_changed(&mut document);
    }
    if let Some(sort) = args.sort {
        sort_metrics(&mut document, sort);
    }
    add_means(&mut document);
    let (heading, terminal) = (heading(&document), &session.terminal);
    let heading: String = match session.format {
        Format::Table => {
            heading.lines().map(|line| paragraph(line, terminal.width, "  ", Tone::Plain, terminal)).collect()
        }
        Format::Markdown if !heading.is_empty() => markdown_lines(heading.lines()) + "\n",
        _ => String::new(),
    };
    let shown = terminal.print(&heading);
    let shown = shown.and_then(|()| reporter.finish(&document, Style::Framewright));
    judge(&document, args.fail_over, shown)
}

/// Fails if a metric got worse by more than `fail_over` percent; otherwise passes on how showing the results ended.
pub(super) fn judge(document: &Document, fail_over: Option<f64>, shown: Result<()>) -> Result<()> {
    let Some(percent) = fail_over else { return shown };
    // A reader that went away must not hide a regression.
    if !matches!(shown, Ok(()) | Err(Error::OutputClosed)) {
        return shown;
    }
    let regressed = regressions(document, percent);
    if regressed.is_empty() { shown } else { Err(refusal(percent, &regressed)) }
}

/// Origin of each file: command, date, version and host.
fn heading(document: &Document) -> String {
    let mut text = String::new();
    for Source { label, command, date, version, host } in &document.sources {
        let date = date.as_deref().map_or_else(String::new, |date| format!("{date}, "));
        text += &format!("{label}: {command}\n  {date}framewright {version}, {host}\n");
    }
    if text.is_empty() {
        return text;
    }
    // Two runs of one binary differ by more than the spread within each. Results of older versions have no date.
    let run = |source: &Source| (source.date.clone(), source.command.clone(), source.version.clone());
    let same_run = |[a, b]: &[Source; 2]| a.date.is_some() && run(a) == run(b);
    let is_measured = document.results.iter().any(|part| part.kind == Kind::Measured);
    if is_measured && !document.sources.array_windows().all(same_run) {
        text += "Separate runs: each change also holds what the machine did between them. Measure both in one run to leave \
                 that out.\n";
    }
    text + "\n"
}

fn refusal(percent: f64, regressed: &[Regression]) -> Error {
    let sentence = |regression: &Regression| {
        let Regression { part, metric, variant, percent } = regression;
        let much = if percent.is_finite() { format!("{percent:.1} %") } else { "from 0,".to_owned() };
        format!("{metric} {much} worse ({variant}, {part})")
    };
    let list: Vec<String> = regressed.iter().map(sentence).collect();
    Error::regressed(format_args!("regressed past {percent} %: {}", list.join("; ")))
}
