//! Stacks of blocks, one per order. Larger blocks are split when an order runs out; nothing is ever merged.

use core::ops::Range;

use crate::MAX_ORDER;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// Frames of the largest block.
const LARGEST: u64 = 1 << MAX_ORDER;

/// Blocks by order, the one freed last on top.
#[derive(Debug)]
pub(crate) struct Stacks {
    blocks: [Vec<u32>; ORDERS],
}

impl Stacks {
    /// All frames of `range`, in the largest blocks that are aligned to their size. Stacks have room for all,
    /// whatever the order: a free does not grow them unless the frame came from elsewhere.
    pub(crate) fn new(range: Range<u32>) -> Self {
        let frames = range.len();
        let mut stacks = Self { blocks: core::array::from_fn(|order| Vec::with_capacity(frames >> order)) };
        // From the end, so that the lowest address is on top.
        let mut end = range.end;
        while end > range.start {
            let aligned = if end == 0 { u32::from(MAX_ORDER) } else { end.trailing_zeros() };
            let order = aligned.min(u32::from(MAX_ORDER)).min((end - range.start).ilog2());
            end -= 1 << order;
            stacks.blocks[order as usize].push(end);
        }
        stacks
    }

    #[inline]
    pub(crate) fn pop(&mut self, order: u8) -> Option<u64> {
        match self.blocks[usize::from(order)].pop() {
            Some(block) => Some(u64::from(block)),
            None => self.split(order),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, block: u64, order: u8) {
        // Below 2^32: it was popped from such a stack.
        self.blocks[usize::from(order)].push(block as u32);
    }

    #[cold]
    fn split(&mut self, order: u8) -> Option<u64> {
        let order = usize::from(order);
        let from = (order + 1..ORDERS).find(|&from| !self.blocks[from].is_empty())?;
        let block = self.blocks[from].pop()?;
        for half in (order..from).rev() {
            self.blocks[half].push(block + (1 << half));
        }
        Some(u64::from(block))
    }

    /// Blocks of `order` that could be popped.
    pub(crate) fn available(&self, order: u8) -> u64 {
        let order = usize::from(order);
        (order..ORDERS).map(|from| (self.blocks[from].len() as u64) << (from - order)).sum()
    }
}

/// `frames` in `parts` shares, cut between largest blocks so that no share splits one.
///
/// # Errors
/// More frames than 32 bits can number: 16 TiB.
pub(crate) fn shares(frames: u64, parts: usize) -> Result<Vec<Range<u32>>, String> {
    u32::try_from(frames).map_err(|_| format!("{frames} frames are more than a stack of u32 can hold"))?;
    let largest = frames / LARGEST;
    // Below 2^32, as `frames` is.
    let cut = |part: usize| match part {
        part if part == parts => frames as u32,
        part => (largest * part as u64 / parts as u64 * LARGEST) as u32,
    };
    Ok((0..parts).map(|part| cut(part)..cut(part + 1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_frames_are_there_once() {
        for range in [0..4096, 1024..5000, 0..1, 7..1500, 0..0] {
            let mut stacks = Stacks::new(range.clone());
            assert_eq!(stacks.available(0), range.len() as u64);
            let mut frames: Vec<u64> = core::iter::from_fn(|| stacks.pop(0)).collect();
            frames.sort_unstable();
            assert!(frames.into_iter().eq(range.map(u64::from)));
        }
    }

    #[test]
    fn lowest_address_first_and_last_freed_first() {
        let mut stacks = Stacks::new(0..4096);
        assert_eq!([stacks.pop(0), stacks.pop(0), stacks.pop(3)], [Some(0), Some(1), Some(8)]);
        stacks.push(8, 3);
        assert_eq!(stacks.pop(3), Some(8));
    }

    #[test]
    fn shares_are_even_and_whole() {
        assert_eq!(shares(8192, 2), Ok(vec![0..4096, 4096..8192]));
        assert_eq!(shares(5000, 3), Ok(vec![0..1024, 1024..2048, 2048..5000]));
        assert!(shares(1 << 33, 1).is_err());
    }
}
