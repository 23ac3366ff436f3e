//! The passes of one allocation, from the first walk to the failure, as a state machine: it decides each step from the
//! outcome of the last one. It is pure; `cpu/passes.rs` carries the steps out.
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
//!   a victim holds no mark in the walk after a drain either; and an order-0 request that cannot wait may use the pages
//!   reserved for high orders, as in Linux from v6.12 on.
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

/// Properties of a request that the passes depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Facts {
    /// Order of the block.
    pub order: Order,
    /// Whether the request is for movable memory.
    pub movable: bool,
    /// May wait: reclaim, compact, drain.
    pub can_wait: bool,
    /// Important: may use half of the min mark.
    pub high: bool,
    /// Fails rather than retries.
    pub no_retry: bool,
    /// Retries costly orders, too.
    pub repeat: bool,
    /// Never fails.
    pub no_fail: bool,
    /// May cause write-back. Only such a request may kill.
    pub may_write: bool,
    /// Uses no reserves, even if the other properties would allow it.
    pub no_reserves: bool,
    /// The CPU is already reclaiming.
    pub reclaiming: bool,
    /// The caller was chosen as an OOM victim, and frees memory soon.
    pub victim: bool,
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
    /// Whether progress of direct reclaim wipes the zonelist cache
    /// ([`clears_after_progress`](super::zlc::Rule::clears_after_progress)).
    pub forget: bool,
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
    /// Wipe the zonelist cache.
    Forget,
    /// Drain all per-CPU lists; for a request that cannot wait, this CPU's only.
    Drain,
    /// Check whether any zone could serve the request if all reclaimable pages were free.
    Assess,
    /// Wait for a congested device, at most 20 ms.
    Pause,
    /// Kill a process.
    Kill,
    /// Give up.
    Fail,
}

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The step is done; a walk found no block.
    Done,
    /// Reclaim made progress and freed this number of pages. May be 0 in v3.0, where a zone that is still reclaimable
    /// counts.
    Progress(u64),
    /// Reclaim made no progress.
    NoProgress,
    /// [`Step::Assess`]: yes. [`Step::Kill`]: a process was killed.
    Yes,
    /// [`Step::Assess`]: no. [`Step::Kill`]: no process was killed.
    No,
}

/// State of a request: its last step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    FirstWalk,
    Woken,
    SlowWalk,
    EarlyCompacted,
    EarlyWalk,
    ExemptWalk,
    Compacted,
    CompactWalk,
    Reclaimed,
    Forgotten,
    ReclaimWalk,
    Drained,
    DrainWalk,
    Assessed,
    HighWalk,
    Killed,
    Paused,
    Rewoken,
    RetryWalk,
    LastDrained,
    LastWalk,
}

/// The passes of one request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Passes {
    generation: Generation,
    facts: Facts,
    means: Means,
    limits: Limits,
    at: At,
    /// Whether the last direct reclaim made progress.
    progress: bool,
    /// Whether the last direct reclaim freed pages.
    gained: bool,
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

impl Passes {
    /// The passes of a request, and its first step: a walk at the low mark.
    #[must_use]
    pub const fn begin(generation: Generation, facts: Facts, means: Means, limits: Limits) -> (Self, Step) {
        let passes = Self {
            generation,
            facts,
            means,
            limits,
            at: At::FirstWalk,
            progress: false,
            gained: false,
            reclaimed: 0,
            idle: 0,
            rounds: 0,
            drained: false,
            killed: false,
        };
        let walk = Walk { mark: Mark::Low, access: passes.plain_access(), allowed_only: true };
        (passes, Step::Walk(walk))
    }

    const fn plain_access(&self) -> Access {
        Access { high: false, harder: false, oom_victim: false, highatomic: false, cma: self.facts.movable }
    }

    /// Whether the request may go further below the mark because it cannot wait.
    const fn harder(&self) -> bool {
        !self.facts.can_wait && !self.facts.no_reserves
    }

    const fn slow_walk(&self, mark: Mark) -> Step {
        Step::Walk(self.slow(mark))
    }

    /// A walk without marks, over all nodes.
    const fn exempt_walk(&self) -> Step {
        Step::Walk(Walk { allowed_only: false, ..self.slow(Mark::None) })
    }

    /// The walk after a drain.
    const fn last_walk(&self) -> Step {
        match self.exempt() && !self.means.as_linux {
            true => self.exempt_walk(),
            false => self.slow_walk(Mark::Min),
        }
    }

