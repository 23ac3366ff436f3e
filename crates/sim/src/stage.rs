//! Simulated CPUs as a stage for generated workloads: the same code that runs on threads.

mod floor;

use core::cell::Cell;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;

use framewright::{Allocator, Cpu, FrameUser, Migratetype, Order, Pfn, Word};
use framewright_workload::bench::stage::{Backoff, Done, Meeting, SharedWord, Stage};
use framewright_workload::target::{Mobility, TargetCpu};

pub use self::floor::{Around, Floor, MOST};

use crate::bench::Driver;
use crate::clock::Ps;
use crate::engine;
use crate::model::Model;
use crate::platform::{Sim, SimWord};
use crate::world::{Meet, OwnCpu, Placed, Programs, StructPage, pause};

/// A caller of the allocator: what it does around each call.
pub trait Caller<M: FrameUser>: fmt::Debug {
    /// Allocates a block.
    fn alloc(&self, cpu: &Cpu<'_, '_, Sim, M>, order: Order, migratetype: Migratetype) -> Option<Pfn>;

    /// Frees a block.
    ///
    /// # Panics
    /// If the allocator refuses it.
    fn free(&self, cpu: &Cpu<'_, '_, Sim, M>, pfn: Pfn, order: Order);
}

/// A kernel like Linux, with the private work that was fitted; it calls for blocks of one order.
impl Caller<StructPage> for Driver {
    fn alloc(&self, cpu: &Cpu<'_, '_, Sim, StructPage>, _: Order, migratetype: Migratetype) -> Option<Pfn> {
        self.alloc_as(cpu, migratetype).ok()
    }

    fn free(&self, cpu: &Cpu<'_, '_, Sim, StructPage>, pfn: Pfn, _: Order) {
        Self::free(self, cpu, pfn);
    }
}

/// A program that the allocator is compiled into: for each call it reads or writes one element of its own list.
#[derive(Clone, Copy, Debug)]
pub struct Compiled {
    harness: Ps,
    /// Time of a call that hits a list, among others that do.
    hit: Ps,
}

/// Lines of a world's that a ring between two CPUs takes at most; a run takes [`Meet::LINES`] besides.
pub const RING: usize = 32;
/// Accesses of a call that hits a list, and not more: all others take more.
const HIT: u64 = 6;

impl Compiled {
    /// On a machine that was made [for such programs](Model::for_compiled).
    #[must_use]
    pub fn on(model: &Model) -> Self {
        Self { harness: Ps::from_ns(model.fitted.access_ns), hit: Ps::from_ns(model.own_hit_ns) }
    }

    /// A call, and the harness around it. The code of a hit is compiled into its caller, and a core executes it beside
    /// that of the calls before and after: of several in a row each waits for nothing but the count that the one before
    /// has stored.
    fn call<R>(&self, call: impl FnOnce() -> R) -> R {
        engine::overlapped(self.hit, HIT, || {
            engine::spend(self.harness);
            call()
        })
    }
}

impl Caller<()> for Compiled {
    fn alloc(&self, cpu: &Cpu<'_, '_, Sim>, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        self.call(|| cpu.alloc(order, migratetype).ok())
    }

    fn free(&self, cpu: &Cpu<'_, '_, Sim>, pfn: Pfn, order: Order) {
        if let Err(error) = self.call(|| cpu.free(pfn, order)) {
            panic!("a workload freed wrongly: {error}");
        }
    }
}

/// Simulated CPUs on which a caller allocates and frees.
#[derive(Debug)]
pub struct Simulated<'w, M: FrameUser, C> {
    programs: Programs<'w, M>,
    caller: C,
    calls: Cell<u64>,
}

impl<'w, M: FrameUser, C> Simulated<'w, M, C> {
    /// A caller on a world's CPUs.
    pub const fn new(programs: Programs<'w, M>, caller: C) -> Self {
        Self { programs, caller, calls: Cell::new(0) }
    }

    /// The allocator.
    pub const fn allocator(&self) -> &'w Allocator<'w, Sim, M> {
        self.programs.allocator()
    }

    /// Allocations and frees so far, of warm-ups, too.
    pub const fn calls(&self) -> u64 {
        self.calls.get()
    }
}

/// A simulated CPU that a workload allocates and frees through.
#[derive(Debug)]
pub struct OnCpu<'s, 'w, M: FrameUser, C> {
    cpu: OwnCpu<'w, M>,
    stage: &'s Simulated<'w, M, C>,
}

impl<'w, M: FrameUser, C: Caller<M>> Stage for Simulated<'w, M, C> {
    type Cpu<'s>
        = OnCpu<'s, 'w, M, C>
    where
        Self: 's;
    type Meeting = Meet<'w>;
    type Word = SimWord;
    type Placed<'s, T: Sync + 's>
        = Placed<'w, T>
    where
        Self: 's;
    type Moment = Ps;

    fn now() -> Ps {
        engine::now()
    }

    fn since(moment: Ps) -> Duration {
        Duration::from_nanos((engine::now().since(moment).0 + 500) / 1000)
    }

    fn place<'s, T: Sync + 's>(&'s self, value: T) -> Placed<'w, T> {
        self.programs.place("ring", value)
    }

    fn on_cpus<'s, R: Send>(
        &'s self,
        cpus: usize,
        work: impl Fn(usize, &Meet<'w>, &mut OnCpu<'s, 'w, M, C>) -> R + Sync,
    ) -> Done<R> {
        let results = self.programs.run(cpus as u16, |index, meet, data| {
            meet.wait();
            let result = work(index, &meet, &mut OnCpu { cpu: data, stage: self });
            meet.wait();
            result
        });
        Done { results, pinned: true }
    }
}

/// The type of the pageblocks that blocks of a mobility belong in.
#[inline(always)]
#[must_use]
pub const fn migratetype(mobility: Mobility) -> Migratetype {
    match mobility {
        Mobility::Unmovable => Migratetype::Unmovable,
        Mobility::Movable => Migratetype::Movable,
        Mobility::Reclaimable => Migratetype::Reclaimable,
    }
}

impl<M: FrameUser, C: Caller<M>> TargetCpu for OnCpu<'_, '_, M, C> {
    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u64> {
        self.stage.calls.set(self.stage.calls.get() + 1);
        self.stage.caller.alloc(&self.cpu.cpu(), Order::new(order)?, migratetype(mobility)).map(|pfn| pfn.0)
    }

    fn free(&mut self, frame: u64, order: u8) {
        let order = Order::new(order).expect("a block's order is one");
        self.stage.calls.set(self.stage.calls.get() + 1);
        self.stage.caller.free(&self.cpu.cpu(), Pfn(frame), order);
    }
}

impl Meeting for Meet<'_> {
    fn wait(&self) {
        Meet::wait(self);
    }

    /// Programs on simulated CPUs are one thread: a panic ends all of them.
    fn check(&self) {}

    fn pause(&self, _: &mut Backoff) {
        pause();
    }
}

impl SharedWord for SimWord {
    fn new(value: u64) -> Self {
        Word::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        Word::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Word::store(self, value, order);
    }
}
