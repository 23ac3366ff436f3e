//! Tasks on virtual CPUs: run queues, sleep and wake, and what the kernel does around an allocation.
//!
//! Every CPU has a queue, first come, first served, in a line of its own that a CPU takes, before it uses the queue, with one
//! atomic access. A task runs until it waits, ends, or has had its slice while another one waits in the queue.
//!
//! New tasks and those that wake go to CPUs that have nothing to do, and a CPU that runs out of tasks takes one that
//! waits elsewhere (`sched/balance.rs`).
//!
//! A task is a state machine, not a coroutine: it gives the CPU back after every small step, and only there. So it
//! cannot lose the CPU inside the allocator, as in a kernel that is not preempted there; and it cannot take one CPU's
//! pin along to another, because it is lent one for a step at a time.

mod balance;
#[cfg(test)]
mod tests;

use core::cell::{Cell, RefCell};
use core::cmp::Reverse;
use core::fmt;
use std::collections::{BinaryHeap, VecDeque};

use framewright::units::PAGEBLOCK_ORDER;
use framewright::{Cpu, CpuId, Migratetype, Order, Pfn};

use crate::clock::Ps;
use crate::engine::{self, Access};
use crate::lru::{self, Lists, LockUse, Lru};
use crate::model::{Distance, Kernel, Model};
use crate::platform::Sim;
use crate::sched::balance::Found;
use crate::world::{self, StructPage, World, refer};

/// How long a task runs while others wait: the least that Linux' fair scheduler gives on more than 8 CPUs
/// (`sched_min_granularity`, 0.75 ms times 4).
pub const SLICE: Ps = Ps(3_000_000_000);
/// Longest time for which an idle CPU with a timer does not look at its queue.
const NAP: Ps = Ps(50_000_000);
/// Bytes of a frame.
const FRAME: u64 = 4096;

/// What a task wants next.
pub enum Step {
    /// To go on.
    Continue,
    /// To sleep for so long.
    Sleep(Ps),
    /// To sleep until a task that it made has ended; not at all if one has since it last waited.
    Wait,
    /// To have a task of its own made, and to go on.
    Fork(Box<dyn Task>),
    /// To end.
    Exit,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Continue => "Continue",
            Self::Sleep(_) => "Sleep",
            Self::Wait => "Wait",
            Self::Fork(_) => "Fork",
            Self::Exit => "Exit",
        })
    }
}

/// A program that gives the CPU back after every small step.
pub trait Task {
    /// Does a little, and says what is next.
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step;
}

/// What all CPUs together have done in a run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// Time that tasks worked for themselves.
    pub user: Ps,
    /// Time that the kernel worked for them, waiting for locks included.
    pub system: Ps,
    /// Time without a task.
    pub idle: Ps,
    /// From the first start to the last end.
    pub elapsed: Ps,
    /// The user work that was done in it: less time than it took where siblings shared a core.
    pub work: Ps,
    /// Base pages that tasks got.
    pub pages: u64,
    /// Times a task gave up its CPU.
    pub voluntary: u64,
    /// Times a task had to give it up.
    pub involuntary: u64,
    /// Times a task went on on another CPU than before.
    pub migrations: u64,
    /// The locks of the lists of pages in use.
    pub lru: LockUse,
}

impl Usage {
    fn add(&mut self, other: &Self) {
        self.user += other.user;
        self.system += other.system;
        self.idle += other.idle;
        self.work += other.work;
        self.pages += other.pages;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
        self.migrations += other.migrations;
    }
}

/// The CPU that a task runs on.
#[derive(Debug)]
pub struct OnCpu<'a, 'b, 'm> {
    cpu: &'a Cpu<'b, 'm, Sim, StructPage>,
    kernel: Kernel,
    lru: &'a Lru,
    lists: Lists<'a>,
    frames_per_node: u64,
    until: Ps,
    user: Cell<Ps>,
    work: Cell<Ps>,
    pages: Cell<u64>,
    allocating: Cell<Ps>,
}

