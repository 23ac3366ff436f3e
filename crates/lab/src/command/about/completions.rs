//! `framewright completions` and `framewright man`.

use clap::builder::PossibleValuesParser;
use clap_complete::Shell;

use framewright_report::error::did_you_mean;

use crate::command::*;
use crate::configure::{SETTINGS, Setting};
use crate::study::{Plan, registry};

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
  framewright man trace summary > framewright-trace-summary.1";

/// Print a manual page, of all or of one command
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = MAN)]
pub struct ManArgs {
    /// The command; without it, the page of framewright itself
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// For bash `=` ends a word: this puts `preset=linux` together again, and completes it as one.
const WHOLE_WORDS: &str = r#"
_framewright_whole_words() {
    local line=${COMP_LINE:0:COMP_POINT} before whole
    whole=${line##*[[:space:]]}
    before=${line%"$whole"}
    before=${before%"${before##*[![:space:]]}"}
    before=${before##*[[:space:]]}
    if [[ $whole == --*=* ]]; then
        before=${whole%%=*} whole=${whole#*=}
    fi
    _framewright "$1" "$whole" "$before"
    if [[ $whole == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${whole%=*}="}")
    fi
    if [[ ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

complete -F _framewright_whole_words -o bashdefault -o default framewright
"#;

/// Arguments whose values are names that this program knows: command, argument, names. Files may stand there as well,
/// so that only completions have them.
fn known_names() -> Result<Vec<(&'static str, &'static str, Vec<String>)>> {
    let mut studies: Vec<String> = Plan::all()?.iter().map(|plan| plan.name.clone()).collect();
    studies.push("all".to_owned());
    let machines: Vec<String> = Machine::all()?.iter().map(|machine| machine.name.clone()).collect();
    let presets: Vec<String> = Setting::presets().map(|(name, _)| format!("preset={name}")).collect();
    let settings: Vec<String> = SETTINGS.iter().map(|setting| setting.name.to_owned()).collect();
    let sysctls = SETTINGS.iter().filter_map(Setting::sysctl).map(|name| format!("{name}="));
    let tried = sysctls.chain(["transparent_hugepage=".to_owned()]).collect();
    let workloads = registry::all().map(|workload| workload.declaration().name.to_owned()).collect();
    Ok(vec![
        ("study", "study", studies),
        ("bench", "config", presets.clone()),
        ("study", "machine", machines.clone()),
        ("replay", "machine", machines.clone()),
        ("boot", "machine", machines.clone()),
        ("machines", "machine", machines),
        ("replay", "base", presets.clone()),
        ("replay", "new", presets),
        ("settings", "name", settings),
        ("workloads", "name", workloads),
        ("try", "set", tried),
    ])
}

/// Prints completions of `whole`, the command with all its own.
///
/// # Errors
/// They cannot be written.
pub fn completions(args: &CompletionsArgs, mut whole: clap::Command, session: &Session) -> Result<()> {
    let commands = whole.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut known = known_names()?;
    known.push(("man", "command", commands));
    // fish gets no names for what is no option.
    let mut for_fish = String::new();
    // zsh would leave a blank after `NAME=`, where the value goes.
    let mut unfinished = Vec::new();
    for (command, argument, names) in known {
        let is_positional =
            |command: &clap::Command| command.get_positionals().any(|known| known.get_id() == argument);
        if whole.find_subcommand(command).is_some_and(is_positional) {
            for_fish += &format!(
                "complete -c framewright -n \"__fish_framewright_using_subcommand {command}\" -a \"{}\"\n",
                names.join(" ")
            );
        }
        if names.iter().any(|name| name.ends_with('=')) {
            unfinished.push(names.join(" "));
        }
        whole = whole.mut_subcommand(command, |command| {
            command.mut_arg(argument, |known| {
                known.value_parser(PossibleValuesParser::new(names.into_iter().map(|name| &*name.leak())))
            })
        });
    }
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "framewright", &mut text);
    let mut text = String::from_utf8(text).map_err(Error::failed)?;
    match args.shell {
        Shell::Bash => text += WHOLE_WORDS,
        Shell::Fish => text += &for_fish,
        Shell::Zsh => {
            for names in unfinished {
                text = text.replace(&format!(":({names})"), &format!(":compadd -S \"\" - {names}"));
            }
        }
        _ => {}
    }
    session.terminal.print_data(&text)
}

/// Prints a manual page of `whole`, the command with all its own, or of one of these: `trace summary` as well.
///
/// # Errors
/// There is no such command, or it cannot be written.
pub fn man(args: &ManArgs, whole: clap::Command, session: &Session) -> Result<()> {
    let mut command = without_help(whole);
    command.build();
    let words = args.command.iter().flat_map(|word| word.split_whitespace());
    let mut title = String::from("framewright");
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| {
            let hint = did_you_mean(word, command.get_subcommands().map(clap::Command::get_name));
            Error::usage(format_args!("there is no command `{}`{hint}", args.command.join(" ")))
        })?;
        title = format!("{title}-{word}");
    }
    // Its own name, as `man` looks it up; and its usage as the help has it, in which options have their values.
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let command = command.display_name(title).override_usage(usage);
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(|cause| Error::output(&cause))?;
    session.terminal.print_data(&String::from_utf8(text).map_err(Error::failed)?)
}

/// A command and those below it without `help`, which has no page.
fn without_help(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = if names.is_empty() { command } else { command.disable_help_subcommand(true) };
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, without_help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_argument_with_known_names_exists() {
        let whole = crate::cli::Cli::command();
        for (command, argument, names) in known_names().expect("shipped") {
            let command = whole.find_subcommand(command).unwrap_or_else(|| panic!("{command}"));
            let exists = command.get_arguments().any(|known| known.get_id() == argument);
            assert!(exists && !names.is_empty(), "{} {argument}", command.get_name());
        }
    }
}
