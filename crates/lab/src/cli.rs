//! The command line. A new command is a file in [`command`](crate::command), its line in [`Command`], and its
//! line in `run`.

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use framewright_report::error::{Error, Result};
use framewright_report::table::{Format, wrapped};
use framewright_report::terminal::{Colour, Terminal};
use signal_hook::consts::SIGXFSZ;

use crate::command::about::{completions, machines, schema, settings, workloads};
use crate::command::{bench, boot, compare, doctor, import, record, replay, study, trace, trial};
use crate::progress::{self, say};
use crate::session::{Rivals, Session};
use crate::study::registry;
use crate::study::workload::Workload;

/// Version, and the commit if it was built from a checkout.
const VERSION: &str = env!("FRAMEWRIGHT_VERSION");

/// Command line of `framewright`.
#[derive(Debug, Parser)]
#[command(
    name = "framewright",
    about = "What does a change to the page allocator do to my workload, on this machine and on others?",
    long_about = None,
    version = VERSION,
    max_term_width = 80,
    infer_long_args = false
)]
pub struct Cli {
    /// The command.
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

    /// Use of colour.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        hide_possible_values = true,
        help = "Colour: auto, always or never"
    )]
    pub color: Colour,

    /// Leaves out all that is neither a result nor an error.
    #[arg(short, long, global = true, help = "No progress and no notices: results and errors only")]
    pub quiet: bool,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Examine the page allocator of this Linux, or of a copy of its files
    Doctor(doctor::Args),
    /// Record the page allocations of a command and its children
    Record(record::Args),
    /// Show what a trace holds, and what its page allocations cost
    Trace(trace::Args),
    /// Run a trace on real threads under two or more configurations
    Replay(replay::Args),
    /// Run a command under two settings of this kernel, in turn, and compare
    Try(trial::Args),
    /// Show saved results, and what changed between them
    Compare(compare::Args),
    /// Turn perf.data, the text of perf script or a killed recording into a trace
    Import(import::Args),
    /// Run published experiments, or one of your own
    Study(study::Args),
    /// List the machines that can be studied, or show one
    Machines(machines::Args),
    /// List the allocator's settings, or explain one
    Settings(settings::Args),
    /// List what parts of studies can run, or explain one
    Workloads(workloads::Args),
    /// Measure the allocator with generated workloads, alone or against others
    Bench(bench::Args),
    /// Run the allocator's boot for a memory map
    Boot(boot::Args),
    /// Print the JSON schema of studies or of machines, for editors
    Schema(schema::Args),
    /// Print what completes this command's options in a shell
    Completions(completions::CompletionsArgs),
    /// Print a manual page, of all or of one command
    Man(completions::ManArgs),
}

/// Commands in groups, as the first screen of the help shows them.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Your own program and machine", &["doctor", "record", "trace", "replay", "try", "compare", "import"]),
    ("Published experiments", &["study", "machines", "settings", "workloads"]),
    ("For authors of this allocator", &["bench", "boot", "schema"]),
    ("The command itself", &["completions", "man", "help"]),
];

/// Columns of their names.
const NAMES: usize = 14;

/// The help's first screen, with commands in groups.
fn grouped(command: clap::Command) -> clap::Command {
    let width = Terminal::of_stdout(Colour::Never).columns().min(80);
    let mut text = String::from("{about}\n\n{usage-heading} {usage}\n");
    for (title, names) in GROUPS {
        text += &format!("\n{title}:\n");
        for name in names {
            let about = match command.find_subcommand(name).and_then(clap::Command::get_about) {
                Some(about) => about.to_string(),
                None => "Explain a command".to_owned(),
            };
            let lines = wrapped(&about, Some(width - NAMES), "");
            for (n, line) in lines.iter().enumerate() {
                text +=
                    &format!("{:<NAMES$}{line}\n", if n == 0 { format!("  {name}") } else { String::new() });
            }
        }
    }
    command.help_template(text + "\nOptions:\n{options}")
}

/// The `framewright` command, with workloads of a program's own beside those of this crate: reads the arguments, runs
/// the command, and turns what went wrong into one line and an exit code: 0, 1 (failed), 2 (wrong usage), 3
/// (regressed), 4 (found by `doctor`). clap answers `--help` and wrong arguments by itself, with 0 and 2.
///
/// # Panics
/// Two workloads have one name.
#[must_use]
pub fn main(workloads: &[&'static dyn Workload]) -> ExitCode {
    main_with_rivals(workloads, None)
}

/// Like [`main`], with other allocators for `bench --rivals`. They are not in this crate, because they need a C
/// compiler.
///
/// # Panics
/// As [`main`].
#[must_use]
pub fn main_with_rivals(workloads: &[&'static dyn Workload], rivals: Option<Rivals>) -> ExitCode {
    workloads.iter().for_each(|&workload| registry::add(workload));
    let command = grouped(Cli::command()).color(Colour::of_arguments(env::args_os()));
    let cli = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match cli {
        Ok(cli) => cli,
        Err(answer) => return answered(&answer),
    };
    if cli.quiet {
        progress::silence();
    }
    refuse_growth();
    undo_tries();
    let session = Session { rivals, format: cli.format, terminal: Terminal::of_stdout(cli.color) };
    match run(&cli.command, &session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Prints what clap answers by itself: help on standard output, which may be full, or wrong usage.
fn answered(answer: &clap::Error) -> ExitCode {
    let printed = answer.print().and_then(|()| io::stdout().flush());
    match printed.map_err(|cause| Error::output(&cause)) {
        _ if answer.use_stderr() => ExitCode::from(2),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Says what went wrong; returns its exit code.
fn failed(error: &Error) -> ExitCode {
    if !matches!(error, Error::OutputClosed) {
        say(&format!("framewright: {error}"));
    }
    error.exit_code()
}

/// Lets a write to a file that may grow no more (`ulimit -f`) say so, as on a full disk: the signal would end the
/// process without a word. A command that this one starts has its own ways, for a handler does not outlive `exec`.
fn refuse_growth() {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).expect("this signal can be caught");
}

/// Brings back what a `try` that was killed has left changed.
fn undo_tries() {
    match crate::trial::undo("/".as_ref()) {
        Ok(said) => said.iter().for_each(|line| say(&format!("framewright: {line}"))),
        Err(error) => {
            say(&format!("framewright: settings that a killed `try` changed are still changed: {error}"));
        }
    }
}

fn run(command: &Command, session: &Session) -> Result<()> {
    if session.format == Format::Toml && !matches!(command, Command::Machines(_)) {
        return Err(Error::usage("only `framewright machines` writes TOML"));
    }
    if session.format != Format::Table
        && matches!(command, Command::Completions(_) | Command::Man(_) | Command::Schema(_))
    {
        return Err(Error::usage(
            "completions, man and schema have a format of their own; leave --format out",
        ));
    }
    match command {
        Command::Study(args) => study::run(args, session),
        Command::Record(args) => record::run(args, session),
        Command::Try(args) => trial::run(args, session),
        Command::Import(args) => import::run(args, session),
        Command::Replay(args) => replay::run(args, session),
        Command::Bench(args) => bench::run(args, session),
        Command::Compare(args) => compare::run(args, session),
        Command::Doctor(args) => doctor::run(args, session),
        Command::Trace(args) => trace::run(args, session),
        Command::Boot(args) => boot::run(args, session),
        Command::Machines(args) => machines::run(args, session),
        Command::Settings(args) => settings::run(args, session),
        Command::Schema(args) => schema::run(args, session),
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

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped.retain(|name| *name != "help");
        grouped.sort_unstable();
        let command = Cli::command();
        let mut all: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }
}
