//! The command line. A new command is a file in [`command`](crate::command), its line in [`Command`], and its
//! line in `main`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::command::{bench, boot, compare, fidelity, import, machines, record, replay, study};
use crate::error::Result;
use crate::host::Host;
use crate::plot;
use crate::report;
use crate::result::Document;
use crate::table::{self, Format, Options, Style};
use crate::terminal::Terminal;

/// Version, and the commit if it was built from a checkout.
const VERSION: &str = env!("FRAMEWRIGHT_VERSION");

/// What does a change to the page allocator do to my workload, on this machine and on others?
#[derive(Debug, Parser)]
#[command(name = "framewright", version = VERSION, max_term_width = 80, infer_long_args = false)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// How to write what was found
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// What the command can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run published experiments, or one of your own
    Study(study::Args),
    /// Record the page allocations of a command and its children
    Record(record::Args),
    /// Turn perf.data or the text of perf script into a trace
    Import(import::Args),
    /// Run a trace on real threads under two or more configurations
    Replay(replay::Args),
    /// Measure the allocator with generated workloads, alone or against others
    Bench(bench::Args),
    /// Compare what a kernel's per-CPU lists did with what a preset does
    Fidelity(fidelity::Args),
    /// Show saved results, and what changed between them
    Compare(compare::Args),
    /// Boot a machine's memory map for real, in described memory
    Boot(boot::Args),
    /// List the machines that can be studied, or show one
    Machines(machines::Args),
}

/// Options of every command that ends with results.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Whose tables to follow
    #[arg(long, value_enum, value_name = "STYLE")]
    pub style: Option<Style>,

    /// Seed of everything random, such as resampling
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Save the result, every sample included, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Also write the results as one HTML page with tables and plots
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,

    /// Draw plots below the tables
    #[arg(long)]
    pub plot: bool,

    /// Print every statistic of MMTests styles, and every cache line of simulated runs
    #[arg(long)]
    pub all_statistics: bool,
}

/// What every command is given besides its own arguments.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// How to write what was found.
    pub format: Format,
    /// Where it goes.
    pub terminal: Terminal,
}

impl Session {
    /// Saves results if that was asked for, and shows them: the last step of every command that has any.
    ///
    /// `style` is what the results are shown in if nothing else was asked for.
    ///
    /// # Errors
    /// The document contradicts itself, or cannot be written.
    pub fn report(&self, document: &Document, args: &ReportArgs, style: Style) -> Result<()> {
        if let Some(path) = &args.output {
            document.write(path)?;
        }
        let options = Options { seed: args.seed, all_statistics: args.all_statistics };
        let style = args.style.unwrap_or(style);
        // For readers; files, JSON and CSV have all.
        let all = args.all_statistics || self.format == Format::Csv;
        let shown = if all { document.clone() } else { document.clone().in_short() };
        if let Some(path) = &args.html {
            report::write(&shown, style, options, path)?;
        }
        if self.format == Format::Json {
            return self.terminal.print_data(&document.to_json()?);
        }
        let document = &shown;
        let tables = table::tables(document, style, options);
        let text = table::render(&tables, self.format, &self.terminal);
        if self.format == Format::Table {
            self.terminal.print(&text)?;
            if args.plot {
                self.terminal.print(&format!("\n{}", plot::document(document, &self.terminal)))?;
            }
            return Ok(());
        }
        self.terminal.print_data(&text)
    }

    /// An empty document of this run: `command` as a user would repeat it, and the host.
    #[must_use]
    pub fn document(&self, command: impl Into<String>) -> Document {
        Document::new(command, Host::probe())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_contradict_neither_each_other_nor_themselves() {
        Cli::command().debug_assert();
    }
}