impl OnCpu<'_, '_, '_> {
    /// Its number.
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

    /// Lets the kernel work where no other CPU notices.
    pub fn system(&self, work: Ps) {
        engine::spend(work);
    }

    /// What the kernel's own work costs on this machine.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Faults on a base page: gets one and clears it. Those that can move are the program's and go to the lists of pages in
    /// use, the others are the kernel's own.
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

/// A task, or where it is.
struct Slot {
    /// `None` while it runs, and after its end.
    task: Option<Box<dyn Task>>,
    parent: Option<usize>,
    /// Where it ran last, or was to begin.
    cpu: usize,
    /// Whether it has run.
    ran: bool,
    waits: bool,
    /// Tasks of its own that have ended since it last waited.
    ended: u32,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<usize>,
    timers: BinaryHeap<Reverse<(Ps, usize)>>,
    /// Whether its CPU does nothing.
    idle: bool,
    /// Whether its CPU has a task in its hands.
    busy: bool,
    /// Whether an idle CPU has been told to look for a task.
    called: bool,
    /// When its CPU next looks whether tasks that wait could run elsewhere.
    tick: Ps,
    usage: Usage,
    last: Option<usize>,
}

/// All tasks, and the CPUs that they run on.
struct Scheduler<'w> {
    model: &'w Model,
    kernel: Kernel,
    /// Each CPU's queue: what lies in simulated memory is its line.
    lines: Vec<world::Placed<'w, u64>>,
    lists: Lists<'w>,
    lru: Lru,
    frames_per_node: u64,
    limit: Option<Ps>,
    slots: RefCell<Vec<Slot>>,
    queues: RefCell<Vec<Queue>>,
    /// Tasks in all queues together.
    ready: Cell<usize>,
    /// Of each CPU: the others from near to far, and those that are equally near in turn, from its own number on.
    neighbours: Vec<Vec<(Distance, usize)>>,
    alive: Cell<usize>,
    /// CPUs that could still wake another one.
    awake: Cell<usize>,
}

/// A task to begin with, and the CPU that it is on.
pub type Placed = (u16, Box<dyn Task>);

/// Lines that a world has beside the allocator's for tasks to run there: each CPU's queue, each node's list of pages in use.
#[must_use]
pub fn lines(model: &Model, cpus: u16) -> usize {
    usize::from(cpus) + lru::LINES * usize::from(model.shape.nodes)
}

/// Runs `tasks` on the first `cpus` CPUs of a world whose zones each are a node and equally large, until all have ended,
/// or, if `limit` is given, until that time has passed on each CPU. The world has [`lines`] beside the allocator's.
///
/// # Panics
/// If the model has no costs of the kernel's own work; if a task does.
pub fn run(
    world: &mut World<StructPage>,
    cpus: u16,
    frames_per_node: u64,
    tasks: Vec<Placed>,
    limit: Option<Ps>,
) -> Usage {
    let model = world.simulator().model().clone();
    let mut queues: Vec<Queue> = (0..cpus).map(|_| Queue::default()).collect();
    let alive = tasks.len();
    let mut slots = Vec::with_capacity(alive);
    for (cpu, task) in tasks {
        let cpu = usize::from(cpu);
        queues[cpu].ready.push_back(slots.len());
        slots.push(Slot { task: Some(task), parent: None, cpu, ran: false, waits: false, ended: 0 });
    }
    let kernel = model.kernel.expect("a machine on which tasks run says what its kernel costs");
    let descriptors = world.descriptor_address(0);
    let (allocator, mut machine) = world.split();
    let lines = (0..cpus).map(|_| machine.place("run queues", 0)).collect();
    let lists = lru::place(&mut machine, allocator.config().experiment.lock_kind);
    let scheduler = Scheduler {
        kernel,
        model: &model,
        lines,
        lists: Lists { lists: &lists, queue: machine.queue() },
        lru: Lru::new(kernel.lru, descriptors, frames_per_node, model.shape.nodes, cpus),
        frames_per_node,
        limit,
        slots: RefCell::new(slots),
        queues: RefCell::new(queues),
        ready: Cell::new(alive),
        neighbours: balance::neighbours(&model.shape, cpus),
        alive: Cell::new(alive),
        awake: Cell::new(usize::from(cpus)),
    };
    let report = machine.run(cpus, Ps(2_000_000), |n, cpu| scheduler.run_cpu(n, cpu));
    let first = report.starts.iter().min().copied().unwrap_or_default();
    let last = report.ends.iter().max().copied().unwrap_or_default();
    let mut sum = Usage { elapsed: last.since(first), lru: scheduler.lru.used(), ..Usage::default() };
    for ((queue, start), end) in scheduler.queues.borrow().iter().zip(&report.starts).zip(&report.ends) {
        let span = end.since(*start);
        let mut usage = queue.usage;
        usage.system = span.since(usage.idle).since(usage.user);
        // A CPU that ran out of tasks before the others stays idle.
        usage.idle += sum.elapsed.since(span);
        sum.add(&usage);
    }
    sum
}

