//! Counters with the kernel's names, of events off the fast path.
//!
//! Each counter is one shared word, which any CPU may read. Those of zones and nodes change by a relaxed addition.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Platform, Word};

macro_rules! events {
    (
        $(#[$doc:meta])* $plain:ident,
        $words:ident,
        [$($(#[$elsewhere_doc:meta])* $elsewhere:ident,)*],
        $($(#[$field_doc:meta])* $name:ident,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $plain {
            $($(#[$elsewhere_doc])* pub $elsewhere: u64,)*
            $($(#[$field_doc])* pub $name: u64,)*
        }

        impl $plain {
            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [
                    $((stringify!($elsewhere), self.$elsewhere),)*
                    $((stringify!($name), self.$name),)*
                ]
                .into_iter()
            }
        }

        impl core::ops::AddAssign for $plain {
            fn add_assign(&mut self, more: Self) {
                $(self.$elsewhere += more.$elsewhere;)*
                $(self.$name += more.$name;)*
            }
        }

        /// Shared words of the counters of the same names. Counters that are counted elsewhere have none.
        #[repr(C, align(64))]
        pub(crate) struct $words<P: Platform> { $(pub(crate) $name: P::Word,)* }

        impl<P: Platform> $words<P> {
            pub(crate) fn new() -> Self {
                Self { $($name: P::Word::new(0),)* }
            }

            pub(crate) fn read(&self) -> $plain {
                $plain { $($elsewhere: 0,)* $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

/// Adds `by` to a counter.
pub(crate) fn count(word: &impl Word, by: u64) {
    if by > 0 {
        word.fetch_add(by, Relaxed);
    }
}

events! {
    /// Events of one zone. In `/proc/vmstat` the zone type follows each of these names.
    ZoneEvents, ZoneWords,
    [],
    /// Pages that background reclaim scanned.
    pgscan_kswapd,
    /// Pages that direct and zone reclaim scanned.
    pgscan_direct,
    /// Pages that background reclaim freed.
    pgsteal_kswapd,
    /// Pages that direct and zone reclaim freed.
    pgsteal_direct,
}

events! {
    /// Events of one node.
    NodeEvents, NodeWords,
    // Counted in the per-CPU lists, see `Allocator::node_events`.
    [
        /// Blocks taken on this node that were wanted on this node. Each CPU counts them in its own words when a refill
        /// takes them from the buddy lists: the fast path counts nothing.
        numa_hit,
        /// Blocks taken on this node that were wanted on another node.
        numa_miss,
        /// Blocks wanted on this node that were taken on another node.
        numa_foreign,
        /// Blocks taken on this node by one of its own CPUs.
        numa_local,
        /// Blocks taken on this node by a CPU of another node.
        numa_other,
    ],
    /// Requests of this node's CPUs that reclaimed directly.
    allocstall,
    /// Slab objects scanned.
    slabs_scanned,
    /// Rounds of background reclaim.
    pageoutrun,
    /// Rounds after which a zone was immediately below its low mark again.
    kswapd_low_wmark_hit_quickly,
    /// Rounds after which a zone was immediately below its high mark again.
    kswapd_high_wmark_hit_quickly,
    /// Zones of this node on which zone reclaim scanned.
    zone_reclaim_scans,
    /// Zone reclaims that freed less than was wanted.
    zone_reclaim_failed,
    /// Requests that compacted directly.
    compact_stall,
    /// Requests that compacted directly and found no block afterwards.
    compact_fail,
    /// Requests that compacted directly and found a block afterwards.
    compact_success,
    /// Frames that the migration scanner passed.
    compact_migrate_scanned,
    /// Frames that the free scanner passed.
    compact_free_scanned,
    /// Pages isolated by the two scanners.
    compact_isolated,
    /// Pages moved.
    pgmigrate_success,
    /// Pages that could not be moved.
    pgmigrate_fail,
    /// OOM kills.
    oom_kill,
    /// Set-ups of this node's zonelist cache. Linux does not count them, nor the next three.
    zlc_set_up,
    /// Set-ups that wiped the cache.
    zlc_zapped,
    /// Zones skipped because the cache marks them as full.
    zlc_skipped,
    /// Times a reclaimer was entered again from within, and refused.
    reclaim_refused,
}

events! {
    /// Events of per-CPU lists, counted by their owner CPU alone.
    PcpEvents, PcpWords,
    [],
    /// Refills that brought at least one block.
    refills,
    /// Base pages that refills brought.
    refilled_pages,
    /// Drains.
    drains,
    /// Base pages that drains removed.
    drained_pages,
    /// Blocks taken past the lists, under the zone lock.
    direct_allocs,
    /// Base pages of blocks taken past the lists.
    direct_alloc_pages,
    /// Blocks freed past the lists, under the zone lock.
    direct_frees,
    /// Base pages of blocks freed past the lists.
    direct_free_pages,
    /// Times this CPU took the zone lock.
    lock_acquisitions,
    /// Times this CPU had to wait for the zone lock.
    lock_waits,
    /// Nanoseconds this CPU waited for the zone lock (with `lock_timing`).
    lock_wait_ns,
    /// Nanoseconds this CPU held the zone lock (with `lock_timing`).
    lock_hold_ns,
    /// Base pages found bad and taken out of use.
    bad_pages,
    /// Blocks that were written to after they were freed (with `poison`).
    poison_overwrites,
    /// Blocks taken here that were wanted on this zone's node. Counted in refills, when they leave the buddy lists.
    numa_hit,
    /// Blocks taken here that were wanted on another node.
    numa_miss,
    /// Blocks wanted on this zone's node that were taken on another node.
    numa_foreign,
}
