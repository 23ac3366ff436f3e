//! How the allocator is checked. Unpublished.
//!
//! | module | what it holds |
//! |---|---|
//! | [`platform`] | where the generic code runs when it is checked: plain, checked, loom, shuttle |
//! | [`corrupt`] | damage on purpose, that `verify` must find |
//! | [`exhaust`] | small worlds, gone through completely |
//! | [`fixture`] | the one way in which tests make an allocator |
//! | [`free_lists`] | the free blocks that descriptors say there are |
//! | [`history`] | random calls of every kind, judged by the oracle |
//! | [`marks`] | whether a request has left each zone the pages that it must leave |
//! | [`oracle`] | who owns which frame, judged without the allocator's own books |
//! | [`prelude`] | names that nearly every test needs, and calls that must succeed |
//! | [`refute`] | twins that are broken on purpose must be found |
//! | [`slot`] | the slot that frames of tests have |
//!
//! The tests themselves are in `tests/`. `FRAMEWRIGHT_FULL=1` makes models unbounded and histories long,
//! `FRAMEWRIGHT_QUICK=1` both short.
#![deny(unsafe_code)]

pub mod corrupt;
pub mod exhaust;
pub mod fixture;
pub mod free_lists;
pub mod history;
pub mod marks;
pub mod oracle;
pub mod platform;
pub mod prelude;
pub mod refute;
pub mod slot;

/// A number that looks random, the same in every run: for contents and choices that follow from a place or a count.
/// Tests that draw a sequence use `fastrand`. O(1).
pub const fn mix(n: u64) -> u64 {
    let n = (n ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 32
}

/// The guide to porting: every piece of code in it is compiled, under `#![no_std]` (see `build.rs`).
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("OUT_DIR"), "/porting.md"))]
pub mod porting {}
