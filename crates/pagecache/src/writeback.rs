//! Writing back: on demand, in the background, and by those who have made too much dirty.
//!
//! # What a flush promises
//! `Ok` means: every page of the file that was written to before the call is on the device, and a sync that began
//! afterwards has succeeded.
//!
//! * A write that fails leaves its page dirty: the next flush, or another thread, writes it again.
//! * Each error is told to each [`Opener`] of the file once, by the first flush that ends after it, as Linux'
//!   `errseq_t` does; and to every flush that was under way when it happened.
//! * A sync that fails may have lost any page that it covered. Those in memory are dirty again. If one has left memory,
//!   the file is lost: every later flush says [`CacheError::Lost`].
//!
//! A flush costs O(dirty pages of the file · log). It does not wait for pages that are dirtied after it has begun.

use alloc::collections::BTreeMap;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use framewright::Pfn;
use framewright::platform::{Platform, Word};

use crate::cache::{Cache, CacheError, TOGETHER, Use};
use crate::device::{Completion, Device, Progress};
use crate::file::Turn;
use crate::slot::{FileId, Marks, Owner};
use crate::state::State;

/// Pages dirty or being written, in percent of all memory, from which a writer writes some out itself, and waits
/// (`vm.dirty_ratio`).
const DIRTY_PERCENT: u64 = 20;
/// Dirty pages, in percent of all memory, from which they are written in the background
/// (`vm.dirty_background_ratio`).
const BACKGROUND_PERCENT: u64 = 10;
/// Pages that a writer writes out.
const THROTTLE_PAGES: u64 = 32;
/// Pages that a background writer writes out in one go (v3.0).
const BACKGROUND_PAGES: u64 = 1024;

/// Opener of a file, which wants to hear of each error of it once: Linux has such a count in `struct file`.
pub struct Opener<P: Platform> {
    file: FileId,
    /// Errors of the file that it was told of. Written under the cache's lock.
    heard: P::Word,
}

impl<P: Platform> fmt::Debug for Opener<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opener").field(&self.file).finish()
    }
}

impl<P: Platform> Opener<P> {
    /// The file.
    pub const fn file(&self) -> FileId {
        self.file
    }
}

/// Result for a page that is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begun {
    /// It is not there any more, or clean.
    Nothing,
    /// A thread changes or writes it.
    Busy,
    /// There is nowhere to write it to.
    NoSlot,
    /// It is in frame `.2`, and can be written to page `.1` of a file.
    To(FileId, u64, Pfn),
}

