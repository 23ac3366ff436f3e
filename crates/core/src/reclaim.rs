//! Helpers for a shortage of memory: the traits that a user implements, and the state of each node and CPU about
//! reclaim. [`cpu`](crate::cpu) decides when a helper is called, for which zone and how hard, by the rules of
//! [`policy::reclaim`](crate::policy::reclaim).
//!
//! # Guarantees for a reclaimer
//! The allocator holds no lock while a reclaimer runs. The reclaimer may free through [`Release`], or through any other
//! handle of the CPU it was called on. It may allocate: such a request may use the reserves, starts no reclaim, and
//! fails immediately if there is nothing (Linux: `PF_MEMALLOC`).
//!
//! # Limits of a reclaimer
//! It runs inside a call of the CPU, which stays pinned. Where a pinned CPU cannot sleep, with interrupts or preemption
//! off, no helper of a request can sleep. Such a kernel allocates without helpers; if that fails, it gives up the pin,
//! reclaims, and allocates again. Linux can sleep in direct reclaim, because it locks its lists for one access only.
//!
//! # No trust in a reclaimer
//! The counts that a reclaimer returns go into counters and spread the work over zones. Progress is measured by the
//! pages that came back. The number of rounds is bounded. If a reclaimer panics, the flags of the zone and the CPU are
//! cleared while the stack unwinds.

#![expect(
    unsafe_code,
    reason = "a helper that frees a block, or answers that it has moved one, must own that block"
)]

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release as Publish};

use crate::error::FreeError;
use crate::events::NodeWords;
use crate::platform::{Platform, Word, update};
pub use crate::policy::reclaim::Reclaimable;
use crate::units::{CpuId, Migratetype, NodeId, NodeMask, Order, Pfn, ZoneId, ZoneType};
use crate::zonelist::Hints;

/// Kind of reclaim that called the reclaimer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum By {
    /// An allocation that found no block (direct reclaim).
    Direct,
    /// Background reclaim (kswapd).
    Background,
    /// Zone reclaim, before a request goes on to the next zone.
    Zone,
}

/// One call of a reclaimer: which pages to free, how many, and how hard to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimRequest<'r> {
    /// Kind of reclaim that calls.
    pub by: By,
    /// Zone to free pages of.
    pub zone: ZoneId,
    /// Node of the zone.
    pub node: NodeId,
    /// Type of the zone.
    pub kind: ZoneType,
    /// Frames of the zone.
    pub ranges: &'r [Range<Pfn>],
    /// Order of the allocation that needs the pages.
    pub order: Order,
    /// How hard to try: scan `pages >> priority` of each list.
    pub priority: u8,
    /// Base pages after which the reclaimer may stop.
    pub target: u64,
    /// Whether dirty pages may be written.
    pub may_write: bool,
    /// Whether mapped pages may be unmapped, and anonymous ones swapped.
    pub may_unmap: bool,
    /// Whether the reclaimer may wait for a device.
    pub may_wait: bool,
}

impl ReclaimRequest<'_> {
    /// A direct reclaim of no zone yet, without a bound.
    pub(crate) const ANY: Self = Self {
        by: By::Direct,
        zone: ZoneId(0),
        node: NodeId(0),
        kind: ZoneType::Normal,
        ranges: &[],
        order: Order::ZERO,
        priority: 0,
        target: u64::MAX,
        may_write: false,
        may_unmap: true,
        may_wait: true,
    };

    /// Whether a frame is in the zone to reclaim.
    #[must_use]
    pub fn wants(&self, pfn: Pfn) -> bool {
        self.ranges.iter().any(|range| range.contains(&pfn))
    }
}

/// Result of a call of a reclaimer, in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Pages scanned, including those that could not be freed.
    pub scanned: u64,
    /// Pages freed.
    pub freed: u64,
}

impl core::ops::AddAssign for Reclaimed {
    fn add_assign(&mut self, more: Self) {
        self.scanned = self.scanned.saturating_add(more.scanned);
        self.freed = self.freed.saturating_add(more.freed);
    }
}

/// Handle through which a reclaimer frees pages: the CPU that called it.
///
/// A reclaimer whose blocks are owned by handles that free on drop only drops them. It needs no `unsafe`.
pub trait Release {
    /// Frees a block, like [`Cpu::free`](crate::cpu::Cpu::free).
    ///
    /// # Safety
    /// The block is one of [`allocator`](Self::allocator)'s. If it is allocated, it is the caller's own: from now on no
    /// other code owns it, frees it, or uses its memory or user slots.
    ///
    /// # Errors
    /// The reason of a refused free. The state is unchanged then.
    unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError>;