impl Scheduler<'_> {
    fn run_cpu(&self, n: usize, cpu: &Cpu<'_, '_, Sim, StructPage>) {
        let on = OnCpu {
            cpu,
            kernel: self.kernel,
            lru: &self.lru,
            lists: self.lists,
            frames_per_node: self.frames_per_node,
            until: self.limit.map_or(Ps::NEVER, |limit| engine::now() + limit),
            user: Cell::new(Ps(0)),
            work: Cell::new(Ps(0)),
            pages: Cell::new(0),
            allocating: Cell::new(Ps(0)),
        };
        while self.alive.get() > 0 && engine::now() < on.until {
            self.take_queue(n);
            let task = self.next(n).map_or_else(|| self.pull(n), Found::Task);
            match task {
                Found::Task(id) => {
                    self.queues.borrow_mut()[n].busy = true;
                    self.run_task(n, id, &on);
                    self.queues.borrow_mut()[n].busy = false;
                }
                Found::TooLate => {}
                Found::Nothing => {
                    if !self.rest(n, on.until) {
                        break;
                    }
                }
            }
        }
        self.awake.set(self.awake.get() - 1);
        let usage = &mut self.queues.borrow_mut()[n].usage;
        (usage.user, usage.work, usage.pages) = (on.user.get(), on.work.get(), on.pages.get());
    }

    /// Takes a CPU's queue: no other CPU uses it until this CPU next does something that others notice.
    fn take_queue(&self, n: usize) {
        engine::touch(self.lines[n].address(), size_of::<u64>(), Access::Exchange);
    }

    /// Does nothing until there may be something to do. `false` if there never will.
    fn rest(&self, n: usize, until: Ps) -> bool {
        let start = engine::now();
        let timer = {
            let queue = &mut self.queues.borrow_mut()[n];
            queue.idle = true;
            queue.timers.peek().map(|&Reverse((at, _))| at)
        };
        let goes_on = match timer {
            Some(at) => {
                engine::idle_until(at.min(start + NAP).min(until));
                true
            }
            None => self.poll(n),
        };
        let queue = &mut self.queues.borrow_mut()[n];
        (queue.idle, queue.called) = (false, false);
        queue.usage.idle += engine::now().since(start);
        goes_on
    }

    /// Sleeps until another CPU writes to this CPU's queue, as an idle CPU does that watches one line.
    fn poll(&self, n: usize) -> bool {
        self.awake.set(self.awake.get() - 1);
        engine::touch(self.lines[n].address(), size_of::<u64>(), Access::Read);
        let has_work = || {
            let queue = &self.queues.borrow()[n];
            queue.called || !queue.ready.is_empty()
        };
        if !has_work() {
            engine::relax();
        }
        let nobody_left = self.awake.get() == 0 && !has_work();
        self.awake.set(self.awake.get() + 1);
        !nobody_left
    }

    /// Wakes all CPUs: there is nothing left to do.
    fn tell_all(&self) {
        for line in &self.lines {
            engine::touch(line.address(), size_of::<u64>(), Access::Write);
        }
    }

    fn run_task(&self, n: usize, id: usize, on: &OnCpu<'_, '_, '_>) {
        let (task, before) = {
            let slot = &mut self.slots.borrow_mut()[id];
            let before = core::mem::replace(&mut slot.cpu, n);
            (slot.task.take(), core::mem::replace(&mut slot.ran, true).then_some(before))
        };
        let Some(mut task) = task else { return };
        if let Some(before) = before.filter(|&before| before != n) {
            self.queues.borrow_mut()[n].usage.migrations += 1;
            let core = |cpu: usize| self.model.shape.core_of(cpu as u16);
            if core(before) != core(n) {
                on.system(Ps::from_ns(self.kernel.migration));
            }
        }
        if self.queues.borrow_mut()[n].last.replace(id) != Some(id) {
            on.system(Ps::from_ns(self.kernel.context_switch));
        }
        let start = engine::now();
        let given_up = |how: fn(&mut Usage) -> &mut u64| *how(&mut self.queues.borrow_mut()[n].usage) += 1;
        loop {
            match task.step(on) {
                Step::Continue => {}
                Step::Sleep(time) => {
                    given_up(|usage| &mut usage.voluntary);
                    self.slots.borrow_mut()[id].task = Some(task);
                    self.queues.borrow_mut()[n].timers.push(Reverse((engine::now() + time, id)));
                    return;
                }
                Step::Wait => {
                    self.take_queue(n);
                    let slot = &mut self.slots.borrow_mut()[id];
                    if slot.ended == 0 {
                        given_up(|usage| &mut usage.voluntary);
                        slot.waits = true;
                        slot.task = Some(task);
                        return;
                    }
                    slot.ended -= 1;
                }
                Step::Fork(child) => self.fork(n, id, child),
                Step::Exit => {
                    given_up(|usage| &mut usage.voluntary);
                    return self.exit(id);
                }
            }
            self.expire(n);
            self.tick(n);
            let now = engine::now();
            if now >= on.until {
                self.slots.borrow_mut()[id].task = Some(task);
                return;
            }
            if now.since(start) >= SLICE {
                self.take_queue(n);
                if !self.queues.borrow()[n].ready.is_empty() {
                    given_up(|usage| &mut usage.involuntary);
                    self.slots.borrow_mut()[id].task = Some(task);
                    self.push(n, id);
                    return;
                }
            }
        }
    }

    /// Makes a task and places it: on the nearest CPU without one, here if all have.
    fn fork(&self, n: usize, parent: usize, task: Box<dyn Task>) {
        engine::spend(Ps::from_ns(self.kernel.fork));
        let id = {
            let mut slots = self.slots.borrow_mut();
            slots.push(Slot {
                task: Some(task),
                parent: Some(parent),
                cpu: n,
                ran: false,
                waits: false,
                ended: 0,
            });
            slots.len() - 1
        };
        self.alive.set(self.alive.get() + 1);
        self.place(id, n, || self.unused_near(n, Distance::OtherSocket));
    }

    fn exit(&self, id: usize) {
        self.alive.set(self.alive.get() - 1);
        if self.alive.get() == 0 {
            return self.tell_all();
        }
        let Some(parent) = self.slots.borrow()[id].parent else { return };
        // A task that waits says so under the lock of the queue that it is on.
        let cpu = self.slots.borrow()[parent].cpu;
        self.take_queue(cpu);
        let waited = {
            let slot = &mut self.slots.borrow_mut()[parent];
            let waited = core::mem::take(&mut slot.waits);
            slot.ended += u32::from(!waited);
            waited
        };
        if waited {
            self.wake(parent);
        }
    }
}
