//! What an allocator must offer to be driven by a trace or a benchmark.

use core::fmt;

/// Which list of a mobility-grouping allocator a request asks for. Others ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mobility {
    /// Stays where it is until freed.
    Unmovable = 0,
    /// Can be migrated.
    Movable = 1,
    /// Can be freed on request.
    Reclaimable = 2,
}

/// An allocator under test, shared by all threads of a run.
///
/// Blocks are named by the number of their first frame. An implementation promises that live blocks never
/// overlap; the drivers do not check it, [`Oracle`](crate::oracle::Oracle) does.
pub trait Target: Sync {
    /// What one thread allocates and frees through. When it is dropped, on the thread that attached, the CPU
    /// leaves the run: what it kept to itself can be had by others again.
    type Cpu<'a>: TargetCpu
    where
        Self: 'a;

    /// Enters the run as CPU `cpu`, 0 to the run's thread count - 1, not yet entered or left again. Called on
    /// the thread that will use it.
    fn attach(&self, cpu: usize) -> Self::Cpu<'_>;

    /// Frames of the fixed range that it manages: its frame numbers lie below. `None` if it takes memory from
    /// the operating system as it goes; then fragmentation and time to ready mean nothing.
    fn frames(&self) -> Option<u64> {
        None
    }

    /// Blocks of `order` that could be allocated now, split from larger ones if need be, with nothing
    /// attached; `None` if the allocator cannot tell.
    fn free_blocks(&self, order: u8) -> Option<u64> {
        let _ = order;
        None
    }

    /// Bytes that it keeps for each frame: what grows with the number of frames. `None` if it cannot tell.
    fn metadata_bytes_per_frame(&self) -> Option<f64> {
        None
    }

    /// Milliseconds from one round of background compaction to the next ([`TargetCpu::compact`]), at least 1. `None`,
    /// as it is, if the allocator does not compact: then it is asked for no round.
    fn compaction_round_ms(&self) -> Option<u32> {
        None
    }

    /// Counters since creation, in the order they should be printed; empty if it keeps none.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}

/// One thread's access to a [`Target`].
pub trait TargetCpu {
    /// A block of `2^order` frames, order 0 to 10: the number of its first frame, a multiple of its size. `None`
    /// if there is none.
    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u64>;

    /// Frees a block that `alloc` of any thread returned, with its order.
    fn free(&mut self, frame: u64, order: u8);

    /// One round of background compaction, as an operating system makes one now and then: moves blocks, as `by` lets
    /// it, so that huge pages become free. `None` if the allocator has no such thing, or is told to do without.
    fn compact(&mut self, by: &mut dyn Move) -> Option<Compaction> {
        let _ = by;
        None
    }

    /// What an operating system does about once a second on each CPU, idle ones among them (Linux: the vmstat worker):
    /// lists that hold more than the CPU uses shrink, and what other CPUs have asked this one for is done. Does nothing
    /// as it is.
    fn tick(&mut self) {}

    /// Frees one of the blocks of order `part` that a block of order `whole` consists of.
    ///
    /// Called once for each part; parts of one block may differ in order, but do not overlap. Returns `false`,
    /// and nothing happens, if the allocator cannot take a block back in parts: the caller then frees the whole
    /// with its last part. The answer is the same for all parts of one block.
    fn free_part(&mut self, frame: u64, part: u8, whole: u8) -> bool {
        let _ = (frame, part, whole);
        false
    }
}

/// Owner of the blocks that compaction moves.
pub trait Move {
    /// Whether the block of `order` whose first frame is `frame` can move.
    fn can_move(&mut self, frame: u64, order: u8) -> bool;

    /// Moves a block. The one at `to` is in use from now on, and the one at `from` is free. `false` if it stays.
    fn move_block(&mut self, from: u64, to: u64, order: u8) -> bool;
}

/// Work of a round of background compaction, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Moved.
    pub moved: u64,
    /// Not moved when it came to it.
    pub stayed: u64,
}

/// A named count, with the unit in the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// `snake_case` and stable: results are compared by it.
    pub name: &'static str,
    /// Events since the target was created.
    pub value: u64,
}

impl fmt::Display for Mobility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unmovable => "unmovable",
            Self::Movable => "movable",
            Self::Reclaimable => "reclaimable",
        })
    }
}