    /// Address of the [`Allocator`](crate::Allocator) that takes the pages. A reclaimer with pages of one allocator
    /// compares it before it frees.
    fn allocator(&self) -> *const ();

    /// Base pages freed through this handle so far.
    fn freed(&self) -> u64;

    /// The CPU that frees.
    fn cpu(&self) -> CpuId;
}

/// A user of memory that can free some of it on request, such as a page cache.
pub trait Reclaim {
    /// Frees pages of the zone in `ask`.
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed;

    /// Shrinks caches of small objects. The freed pages may be in any zone.
    fn shrink(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let _ = (ask, to);
        Reclaimed::default()
    }

    /// Pages that the user has in a zone. Without an implementation, the allocator assumes that there are many.
    fn reclaimable(&self, zone: ZoneId) -> Reclaimable {
        let _ = zone;
        Reclaimable::UNKNOWN
    }

    /// Waits until the device of the user is no longer congested, `ms` milliseconds at most. A device is congested,
    /// not a zone: as Linux passes its preferred zone, `zone` is the first of the zonelist, or of the node if reclaim
    /// runs in the background, whichever zones were scanned.
    fn wait_if_congested(&self, zone: ZoneId, ms: u32) {
        let _ = (zone, ms);
    }

    /// Starts writing `pages` dirty pages, without waiting for them.
    fn wake_flushers(&self, pages: u64) {
        let _ = pages;
    }

    /// The last resort, like Linux' OOM killer: ends a user of memory, which frees all that it has. Returns whether
    /// there was one.
    fn kill(&self) -> bool {
        false
    }
}

/// Answer of a mover about one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Migrated {
    /// The owner uses `to` from now on. The allocator frees `from`.
    Moved,
    /// The block stays at `from`. The allocator frees `to`.
    Stays,
}

/// An owner of movable blocks that can move them.
///
/// # Safety
/// Any allocated movable block may be offered as `from`, whichever owner it has. An implementor answers
/// [`Migrated::Moved`] only if
/// 1. the block at `from` is its own, allocated with `order`, and no other code frees it or uses its memory or user
///    slots from then on: the allocator frees it;
/// 2. none of its threads frees or moves `from` from the moment when it decides to move the block until it returns.
///
/// With [`Migrated::Stays`] it keeps no part of `to`: the allocator frees `to`.
pub unsafe trait Migrate {
    /// Copies the block at `from` to `to`, and uses `to` from now on. Both have `order`.
    ///
    /// Answers [`Migrated::Stays`] if the block is not, or no longer, the implementor's own. If it panics, the
    /// allocator frees neither block: the implementor owns `to`, too.
    ///
    /// # Safety
    /// `to` is an allocated block of `order` of the implementor's allocator, and only the caller owns it. After
    /// [`Migrated::Moved`] the implementor owns `to`, and the caller owns the block at `from`.
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated;

    /// Whether the owner would now move this block of `order` at `from`. `asked` is the type that it was requested
    /// with: movable or reclaimable. The allocator asks this before it offers a block to [`migrate`](Self::migrate),
    /// which decides; the block may be free by now.
    ///
    /// Compaction under a preset of Linux asks about movable blocks only. With maps pageblocks or parts of them are
    /// emptied, and ranges are [allocated](crate::Cpu::alloc_contig_range), only if all their blocks would move.
    ///
    /// The default moves blocks that were requested as movable. A page cache that requests reclaimable blocks, so that
    /// they share pageblocks, and can move them answers `true` for these.
    fn can_move(&self, from: Pfn, order: Order, asked: Migratetype) -> bool {
        let _ = (from, order);
        asked == Migratetype::Movable
    }
}

/// Asks `migrate` to move the block at `from` to `to`, which the calling CPU has allocated for this. Returns whether it
/// moved: then the CPU frees `from`, otherwise `to`.
pub(crate) fn has_moved(migrate: &dyn Migrate, from: Pfn, to: Pfn, order: Order) -> bool {
    // SAFETY: both callers have allocated `to` with `order`, no user knows it yet, and they free one of the two blocks.
    unsafe { migrate.migrate(from, to, order) == Migrated::Moved }
}