    const fn slow(&self, mark: Mark) -> Walk {
        let access = Access {
            high: self.facts.high,
            harder: self.harder(),
            oom_victim: self.facts.victim && !self.facts.no_reserves,
            highatomic: self.harder() && (self.facts.order.get() > 0 || !self.means.as_linux),
            ..self.plain_access()
        };
        Walk { mark, access, allowed_only: !self.harder() }
    }

    const fn exempt(&self) -> bool {
        (self.facts.reclaiming || self.facts.victim) && !self.facts.no_reserves
    }

    fn go(&mut self, at: At, step: Step) -> Step {
        self.at = at;
        step
    }

    /// The next step after the last one had `outcome`.
    pub fn next(&mut self, outcome: Outcome) -> Step {
        match self.at {
            At::FirstWalk => self.go(At::Woken, Step::Wake),
            // Without marks the first walk was the same.
            At::Woken if !self.means.marks => self.after_slow_walk(),
            At::Woken => self.go(At::SlowWalk, self.slow_walk(Mark::Min)),
            At::SlowWalk => self.after_slow_walk(),
            At::EarlyCompacted => self.go(At::EarlyWalk, self.slow_walk(Mark::Min)),
            At::EarlyWalk => self.begin_round(),
            At::ExemptWalk => self.without_exemption(),
            At::Compacted => self.go(At::CompactWalk, self.slow_walk(Mark::Min)),
            At::CompactWalk => match self.generation {
                Generation::V3_0 => self.reclaim(),
                Generation::V6_1 => self.end_round(),
            },
            At::Reclaimed => self.after_reclaim(outcome),
            At::Forgotten => self.go(At::ReclaimWalk, self.slow_walk(Mark::Min)),
            At::ReclaimWalk => self.go(At::Drained, Step::Drain),
            At::Drained => {
                self.drained = true;
                self.go(At::DrainWalk, self.last_walk())
            }
            At::DrainWalk => self.after_reclaim_walks(),
            At::Assessed if outcome == Outcome::Yes => self.go(At::Paused, Step::Pause),
            At::Assessed => self.last_resort(),
            At::HighWalk if self.facts.order <= COSTLY_ORDER && !self.facts.victim => {
                self.go(At::Killed, Step::Kill)
            }
            At::HighWalk => self.after_last_resort(false),
            At::Killed => self.after_last_resort(outcome == Outcome::Yes),
            // Linux v3.0 `rebalance`: other CPUs may have freed pages.
            At::Paused if self.generation == Generation::V3_0 && !self.killed => {
                self.go(At::RetryWalk, self.slow_walk(Mark::Min))
            }
            // Linux v3.0 `restart`, v6.1 `retry`.
            At::Paused => self.go(At::Rewoken, Step::Wake),
            At::Rewoken => {
                self.killed = false;
                self.go(At::RetryWalk, self.slow_walk(Mark::Min))
            }
            At::RetryWalk => self.begin_round(),
            At::LastDrained => self.go(At::LastWalk, self.last_walk()),
            At::LastWalk => self.fail(),
        }
    }

    fn after_slow_walk(&mut self) -> Step {
        let early = self.facts.order > COSTLY_ORDER || !self.facts.movable;
        if self.generation == Generation::V6_1 && self.may_compact() && early {
            return self.go(At::EarlyCompacted, Step::Compact);
        }
        self.begin_round()
    }

    const fn may_compact(&self) -> bool {
        self.means.compact && self.facts.order.get() > 0 && self.may_reclaim_at_all()
    }

    const fn may_reclaim_at_all(&self) -> bool {
        self.facts.can_wait && !self.facts.reclaiming
    }

    fn begin_round(&mut self) -> Step {
        self.rounds = self.rounds.saturating_add(1);
        if self.exempt() {
            return self.go(At::ExemptWalk, self.exempt_walk());
        }
        self.without_exemption()
    }

    fn without_exemption(&mut self) -> Step {
        if !self.facts.can_wait {
            return if self.means.as_linux { self.give_up() } else { self.finish() };
        }
        let victim = self.facts.victim && self.generation == Generation::V3_0 && !self.facts.no_fail;
        if self.facts.reclaiming || victim {
            return self.finish();
        }
        match self.generation {
            Generation::V3_0 if self.may_compact() => self.go(At::Compacted, Step::Compact),
            _ => self.reclaim(),
        }
    }

