//! Threads as CPUs: a thread that is attached to a CPU allocates and frees through that CPU's lists.
//!
//! Holds the `unsafe` that turns "holds the CPU's lock" into the core's pin.
#![expect(unsafe_code, reason = "holding a slot's lock is what makes its pin usable")]

use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use framewright::cpu::{Compacted, HitWords};
use framewright::error::{AllocFailure, Shortfall};
use framewright::frame::FrameUser;
use framewright::hotplug::{HOLDERS_EXPLAINED, OfflineError, OfflineFailure};
use framewright::reclaim::Migrate;
use framewright::{
    AllocError, CpuId, Flags, FreeError, Migratetype, NodeId, Order, Pfn, Request, ZoneId, ZoneType,
};

use crate::arena::Arena;
use crate::error::AttachError;
use crate::event::event;
use crate::os::cpu_and_node;
use crate::platform::Host;
use crate::robust::Acquired;

thread_local!(
    /// The CPU this thread took last, of any arena: its lists' memory may still be in the cache. Threads that use many
    /// arenas so have one number in most of them.
    static LAST_CPU: Cell<usize> = const { Cell::new(0) }
);

/// Number of the CPU that this thread took last, of any arena.
pub(crate) fn last_cpu() -> usize {
    LAST_CPU.get()
}

/// A number of this thread that no other thread has or had; not 0.
pub(crate) fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    // Without a destructor: it is there to the end of the thread, and allocates nothing.
    thread_local!(static THREAD: Cell<usize> = const { Cell::new(0) });
    if THREAD.get() == 0 {
        THREAD.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
    }
    THREAD.get()
}

