//! The short way from ranges of free memory to an allocator: one zone over all of them.
#![expect(unsafe_code, reason = "the allocator's own structures are made in the caller's memory")]

use core::ops::Range;
use core::ptr::NonNull;

use crate::alloc::Allocator;
use crate::config::Config;
use crate::error::SetupError;
use crate::frame::Zeroable;
use crate::platform::Platform;
use crate::setup::{Memory, Plan};
use crate::units::{MAX_ORDER, NodeId, Pfn, ZoneType};
use crate::zone::ZoneSpec;

impl<P: Platform, M: Zeroable> Allocator<'static, P, M> {
    /// Makes an allocator of one Normal zone, which spans all `ranges` of free memory, and gives it their frames. Empty
    /// ranges do not count. Its own structures take the first frames of the first range that has room for them and that
    /// `address` maps: that range is shorter afterwards. Further memory of the zone may come later, also frames between
    /// the ranges ([`add_memory`](Self::add_memory)). O(frames of the span).
    ///
    /// # Safety
    /// The ranges are memory that no other code uses from now on. `address` gets a range and returns the address at
    /// which all of it is mapped, writable, permanently, a multiple of 4 KiB; `None` if it is not mapped. Zero bytes
    /// are a word and a cell as [`Memory::carve`] demands.
    ///
    /// # Errors
    /// As [`Plan::new`], [`new`](Self::new) and [`add_memory`](Self::add_memory); no range has room for the structures;
    /// two ranges overlap. The ranges are unchanged then.
    pub unsafe fn over(
        ranges: &mut [Range<Pfn>],
        cpu_nodes: &'static [NodeId],
        config: Config,
        address: impl Fn(&Range<Pfn>) -> Option<NonNull<u8>>,
    ) -> Result<Self, SetupError> {
        // Firmware also names ranges that hold no whole frame.
        let memory = || ranges.iter().filter(|range| !range.is_empty());
        let start = memory().map(|range| range.start).min().ok_or(SetupError::ZoneCount(0))?;
        let end = memory().map(|range| range.end).max().unwrap_or(start);
        let start = start.block_start(MAX_ORDER);
        let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start, pages: end.0 - start.0 };
        let plan = Plan::new(&[zone], cpu_nodes, &config)?;
        let bytes = plan.layout::<P, M>()?.size();
        let pages = bytes.div_ceil(config.page_kib as usize * 1024) as u64;
        let found =
            ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()).find_map(|(n, range)| {
                let room = range.start..range.start.add(pages);
                Some((n, (room.end <= range.end).then(|| address(&room)).flatten()?))
            });
        let (in_range, room) = found.ok_or(SetupError::TooLarge)?;
        // Where other ranges overlap, the second one is refused as it is added; these frames are not added.
        let taken = ranges[in_range].start..ranges[in_range].start.add(pages);
        let others = ranges.iter().enumerate().filter(|(n, range)| *n != in_range && !range.is_empty());
        let mut overlapping = others.filter(|(_, range)| range.start < taken.end && taken.start < range.end);
        if let Some((_, range)) = overlapping.next() {
            return Err(SetupError::RangeInUse(range.start.max(taken.start)));
        }
        // SAFETY: it has the plan's size and a frame's alignment, by the caller's promise no other code uses it, and it
        // is zeroed here.
        let memory = unsafe {
            room.write_bytes(0, bytes);
            Memory::carve(&plan, room)
        };
        let allocator = Self::new(&[zone], cpu_nodes, config, memory, None)?;
        for (n, range) in ranges.iter().enumerate() {
            let start = if n == in_range { range.start.add(pages) } else { range.start };
            if start < range.end {
                allocator.add_memory(start, range.end.0 - start.0)?;
            }
        }
        ranges[in_range].start = ranges[in_range].start.add(pages);
        allocator.resize_pcps();
        Ok(allocator)
    }
}