impl<P: Platform, D: Device> Cache<'_, P, D> {
    /// A new opener of a file. It will hear of errors that no opener was told of yet.
    pub fn opener(&self, file: FileId) -> Opener<P> {
        let reported = self.locked(|state| state.file(file).reported);
        Opener { file, heard: P::Word::new(reported) }
    }

    /// Makes storage hold what was written to a file before, durably (see [the module](self)), for a caller that is its
    /// only opener.
    ///
    /// # Errors
    /// The device failed to write a page or to sync, now or since the last flush. The pages are dirty still, or again,
    /// and a later flush writes them; unless it is [`CacheError::Lost`].
    pub fn flush(&self, file: FileId) -> Result<(), CacheError> {
        self.flush_and(file, None)
    }

    /// Like [`flush`](Self::flush), for one of several openers, each of which hears of every error.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_by(&self, opener: &Opener<P>) -> Result<(), CacheError> {
        self.flush_and(opener.file, Some(&opener.heard))
    }

    fn flush_and(&self, file: FileId, opener: Option<&P::Word>) -> Result<(), CacheError> {
        self.is_ordinary(file)?;
        let heard =
            self.locked(|state| opener.map_or(state.file(file).reported, |heard| heard.load(Relaxed)));
        self.write_dirty(Some(file));
        self.sync(file);
        // All that failed since `heard` was read, and not only what this call has seen: another one may have been told
        // of a page that this call found clean.
        let told = self.locked(|state| {
            let file = state.file(file);
            let (errors, told) = (file.errors, file.report(heard));
            if let Some(opener) = opener
                && opener.load(Relaxed) < errors
            {
                opener.store(errors, Relaxed);
            }
            file.lost.map_or(told.map(CacheError::Io), |error| Some(CacheError::Lost(error)))
        });
        told.map_or(Ok(()), Err)
    }

    /// Writes the pages of a file, or of all, that are dirty, and waits until those are written that others have begun.
    /// Errors are noted with the file.
    fn write_dirty(&self, file: Option<FileId>) {
        let last = self.locked(|state| state.last_dirty(file));
        let mut at = Some((file.unwrap_or_default(), 0));
        while let Some(from) = at {
            let next = self.locked(|state| state.next_dirty(from, file));
            let Some((file, index)) = next.filter(|&next| Some(next) <= last) else { break };
            self.write_out(file.into(), index, false);
            at = index.checked_add(1).map(|index| (file, index));
        }
        for (file, round) in self.locked(|state| state.end_rounds(file)) {
            let mut turn = 0;
            // Not if it is forgotten in the meantime.
            let is_writing =
                |state: &State| state.files.get(&file).is_some_and(|known| known.is_writing(round));
            while self.locked(|state| is_writing(state)) {
                self.device.wait_for_completion();
                self.wait(turn);
                turn += 1;
            }
        }
    }

    /// Has the device make durable what was written to a file before. One that another flush has made for it will do,
    /// if it began later than this call. Errors are noted with the file.
    fn sync(&self, file: FileId) {
        let before = self.locked(|state| state.file(file).syncs);
        let mut waited = 0;
        loop {
            match self.locked(|state| state.file(file).take_turn(before)) {
                Turn::Done => return,
                Turn::Mine => break,
                Turn::Wait => self.wait(waited),
            }
            waited += 1;
        }
        let result = self.device.sync(file);
        self.locked(|state| {
            for index in state.file(file).end_sync(result) {
                if let Some(pfn) = state.find(file, index) {
                    // Also where it is just being written again: that may have begun before the sync failed.
                    state.set(&self.slots, self.zone_of(pfn), pfn, Marks::DIRTY, true);
                }
            }
            state.events.io_errors += u64::from(result.is_err());
        });
    }

    /// Writes up to `pages` dirty pages out, of any files; none that a thread has for itself. Returns those written,
    /// or on their way.
    pub fn write_back(&self, pages: u64) -> u64 {
        let (mut left, mut written) = (pages as usize, 0);
        // Each is looked at once: those that cannot be written are dirty again soon.
        let mut unseen = self.locked(|state| state.dirty_pages());
        let mut batch = [None; TOGETHER];
        while left > 0 && unseen > 0 {
            let (most, mut count) = (left.min(TOGETHER), 0);
            self.locked(|state| {
                while count < most && unseen > 0 {
                    let Some((file, index)) = state.next_to_write() else { break };
                    unseen -= 1;
                    if let Begun::To(file, at, pfn) = self.begin_write(state, file.into(), index, false) {
                        batch[count] = Some((file, at, pfn));
                        count += 1;
                    }
                }
            });
            if count == 0 {
                break;
            }
            left -= count;
            for &(file, at, pfn) in batch[..count].iter().flatten() {
                written += u64::from(self.send(file, at, pfn));
            }
        }
        written
    }

    /// Writes out what is dirty, of all files, and waits until that is done. Unlike [`flush`](Self::flush), it does not
    /// ask the device to make it last, and each opener still hears of an error.
    ///
    /// # Errors
    /// Some could not be written. It is dirty still.
    pub fn write_all(&self) -> Result<(), CacheError> {
        let before: BTreeMap<_, _> =
            self.locked(|state| state.files.iter().map(|(&file, known)| (file, known.errors)).collect());
        self.write_dirty(None);
        let error = self.locked(|state| {
            let errors_before = |file| before.get(file).copied().unwrap_or_default();
            state.files.iter().find_map(|(file, known)| known.error_after(errors_before(file)))
        });
        error.map_or(Ok(()), |error| Err(CacheError::Io(error)))
    }

    /// Writes a page out, if it is still there and dirty, and no thread changes or writes it. Waits for those who
    /// do, unless `by_reclaim`. Whether storage holds what it held, or will.
    pub(crate) fn write_out(&self, owner: Owner, index: u64, by_reclaim: bool) -> bool {
        let mut turn = 0;
        let (file, at, pfn) = loop {
            // Found again each time: it may have moved to another frame.
            match self.locked(|state| self.begin_write(state, owner, index, by_reclaim)) {
                Begun::Nothing => return true,
                Begun::To(file, at, pfn) => break (file, at, pfn),
                Begun::NoSlot => return false,
                Begun::Busy if by_reclaim => return false,
                Begun::Busy => self.wait(turn),
            }
            turn += 1;
        };
        self.send(file, at, pfn)
    }

    /// Has the device write a page that was marked so. Whether storage holds what it held, or will.
    fn send(&self, file: FileId, at: u64, pfn: Pfn) -> bool {
        let result = match self.device.write(file, at, pfn) {
            Ok(Progress::Begun) => return true,
            Ok(Progress::Done) => Ok(()),
            Err(error) => Err(error),
        };
        self.locked(|state| self.end_write(state, &Completion { file, index: at, pfn, result }));
        result.is_ok()
    }

    /// Marks a dirty page as being written, if no thread changes or writes it.
    fn begin_write(&self, state: &mut State, owner: Owner, index: u64, by_reclaim: bool) -> Begun {
        let found = state.find(owner, index).filter(|&pfn| self.slots.get(pfn).marks.has(Marks::DIRTY));
        let Some(pfn) = found else { return Begun::Nothing };
        if self.slots.get(pfn).marks.has(Marks::WRITEBACK) || !self.try_use(pfn, Use::Shared) {
            return Begun::Busy;
        }
        let zone = self.zone_of(pfn);
        let to = match (owner, self.swap) {
            (Owner::File(file), _) => Some((file, index)),
            (Owner::Space(space), Some(swap)) => {
                state.take_swap_slot(&self.slots, (space, index)).map(|slot| (swap.file, u64::from(slot)))
            }
            (Owner::Space(_), None) => None,
        };
        let Some((file, at)) = to else {
            // Out of the way: looking at it again is of no use.
            self.end_use_locked(pfn);
            state.activate(&self.slots, zone, pfn);
            return Begun::NoSlot;
        };
        // Clean from now on: a thread that changes it must wait until it is written.
        state.set(&self.slots, zone, pfn, Marks::DIRTY, false);
        state.set(&self.slots, zone, pfn, Marks::WRITEBACK, true);
        if let Owner::File(file) = owner {
            state.file(file).begin_write(index);
        }
        state.set(&self.slots, zone, pfn, Marks::RECLAIM, by_reclaim);
        state.events.nr_vmscan_write += u64::from(by_reclaim);
        Begun::To(file, at, pfn)
    }

    /// Whether writers have to wait, because too many pages are dirty or being written. Without the lock.
    pub fn is_over_dirty_limit(&self) -> bool {
        let (dirty, writeback) = self.unwritten();
        (dirty + writeback) * 100 > self.memory() * DIRTY_PERCENT
    }

    /// A writer that has made too much dirty writes some out, and waits until enough is written.
    pub(crate) fn throttle(&self) {
        // Every write asks, and those who wait ask again and again.
        if self.is_over_dirty_limit() {
            self.write_back(THROTTLE_PAGES);
            // No thread waits for what cannot be written.
            let mut turn = 0;
            while self.unwritten().1 > 0 && self.is_over_dirty_limit() {
                self.device.hold_back(turn);
                self.wait(turn);
                turn += 1;
            }
        }
    }

    /// Writes some dirty pages out if there are many, or if reclaim has asked for that: what a background writer does
    /// whenever it has nothing else to do. Returns the pages written, or on their way.
    pub fn write_in_background(&self) -> u64 {
        let (dirty, _) = self.unwritten();
        let are_many = dirty * 100 > self.memory() * BACKGROUND_PERCENT;
        let asked = self.asked.swap(0, Relaxed);
        self.write_back(if are_many { BACKGROUND_PAGES } else { asked.min(BACKGROUND_PAGES) })
    }

    /// Pages of memory.
    fn memory(&self) -> u64 {
        self.allocator.zones().iter().map(framewright::zone::Zone::managed_pages).sum()
    }
}