impl<M: FrameUser> Arena<M> {
    /// Attaches this thread to a CPU that no living thread holds: the one it had last, or the next free
    /// one. O(CPUs) at worst; no system call if one is free.
    ///
    /// # Errors
    /// Living threads hold all CPUs.
    pub fn attach(&self) -> Result<Cpu<'_, M>, AttachError> {
        let cpus = self.cpus();
        let last = last_cpu() % cpus;
        self.attach_any(|| (last..cpus).chain(0..last))
    }

    /// Attaches this thread to a CPU near the processor it runs on: the one with the processor's number, or the next
    /// free one of its node, or any. With [`machine_nodes`](crate::ArenaBuilder::machine_nodes), that is where its
    /// memory is; otherwise nodes are virtual, and it is only a CPU that threads on other processors are less likely to
    /// want. A thread that the system moves afterwards keeps its CPU.
    ///
    /// # Errors
    /// Living threads hold all CPUs.
    pub fn attach_near(&self) -> Result<Cpu<'_, M>, AttachError> {
        let Some((processor, node)) = cpu_and_node() else { return self.attach() };
        let (cpus, nodes) = (self.cpus(), self.allocator().nodes().len());
        let bound = |nodes: &Vec<usize>| nodes.iter().position(|&machine_node| machine_node == node);
        let node = self.bound.as_ref().and_then(bound).unwrap_or(node % nodes);
        let first = processor % cpus;
        let all = move || (first..cpus).chain(0..first);
        let is_near = move |cpu: &usize| cpu % nodes == node;
        self.attach_any(move || all().filter(is_near).chain(all().filter(move |cpu| !is_near(cpu))))
    }

    /// Attaches this thread to the first of these CPUs that is free.
    fn attach_any<I: Iterator<Item = usize>>(
        &self,
        order: impl Fn() -> I,
    ) -> Result<Cpu<'_, M>, AttachError> {
        if self.is_forked() {
            return Err(AttachError::Forked);
        }
        let any = || order().find_map(|cpu| self.try_attach(cpu));
        any().or_else(|| self.after_sweep(any)).ok_or_else(|| {
            event!(self.silent, DEBUG, cpus = self.cpus(), "no CPU to attach to");
            AttachError::AllTaken { cpus: self.cpus() }
        })
    }

    /// Attaches this thread to CPU number `cpu`. O(1).
    ///
    /// # Errors
    /// There is no such CPU, or a living thread holds it.
    pub fn attach_to(&self, cpu: usize) -> Result<Cpu<'_, M>, AttachError> {
        self.check_number(cpu)?;
        let attached = self.try_attach(cpu).or_else(|| self.after_sweep(|| self.try_attach(cpu)));
        attached.ok_or(AttachError::Taken(CpuId(cpu as u16)))
    }

    /// Attaches this thread to the CPU that the arena keeps for a node's background reclaim.
    pub(crate) fn attach_background(&self, node: NodeId) -> Result<Cpu<'_, M>, AttachError> {
        let cpu = self.background_cpu(node).ok_or(AttachError::NoBackground(node))?;
        if self.is_forked() {
            return Err(AttachError::Forked);
        }
        let attached = self.try_attach(cpu).or_else(|| self.after_sweep(|| self.try_attach(cpu)));
        attached.ok_or(AttachError::Taken(CpuId(cpu as u16)))
    }

    /// Acts as CPU number `cpu` for one call: `f` allocates and frees through the CPU's lists, and what is on them
    /// stays there for the next one. For callers that say with each call which CPU they are. Waits while another thread
    /// acts as that CPU; for good, if a thread has attached to the CPU and keeps it.
    ///
    /// A robust lock is taken and given back, some 20 ns more than through an attached [`Cpu`]. Between calls, the
    /// pages on the lists are within reach of allocations that would fail.
    ///
    /// ```
    /// use framewright_host::{Arena, Migratetype, Order};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).cpus(2).build()?;
    /// let pfn = arena.on_cpu(1, |cpu| cpu.alloc(Order::ZERO, Migratetype::Movable))??;
    /// // SAFETY: it is ours.
    /// arena.on_cpu(0, |cpu| unsafe { cpu.free(pfn, Order::ZERO) })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such CPU, or its thread is idle ([`Cpu::idle`]).
    ///
    /// # Panics
    /// If this thread holds the CPU already.
    pub fn on_cpu<R>(&self, cpu: usize, f: impl FnOnce(&Cpu<'_, M>) -> R) -> Result<R, AttachError> {
        self.check_number(cpu)?;
        self.act_as(cpu, Some(self.owners.acquire(cpu)), f)
    }

    fn check_number(&self, cpu: usize) -> Result<(), AttachError> {
        let cpus = self.cpus();
        if self.is_forked() {
            return Err(AttachError::Forked);
        }
        if cpu < cpus { Ok(()) } else { Err(AttachError::NoSuchCpu { cpu, cpus }) }
    }

    /// Like [`on_cpu`](Self::on_cpu), for any CPU that the arena has, with its lock as it was acquired for this.
    /// `None`: this thread holds it for a call that is between two of the core's, or the arena is the parent's.
    pub(crate) fn act_as<R>(
        &self,
        number: usize,
        acquired: Option<Acquired>,
        f: impl FnOnce(&Cpu<'_, M>) -> R,
    ) -> Result<R, AttachError> {
        let turn = acquired.map(|_| self.owners.guard(number));
        if self.idle_cpus.contains(number) {
            return Err(AttachError::Taken(CpuId(number as u16)));
        }
        // SAFETY: the CPU's lock is held until `turn` is dropped, after `f` has returned, or longer. In a child each
        // call does nothing.
        let cpu = unsafe { self.cpu(CpuId(number as u16)) };
        if acquired == Some(Acquired::OwnerDied) {
            cpu.drain();
        }
        // Not to be dropped: that would drain the lists, and give the lock back.
        let attached = ManuallyDrop::new(Cpu { cpu, arena: self });
        let result = f(&attached);
        drop(turn);
        Ok(result)
    }

    fn try_attach(&self, number: usize) -> Option<Cpu<'_, M>> {
        let acquired = self.owners.try_acquire(number)?;
        let held = self.owners.guard(number);
        if self.idle_cpus.contains(number) {
            return None;
        }
        // SAFETY: this thread has just taken the CPU's lock. It gives it back when `Cpu` is dropped; if
        // that is forgotten, never.
        let cpu = unsafe { self.cpu(CpuId(number as u16)) };
        if acquired == Acquired::OwnerDied {
            cpu.drain();
        }
        self.take_left(&cpu);
        held.keep();
        LAST_CPU.set(number);
        Some(Cpu { cpu, arena: self })
    }
}

