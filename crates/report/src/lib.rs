//! The result format of Framewright, and all that reads it: comparisons, tables, plots, an HTML page. Knows no
//! allocator and no simulator.
//!
//! | module | what it holds |
//! |---|---|
//! | [`error`] | how a command fails: one line, an exit code |
//! | [`terminal`] | what the output may look like |
//! | [`host`] | fingerprint of the machine a command runs on |
//! | [`result`] | the one result format, read and written |
//! | [`quantity`] | what results report: unit, direction and meaning, once |
//! | [`stats`] | statistics, each with its formula |
//! | [`table`], [`plot`], [`summary`] | results for reading: styles, formats, plots, a few lines |
//! | [`html`] | results as one HTML page |
//! | [`compare`] | saved results side by side |
//!
//! # Example
//! Two settings, ten samples of each: the document, and its table.
//! ```
//! use framewright_report::host::Host;
//! use framewright_report::result::{Better, Document, Kind, Part};
//! use framewright_report::table::{self, Format, Options, Style};
//! use framewright_report::terminal::Terminal;
//!
//! let mut part = Part::new("my-study", "faults", Kind::Measured, "host").baseline("before").seed(1);
//! part.metric("fault_ns", "ns", Better::Lower)
//!     .samples("before", [100.0, 101.0, 99.0, 100.0, 102.0, 100.0, 98.0, 101.0, 100.0, 99.0])
//!     .samples("after", [80.0, 81.0, 79.0, 80.0, 82.0, 80.0, 78.0, 81.0, 80.0, 79.0]);
//! let document = Document::new("example", Host::probe()).with(part);
//!
//! let tables = table::tables(&document, Style::Framewright, Options::default());
//! let text = table::render(&tables, Format::Markdown, &Terminal::plain());
//! assert!(text.contains("0.8"), "{text}");
//! assert_eq!(Document::parse(&document.to_json()?)?, document);
//! # Ok::<(), framewright_report::error::Error>(())
//! ```
#![deny(unsafe_code)]

pub mod compare;
pub mod error;
pub mod host;
pub mod html;
pub mod plot;
pub mod quantity;
pub mod result;
pub mod stats;
pub mod summary;
pub mod table;
pub mod terminal;

/// Its code is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
