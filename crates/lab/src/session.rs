//! Beginning and end of each command: options of results, the files that they go to, and how they are shown.

use core::fmt::Display;
use core::str::FromStr;
use std::path::{Path, PathBuf};

use chrono::DateTime;
use clap::Args;
use framewright_report::error::{Error, Result};
use framewright_report::host::Host;
use framewright_report::html;
use framewright_report::plot;
use framewright_report::result::{Document, Part};
use framewright_report::table::{self, Format, Listing, Options, Style};
use framewright_report::terminal::{Terminal, Tone};
use framewright_trace::output::Output;
use framewright_workload::bench::Runner;

use crate::answer;

/// Commit that the program was built from, if it was built from a checkout.
pub(crate) const COMMIT: Option<&str> = option_env!("FRAMEWRIGHT_COMMIT");

/// Options of every command that ends with results.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct ReportArgs {
    /// Table style: framewright, mmtests-2011, mmtests-2019, mmtests-2024, lkp or deferred-init-2020. All but the first
    /// are as wide as the tools' own tables, on any terminal
    #[arg(long, value_enum, value_name = "STYLE", hide_possible_values = true, help_heading = "Results")]
    pub style: Option<Style>,

    /// Save the result, every sample included, as JSON
    #[arg(short, long, value_name = "FILE", help_heading = "Results")]
    pub output: Option<PathBuf>,

    /// Also write the results as one HTML page with tables and plots
    #[arg(long, value_name = "FILE.html", help_heading = "Results")]
    pub html: Option<PathBuf>,

    /// Draw plots below the tables
    #[arg(long, help_heading = "Results")]
    pub plot: bool,

    /// Print every row, note and statistic: unchanged rows, all cache lines
    #[arg(long = "all", alias = "all-statistics", help_heading = "Results")]
    pub all_statistics: bool,
}

/// The option of commands in which something is random.
#[derive(Clone, Copy, Debug, PartialEq, Args)]
pub struct Seed {
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| whole(text, 0, u64::MAX),
          allow_negative_numbers = true, help_heading = "Results")]
    pub seed: u64,
}

impl ReportArgs {
    /// Refuses options that would change nothing.
    fn check(&self, format: Format) -> Result<()> {
        if self.plot && format != Format::Table {
            return Err(Error::usage("--plot draws below tables; it cannot be used with another --format"));
        }
        if format == Format::Json && self.html.is_none() && (self.style.is_some() || self.all_statistics) {
            return Err(Error::usage(
                "--style and --all change nothing in JSON, which has every sample; leave them out",
            ));
        }
        Ok(())
    }

    /// Options that a table style leaves open.
    pub fn options(&self) -> Options {
        Options { all_statistics: self.all_statistics }
    }
}

/// Makes allocators to measure beside Framewright.
pub type Rivals = fn() -> Vec<Box<dyn Runner>>;

/// Input of every command besides its own arguments.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// For `bench --rivals`, if this program has any.
    pub rivals: Option<Rivals>,
    /// Format of the results.
    pub format: Format,
    /// Its destination.
    pub terminal: Terminal,
}

/// The places that results of a command go to, open since before its work began.
#[derive(Debug)]
pub struct Reporter<'a> {
    session: &'a Session,
    args: &'a ReportArgs,
    document: Option<Output>,
    page: Option<Output>,
}

impl Session {
    /// Checks how results are to be reported and opens the files that they go to: the first step of every command that
    /// has any. `inputs` are the files that it reads.
    ///
    /// # Errors
    /// Options that change nothing, or a file that cannot be written, or that is an input.
    pub fn begin<'a>(&'a self, args: &'a ReportArgs, inputs: &[&Path]) -> Result<Reporter<'a>> {
        args.check(self.format)?;
        let open = |path: &Option<PathBuf>| path.as_deref().map(|path| open_beside(path, inputs)).transpose();
        let (document, page) = (open(&args.output)?, open(&args.html)?);
        if let (Some(document), Some(page)) = (&document, &page)
            && document.is_also(page)
        {
            return Err(Error::usage("-o and --html name the same file"));
        }
        Ok(Reporter { session: self, args, document, page })
    }

    /// Prints lists, with a blank line between them.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn print_lists<'a>(&self, lists: impl IntoIterator<Item = &'a Listing>) -> Result<()> {
        let text = |list: &Listing| list.render(self.format, &self.terminal);
        self.terminal.print(&lists.into_iter().map(text).collect::<Vec<_>>().join("\n"))
    }

    /// Prints a remark below a list, after a blank line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn print_below(&self, remark: &str) -> Result<()> {
        let text = table::paragraph(remark, Some(self.terminal.columns()), "", Tone::Plain, &self.terminal);
        self.terminal.print(&format!("\n{text}"))
    }

    /// An empty document of this run: `command` in short, the command line, the time and the host.
    pub fn document(&self, command: impl Into<String>) -> Document {
        let mut document = Document::new(command, Host::probe());
        document.argv =
            std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
        document.argv.insert(0, "framewright".to_owned());
        document.date = Some(now());
        document.commit = COMMIT.map(str::to_owned);
        document
    }
}

