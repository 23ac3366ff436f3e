//! An arena: an allocator over memory of its own, or over frames that are described only.
//!
//! Holds the `unsafe` that joins the allocator to the memory it borrows.
#![expect(unsafe_code, reason = "the allocator borrows from its neighbour field")]

use core::fmt;
use core::ops::{Deref, Range};
use core::ptr::NonNull;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use framewright::error::AllocFailure;
use framewright::frame::{FrameUser, State};
use framewright::verify::Account;
use framewright::{AllocError, Allocator, CpuId, NodeId, Order, Pfn, Request};

use crate::annotate::Annotated;
use crate::deferred::DeferredInit;
use crate::error::{AttachError, VerifyError};
use crate::event::event;
use crate::forks::Generation;
use crate::helpers::Pressure;
use crate::idle_cpus::IdleCpus;
use crate::os::Mapping;
use crate::platform::{Host, HostPin};
use crate::robust::{Acquired, FirstLocks, OwnerLocks, Refused};
use crate::store::{DescriptorMemory, Store};

/// Bytes of a base page, the unit that frames are counted in, unless
/// [`ArenaBuilder::page_bytes`](crate::ArenaBuilder::page_bytes) says otherwise.
pub const PAGE_BYTES: usize = 4096;

/// Place of an arena's pages.
#[derive(Debug)]
pub(crate) enum Pages {
    /// Nowhere: frames are described only.
    None,
    /// In memory of the arena's own.
    Own(Mapping),
    /// In the caller's memory.
    Caller(NonNull<u8>),
}

// SAFETY: an address; who may use the memory at it is decided by block ownership, and a block goes to
// another thread only through a handover.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// A page-frame allocator with its memory, shared by the threads that [attach](Self::attach) to it. `M` is what
/// its user keeps per frame.
///
/// ```
/// use framewright_host::{Arena, Migratetype, Order};
///
/// let arena: Arena = Arena::builder().bytes(64 << 20).build()?;
/// let cpu = arena.attach()?;
/// let mut block = cpu.alloc_block(Order::ZERO, Migratetype::Movable)?;
/// block.bytes_mut()[..5].copy_from_slice(b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Threads as CPUs
/// An arena has a fixed number of CPUs. A thread holds one while it is attached, and allocates and frees
/// through its lists without locks. Detaching gives back what they hold.
///
/// A thread that ends without detaching (its guard was forgotten, or the system ended it) leaves its pages on
/// its lists. Nothing is lost: the next one to take the CPU, an allocation that would otherwise fail, or
/// [`reap`](Self::reap) gives them back. The thread must not have been ended in the middle of a call.
///
/// An allocation that finds no memory drains the lists of threads that are in no call, and asks those that are in one.
/// It can only ask where the system has no `membarrier(2)`, and those that have called
/// [`hit_words`](crate::Cpu::hit_words): such a thread answers at its next call that is no hit, or when it detaches;
/// until then the error names how much has been asked back. So let it detach before a long sleep.
///
/// # Forks
/// An arena belongs to the process that made it. In a child, [`attach`](Self::attach) returns
/// [`AttachError::Forked`](crate::AttachError::Forked); an allocation that does more than take a block off the thread's
/// own list fails with [`AllocFailure::Forked`], calls about given frames fail with `Foreign`, and frees, splits,
/// drains, blocks and attachments that are dropped do nothing, or change the child's copy of that list only.
///
/// Memory of the arena's own reads as zeroes, and what is written there is the child's alone; pages of hugetlb are a
/// fault (`SIGSEGV`) instead. Memory of the caller's ([`memory`](crate::ArenaBuilder::memory)) is as it was mapped.
/// Forks by `fork(3)` are noticed, and those by code that calls its handlers; not by a bare system call. Handlers of
/// `fork` that the program has itself must not make, use or drop arenas.
///
/// # Signals, and calls from within calls
/// No call is async-signal-safe: all may wait for a lock that the interrupted thread holds. A reclaimer, a mover or a
/// shrinker runs in the middle of an allocation with no lock held, and may allocate and free on the same thread. The
/// `check` of a [`FrameUser`] runs under the lock of a zone
/// ([`RefillCheck`](framewright::config::RefillCheck)) and must not call the arena, nor panic.
pub struct Arena<M: FrameUser = ()> {
    // Before what it borrows from, so that it is dropped first.
    allocator: Verified<M>,
    /// Notes to memory checkers. Before the memory.
    pub(crate) annotated: Annotated,
    pins: &'static [HostPin],
    store: Store,
    /// Memory that is left for boot to initialise, if the arena boots.
    deferred: Option<DeferredInit>,
    pub(crate) pages: Pages,
    frames: Range<Pfn>,
    /// Bytes in a base page, as a power of two.
    page_shift: u32,
    /// One lock per CPU: the thread that holds it may use the CPU's pin.
    pub(crate) owners: OwnerLocks,
    pub(crate) idle_cpus: IdleCpus,
    /// CPUs that threads may attach to; any others are the arena's own.
    attachable: usize,
    /// The first of the CPUs for background threads, one per node; none if it is past the last CPU.
    background: usize,
    pub(crate) pressure: Pressure,
    /// The machine's node of each of the arena's, if they are bound.
    pub(crate) bound: Option<Vec<usize>>,
    /// Whether listeners are told nothing.
    pub(crate) silent: bool,
    /// Blocks of at least this order can be given back to the system; none if nothing can.
    pub(crate) trims: Option<Order>,
    /// Held while [`reap`](Self::reap) holds locks of CPUs that are free, so that none looks taken for good.
    sweeping: Mutex<()>,
    /// Pages whose owner ended while other threads held all CPUs: the next thread that has one frees them.
    left: Mutex<Vec<Pfn>>,
}

