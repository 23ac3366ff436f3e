//! The page cache: reading, writing, mapping, flushing, truncating, reading ahead.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use framewright::config::{LockKind, LockPlace};
use framewright::platform::{Platform, Word};
use framewright::sync::{Locked, Waiter};
use framewright::{
    AllocError, Allocator, Cpu, Flags, Helpers, Migratetype, Order, Pfn, Reclaim, Request, ZoneId,
};

use crate::device::{Completion, Device, IoError, Progress};
use crate::latency::Histogram;
use crate::policy;
use crate::slot::{ALONE, FileId, Is, PageSlot, Slots};
use crate::state::{CacheEvents, State};

/// Pages dirty or being written, in percent of all memory, from which a writer writes some out itself, and waits
/// (`vm.dirty_ratio`).
const DIRTY_PERCENT: u64 = 20;
/// Dirty pages, in percent of all memory, from which they are written in the background
/// (`vm.dirty_background_ratio`).
const BACKGROUND_PERCENT: u64 = 10;
/// Pages that a writer writes out.
const THROTTLE_PAGES: u64 = 32;
/// Ended writes that are entered in the books together.
const COMPLETIONS: usize = 32;
/// Pages that a background writer writes out in one go (v3.0).
const BACKGROUND_PAGES: u64 = 1024;

/// Why the cache could not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheError {
    /// There is no memory for a page.
    NoMemory(AllocError),
    /// The device failed. What was written stays in the cache.
    Io,
    /// The range does not lie in one page.
    Range,
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory(error) => error.fmt(f),
            Self::Io => IoError.fmt(f),
            Self::Range => f.write_str("the range does not lie in one page"),
        }
    }
}

impl core::error::Error for CacheError {}

impl From<IoError> for CacheError {
    fn from(_: IoError) -> Self {
        Self::Io
    }
}

/// How a page's memory is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// With others, to read it.
    Shared,
    /// Alone, to change it.
    Alone,
}

/// A file page cache over an allocator and a device. Shared by all CPUs; a call names the CPU it runs on.
///
/// One lock guards the index and the lists; it is not held while memory is copied, a device works or the
/// allocator is asked. It is the whole allocator's reclaimer: pass it in [`Helpers`].
pub struct Cache<'c, P: Platform, D> {
    pub(crate) allocator: &'c Allocator<'c, P, PageSlot>,
    pub(crate) device: D,
    pub(crate) slots: Slots<'c, P>,
    state: Locked<P, State, ()>,
    /// Dirty pages · 2³² + pages being written, for those who need no more than that. Whoever holds the lock writes it.
    unwritten: P::Word,
}

