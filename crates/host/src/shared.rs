//! An arena for threads that do not want to attach: each gets a CPU at its first call, and gives it up when it
//! ends.
//!
//! Holds the `unsafe` that lets a thread's attachment live beside the handle that keeps its arena alive.
#![expect(unsafe_code, reason = "an attachment borrows from the arena that is kept alive beside it")]

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use framewright::cpu::{BulkFreeError, PlaceError};
use framewright::error::AllocFailure;
use framewright::frame::FrameUser;
use framewright::verify::Account;
use framewright::{AllocError, Flags, FreeError, Helpers, Migratetype, Order, Pfn, Request};

use crate::arena::Arena;
use crate::cpu::{Cpu, last_cpu, tell_failed, thread_number};
use crate::error::{AttachError, VerifyError};
use crate::platform::Host;
use crate::trim::Trimmed;

pub(crate) struct Shared<M: FrameUser> {
    pub(crate) arena: Arena<M>,
    /// Handles alive. Without one, no thread allocates any more; blocks that are left only keep the arena's memory.
    /// Attachments of threads are not counted: they must not keep each other alive.
    handles: AtomicUsize,
    /// By CPU: where the attachment of the thread is that has it.
    places: Box<[Place<M>]>,
    /// By CPU: number of the thread whose attachment is in the place, or 0. Written by that thread alone.
    threads: Box<[AtomicUsize]>,
}

/// References to its arena that a thread keeps for its next blocks: counting one up and down is an atomic operation
/// each, on a line that all threads write.
const SPARES: u32 = 64;

/// How long a thread without a CPU that waits for memory sleeps.
const NAP: Duration = Duration::from_millis(1);

/// A handle of an arena that any thread may use, to be cloned and sent at will.
///
/// ```
/// use framewright_host::{Arena, Migratetype, Order, SharedArena};
///
/// let arena: SharedArena = Arena::builder().bytes(64 << 20).build_shared()?;
/// let block = arena.alloc_block(Order::ZERO, Migratetype::Movable)?;
/// std::thread::spawn(move || drop(block)).join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What a thread keeps
/// A thread's first call attaches it to a CPU of its own, which it keeps until it ends or calls
/// [`detach`](Self::detach). If no CPU is free, the call goes through a spare CPU, which threads without one take turns
/// with; the next call tries again. No call allocates from the program's global allocator: an arena may be what that
/// allocates from. Give the arena as many [`cpus`](crate::ArenaBuilder::cpus) as it has threads and no thread waits. (A
/// thread has ended when it is joined; the end of a [`std::thread::scope`] alone waits for its closure only.)
///
/// The arena is gone when the last handle and block are dropped *and* the threads that had used it have ended,
/// detached, or used another shared arena for the first time.
///
/// In a child of the process that made the arena, an allocation that does more than take a block off the thread's own
/// list fails, and blocks that are freed or dropped are left alone (see [`Arena`], *Forks*).
pub struct SharedArena<M: FrameUser = ()>(pub(crate) Arc<Shared<M>>);

impl<M: FrameUser> fmt::Debug for SharedArena<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedArena").field(&self.0.arena).finish()
    }
}

impl<M: FrameUser> Clone for SharedArena<M> {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.0))
    }
}

impl<M: FrameUser> Drop for SharedArena<M> {
    fn drop(&mut self) {
        // Release: what this handle was used for happens before another thread sees that no thread is left.
        if self.0.handles.fetch_sub(1, Ordering::Release) == 1 {
            self.detach();
        }
    }
}

/// The arena, for its addresses, counts, helpers and snapshots, or to attach to.
impl<M: FrameUser> Deref for SharedArena<M> {
    type Target = Arena<M>;

    fn deref(&self) -> &Arena<M> {
        &self.0.arena
    }
}

impl<M: FrameUser> SharedArena<M> {
    /// An arena made with one CPU more than threads may attach to.
    pub(crate) fn new(arena: Arena<M>) -> Self {
        let places = (0..arena.cpus()).map(|_| Place::new()).collect();
        let threads = (0..arena.cpus()).map(|_| AtomicUsize::new(0)).collect();
        Self(Arc::new(Shared { arena, handles: AtomicUsize::new(1), places, threads }))
    }