/// Most base pages of an arena that is verified when it is dropped.
const VERIFIED_PAGES: u64 = 1 << 20;

/// An arena's allocator. With debug assertions its books are checked when it goes, which takes a few milliseconds a
/// GiB: what went wrong is found by the test that did it.
struct Verified<M: FrameUser> {
    allocator: Allocator<'static, Host, M>,
    /// The process that made it.
    made: Generation,
}

impl<M: FrameUser> Deref for Verified<M> {
    type Target = Allocator<'static, Host, M>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.allocator
    }
}

impl<M: FrameUser> Drop for Verified<M> {
    fn drop(&mut self) {
        let pages = || self.zones().iter().map(|zone| zone.spec().pages).sum::<u64>();
        if cfg!(debug_assertions) && !thread::panicking() && !self.made.is_over() && pages() <= VERIFIED_PAGES
        {
            // No thread borrows the arena any more, and none is at work.
            let found = self.verify().map(drop);
            assert_eq!(found, Ok(()), "an arena is dropped whose books are wrong");
        }
    }
}

impl<M: FrameUser> fmt::Debug for Arena<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("frames", &self.frames)
            .field("pages", &self.pages)
            .field("cpus", &self.attachable)
            .finish_non_exhaustive()
    }
}

/// CPUs and pages that [`Arena::reap`] has brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reaped {
    /// CPUs whose owner had ended without detaching.
    pub cpus: usize,
    /// Base pages that were on the lists of CPUs no thread holds.
    pub pages: u64,
}

/// Counts of an arena's base pages by their place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCounts {
    /// All that it manages: what has not been taken offline, and is in no hole.
    pub managed: u64,
    /// Of these, free.
    pub free: u64,
    /// Of these, on the lists of CPUs: free, and at hand for the CPU's owner.
    pub on_lists: u64,
    /// Of these, all others: with callers, or out of use because they are bad.
    pub allocated: u64,
    /// Known to be bad ([`Cpu::hwpoison`](crate::Cpu::hwpoison)), in use or not.
    pub hwpoisoned: u64,
}

