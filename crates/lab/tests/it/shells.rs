//! What shells and `man` get of the real binary: completions of names, a page for every command.

use std::process::Command;

use crate::{Scratch, text};

/// Words as bash gives them to a completion function: `=` is one of its own.
fn words_of_bash(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let mut parts = word.split_inclusive('=').flat_map(|part| match part.strip_suffix('=') {
            Some(before) => vec![before, "="],
            None => vec![part],
        });
        words.push(parts.next().unwrap_or_default().to_owned());
        words.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
    }
    words
}

/// What bash offers in place of the last word of a line.
fn offered_by_bash(file: &str, line: &str) -> Vec<String> {
    let words = words_of_bash(line);
    let at = words.len() - 1;
    let current = if words[at] == "=" { "" } else { &words[at] };
    let script = format!(
        "source {file}; COMP_LINE='{line}' COMP_POINT={} COMP_WORDS=({}) COMP_CWORD={at}; \
         _framewright_whole_words framewright '{current}' '{}' 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        line.len(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words[at - 1]
    );
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// Lines that end where a user asks, and a word that is offered there.
const ASKED: [(&str, &str); 14] = [
    ("framewright ", "replay"),
    ("framewright rep", "replay"),
    ("framewright study ", "pcp-reset"),
    ("framewright study p", "parallel-init"),
    ("framewright machines ", "epyc-7742-2s"),
    ("framewright settings lock", "lock_kind"),
    ("framewright workloads ", "page_fault1"),
    ("framewright study all --machine ", "skylake-4s"),
    ("framewright replay x.parquet --machine west", "westmere-2n-24t"),
    ("framewright replay x.parquet --base ", "preset=linux_v6_7"),
    ("framewright replay x.parquet --new preset=linux_v6_", "linux_v6_16"),
    ("framewright replay x.parquet --new preset=", "linux_v3_0"),
    ("framewright try --set vm.comp", "vm.compaction_proactiveness="),
    ("framewright trace ", "summary"),
];

#[test]
fn bash_completes_every_kind_of_name() {
    let scratch = Scratch::new("bash");
    let file = scratch.file("completions", text(&["completions", "bash"]));
    for (line, expected) in ASKED {
        let offered = offered_by_bash(&file, line);
        assert!(offered.iter().any(|word| word == expected), "{line}: {offered:?}");
    }
    assert_eq!(offered_by_bash(&file, "framewright replay --base=preset=linux_v5"), ["linux_v5_4"]);
    assert_eq!(offered_by_bash(&file, "framewright study pcp-r"), ["pcp-reset"]);
}

/// What a line is in zsh after a tab, read in a terminal of its own.
const IN_ZSH: &str = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source $1"
zpty -w shell "report() { print -r -- \"\${(qq)BUFFER}\" > $3; exit }; zle -N report; bindkey '^X' report"
zpty -w -n shell "$2"$'\t\x18'
for turn in {1..100}; do [[ -s $3 ]] && break; sleep 0.1; done
zpty -d shell
"#;

#[test]
fn zsh_completes_names_and_leaves_a_blank_only_where_a_word_ends() {
    let scratch = Scratch::new("zsh");
    let completions = scratch.file("completions.zsh", text(&["completions", "zsh"]));
    let script = scratch.file("in.zsh", IN_ZSH);
    for (line, expected) in [
        ("framewright study pcp-r", "framewright study pcp-reset "),
        ("framewright try --set vm.comp", "framewright try --set vm.compaction_proactiveness="),
    ] {
        let answer = scratch.file("answer", "");
        let Ok(status) = Command::new("zsh").args([&script, &completions, line, &answer]).status() else {
            eprintln!("skipped: there is no zsh");
            return;
        };
        assert!(status.success());
        assert_eq!(std::fs::read_to_string(&answer).expect("an answer"), format!("'{expected}'\n"));
    }
}

#[test]
fn fish_completes_every_kind_of_name() {
    let scratch = Scratch::new("fish");
    let file = scratch.file("completions.fish", text(&["completions", "fish"]));
    for (line, expected) in ASKED {
        let script = format!("source {file}; complete -C '{line}'");
        let Ok(output) = Command::new("fish").args(["--no-config", "-c", &script]).output() else {
            eprintln!("skipped: there is no fish");
            return;
        };
        let offered = String::from_utf8(output.stdout).expect("text");
        // A name, and its description after a tab; fish offers whole words.
        let found = offered.lines().any(|line| line.split('\t').next().unwrap_or("").ends_with(expected));
        assert!(found, "{line}: {offered}");
    }
}

#[test]
fn every_command_has_a_page_with_its_usage() {
    let mut pages = vec![Vec::new()];
    let mut read = 0;
    while let Some(words) = pages.pop() {
        let page = text(&[&["man"][..], &words].concat())
            .replace("\\-", "-")
            .replace("\\fB", "")
            .replace("\\fI", "")
            .replace("\\fR", "");
        let name = [&["framewright"][..], &words].concat();
        assert!(page.contains(&format!(".TH {} 1", name.join("-"))), "{page}");
        let usage = page.split_once(".SH SYNOPSIS\n").expect("a usage").1.lines().next().expect("a line");
        let help = text(&[&words[..], &["--help"]].concat());
        assert!(usage.starts_with(&name.join(" ")) && help.contains(&format!("Usage: {usage}")), "{usage}");
        // Every option of the help, with its value.
        for option in help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
            let option = option.trim_end_matches([',', '.', ';', ':', ')']);
            assert!(page.contains(option), "{name:?}: {option}");
        }
        let below = format!("{}-", name.join("-"));
        for line in page.lines().filter_map(|line| line.strip_prefix(&below)?.strip_suffix("(1)")) {
            pages.push([&words[..], &[&*line.to_owned().leak()]].concat());
        }
        read += 1;
    }
    assert_eq!(read, 19, "16 commands, two below `trace`, and the whole");
}