    fn reclaim(&mut self) -> Step {
        self.drained = false;
        self.progress = false;
        self.gained = false;
        if self.means.reclaim {
            return self.go(At::Reclaimed, Step::Reclaim);
        }
        // Without a reclaimer only a drain can help.
        self.go(At::Drained, Step::Drain)
    }

    fn after_reclaim(&mut self, outcome: Outcome) -> Step {
        if let Outcome::Progress(pages) = outcome {
            self.progress = true;
            self.gained = pages > 0;
            self.reclaimed = self.reclaimed.saturating_add(pages);
            if self.means.forget {
                return self.go(At::Forgotten, Step::Forget);
            }
            return self.go(At::ReclaimWalk, self.slow_walk(Mark::Min));
        }
        // A request that must not fail waits until other CPUs free pages; these may be on per-CPU lists.
        if self.facts.no_fail { self.go(At::Drained, Step::Drain) } else { self.after_reclaim_walks() }
    }

    /// Direct reclaim and the walks after it gave no block.
    fn after_reclaim_walks(&mut self) -> Step {
        match self.generation {
            Generation::V6_1 if self.may_compact() => self.go(At::Compacted, Step::Compact),
            _ => self.end_round(),
        }
    }

    /// Counts a round. Returns whether the limits allow another one.
    const fn count_round(&mut self) -> bool {
        let costly = self.facts.order.get() > COSTLY_ORDER.get();
        let resets = match self.generation {
            Generation::V3_0 => self.gained,
            Generation::V6_1 => self.gained && !costly,
        };
        self.idle = if resets { 0 } else { self.idle.saturating_add(1) };
        self.is_within_limits()
    }

    const fn is_within_limits(&self) -> bool {
        self.idle <= self.limits.without_progress && self.rounds < self.limits.rounds
    }

    fn end_round(&mut self) -> Step {
        let within = self.count_round();
        if !self.means.reclaim && !self.facts.no_fail {
            return self.finish();
        }
        match self.generation {
            Generation::V3_0 => {
                if !self.progress && self.facts.may_write && !self.facts.no_retry {
                    return self.last_resort();
                }
                self.retry_v3_0(within)
            }
            Generation::V6_1 => {
                if self.facts.no_retry || (self.facts.order > COSTLY_ORDER && !self.facts.repeat) {
                    return self.fail_unless_no_fail();
                }
                if within { self.go(At::Assessed, Step::Assess) } else { self.last_resort() }
            }
        }
    }

    fn retry_v3_0(&mut self, within: bool) -> Step {
        let facts = &self.facts;
        let wanted = !facts.no_retry
            && (facts.order <= COSTLY_ORDER
                || (facts.repeat && self.reclaimed < facts.order.pages())
                || facts.no_fail);
        if wanted && (within || facts.no_fail) {
            return self.go(At::Paused, Step::Pause);
        }
        self.fail_unless_no_fail()
    }

    /// A walk at the high mark, because another CPU may have freed many pages; if it finds no block, a kill.
    fn last_resort(&mut self) -> Step {
        self.go(At::HighWalk, self.slow_walk(Mark::High))
    }

    fn after_last_resort(&mut self, killed: bool) -> Step {
        if killed && self.rounds < self.limits.rounds {
            self.idle = 0;
            self.killed = true;
            return self.go(At::Paused, Step::Pause);
        }
        match self.generation {
            Generation::V3_0 => self.retry_v3_0(self.is_within_limits()),
            Generation::V6_1 => self.fail_unless_no_fail(),
        }
    }

    fn fail_unless_no_fail(&mut self) -> Step {
        if self.facts.no_fail { self.go(At::Paused, Step::Pause) } else { self.finish() }
    }

    /// A drain of all lists, unless they are drained already, and the last walk.
    fn finish(&mut self) -> Step {
        if self.drained { self.give_up() } else { self.go(At::LastDrained, Step::Drain) }
    }

    fn fail(&mut self) -> Step {
        if self.facts.no_fail && self.may_reclaim_at_all() {
            return self.go(At::Paused, Step::Pause);
        }
        self.give_up()
    }

    fn give_up(&mut self) -> Step {
        self.go(At::LastWalk, Step::Fail)
    }
}

#[cfg(test)]
mod tests;
