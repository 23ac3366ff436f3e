//! Command lines: every command's arguments are read as the `framewright` command reads them, and nothing is run.
//!
//! An input is text, an argument a line.

use clap::{CommandFactory as _, Parser as _};
use framewright_lab::cli::Cli;

/// Reads the lines of `input` as arguments. Help and versions count as taken.
///
/// # Panics
/// What was accepted differs the second time, or a refusal is no error line with exit code 2.
pub fn run(input: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(input) else { return false };
    // No argument of a process can hold a zero byte.
    let words: Vec<&str> = text.split('\n').take_while(|word| !word.contains('\0')).collect();
    let read = || Cli::try_parse_from(core::iter::once("framewright").chain(words.iter().copied()));
    match read() {
        Ok(cli) => {
            let again = read().expect("it was accepted a moment ago");
            assert_eq!(format!("{cli:?}"), format!("{again:?}"), "{words:?}");
            true
        }
        Err(answer) if answer.use_stderr() => {
            let text = answer.to_string();
            // Without arguments, or with a command that needs more, the help is the answer.
            let is_help = text.contains("Usage: framewright");
            assert!(text.starts_with("error: ") || is_help, "{words:?}: {text}");
            assert_eq!(answer.exit_code(), 2, "{words:?}: {text}");
            false
        }
        Err(answer) => {
            assert!(answer.exit_code() == 0 && !answer.to_string().is_empty(), "{words:?}");
            true
        }
    }
}

/// A value that an argument may accept.
fn value_of(argument: &clap::Arg) -> String {
    let default = argument.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
    let possible = argument.get_possible_values().first().map(|value| value.get_name().to_owned());
    default.or(possible).unwrap_or_else(|| "1".into())
}

/// A line for each command with what it needs, one for each of its options, and some that people write.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<String>> =
        WRITTEN.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect();
    let mut command = Cli::command();
    command.build();
    for sub in command.get_subcommands() {
        let mut least = vec![sub.get_name().to_owned()];
        least.extend(sub.get_positionals().filter(|argument| argument.is_required_set()).map(value_of));
        for option in sub.get_opts().filter(|argument| argument.is_required_set()) {
            least.push(format!("--{}={}", option.get_long().unwrap_or_default(), value_of(option)));
        }
        for argument in sub.get_arguments().filter(|argument| !argument.is_positional()) {
            let Some(long) = argument.get_long() else { continue };
            let takes = argument.get_num_args().is_some_and(|count| count.takes_values());
            let word = if takes { format!("--{long}={}", value_of(argument)) } else { format!("--{long}") };
            lines.push(least.iter().cloned().chain([word]).collect());
        }
        lines.push(least);
    }
    lines.into_iter().map(|words| words.join("\n").into_bytes()).collect()
}

const WRITTEN: &[&str] = &[
    "study all --quick -o results.json --format json",
    "study pcp-reset --part structure --machine westmere --samples 3",
    "trace export trace.parquet --to folded --weight pages -o folded.txt",
    "record -o trace.parquet -- make -j 8 all",
    "replay trace.parquet --base preset=linux_v5_4 --new pcp_fraction=8,bulk=runs --threads 2 --samples 5",
    "bench --workload hot_pair --order 0,3,9 --cpus 1,2 --memory 64M --samples 2 --color never -q",
    "compare a.json b.json --format markdown",
    "machines --detect --format toml",
    "boot --map map.txt --quiet",
    "help study",
    "--version",
];
