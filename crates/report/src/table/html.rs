//! Tables as HTML, for the report.

use maud::{Markup, html};

use super::{Block, Cell, Side, Table};
use crate::terminal::Tone;

impl Table {
    /// The table and what stands around it, but not its title. Each row links to itself; its anchor begins with
    /// `anchor`.
    pub(crate) fn html(&self, anchor: &str) -> Markup {
        html! {
            @for line in &self.about { p.about { (line) } }
            // A wide table scrolls by itself; what scrolls can be reached by keyboard.
            @for (n, block) in self.blocks.iter().enumerate() {
                @let anchor = if n == 0 { anchor.to_owned() } else { format!("{anchor}-{}", n + 1) };
                div.scroll tabindex="0" role="region" aria-label=(self.title) { (rows(block, &anchor)) }
            }
            @if !self.notes.is_empty() { ul.notes { @for note in &self.notes { li { (note) } } } }
        }
    }
}

fn rows(block: &Block, anchor: &str) -> Markup {
    let stub = html! { td {} };
    html! {
        table {
            @if let Some(caption) = &block.caption { caption { (caption) } }
            thead {
                tr {
                    @if block.stubs == Side::Left { (stub) }
                    @for heads in &block.heads { th scope="col" { @for (n, head) in heads.iter().enumerate() { @if n > 0 { br; } (head.trim()) } } }
                    @if block.stubs == Side::Right { (stub) }
                }
            }
            tbody {
                @for row in &block.rows {
                    @let id = format!("{anchor}-{}", row.stub.trim().replace(char::is_whitespace, "_"));
                    // Not a stop of the keyboard's: there are thousands.
                    @let link = html! { a.row href={ "#" (id) } tabindex="-1" { (row.stub.trim()) } };
                    @let name = html! { th scope="row" { (link) @if let Some(detail) = &row.detail { br; span.detail { (detail) } } } };
                    tr id=(id) {
                        @if block.stubs == Side::Left { (name) }
                        @for cell in &row.cells { (figures(cell)) }
                        @if block.stubs == Side::Right { (name) }
                    }
                }
            }
        }
    }
}

fn figures(cell: &Cell) -> Markup {
    html! {
        td {
            @for (n, (text, tone)) in cell.lines.iter().enumerate() {
                @if n > 0 { br; }
                @match tone {
                    Tone::Better => span.better { (text.trim()) },
                    Tone::Worse => span.worse { (text.trim()) },
                    Tone::Dim => span.dim { (text.trim()) },
                    Tone::Plain | Tone::Heading => (text.trim()),
                }
            }
        }
    }
}
