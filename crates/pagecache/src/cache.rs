//! The page cache itself: pages that are brought, used, dropped, and written; whosever they are.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use framewright::config::{LockKind, LockPlace};
use framewright::platform::{Platform, Word};
use framewright::reclaim::{Migrate, Release};
use framewright::sync::{Locked, Waiter};
use framewright::{
    AllocError, Allocator, Cpu, Flags, Helpers, Migratetype, Order, Pfn, Reclaim, Request, ZoneId,
};

use crate::device::{Completion, Device, IoError};
use crate::latency::Histogram;
use crate::policy::Kind;
use crate::slab::{Shrinker, Shrinkers};
use crate::slot::{ALONE, Marks, Owner, PageSlot, Slots};
use crate::state::{CacheEvents, State, ZoneCounts};
use crate::swap::{Swap, SwapMap, SwapUse};

/// Writes that are begun, or have ended, and are entered in the books together: any thread that waits for the lock
/// waits once.
pub(crate) const TOGETHER: usize = 32;

/// Why the cache could not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheError {
    /// There is no memory for a page.
    NoMemory(AllocError),
    /// The device failed, and says why. What was written stays in the cache.
    Io(IoError),
    /// A sync of the file has failed, and pages that it covered had left memory: what storage holds is not known, and
    /// no flush of the file succeeds any more.
    Lost(IoError),
    /// Pages that were to be dropped hold what was not flushed.
    Dirty,
    /// The range is not in one page, or behind the largest file; or the file is the swap area.
    Range,
    /// The file is not open.
    Closed,
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Lost(error) => write!(
                f,
                "a sync of the file has failed ({error}), and pages written before it are no longer in memory: write the \
                 file anew"
            ),
            Self::Dirty => f.write_str("pages of the file hold what was not flushed: flush it first"),
            Self::Range => f.write_str("the range does not lie in one page of a file"),
            Self::Closed => f.write_str("the file is not open"),
        }
    }
}

impl core::error::Error for CacheError {}

impl From<IoError> for CacheError {
    fn from(error: IoError) -> Self {
        Self::Io(error)
    }
}

/// Result for a page that was to be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// A thread uses it.
    Busy,
    /// It stays.
    Kept,
    /// It is the caller's to free.
    Gone(Pfn),
}

/// How a page's memory is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// With others, to read it.
    Shared,
    /// Alone, to change it.
    Alone,
}

/// A page cache over an allocator and a device, of files and of anonymous pages. Shared by all CPUs; a call names
/// the CPU it runs on.
///
/// One lock guards the index and the lists; it is not held while memory is copied, a device works or the allocator is
/// asked. It is the whole allocator's reclaimer, and moves its pages where large blocks are wanted: pass it in
/// [`Helpers`].
pub struct Cache<'c, P: Platform, D> {
    pub(crate) allocator: &'c Allocator<'c, P, PageSlot>,
    pub(crate) device: D,
    pub(crate) slots: Slots<'c, P>,
    pub(crate) swap: Option<Swap>,
    pub(crate) shrinkers: Shrinkers<'c, P>,
    state: Locked<P, State, ()>,
    /// Dirty pages · 2³² + pages being written, for those who need no more than that. The thread that holds the lock
    /// writes it.
    unwritten: P::Word,
    /// Pages that reclaim has asked the background writer for since it last looked.
    pub(crate) asked: P::Word,
}

/// Linux' ticket lock where a CPU is never taken away; where threads are, a lock that waits for none in particular.
const fn lock_kind<P: Platform>() -> LockKind {
    match P::LOCK {
        LockKind::Parking => LockKind::Parking,
        _ => LockKind::Ticket,
    }
}

impl<P: Platform, D> fmt::Debug for Cache<'_, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// Content of a page that is brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fill {
    /// What storage holds, or zeroes.
    Stored,
    /// What the swap area holds. A page without a slot there is not brought.
    Swapped,
    /// Anything: the caller overwrites all of it.
    Nothing,
}

impl<'c, P: Platform, D: Device> Cache<'c, P, D> {
    /// An empty cache without swap. It takes pages as they are used, and gives them back when it is asked to;
    /// anonymous ones only when they are dropped.
    ///
    /// # Panics
    /// If the allocator's frames span 2³² − 1 or more: links between pages have 32 bits.
    pub fn new(allocator: &'c Allocator<'c, P, PageSlot>, device: D) -> Self {
        let slots = Slots::new(allocator);
        let state = State::new(allocator.zones().len(), slots.frames, 0);
        Self {
            allocator,
            device,
            slots,
            swap: None,
            shrinkers: Shrinkers::new(&[]),
            state: Locked::new(LockPlace::OwnLine, lock_kind::<P>(), state, ()),
            unwritten: P::Word::new(0),
            asked: P::Word::new(0),
        }
    }

