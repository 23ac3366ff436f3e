//! Tasks on virtual CPUs, at most one on each, and what the kernel does around an allocation.
//!
//! A task is a state machine: it does one small step after the other, until it ends or the run's time is over.

use core::cell::{Cell, RefCell};

use framewright::units::PAGEBLOCK_ORDER;
use framewright::{Cpu, CpuId, Migratetype, Order, Pfn};

use crate::clock::Ps;
use crate::engine;
use crate::lru::{self, Lists, LockUse, Lru};
use crate::model::{Kernel, Model};
use crate::platform::Sim;
use crate::world::{StructPage, World, refer};

/// Bytes of a frame.
const FRAME: u64 = 4096;
/// CPUs start within this of one another.
const JITTER: Ps = Ps(2_000_000);

/// A task's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// To go on.
    Continue,
    /// To end.
    Exit,
}

/// A program in small steps.
pub trait Task {
    /// Does one step, and returns what is next.
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step;
}

/// Work of all CPUs together in a run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// Time that tasks worked for themselves.
    pub user: Ps,
    /// The user work that was done in it: less time than it took where siblings shared a core.
    pub work: Ps,
    /// Base pages that tasks got.
    pub pages: u64,
    /// The locks of the lists of pages in use.
    pub lru: LockUse,
}

/// The CPU that a task runs on.
#[derive(Debug)]
pub struct OnCpu<'a, 'b, 'm> {
    cpu: &'a Cpu<'b, 'm, Sim, StructPage>,
    kernel: Kernel,
    lru: &'a Lru,
    lists: Lists<'a>,
    frames_per_node: u64,
    user: Cell<Ps>,
    work: Cell<Ps>,
    pages: Cell<u64>,
    allocating: Cell<Ps>,
}

impl OnCpu<'_, '_, '_> {
    /// The CPU's number.
    #[must_use]
    pub const fn id(&self) -> CpuId {
        self.cpu.id()
    }

    /// Works for itself.
    pub fn user(&self, work: Ps) {
        let start = engine::now();
        engine::spend(work);
        self.user.set(self.user.get() + engine::now().since(start));
        self.work.set(self.work.get() + work);
    }

    /// Faults on a base page: gets one and clears it. Those that can move are the program's and go to the lists of
    /// pages in use, the others are the kernel's own.
    ///
    /// # Panics
    /// If memory runs out: the world was made with too little.
    #[must_use]
    pub fn fault(&self, migratetype: Migratetype) -> Pfn {
        self.fault_in(Order::ZERO, migratetype)
    }

    /// Faults on a huge page: gets one and clears it.
    ///
    /// # Panics
    /// As [`fault`](Self::fault).
    #[must_use]
    pub fn fault_huge(&self) -> Pfn {
        self.fault_in(PAGEBLOCK_ORDER, Migratetype::Movable)
    }

    fn fault_in(&self, order: Order, migratetype: Migratetype) -> Pfn {
        engine::spend(Ps::from_ns(self.kernel.page_fault));
        let pfn = self.take(order, migratetype);
        engine::stream((pfn.0 / self.frames_per_node) as u16, order.pages() * FRAME);
        if migratetype == Migratetype::Movable {
            self.lru.add(self.lists, self.id(), pfn, order > Order::ZERO);
        }
        pfn
    }

    /// Allocates a block and takes a reference to it.
    ///
    /// # Panics
    /// As [`fault`](Self::fault).
    #[must_use]
    pub fn take(&self, order: Order, migratetype: Migratetype) -> Pfn {
        let start = engine::now();
        let pfn = match self.cpu.alloc(order, migratetype) {
            Ok(pfn) => pfn,
            Err(error) => panic!("a simulated task has run out of memory: {error}"),
        };
        refer(self.cpu, pfn, 1);
        self.lru.got(pfn);
        self.allocating.set(self.allocating.get() + engine::now().since(start));
        self.pages.set(self.pages.get() + order.pages());
        pfn
    }

    /// Time that allocations have taken on this CPU so far.
    #[must_use]
    pub const fn allocating(&self) -> Ps {
        self.allocating.get()
    }

    /// Unmaps base pages and frees them: as many at a time as the kernel does.
    ///
    /// # Panics
    /// If the allocator refuses one.
    pub fn unmap(&self, pages: impl IntoIterator<Item = Pfn>) {
        // What this CPU has mapped last may be among them.
        self.lru.link_batch(self.lists, self.id());
        let at_once = self.lru.given_back_at_once();
        let mut pages = pages.into_iter();
        let mut batch = Vec::with_capacity(at_once);
        loop {
            batch.extend(pages.by_ref().take(at_once));
            if batch.is_empty() {
                return;
            }
            engine::spend(Ps::from_ns(self.kernel.page_free * batch.len() as f64));
            self.lru.unmapped(&batch);
            self.lru.give_back(self.lists, self.id(), &batch);
            batch.drain(..).for_each(|pfn| give(self.cpu, pfn, Order::ZERO));
        }
    }
}

