//! What the output may look like: how wide, in colour or not, in Unicode or ASCII.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};
use clap::{ColorChoice, ValueEnum};

use crate::error::{Error, Result};

/// Use of colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, as `NO_COLOR`, `CLICOLOR_FORCE` and `TERM` say
    #[default]
    Auto,
    /// Also in a pipe
    Always,
    /// Nowhere
    Never,
}

impl Colour {
    /// Choice of the command line, before it is read as a whole: help and errors are coloured, too.
    #[must_use]
    pub fn of_arguments(arguments: impl Iterator<Item = OsString>) -> ColorChoice {
        let mut words = arguments.map(|word| word.to_string_lossy().into_owned());
        let mut value = None;
        while let Some(word) = words.next().filter(|word| word != "--") {
            match word.split_once('=') {
                Some(("--color", said)) => value = Some(said.to_owned()),
                _ if word == "--color" => value = words.next(),
                _ => {}
            }
        }
        match value.as_deref() {
            Some("always") => ColorChoice::Always,
            Some("never") => ColorChoice::Never,
            _ => ColorChoice::Auto,
        }
    }
}

/// Properties of the place the output goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Columns, if the output is a terminal. A pipe has none: what is written to it never depends on a width.
    pub width: Option<usize>,
    /// Whether to colour.
    pub colour: bool,
    /// Whether characters beyond ASCII can be shown.
    pub unicode: bool,
}

impl Terminal {
    /// Columns that a plot takes where no terminal says otherwise.
    pub const DEFAULT_WIDTH: usize = 80;

    /// Terminal of standard output.
    ///
    /// Unless `--color` says otherwise: no colour if `NO_COLOR` is set; colour also in a pipe if `CLICOLOR_FORCE` is
    /// set and not 0; else on a terminal, unless `TERM` is `dumb`. Unicode if the locale says UTF-8.
    #[must_use]
    pub fn of_stdout(colour: Colour) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let width = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            width: if is_terminal { width.or(Some(Self::DEFAULT_WIDTH)) } else { None },
            colour: match colour {
                Colour::Always => true,
                Colour::Never => false,
                Colour::Auto if set("NO_COLOR").is_some() => false,
                Colour::Auto if set("CLICOLOR_FORCE").is_some_and(|force| force != "0") => true,
                Colour::Auto => is_terminal && set("TERM").is_none_or(|term| term != "dumb"),
            },
            unicode: is_utf8(["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).as_deref()),
        }
    }

    /// A file or a pipe that takes Unicode.
    #[must_use]
    pub const fn plain() -> Self {
        Self { width: None, colour: false, unicode: true }
    }

    /// Columns for what has to choose a width, such as a plot.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.width.unwrap_or(Self::DEFAULT_WIDTH).clamp(40, 200)
    }

    /// Writes text for a reader: characters that cannot be shown are spelled in ASCII, and [what would command the
    /// terminal](without_commands) is `?`, but for this program's own colours.
    ///
    /// # Errors
    /// [`Error::OutputClosed`] if the reader is gone, [`Error::Failed`] if it cannot be written.
    pub fn print(&self, text: &str) -> Result<()> {
        Self::write(&self.harmless(&self.spell(text)))
    }

    fn harmless(&self, text: &str) -> String {
        without_commands(text, if self.colour { &COLOURS } else { &[] })
    }

    /// `text`, in ASCII where the terminal has no more.
    #[must_use]
    pub fn spell(&self, text: &str) -> String {
        if self.unicode { text.to_owned() } else { to_ascii(text) }
    }

    /// Writes text for a program: the bytes as they are, unless a terminal reads them (see [`without_commands`]).
    ///
    /// # Errors
    /// As [`print`](Self::print).
    pub fn print_data(&self, text: &str) -> Result<()> {
        if self.width.is_some() { Self::write(&self.harmless(text)) } else { Self::write(text) }
    }

    fn write(text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|cause| Error::output(&cause))
    }

    /// Prints data that `write` writes piece by piece to standard output.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn print_pieces(&self, write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        write(&mut out).and_then(|()| out.flush()).map_err(|cause| Error::output(&cause))
    }

    /// Prints a JSON document, indented, to standard output.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn print_json(&self, document: &impl serde::Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(document).map_err(Error::failed)?;
        self.print_data(&format!("{text}\n"))
    }

    /// `text` in the colour of `tone`.
    #[must_use]
    pub fn paint(&self, text: &str, tone: Tone) -> String {
        let style = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Better => Style::new().fg_color(Some(AnsiColor::Green.into())),
            Tone::Worse => Style::new().fg_color(Some(AnsiColor::Red.into())),
            Tone::Heading => Style::new().bold(),
            Tone::Dim => Style::new().dimmed(),
        };
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Role of a piece of text, shown as its colour. The text itself also states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Text without a role.
    #[default]
    Plain,
    /// A change for the better.
    Better,
    /// A change for the worse.
    Worse,
    /// A heading.
    Heading,
    /// Provenance and notes.
    Dim,
}

