//! Refills that one CPU makes for several.
//!
//! Where many CPUs want memory at the same instant, each waits until all before it have held the zone lock, and a hold costs what
//! its cache lines take to come from another core. So CPUs with neighbouring numbers, a *group*, go together; if there are several
//! zones, they begin at the same one ([`spread`](crate::zonelist::spread)). Each that may keep
//! whole pageblocks says in the group's word that it wants some. The first to say so asks for the zone lock; when it has it, it
//! takes the word, and takes pageblocks for all that have said so by then. Each of them waits at a line of its own until it is
//! told what it got. If that is nothing, it goes to the lock itself.
//!
//! Only with a queued lock: whoever waits here waits for one certain CPU, as in the queue, and that one must not lose its processor
//! for long. What is on its way from one CPU to another is nobody else's, as in any refill: its head words say
//! [`State::Body`](crate::frame::State::Body).
//!
//! # Who waits for whom
//! A CPU whose bit is the first in the word takes the word under the zone lock, and answers everybody whose bit it has taken; or
//! without it, if it finds that the zone has nothing. So a CPU that finds other bits in the word waits for the one whose bit came
//! first, and that one waits for nobody but holders of the zone lock, who do not wait here.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::{Local, MoreLists, Pcp, TYPES, kind_of};
use crate::frame::FrameUser;
use crate::platform::{Platform, Word};
use crate::policy::pcp::Sizing;
use crate::policy::zonelist::GROUP;
use crate::units::{Migratetype, PAGEBLOCK_PAGES, Pfn};

const _: () = assert!(GROUP * TYPES <= 64);

/// Pageblocks that each of the others gets at most: a block of the largest order.
pub(super) const EACH: u64 = 2;

/// What `given` says, below where pageblocks begin: how many there are, or that there are none.
const COUNT: u64 = 3;
const NOTHING: u64 = 3;
const START: u32 = 2;

/// The words of one CPU's lists of one zone.
#[repr(C, align(64))]
pub(super) struct Together<P: Platform> {
    /// Of a group's first CPU: by type and CPU of the group, a bit if that CPU waits for pageblocks of that type. Each CPU sets one
    /// bit at most; whoever set the first one clears all.
    wanted: P::Word,
    given: Given<P>,
    /// Base pages that the lists may hold, as of the owner's last look. Written by the owner.
    room: P::Word,
}

/// What this CPU was given, and 0 before. Cleared by the owner, set by whoever took its bit.
#[repr(C, align(64))]
struct Given<P: Platform>(P::Word);

impl<P: Platform> Together<P> {
    /// Nobody waits.
    pub(super) fn new() -> Self {
        Self { wanted: P::Word::new(0), given: Given(P::Word::new(0)), room: P::Word::new(0) }
    }
}

/// How a CPU's refill goes on when it has said what it wants.
pub(super) enum Turn {
    /// It takes for all that have said so when it has the zone lock.
    First,
    /// It was given so many pageblocks, one behind the other.
    Given(Pfn, u64),
    /// It was given none.
    Nothing,
}

impl<'m, P: Platform, M: FrameUser> Local<'_, 'm, P, M> {
    /// The words of a CPU of the own group: of the first one, or of that number in it.
    fn of_group(&self, number: usize) -> Option<&'m Together<P>> {
        let first = self.waiter.cpu?.index() / GROUP * GROUP;
        let cpus = self.waiter.nodes.len();
        let pcp: &'m Pcp<'m, P> = self.pcps.get(self.zone.id().index() * cpus + first + number)?;
        pcp.more.map(|more: &'m MoreLists<'m, P>| &more.together)
    }

    /// The own number in the group.
    fn number(&self) -> usize {
        self.waiter.cpu.map_or(0, |cpu| cpu.index() % GROUP)
    }

    /// Whether refills go together at all.
    pub(super) fn may_go_together(&self) -> bool {
        self.zone.has_queue() && self.zone.cpus() > 1 && self.may_keep_whole()
    }

    /// Notes for refills to come how much this CPU's lists may hold, so that they need not look at the zone's counters before they go
    /// together: nothing where there is free CMA memory, which comes first.
    #[inline(never)]
    pub(super) fn note_room(&self, high_max: u32) {
        if let Some(more) = self.pcp.more.filter(|_| self.may_go_together()) {
            let may = self.zone.free_cma_pages() == 0;
            more.together.room.store(if may { high_max.into() } else { 0 }, Relaxed);
        }
    }

    /// Where there is a queue for the zone lock, and this CPU may keep whole pageblocks as far as it knows: goes together with
    /// its neighbours.
    pub(super) fn goes_together(&self, number: usize, migratetype: Migratetype) -> Turn {
        if !self.may_go_together() {
            return Turn::Nothing;
        }
        let fits = u64::from(self.pcp.list(number).capacity()) >= PAGEBLOCK_PAGES >> kind_of(number).0.get();
        let may = fits && self.room_for_whole(self.noted_sizing(), migratetype) > 0;
        if may { self.want(migratetype) } else { Turn::Nothing }
    }

    /// What [`sizing_for`](Self::sizing_for) has said last. Whoever is given pageblocks does without another look at the zone: the CPU
    /// that took them has had one.
    pub(super) fn noted_sizing(&self) -> Sizing {
        let noted = self.pcp.more.map_or(0, |more| more.together.room.load(Relaxed));
        Sizing { high_max: noted as u32, ..self.pcp.sizing() }
    }

    /// Says that this CPU wants pageblocks of an ordinary type, and waits until it is its turn.
    fn want(&self, migratetype: Migratetype) -> Turn {
        let (Some(group), Some(own)) = (self.of_group(0), self.of_group(self.number())) else {
            return Turn::Nothing;
        };
        let given = &own.given.0;
        given.store(0, Relaxed);
        // Each CPU has its own bits, and none of them is set. Release: whoever takes the bit writes `given` after the store above.
        if group.wanted.fetch_add(1 << (migratetype.index() * GROUP + self.number()), AcqRel) == 0 {
            return Turn::First;
        }
        let mut said = given.load(Acquire);
        while said == 0 {
            P::relax();
            said = given.load(Acquire);
        }
        match said & COUNT {
            NOTHING => Turn::Nothing,
            count => Turn::Given(Pfn(said >> START), count),
        }
    }

    /// By the first of a group: takes pageblocks of each type that the others want by now with `take`, under the zone lock if it does
    /// take any, and tells each what it has got. Returns whether there are others.
    pub(super) fn answer_others(&self, mut take: impl FnMut(Migratetype) -> Option<(Pfn, u64)>) -> bool {
        let Some(group) = self.of_group(0) else { return false };
        let own = (0..TYPES).fold(0, |bits, of| bits | 1 << (of * GROUP + self.number()));
        let others = group.wanted.swap(0, AcqRel) & !own;
        let mut left = others;
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            let taken = take(Migratetype::ALL[bit / GROUP]);
            let Some(other) = self.of_group(bit % GROUP) else { continue };
            let said = taken.map_or(NOTHING, |(start, count)| start.0 << START | count);
            other.given.0.store(said, Release);
        }
        others != 0
    }
}
