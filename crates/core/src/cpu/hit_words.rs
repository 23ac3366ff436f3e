//! Words that a CPU's hits of order 0 read and write, for code that makes hits without a call: C, in the header of the
//! C library, which cannot inline Rust.

use super::Cpu;
use crate::frame::FrameUser;
use crate::pcp::List;
use crate::platform::Platform;
use crate::units::{Migratetype, Order, Pfn};

/// Words that allocations and frees of single frames of one type read and write when they hit, like [`Cpu::alloc_hit`]
/// and [`Cpu::free_hit`]. They stay at their addresses as long as the allocator lives. Only the CPU's owner may use
/// them, and only like this:
///
/// - **An allocation** reads `top` and `floor`. If `top` is not greater, it is no hit. Otherwise it writes `top − 1` to
///   `top` (release), and the block is in slot `(top − 1) & mask`.
/// - **A free** of a frame `f` reads the head word of the frame, at `heads + (f − first) × stride` bytes, if `f −
///   first` is less than `frames`, and `top` and `ceiling`. If the head word is not `top`, or `ceiling` is not greater
///   than `top`, it is no hit. Otherwise it writes `f` to slot `top & mask`, and then `top + 1` to `top` (release).
///
/// If a call is no hit, the caller has written no word, and calls [`Cpu::alloc`] or [`Cpu::free`]. All words are
/// atomic; accesses are relaxed unless an order is given. An allocator on which no call hits has such words, too: its
/// `floor` is never below `top`, and `frames` is 0.
#[derive(Debug)]
pub struct HitWords<P: Platform> {
    /// Position above the list's uppermost block.
    pub top: *const P::Word,
    /// Allocations hit while `top` is above it.
    pub floor: *const P::Word,
    /// Frees hit while `top` is below it. Other CPUs lower it.
    pub ceiling: *const P::Word,
    /// The first slot.
    pub slots: *const P::Word,
    /// Number of slots, less one.
    pub mask: u64,
    /// The head word of frame `first`.
    pub heads: *const P::Word,
    /// Distance between two head words, in bytes.
    pub stride: usize,
    /// The first frame whose frees can hit.
    pub first: Pfn,
    /// Number of frames from `first` on whose frees can hit.
    pub frames: u64,
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// The words of this CPU's hits of order 0 and one of the ordinary types. `None` if a hit must read more, because
    /// boot leaves descriptors uncleared ([`Platform::CLEARS_DESCRIPTORS`]), or for another type. O(1).
    ///
    /// From now on other CPUs only request drains of these lists, and do not drain them while this CPU is in no call
    /// ([`Platform::DRAINS_REMOTELY`]): hits through these words do not set `inside`.
    #[must_use]
    pub fn hit_words(&self, migratetype: Migratetype) -> Option<HitWords<P>> {
        if P::CLEARS_DESCRIPTORS || !migratetype.is_ordinary() {
            return None;
        }
        let (heads, stride, first, frames) = self.near.words();
        let List { top, floor, ceiling, slots, mask, .. } = self.pcp.hit_list(Order::ZERO, migratetype)?;
        self.pcp.keep_turn();
        let (slots, mask) = (slots.as_ptr(), *mask);
        Some(HitWords { top, floor, ceiling, slots, mask, heads, stride, first, frames })
    }
}