/// A thread's hold of a CPU. Dropping it gives back all pages on the CPU's lists, then the CPU.
///
/// It is bound to the thread that attached:
///
/// ```compile_fail,E0277
/// # use framewright_host::Arena;
/// let arena: Arena = Arena::builder().bytes(1 << 20).build().unwrap();
/// let cpu = arena.attach().unwrap();
/// std::thread::scope(|scope| scope.spawn(|| cpu.id()).join().unwrap());
/// ```
pub struct Cpu<'a, M: FrameUser = ()> {
    cpu: framewright::Cpu<'a, 'a, Host, M>,
    arena: &'a Arena<M>,
}

/// A thread's hold of a CPU that keeps its arena alive: arena and attachment in one structure.
///
/// ```
/// use std::sync::Arc;
///
/// use framewright_host::{Arena, AttachError, Migratetype, Order, OwnedCpu};
///
/// struct Pool {
///     cpu: OwnedCpu,
///     held: Vec<framewright_host::Pfn>,
/// }
///
/// let arena: Arc<Arena> = Arc::new(Arena::builder().bytes(16 << 20).build()?);
/// let mut pool = Pool { cpu: OwnedCpu::attach(arena)?, held: Vec::new() };
/// pool.held.push(pool.cpu.get().alloc(Order::ZERO, Migratetype::Movable)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedCpu<M: FrameUser = ()> {
    // Before what it borrows from, so that it is dropped first.
    cpu: Cpu<'static, M>,
    arena: Arc<Arena<M>>,
}

impl<M: FrameUser> fmt::Debug for OwnedCpu<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedCpu").field(&self.cpu.id()).finish()
    }
}

impl<M: FrameUser> OwnedCpu<M> {
    /// Attaches this thread to any CPU.
    ///
    /// # Errors
    /// As [`Arena::attach`].
    pub fn attach(arena: Arc<Arena<M>>) -> Result<Self, AttachError> {
        // SAFETY: an arena behind an `Arc` stays where it is while the `Arc` exists, and this one outlives the borrow:
        // both are private and dropped together, the borrow first. No caller gets the borrow with a longer life than
        // `self`'s.
        let borrowed: &'static Arena<M> = unsafe { &*Arc::as_ptr(&arena) };
        Ok(Self { cpu: borrowed.attach()?, arena })
    }

    /// The attachment.
    #[must_use]
    #[inline]
    pub fn get(&self) -> &Cpu<'_, M> {
        &self.cpu
    }

    /// The arena.
    #[must_use]
    pub const fn arena(&self) -> &Arc<Arena<M>> {
        &self.arena
    }
}

impl<M: FrameUser> fmt::Debug for Cpu<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cpu").field(&self.cpu.id()).finish()
    }
}

impl<M: FrameUser> Drop for Cpu<'_, M> {
    fn drop(&mut self) {
        // In a child, lists and locks are the parent's, or copies of them that another thread holds permanently.
        if self.arena.is_forked() {
            return;
        }
        let number = self.id().index();
        let released = self.arena.owners.guard(number);
        self.arena.take_left(&self.cpu);
        self.cpu.drain();
        drop(released);
    }
}

/// Tells listeners of an allocation that has failed.
#[cold]
pub(crate) fn tell_failed<M: FrameUser>(arena: &Arena<M>, failed: &AllocError) {
    event!(
        arena.silent,
        DEBUG,
        order = failed.order.get(),
        migratetype = format_args!("{:?}", failed.migratetype),
        error = format_args!("{failed}"),
        "allocation failed"
    );
}

impl<'a, M: FrameUser> Cpu<'a, M> {
    /// The CPU.
    #[must_use]
    pub const fn id(&self) -> CpuId {
        self.cpu.id()
    }

    /// The core's view of the CPU. Not for users: its `free` is safe, and would let them free a
    /// [`Block`](crate::Block).
    pub(crate) const fn core(&self) -> &framewright::Cpu<'a, 'a, Host, M> {
        &self.cpu
    }