impl<P: Platform, D> fmt::Debug for Cache<'_, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl<'c, P: Platform, D: Device> Cache<'c, P, D> {
    /// An empty cache. It takes pages as they are used, and gives them back when it is asked to.
    pub fn new(allocator: &'c Allocator<'c, P, PageSlot>, device: D) -> Self {
        let state = State::new(allocator.zones().len());
        Self {
            allocator,
            device,
            slots: Slots::new(allocator),
            state: Locked::new(LockPlace::OwnLine, LockKind::Ticket, state, ()),
            unwritten: P::Word::new(0),
        }
    }

    /// The device.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Runs `f` with the lock held.
    pub(crate) fn locked<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.state.with(Waiter { nodes: &[], cpu: None }, |state, (), _| {
            let before = state.unwritten();
            let result = f(state);
            let unwritten = state.unwritten();
            if unwritten != before {
                self.unwritten.store(unwritten, Relaxed);
            }
            result
        })
    }

    pub(crate) fn zone_of(&self, pfn: Pfn) -> ZoneId {
        self.allocator.frames().info(pfn).zone()
    }

    /// What the cache has been through.
    #[must_use]
    pub fn events(&self) -> CacheEvents {
        self.locked(|state| state.events)
    }

    /// How long allocations of the cache's pages took, reclaim and waiting included. Those that failed do not
    /// count.
    #[must_use]
    pub fn allocation_times(&self) -> Histogram {
        self.locked(|state| state.allocation_times.clone())
    }

    /// Pages cached, and those of them that are dirty.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        self.locked(|state| (state.pages(), state.dirty_pages()))
    }

    /// Pages being written.
    #[must_use]
    pub fn pages_in_writeback(&self) -> u64 {
        self.locked(|state| state.writeback_pages())
    }

    /// Checks lists, index and counts against each other. O(pages). Nobody may be at work.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(&self) -> Result<(), &'static str> {
        self.locked(|state| state.verify(&self.slots, |pfn| self.zone_of(pfn)))
    }

    // ---- using pages ---------------------------------------------------------------------------------------

    /// Notes a use of a page that is free for it.
    fn try_use(&self, pfn: Pfn, how: Use) -> bool {
        self.slots.with(pfn, |slot| {
            let can = match how {
                Use::Shared => slot.users < ALONE - 1,
                Use::Alone => slot.users == 0 && !slot.is.has(Is::WRITEBACK),
            };
            if can {
                slot.users = if how == Use::Alone { ALONE } else { slot.users + 1 };
            }
            can
        })
    }

    /// Ends a use.
    pub(crate) fn end_use(&self, pfn: Pfn) {
        self.locked(|_| self.end_use_locked(pfn));
    }

    pub(crate) fn end_use_locked(&self, pfn: Pfn) {
        self.slots.with(pfn, |slot| slot.users = if slot.users == ALONE { 0 } else { slot.users - 1 });
    }

    /// A page that is cached and holds what the file holds, for use. `None` if it is not there.
    fn try_get(&self, file: FileId, index: u64, how: Use) -> Option<Pfn> {
        loop {
            let found = self.locked(|state| {
                let pfn = state.find(file, index)?;
                if !self.try_use(pfn, how) {
                    return Some(None);
                }
                if !self.slots.get(pfn).is.has(Is::UPTODATE) {
                    // Its read has failed, and whoever read it is about to drop it.
                    self.end_use_locked(pfn);
                    return Some(None);
                }
                state.mark_used(&self.slots, self.zone_of(pfn), pfn);
                state.events.cache_hits += 1;
                Some(Some(pfn))
            });
            match found {
                None => return None,
                Some(Some(pfn)) => return Some(pfn),
                Some(None) => self.wait(),
            }
        }
    }

    fn get(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        file: FileId,
        index: u64,
        how: Use,
        fill: bool,
    ) -> Result<Pfn, CacheError> {
        loop {
            if let Some(pfn) = self.try_get(file, index, how) {
                return Ok(pfn);
            }
            let flags = Flags::NONE;
            if let Some(pfn) = self.bring(cpu, helpers, file, index, flags, fill)? {
                if how == Use::Shared {
                    self.locked(|_| self.slots.with(pfn, |slot| slot.users = 1));
                }
                return Ok(pfn);
            }
        }
    }

    /// Allocates a page, enters it and fills it. The caller has it alone. `None` if somebody else was faster.
    fn bring(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        file: FileId,
        index: u64,
        flags: Flags,
        fill: bool,
    ) -> Result<Option<Pfn>, CacheError> {
        let request = Request::new(Order::ZERO, Migratetype::Movable).with(flags);
        let begun = P::now_ns();
        let pfn = cpu.alloc_with(&request, helpers).map_err(CacheError::NoMemory)?;
        let took = P::now_ns().saturating_sub(begun);
        let zone = self.zone_of(pfn);
        let entered = self.locked(|state| {
            state.allocation_times.add(took);
            if state.find(file, index).is_some() {
                return false;
            }
            state.insert(&self.slots, zone, pfn, file, index);
            state.events.cache_misses += 1;
            true
        });
        if !entered {
            self.give_back(cpu, pfn);
            return Ok(None);
        }
        let read = fill && self.device.may_hold(file, index);
        let filled = if read { self.device.read(file, index, pfn) } else { Ok(()) };
        if fill && !read {
            self.device.clear(pfn);
        }
        self.locked(|state| {
            state.events.pgpgin += u64::from(read);
            match filled {
                Ok(()) => {
                    state.set(&self.slots, zone, pfn, Is::UPTODATE, true);
                    state.mark_used(&self.slots, zone, pfn);
                }
                Err(IoError) => {
                    state.events.io_errors += 1;
                    state.remove(&self.slots, zone, pfn, true);
                }
            }
        });
        if filled.is_err() {
            self.give_back(cpu, pfn);
            return Err(CacheError::Io);
        }
        Ok(Some(pfn))
    }

    fn give_back(&self, cpu: &Cpu<'_, '_, P, PageSlot>, pfn: Pfn) {
        let freed = cpu.free(pfn, Order::ZERO);
        debug_assert!(freed.is_ok(), "a page of the cache was freed by somebody else");
    }

    fn in_page(&self, offset: usize, len: usize) -> Result<(), CacheError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.device.page_bytes() => Ok(()),
            _ => Err(CacheError::Range),
        }
    }

    // ---- files ---------------------------------------------------------------------------------------------

    /// Reads from page `index` of a file, from `offset` on. Reads ahead if that goes on in sequence.
    ///
    /// # Errors
    /// There is no memory, the device failed, or the range is none.
    pub fn read(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &mut [u8],
    ) -> Result<(), CacheError> {
        self.in_page(offset, bytes.len())?;
        let ahead = self.locked(|state| {
            let entry = state.files.entry(file).or_default();
            let fresh = entry.last_read != Some(index);
            entry.window = policy::read_ahead(entry.last_read, index, entry.window);
            entry.last_read = Some(index);
            if fresh { entry.window } else { 0 }
        });
        let pfn = self.get(cpu, helpers, file, index, Use::Shared, true)?;
        self.device.copy_out(pfn, offset, bytes);
        self.end_use(pfn);
        for next in (1..=ahead).map(|n| index.saturating_add(n)) {
            if self.locked(|state| state.find(file, next).is_some()) {
                continue;
            }
            // Only what can be had easily; what fails will be read, or fail, when it is wanted.
            let Ok(read) = self.bring(cpu, helpers, file, next, Flags::NO_RETRY, true) else { break };
            if let Some(pfn) = read {
                self.locked(|state| {
                    state.events.read_ahead += 1;
                    // Nobody has used it yet.
                    self.slots.with(pfn, |slot| slot.is = slot.is.with(Is::REFERENCED, false));
                    self.end_use_locked(pfn);
                });
            }
        }
        Ok(())
    }

    /// Writes to page `index` of a file, from `offset` on. It is on storage after [`flush`](Self::flush).
    ///
    /// # Errors
    /// There is no memory, the device failed to read what the page held, or the range is none.
    pub fn write(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.in_page(offset, bytes.len())?;
        let part = bytes.len() < self.device.page_bytes();
        let pfn = self.get(cpu, helpers, file, index, Use::Alone, part)?;
        self.change(pfn, offset, bytes);
        self.throttle();
        Ok(())
    }

    /// Changes a page that the caller has alone, and ends that use.
    fn change(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
        self.device.copy_in(pfn, offset, bytes);
        self.locked(|state| {
            state.set(&self.slots, self.zone_of(pfn), pfn, Is::DIRTY, true);
            self.end_use_locked(pfn);
        });
    }

    /// Stores through a mapping of page `index` of a file, as a program does that has mapped it: the page
    /// stays mapped until reclaim unmaps it, and its use is only noticed when reclaim looks.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn store_mapped(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.in_page(offset, bytes.len())?;
        let pfn = self.get(cpu, helpers, file, index, Use::Alone, true)?;
        self.locked(|state| {
            let zone = self.zone_of(pfn);
            state.set(&self.slots, zone, pfn, Is::MAPPED, true);
            state.set(&self.slots, zone, pfn, Is::YOUNG, true);
        });
        self.change(pfn, offset, bytes);
        self.throttle();
        Ok(())
    }

    /// Loads through a mapping, likewise.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn load_mapped(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &mut [u8],
    ) -> Result<(), CacheError> {
        self.in_page(offset, bytes.len())?;
        let pfn = self.get(cpu, helpers, file, index, Use::Shared, true)?;
        self.device.copy_out(pfn, offset, bytes);
        self.locked(|state| {
            let zone = self.zone_of(pfn);
            state.set(&self.slots, zone, pfn, Is::MAPPED, true);
            state.set(&self.slots, zone, pfn, Is::YOUNG, true);
            self.end_use_locked(pfn);
        });
        Ok(())
    }

    /// A file is no longer mapped: its pages are as any others.
    pub fn unmap(&self, file: FileId) {
        self.locked(|state| {
            let mut at = 0;
            while let Some((index, pfn)) = state.next_page(file, at) {
                state.set(&self.slots, self.zone_of(pfn), pfn, Is::MAPPED, false);
                let Some(next) = index.checked_add(1) else { break };
                at = next;
            }
        });
    }

    /// Drops the pages of a file from page `index` on, here and on storage: memory is free at once, and what
    /// was not flushed is gone. Waits for those who use them.
    ///
    /// # Errors
    /// The device failed.
    pub fn truncate(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        file: FileId,
        index: u64,
    ) -> Result<(), CacheError> {
        self.drop_from(cpu, file, index, |_| true);
        self.device.truncate(file, index)?;
        Ok(())
    }

    /// Drops the pages of a file that storage holds as well. Waits for those who use them.
    ///
    /// # Errors
    /// Some are dirty: they stay.
    pub fn drop_pages(&self, cpu: &Cpu<'_, '_, P, PageSlot>, file: FileId) -> Result<(), CacheError> {
        self.drop_from(cpu, file, 0, |slot| !slot.is.has(Is::DIRTY));
        let left = self.locked(|state| {
            let left = state.next_page(file, 0).is_some();
            if !left {
                state.files.remove(&file);
            }
            left
        });
        if left { Err(CacheError::Io) } else { Ok(()) }
    }

    /// Drops those pages of a file from `index` on that `wanted` names.
    fn drop_from(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        file: FileId,
        index: u64,
        wanted: impl Fn(PageSlot) -> bool,
    ) {
        let mut from = Some(index);
        while let Some(at) = from {
            let next = self.locked(|state| {
                let (index, pfn) = state.next_page(file, at)?;
                if !self.try_use(pfn, Use::Alone) {
                    return Some((index, None));
                }
                if !wanted(self.slots.get(pfn)) {
                    self.end_use_locked(pfn);
                    return Some((index.checked_add(1)?, None));
                }
                state.remove(&self.slots, self.zone_of(pfn), pfn, true);
                Some((index, Some(pfn)))
            });
            match next {
                Some((_, Some(pfn))) => self.give_back(cpu, pfn),
                Some(_) => self.wait(),
                None => {}
            }
            from = next.map(|(index, _)| index);
        }
    }

    // ---- writing back --------------------------------------------------------------------------------------

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
            failed |= !self.write_out(file, index, pfn, false);
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

    /// Ends the writes that the device has done meanwhile. Every wait does so.
    pub fn poll(&self) {
        // Many at a time: whoever else waits for the lock, waits once.
        let mut done = [None; COMPLETIONS];
        loop {
            let mut count = 0;
            while count < COMPLETIONS
                && let Some(news) = self.device.completed()
            {
                done[count] = Some(news);
                count += 1;
            }
            if count == 0 {
                return;
            }
            self.locked(|state| {
                done[..count].iter().flatten().for_each(|done| self.end_write_locked(state, done, false));
            });
        }
    }

    /// Lets the device, and others, go on.
    fn wait(&self) {
        self.poll();
        self.device.pass_time();
        P::relax();
    }

    fn end_write_locked(&self, state: &mut State, done: &Completion, by_reclaim: bool) {
        let Completion { file, index: _, pfn, result } = *done;
        let zone = self.zone_of(pfn);
        state.set(&self.slots, zone, pfn, Is::WRITEBACK, false);
        if result.is_ok() {
            state.events.pgpgout += 1;
            state.events.nr_vmscan_write += u64::from(by_reclaim);
        } else {
            state.set(&self.slots, zone, pfn, Is::DIRTY, true);
            state.files.entry(file).or_default().failed = true;
            state.events.io_errors += 1;
        }
        self.end_use_locked(pfn);
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
        // Many at a time, each found by one only who writes, however many do.
        let mut batch = [None; COMPLETIONS];
        while left > 0
            && let Some(mut at) = from
        {
            let (most, mut count) = (left.min(COMPLETIONS), 0);
            from = self.locked(|state| {
                while count < most {
                    let (file, index, pfn) = state.next_dirty(at, None)?;
                    if self.begin_write(state, pfn) {
                        batch[count] = Some((file, index, pfn));
                        count += 1;
                    }
                    at = (file, index.checked_add(1)?);
                }
                Some(at)
            });
            left -= count;
            for &(file, index, pfn) in batch[..count].iter().flatten() {
                written += u64::from(self.send(file, index, pfn, false));
            }
        }
        written
    }

    /// Writes a page out, if it is still there and dirty, and nobody changes or writes it. Waits for those who
    /// do, unless `by_reclaim`. Whether storage holds what it held, or will.
    pub(crate) fn write_out(&self, file: FileId, index: u64, pfn: Pfn, by_reclaim: bool) -> bool {
        loop {
            let begun = self.locked(|state| {
                if state.find(file, index) != Some(pfn) || !self.slots.get(pfn).is.has(Is::DIRTY) {
                    return Some(false);
                }
                self.begin_write(state, pfn).then_some(true)
            });
            match begun {
                Some(false) => return true,
                Some(true) => break,
                None if by_reclaim => return false,
                None => self.wait(),
            }
        }
        self.send(file, index, pfn, by_reclaim)
    }

    /// Marks a dirty page as being written, if nobody changes or writes it. It is clean from then on: whoever changes it
    /// must wait until it is written.
    fn begin_write(&self, state: &mut State, pfn: Pfn) -> bool {
        let zone = self.zone_of(pfn);
        let begins = !self.slots.get(pfn).is.has(Is::WRITEBACK) && self.try_use(pfn, Use::Shared);
        if begins {
            state.set(&self.slots, zone, pfn, Is::DIRTY, false);
            state.set(&self.slots, zone, pfn, Is::WRITEBACK, true);
        }
        begins
    }

    /// Has the device write a page that was marked so. Whether storage holds what it held, or will.
    fn send(&self, file: FileId, index: u64, pfn: Pfn, by_reclaim: bool) -> bool {
        let result = match self.device.write(file, index, pfn) {
            Ok(Progress::Begun) => return true,
            Ok(Progress::Done) => Ok(()),
            Err(error) => Err(error),
        };
        let done = Completion { file, index, pfn, result };
        self.locked(|state| self.end_write_locked(state, &done, by_reclaim));
        result.is_ok()
    }

    /// A writer that has made too much dirty writes some out, and waits until enough is written.
    fn throttle(&self) {
        let over = || {
            // Without the lock: every write asks, and those who wait ask again and again.
            let unwritten = self.unwritten.load(Relaxed);
            let (dirty, writeback) = (unwritten >> 32, unwritten & u64::from(u32::MAX));
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
        let dirty = self.locked(|state| state.dirty_pages());
        if dirty * 100 > self.memory() * BACKGROUND_PERCENT { self.write_back(BACKGROUND_PAGES) } else { 0 }
    }

    /// Pages of memory.
    fn memory(&self) -> u64 {
        self.allocator.zones().iter().map(framewright::zone::Zone::managed_pages).sum()
    }
}

/// The cache as its allocator's helper.
impl<P: Platform, D: Device> Cache<'_, P, D>
where
    Self: Reclaim,
{
    /// Helpers of which the cache is the reclaimer.
    #[must_use]
    pub fn helpers(&self) -> Helpers<'_> {
        Helpers { reclaim: Some(self), ..Helpers::NONE }
    }
}
