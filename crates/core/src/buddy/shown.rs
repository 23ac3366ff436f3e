//! Words that a section publishes for CPUs that choose a section without its lock (see `zone/sections.rs`).

use core::sync::atomic::Ordering::Relaxed;

use super::Buddy;
use crate::platform::{Platform, Word};
use crate::units::{MAX_ORDER, Migratetype, Ones, PAGEBLOCK_ORDER};

/// Words that a section publishes: one for each type, and one of whole pageblocks.
pub(crate) const WORDS: usize = Migratetype::ALL.len() + 1;
/// The bit for a pageblock that is free as a whole.
pub(crate) const WHOLE: u32 = 63;
/// The bit for two singles of different ordinary types that are buddies.
pub(crate) const MIXED: u32 = 2 * Migratetype::ALL.len() as u32;

/// In [`Buddy::changed`], above a bit for each type: free whole pageblocks have changed.
const WHOLES: u8 = 0x80;
const _: () = assert!(Migratetype::ALL.len() < 8);

impl<'a, P: Platform, M> Buddy<'a, '_, P, M> {
    /// The section's own words of those that the sections publish, by number.
    fn shown(&self) -> impl Fn(usize) -> &'a P::Word + use<'a, P, M> {
        let (words, n) = (self.common.words, self.extent.n);
        let sections = words.len() / WORDS;
        move |which| &words[which * sections + n]
    }

    /// Whether it is a section among several.
    pub(crate) const fn is_of_several(&self) -> bool {
        self.common.is_cut()
    }

    /// Records that bins of a type have become empty or non-empty.
    #[inline(always)]
    pub(super) fn note_changed(&mut self, list: Migratetype) {
        self.changed |= 1 << list.index();
    }

    /// Records that free whole pageblocks of a type have changed.
    #[inline(always)]
    pub(super) fn note_wholes_changed(&mut self, list: Migratetype) {
        self.changed |= WHOLES;
        self.note_changed(list);
    }

    /// Publishes the changes of this hold.
    pub(super) fn show_changed(&mut self) {
        let changed = core::mem::take(&mut self.changed);
        if !self.common.is_cut() {
            return;
        }
        let shown = self.shown();
        let wholes = changed & WHOLES != 0;
        let old_of_all = if wholes { shown(WORDS - 1).load(Relaxed) } else { 0 };
        let mut of_all = old_of_all;
        for list in Ones(u64::from(changed & !WHOLES)) {
            let list = Migratetype::ALL[list];
            let old = shown(list.index()).load(Relaxed);
            let whole = if wholes {
                let (kinds, at) = (self.kinds(list), 2 * list.index());
                of_all = of_all & !(3 << at) | kinds << at;
                u64::from(kinds != 0) << WHOLE
            } else {
                old & 1 << WHOLE
            };
            show(shown(list.index()), old, self.occupied(list) + whole);
        }
        if wholes {
            show(shown(WORDS - 1), old_of_all, of_all & !(1 << MIXED) | self.mixed());
        }
    }

    /// Whether a type has singles, and pairs.
    fn kinds(&self, list: Migratetype) -> u64 {
        u64::from(self.has_whole(PAGEBLOCK_ORDER, list)) + 2 * u64::from(self.has_whole(MAX_ORDER, list))
    }

    fn word_of(&self, list: Migratetype) -> u64 {
        self.occupied(list) + (u64::from(self.kinds(list) != 0) << WHOLE)
    }

    /// [`MIXED`], if there are two such buddies.
    fn mixed(&self) -> u64 {
        u64::from(self.mixed_pair(None).is_some()) << MIXED
    }

    /// Singles and pairs of all types.
    fn wholes(&self) -> u64 {
        self.mixed()
            + Migratetype::ALL.into_iter().map(|list| self.kinds(list) << (2 * list.index())).sum::<u64>()
    }

    /// Whether all published words are correct. For verification.
    pub(crate) fn is_as_shown(&self) -> bool {
        let shown = self.shown();
        let is_so = |list: Migratetype| shown(list.index()).load(Relaxed) == self.word_of(list);
        let are_types = || Migratetype::ALL.into_iter().all(is_so);
        !self.common.is_cut() || are_types() && shown(WORDS - 1).load(Relaxed) == self.wholes()
    }
}

/// Publishes a word. Most holds change none: then no other CPU loses its copy of the line.
fn show(word: &impl Word, old: u64, now: u64) {
    if old != now {
        word.store(now, Relaxed);
    }
}
