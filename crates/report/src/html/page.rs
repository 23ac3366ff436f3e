//! The page around tables and plots.

use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figure;
use crate::result::{Document, Kind, Part, StudyText, grouped};
use crate::summary::{Headline, LEGEND, Row, outcomes, rows};
use crate::table::{Table, legend};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("page.js");

/// A page of `document`, whose parts' tables are `tables`; `json` is all of it, for saving.
pub(super) fn page(document: &Document, tables: &[Table], json: &str) -> Markup {
    let studies = studies(document);
    let rows = rows(document);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("framewright {}", document.framewright));
                title { "framewright " (document.command) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#results" { "Skip to the results" }
                header {
                    h1 { "framewright " (document.command) }
                    p { (document.host.summary()) }
                    p.dim { (origin(document)) }
                    @if !document.argv.is_empty() { p.dim { code { (document.command_line()) } } }
                    (kinds())
                    (summary(document, &rows))
                    form.tools onsubmit="return false" {
                        label { "Show only " input id="filter" type="search" placeholder="allocation, zone lock"; }
                        label { input id="changed" type="checkbox"; " clear changes" }
                        button id="save" type="button" { "Save the data (JSON)" }
                    }
                }
                @if document.results.len() > 1 {
                    nav aria-label="Contents" { (contents(&studies)) }
                }
                main id="results" tabindex="-1" {
                    @for (study, parts) in &studies {
                        section aria-labelledby=(study) {
                            h2 id=(study) { (study) }
                            @let text = text(document, study);
                            @if let Some(text) = text {
                                p.question { (text.question) }
                                (variants(text, document, parts))
                            }
                            // What the summary says of it, to be seen without a click.
                            @if document.results.len() > 1 { (first_figure(study, &rows)) }
                            @for &index in parts { (article(index, document, &tables[index], text)) }
                        }
                    }
                    @if !legend(tables).is_empty() { ul.notes { @for sentence in legend(tables) { li { (sentence) } } } }
                }
                footer {
                    script type="application/json" id="data" { (PreEscaped(json.replace('<', "\\u003c"))) }
                    script { (PreEscaped(SCRIPT)) }
                    p { "Written by framewright " (document.framewright) ". The button above saves its data; "
                        code { "framewright compare FILE.json --html PAGE.html" } " draws this page again from it." }
                }
            }
        }
    }
}

/// Date, version and commit.
fn origin(document: &Document) -> String {
    let date = document.date.as_ref().map_or_else(String::new, |date| format!("{date}, "));
    format!("{date}framewright {}", document.version())
}

/// A row for each study: what was changed, and what that did here, on the modelled machine, and in what was published.
fn summary(document: &Document, rows: &[Row<'_>]) -> Markup {
    let figure = |headline: &Option<Headline<'_>>| {
        html! {
            @if let Some(headline) = headline {
                a href={ "#" (anchor(part_index(document, headline))) } { (headline.metric.words()) } " " b { (headline.percent()) } ", " (headline.basis())
            }
        }
    };
    html! {
        @if !rows.is_empty() {
            dl.variants {
                @for (title, changes) in outcomes(rows) {
                    div { dt { (title) } dd { (changes.join("; ")) } }
                }
            }
            div.scroll tabindex="0" role="region" aria-label="Summary" {
                table.summary {
                    thead { tr { th { "study" } th { "what was changed" } th { "here" } th { "modelled machine" } th { "published" } } }
                    tbody {
                        @for row in rows {
                            tr {
                                th scope="row" { a href={ "#" (row.study) } { (row.study) } }
                                td { (row.short) @if let Some(year) = row.year { " (" (year) ")" } }
                                td { (figure(&row.here)) }
                                td { (figure(&row.there)) }
                                td.told {
                                    @if let Some(said) = row.answer().and_then(Headline::published_change) { (said) }
                                    @if let Some(held) = row.held_in_words() { br; span.dim { (held) } }
                                }
                            }
                        }
                    }
                }
            }
            p.dim { (LEGEND) }
        }
    }
}

