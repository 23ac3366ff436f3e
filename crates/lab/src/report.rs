//! A report: results as one HTML page that needs nothing else, no network and no script.
//!
//! | file | what lives there |
//! |---|---|
//! | `page` | head, contents, one section a study and one article a part |
//! | `figure` | which plot suits which metrics |
//! | `curve` | curves with intervals, as SVG |
//! | `bars` | bars with every sample, and stacked bars, as plain boxes |
//! | `style.css` | the look: light, dark, narrow, printed |
//!
//! Colours are the page's custom properties, so that every plot follows the reader's light or dark setting; each
//! series has a shape or a name beside its colour. Wide things scroll by themselves, and can be reached and
//! scrolled by keyboard.

mod bars;
mod curve;
mod figure;
mod page;

use framewright_workload::output::Output;

use crate::error::{Error, Result};
use crate::result::Document;
use crate::table::{self, Options, Style};

/// The page, in the style that its tables are to follow.
#[must_use]
pub fn html(document: &Document, style: Style, options: Options) -> String {
    page::page(document, &table::tables(document, style, options)).into_string()
}

/// Writes the page to a place that was opened before the work began. Rows that say little are left out, as in tables,
/// unless `options` ask for all.
///
/// # Errors
/// It cannot be written, or the document contradicts itself.
pub fn write(document: &Document, style: Style, options: Options, output: Output) -> Result<()> {
    document.validate()?;
    let shown = if options.all_statistics { document.clone() } else { document.clone().in_short() };
    output.finish(html(&shown, style, options).as_bytes()).map_err(Error::failed)
}

#[cfg(test)]
mod tests;
