//! Where a CPU's hits of order 0 read and write, for code that makes them without a call: C's, in the header of the C
//! library, which cannot inline what is written here.

use super::Cpu;
use crate::frame::FrameUser;
use crate::pcp::ListWords;
use crate::platform::Platform;
use crate::units::{Migratetype, Order, Pfn};

/// The words that allocations and frees of single frames of one type read and write when they hit, as
/// [`Cpu::alloc_hit`] and [`Cpu::free_hit`] do. They stay where they are as long as the allocator. Only the CPU's owner may do
/// this, and only so:
///
/// - **An allocation** reads `top` and `floor`. If `top` is no greater, it is no hit. Otherwise it writes `top − 1` to `top`
///   (release), and the block is what slot `(top − 1) & mask` holds.
/// - **A free** of a frame `f` reads the head word of the frame, `heads + (f − first) × stride` bytes, if `f − first` is less
///   than `frames`, and `top` and `ceiling`. If the head word is not `top`, or `ceiling` is no greater than `top`, it is no
///   hit. Otherwise it writes `f` to slot `top & mask`, and then `top + 1` to `top` (release).
///
/// What is no hit has changed nothing, and goes to [`Cpu::alloc`] or [`Cpu::free`]. All words are atomic; where no order is
/// given, relaxed. An allocator on which nothing ever hits has such words, too: its `floor` lets nothing pass, and
/// `frames` is 0.
#[derive(Debug)]
pub struct HitWords<P: Platform> {
    /// The place above the list's uppermost block.
    pub top: *const P::Word,
    /// Blocks lie above it.
    pub floor: *const P::Word,
    /// Frees hit below it. Other CPUs lower it.
    pub ceiling: *const P::Word,
    /// The first slot.
    pub slots: *const P::Word,
    /// Slots, less one.
    pub mask: u64,
    /// The head word of frame `first`.
    pub heads: *const P::Word,
    /// Bytes from one head word to the next.
    pub stride: usize,
    /// The first frame whose frees can hit.
    pub first: Pfn,
    /// How many there are.
    pub frames: u64,
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// The words of this CPU's hits of order 0 and one of the ordinary types. `None` where a hit has to look at more: where boot
    /// leaves descriptors uncleared ([`Platform::CLEARS_DESCRIPTORS`]), or for another type. O(1).
    ///
    /// From now on other CPUs ask for what these lists hold, and do not drain them while this CPU is in no call
    /// ([`Platform::DRAINS_REMOTELY`]): hits by these words do not say that they run.
    #[must_use]
    pub fn hit_words(&self, migratetype: Migratetype) -> Option<HitWords<P>> {
        if P::CLEARS_DESCRIPTORS || !migratetype.is_ordinary() {
            return None;
        }
        let (heads, stride, first, frames) = self.near.words();
        let ListWords { top, floor, ceiling, slots } = self.pcp.list_words(Order::ZERO, migratetype)?;
        self.pcp.keep_turn();
        let mask = slots.len() as u64 - 1;
        Some(HitWords { top, floor, ceiling, slots: slots.as_ptr(), mask, heads, stride, first, frames })
    }
}