/// A whole number from `least` to `most`.
pub(crate) fn whole<N: FromStr + PartialOrd + Display>(
    text: &str,
    least: N,
    most: N,
) -> core::result::Result<N, String> {
    let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
    number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

/// Opens a file for results.
///
/// # Errors
/// It cannot be written.
pub fn open(path: &Path) -> Result<Output> {
    Output::open(path).map_err(Error::failed)
}

/// Like [`open`], of a command that reads `inputs`: a recording is not replaced by what is said of it.
///
/// # Errors
/// It cannot be written, or is an input.
pub(crate) fn open_beside(path: &Path, inputs: &[&Path]) -> Result<Output> {
    let output = open(path)?;
    if inputs.iter().any(|input| output.replaces(input)) {
        return Err(Error::usage(format_args!(
            "{} is a file that this command reads; give the output another name",
            path.display()
        )));
    }
    Ok(output)
}

/// The time, UTC, to the second.
pub(crate) fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let time = DateTime::from_timestamp(since.as_secs() as i64, 0).unwrap_or_default();
    time.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Reporter<'_> {
    /// Shows and saves a part of results whose work ended so: an interrupted one has what was done.
    ///
    /// # Errors
    /// As [`finish`](Self::finish), and what ended the work.
    pub(crate) fn end(self, document: Document, part: Part, ended: Result<()>) -> Result<()> {
        if part.metrics.is_empty() {
            return ended;
        }
        self.finish(&document.with(part), Style::Framewright).and(ended)
    }

    /// Shows the results and saves them where that was asked for: the last step. Nothing that goes wrong with one of
    /// these keeps the others from being done.
    ///
    /// `style` is what the results are shown in if nothing else was asked for.
    ///
    /// # Errors
    /// The document contradicts itself, or cannot be written.
    pub fn finish(self, document: &Document, style: Style) -> Result<()> {
        let shown = self.show(document, style);
        self.save(document, style).and(shown)
    }

    /// Saves the results without showing them.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn save(self, document: &Document, style: Style) -> Result<()> {
        let saved = self.document.map_or(Ok(()), |output| document.write_to(output));
        let options = self.args.options();
        let style = self.args.style.unwrap_or(style);
        let page = self.page.map_or(Ok(()), |output| html::write(document, style, options, output));
        saved.and(page)
    }

    /// Prints the results.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn show(&self, document: &Document, style: Style) -> Result<()> {
        let Session { format, terminal, .. } = self.session;
        if *format == Format::Json {
            return terminal.print_data(&document.to_json()?);
        }
        let style = self.args.style.unwrap_or(style);
        table::check(document, style)?;
        if *format == Format::Table {
            return terminal.print(&self.text(document, style, true));
        }
        // CSV has all, as files and JSON have.
        let document = if *format == Format::Csv { document.clone() } else { self.for_readers(document) };
        let tables = table::tables(&document, style, self.args.options());
        terminal.print_data(&table::render(&tables, *format, terminal))
    }

    /// What a reader sees of some results, unless all was asked for.
    fn for_readers(&self, document: &Document) -> Document {
        if self.args.all_statistics { document.clone() } else { document.clone().in_short() }
    }

    /// Tables, answers and plots of some results, with the legend of the tables or without.
    fn text(&self, whole: &Document, style: Style, with_legend: bool) -> String {
        let terminal = &self.session.terminal;
        let document = self.for_readers(whole);
        let (answers, rest) = self.answers(&document, whole, style);
        let mut text = String::new();
        if !rest.results.is_empty() {
            let tables = table::tables(&rest, style, self.args.options());
            text += &table::bodies(&tables, terminal);
            text += &if with_legend { table::legend_text(&tables, terminal) } else { String::new() };
            text += if answers.is_empty() { "" } else { "\n" };
        }
        text += &answers;
        if self.args.plot {
            text += &format!("\n{}", plot::document(&document, terminal));
        }
        text
    }

    /// Answers of the parts that compare, as text, and the other parts, which are shown as tables: all of them with
    /// `--all` or in a style that was asked for. `whole` has the rows that `document` hides.
    fn answers(&self, document: &Document, whole: &Document, style: Style) -> (String, Document) {
        let (mut answers, mut rest) = (String::new(), document.clone());
        if self.args.all_statistics || style != Style::Framewright {
            return (answers, rest);
        }
        let mut wholes = whole.results.iter();
        rest.results.retain(|part| {
            let is_answered = answer::is_answered(part);
            let whole = wholes.next().unwrap_or(part);
            for variant in part.others().filter(|_| is_answered) {
                answers += if answers.is_empty() { "" } else { "\n" };
                answers += &answer::text(part, whole, variant, &self.session.terminal);
            }
            !is_answered
        });
        (answers, rest)
    }

    /// Prints the answers, tables and plots of some of the results as text, without the legend of the tables, which
    /// follows when all are done.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn show_part(&self, document: &Document, style: Style) -> Result<()> {
        self.session.terminal.print(&self.text(document, style, false))
    }

    /// The legend of the tables of all results.
    pub fn legend(&self, document: &Document, style: Style) -> String {
        let (_, rest) = self.answers(document, document, style);
        table::legend_text(&table::tables(&rest, style, self.args.options()), &self.session.terminal)
    }
}
