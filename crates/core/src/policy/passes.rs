//! The passes of one allocation, from the first walk to the failure. [`run`] decides each step from the outcomes of the
//! last ones. It is pure: its caller, `cpu/passes.rs`, carries the steps out.
//!
//! | | v3.0 | v6.1 |
//! |---|---|---|
//! | 1 | walk at the low mark | the same |
//! | 2 | wake background reclaim, walk at the min mark | the same |
//! | 3 | reclaimers and victims: walk without marks; requests that cannot wait, or are in reclaim, drain and walk a last time, and end here | compaction first if the order is costly, or above 0 and not movable; then as v3.0 |
//! | 4 | compaction above order 0, walk | direct reclaim, walk, drain all lists, walk |
//! | 5 | direct reclaim, walk, drain all lists, walk | compaction above order 0, walk |
//! | 6 | no progress: walk at the high mark, then kill; go on at 2 | pause while reclaim could help, 16 times without progress; go on at 2 |
//! | 7 | pause by order and flags, walk at the min mark, go on at 3 | walk at the high mark, then kill; go on at 2 |
//!
//! A v3.0 victim fails after its walk without marks; a v6.1 victim does not kill.
//!
//! # Differences from Linux
//! - Lists are drained once before a failure also without a reclaimer: such an allocator must be able to hand out its
//!   last page.
//! - Unless [`Means::as_linux`]: a request that cannot wait drains its own CPU's lists before it fails; a reclaimer or
//!   a victim holds no mark in the walk after a drain either; an order-0 request that cannot wait may use the pages
//!   reserved for high orders, as in Linux from v6.12 on; and under v6.1 movable blocks up to order 3 are compacted for
//!   first, too: a compaction moves little more than the block, where reclaim frees 32 pages, and then some.
//! - Rounds are bounded ([`Limits`]). Linux v3.0 retries orders up to 3 without a bound, because its OOM killer always
//!   finds a victim in the end.

use super::Generation;
use super::watermark::Access;
use crate::units::{COSTLY_ORDER, Order};

/// Most rounds of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Rounds in a row that freed nothing. Linux v6.1: 16.
    pub without_progress: u32,
    /// Rounds altogether: the bound for a reclaimer that reports progress without making any.
    pub rounds: u32,
}

impl Limits {
    /// 16 rounds without progress, 1024 altogether.
    pub const DEFAULT: Self = Self { without_progress: 16, rounds: 1024 };
}

/// Flags of a request: how far it goes, and which reserves it may use. The names are those of Linux' `__GFP_…`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flags(u32);

impl Flags {
    /// Waits, retries small orders, and may have pages written back, like most requests (`GFP_KERNEL`).
    pub const NONE: Self = Self(0);
    /// Important: may use half of the min mark (`__GFP_HIGH`).
    pub const HIGH: Self = Self(1);
    /// Cannot wait: does not reclaim, compact or drain, and may go further below the mark.
    pub const NO_WAIT: Self = Self(1 << 1);
    /// Urgent, and from a context that must not wait (`GFP_ATOMIC`).
    pub const ATOMIC: Self = Self(Self::HIGH.0 | Self::NO_WAIT.0);
    /// Fails rather than retries (`__GFP_NORETRY`).
    pub const NO_RETRY: Self = Self(1 << 2);
    /// Retries costly orders, too (`__GFP_REPEAT`, later `__GFP_RETRY_MAYFAIL`).
    pub const REPEAT: Self = Self(1 << 3);
    /// Never fails, and waits without a bound if it must (`__GFP_NOFAIL`).
    pub const NO_FAIL: Self = Self(1 << 4);
    /// Takes from the first node's own zones only (`__GFP_THISNODE`).
    pub const THIS_NODE: Self = Self(1 << 5);
    /// Must not cause write-back: the caller holds locks that write-back needs (no `__GFP_FS`).
    pub const NO_WRITE: Self = Self(1 << 6);
    /// Must not use the reserves, even if the caller otherwise could (`__GFP_NOMEMALLOC`).
    pub const NO_RESERVES: Self = Self(1 << 7);
    /// The caller frees memory soon, and needs a little for this (`TIF_MEMDIE`, `PF_MEMALLOC`).
    pub const VICTIM: Self = Self(1 << 8);
    /// Does not wake background reclaim (no `__GFP_KSWAPD_RECLAIM`).
    pub const NO_WAKE: Self = Self(1 << 9);
    /// The block must hold zeroes (`__GFP_ZERO`). Needs a direct map.
    pub const ZERO: Self = Self(1 << 10);