/// Wakes the thread that runs a node's background reclaim.
pub trait Background {
    /// Wakes the thread: it sleeps, or is about to sleep, and there is work now. Must not wait.
    fn wake(&self, node: NodeId);
}

/// The helpers of a request. Each is optional: the request skips the steps that need a missing one.
#[derive(Clone, Copy, Default)]
pub struct Helpers<'h> {
    pub(crate) reclaim: Option<&'h dyn Reclaim>,
    pub(crate) migrate: Option<&'h dyn Migrate>,
    pub(crate) background: Option<&'h dyn Background>,
}

impl<'h> Helpers<'h> {
    /// No helpers.
    pub const NONE: Self = Self { reclaim: None, migrate: None, background: None };

    /// Adds a helper that gives pages back.
    #[must_use]
    pub const fn with_reclaim(self, reclaim: &'h dyn Reclaim) -> Self {
        Self { reclaim: Some(reclaim), ..self }
    }

    /// Adds a helper that moves blocks.
    #[must_use]
    pub const fn with_migrate(self, migrate: &'h dyn Migrate) -> Self {
        Self { migrate: Some(migrate), ..self }
    }

    /// Adds a helper that wakes background reclaim.
    #[must_use]
    pub const fn with_background(self, background: &'h dyn Background) -> Self {
        Self { background: Some(background), ..self }
    }

    /// The helper that gives pages back: for a reclaimer that passes requests on.
    #[must_use]
    pub const fn reclaimer(&self) -> Option<&'h dyn Reclaim> {
        self.reclaim
    }

    /// The helper that moves blocks: for a mover that passes requests on.
    #[must_use]
    pub const fn mover(&self) -> Option<&'h dyn Migrate> {
        self.migrate
    }
}

impl fmt::Debug for Helpers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helpers").finish_non_exhaustive()
    }
}

/// Request for background reclaim of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BackgroundRequest {
    /// The largest order wanted.
    pub order: Order,
    /// The highest zone type wanted.
    pub highest: ZoneType,
}

const SLEEPING: u64 = 1;
const ASKED: u64 = 2;
const ORDER: u32 = 8;
const HIGHEST: u32 = 16;

/// Wake-up word of a node's background reclaim. One word, so that no wake-up is lost:
///
/// `sleeping | asked << 1 | order << 8 | highest zone type << 16`. A CPU that wants background reclaim merges its order
/// and zone type into the word and clears `sleeping`; if that was set, the CPU must also wake the thread. The thread
/// sets `sleeping` by a compare-and-swap that succeeds only if nothing is requested.
pub(crate) struct Wakeup<P: Platform>(P::Word);

impl<P: Platform> Wakeup<P> {
    pub(crate) fn new() -> Self {
        Self(P::Word::new(0))
    }

    /// Requests background reclaim. Returns whether the thread sleeps and must be woken.
    pub(crate) fn request(&self, asked: BackgroundRequest) -> bool {
        let old = update(&self.0, AcqRel, |old| {
            let now = Self::unpack(old).map_or(asked, |before| BackgroundRequest {
                order: before.order.max(asked.order),
                highest: before.highest.max(asked.highest),
            });
            let word = ASKED | u64::from(now.order.get()) << ORDER | (now.highest as u64) << HIGHEST;
            (word != old).then_some(word)
        });
        old.is_some_and(|old| old & SLEEPING != 0)
    }

    fn unpack(word: u64) -> Option<BackgroundRequest> {
        let highest = ZoneType::ALL[(word >> HIGHEST & 3) as usize];
        (word & ASKED != 0).then_some(BackgroundRequest { order: Order::from_bits(word >> ORDER), highest })
    }

    /// Takes the request, if there is one.
    pub(crate) fn take(&self) -> Option<BackgroundRequest> {
        if self.0.load(Relaxed) & ASKED == 0 {
            return None;
        }
        Self::unpack(self.0.swap(0, AcqRel))
    }

    /// Marks the calling thread as about to sleep. If there is a request by now, takes it instead.
    pub(crate) fn sleep(&self) -> Option<BackgroundRequest> {
        match self.0.compare_exchange(0, SLEEPING, AcqRel, Acquire) {
            Ok(_) | Err(SLEEPING) => None,
            Err(_) => self.take(),
        }
    }
}

