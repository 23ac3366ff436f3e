//! What a section shows to CPUs that choose one without its lock (see `zone/sections.rs`).

use core::sync::atomic::Ordering::Relaxed;

use super::{Buddy, Wanted};
use crate::platform::{Platform, Word};
use crate::units::{MAX_ORDER, Migratetype, PAGEBLOCK_ORDER};

/// Words that a section shows: one for each type, and one of whole pageblocks.
pub(crate) const WORDS: usize = Migratetype::ALL.len() + 1;
/// The bit that says that a pageblock is free as a whole.
pub(crate) const WHOLE: u32 = 63;
/// The bit that says that two singles of different ordinary types are buddies.
pub(crate) const MIXED: u32 = 2 * Migratetype::ALL.len() as u32;

/// A section among others of its zone.
#[derive(Debug)]
pub(crate) struct Part<'a, P: Platform> {
    /// What all sections show.
    pub(crate) words: &'a [P::Word],
    /// Pageblocks of the zone that are isolated or have a bad frame in use.
    pub(crate) special: &'a P::Word,
    /// The number of the section.
    pub(crate) n: usize,
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Whether it is a section among several.
    pub(crate) const fn is_of_several(&self) -> bool {
        self.part.is_some()
    }

    /// Whether what the section would give next, a whole pageblock, is worse than what another section may have.
    #[inline(always)]
    pub(super) fn has_worse_than_others(&self, wanted: Wanted) -> bool {
        self.part.is_some()
            && self.has_bits_of(wanted.order)
            && !self.has_open(wanted.order, wanted.migratetype)
    }

    /// Notes that bins or free pageblocks of a type have come or gone.
    #[inline(always)]
    pub(super) fn note_changed(&mut self, list: Migratetype) {
        self.changed |= 1 << list.index();
    }

    /// Shows what has changed in this hold.
    pub(super) fn show_changed(&mut self) {
        let changed = core::mem::take(&mut self.changed);
        let Some(part) = self.part.as_ref().filter(|_| changed != 0) else { return };
        let word = |which: usize| &part.words[which * (part.words.len() / WORDS) + part.n];
        // Most holds end as they began: no other CPU loses its copy then.
        let set = |word: &P::Word, now: u64| {
            if word.load(Relaxed) != now {
                word.store(now, Relaxed);
            }
        };
        let mut wholes = word(WORDS - 1).load(Relaxed) & !(1 << MIXED);
        for list in Migratetype::ALL.into_iter().filter(|list| changed >> list.index() & 1 != 0) {
            let kinds = self.kinds(list);
            wholes = wholes & !(3 << (2 * list.index())) | kinds << (2 * list.index());
            set(word(list.index()), self.word_of(list));
        }
        set(word(WORDS - 1), wholes | self.mixed());
    }

    /// Whether a type has singles, and pairs.
    fn kinds(&self, list: Migratetype) -> u64 {
        u64::from(self.has_whole(PAGEBLOCK_ORDER, list)) | u64::from(self.has_whole(MAX_ORDER, list)) << 1
    }

    fn word_of(&self, list: Migratetype) -> u64 {
        self.occupied(list) | u64::from(self.kinds(list) != 0) << WHOLE
    }

    fn mixed(&self) -> u64 {
        u64::from(self.mixed_pair(None).is_some()) << MIXED
    }

    /// Whether all that the section shows is so. For verification.
    pub(crate) fn is_as_shown(&self) -> bool {
        self.part.as_ref().is_none_or(|part| {
            let shown = |which: usize| part.words[which * (part.words.len() / WORDS) + part.n].load(Relaxed);
            let kinds = |list: Migratetype| self.kinds(list) << (2 * list.index());
            let wholes = Migratetype::ALL.into_iter().fold(self.mixed(), |all, list| all | kinds(list));
            let is_so = |list: Migratetype| shown(list.index()) == self.word_of(list);
            Migratetype::ALL.into_iter().all(is_so) && shown(WORDS - 1) == wholes
        })
    }
}