    /// The flags of both sets.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The flags of this set that are not in `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// Properties of a request that the passes depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Order of the block.
    pub order: Order,
    /// Whether the request is for movable memory.
    pub movable: bool,
    /// How far the request goes.
    pub flags: Flags,
    /// The CPU is already reclaiming.
    pub reclaiming: bool,
}

/// Helpers of the request, and properties of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Means {
    /// Zones keep watermarks. Without them all walks are equal.
    pub marks: bool,
    /// The request has a reclaimer.
    pub reclaim: bool,
    /// The request has a mover.
    pub compact: bool,
    /// Whether a request fails where Linux v6.1 lets it fail, although there is memory that it may use: on its CPU's
    /// own lists, or reserved for high orders.
    pub as_linux: bool,
}

/// Mark that a walk holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mark {
    /// No mark.
    None,
    /// The min mark.
    Min,
    /// The low mark.
    Low,
    /// The high mark: used before a kill, because another CPU may have freed many pages.
    High,
}

/// A walk over the zonelist.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Walk {
    /// The mark to hold.
    pub mark: Mark,
    /// Reserves that the request may use.
    pub access: Access,
    /// Whether the walk keeps to the allowed nodes.
    pub allowed_only: bool,
}

impl Walk {
    /// A walk for a request without flags.
    #[must_use]
    pub const fn plain(mark: Mark, movable: bool) -> Self {
        let cma = movable;
        let access = Access { high: false, harder: false, oom_victim: false, highatomic: false, cma };
        Self { mark, access, allowed_only: true }
    }
}

/// Next step of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Walk over the zonelist; a block found ends the allocation.
    Walk(Walk),
    /// Wake background reclaim of the zones in the list that are low.
    Wake,
    /// Compact the zones of the request.
    Compact,
    /// Reclaim directly.
    Reclaim,
    /// Drain all per-CPU lists; for a request that cannot wait, this CPU's only.
    Drain,
    /// Check whether any zone could serve the request if all reclaimable pages were free.
    Assess,
    /// Wait for a congested device, at most 20 ms.
    Pause,
    /// Kill a process.
    Kill,
}

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// [`Step::Walk`]: no block. [`Step::Reclaim`]: no progress. [`Step::Assess`] and [`Step::Kill`]: no.
    No,
    /// [`Step::Walk`]: a block. [`Step::Assess`] and [`Step::Kill`]: yes.
    Yes,
    /// Reclaim made progress and freed this number of pages. May be 0 in v3.0, where a zone that is still reclaimable
    /// counts.
    Progress(u64),
}