/// A memory node. Shared by all CPUs; each word is a hint, a request or a counter.
#[repr(C, align(128))]
pub struct Node<P: Platform> {
    pub(crate) hints: Hints<P>,
    pub(crate) wakeup: Wakeup<P>,
    /// Rounds of background reclaim in a row that freed nothing.
    failures: P::Word,
    pub(crate) events: NodeWords<P>,
    /// Nodes no further away than [`RECLAIM_DISTANCE`](crate::policy::reclaim::RECLAIM_DISTANCE).
    pub(crate) near: NodeMask,
    pub(crate) has_cpus: bool,
}

impl<P: Platform> fmt::Debug for Node<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("near", &self.near).finish_non_exhaustive()
    }
}

impl<P: Platform> Node<P> {
    pub(crate) fn new(near: NodeMask, has_cpus: bool) -> Self {
        Self {
            hints: Hints::new(),
            wakeup: Wakeup::new(),
            failures: P::Word::new(0),
            events: NodeWords::new(),
            near,
            has_cpus,
        }
    }

    /// Rounds of background reclaim in a row that freed nothing.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    pub(crate) fn set_failures(&self, failures: u64) {
        if self.failures() != failures {
            self.failures.store(failures, Relaxed);
        }
    }
}

/// Marks a CPU as reclaiming until it is dropped. A panic drops it, too.
pub(crate) struct Reclaiming<'a, P: Platform>(&'a P::Word);

impl<'a, P: Platform> Reclaiming<'a, P> {
    /// `context` is the CPU's own word. `None` if the CPU reclaims already.
    pub(crate) fn enter(context: &'a P::Word) -> Option<Self> {
        if Self::is_in(context) {
            return None;
        }
        // Only the CPU itself reads and writes its word.
        context.store(1, Publish);
        Some(Self(context))
    }

    /// Whether the CPU reclaims.
    pub(crate) fn is_in(context: &P::Word) -> bool {
        context.load(Relaxed) != 0
    }
}

impl<P: Platform> Drop for Reclaiming<'_, P> {
    fn drop(&mut self) {
        self.0.store(0, Publish);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::machine::Machine;
    use crate::units::MAX_ORDER;

    #[test]
    fn a_request_arrives_as_it_was_made_and_once() {
        for order in Order::all() {
            for highest in ZoneType::ALL {
                let wakeup = Wakeup::<Machine>::new();
                let asked = BackgroundRequest { order, highest };
                assert!(!wakeup.request(asked), "no thread sleeps");
                assert_eq!((wakeup.take(), wakeup.take()), (Some(asked), None));
            }
        }
        assert_eq!(Wakeup::<Machine>::unpack(SLEEPING), None);
    }

    #[test]
    fn requests_are_merged() {
        let wakeup = Wakeup::<Machine>::new();
        let small = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Movable };
        let low = BackgroundRequest { order: MAX_ORDER, highest: ZoneType::Dma };
        wakeup.request(small);
        wakeup.request(low);
        assert_eq!(wakeup.sleep(), Some(BackgroundRequest { order: MAX_ORDER, highest: ZoneType::Movable }));
    }

    struct Nothing;

    impl Reclaim for Nothing {
        fn reclaim(&self, _: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            Reclaimed::default()
        }
    }

    // SAFETY: it moves nothing.
    unsafe impl Migrate for Nothing {
        unsafe fn migrate(&self, _: Pfn, _: Pfn, _: Order) -> Migrated {
            Migrated::Stays
        }
    }

    #[test]
    fn a_helper_that_passes_requests_on_finds_the_others() {
        let all = Helpers::NONE.with_reclaim(&Nothing).with_migrate(&Nothing);
        assert!(all.reclaimer().is_some() && all.mover().is_some());
        assert!(Helpers::NONE.reclaimer().is_none() && Helpers::NONE.mover().is_none());
    }

    #[test]
    fn a_mover_moves_what_was_asked_for_as_movable() {
        let moved =
            Migratetype::ALL.into_iter().filter(|&asked| Nothing.can_move(Pfn(0), Order::ZERO, asked));
        assert!(moved.eq([Migratetype::Movable]));
    }

    /// Reading the word while the thread sleeps leaves it asleep: the next request wakes it.
    #[test]
    fn a_look_leaves_the_thread_asleep() {
        let wakeup = Wakeup::<Machine>::new();
        assert_eq!((wakeup.sleep(), wakeup.sleep(), wakeup.take()), (None, None, None));
        let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
        assert!(wakeup.request(asked), "it sleeps");
        assert!(!wakeup.request(asked), "it has been woken");
        assert_eq!(wakeup.take(), Some(asked));
    }
}
