//! Adapters that put crates which nobody here wrote on Framewright's frames, each in at most sixty lines, and each run by
//! a test: what a user would write, and what shows where the interface is awkward.
//!
//! | module | whose crate | on our frames |
//! |---|---|---|
//! | [`collections`] | `allocator-api2` | vectors and boxes in an arena |
//! | [`global`] | `rlsf` | the global allocator of a whole program |
//! | [`heap`] | `dlmalloc` | a heap that grows by blocks and gives them back |
//! | [`guest`] | `vm-memory` | a virtual machine's memory |
//! | [`tables`] | `x86_64` | page tables |
//!
//! # What was awkward
//! - A global allocator: a thread's first call on a [`SharedArena`](framewright_host::SharedArena) allocates (its table of
//!   slots), so the adapter needs a flag per thread, and the system's allocator for what is asked for meanwhile.
//! - Sizes in bytes: every adapter needs the smallest order that holds them ([`order_for`]).
//! - Frames have numbers and users have addresses: `address` and `frame_at` are checked, and their `Option`s have to be
//!   unwrapped where the frame is known to be the arena's.
#![deny(unsafe_code)]

pub mod collections;
pub mod global;
pub mod guest;
pub mod heap;
pub mod tables;

use framewright_host::{Order, PAGE_BYTES};

/// The smallest order whose blocks hold so many bytes; `None` if none does.
#[must_use]
pub fn order_for(bytes: usize) -> Option<Order> {
    let pages = bytes.div_ceil(PAGE_BYTES).checked_next_power_of_two()?;
    Order::new(u8::try_from(pages.trailing_zeros()).ok()?)
}