impl From<bool> for Outcome {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// A walk has found a block.
struct Found;

/// The passes of one request.
struct Passes<F> {
    generation: Generation,
    facts: Facts,
    means: Means,
    limits: Limits,
    act: F,
    /// Pages reclaimed for this request.
    reclaimed: u64,
    /// Rounds in a row without progress.
    idle: u32,
    rounds: u32,
    /// Lists were drained since the last reclaim.
    drained: bool,
    /// A process was killed, and the request has not walked since.
    killed: bool,
}

/// Goes through the passes of a request. `act` carries out a step. Returns when a walk has found a block, or when the
/// request fails.
pub fn run(
    generation: Generation,
    facts: Facts,
    means: Means,
    limits: Limits,
    act: impl FnMut(Step) -> Outcome,
) {
    let passes = Passes {
        generation,
        facts,
        means,
        limits,
        act,
        reclaimed: 0,
        idle: 0,
        rounds: 0,
        drained: false,
        killed: false,
    };
    let (Ok(()) | Err(Found)) = passes.all();
}

impl<F: FnMut(Step) -> Outcome> Passes<F> {
    fn all(mut self) -> Result<(), Found> {
        self.walk(Walk::plain(Mark::Low, self.facts.movable))?;
        (self.act)(Step::Wake);
        // Without marks the first walk was the same.
        if self.means.marks {
            self.walk(self.slow(Mark::Min))?;
        }
        let early = self.facts.order > COSTLY_ORDER || !self.facts.movable || !self.means.as_linux;
        if early && self.may_compact_in(Generation::V6_1) {
            self.compact()?;
        }
        while self.round()? {
            (self.act)(Step::Pause);
            // Linux v3.0 `rebalance`: other CPUs may have freed pages. After a kill `restart`; v6.1 `retry`.
            if self.generation == Generation::V6_1 || self.killed {
                (self.act)(Step::Wake);
                self.killed = false;
            }
            self.walk(self.slow(Mark::Min))?;
        }
        Ok(())
    }

    /// One round of reclaim and compaction. Returns whether the request pauses and tries another one.
    fn round(&mut self) -> Result<bool, Found> {
        let order = self.facts.order;
        let (no_retry, no_fail) = (self.has(Flags::NO_RETRY), self.has(Flags::NO_FAIL));
        self.rounds = self.rounds.saturating_add(1);
        if self.is_exempt() {
            self.walk(self.exempt())?;
        }
        if self.has(Flags::NO_WAIT) && self.means.as_linux {
            return Ok(false);
        }
        let victim = self.has(Flags::VICTIM) && self.generation == Generation::V3_0 && !no_fail;
        if !self.may_help() || victim {
            return self.finish();
        }
        if self.may_compact_in(Generation::V3_0) {
            self.compact()?;
        }
        let progress = self.reclaim()?;
        if self.may_compact_in(Generation::V6_1) {
            self.compact()?;
        }
        let counts = self.generation == Generation::V3_0 || order <= COSTLY_ORDER;
        self.idle = if counts && progress > Some(0) { 0 } else { self.idle.saturating_add(1) };
        if !self.means.reclaim && !no_fail {
            return self.finish();
        }
        match self.generation {
            Generation::V3_0 if progress.is_none() && !self.has(Flags::NO_WRITE) && !no_retry => {
                self.last_resort()
            }
            Generation::V3_0 => self.retry_v3_0(),
            Generation::V6_1 if no_retry || (order > COSTLY_ORDER && !self.has(Flags::REPEAT)) => self.fail(),
            Generation::V6_1 if self.is_within_limits() && (self.act)(Step::Assess) == Outcome::Yes => {
                Ok(true)
            }
            Generation::V6_1 => self.last_resort(),
        }
    }

    /// Direct reclaim, and the walks after it. Returns the pages freed; `None` without progress.
    fn reclaim(&mut self) -> Result<Option<u64>, Found> {
        self.drained = false;
        let outcome = if self.means.reclaim { (self.act)(Step::Reclaim) } else { Outcome::No };
        let progress = if let Outcome::Progress(pages) = outcome { Some(pages) } else { None };
        if let Some(pages) = progress {
            self.reclaimed = self.reclaimed.saturating_add(pages);
            self.walk(self.slow(Mark::Min))?;
        }
        // Without a reclaimer only a drain can help. A request that must not fail waits until other CPUs free pages;
        // these may be on per-CPU lists.
        if progress.is_some() || !self.means.reclaim || self.has(Flags::NO_FAIL) {
            self.drain()?;
            self.drained = true;
        }
        Ok(progress)
    }

