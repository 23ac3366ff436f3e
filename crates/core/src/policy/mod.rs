//! Policies: pure functions, numbers in, numbers out. No shared memory, no clock, no I/O.
//!
//! | file | what it decides |
//! |---|---|
//! | [`pcp`] | how large per-CPU lists are, how much a refill takes and a drain gives back |
//! | [`watermark`] | how much free memory a zone keeps, and who may go below |
//! | [`fallback`] | which other type's block is taken, what is retyped, what merges, head or tail |
//! | [`zonelist`] | in which order zones are tried |
//! | [`nodes`] | from which node a request starts, and which it may use |
//! | [`zlc`] | what is remembered about zones that had nothing, and when it is believed |
//! | [`reclaim`] | when memory is reclaimed, where, how hard, and when to stop |
//! | [`compact`] | whether compaction is worth trying, and when it is done |
//! | [`passes`] | the passes of one allocation, from the first try to the failure |
//! | [`init`] | what boot leaves for later, and how that is split between CPUs |
//!
//! Each rule names the kernel generation it comes from. Sizes are in base pages unless a name says
//! otherwise; divisions round down. Every function takes any input without panicking or wrapping,
//! except where its documentation names a panic.

pub mod compact;
pub mod fallback;
pub mod init;
pub mod nodes;
pub mod passes;
pub mod pcp;
pub mod reclaim;
pub mod watermark;
pub mod zlc;
pub mod zonelist;

/// Which kernel's rule to follow where watermarks and stealing differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Generation {
    /// The rules of 2011 (v3.0).
    V3_0,
    /// The rules of v6.1.
    #[default]
    V6_1,
}

/// Smallest multiple of `multiple` that is at least `value`, or `u64::MAX` where that does not fit.
/// A `multiple` of 0 counts as 1.
const fn round_up(value: u64, multiple: u64) -> u64 {
    let multiple = if multiple == 0 { 1 } else { multiple };
    match value.checked_next_multiple_of(multiple) {
        Some(rounded) => rounded,
        None => u64::MAX,
    }
}
