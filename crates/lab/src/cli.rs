//! The command line. A new command is a file in [`command`](crate::command), its line in [`Command`], and its
//! line in `run`.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::command::{
    bench, boot, compare, completions, doctor, fidelity, import, machines, record, replay, settings, study,
    trace, workloads,
};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::study::registry;
use crate::study::workload::Workload;
use crate::table::Format;
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

    /// Output format
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        hide_possible_values = true,
        help = "Output format: table, json, csv, markdown, or toml (machines only)"
    )]
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
    /// Say what a trace holds, and what its allocations can have cost
    Trace(trace::Args),
    /// Run a trace on real threads under two or more configurations
    Replay(replay::Args),
    /// Measure the allocator with generated workloads, alone or against others
    Bench(bench::Args),
    /// Compare what a kernel's per-CPU lists did with what a preset does
    Fidelity(fidelity::Args),
    /// Show saved results, and what changed between them
    Compare(compare::Args),
    /// Run the allocator's boot for a memory map
    Boot(boot::Args),
    /// List the machines that can be studied, or show one
    Machines(machines::Args),
    /// Examine the page allocator of this Linux, or of a copy of its files
    Doctor(doctor::Args),
    /// List the allocator's settings, or explain one
    Settings(settings::Args),
    /// List what parts of studies can run, or explain one
    Workloads(workloads::Args),
    /// Print what completes this command's options in a shell
    Completions(completions::CompletionsArgs),
    /// Print a manual page, of all or of one command
    Man(completions::ManArgs),
}

/// The `framewright` command, with workloads of a program's own beside those of this crate: reads the arguments, runs the
/// command, and turns what went wrong into one line and an exit code: 0, 1 (failed), 2 (wrong usage), 3 (regressed). clap
/// answers `--help` and wrong arguments by itself, with 0 and 2.
///
/// # Panics
/// Two workloads have one name.
#[must_use]
pub fn main(workloads: &[&'static dyn Workload]) -> ExitCode {
    workloads.iter().for_each(|&own| registry::add(own));
    let cli = Cli::parse();
    let session = Session { format: cli.format, terminal: Terminal::of_stdout() };
    match run(&cli.command, &session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, Error::OutputClosed) {
                eprintln!("framewright: {error}");
            }
            error.exit_code()
        }
    }
}

fn run(command: &Command, session: &Session) -> Result<()> {
    if session.format == Format::Toml && !matches!(command, Command::Machines(_)) {
        return Err(Error::usage("only `framewright machines` writes TOML"));
    }
    if session.format != Format::Table && matches!(command, Command::Completions(_) | Command::Man(_)) {
        return Err(Error::usage("completions and man have a format of their own; leave --format out"));
    }
    match command {
        Command::Study(args) => study::run(args, session),
        Command::Record(args) => record::run(args, session),
        Command::Import(args) => import::run(args, session),
        Command::Replay(args) => replay::run(args, session),
        Command::Bench(args) => bench::run(args, session),
        Command::Fidelity(args) => fidelity::run(args, session),
        Command::Compare(args) => compare::run(args, session),
        Command::Doctor(args) => doctor::run(args, session),
        Command::Trace(args) => trace::run(args, session),
        Command::Boot(args) => boot::run(args, session),
        Command::Machines(args) => machines::run(args, session),
        Command::Settings(args) => settings::run(args, session),
        Command::Completions(args) => completions::completions(args, Cli::command(), session),
        Command::Man(args) => completions::man(args, Cli::command(), session),
        Command::Workloads(args) => workloads::run(args, session),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_contradict_neither_each_other_nor_themselves() {
        Cli::command().debug_assert();
    }
}