    fn compact(&mut self) -> Result<(), Found> {
        (self.act)(Step::Compact);
        self.walk(self.slow(Mark::Min))
    }

    /// A drain of all lists, and the walk after it.
    fn drain(&mut self) -> Result<(), Found> {
        (self.act)(Step::Drain);
        let exempt = self.is_exempt() && !self.means.as_linux;
        self.walk(if exempt { self.exempt() } else { self.slow(Mark::Min) })
    }

    fn retry_v3_0(&mut self) -> Result<bool, Found> {
        let order = self.facts.order;
        let repeats = self.has(Flags::REPEAT) && self.reclaimed < order.pages();
        let wanted = !self.has(Flags::NO_RETRY) && (order <= COSTLY_ORDER || repeats);
        if wanted && self.is_within_limits() { Ok(true) } else { self.fail() }
    }

    /// A walk at the high mark, because another CPU may have freed many pages; if it finds no block, a kill.
    fn last_resort(&mut self) -> Result<bool, Found> {
        self.walk(self.slow(Mark::High))?;
        let may_kill = self.facts.order <= COSTLY_ORDER && !self.has(Flags::VICTIM);
        if may_kill && (self.act)(Step::Kill) == Outcome::Yes && self.rounds < self.limits.rounds {
            (self.idle, self.killed) = (0, true);
            return Ok(true);
        }
        match self.generation {
            Generation::V3_0 => self.retry_v3_0(),
            Generation::V6_1 => self.fail(),
        }
    }

    /// Fails, unless the request must not.
    fn fail(&mut self) -> Result<bool, Found> {
        if self.has(Flags::NO_FAIL) { Ok(true) } else { self.finish() }
    }

    /// A drain of all lists, unless they are drained already, and the last walk.
    fn finish(&mut self) -> Result<bool, Found> {
        if self.drained {
            return Ok(false);
        }
        self.drain()?;
        Ok(self.has(Flags::NO_FAIL) && self.may_help())
    }

    const fn has(&self, flag: Flags) -> bool {
        self.facts.flags.has(flag)
    }

    fn walk(&mut self, walk: Walk) -> Result<(), Found> {
        if (self.act)(Step::Walk(walk)) == Outcome::Yes { Err(Found) } else { Ok(()) }
    }

    /// A walk after the first one.
    const fn slow(&self, mark: Mark) -> Walk {
        let mut walk = Walk::plain(mark, self.facts.movable);
        let may_use_reserves = !self.has(Flags::NO_RESERVES);
        // It may go further below the mark because it cannot wait.
        let harder = self.has(Flags::NO_WAIT) && may_use_reserves;
        walk.access.high = self.has(Flags::HIGH);
        walk.access.harder = harder;
        walk.access.oom_victim = self.has(Flags::VICTIM) && may_use_reserves;
        walk.access.highatomic = harder && (self.facts.order.get() > 0 || !self.means.as_linux);
        walk.allowed_only = !harder;
        walk
    }

    /// A walk without marks, over all nodes.
    const fn exempt(&self) -> Walk {
        Walk { allowed_only: false, ..self.slow(Mark::None) }
    }

    const fn is_exempt(&self) -> bool {
        (self.facts.reclaiming || self.has(Flags::VICTIM)) && !self.has(Flags::NO_RESERVES)
    }

    /// Whether the request may reclaim and compact.
    const fn may_help(&self) -> bool {
        !self.has(Flags::NO_WAIT) && !self.facts.reclaiming
    }

    /// Whether it compacts, at a point where this generation does.
    fn may_compact_in(&self, generation: Generation) -> bool {
        self.generation == generation
            && self.means.compact
            && self.facts.order > Order::ZERO
            && self.may_help()
    }

    const fn is_within_limits(&self) -> bool {
        self.idle <= self.limits.without_progress && self.rounds < self.limits.rounds
    }
}

#[cfg(test)]
mod tests;
