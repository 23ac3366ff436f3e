//! `framewright completions` and `framewright man`.

use clap_complete::Shell;

use crate::error::{Error, Result};
use crate::session::Session;

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

/// Prints completions of `whole`, the command with all its own.
///
/// # Errors
/// They cannot be written.
pub fn completions(args: &CompletionsArgs, mut whole: clap::Command, session: &Session) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "framewright", &mut text);
    session.terminal.print_data(&String::from_utf8(text).map_err(Error::failed)?)
}

/// Prints a manual page of `whole`, the command with all its own, or of one of these.
///
/// # Errors
/// There is no such command, or it cannot be written.
pub fn man(args: &ManArgs, mut whole: clap::Command, session: &Session) -> Result<()> {
    whole.build();
    let command = match &args.command {
        None => whole,
        Some(name) => {
            let found = whole.find_subcommand(name).cloned();
            let found = found.ok_or_else(|| Error::usage(format_args!("there is no command `{name}`")))?;
            // Its own name, as `man` looks it up.
            found.display_name(format!("framewright-{name}"))
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(|cause| Error::output(&cause))?;
    session.terminal.print_data(&String::from_utf8(text).map_err(Error::failed)?)
}