/// Allocates a page outside of a task: for what is there before a run.
///
/// # Panics
/// If memory runs out.
#[must_use]
pub fn get(cpu: &Cpu<'_, '_, Sim, StructPage>, migratetype: Migratetype) -> Pfn {
    let pfn = match cpu.alloc(Order::ZERO, migratetype) {
        Ok(pfn) => pfn,
        Err(error) => panic!("a world has too little memory for what is to be there before a run: {error}"),
    };
    refer(cpu, pfn, 1);
    pfn
}

/// Drops the last reference to a block and frees it, outside of a task.
///
/// # Panics
/// If the allocator refuses it.
pub fn give(cpu: &Cpu<'_, '_, Sim, StructPage>, pfn: Pfn, order: Order) {
    refer(cpu, pfn, 0);
    if let Err(error) = cpu.free(pfn, order) {
        panic!("a simulated task freed wrongly: {error}");
    }
}

/// A task to begin with, and the CPU that it is on.
pub type Placed = (u16, Box<dyn Task>);

/// Lines that a world has beside the allocator's for tasks to run there: each node's list of pages in use.
#[must_use]
pub fn lines(model: &Model) -> usize {
    lru::LINES * usize::from(model.shape.nodes)
}

/// Runs `tasks`, at most one on each of the first `cpus` CPUs of a world whose zones each are a node and equally large,
/// until all have ended, or, if `limit` is given, until that time has passed on each CPU. The world has [`lines`]
/// beside the allocator's.
///
/// # Panics
/// If the model has no costs of the kernel's own work, or a task panics.
pub fn run(
    world: &mut World<StructPage>,
    cpus: u16,
    frames_per_node: u64,
    tasks: Vec<Placed>,
    limit: Option<Ps>,
) -> Usage {
    let model = world.simulator().model();
    let kernel = model.kernel.expect("a machine on which tasks run says what its kernel costs");
    let nodes = model.shape.nodes;
    let descriptors = world.descriptor_address(0);
    let (allocator, mut machine) = world.split();
    let lists = lru::place(&mut machine, allocator.config().experiment.lock_kind);
    let lru = Lru::new(kernel.lru, descriptors, frames_per_node, nodes, cpus);
    let lists = Lists { lists: &lists, queue: machine.queue() };
    let mut waiting: Vec<Option<Box<dyn Task>>> = (0..cpus).map(|_| None).collect();
    for (cpu, task) in tasks {
        waiting[usize::from(cpu)] = Some(task);
    }
    let waiting = RefCell::new(waiting);
    let usage = Cell::new(Usage::default());
    machine.run(cpus, JITTER, |n, cpu| {
        let Some(mut task) = waiting.borrow_mut()[n].take() else { return };
        let on = OnCpu {
            cpu,
            kernel,
            lru: &lru,
            lists,
            frames_per_node,
            user: Cell::new(Ps(0)),
            work: Cell::new(Ps(0)),
            pages: Cell::new(0),
            allocating: Cell::new(Ps(0)),
        };
        let until = limit.map_or(Ps::NEVER, |limit| engine::now() + limit);
        while task.step(&on) == Step::Continue && engine::now() < until {}
        let Usage { user, work, pages, lru } = usage.get();
        let pages = pages + on.pages.get();
        usage.set(Usage { user: user + on.user.get(), work: work + on.work.get(), pages, lru });
    });
    Usage { lru: lru.used(), ..usage.get() }
}