    /// One handle more.
    pub(crate) fn of(shared: Arc<Shared<M>>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }

    /// Allocates a block of `order` as a raw frame: the caller frees it, on this thread or another.
    ///
    /// # Errors
    /// As [`Cpu::alloc`].
    pub fn alloc(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        self.alloc_with(&Request::new(order, migratetype))
    }

    /// Allocates a block as `request` says, as a raw frame. The helpers of the arena (see [`Arena::set_reclaim`])
    /// help threads that have a CPU of their own.
    ///
    /// # Errors
    /// As [`Cpu::alloc`].
    pub fn alloc_with(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        self.refuse_fork(request)?;
        if self.annotated.is_on() && request.flags.has(Flags::ZERO) {
            let plain = Request { flags: request.flags.without(Flags::ZERO), ..*request };
            return self.alloc_with(&plain).inspect(|&pfn| self.clear(pfn, request.order));
        }
        // The spare CPU's lock must not be held while a reclaimer runs, which may free through this arena.
        let is_plain = *request == Request::new(request.order, request.migratetype);
        let on = |cpu: &framewright::Cpu<'_, '_, Host, M>, helpers: &Helpers<'_>| {
            let hit = if is_plain { cpu.alloc_hit(request.order, request.migratetype) } else { None };
            hit.map_or_else(|| cpu.alloc_with(request, helpers), Ok)
        };
        let alloc = || match self.attachment() {
            Some(attachment) => on(attachment.cpu.core(), &self.helpers()),
            None if request.flags.has(Flags::NO_FAIL) => self.wait_with_spare(request),
            None => self.with_spare(|spare| on(spare.core(), &Helpers::NONE)),
        };
        let last = alloc().or_else(|failed| {
            if failed.why != AllocFailure::Injected && self.take_back() { alloc() } else { Err(failed) }
        });
        last.inspect(|&pfn| self.annotated.open(pfn, request.order.pages()))
            .inspect_err(|failed| tell_failed(&self.0.arena, failed))
    }

    /// Waits for memory, but not with the spare CPU's lock held: others free through that.
    #[cold]
    fn wait_with_spare(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        let once = Request { flags: request.flags.without(Flags::NO_FAIL), ..*request };
        loop {
            if let Ok(pfn) = self.with_spare(|spare| spare.core().alloc_with(&once, &Helpers::NONE)) {
                return Ok(pfn);
            }
            if !self.take_back() {
                thread::sleep(NAP);
            }
        }
    }

    /// Like [`Arena::take_unused`], without a lock of the spare CPU while others are swept.
    fn take_back(&self) -> bool {
        self.reclaim() | self.on_any_cpu(|cpu| self.take_left(cpu.core()))
    }

    /// Frees a block that any thread allocated, with its order.
    ///
    /// # Safety
    /// As [`Cpu::free`].
    ///
    /// # Errors
    /// As [`Cpu::free`].
    pub unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // In a child, blocks are the parent's.
        if self.is_forked() {
            return Ok(());
        }
        self.annotate_freed(pfn, order);
        self.on_any_cpu(|cpu| cpu.core().free(pfn, order))
    }

    /// Fills `out` with raw blocks of `order`, and returns how many there are. As [`Cpu::alloc_bulk`].
    #[must_use = "only so many of the places hold a block"]
    pub fn alloc_bulk(&self, order: Order, migratetype: Migratetype, out: &mut [Pfn]) -> usize {
        self.on_any_cpu(|cpu| cpu.alloc_bulk(order, migratetype, out))
    }

    /// Frees raw blocks of `order`. As [`Cpu::free_bulk`].
    ///
    /// # Safety
    /// As [`Cpu::free_bulk`].
    ///
    /// # Errors
    /// As [`Cpu::free_bulk`].
    pub unsafe fn free_bulk(&self, order: Order, blocks: &[Pfn]) -> Result<(), BulkFreeError> {
        // SAFETY: our caller's promise.
        self.on_any_cpu(|cpu| unsafe { cpu.free_bulk(order, blocks) })
    }

    /// Allocates the block of `order` at `pfn`, and no other, as a raw frame. As [`Cpu::alloc_at`].
    ///
    /// # Errors
    /// The block that is in the way.
    pub fn alloc_at(&self, pfn: Pfn, order: Order) -> Result<(), PlaceError> {
        self.on_any_cpu(|cpu| cpu.alloc_at(pfn, order))
    }

    /// Gives the memory of free blocks of at least `order` back to the system. As [`Cpu::trim`].
    pub fn trim(&self, order: Order) -> Trimmed {
        self.on_any_cpu(|cpu| cpu.trim(order))
    }

    /// Turns an allocated block of order `from` into blocks of order `to`. As [`Cpu::split`].
    ///
    /// # Safety
    /// As [`Cpu::split`].
    ///
    /// # Errors
    /// As [`Cpu::split`].
    pub unsafe fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        // SAFETY: our caller's promise.
        self.on_any_cpu(|cpu| unsafe { cpu.split(pfn, from, to) })
    }

    /// Runs `f` with this thread's CPU, for what only [`Cpu`] has: draining, compacting, taking memory offline,
    /// giving it back to the system. `f` may call this arena, too.
    ///
    /// # Errors
    /// The thread has no CPU, and none is free; or this process is a child of the one that made the arena.
    pub fn with_cpu<R>(&self, f: impl FnOnce(&Cpu<'_, M>) -> R) -> Result<R, AttachError> {
        if self.is_forked() {
            return Err(AttachError::Forked);
        }
        let attachment = self.attachment().ok_or(AttachError::AllTaken { cpus: self.cpus() })?;
        Ok(f(&attachment.cpu))
    }

    /// Frees a block whose reference to the arena is given up, too.
    #[inline]
    pub(crate) fn free_block(shared: Arc<Shared<M>>, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // In a child, blocks are the parent's.
        if shared.arena.is_forked() {
            return Ok(());
        }
        // SAFETY: used here alone. A free runs no code of others, and `keep` drops a reference that is not the last.
        if let Some(attachment) = unsafe { last_used(&shared) } {
            // SAFETY: the block was its owner's, and this is its end.
            let freed = unsafe { attachment.cpu.free(pfn, order) };
            attachment.keep(shared);
            return freed;
        }
        // The thread gets a CPU for it, and gives it up immediately if no thread has a handle any more.
        // SAFETY: the block was its owner's, and this is its end.
        unsafe { Self::of(shared).free(pfn, order) }
    }

    /// Gives up the CPU that this thread has, if it has one, with all pages on its lists. The thread's next call
    /// attaches it again.
    pub fn detach(&self) {
        // At the end of a thread the table may be gone already, and the attachment with it.
        let _ = ATTACHMENTS.try_with(|table| self.find().map(|link| table.remove(link)));
    }

    /// Checks the allocator's books (see [`Arena::verify`]); this thread gives up its CPU for it.
    ///
    /// # Errors
    /// As [`Arena::verify`].
    pub fn verify(&self) -> Result<Account, VerifyError> {
        self.detach();
        self.0.arena.verify()
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Runs `f` with this thread's CPU, or with the spare CPU if it gets none of its own. `f` does not call
    /// back into this arena.
    pub(crate) fn on_any_cpu<R>(&self, f: impl FnOnce(&Cpu<'_, M>) -> R) -> R {
        match self.attachment() {
            Some(attachment) => f(&attachment.cpu),
            None => self.with_spare(f),
        }
    }

    /// This thread's CPU, after trying to get one. It is the one used last from now on. `None` if no CPU is free, or if
    /// the thread is ending and has given its own up.
    #[inline]
    fn attachment(&self) -> Option<Using<M>> {
        let LastUsed { key, link } = LAST_USED.get();
        if key == self.key() {
            // SAFETY: an attachment that a thread gives up is not the one used last any more. It keeps its arena alive,
            // so no other is at the same address: the place is of this `M`.
            return Some(unsafe { Using::of(link.cast()) });
        }
        ATTACHMENTS.try_with(|table| self.attachment_in(table)).ok().flatten()
    }

    fn attachment_in(&self, table: &Attachments) -> Option<Using<M>> {
        let using = match self.find() {
            // SAFETY: this thread's attachment is there.
            Some(link) => unsafe { Using::of(link.cast()) },
            None => {
                let attachment = Attachment::new(self)?;
                let slot = attachment.cpu.id().index();
                // SAFETY: this thread has just taken the CPU.
                let link = unsafe { self.0.places[slot].fill(attachment) };
                // SAFETY: filled just now.
                let using = unsafe { Using::of(link.cast()) };
                self.0.threads[slot].store(thread_number(), Ordering::Relaxed);
                table.push(link);
                table.remove_unused();
                using
            }
        };
        LAST_USED.set(LastUsed { key: self.key(), link: using.0.cast() });
        Some(using)
    }

    /// The place of this thread's attachment, if it has one. As a rule the CPU has the number that the thread took last
    /// in any arena: then O(1), else O(CPUs), however many arenas the thread uses.
    fn find(&self) -> Option<NonNull<Link>> {
        let (threads, thread, last) = (&self.0.threads, thread_number(), last_cpu());
        // Relaxed: a word with this thread's number was written by this thread.
        let is_mine = |word: &AtomicUsize| word.load(Ordering::Relaxed) == thread;
        let cpu =
            if threads.get(last).is_some_and(is_mine) { last } else { threads.iter().position(is_mine)? };
        Some(NonNull::from(&self.0.places[cpu]).cast())
    }

    /// Its pages stay on the spare CPU's lists for the next one; if memory runs short, they are reaped as those of any
    /// CPU that no thread holds.
    #[cold]
    fn with_spare<R>(&self, f: impl FnOnce(&Cpu<'_, M>) -> R) -> R {
        let spare = self.cpus();
        // Not in a child, where another thread of the parent may hold it permanently. This thread holds it already in a
        // listener that is told of a call through it.
        let acquired = if self.is_forked() { None } else { self.owners.acquire_unless_mine(spare) };
        self.act_as(spare, acquired, f).expect("the spare CPU is never idle")
    }
}

thread_local!(
    /// This thread's CPUs, one per shared arena it has used.
    static ATTACHMENTS: Attachments = const { Attachments(Cell::new(None)) }
);

/// The attachment that a thread has used last: most calls need it, without a search, and without the look whether the
/// thread is ending that a table with a destructor takes.
#[derive(Clone, Copy)]
struct LastUsed {
    /// Address of what the attachment keeps alive; 0 if there is none.
    key: usize,
    link: NonNull<Link>,
}

const NONE: LastUsed = LastUsed { key: 0, link: NonNull::dangling() };

thread_local!(static LAST_USED: Cell<LastUsed> = const { Cell::new(NONE) });

/// This thread's CPU in an arena, if it is the one used last.
///
/// # Safety
/// The result is not used any more when something runs that may drop an attachment of this thread: a detach, the first
/// use of another arena, code of others.
#[inline(always)]
pub(crate) unsafe fn last_used<'t, M: FrameUser>(shared: &Arc<Shared<M>>) -> Option<&'t Attachment<M>> {
    let LastUsed { key, link } = LAST_USED.get();
    if key != Arc::as_ptr(shared) as usize {
        return None;
    }
    // SAFETY: a thread that gives an attachment up clears this, so it lives now, and by our caller's promise as long as
    // the result is used. It keeps its arena alive, so no other is at the same address: it is of this `M`.
    Some(unsafe { Place::attachment(link) })
}

/// A thread's attachments, linked through the places where they are.
struct Attachments(Cell<Option<NonNull<Link>>>);

/// Parts of an attachment, to any arena, that a thread's table needs. Read and written by the thread whose
/// table it is in.
struct Link {
    next: Cell<Option<NonNull<Self>>>,
    /// The table, if it is there, and calls under way.
    users: Cell<u32>,
    /// Whether no handle of the arena is left.
    is_unused: unsafe fn(NonNull<Self>) -> bool,
    /// Has the thread not find the attachment any more.
    hide: unsafe fn(NonNull<Self>),
    /// Drops the attachment, and maybe the arena with this place in it.
    end: unsafe fn(NonNull<Self>),
}

/// Place of the attachment to one CPU: in the arena's own memory, so that a thread's first call allocates nothing.
/// Only the thread that holds the CPU looks at it. On cache lines of its own: each call counts `users`.
#[repr(C, align(128))]
struct Place<M: FrameUser> {
    // First, so that its address is the place's.
    link: Link,
    attachment: UnsafeCell<MaybeUninit<Attachment<M>>>,
}

// SAFETY: a place is used by the thread that holds the CPU alone; taking and giving back the CPU's lock orders one
// thread after the other.
unsafe impl<M: FrameUser> Sync for Place<M> {}
// SAFETY: as above; an arena that is sent or dropped with an attachment in it does not exist, as that keeps the arena
// alive.
unsafe impl<M: FrameUser> Send for Place<M> {}

impl<M: FrameUser> Place<M> {
    const fn new() -> Self {
        Self {
            link: Link {
                next: Cell::new(None),
                users: Cell::new(0),
                is_unused: Self::is_unused,
                hide: Self::hide,
                end: Self::end,
            },
            attachment: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Puts an attachment here, with the table as its user.
    ///
    /// # Safety
    /// This thread holds the CPU, and there is no attachment to it here.
    unsafe fn fill(&self, attachment: Attachment<M>) -> NonNull<Link> {
        self.link.next.set(None);
        self.link.users.set(1);
        // SAFETY: by the caller's promise no other thread looks at it.
        unsafe { (*self.attachment.get()).write(attachment) };
        NonNull::from(self).cast()
    }

    /// # Safety
    /// The link is that of a place of this type with an attachment in it, of this thread.
    unsafe fn attachment<'a>(link: NonNull<Link>) -> &'a Attachment<M> {
        // SAFETY: by the caller's promise.
        unsafe { (*link.cast::<Self>().as_ref().attachment.get()).assume_init_ref() }
    }

    /// # Safety
    /// As [`attachment`](Self::attachment).
    unsafe fn is_unused(link: NonNull<Link>) -> bool {
        // Acquire: pairs with the release of the last handle.
        // SAFETY: by the caller's promise.
        unsafe { Self::attachment(link) }.shared.handles.load(Ordering::Acquire) == 0
    }

    /// # Safety
    /// As [`attachment`](Self::attachment).
    unsafe fn hide(link: NonNull<Link>) {
        // SAFETY: by the caller's promise.
        let Attachment { cpu, shared, .. } = unsafe { Self::attachment(link) };
        shared.threads[cpu.id().index()].store(0, Ordering::Relaxed);
        if LAST_USED.get().link == link {
            LAST_USED.set(NONE);
        }
    }

    /// # Safety
    /// As [`attachment`](Self::attachment), and it is not used any more.
    unsafe fn end(link: NonNull<Link>) {
        // SAFETY: by the caller's promise.
        let attachment: *const Attachment<M> = unsafe { Self::attachment(link) };
        // SAFETY: moved out once. When it is dropped, the CPU is another thread's, and the place may be gone with the
        // arena: nothing is looked at after that.
        drop(unsafe { attachment.read() });
    }
}

impl Attachments {
    /// All links, the newest first.
    fn iter(&self) -> impl Iterator<Item = NonNull<Link>> {
        // SAFETY: what is linked has not ended: its attachment keeps the place alive.
        core::iter::successors(self.0.get(), |link| unsafe { link.as_ref() }.next.get())
    }

    fn push(&self, link: NonNull<Link>) {
        // SAFETY: the caller has filled it just now.
        unsafe { link.as_ref() }.next.set(self.0.replace(Some(link)));
    }

    /// Takes one out of the table.
    fn unlink(&self, link: NonNull<Link>) {
        // SAFETY: as in `iter`; the function is the one of its type.
        unsafe { (link.as_ref().hide)(link) };
        // SAFETY: as in `iter`.
        let next = unsafe { link.as_ref() }.next.get();
        // SAFETY: as in `iter`.
        match self.iter().find(|before| unsafe { before.as_ref() }.next.get() == Some(link)) {
            // SAFETY: as in `iter`.
            Some(before) => unsafe { before.as_ref() }.next.set(next),
            None => self.0.set(next),
        }
    }

    fn remove(&self, link: NonNull<Link>) {
        self.unlink(link);
        // What is dropped now may drop other handles, which look at this table.
        // SAFETY: the table was a user.
        unsafe { give_up(link) };
    }

    /// Gives up what keeps arenas alive that no other thread uses.
    fn remove_unused(&self) {
        // From the beginning each time: what is dropped may change the table.
        // SAFETY: as in `iter`; the function is the one of its type.
        while let Some(link) = self.iter().find(|&link| unsafe { (link.as_ref().is_unused)(link) }) {
            self.remove(link);
        }
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        while let Some(link) = self.0.get() {
            self.remove(link);
        }
    }
}

/// One user less; the last one ends it.
///
/// # Safety
/// The caller was counted as a user.
unsafe fn give_up(link: NonNull<Link>) {
    // SAFETY: by the caller's promise it has not ended.
    let this = unsafe { link.as_ref() };
    let users = this.users.get() - 1;
    this.users.set(users);
    if users == 0 {
        // SAFETY: no thread uses it, and the function is the one of its type.
        unsafe { (this.end)(link) };
    }
}

/// A thread's attachment in use: it stays, even if the thread detaches in the meantime.
struct Using<M: FrameUser>(NonNull<Place<M>>);

impl<M: FrameUser> Using<M> {
    /// # Safety
    /// There is an attachment of this thread in the place.
    unsafe fn of(place: NonNull<Place<M>>) -> Self {
        // SAFETY: by the caller's promise.
        let users = unsafe { &place.as_ref().link.users };
        users.set(users.get() + 1);
        Self(place)
    }
}

impl<M: FrameUser> Deref for Using<M> {
    type Target = Attachment<M>;

    fn deref(&self) -> &Attachment<M> {
        // SAFETY: there is one, as long as this is counted as its user.
        unsafe { Place::attachment(self.0.cast()) }
    }
}

impl<M: FrameUser> Drop for Using<M> {
    fn drop(&mut self) {
        // SAFETY: counted when it was made.
        unsafe { give_up(self.0.cast()) };
    }
}

pub(crate) struct Attachment<M: FrameUser> {
    // Before what it borrows from, so that it is dropped first.
    pub(crate) cpu: Cpu<'static, M>,
    shared: Arc<Shared<M>>,
    /// References to `shared` that are counted there and have no owner: for blocks to come, from those that were
    /// dropped here.
    spares: Cell<u32>,
}

impl<M: FrameUser> Attachment<M> {
    /// A reference to the arena.
    #[inline]
    pub(crate) fn reference(&self) -> Arc<Shared<M>> {
        let Some(left) = self.spares.get().checked_sub(1) else { return Arc::clone(&self.shared) };
        self.spares.set(left);
        // SAFETY: one of the references that are counted and have no owner.
        unsafe { Arc::from_raw(Arc::as_ptr(&self.shared)) }
    }

    /// Keeps a reference to the arena, as long as it may be wanted.
    #[inline]
    fn keep(&self, reference: Arc<Shared<M>>) {
        let spares = self.spares.get();
        if spares < SPARES && self.shared.handles.load(Ordering::Relaxed) > 0 {
            core::mem::forget(reference);
            self.spares.set(spares + 1);
        }
    }
}

impl<M: FrameUser> Drop for Attachment<M> {
    fn drop(&mut self) {
        for _ in 0..self.spares.get() {
            // SAFETY: one of the references that are counted and have no owner; `shared` is another one.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.shared)) };
        }
    }
}

impl<M: FrameUser> Attachment<M> {
    /// Attaches this thread, if a CPU is free.
    fn new(handle: &SharedArena<M>) -> Option<Self> {
        let shared = Arc::clone(&handle.0);
        // SAFETY: the arena stays where it is while an `Arc` of it exists, and this one outlives the borrow:
        // both are private and dropped together, the borrow first.
        let arena: &'static Arena<M> = unsafe { &*core::ptr::from_ref(&shared.arena) };
        Some(Self { cpu: arena.attach().ok()?, shared, spares: Cell::new(0) })
    }
}

#[cfg(test)]
mod tests;
