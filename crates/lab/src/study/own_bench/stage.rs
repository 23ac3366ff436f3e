//! Simulated CPUs as a stage for the workloads of `bench`: the same code that runs on threads.

use core::ops::Deref;
use core::sync::atomic::Ordering;
use core::time::Duration;

use framewright_host::framewright::{Migratetype, Word as _};
use framewright_host::{Order, Pfn};
use framewright_sim::clock::Ps;
use framewright_sim::engine;
use framewright_sim::platform::{Sim, SimWord};
use framewright_sim::world::{Meet, OwnCpu, Placed, Programs, pause};
use framewright_workload::bench::stage::{Backoff, Done, Meeting, SharedWord, Stage};
use framewright_workload::target::{Mobility, TargetCpu};

/// Simulated CPUs on which the harness takes so long for each call: it reads or writes one element of its list.
#[derive(Debug)]
pub(super) struct Simulated<'w> {
    pub(super) programs: Programs<'w>,
    pub(super) harness: Ps,
    /// What a call takes that hits a list, among others that do.
    pub(super) hit: Ps,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Cpu<'s, 'w> {
    own: OwnCpu<'w>,
    stage: &'s Simulated<'w>,
}

/// How they meet.
#[derive(Debug)]
pub(super) struct Gate<'w>(Meet<'w>);

/// A word in simulated memory.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Shared(SimWord);

/// Something in simulated memory.
#[derive(Debug)]
pub(super) struct There<'w, T>(Placed<'w, T>);

impl<'w> Stage for Simulated<'w> {
    type Cpu<'s>
        = Cpu<'s, 'w>
    where
        Self: 's;
    type Meeting = Gate<'w>;
    type Word = Shared;
    type Placed<'s, T: Sync + 's>
        = There<'w, T>
    where
        Self: 's;
    type Moment = Ps;

    fn now() -> Ps {
        engine::now()
    }

    fn since(moment: Ps) -> Duration {
        Duration::from_nanos((engine::now().since(moment).0 + 500) / 1000)
    }

    fn place<'s, T: Sync + 's>(&'s self, value: T) -> There<'w, T> {
        There(self.programs.place("ring", value))
    }

    fn on_cpus<'s, R: Send>(
        &'s self,
        cpus: usize,
        work: impl Fn(usize, &Gate<'w>, &mut Cpu<'s, 'w>) -> R + Sync,
    ) -> Done<R> {
        let results = self.programs.run(cpus as u16, |index, meet, own| {
            let gate = Gate(meet);
            gate.wait();
            let result = work(index, &gate, &mut Cpu { own, stage: self });
            gate.wait();
            result
        });
        Done { results, pinned: true }
    }
}

/// Accesses of a call that hits a list, and not more: all others take more.
const HIT: u64 = 6;

impl<'w> Cpu<'_, 'w> {
    /// A call of the allocator, and the harness around it. The code of a hit is compiled into its caller, and a core executes it
    /// beside that of the calls before and after: of several in a row each waits for nothing but the count that the one before has stored.
    fn call<R>(&self, call: impl FnOnce(framewright_host::framewright::Cpu<'_, 'w, Sim, ()>) -> R) -> R {
        let stage = self.stage;
        engine::overlapped(stage.hit, HIT, || {
            engine::spend(stage.harness);
            call(self.own.cpu())
        })
    }
}

impl TargetCpu for Cpu<'_, '_> {
    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u64> {
        let migratetype = match mobility {
            Mobility::Unmovable => Migratetype::Unmovable,
            Mobility::Movable => Migratetype::Movable,
            Mobility::Reclaimable => Migratetype::Reclaimable,
        };
        let order = Order::new(order)?;
        self.call(|cpu| cpu.alloc(order, migratetype).ok().map(|pfn| pfn.0))
    }

    fn free(&mut self, frame: u64, order: u8) {
        let order = Order::new(order).expect("a block's order is one");
        if let Err(error) = self.call(|cpu| cpu.free(Pfn(frame), order)) {
            panic!("a workload freed wrongly: {error}");
        }
    }
}

impl Meeting for Gate<'_> {
    fn wait(&self) {
        self.0.wait();
    }

    /// Programs on simulated CPUs are one thread: a panic ends all of them.
    fn check(&self) {}

    fn pause(&self, _: &mut Backoff) {
        pause();
    }
}

impl SharedWord for Shared {
    fn new(value: u64) -> Self {
        Self(SimWord::new(value))
    }

    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

impl<T> Deref for There<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
