//! Formats: the punctuation around a [`Table`].

use core::fmt::Write as _;
use core::iter;

use super::{Block, Cell, Data, Format, Row, Side, Table};
use crate::terminal::{Terminal, Tone, to_ascii};

/// Columns of a table that does not go to a terminal.
const WIDEST_IN_A_PIPE: usize = 120;
/// Columns in which a name can be broken and still be read.
const READABLE_STUB: usize = 24;

/// The tables in a format for reading or for a spreadsheet.
///
/// On a terminal that is too narrow, a table is continued below, the baseline repeated. JSON is not a table:
/// the caller writes the document itself.
#[must_use]
pub fn render(tables: &[Table], format: Format, terminal: &Terminal) -> String {
    match format {
        Format::Table | Format::Json | Format::Toml => text(tables, terminal),
        Format::Csv => csv(tables),
        Format::Markdown => markdown(tables),
    }
}

fn text(tables: &[Table], terminal: &Terminal) -> String {
    bodies(tables, terminal) + &legend_text(tables, terminal)
}

/// The tables as text, without their legend.
pub fn bodies(tables: &[Table], terminal: &Terminal) -> String {
    let mut out = String::new();
    for (index, table) in tables.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let table = if terminal.unicode { table.clone() } else { ascii(table.clone()) };
        out += &paragraph(&table.title, terminal.width, "  ", Tone::Heading, terminal);
        for line in &table.about {
            out += &paragraph(line, terminal.width, "  ", Tone::Dim, terminal);
        }
        for block in table.blocks.iter().filter(|block| !block.rows.is_empty()) {
            out.push('\n');
            block_text(&mut out, block, terminal);
        }
        if !table.notes.is_empty() {
            out.push('\n');
        }
        for note in &table.notes {
            out += &paragraph(note, Some(terminal.columns()), "  ", Tone::Dim, terminal);
        }
    }
    out
}

/// How to read the tables: each sentence once, on lines of its own.
#[must_use]
pub fn legend_text(tables: &[Table], terminal: &Terminal) -> String {
    let sentence =
        |text: &str| paragraph(&terminal.spell(text), Some(terminal.columns()), "  ", Tone::Dim, terminal);
    let out: String = legend(tables).into_iter().map(sentence).collect();
    if out.is_empty() { out } else { format!("\n{out}") }
}

/// The sentences of all legends, each once.
pub fn legend(tables: &[Table]) -> Vec<&str> {
    let mut sentences: Vec<&str> = Vec::new();
    for sentence in tables.iter().flat_map(|table| &table.legend) {
        if !sentences.contains(&sentence.as_str()) {
            sentences.push(sentence);
        }
    }
    sentences
}

fn block_text(out: &mut String, block: &Block, terminal: &Terminal) {
    if let Some(caption) = &block.caption {
        push_line(out, &terminal.paint(caption, Tone::Heading));
    }
    let widths = column_widths(block);
    let stub_limit = terminal.width.map_or(usize::MAX, |width| stub_room(&widths, block.gap, width));
    let stubs: Vec<Vec<String>> = block.rows.iter().map(|row| stub_lines(row, block, stub_limit)).collect();
    let stub_width = stubs.iter().flatten().map(|line| columns(line)).max().unwrap_or(0);

    for (number, band) in bands(&widths, stub_width, block.gap, terminal.width).iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let head_lines = block.heads.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..head_lines {
            let cells = band.iter().map(|&column| {
                let heads = &block.heads[column];
                // Short heads stand at the bottom, next to the cells.
                let text = (line + heads.len()).checked_sub(head_lines).map_or("", |index| &heads[index]);
                (text, Tone::Heading, widths[column])
            });
            push_row(out, block, "", stub_width, cells, terminal);
        }
        for (row, stub) in block.rows.iter().zip(&stubs) {
            let height = band.iter().map(|&column| row.cells[column].lines.len()).max().unwrap_or(0);
            for line in 0..height.max(stub.len()) {
                let cells = band.iter().map(|&column| {
                    let (text, tone) = row.cells[column]
                        .lines
                        .get(line)
                        .map_or(("", Tone::Plain), |(text, tone)| (text, *tone));
                    (text, tone, widths[column])
                });
                push_row(out, block, stub.get(line).map_or("", String::as_str), stub_width, cells, terminal);
            }
        }
    }
}

/// One line of a block: the stub, and each text right-aligned in its column.
fn push_row<'a>(
    out: &mut String,
    block: &Block,
    stub: &str,
    stub_width: usize,
    cells: impl Iterator<Item = (&'a str, Tone, usize)>,
    terminal: &Terminal,
) {
    let mut line = String::new();
    if block.stubs == Side::Left {
        line.push_str(stub);
        pad(&mut line, stub_width - columns(stub));
    }
    for (index, (text, tone, width)) in cells.enumerate() {
        let before = if index == 0 && block.stubs == Side::Right { 0 } else { block.gap };
        pad(&mut line, before + width - columns(text));
        line.push_str(&terminal.paint(text, tone));
    }
    if block.stubs == Side::Right {
        pad(&mut line, 2);
        line.push_str(stub);
    }
    push_line(out, line.trim_end());
}