    /// The cache, which is empty, with a swap area: it writes anonymous pages there when memory is short.
    #[must_use]
    pub fn with_swap(mut self, swap: Swap) -> Self {
        self.locked(|state| state.swap = SwapMap::new(swap.slots));
        self.swap = Some(swap);
        self
    }

    /// Has these caches of small objects shrunk from now on, and no others.
    pub fn set_shrinkers(&mut self, all: &[&'c dyn Shrinker]) {
        self.shrinkers = Shrinkers::new(all);
    }

    /// The device.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// The frames that the cache frees and writes to are its allocator's: a CPU of another one would free, and hand
    /// out, other people's. Each public call that takes a CPU comes by here.
    #[track_caller]
    pub(crate) fn check_cpu(&self, cpu: &Cpu<'_, '_, P, PageSlot>) {
        assert!(
            core::ptr::eq(cpu.allocator(), self.allocator),
            "the CPU is one of another allocator than the cache's"
        );
    }

    /// Checks that the caller that asks for pages back is of the cache's allocator.
    #[track_caller]
    pub(crate) fn check_sink(&self, to: &dyn Release) {
        let allocator = core::ptr::from_ref(self.allocator).cast();
        assert!(
            to.allocator() == allocator,
            "the cache is asked to free pages of another allocator than its own"
        );
    }

    /// Runs `f` with the lock held.
    pub(crate) fn locked<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.state.with(Waiter { nodes: &[], cpu: None }, |state, (), _| {
            let result = f(state);
            if let Some(unwritten) = state.news_of_unwritten() {
                self.unwritten.store(unwritten, Relaxed);
            }
            result
        })
    }

    /// Dirty pages, and pages being written. Without the lock.
    pub(crate) fn unwritten(&self) -> (u64, u64) {
        let both = self.unwritten.load(Relaxed);
        (both >> 32, both & u64::from(u32::MAX))
    }

    pub(crate) fn zone_of(&self, pfn: Pfn) -> ZoneId {
        self.allocator.frames().info(pfn).zone()
    }

    /// Counts of the cache's events.
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

