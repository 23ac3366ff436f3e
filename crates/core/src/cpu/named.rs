//! Frames and blocks that are chosen by their address, not by the free lists.
//!
//! | module | content |
//! |---|---|
//! | `place` | `alloc_at`, a given block: its bits are taken, or free blocks are split around it. CPUs that have parts of it on their lists drain. `take_free`, what is free in a pageblock |
//! | `contig` | `alloc_contig_range`: isolates pageblocks, drains, lets the mover clear the range, takes it; a guard ends isolation |
//! | `hwpoison` | frames whose memory has failed: a free one is quarantined, one in use is kept back when it is freed |
//! | `report` | free memory that a hook is told of once, as balloons need |

mod contig;
mod hwpoison;
mod place;
mod report;

pub use contig::ContigError;
pub use hwpoison::{HwpoisonError, Hwpoisoned};
pub use place::{PlaceError, PlaceFailure};
pub use report::{REPORTED_AT_ONCE, Reported};
