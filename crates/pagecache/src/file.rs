//! State of a file in the cache besides its pages: how it is read, which of its pages are on their way to storage,
//! which are not yet durable, and which errors there were. Pure.
//!
//! # Errors (Linux: `errseq_t`)
//! `errors` counts failed writes and failed syncs. An opener that flushes notes the count that it was last told of, and
//! is told if there are more at the end: each of several that flush at the same time.
//!
//! # Durability
//! A page that was written is `unsynced` until a sync that began later has succeeded. A sync that fails says nothing of
//! which pages it has lost, and the system may have dropped them (Linux drops them, and the next sync says `Ok`). So
//! all that were written before it ended are dirty again: those that it covered, those written in the meantime, and
//! those on their way, which the device may have had already. Of a page that has left memory since, the bytes are gone:
//! the file is `lost`, and no flush of it succeeds any more.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::device::IoError;

/// A sync of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sync {
    number: u64,
    /// Pages in memory that it is to make durable.
    pages: BTreeSet<u64>,
    /// It also covers pages that have left memory.
    gone: bool,
}

/// State of a file in the cache.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// The page read last, and how far reading ahead goes.
    pub(crate) last_read: Option<u64>,
    pub(crate) window: u64,
    /// Writes and syncs that have failed, and what the last of them said.
    pub(crate) errors: u64,
    last_error: Option<IoError>,
    /// Errors that some opener was told of.
    pub(crate) reported: u64,
    /// Pages on their way to storage, and in which round that began.
    writing: BTreeMap<u64, u64>,
    /// By round, how many of them.
    in_round: BTreeMap<u64, u64>,
    /// Each flush that waits begins a new one.
    round: u64,
    /// Pages in memory that were written since the last sync began.
    unsynced: BTreeSet<u64>,
    /// A page written since then has left memory.
    gone: bool,
    /// The sync that is under way.
    sync: Option<Sync>,
    /// Syncs begun so far (one that begins from now on has a higher number), and the last of them that succeeded.
    pub(crate) syncs: u64,
    synced: u64,
    /// Why some of the file is lost.
    pub(crate) lost: Option<IoError>,
}

/// Whether a sync is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Another one, begun later than asked, has succeeded.
    Done,
    /// By the caller, which reports how it ended.
    Mine,
    /// Another one is under way.
    Wait,
}

impl File {
    pub(crate) fn note_error(&mut self, error: IoError) {
        self.errors += 1;
        self.last_error = Some(error);
    }

    /// The last error, if there were more than `heard`. Every opener that asks is told then.
    pub(crate) fn report(&mut self, heard: u64) -> Option<IoError> {
        self.reported = self.reported.max(self.errors);
        self.error_after(heard)
    }

    /// The last error, if there were more than `before`.
    pub(crate) fn error_after(&self, before: u64) -> Option<IoError> {
        self.last_error.filter(|_| self.errors > before)
    }

    // ---- pages on their way ------------------------------------------------------------------------------

    pub(crate) fn begin_write(&mut self, index: u64) {
        let before = self.writing.insert(index, self.round);
        debug_assert!(before.is_none(), "a page is written twice at a time");
        *self.in_round.entry(self.round).or_default() += 1;
    }

    pub(crate) fn end_write(&mut self, index: u64, result: Result<(), IoError>) {
        if let Some(round) = self.writing.remove(&index)
            && let Some(left) = self.in_round.get_mut(&round)
        {
            *left -= 1;
            if *left == 0 {
                self.in_round.remove(&round);
            }
        }
        match result {
            Ok(()) => drop(self.unsynced.insert(index)),
            Err(error) => self.note_error(error),
        }
    }

    /// Ends a round. Returns it: those who wait until its pages are written wait for no later ones.
    pub(crate) const fn end_round(&mut self) -> u64 {
        self.round += 1;
        self.round - 1
    }

    /// Whether a page of a round, or of one before, is on its way. O(log rounds).
    pub(crate) fn is_writing(&self, round: u64) -> bool {
        self.in_round.first_key_value().is_some_and(|(&first, _)| first <= round)
    }

    pub(crate) fn pages_writing(&self) -> usize {
        self.writing.len()
    }

    // ---- durability --------------------------------------------------------------------------------------

    /// A page leaves memory. If it is `dropped`, it is not wanted any more, on storage neither.
    pub(crate) fn leave(&mut self, index: u64, dropped: bool) {
        let written = self.unsynced.remove(&index);
        self.gone |= written && !dropped;
        if let Some(sync) = &mut self.sync {
            let covered = sync.pages.remove(&index);
            sync.gone |= covered && !dropped;
        }
    }

