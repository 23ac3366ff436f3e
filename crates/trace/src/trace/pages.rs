//! A column's pages, checked before the decoder sees them.
//!
//! The decoder (parquet 60) reports most damage and asserts the rest: that a dictionary comes before what
//! refers to it, that there are as many values as a page says, that levels are as long as they say. Here that
//! is checked. Encodings that allocate what they are told to, and that no tool writes for columns like ours,
//! are refused.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// Passes on the pages of another reader, or the first fault in them.
pub(super) struct CheckedPages {
    pages: Box<dyn PageReader>,
    /// What the column's values are.
    kind: Type,
    /// Whether pages begin with levels that say which values are null.
    nullable: bool,
    has_dictionary: bool,
    allowance: Allowance,
}

/// How many bytes of pages may still be passed on until the values so far have been taken: a reader of many values
/// holds all the pages that they are in. The last page may go beyond it.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    const BYTES: usize = 1 << 20;

    /// The values have been taken.
    pub(super) fn renew(&self) {
        self.0.store(Self::BYTES, Ordering::Relaxed);
    }

    fn is_spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn take(&self, bytes: usize) {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(bytes), Ordering::Relaxed);
    }
}

impl CheckedPages {
    pub(super) fn new(pages: Box<dyn PageReader>, kind: Type, nullable: bool, allowance: Allowance) -> Self {
        Self { pages, kind, nullable, has_dictionary: false, allowance }
    }

    fn check(&mut self, page: &Page) -> Result<()> {
        match page {
            Page::DictionaryPage { buf, num_values, encoding, .. } => {
                if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) || self.has_dictionary {
                    return fault("a dictionary of an unknown kind");
                }
                self.has_dictionary = true;
                self.check_plain(buf, *num_values)
            }
            Page::DataPage { buf, num_values, encoding, def_level_encoding, .. } => {
                let mut levels = 0;
                if self.nullable {
                    // Their length in 4 bytes comes before them.
                    let length = buf.first_chunk().map_or(u32::MAX, |&four| u32::from_le_bytes(four));
                    levels = 4 + length as usize;
                    if *def_level_encoding != Encoding::RLE {
                        return fault("levels of an unknown kind");
                    }
                }
                self.check_values(buf.get(levels..), *num_values, *encoding)
            }
            Page::DataPageV2 {
                buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, ..
            } => {
                let levels = (*def_levels_byte_len as usize).checked_add(*rep_levels_byte_len as usize);
                self.check_values(levels.and_then(|levels| buf.get(levels..)), *num_values, *encoding)
            }
        }
    }

    /// Checks what follows a page's levels; `None` if these are longer than the page.
    fn check_values(&self, values: Option<&[u8]>, count: u32, encoding: Encoding) -> Result<()> {
        let Some(values) = values else { return fault("levels that do not fit their page") };
        match encoding {
            Encoding::PLAIN => self.check_plain(values, count),
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY if self.has_dictionary => Ok(()),
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                fault("no dictionary before what needs one")
            }
            Encoding::DELTA_BINARY_PACKED if self.kind != Type::BYTE_ARRAY => Ok(()),
            _ => fault(&format!(
                "values encoded as {encoding}: write the file with plain or dictionary encoding"
            )),
        }
    }

    /// Checks that there are `count` values. Nulls would be fewer, but no column of a trace has any.
    fn check_plain(&self, values: &[u8], count: u32) -> Result<()> {
        let count = count as usize;
        let enough = match self.kind {
            Type::INT32 => values.len() / 4 >= count,
            Type::INT64 => values.len() / 8 >= count,
            _ => texts(values).take(count).count() == count,
        };
        if enough { Ok(()) } else { fault("fewer values than its pages say, or nulls") }
    }
}

/// The texts that a plain page of them holds, each after its length in 4 bytes; ends at the first that is cut
/// off.
fn texts(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        bytes = rest;
        Some(text)
    })
}

fn fault<T>(what: &str) -> Result<T> {
    Err(ParquetError::General(what.to_owned()))
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        if self.allowance.is_spent() {
            return Ok(None);
        }
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
            // The dictionary stays whatever is taken.
            if page.is_data_page() {
                self.allowance.take(page.buffer().len());
            }
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
