//! A report: results as one HTML page that needs nothing else and no network. A small script of its own filters, sorts
//! and saves; without it everything is still there to read.
//!
//! | file | what lives there |
//! |---|---|
//! | `page` | head, contents, one section a study and one article a part |
//! | `figure` | which plot suits which metrics |
//! | `curve` | curves with intervals, as SVG |
//! | `bars` | bars with every sample, and stacked bars, as plain boxes |
//! | `style.css` | the look: light, dark, narrow, printed |
//! | `page.js` | filter, sort, save |
//!
//! Colours are the page's custom properties, so that every plot follows the reader's light or dark setting; each
//! series has a shape or a name beside its colour. Wide things scroll by themselves, and can be reached and
//! scrolled by keyboard.

mod bars;
mod curve;
mod figure;
mod page;

use framewright_trace::output::Output;

use crate::error::{Error, Result};
use crate::result::Document;
use crate::table::{self, Options, Style};

/// The page, in the style that its tables are to follow.
#[must_use]
pub fn html(document: &Document, style: Style, options: Options) -> String {
    let shown = if options.all_statistics { document.clone() } else { document.clone().in_short() };
    // What cannot be written as JSON cannot be a document either; `write` says so.
    let json = document.to_json().unwrap_or_default();
    page::page(&shown, &table::tables(&shown, style, options), &json).into_string()
}

/// Writes the page to a place that was opened before the work began. Rows that say little are left out, as in tables,
/// unless `options` ask for all.
///
/// # Errors
/// It cannot be written, or the document contradicts itself.
pub fn write(document: &Document, style: Style, options: Options, output: Output) -> Result<()> {
    document.validate()?;
    output.finish(html(document, style, options).as_bytes()).map_err(Error::failed)
}

#[cfg(test)]
mod tests;