/// Columns that stubs may take: what all columns leave, or if that is too little, what the baseline and any one to
/// compare with it leave.
fn stub_room(widths: &[usize], gap: usize, width: usize) -> usize {
    let beside = |columns: &[usize]| width.saturating_sub(columns.iter().map(|column| column + gap).sum());
    if beside(widths) >= READABLE_STUB {
        return beside(widths);
    }
    let Some((&baseline, others)) = widths.split_first() else { return width };
    let widest = others.iter().copied().max();
    beside(&[baseline, widest.unwrap_or(0)][..1 + usize::from(widest.is_some())]).max(16)
}

/// The stub on as many lines as the limit asks for, broken where a name has a joint; then its detail.
fn stub_lines(row: &Row, block: &Block, limit: usize) -> Vec<String> {
    if block.stubs == Side::Right {
        return vec![row.stub.clone()];
    }
    let mut lines = Vec::new();
    let mut rest = row.stub.as_str();
    loop {
        let indent = if lines.is_empty() { "" } else { " " };
        let room = limit - indent.len();
        let joint = rest
            .char_indices()
            .take(if columns(rest) > room { room } else { 0 })
            .filter(|(at, character)| *at > 0 && matches!(character, '_' | ',' | '[' | ' '))
            .map(|(at, character)| if character == '[' { at } else { at + 1 })
            .last();
        let (line, after) = joint.map_or((rest, ""), |joint| rest.split_at(joint));
        lines.push(format!("{indent}{line}"));
        if joint.is_none() {
            break;
        }
        rest = after;
    }
    lines.extend(row.detail.iter().flat_map(|detail| wrapped(&format!("  {detail}"), Some(limit), "  ")));
    lines
}

/// Width of each column: its widest line.
fn column_widths(block: &Block) -> Vec<usize> {
    let width = |column: usize| {
        let cells = block.rows.iter().flat_map(|row| row.cells[column].lines.iter().map(|(text, _)| text));
        block.heads[column].iter().chain(cells).map(|text| columns(text)).max().unwrap_or(0)
    };
    (0..block.heads.len()).map(width).collect()
}

/// Which columns stand side by side: all, or as many as fit, the first repeated.
fn bands(widths: &[usize], stub: usize, gap: usize, limit: Option<usize>) -> Vec<Vec<usize>> {
    let all = stub + widths.iter().map(|width| width + gap).sum::<usize>();
    let limit = limit.unwrap_or(WIDEST_IN_A_PIPE);
    if all <= limit || widths.len() <= 2 {
        return vec![(0..widths.len()).collect()];
    }
    let first = stub + widths[0] + gap;
    let mut bands: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for (column, width) in widths.iter().enumerate().skip(1) {
        if used.saturating_add(width + gap) > limit {
            bands.push(vec![0]);
            used = first;
        }
        used += width + gap;
        bands.last_mut().expect("the first column opened one").push(column);
    }
    bands
}

fn csv(tables: &[Table]) -> String {
    let data: Vec<(&[String; 4], &Data)> = tables
        .iter()
        .flat_map(|table| {
            let cells = table.blocks.iter().flat_map(|block| &block.rows).flat_map(|row| &row.cells);
            cells.filter_map(|cell| cell.data.as_ref()).map(|data| (&table.origin, data))
        })
        .collect();
    let mut fields: Vec<&str> = Vec::new();
    for (name, _) in data.iter().flat_map(|(_, data)| &data.fields) {
        if !fields.contains(name) {
            fields.push(name);
        }
    }
    let keys = ["study", "part", "kind", "machine", "statistic", "metric", "unit", "variant"];
    let mut out = String::new();
    push_csv(&mut out, keys.into_iter().chain(fields.iter().copied()));
    for (origin, data) in data {
        let value = |field: &&str| {
            data.fields.iter().find(|(name, _)| name == field).map_or("", |(_, value)| value.as_str())
        };
        let keys = [&data.statistic, &data.metric, &data.unit, &data.variant];
        let keys = origin.iter().chain(keys).map(String::as_str);
        push_csv(&mut out, keys.chain(fields.iter().map(value)));
    }
    out
}

