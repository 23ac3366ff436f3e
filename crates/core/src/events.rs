//! Counters with the kernel's names, for what is counted off the fast path and by several CPUs at once.
//!
//! Each is one shared word: a relaxed addition, no order, read by anyone. Per-CPU lists count for themselves
//! (see [`PcpEvents`](crate::pcp::PcpEvents)), because there the owner is the only writer.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Platform, Word};

macro_rules! events {
    (
        $(#[$doc:meta])* $plain:ident,
        $words:ident,
        [$($(#[$other_doc:meta])* $other:ident,)*],
        $($(#[$field_doc:meta])* $name:ident,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $plain {
            $($(#[$other_doc])* pub $other: u64,)*
            $($(#[$field_doc])* pub $name: u64,)*
        }

        impl $plain {
            /// Names, in order.
            pub const NAMES: &'static [&'static str] =
                &[$(stringify!($other),)* $(stringify!($name),)*];

            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [
                    $((stringify!($other), self.$other),)*
                    $((stringify!($name), self.$name),)*
                ]
                .into_iter()
            }
        }

        impl core::ops::AddAssign for $plain {
            fn add_assign(&mut self, other: Self) {
                $(self.$other += other.$other;)*
                $(self.$name += other.$name;)*
            }
        }

        /// The shared words of the counters of the same names; those counted elsewhere have none.
        #[repr(C, align(64))]
        pub(crate) struct $words<P: Platform> { $(pub(crate) $name: P::Word,)* }

        impl<P: Platform> $words<P> {
            pub(crate) fn new() -> Self {
                Self { $($name: P::Word::new(0),)* }
            }

            pub(crate) fn read(&self) -> $plain {
                $plain { $($other: 0,)* $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

/// Counts `by` more.
pub(crate) fn count(word: &impl Word, by: u64) {
    if by > 0 {
        word.fetch_add(by, Relaxed);
    }
}

events! {
    /// What happened to one zone. `/proc/vmstat` has the zone type's name behind each of these.
    ZoneEvents, ZoneWords,
    [],
    /// Pages that background reclaim looked at.
    pgscan_kswapd,
    /// Pages that direct and zone reclaim looked at.
    pgscan_direct,
    /// Pages that background reclaim freed.
    pgsteal_kswapd,
    /// Pages that direct and zone reclaim freed.
    pgsteal_direct,
}

events! {
    /// What happened on one node.
    NodeEvents, NodeWords,
    // Counted in the per-CPU lists, see `Allocator::node_events`.
    [
        /// Blocks taken here that were wanted here. Counted by each CPU for itself, where they leave the buddy lists, in
        /// refills: the fast path counts nothing.
        numa_hit,
        /// Blocks taken here that were wanted on another node.
        numa_miss,
        /// Blocks wanted here that were taken on another node.
        numa_foreign,
        /// Blocks taken here by a CPU of this node.
        numa_local,
        /// Blocks taken here by a CPU of another node.
        numa_other,
    ],
    /// Requests of this node's CPUs that reclaimed directly.
    allocstall,
    /// Slab objects looked at.
    slabs_scanned,
    /// Rounds of background reclaim.
    pageoutrun,
    /// Rounds after which a zone was below its low mark again at once.
    kswapd_low_wmark_hit_quickly,
    /// Rounds after which a zone was below its high mark again at once.
    kswapd_high_wmark_hit_quickly,
    /// Zones of this node on which zone reclaim scanned.
    zone_reclaim_scans,
    /// Those of them that freed less than was wanted.
    zone_reclaim_failed,
    /// Requests that compacted.
    compact_stall,
    /// Those of them that found no block after it.
    compact_fail,
    /// Those of them that did.
    compact_success,
    /// Frames that the migration scanner passed.
    compact_migrate_scanned,
    /// Frames that the free scanner passed.
    compact_free_scanned,
    /// Pages that the two have taken to work on.
    compact_isolated,
    /// Pages moved.
    pgmigrate_success,
    /// Pages that could not be moved.
    pgmigrate_fail,
    /// Times somebody was killed.
    oom_kill,
    /// Set-ups of this node's zonelist cache. Not a counter of Linux; nor are the next two.
    zlc_set_up,
    /// Those of them that wiped it.
    zlc_zapped,
    /// Zones that were passed over on its word.
    zlc_skipped,
    /// Times a reclaimer was entered again from within, and refused.
    reclaim_refused,
}