    /// Decides which caller makes the sync with a number above `after`.
    pub(crate) fn take_turn(&mut self, after: u64) -> Turn {
        if self.synced > after {
            return Turn::Done;
        }
        if self.sync.is_some() {
            return Turn::Wait;
        }
        self.syncs += 1;
        self.sync = Some(Sync {
            number: self.syncs,
            pages: core::mem::take(&mut self.unsynced),
            gone: core::mem::take(&mut self.gone),
        });
        Turn::Mine
    }

    /// The sync is over. Returns the pages in memory that have to be written again.
    pub(crate) fn end_sync(&mut self, result: Result<(), IoError>) -> BTreeSet<u64> {
        let Some(Sync { number, pages, gone }) = self.sync.take() else { return BTreeSet::new() };
        match result {
            Ok(()) => {
                self.synced = number;
                BTreeSet::new()
            }
            Err(error) => {
                self.note_error(error);
                if gone || self.gone {
                    self.lost = Some(error);
                }
                let mut again = pages;
                again.append(&mut self.unsynced);
                again.extend(self.writing.keys());
                again
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const BROKEN: IoError = IoError::from_code(5);

    fn written(pages: &[u64]) -> File {
        let mut file = File::default();
        for &page in pages {
            file.begin_write(page);
            file.end_write(page, Ok(()));
        }
        file
    }

    #[test]
    fn everybody_is_told_once() {
        let mut file = File::default();
        let (first, second) = (file.errors, file.errors);
        file.begin_write(3);
        file.end_write(3, Err(BROKEN));
        assert_eq!([file.report(first), file.report(second)], [Some(BROKEN); 2]);
        assert_eq!(file.report(file.errors), None);
        assert_eq!(file.reported, 1);
    }

    #[test]
    fn a_round_ends_without_those_that_began_later() {
        let mut file = File::default();
        file.begin_write(1);
        let round = file.end_round();
        file.begin_write(2);
        assert!(file.is_writing(round));
        file.end_write(1, Ok(()));
        assert!(!file.is_writing(round), "page 2 is of the next");
        assert!(file.is_writing(file.round));
    }

    #[test]
    fn what_a_failed_sync_covered_is_written_again() {
        let mut file = written(&[1, 2, 3]);
        assert_eq!(file.take_turn(0), Turn::Mine);
        assert_eq!(file.take_turn(0), Turn::Wait);
        file.begin_write(9);
        file.end_write(9, Ok(()));
        file.begin_write(10);
        let again: Vec<_> = file.end_sync(Err(BROKEN)).into_iter().collect();
        assert_eq!(
            (again, file.lost),
            (alloc::vec![1, 2, 3, 9, 10], None),
            "some of them may have come too late"
        );
        assert_eq!(file.take_turn(0), Turn::Mine, "it did not count");
        assert!(file.end_sync(Ok(())).is_empty());
        assert_eq!(file.take_turn(1), Turn::Done, "it began later than asked");
        assert_eq!(file.take_turn(2), Turn::Mine);
    }

    #[test]
    fn what_was_written_during_a_sync_that_fails_and_has_left_memory_is_lost() {
        let mut file = written(&[1]);
        assert_eq!(file.take_turn(0), Turn::Mine);
        file.begin_write(2);
        file.end_write(2, Ok(()));
        file.leave(2, false);
        file.end_sync(Err(BROKEN));
        assert_eq!(file.lost, Some(BROKEN));
    }

    #[test]
    fn what_has_left_memory_before_a_sync_fails_is_lost() {
        for during in [false, true] {
            for dropped in [false, true] {
                let mut file = written(&[1, 2]);
                if !during {
                    file.leave(1, dropped);
                }
                assert_eq!(file.take_turn(0), Turn::Mine);
                if during {
                    file.leave(1, dropped);
                }
                assert_eq!(file.end_sync(Err(BROKEN)).into_iter().collect::<Vec<_>>(), [2]);
                assert_eq!(file.lost, (!dropped).then_some(BROKEN));
            }
        }
        let mut file = written(&[1]);
        file.leave(1, false);
        assert_eq!((file.take_turn(0), file.end_sync(Ok(())).len()), (Turn::Mine, 0));
        assert_eq!(file.take_turn(1), Turn::Mine);
        file.end_sync(Err(BROKEN));
        assert_eq!(file.lost, None, "the sync before covered it");
    }
}
