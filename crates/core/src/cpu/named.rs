//! Frames and blocks that are named: by the caller, by their place, because their memory has failed, or to be told of.

mod contig;
mod hwpoison;
mod place;
mod report;
mod take;

pub use contig::ContigError;
pub use hwpoison::{HwpoisonError, Hwpoisoned};
pub use place::{PlaceError, PlaceFailure};
pub use report::{REPORTED_AT_ONCE, Reported};