    /// Pages of files cached, and those of them that are dirty.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        self.locked(|state| (state.pages(Kind::File), state.dirty_pages()))
    }

    /// Anonymous pages in memory.
    #[must_use]
    pub fn anon_pages(&self) -> u64 {
        self.locked(|state| state.pages(Kind::Anon))
    }

    /// Counts of the cache's pages in a zone.
    #[must_use]
    pub fn zone_counts(&self, zone: ZoneId) -> ZoneCounts {
        self.locked(|state| state.counts(zone))
    }

    /// How full the swap area is.
    #[must_use]
    pub fn swap_use(&self) -> SwapUse {
        self.locked(|state| state.swap.usage())
    }

    /// Pages being written.
    #[must_use]
    pub fn pages_in_writeback(&self) -> u64 {
        self.locked(|state| state.writeback_pages())
    }

    /// Checks lists, index and counts against each other. O(pages). No thread may be at work.
    ///
    /// # Errors
    /// The fault.
    pub fn verify(&self) -> Result<(), &'static str> {
        self.locked(|state| state.verify(&self.slots, |pfn| self.zone_of(pfn)))
    }

    // ---- using pages ---------------------------------------------------------------------------------------

    /// Notes a use of a page that is free for it.
    pub(crate) fn try_use(&self, pfn: Pfn, how: Use) -> bool {
        self.slots.with(pfn, |slot| {
            let can = match how {
                Use::Shared => slot.users < ALONE - 1,
                Use::Alone => slot.users == 0 && !slot.marks.has(Marks::WRITEBACK),
            };
            if can {
                slot.users = if how == Use::Alone { ALONE } else { slot.users + 1 };
            }
            can
        })
    }

    pub(crate) fn end_use(&self, pfn: Pfn) {
        self.locked(|_| self.end_use_locked(pfn));
    }

    pub(crate) fn end_use_locked(&self, pfn: Pfn) {
        self.slots.with(pfn, |slot| slot.users = if slot.users == ALONE { 0 } else { slot.users - 1 });
    }

    /// A page that is here and holds what it should, for use. `None` if it is not there.
    pub(crate) fn try_get(&self, owner: Owner, index: u64, how: Use) -> Option<Pfn> {
        let mut turn = 0;
        loop {
            let found = self.locked(|state| {
                let pfn = state.find(owner, index)?;
                if !self.try_use(pfn, how) {
                    return Some(None);
                }
                if !self.slots.get(pfn).marks.has(Marks::UPTODATE) {
                    // Its read has failed, and the thread that read it is about to drop it.
                    self.end_use_locked(pfn);
                    return Some(None);
                }
                state.mark_used(&self.slots, self.zone_of(pfn), pfn);
                state.events.cache_hits += u64::from(matches!(owner, Owner::File(_)));
                Some(Some(pfn))
            });
            match found {
                None => return None,
                Some(Some(pfn)) => return Some(pfn),
                Some(None) => self.wait(turn),
            }
            turn += 1;
        }
    }

    pub(crate) fn get(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (owner, index): (Owner, u64),
        how: Use,
        fill: Fill,
    ) -> Result<Pfn, CacheError> {
        self.check_cpu(cpu);
        loop {
            if let Some(pfn) = self.try_get(owner, index, how) {
                return Ok(pfn);
            }
            let flags = Flags::NONE;
            if let Some(pfn) = self.bring(cpu, helpers, (owner, index), flags, fill)? {
                self.locked(|state| {
                    state.events.cache_misses += u64::from(matches!(owner, Owner::File(_)));
                    if how == Use::Shared {
                        self.slots.with(pfn, |slot| slot.users = 1);
                    }
                });
                return Ok(pfn);
            }
        }
    }

    /// Allocates a page, enters it and fills it. The caller has it alone. `None` if another thread was faster, or has
    /// dropped it.
    pub(crate) fn bring(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (owner, index): (Owner, u64),
        flags: Flags,
        fill: Fill,
    ) -> Result<Option<Pfn>, CacheError> {
        let request = Request::new(Order::ZERO, Migratetype::Movable).with(flags);
        let begun = P::now_ns();
        let pfn = cpu.alloc_with(&request, helpers).map_err(|error| {
            // Memory that is full of pages which cannot be written: what the device says explains more.
            self.locked(|state| state.stuck()).map_or(CacheError::NoMemory(error), CacheError::Io)
        })?;
        let took = P::now_ns().saturating_sub(begun);
        let zone = self.zone_of(pfn);
        let entered = self.locked(|state| {
            state.allocation_times.add(took);
            if state.find(owner, index).is_some() {
                return None;
            }
            if let (Owner::Space(space), Fill::Swapped) = (owner, fill) {
                state.swap.find((space, index))?;
            }
            Some(state.insert(&self.slots, zone, pfn, owner, index))
        });
        let Some(swapped) = entered else {
            self.give_back(cpu, pfn);
            return Ok(None);
        };
        // The slot stays the page's as long as the caller has the page alone.
        let source = match (owner, swapped, self.swap) {
            (Owner::File(file), ..) => {
                (fill != Fill::Nothing && self.device.may_hold(file, index)).then_some((file, index))
            }
            (Owner::Space(_), Some(slot), Some(swap)) => Some((swap.file, u64::from(slot))),
            (Owner::Space(_), ..) => None,
        };
        let filled = match source {
            Some((file, at)) => self.device.read(file, at, pfn),
            None if fill != Fill::Nothing => {
                self.device.clear(pfn);
                Ok(())
            }
            None => Ok(()),
        };
        self.locked(|state| {
            state.events.pgpgin += u64::from(source.is_some());
            match filled {
                Ok(()) => {
                    state.set(&self.slots, zone, pfn, Marks::UPTODATE, true);
                    state.mark_used(&self.slots, zone, pfn);
                    if let Owner::Space(space) = owner {
                        state.events.pswpin += u64::from(source.is_some());
                        state.swap.set_cached((space, index), true);
                        self.spare_slot(state, pfn);
                    }
                }
                Err(_) => {
                    state.events.io_errors += 1;
                    state.remove(&self.slots, zone, pfn, false);
                }
            }
        });
        if let Err(error) = filled {
            self.give_back(cpu, pfn);
            return Err(CacheError::Io(error));
        }
        Ok(Some(pfn))
    }

    /// Gives the slot of an anonymous page that is in memory back, if such slots have become rare.
    pub(crate) fn spare_slot(&self, state: &mut State, pfn: Pfn) {
        if !state.swap.keeps() {
            state.set(&self.slots, self.zone_of(pfn), pfn, Marks::DIRTY, true);
        }
    }

    fn give_back(&self, cpu: &Cpu<'_, '_, P, PageSlot>, pfn: Pfn) {
        let freed = cpu.free(pfn, Order::ZERO);
        debug_assert!(freed.is_ok(), "a page of the cache was freed by another owner");
    }

    pub(crate) fn in_page(&self, offset: usize, len: usize) -> Result<(), CacheError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.device.page_bytes() => Ok(()),
            _ => Err(CacheError::Range),
        }
    }

    /// Changes a page that the caller has alone, and ends that use.
    pub(crate) fn change(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
        self.device.copy_in(pfn, offset, bytes);
        self.locked(|state| {
            state.set(&self.slots, self.zone_of(pfn), pfn, Marks::DIRTY, true);
            self.end_use_locked(pfn);
        });
    }

    /// Drops those pages of a file or space, `first..=last`, that `wanted` names: `for_good`, or because storage has
    /// them. Slots of the swap area go with their pages.
    pub(crate) fn drop_each(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        owner: Owner,
        (first, last): (u64, u64),
        for_good: bool,
        wanted: impl Fn(PageSlot) -> bool,
    ) {
        self.check_cpu(cpu);
        let (mut from, mut turn) = (Some(first), 0);
        while let Some(at) = from {
            let next = self.locked(|state| {
                let (index, pfn) = state.next_page(owner, at).filter(|&(index, _)| index <= last)?;
                if !self.try_use(pfn, Use::Alone) {
                    return Some((index, Left::Busy));
                }
                if !wanted(self.slots.get(pfn)) {
                    self.end_use_locked(pfn);
                    return Some((index.checked_add(1)?, Left::Kept));
                }
                state.remove(&self.slots, self.zone_of(pfn), pfn, for_good);
                if let Owner::Space(space) = owner {
                    state.swap.release((space, index));
                }
                Some((index, Left::Gone(pfn)))
            });
            match next {
                Some((_, Left::Gone(pfn))) => self.give_back(cpu, pfn),
                Some((_, Left::Busy)) => {
                    self.wait(turn);
                    turn += 1;
                }
                Some((_, Left::Kept)) | None => turn = 0,
            }
            from = next.map(|(index, _)| index);
        }
    }

    /// Ends the cache: takes all pages out of it, written or not, and returns them. They are the caller's to free.
    pub fn take_pages(&mut self) -> Vec<Pfn> {
        let swap_slots = self.swap.map_or(0, |swap| swap.slots);
        self.locked(|state| {
            let pages: Vec<Pfn> = state.index.values().copied().collect();
            pages.iter().for_each(|&pfn| self.slots.with(pfn, |slot| *slot = PageSlot::default()));
            *state = State::new(self.allocator.zones().len(), self.slots.frames, swap_slots);
            pages
        })
    }

    // ---- writes that are on their way ----------------------------------------------------------------------

    /// Ends the writes that the device has done since. Every wait does so.
    ///
    /// # Panics
    /// If the device reports the end of a write that was not begun.
    pub fn poll(&self) {
        let mut done = [None; TOGETHER];
        loop {
            let mut count = 0;
            while count < TOGETHER
                && let Some(news) = self.device.completed()
            {
                done[count] = Some(news);
                count += 1;
            }
            if count == 0 {
                return;
            }
            self.locked(|state| {
                done[..count].iter().flatten().for_each(|done| self.end_write(state, done));
            });
        }
    }

    /// Lets the device, and others, go on: for the `turn`-th time in a row.
    pub(crate) fn wait(&self, turn: u32) {
        self.poll();
        self.device.pass_time(turn);
        P::relax();
    }

    pub(crate) fn end_write(&self, state: &mut State, &Completion { pfn, result, .. }: &Completion) {
        // A device is anyone's code. The slot of a frame that is not the cache's has another owner.
        assert!(
            state.owns(&self.slots, pfn) && self.slots.get(pfn).marks.has(Marks::WRITEBACK),
            "the device reports the end of a write that was not begun"
        );
        let zone = self.zone_of(pfn);
        let slot = self.slots.get(pfn);
        state.set(&self.slots, zone, pfn, Marks::WRITEBACK, false);
        state.set(&self.slots, zone, pfn, Marks::RECLAIM, false);
        state.last_write_error = result.err();
        if result.is_ok() {
            state.events.pgpgout += 1;
            if slot.marks.has(Marks::RECLAIM) && !slot.marks.has(Marks::ACTIVE) {
                state.relink_cold(&self.slots, zone, pfn);
                state.events.pgrotated += 1;
            }
        } else {
            // An anonymous page gives its slot back: another one may be better.
            state.set(&self.slots, zone, pfn, Marks::DIRTY, true);
            state.events.io_errors += 1;
        }
        match slot.owner() {
            Owner::File(file) => state.file(file).end_write(slot.index, result),
            Owner::Space(space) => {
                state.swap.set_cached((space, slot.index), true);
                state.events.pswpout += u64::from(result.is_ok());
                state.swap_writes_ended += 1;
            }
        }
        self.end_use_locked(pfn);
    }
}

/// The cache as its allocator's helper.
impl<P: Platform, D: Device> Cache<'_, P, D>
where
    Self: Reclaim + Migrate,
{
    /// Helpers of which the cache is the reclaimer, and moves its pages.
    #[must_use]
    pub fn helpers(&self) -> Helpers<'_> {
        Helpers::NONE.with_reclaim(self).with_migrate(self)
    }
}
