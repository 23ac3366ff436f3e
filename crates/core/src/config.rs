//! Configuration of an allocator. Each published change to the Linux allocator that this project studies is one field,
//! so that an experiment is a pair of configurations.

pub use crate::policy::Generation;
pub use crate::policy::passes::Limits;
pub use crate::policy::pcp::PcpRule;
pub use crate::policy::reclaim::ZoneReclaimMode;
pub use crate::policy::zlc::Rule as ZonelistCache;
pub use crate::policy::zonelist::ListOrder;

/// Cache line of the zone lock, relative to the free lists that it guards.
///
/// Source: Linux v3.17 put the lock into the line of the order-0 lists; commit "mm: page_alloc: place zone lock at the
/// other end" (v4.0) moved it after the free areas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockPlace {
    /// In the cache line of the order-0 lists (Linux v3.17 to v3.19).
    WithOrder0Lists,
    /// After the order-10 lists, in their last line (Linux from v4.0).
    OtherEnd,
    /// In a line of its own.
    #[default]
    OwnLine,
}

/// How CPUs wait for the zone lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockKind {
    /// First come, first served. Every waiting CPU polls the same word (x86 Linux up to v4.1).
    Ticket,
    /// First come, first served. Each waiting CPU polls a line of its own; only the first in the queue polls the lock
    /// (x86 Linux from v4.2).
    Queued,
    /// A CPU that arrives while the lock is free takes it, also before CPUs that wait. A waiting CPU polls for a short
    /// time, then sleeps until the lock is released ([`Platform::park`](crate::platform::Platform::park)). For CPUs
    /// that are threads: a lock that is handed to a waiting thread stands still while that thread has no processor, and
    /// all threads after it wait.
    Parking,
    /// The platform's choice ([`Platform::LOCK`](crate::platform::Platform::LOCK)): queued in a kernel and in the
    /// simulator, parking on a host.
    #[default]
    ByPlatform,
}

/// Moment at which the blocks of a refill are checked, if the descriptor type has a check (see
/// [`FrameUser`](crate::frame::FrameUser)).
///
/// Source: the `refill-check` change of 2023, and its follow-up that removed the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RefillCheck {
    /// Each block as it is taken, with the zone lock held (Linux up to v6.2).
    UnderZoneLock,
    /// All new blocks in one walk after the zone lock was released.
    AfterUnlock,
    /// Never; the refilled list is not walked (Linux from v6.4 in its normal build).
    #[default]
    Off,
}

/// How a zone keeps free memory, and which metadata the allocator keeps for each frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// Free lists, as in Linux: one for each order and type. Blocks are linked through their descriptors and moved one
    /// by one. The state of a block of order 9 or 10 is in the descriptor of its first frame. Each allocation and each
    /// free updates the count of the per-CPU lists. A free reads the zone and the present type of its pageblock.
    Linux,
    /// Bits: one for each frame, and one for each pageblock that is free as a whole. The bits of one pageblock fill one
    /// cache line. A pageblock that is partly free is in a bin, by its type, its number of free frames and its largest
    /// free block. An allocation takes from a pageblock whose largest free block is as small as suffices, and of those
    /// from the fullest, so that other pageblocks become whole. A free sets bits; a bit that is already set is a double
    /// free. Contiguous blocks that drain together return as one run.
    ///
    /// A frame has a word of 8 bytes, and the user's slot: 8.2 bytes a frame with `M = ()`. The state of a block of
    /// order 9 or 10 is in the descriptor of its first pageblock. An allocation that hits writes no metadata. The lists
    /// are counted only where a list is empty or at its ceiling, so all lists together may hold more than `high`: by up
    /// to a batch, or a share of `high`, for each list but one. A block that was the last to leave a list returns to
    /// that list, even if its pageblock has another type by then. With [`PcpRule::V6_1`], and with rules that [watch
    /// orders](PcpRule::watches_orders), drains depend on every call, so each call counts.
    #[default]
    Framewright,
    /// Like [`Framewright`](Self::Framewright), but with two bits a frame and 16 bytes a pageblock: 0.28 bytes a frame.
    /// The bits record which frames are free and which blocks are with callers. Each allocation and each free changes
    /// them in one atomic step.
    ///
    /// A free is refused for the same reasons as with words: a wrong order, a frame inside a block, a block that is
    /// free or on a list, memory that was never added. If two CPUs free the same block below order 9 at the same
    /// instant, one of them is always refused; with words both may succeed.
    ///
    /// Features that need a word are missing: user slots and their checks ([`FrameUser`](crate::frame::FrameUser)),
    /// `poison`, and [`Cpu::hwpoison`](crate::Cpu::hwpoison). For a block below order 9 the requested type is not
    /// recorded, so compaction and [`Cpu::alloc_contig_range`](crate::Cpu::alloc_contig_range) move no such block.
    Compact,
}

impl Engine {
    /// Whether free memory is kept as bits.
    pub(crate) const fn has_maps(self) -> bool {
        !cfg!(feature = "settings") || !matches!(self, Self::Linux)
    }

    /// Whether frames have words.
    pub(crate) const fn has_words(self) -> bool {
        !cfg!(feature = "settings") || !matches!(self, Self::Compact)
    }
}

/// Which orders have per-CPU lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PcpOrders {
    /// No order: every call takes the zone lock.
    None,
    /// Order 0 (Linux up to v5.12).
    Zero,
    /// Orders 0 to 3 (later kernels without huge pages).
    UpToCostly,
    /// Orders 0 to 3, and the huge order 9 (later kernels with huge pages).
    UpToCostlyAndHuge,
    /// Orders 0 to 9.
    #[default]
    UpToHuge,
}

mod settings;

#[cfg(feature = "settings")]
pub use settings::Config;
pub use settings::{Experiment, PcpFixed};

/// The configuration without the feature `settings`: the default one, which the compiler knows. Its settings can be
/// read.
#[cfg(not(feature = "settings"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Config(());

#[cfg(not(feature = "settings"))]
impl Config {
    /// The only configuration.
    #[must_use]
    pub const fn framewright() -> Self {
        Self(())
    }
}

#[cfg(not(feature = "settings"))]
impl core::ops::Deref for Config {
    type Target = settings::Config;

    #[inline(always)]
    fn deref(&self) -> &settings::Config {
        &const { settings::Config::framewright() }
    }
}
