//! `framewright completions` and `framewright man`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::{Cli, Session};
use crate::error::{Error, Result};

const COMPLETIONS: &str = "\
Examples:
  framewright completions bash > /etc/bash_completion.d/framewright
  framewright completions zsh > ~/.zfunc/_framewright
  framewright completions fish > ~/.config/fish/completions/framewright.fish";

/// Print what completes this command's options in a shell
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

const MAN: &str = "\
Examples:
  framewright man | man -l -
  framewright man study > framewright-study.1";

/// Print a manual page, of all or of one command
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = MAN)]
pub struct ManArgs {
    /// The command; without it, the page of framewright itself
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Prints completions.
///
/// # Errors
/// They cannot be written.
pub fn completions(args: &CompletionsArgs, session: &Session) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "framewright", &mut text);
    session.terminal.print_data(&String::from_utf8(text).map_err(Error::failed)?)
}

/// Prints a manual page.
///
/// # Errors
/// There is no such command, or it cannot be written.
pub fn man(args: &ManArgs, session: &Session) -> Result<()> {
    let mut all = Cli::command();
    all.build();
    let command = match &args.command {
        None => all,
        Some(name) => {
            let found = all.find_subcommand(name).cloned();
            let found = found.ok_or_else(|| Error::usage(format_args!("there is no command `{name}`")))?;
            // Its own name, as `man` looks it up.
            found.display_name(format!("framewright-{name}"))
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(|cause| Error::output(&cause))?;
    session.terminal.print_data(&String::from_utf8(text).map_err(Error::failed)?)
}