/// A record of RFC 4180, though with `\n` as all text here.
pub(super) fn push_csv<'a>(out: &mut String, values: impl Iterator<Item = &'a str>) {
    for (index, value) in values.enumerate() {
        if index > 0 {
            out.push(',');
        }
        if value.contains([',', '"', '\n', '\r']) {
            let _ = write!(out, "\"{}\"", value.replace('"', "\"\""));
        } else {
            out.push_str(value);
        }
    }
    out.push('\n');
}

fn markdown(tables: &[Table]) -> String {
    let mut out = String::new();
    for (index, table) in tables.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let _ = writeln!(out, "### {}\n", escaped(&table.title));
        out += &markdown_lines(table.about.iter().map(String::as_str));
        for block in table.blocks.iter().filter(|block| !block.rows.is_empty()) {
            out.push('\n');
            if let Some(caption) = &block.caption {
                let _ = writeln!(out, "**{}**\n", escaped(caption));
            }
            let heads = block.heads.iter().map(|lines| {
                let words: Vec<&str> =
                    lines.iter().map(String::as_str).filter(|line| has_words(line)).collect();
                compact(&words.join(" "))
            });
            markdown_row(&mut out, iter::once(String::new()).chain(heads));
            let rules = iter::once("---").chain(iter::repeat_n("---:", block.heads.len()));
            let _ = writeln!(out, "|{}|", rules.collect::<Vec<_>>().join("|"));
            for row in &block.rows {
                let detail = row.detail.as_ref().map_or_else(String::new, |detail| format!(" ({detail})"));
                let stub = compact(&format!("{}{detail}", row.stub));
                markdown_row(&mut out, iter::once(stub).chain(row.cells.iter().map(cell_text)));
            }
        }
        if !table.notes.is_empty() {
            out.push('\n');
        }
        out += &markdown_lines(table.notes.iter().map(String::as_str));
    }
    let legend = legend(tables);
    if !legend.is_empty() {
        out.push('\n');
    }
    out + &markdown_lines(legend.into_iter())
}

/// Lines of a paragraph in Markdown, without those that only guide the eye.
pub fn markdown_lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.filter(|line| has_words(line)).map(|line| format!("{}  \n", escaped(line.trim()))).collect()
}

pub(super) fn markdown_row(out: &mut String, cells: impl Iterator<Item = String>) {
    out.push('|');
    for cell in cells {
        let _ = write!(out, " {} |", escaped(&cell));
    }
    out.push('\n');
}

fn cell_text(cell: &Cell) -> String {
    let lines: Vec<String> = cell.lines.iter().map(|(line, _)| compact(line)).collect();
    lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Whether a line says something: rules and pointers only guide the eye through text.
fn has_words(line: &str) -> bool {
    line.contains(char::is_alphanumeric)
}

/// Without the blanks that align columns.
fn compact(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace("( ", "(").replace("* ", "*")
}

/// With a backslash before what Markdown would take for markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '\\' | '`' | '*' | '|' | '<') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// `text` broken at blanks to fit; lines after the first begin with `indent`.
pub fn wrapped(text: &str, width: Option<usize>, indent: &str) -> Vec<String> {
    let Some(width) = width.filter(|width| columns(text) > *width) else { return vec![text.to_owned()] };
    let lead: String = text.chars().take_while(|character| *character == ' ').collect();
    let mut lines = vec![lead];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always one");
        let blank = usize::from(!line.trim().is_empty());
        if !line.trim().is_empty() && columns(line) + blank + columns(word) > width {
            lines.push(format!("{indent}{word}"));
        } else {
            line.push_str(if blank == 1 { " " } else { "" });
            line.push_str(word);
        }
    }
    lines
}

/// `text` as lines of one colour, broken as [`wrapped`] does.
pub fn paragraph(text: &str, width: Option<usize>, indent: &str, tone: Tone, terminal: &Terminal) -> String {
    let lines = wrapped(text, width, indent);
    lines.iter().map(|line| terminal.paint(line.trim_end(), tone) + "\n").collect()
}

/// Columns of a terminal that a text takes: everything printed here is one column a character.
pub fn columns(text: &str) -> usize {
    text.chars().count()
}

fn pad(line: &mut String, blanks: usize) {
    line.extend(iter::repeat_n(' ', blanks));
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// The table in ASCII, before widths are measured.
fn ascii(mut table: Table) -> Table {
    let each = |text: &mut String| *text = to_ascii(text);
    each(&mut table.title);
    table.about.iter_mut().chain(&mut table.notes).chain(&mut table.legend).for_each(each);
    for block in &mut table.blocks {
        block.caption.iter_mut().for_each(each);
        block.heads.iter_mut().flatten().for_each(each);
        for row in &mut block.rows {
            each(&mut row.stub);
            row.detail.iter_mut().for_each(each);
            row.cells.iter_mut().flat_map(|cell| &mut cell.lines).for_each(|(text, _)| each(text));
        }
    }
    table
}