fn is_utf8(locale: Option<&str>) -> bool {
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The codes that [`Terminal::paint`] writes.
const COLOURS: [&str; 5] = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[32m"];

/// `text` with `?` for control characters, other than those that end lines and columns or begin one of the codes
/// `kept`. Names come from files, which another may have written: they do not move the cursor, nor change a title.
#[must_use]
pub fn without_commands(text: &str, kept: &[&str]) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        let is_kept = || kept.iter().any(|code| text[at..].starts_with(code));
        let commands = character.is_control() && !matches!(character, '\n' | '\t') && !is_kept();
        out.push(if commands { '?' } else { character });
    }
    out
}

/// Spells in ASCII what the tables and plots use beyond it.
pub fn to_ascii(text: &str) -> String {
    let mut ascii = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '±' => ascii.push_str("+-"),
            '…' => ascii.push_str("..."),
            '×' => ascii.push('x'),
            '→' => ascii.push_str("->"),
            '–' | '—' | '−' => ascii.push('-'),
            '─' => ascii.push('-'),
            '·' => ascii.push('.'),
            '│' | '├' | '┤' => ascii.push('|'),
            '└' | '┼' => ascii.push('+'),
            '█' => ascii.push('#'),
            '◆' => ascii.push('P'),
            '●' => ascii.push('o'),
            '○' => ascii.push('x'),
            '▲' => ascii.push('^'),
            '△' => ascii.push('v'),
            '■' => ascii.push('*'),
            '□' => ascii.push('%'),
            character if character.is_ascii() => ascii.push(character),
            _ => ascii.push('?'),
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locale_decides_on_unicode() {
        assert!(is_utf8(Some("C.UTF-8")));
        assert!(is_utf8(Some("de_DE.utf8")));
        assert!(!is_utf8(Some("C")));
        assert!(!is_utf8(None));
    }

    #[test]
    fn everything_the_tables_use_can_be_spelled() {
        assert_eq!(to_ascii("0.473× ±0.006 — n · −1 …"), "0.473x +-0.006 - n . -1 ...");
        assert_eq!(to_ascii("0.27 → 0.03"), "0.27 -> 0.03");
        assert_eq!(to_ascii("機"), "?");
    }

    #[test]
    fn colour_only_where_it_is_wanted() {
        assert_eq!(Terminal::plain().paint("x", Tone::Worse), "x");
        let colourful = Terminal { colour: true, ..Terminal::plain() };
        assert_eq!(colourful.paint("x", Tone::Worse), "\u{1b}[31mx\u{1b}[0m");
    }

    #[test]
    fn nothing_but_colours_commands_the_terminal() {
        let colourful = Terminal { colour: true, ..Terminal::plain() };
        let tones = [Tone::Plain, Tone::Better, Tone::Worse, Tone::Heading, Tone::Dim];
        let painted: String = tones.map(|tone| colourful.paint("x\u{1b}[2Jy\r\tz\n", tone)).concat();
        let shown = without_commands(&painted, &COLOURS);
        assert_eq!(shown, tones.map(|tone| colourful.paint("x?[2Jy?\tz\n", tone)).concat());
        assert!(!without_commands(&shown, &[]).contains('\u{1b}'));
    }
}
