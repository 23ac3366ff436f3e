//! The `framewright` command.
#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use framewright_lab::cli::{Cli, Command, Session};
use framewright_lab::command::{
    bench, boot, compare, completions, doctor, fidelity, import, machines, record, replay, settings, study,
    trace, workloads,
};
use framewright_lab::error::{Error, Result};
use framewright_lab::table::Format;
use framewright_lab::terminal::Terminal;

/// Reads the arguments, runs the command, and turns what went wrong into one line and an exit code: 0, 1
/// (failed), 2 (wrong usage), 3 (regressed). clap answers `--help` and wrong arguments by itself, with 0 and 2.
fn main() -> ExitCode {
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
        Command::Completions(args) => completions::completions(args, session),
        Command::Man(args) => completions::man(args, session),
        Command::Workloads(args) => workloads::run(args, session),
    }
}
