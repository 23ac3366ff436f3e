//! Policies: pure functions, numbers in, numbers out. No shared memory, no clock, no I/O.
//!
//! | file | decision |
//! |---|---|
//! | [`pcp`] | size of per-CPU lists, blocks in a refill and in a drain |
//! | [`watermark`] | free memory that a zone keeps, and which requests may go below it |
//! | [`fallback`] | which other type a request takes from, what is retyped, what merges, head or tail |
//! | [`zonelist`] | order in which zones are tried |
//! | [`nodes`] | node at which a request starts, and nodes that it may use |
//! | [`zlc`] | what is noted about zones that had nothing, and when the notes are used |
//! | [`reclaim`] | when memory is reclaimed, where, how hard, and when reclaim stops |
//! | [`compact`] | whether compaction is worth trying, and when it is done |
//! | [`passes`] | the passes of one allocation, from the first walk to the failure |
//! | [`init`] | memory map that boot leaves for later, and its division between CPUs |
//!
//! Each rule names the kernel release it comes from. Sizes are in base pages unless a name states another unit;
//! divisions round down. Every function takes any input without panicking or wrapping, except where its documentation
//! names a panic.

pub mod compact;
pub mod fallback;
pub mod init;
pub mod nodes;
pub mod passes;
pub mod pcp;
pub mod reclaim;
#[cfg(test)]
pub(crate) mod testing;
pub mod watermark;
pub mod zlc;
pub mod zonelist;

/// Kernel release whose rule is followed where releases differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Generation {
    /// The rules of 2011 (v3.0).
    V3_0,
    /// The rules of v6.1.
    #[default]
    V6_1,
}

/// Smallest multiple of `multiple` that is at least `value`; `u64::MAX` if that does not fit. A `multiple` of 0 counts
/// as 1.
const fn round_up(value: u64, multiple: u64) -> u64 {
    let multiple = if multiple == 0 { 1 } else { multiple };
    match value.checked_next_multiple_of(multiple) {
        Some(rounded) => rounded,
        None => u64::MAX,
    }
}