impl<M: FrameUser> Arena<M> {
    /// Counts of the arena's pages by their place now. A racy sum while threads are busy. O(zones × CPUs).
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        let allocator = self.allocator();
        let managed = allocator.zones().iter().map(|zone| zone.managed_pages()).sum::<u64>();
        let (free, on_lists) = (allocator.free_pages(), allocator.pcp_pages());
        let allocated = managed.saturating_sub(free).saturating_sub(on_lists);
        PageCounts { managed, free, on_lists, allocated, hwpoisoned: allocator.hwpoisoned_pages() }
    }

    /// # Safety
    /// `allocator` and `pins` borrow from `store` alone, and what the arena is told to [keep](Self::keeping), and
    /// have not been used. `pages` holds `frames`.
    #[expect(clippy::too_many_arguments, reason = "each is a part, and there is one caller")]
    pub(crate) unsafe fn new(
        allocator: Allocator<'static, Host, M>,
        pins: &'static [HostPin],
        store: Store,
        pages: Pages,
        frames: Range<Pfn>,
        owners: OwnerLocks,
        attachable: usize,
        background: usize,
    ) -> Self {
        let pressure = Pressure::new(allocator.nodes().len());
        let sweeping = Mutex::new(());
        let page_shift = 10 + allocator.config().page_kib.trailing_zeros();
        Self {
            allocator: Verified { allocator, made: Generation::now() },
            annotated: Annotated::default(),
            pins,
            store,
            deferred: None,
            pages,
            frames,
            page_shift,
            idle_cpus: IdleCpus::new(owners.len()),
            owners,
            attachable,
            background,
            pressure,
            bound: None,
            silent: false,
            trims: None,
            sweeping,
            left: Mutex::default(),
        }
    }

    /// Whether this process is a child of the one that made the arena: allocations are refused then. A load.
    #[must_use]
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.allocator.made.is_over()
    }

    /// Refuses a request in a child of the process that made the arena.
    pub(crate) fn refuse_fork(&self, request: &Request<'_>) -> Result<(), AllocError> {
        let refusal = || AllocError::new(AllocFailure::Forked, request.order, request.migratetype);
        if self.is_forked() { Err(refusal()) } else { Ok(()) }
    }

    /// Keeps what its allocator borrows besides.
    pub(crate) fn keeping(mut self, deferred: DeferredInit) -> Self {
        self.deferred = Some(deferred);
        self
    }

    /// The CPU of a node's background thread, if the arena has one.
    pub(crate) fn background_cpu(&self, node: NodeId) -> Option<usize> {
        let slot = self.background + usize::from(node.0);
        (usize::from(node.0) < self.allocator.nodes().len() && slot < self.owners.len()).then_some(slot)
    }

    /// The allocator, for snapshots, totals, verification and settings. To allocate from it, [attach](Self::attach).
    #[must_use]
    #[inline]
    pub fn allocator(&self) -> &Allocator<'_, Host, M> {
        &self.allocator
    }

    /// The frames managed.
    #[must_use]
    pub fn frames(&self) -> Range<Pfn> {
        self.frames.clone()
    }

    /// CPUs that threads may attach to.
    #[must_use]
    pub const fn cpus(&self) -> usize {
        self.attachable
    }

    /// Bytes in a base page: [`PAGE_BYTES`], or what [`ArenaBuilder::page_bytes`](crate::ArenaBuilder::page_bytes)
    /// says.
    #[must_use]
    #[inline]
    pub const fn page_bytes(&self) -> usize {
        1 << self.page_shift
    }

    /// The smallest order whose blocks hold `bytes` bytes; `None` if none does. 0 bytes take a page.
    #[must_use]
    pub fn order_for(&self, bytes: usize) -> Option<Order> {
        Order::for_pages((bytes.div_ceil(self.page_bytes()) as u64).max(1))
    }

    /// Whether there is memory behind the frames.
    #[must_use]
    pub const fn has_memory(&self) -> bool {
        !matches!(self.pages, Pages::None)
    }

    /// Ends the arena, and keeps the memory that its frame descriptors had.
    #[must_use]
    pub fn into_descriptors(self) -> DescriptorMemory {
        // The allocator, which borrows from the store, goes first.
        let Self { allocator, store, .. } = self;
        drop(allocator);
        store.into_descriptors()
    }

    /// Bytes of address space that descriptors and maps take: what grows with the number of frames. See
    /// [`ArenaBuilder::engine`](crate::ArenaBuilder::engine).
    #[must_use]
    pub const fn metadata_bytes(&self) -> usize {
        self.store.metadata
    }

    /// Address of a frame's first byte: `(pfn - first)` [base pages](Self::page_bytes) behind that of the first
    /// frame. `None` if the frame is not the arena's, or the arena has no memory.
    #[must_use]
    #[inline]
    pub fn address(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        let start = match &self.pages {
            Pages::None => return None,
            Pages::Own(mapping) => mapping.start(),
            Pages::Caller(start) => *start,
        };
        if !self.frames.contains(&pfn) {
            return None;
        }
        let offset = ((pfn.0 - self.frames.start.0) as usize) << self.page_shift;
        // SAFETY: `frames` are the pages that are in the memory, so the offset is inside it.
        Some(unsafe { start.add(offset) })
    }

    /// The frame that the byte at an address is in. `None` if it is not in the arena's memory.
    #[must_use]
    pub fn frame_at(&self, address: *const u8) -> Option<Pfn> {
        let start = self.address(self.frames.start)?.as_ptr() as usize;
        let pages = (address as usize).checked_sub(start)? >> self.page_shift;
        let pfn = self.frames.start.add(pages as u64);
        self.frames.contains(&pfn).then_some(pfn)
    }

    /// Brings back what is on the lists of CPUs that no living thread holds: pages that threads had which
    /// ended without detaching. Their CPUs are free then. O(CPUs), and a drain for each that had pages.
    ///
    /// Attaching and failing allocations do this themselves.
    pub fn reap(&self) -> Reaped {
        self.sweep(|_| true)
    }

    /// Frees every block that is allocated, single, contiguous or in bulk. O(frames), and what the frees take. Returns
    /// the base pages that were freed. The memory holds what it held; frames that are bad or offline stay so.
    ///
    /// ```
    /// use framewright_host::{Arena, Migratetype, Order};
    ///
    /// let mut arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// let request = [cpu.alloc(Order::ZERO, Migratetype::Movable)?, cpu.alloc(Order::ZERO, Migratetype::Movable)?];
    /// drop(cpu);
    /// // SAFETY: the two pages of the request are all that is allocated, and they are not used any more.
    /// assert_eq!(unsafe { arena.reset() }?, request.len() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// No code uses or frees a frame that was allocated before; nor does a helper of the arena.
    ///
    /// # Errors
    /// Living threads that have forgotten their attachments hold all CPUs; or this process is a child of the arena's.
    pub unsafe fn reset(&mut self) -> Result<u64, AttachError> {
        let cpu = self.attach()?;
        self.reap();
        cpu.drain();
        let mut freed = 0;
        for zone in self.allocator.zones() {
            let (mut pfn, end) = (zone.spec().start, zone.spec().end());
            while pfn < end {
                let (start, state) = self.allocator.frames().find(pfn);
                let order = match state {
                    State::Taken { order, .. } => {
                        // SAFETY: by the caller's promise no code owns the block. One that is on a list still is
                        // refused.
                        freed += unsafe { cpu.free(start, order) }.map_or(0, |()| order.pages());
                        order
                    }
                    State::Free { order, .. } | State::Quarantined { order } => order,
                    State::Body | State::Reserved => Order::ZERO,
                };
                pfn = start.add(order.pages());
            }
        }
        Ok(freed)
    }

    /// Checks the allocator's books while every CPU is held by this call, so that no thread is at work: a thread that
    /// is still attached, or whose thread-locals are still being dropped, is named and not taken for a mistake.
    /// O(frames).
    ///
    /// # Errors
    /// A CPU is busy, or something is wrong.
    pub fn verify(&self) -> Result<Account, VerifyError> {
        if self.is_forked() {
            return Err(VerifyError::Forked);
        }
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = FirstLocks { locks: &self.owners, count: 0 };
        for slot in 0..self.owners.len() {
            let busy = || VerifyError::Busy(CpuId(slot as u16));
            self.owners.try_acquire(slot).ok_or_else(busy)?;
            held.count += 1;
        }
        self.allocator.verify().map_err(VerifyError::Wrong)
    }

    /// Has every CPU's lists given back to the zones: those of CPUs that no thread holds, and of threads that are in no
    /// call, immediately; the others at their next call that is no hit, for which this waits `wait` at most. Returns
    /// the CPUs that still have pages, and how many.
    pub fn drain_all(&self, wait: Duration) -> Vec<(CpuId, u64)> {
        if self.is_forked() {
            return Vec::new();
        }
        // `None`: longer than the clock counts.
        let until = Instant::now().checked_add(wait);
        loop {
            // Asked again each time: a thread that was in a call may be in none now, and is drained here.
            self.reap();
            self.allocator.request_drain();
            let all = (0..self.owners.len()).map(|n| CpuId(n as u16));
            let left: Vec<_> =
                all.map(|cpu| (cpu, self.pages_on(cpu))).filter(|&(_, pages)| pages > 0).collect();
            if left.is_empty() || until.is_some_and(|until| Instant::now() >= until) {
                return left;
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Lets lists shrink where they hold more than their threads use recently: those of CPUs that no thread holds, or
    /// that are [idle](crate::Cpu::idle), immediately; those of attached threads at their next call that is no hit. To
    /// be called about once a second; [`run_trimming`](Self::run_trimming) does. O(CPUs), and the pages that go back.
    pub fn tick(&self) {
        if self.is_forked() {
            return;
        }
        self.allocator.request_tick();
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        for cpu in (0..self.owners.len()).map(|n| CpuId(n as u16)) {
            let Some(acquired) = self.owners.try_acquire(cpu.index()) else { continue };
            let _held = self.owners.guard(cpu.index());
            // SAFETY: this thread holds the CPU's lock.
            let view = unsafe { self.cpu(cpu) };
            match acquired {
                Acquired::OwnerDied => view.drain(),
                Acquired::Free => view.answer(),
            }
        }
    }

    /// Drains every CPU that `wanted` names and no living thread holds.
    fn sweep(&self, wanted: impl Fn(CpuId) -> bool) -> Reaped {
        if self.is_forked() {
            return Reaped::default();
        }
        let sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reaped = Reaped::default();
        for cpu in (0..self.owners.len()).map(|n| CpuId(n as u16)).filter(|&cpu| wanted(cpu)) {
            let Some(acquired) = self.owners.try_acquire(cpu.index()) else { continue };
            let _held = self.owners.guard(cpu.index());
            if acquired == Acquired::OwnerDied {
                reaped.cpus += 1;
            }
            let pages = self.pages_on(cpu);
            if pages > 0 {
                // SAFETY: this thread holds the CPU's lock.
                unsafe { self.cpu(cpu) }.drain();
                reaped.pages += pages;
            }
        }
        drop(sweeping);
        if reaped != Reaped::default() {
            event!(
                self.silent,
                DEBUG,
                cpus = reaped.cpus,
                pages = reaped.pages,
                "pages of ended threads brought back"
            );
        }
        reaped
    }

    /// Base pages on a CPU's lists. A racy read for others than the CPU's owner.
    fn pages_on(&self, cpu: CpuId) -> u64 {
        self.allocator.zones().iter().map(|zone| u64::from(self.allocator.pcp(zone.id(), cpu).count())).sum()
    }

    /// Frees pages whose owner ends and has no CPU: through a CPU that is free, idle, or this thread's own. If other
    /// threads hold all of them, the next one that attaches, detaches, or finds no memory does it.
    pub(crate) fn free_left(&self, pages: Vec<Pfn>) {
        if self.is_forked() || pages.is_empty() {
            return;
        }
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(pages);
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in 0..self.owners.len() {
            let _held = match self.owners.acquire_or_own(slot) {
                Ok(_) => Some(self.owners.guard(slot)),
                Err(Refused::Mine) => None,
                Err(Refused::Taken) => continue,
            };
            // SAFETY: this thread holds the CPU's lock. If it is attached, it is here between two calls of that
            // attachment, or in a helper that one of them runs, which may free through the CPU.
            self.take_left(&unsafe { self.cpu(CpuId(slot as u16)) });
            return;
        }
    }

    /// Frees pages that were left, through this CPU. Returns whether there were any.
    pub(crate) fn take_left(&self, cpu: &framewright::Cpu<'_, '_, Host, M>) -> bool {
        let pages = core::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        for &pfn in &pages {
            let freed = cpu.free(pfn, Order::ZERO);
            debug_assert!(freed.is_ok(), "a page that was left had another owner: {freed:?}");
        }
        !pages.is_empty()
    }

    /// Waits until no sweep holds locks of free CPUs.
    pub(crate) fn after_sweep<R>(&self, f: impl FnOnce() -> R) -> R {
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        f()
    }

    /// The allocator as CPU `cpu`.
    ///
    /// # Safety
    /// This thread holds the CPU's lock for as long as the result is used.
    #[inline]
    pub(crate) unsafe fn cpu(&self, cpu: CpuId) -> framewright::Cpu<'_, '_, Host, M> {
        self.allocator().cpu(&self.pins[cpu.index()])
    }

    /// Takes back the pages that no thread uses: what ended threads left on their lists, and what page caches left.
    /// Returns whether there were any. `cpu` is the calling thread's.
    pub(crate) fn take_unused(&self, cpu: &framewright::Cpu<'_, '_, Host, M>) -> bool {
        self.reclaim() | self.take_left(cpu)
    }

    /// Brings back what is on the lists of CPUs that no thread holds, where no owner answers an allocation
    /// that fails. Whether there was anything.
    pub(crate) fn reclaim(&self) -> bool {
        self.sweep(|cpu| self.pages_on(cpu) > 0).pages > 0
    }

    /// Begins to tell memory checkers, if there is memory and one looks. None of it has an owner.
    pub(crate) fn annotate(&mut self) {
        let frames = self.frames();
        if let Some(start) = self.address(frames.start) {
            let bytes = (frames.end.0 - frames.start.0) as usize * self.page_bytes();
            self.annotated = Annotated::begin(start, bytes, frames.start, self.page_bytes());
        }
    }

    /// Tells of a block, if there is one at that place: a free that is wrong will be refused, and has told nothing.
    #[inline(always)]
    pub(crate) fn annotate_freed(&self, pfn: Pfn, order: Order) {
        if self.annotated.is_on() && self.frames().contains(&pfn) {
            let (start, state) = self.allocator().frames().find(pfn);
            if start == pfn && matches!(state, State::Taken { order: allocated, .. } if allocated == order) {
                self.annotated.close(pfn, order.pages());
            }
        }
    }

    /// The blocks of a range, cut at its ends, each as it is when it is asked for; and whether it is allocated. A frame
    /// in no allocated block stands for itself.
    pub(crate) fn parts(&self, range: Range<Pfn>) -> impl Iterator<Item = (Range<Pfn>, bool)> {
        let mut at = range.start;
        core::iter::from_fn(move || {
            let start = (at < range.end).then_some(at)?;
            let found = self.frames().contains(&start).then(|| self.allocator().frames().find(start));
            let end = match found {
                Some((head, State::Taken { order, .. })) => Some(head.add(order.pages())),
                _ => None,
            };
            at = end.unwrap_or(start.add(1)).min(range.end);
            Some((start..at, end.is_some()))
        })
    }

    /// Fills a block that was allocated just now with zeroes: what the allocator does itself where no checker is told.
    pub(crate) fn clear(&self, pfn: Pfn, order: Order) {
        if let Some(start) = self.address(pfn) {
            // SAFETY: the block was allocated just now, and its memory is this arena's.
            unsafe { start.write_bytes(0, self.page_bytes() << order.get()) };
        }
    }
}
