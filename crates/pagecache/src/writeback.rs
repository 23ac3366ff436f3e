//! Writing back: on demand, in the background, and by those who have made too much dirty.

use framewright::Pfn;
use framewright::platform::Platform;

use crate::cache::{Cache, CacheError, TOGETHER, Use};
use crate::device::{Completion, Device, Progress};
use crate::slot::{FileId, Is, Owner};
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

/// What became of a page that is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begun {
    /// It is not there any more, or clean.
    Nothing,
    /// Somebody changes or writes it.
    Busy,
    /// There is nowhere to write it to.
    NoSlot,
    /// It can be written to page `.1` of a file.
    To(FileId, u64),
}

impl<P: Platform, D: Device> Cache<'_, P, D> {
    /// Makes storage hold what was written to a file before.
    ///
    /// # Errors
    /// The device failed to write a page, now or since the last flush. Its pages are still dirty in the cache
    /// and will be written again: nothing is lost, and a later flush may succeed.
    pub fn flush(&self, file: FileId) -> Result<(), CacheError> {
        let mut failed = self.take_failed(file);
        let mut at = Some((file, 0));
        while let Some(from) = at {
            let Some((file, index, pfn)) = self.locked(|state| state.next_dirty(from, Some(file))) else {
                break;
            };
            failed |= !self.write_out(file.into(), index, pfn, false);
            at = index.checked_add(1).map(|index| (file, index));
        }
        // Pages that others were just writing.
        while self.locked(|state| self.is_writing(state, file)) {
            self.device.wait_for_completion();
            self.wait();
        }
        failed |= self.take_failed(file);
        self.device.sync(file)?;
        if failed {
            return Err(CacheError::Io);
        }
        Ok(())
    }

    /// Whether a write of a page of the file has failed since this was last asked.
    fn take_failed(&self, file: FileId) -> bool {
        self.locked(|state| state.files.get_mut(&file).is_some_and(|file| core::mem::take(&mut file.failed)))
    }

    fn is_writing(&self, state: &State, file: FileId) -> bool {
        let mut at = 0;
        while let Some((index, pfn)) = state.next_page(file, at) {
            if self.slots.get(pfn).is.has(Is::WRITEBACK) {
                return true;
            }
            let Some(next) = index.checked_add(1) else { return false };
            at = next;
        }
        false
    }

    /// Writes up to `pages` dirty pages out, of whichever files; none that somebody uses alone. Returns those written,
    /// or on their way.
    pub fn write_back(&self, pages: u64) -> u64 {
        let (mut left, mut written) = (pages as usize, 0);
        let mut from = Some((FileId(0), 0));
        // Each is found by one only of those who write, however many do.
        let mut batch = [None; TOGETHER];
        while left > 0
            && let Some(mut at) = from
        {
            let (most, mut count) = (left.min(TOGETHER), 0);
            from = self.locked(|state| {
                while count < most {
                    let (file, index, pfn) = state.next_dirty(at, None)?;
                    if let Begun::To(file, at) = self.begin_write(state, file.into(), index, pfn, false) {
                        batch[count] = Some((file, at, pfn));
                        count += 1;
                    }
                    at = (file, index.checked_add(1)?);
                }
                Some(at)
            });
            left -= count;
            for &(file, at, pfn) in batch[..count].iter().flatten() {
                written += u64::from(self.send(file, at, pfn));
            }
        }
        written
    }

    /// Writes out what is dirty, of all files, and waits until that is done. Unlike [`flush`](Self::flush), it does not
    /// ask the device to make it last.
    ///
    /// # Errors
    /// Some could not be written. It is dirty still.
    pub fn write_all(&self) -> Result<(), CacheError> {
        loop {
            let (_, dirty) = self.pages();
            let begun = self.write_back(dirty);
            while self.pages_in_writeback() > 0 {
                self.device.wait_for_completion();
                self.poll();
            }
            let (_, left) = self.pages();
            if left == 0 {
                return Ok(());
            }
            if begun == 0 || left >= dirty {
                return Err(CacheError::Io);
            }
        }
    }

    /// Writes a page out, if it is still there and dirty, and nobody changes or writes it. Waits for those who
    /// do, unless `by_reclaim`. Whether storage holds what it held, or will.
    pub(crate) fn write_out(&self, owner: Owner, index: u64, pfn: Pfn, by_reclaim: bool) -> bool {
        let (file, at) = loop {
            match self.locked(|state| self.begin_write(state, owner, index, pfn, by_reclaim)) {
                Begun::Nothing => return true,
                Begun::To(file, at) => break (file, at),
                Begun::NoSlot => return false,
                Begun::Busy if by_reclaim => return false,
                Begun::Busy => self.wait(),
            }
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

    /// Marks a dirty page as being written, if nobody changes or writes it.
    fn begin_write(&self, state: &mut State, owner: Owner, index: u64, pfn: Pfn, by_reclaim: bool) -> Begun {
        if state.find(owner, index) != Some(pfn) || !self.slots.get(pfn).is.has(Is::DIRTY) {
            return Begun::Nothing;
        }
        if self.slots.get(pfn).is.has(Is::WRITEBACK) || !self.try_use(pfn, Use::Shared) {
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
        // Clean from now on: whoever changes it must wait until it is written.
        state.set(&self.slots, zone, pfn, Is::DIRTY, false);
        state.set(&self.slots, zone, pfn, Is::WRITEBACK, true);
        state.set(&self.slots, zone, pfn, Is::RECLAIM, by_reclaim);
        state.events.nr_vmscan_write += u64::from(by_reclaim);
        Begun::To(file, at)
    }

    /// A writer that has made too much dirty writes some out, and waits until enough is written.
    pub(crate) fn throttle(&self) {
        let over = || {
            // Without the lock: every write asks, and those who wait ask again and again.
            let (dirty, writeback) = self.unwritten();
            let is_over = (dirty + writeback) * 100 > self.memory() * DIRTY_PERCENT;
            is_over.then_some(writeback)
        };
        if over().is_some() {
            self.write_back(THROTTLE_PAGES);
            // Nobody waits for what cannot be written.
            let mut turn = 0;
            while over().is_some_and(|writeback| writeback > 0) {
                self.device.hold_back(turn);
                self.wait();
                turn += 1;
            }
        }
    }

    /// Writes some dirty pages out if there are many: what a background writer does whenever it has nothing else
    /// to do. Returns the pages written, or on their way.
    pub fn write_in_background(&self) -> u64 {
        let (dirty, _) = self.unwritten();
        if dirty * 100 > self.memory() * BACKGROUND_PERCENT { self.write_back(BACKGROUND_PAGES) } else { 0 }
    }

    /// Pages of memory.
    fn memory(&self) -> u64 {
        self.allocator.zones().iter().map(framewright::zone::Zone::managed_pages).sum()
    }
}
