//! `framewright schema`: what an editor needs to complete and check studies and machines.

use clap::ValueEnum;

use crate::command::*;
use crate::schema;

const EXAMPLES: &str = "\
Examples:
  framewright schema study > study.schema.json
  framewright schema machine > machine.schema.json

An editor that knows TOML and JSON Schema (Even Better TOML, taplo) reads it if
the file's first line is: #:schema ./study.schema.json";

/// Print the JSON schema of studies or of machines, for editors
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Kind of file
    #[arg(value_enum, value_name = "WHAT")]
    what: What,
}

/// Files that have a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// A study: `studies/*.toml`
    Study,
    /// A machine: `machines/*.toml`
    Machine,
}

/// Prints a schema.
///
/// # Errors
/// It cannot be written.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let schema = match args.what {
        What::Study => schema::study(),
        What::Machine => schema::machine(),
    };
    session.terminal.print_json(&schema)
}