/// The picture of a study's answer: a bar a variant, named beside it.
fn first_figure(study: &str, rows: &[Row<'_>]) -> Markup {
    let answer = rows.iter().find(|row| row.study == study).and_then(Row::answer);
    html! { @if let Some(answer) = answer { div.figures { (figure::bars_of(answer.part, answer.metric, &answer.metric.words_and_unit())) } } }
}

/// What the three kinds of figures are.
fn kinds() -> Markup {
    html! {
        p.kinds {
            (badge(Kind::Measured)) " on the machine named above. "
            (badge(Kind::Simulated)) " by the same allocator code on a modelled machine. "
            (badge(Kind::Derived)) " by arithmetic alone."
        }
    }
}

fn badge(kind: Kind) -> Markup {
    html! { span class={ "badge " (kind) } { (kind) } }
}

/// The studies in their order, and which results are theirs.
fn studies(document: &Document) -> Vec<(&str, Vec<usize>)> {
    grouped(0..document.results.len(), |&index| document.results[index].study.as_str())
}

/// The studies; their parts are a line each below them.
fn contents(studies: &[(&str, Vec<usize>)]) -> Markup {
    html! {
        ul { @for (study, _) in studies { li { a href={ "#" (study) } { (study) } } } }
    }
}

fn part_index(document: &Document, headline: &Headline<'_>) -> usize {
    document.results.iter().position(|part| core::ptr::eq(part, headline.part)).unwrap_or(0)
}

fn anchor(index: usize) -> String {
    format!("part-{}", index + 1)
}

/// What a study says of itself, if it is known.
fn text<'a>(document: &'a Document, study: &str) -> Option<&'a StudyText> {
    document.studies.iter().find(|text| text.name == study)
}

/// What the variants do that the results have, as their study says.
fn variants(text: &StudyText, document: &Document, parts: &[usize]) -> Markup {
    let used = |name: &str| parts.iter().any(|&n| document.results[n].variants.iter().any(|v| v == name));
    let base = |name: &str| {
        let parts = parts.iter().map(|&n| &document.results[n]);
        let of_parts: BTreeSet<&str> =
            parts.clone().filter(|part| part.baseline == name).map(|part| &*part.part).collect();
        match of_parts.len() {
            0 => String::new(),
            _ if parts.clone().all(|part| part.baseline == name) => " (baseline)".to_owned(),
            _ => format!(" (baseline of {})", Vec::from_iter(of_parts).join(", ")),
        }
    };
    html! {
        dl.variants {
            @for (name, about) in text.variants.iter().filter(|(name, _)| used(name)) {
                div {
                    dt { (name) (base(name)) }
                    dd { (about) }
                }
            }
        }
    }
}

fn article(index: usize, document: &Document, table: &Table, text: Option<&StudyText>) -> Markup {
    let part = &document.results[index];
    // Nothing else is on the page.
    let alone = document.results.len() == 1;
    let about = text.and_then(|text| text.parts.iter().find(|(name, _)| *name == part.part));
    let metrics = if part.metrics.len() == 1 { " metric" } else { " metrics" };
    html! {
        article id=(anchor(index)) {
            details open[alone] {
                summary.part { h3 { (part.part) " " (badge(part.kind)) " " span.machine { (machine(part)) ", " (part.metrics.len()) (metrics) } } }
                @if let Some((_, about)) = about { p { (about) } }
                details open[alone] { summary { "Plots" } (figure::figures(part)) }
                details open[alone || part.metrics.len() <= OPEN_ROWS] { summary { "Table" } (table.html(&anchor(index))) }
                @if let Some(hash) = &part.event_log_hash { p.dim { "Event log " code { (hash) } ", seed " (part.seed) "." } }
            }
        }
    }
}

/// A table with more rows is folded when its part is unfolded: its plots say it better.
const OPEN_ROWS: usize = 24;

fn machine(part: &Part) -> String {
    if part.machine == "host" { "this machine".to_owned() } else { part.machine.clone() }
}
