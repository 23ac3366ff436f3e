//! The `framewright` command.
#![deny(unsafe_code)]

use std::env;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use framewright_lab::cli::{Cli, Colour, Command, Session};
use framewright_lab::command::{
    ab, bench, boot, compare, completions, doctor, fidelity, import, machines, record, replay, schema,
    settings, study, trace, workloads,
};
use framewright_lab::error::{Error, Result};
use framewright_lab::progress;
use framewright_lab::table::Format;
use framewright_lab::terminal::Terminal;

/// Reads the arguments, runs the command, and turns what went wrong into one line and an exit code: 0, 1
/// (failed), 2 (wrong usage), 3 (regressed). clap answers `--help` and wrong arguments by itself, with 0 and 2.
fn main() -> ExitCode {
    let command = Cli::command().color(Colour::of_arguments(env::args_os()));
    // What the derived command accepts, the derived reader reads; what it refuses, clap says itself.
    let cli = match Cli::from_arg_matches(&command.get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if cli.quiet {
        progress::silence();
    }
    let session = Session { format: cli.format, terminal: Terminal::of_stdout(cli.color) };
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
        Command::Import(args) => import::run(args, session),
        Command::Replay(args) => replay::run(args, session),
        Command::Bench(args) => bench::run(args, session),
        Command::Fidelity(args) => fidelity::run(args, session),
        Command::Compare(args) => compare::run(args, session),
        Command::Ab(args) => ab::run(args, session),
        Command::Doctor(args) => doctor::run(args, session),
        Command::Trace(args) => trace::run(args, session),
        Command::Boot(args) => boot::run(args, session),
        Command::Machines(args) => machines::run(args, session),
        Command::Settings(args) => settings::run(args, session),
        Command::Schema(args) => schema::run(args, session),
        Command::Completions(args) => completions::completions(args, session),
        Command::Man(args) => completions::man(args, session),
        Command::Workloads(args) => workloads::run(args, session),
    }
}