    /// The arena.
    #[must_use]
    pub const fn arena(&self) -> &'a Arena<M> {
        self.arena
    }

    /// Allocates a block of `order` as a raw frame: the caller frees it, through this CPU or another.
    ///
    /// O(1) without any lock if the CPU's list has one; else as [`framewright::Cpu::alloc`]. Before it fails, pages
    /// that ended threads have left on their lists are brought back.
    ///
    /// # Errors
    /// Why not, and what each zone lacked.
    #[inline]
    pub fn alloc(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        match self.alloc_hit(order, migratetype) {
            Some(pfn) => Ok(pfn),
            None => self.alloc_miss(order, migratetype),
        }
    }

    /// Allocates a block if the CPU's list has one, and no CPU asks this CPU for anything; `None` says only that
    /// [`alloc`](Self::alloc) has more to do. For callers that keep their own slow path apart. O(1).
    #[inline(always)]
    #[must_use]
    pub fn alloc_hit(&self, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        let hit = self.cpu.alloc_hit(order, migratetype)?;
        self.arena.annotated.open(hit, order.pages());
        Some(hit)
    }

    /// Frees a block if that is common: it came from this CPU's list. `false` says only that nothing has happened, and
    /// that [`free`](Self::free) has more to do. O(1), and a drain if the list has grown too long.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    #[must_use]
    pub unsafe fn free_hit(&self, pfn: Pfn, order: Order) -> bool {
        !self.arena.annotated.is_on() && self.cpu.free_hit(pfn, order)
    }

    /// Words that this CPU's hits of order 0 read and write, for code that is not Rust and makes them without a call.
    /// They are good until the thread detaches.
    #[must_use]
    pub fn hit_words(&self, migratetype: Migratetype) -> Option<HitWords<Host>> {
        if self.arena.annotated.is_on() { None } else { self.cpu.hit_words(migratetype) }
    }

    // Out of line, so that a hit needs no room on the stack for a miss' error.
    #[cold]
    #[inline(never)]
    fn alloc_miss(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        let request = Request::new(order, migratetype);
        self.arena.refuse_fork(&request)?;
        match self.cpu.alloc_unhelped(order, migratetype) {
            Some(pfn) => {
                self.arena.annotated.open(pfn, order.pages());
                Ok(pfn)
            }
            None => self.alloc_with(&request),
        }
    }

    /// Allocates a block as `request` says, with the help of this arena's helpers (see
    /// [`Arena::set_reclaim`]).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_with(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        self.arena.refuse_fork(request)?;
        if self.arena.annotated.is_on() && request.flags.has(Flags::ZERO) {
            let plain = Request { flags: request.flags.without(Flags::ZERO), ..*request };
            return self.alloc_with(&plain).inspect(|&pfn| self.arena.clear(pfn, request.order));
        }
        let alloc = || self.cpu.alloc_with(request, &self.arena.helpers());
        let last = self.or_with_unused(alloc, |failed| failed.why != AllocFailure::Injected);
        last.inspect(|&pfn| self.arena.annotated.open(pfn, request.order.pages()))
            .inspect_err(|failed| tell_failed(self.arena, failed))
    }

    /// Shortfall now of each zone that `request` may use, in the order in which an allocation tries them: the
    /// details behind an [`AllocError`]. As [`framewright::Cpu::explain`].
    pub fn explain(&self, request: &Request<'_>) -> Vec<Shortfall> {
        let mut zones = Vec::new();
        if self.arena.is_forked() {
            return zones;
        }
        self.cpu.explain(request, &self.arena.helpers(), |zone| zones.push(*zone));
        zones
    }

    /// Allocates a block of `order` from zones up to type `highest`.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_in(
        &self,
        order: Order,
        migratetype: Migratetype,
        highest: ZoneType,
    ) -> Result<Pfn, AllocError> {
        self.alloc_with(&Request::new(order, migratetype).up_to(highest))
    }

    /// Compacts a zone from end to end, if this arena has a mover (see [`Arena::set_migrate`]).
    ///
    /// # Panics
    /// If there is no such zone.
    pub fn compact(&self, zone: ZoneId) -> Compacted {
        let migrate = self.arena.helpers().mover().filter(|_| !self.arena.is_forked());
        migrate.map(|migrate| self.cpu.compact(zone, migrate)).unwrap_or_default()
    }

    /// One round of background compaction of a node, if this arena has a mover (see [`Arena::set_migrate`]): as
    /// [`framewright::Cpu::compact_proactively`]. For a thread that calls it every
    /// [`Config::compaction_round_ms`](crate::Config::compaction_round_ms) milliseconds.
    pub fn compact_proactively(&self, node: NodeId) -> Compacted {
        let helpers = self.arena.helpers();
        helpers.mover().map(|migrate| self.compact_proactively_with(node, migrate)).unwrap_or_default()
    }

    /// Like [`compact_proactively`](Self::compact_proactively), with a mover for this round only. Memory checkers are
    /// not told of what it moves.
    pub fn compact_proactively_with(&self, node: NodeId, migrate: &dyn Migrate) -> Compacted {
        if self.arena.is_forked() {
            return Compacted::default();
        }
        self.cpu.compact_proactively(node, migrate)
    }

    /// Takes whole pageblocks offline, as [`framewright::Cpu::offline`] does: their frames are not handed out until
    /// [`Allocator::online`](framewright::Allocator::online) brings them back. Returns the pages that are gone. Before
    /// it fails, pages that ended threads and page caches have left are brought back.
    ///
    /// # Errors
    /// The block that is in the way, and its holder. Nothing has changed then.
    pub fn offline(&self, range: Range<Pfn>) -> Result<u64, OfflineError> {
        if self.arena.is_forked() {
            let (why, holders) = (OfflineFailure::NotPageblocks, [None; HOLDERS_EXPLAINED]);
            return Err(OfflineError { why, start: range.start, holders });
        }
        self.or_with_unused(|| self.cpu.offline(range.clone()), |_| true)
    }

    /// Makes a call. If it fails with an error that `may_help` accepts, takes back the pages that no thread uses, and
    /// makes it again if there were any.
    pub(crate) fn or_with_unused<T, E>(
        &self,
        call: impl Fn() -> Result<T, E>,
        may_help: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let take = || self.arena.take_unused(&self.cpu);
        call().or_else(|failed| if may_help(&failed) && take() { call() } else { Err(failed) })
    }

    /// Frees a block that any CPU allocated, with its order.
    ///
    /// O(1) without any lock unless the CPU's lists are full; else as [`framewright::Cpu::free`]. What is not
    /// allocated, or with another order, is refused, and nothing changes.
    ///
    /// # Safety
    /// If the block is allocated, it is the caller's: no [`Block`](crate::Block) owns it, and no code uses its memory
    /// or user slots any more. A raw block is a number: the allocator cannot know that a reference to its memory is
    /// left, and hands the memory to the next caller. In an arena without memory and user slots only counts can become
    /// wrong.
    ///
    /// # Errors
    /// The fault of the free, and the state in the frame's descriptor.
    // Always: a hit is less than a call.
    #[inline(always)]
    pub unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.arena.annotate_freed(pfn, order);
        // In a child, all but hits would take locks, which threads of the parent may hold.
        let is_done = self.cpu.free_hit(pfn, order) || self.arena.is_forked();
        if is_done { Ok(()) } else { self.cpu.free_miss(pfn, order) }
    }

    /// Turns an allocated block of order `from` into allocated blocks of order `to`, each to be freed on its
    /// own. O(2^(from − to)). A [`Block`](crate::Block) is split by [`Block::split`](crate::Block::split).
    ///
    /// # Safety
    /// If the block is allocated, it is the caller's: no [`Block`](crate::Block) owns it, and no other code frees or
    /// splits it during the call.
    ///
    /// # Errors
    /// As [`free`](Self::free), if the block is not allocated with order `from`, or `to` is larger.
    pub unsafe fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        if self.arena.is_forked() {
            return Ok(());
        }
        // SAFETY: our caller's promise.
        unsafe { self.cpu.split(pfn, from, to) }
    }

    /// Gives the pages on the CPU's lists back to the zones. O(pages).
    pub fn drain(&self) {
        if !self.arena.is_forked() {
            self.cpu.drain();
        }
    }

    /// Lets the CPU's lists shrink where they hold more than it uses recently. To be called about once a second by a
    /// thread that stays attached for long. O(pages that go back).
    pub fn tick(&self) {
        if !self.arena.is_forked() {
            self.cpu.tick();
        }
    }

    /// Does what other CPUs have asked this one for. Every call does; a thread that makes none for long may
    /// call this instead.
    pub fn answer(&self) {
        if !self.arena.is_forked() {
            self.cpu.answer();
        }
    }
}
