//! Plain lists: rows of text under heads, in every format.

use super::Format;
use super::render::{columns, markdown_row, paragraph, push_csv, wrapped};
use crate::terminal::{Terminal, Tone};

/// A list with a title and heads. A column of numbers is aligned right, any other left.
#[derive(Clone, Debug)]
pub struct Listing {
    title: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Listing {
    /// An empty list. An empty title is left out, and so are heads that are all empty.
    #[must_use]
    pub fn new(title: &str, heads: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            heads: heads.iter().map(|head| (*head).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a cell for each head. Names of threads and files may hold anything: what would break the row,
    /// or command the terminal, is shown as `?`. Only the last cell may have lines.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.heads.len());
        let plain = |column: usize, c: char| if c == '\n' { column + 1 == N } else { !c.is_control() };
        let shown = |(column, cell): (usize, &String)| {
            cell.chars().map(|c| if plain(column, c) { c } else { '?' }).collect()
        };
        self.rows.push(cells.iter().enumerate().map(shown).collect());
    }

    /// The list as text, CSV or Markdown. JSON is not a list: the caller writes its data itself.
    #[must_use]
    pub fn render(&self, format: Format, terminal: &Terminal) -> String {
        match format {
            Format::Table | Format::Json | Format::Toml => self.text(terminal),
            Format::Csv => {
                let mut out = String::new();
                // Names and values have no heads in text; a spreadsheet needs some.
                let unnamed = self.heads.iter().all(String::is_empty);
                let heads = self.heads.iter().map(String::as_str);
                push_csv(
                    &mut out,
                    heads
                        .zip(["name", "value"].iter().cycle())
                        .map(|(head, name)| if unnamed { name } else { head }),
                );
                for row in &self.rows {
                    push_csv(&mut out, row.iter().map(String::as_str));
                }
                out
            }
            Format::Markdown => {
                let mut out = String::new();
                if !self.title.is_empty() {
                    out += &format!("### {}\n\n", self.title);
                }
                markdown_row(&mut out, self.heads.iter().cloned());
                let rule = |column| if self.is_numeric(column) { "---:" } else { "---" }.to_owned();
                out += &format!("|{}|\n", (0..self.heads.len()).map(rule).collect::<Vec<_>>().join("|"));
                for row in &self.rows {
                    markdown_row(&mut out, row.iter().cloned());
                }
                out
            }
        }
    }

    fn text(&self, terminal: &Terminal) -> String {
        let shown = |text: &String| terminal.spell(text);
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(shown).collect()).collect();
        let last = self.heads.len() - 1;
        let width = |column: usize| {
            rows.iter().chain([&self.heads]).map(|row| columns(&row[column])).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..=last).map(width).collect();
        let indent: usize = widths[..last].iter().map(|width| width + 2).sum();
        if terminal.width.is_some_and(|_| indent + widths[last].min(20) > terminal.columns()) {
            return self.stacked(&rows, terminal);
        }

        let mut out = String::new();
        for line in wrapped(&self.title, terminal.width, "  ").iter().filter(|line| !line.is_empty()) {
            out += &format!("{}\n", terminal.paint(line, Tone::Heading));
        }
        let mut push = |row: &[String], tone: Tone| {
            let mut line = String::new();
            for (column, (text, width)) in row[..last].iter().zip(&widths).enumerate() {
                line += &if self.is_numeric(column) {
                    format!("{text:>width$}  ")
                } else {
                    format!("{text:<width$}  ")
                };
            }
            // Prose at the end of a row goes on below itself.
            let room = terminal.columns().saturating_sub(indent).max(20);
            let text = if self.is_numeric(last) {
                format!("{:>w$}", row[last], w = widths[last])
            } else {
                row[last].clone()
            };
            let blanks = " ".repeat(indent);
            line += &wrapped(&text, Some(room), "").join(&format!("\n{blanks}"));
            for line in line.lines() {
                out += &format!("{}\n", terminal.paint(line.trim_end(), tone));
            }
        };
        if self.heads.iter().any(|head| !head.is_empty()) {
            push(&self.heads, Tone::Heading);
        }
        for row in &rows {
            push(row, Tone::Plain);
        }
        out
    }

    /// Rows whose cells are below each other, for a terminal that is too narrow for columns.
    fn stacked(&self, rows: &[Vec<String>], terminal: &Terminal) -> String {
        let mut out = String::new();
        let mut push = |text: &str, indent: &str, tone: Tone| {
            out += &paragraph(text, Some(terminal.columns()), indent, tone, terminal);
        };
        if !self.title.is_empty() {
            push(&self.title, "", Tone::Heading);
        }
        for row in rows {
            let mut cells = row.iter().zip(&self.heads).filter(|(cell, _)| !cell.is_empty());
            if let Some((first, _)) = cells.next() {
                push(first, "    ", Tone::Heading);
            }
            for (cell, head) in cells {
                let head = if head.is_empty() { String::new() } else { format!("{head}: ") };
                push(&format!("  {head}{cell}"), "    ", Tone::Plain);
            }
        }
        out
    }

    fn is_numeric(&self, column: usize) -> bool {
        let cells = || self.rows.iter().map(|row| &row[column]).filter(|cell| !cell.is_empty());
        cells().next().is_some() && cells().all(|cell| cell.parse::<f64>().is_ok())
    }
}
