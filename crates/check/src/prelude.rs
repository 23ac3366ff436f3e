//! Names that nearly every test needs, calls that must succeed, reclaimers and movers made of closures, pairs of
//! threads: `use framewright_check::prelude::*`.
#![expect(unsafe_code, reason = "a mover vouches for what it moves")]

#[cfg(feature = "models")]
use std::sync::Arc;

use framewright::buddy::BuddyCounts;
pub use framewright::config::*;
pub use framewright::cpu::*;
pub use framewright::defer::How;
pub use framewright::error::*;
pub use framewright::frame::{FrameUser, State};
use framewright::pcp::Pcp;
pub use framewright::platform::Platform;
pub use framewright::policy::init::Split;
pub use framewright::policy::nodes::NodePolicy;
pub use framewright::policy::pcp::Sizing;
pub use framewright::reclaim::*;
pub use framewright::units::*;
use framewright::zone::Zone;
pub use framewright::{Flags, Plan, Request, ZoneSpec};

pub use crate::corrupt::{Spot, heads};
pub use crate::fixture::{BASE, But, Place, RestSpec, Spec, World};
pub use crate::marks::Floors;
pub use crate::oracle::*;
pub use crate::platform::checked::Checked;
#[cfg(feature = "models")]
pub use crate::platform::loom::{Bounds, Loom, full, quick};
pub use crate::platform::pin::OwnedPin;
pub use crate::platform::plain::Plain;
#[cfg(feature = "models")]
pub use crate::platform::shuttle::Shuttle;
pub use crate::slot::Slot;

/// The type of most requests.
pub const M: Migratetype = Migratetype::Movable;

/// The types that requests may have without reserves.
pub const ORDINARY: [Migratetype; 3] = Migratetype::ORDINARY;

/// Both stores of free memory.
pub const STORES: [Engine; 2] = [Engine::Framewright, Engine::Linux];

/// Both forms of engine.
pub const FORMS: [Engine; 2] = [Engine::Framewright, Engine::Compact];

/// Each way to keep free memory and descriptors: with lists, with maps, and with maps without words.
pub const ENGINES: [Config; 3] =
    [with_engine(Engine::Linux), with_engine(Engine::Framewright), with_engine(Engine::Compact)];

/// Both generations of policies.
pub const GENERATIONS: [Generation; 2] = [Generation::V3_0, Generation::V6_1];

/// The order `n`.
#[track_caller]
pub const fn order(n: u8) -> Order {
    Order::new(n).expect("an order")
}

/// The default with another engine.
pub const fn with_engine(engine: Engine) -> Config {
    Config { engine, ..Config::framewright() }
}

/// The default without per-CPU lists.
pub const fn bare() -> Config {
    let mut config = Config::framewright();
    config.experiment.pcp_orders = PcpOrders::None;
    config
}

/// Without per-CPU lists, with watermarks that are never boosted.
pub fn marked(generation: Generation) -> Config {
    bare().policies(generation).but(|config| config.boost_factor = 0).with_marks()
}

/// Lists of order 0 with so few pages that a model checker goes through what happens on them.
pub fn few_pages(slots: u32, batch: u32, high: u32, spins: u32) -> Config {
    Config::default().orders(PcpOrders::Zero).slots(slots).fixed(batch, high).spins(spins)
}

/// An order, or its number.
pub trait IntoOrder {
    /// The order.
    fn into_order(self) -> Order;
}

impl IntoOrder for Order {
    fn into_order(self) -> Order {
        self
    }
}

impl IntoOrder for u8 {
    #[track_caller]
    fn into_order(self) -> Order {
        order(self)
    }
}

/// Calls of a CPU that must succeed.
pub trait Must {
    /// Allocates a movable block.
    fn must_alloc(&self, order: impl IntoOrder) -> Pfn;
    /// Allocates a block of a type.
    fn must_alloc_of(&self, order: impl IntoOrder, asked: Migratetype) -> Pfn;
    /// Allocates movable blocks until none is left.
    fn alloc_all(&self, order: impl IntoOrder) -> Vec<Pfn>;
    /// Makes a request without helpers.
    fn request(&self, request: &Request<'_>) -> Result<Pfn, AllocError>;
    /// Makes a request without helpers until it is refused.
    fn request_all(&self, request: &Request<'_>) -> Vec<Pfn>;
    /// Allocates a given block.
    fn must_alloc_at(&self, pfn: Pfn, order: impl IntoOrder);
    /// Frees a block.
    fn must_free(&self, pfn: Pfn, order: impl IntoOrder);
}

impl<P: Platform<Pin = OwnedPin>, U: FrameUser> Must for Cpu<'_, '_, P, U> {
    #[track_caller]
    fn must_alloc(&self, order: impl IntoOrder) -> Pfn {
        self.must_alloc_of(order, M)
    }

    #[track_caller]
    fn must_alloc_of(&self, order: impl IntoOrder, asked: Migratetype) -> Pfn {
        self.alloc(order.into_order(), asked).unwrap_or_else(|error| panic!("memory is left: {error}"))
    }

    fn alloc_all(&self, order: impl IntoOrder) -> Vec<Pfn> {
        let order = order.into_order();
        core::iter::from_fn(|| self.alloc(order, M).ok()).collect()
    }

    fn request(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        self.alloc_with(request, &Helpers::NONE)
    }

    fn request_all(&self, request: &Request<'_>) -> Vec<Pfn> {
        core::iter::from_fn(|| self.request(request).ok()).collect()
    }

    #[track_caller]
    fn must_alloc_at(&self, pfn: Pfn, order: impl IntoOrder) {
        self.alloc_at(pfn, order.into_order()).unwrap_or_else(|error| panic!("it is free: {error}"));
    }

    #[track_caller]
    fn must_free(&self, pfn: Pfn, order: impl IntoOrder) {
        self.free(pfn, order.into_order()).unwrap_or_else(|error| panic!("it is allocated: {error}"));
    }
}

/// These calls on CPU `cpu` of a world.
impl<P: Platform<Pin = OwnedPin>, U: FrameUser> World<P, U> {
    /// Allocates a movable block that must be there.
    #[track_caller]
    pub fn must_alloc(&self, cpu: usize, order: impl IntoOrder) -> Pfn {
        self.on(cpu, |cpu| cpu.must_alloc(order))
    }

    /// Allocates a block of a type that must be there.
    #[track_caller]
    pub fn must_alloc_of(&self, cpu: usize, order: impl IntoOrder, asked: Migratetype) -> Pfn {
        self.on(cpu, |cpu| cpu.must_alloc_of(order, asked))
    }

    /// Allocates unmovable frames, so that the CPU has last refilled from a pageblock with fewer free frames than those
    /// of other types: what it frees into them returns to the zone.
    pub fn fill_elsewhere(&self, cpu: usize, pages: u64) {
        (0..pages).for_each(|_| _ = self.must_alloc_of(cpu, 0, Migratetype::Unmovable));
    }

    /// Allocates movable blocks until none is left.
    pub fn alloc_all(&self, cpu: usize, order: impl IntoOrder) -> Vec<Pfn> {
        self.on(cpu, |cpu| cpu.alloc_all(order))
    }

    /// Allocates a given block that must be free.
    #[track_caller]
    pub fn must_alloc_at(&self, cpu: usize, pfn: Pfn, order: impl IntoOrder) {
        self.on(cpu, |cpu| cpu.must_alloc_at(pfn, order));
    }

    /// Frees a block that must be allocated.
    #[track_caller]
    pub fn must_free(&self, cpu: usize, pfn: Pfn, order: impl IntoOrder) {
        self.on(cpu, |cpu| cpu.must_free(pfn, order));
    }

    /// All frames that CPU 0 can have, one by one. They are free again when it returns.
    pub fn everything(&self) -> Vec<Pfn> {
        let all = self.alloc_all(0, Order::ZERO);
        all.iter().for_each(|&pfn| self.must_free(0, pfn, Order::ZERO));
        self.on(0, |cpu| cpu.drain());
        self.settled();
        all
    }

    /// Drains the lists of all CPUs.
    pub fn drain_all(&self) {
        (0..self.allocator().cpus()).for_each(|cpu| self.on(cpu, |cpu| cpu.drain()));
    }

    /// The first zone.
    pub fn zone(&self) -> &Zone<'_, P> {
        &self.allocator().zones()[0]
    }

    /// A CPU's lists of the first zone.
    pub fn pcp(&self, cpu: u16) -> &Pcp<'_, P> {
        self.allocator().pcp(ZoneId(0), CpuId(cpu))
    }

    /// Counters of the first zone's free memory.
    pub fn counts(&self) -> BuddyCounts {
        self.allocator().zone_snapshot(self.zone()).counts
    }
}

/// A zone.
pub const fn zone(node: u16, kind: ZoneType, start: u64, pages: u64) -> ZoneSpec {
    ZoneSpec { node: NodeId(node), kind, start: Pfn(start), pages }
}

/// A Normal zone.
pub const fn normal(node: u16, start: u64, pages: u64) -> ZoneSpec {
    zone(node, ZoneType::Normal, start, pages)
}

/// A request for a movable page.
pub const fn page() -> Request<'static> {
    Request::new(Order::ZERO, M)
}

struct Reclaimer<F>(F, u64);

impl<F: Fn(&ReclaimRequest<'_>, &dyn Release) -> Reclaimed> Reclaim for Reclaimer<F> {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.0(ask, to)
    }

    fn reclaimable(&self, _: ZoneId) -> Reclaimable {
        Reclaimable { file_lru: self.1, file: self.1, ..Reclaimable::default() }
    }
}

/// A reclaimer that does what `reclaim` does, and promises that it could free `pages` pages.
pub fn reclaimer(
    pages: u64,
    reclaim: impl Fn(&ReclaimRequest<'_>, &dyn Release) -> Reclaimed,
) -> impl Reclaim {
    Reclaimer(reclaim, pages)
}

/// Frees a range of frames that the test has allocated, or shows that it is refused.
pub fn free_range<P: Platform<Pin = OwnedPin>, M: FrameUser>(
    cpu: &Cpu<'_, '_, P, M>,
    range: core::ops::Range<Pfn>,
) -> Result<(), FreeError> {
    // SAFETY: no memory is behind the frames of a world, and no other code frees or splits these.
    unsafe { cpu.free_range(range) }
}

struct Mover<F, C>(F, C);

// SAFETY: no memory is behind the frames of a world, so none is at stake.
unsafe impl<F: Fn(Pfn, Pfn, Order) -> Migrated, C: Fn(Pfn, Migratetype) -> bool> Migrate for Mover<F, C> {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        self.0(from, to, order)
    }

    fn can_move(&self, from: Pfn, _: Order, asked: Migratetype) -> bool {
        self.1(from, asked)
    }
}

/// A mover of movable blocks that does what `migrate` does with the old place, the new one, and the order.
pub fn mover(migrate: impl Fn(Pfn, Pfn, Order) -> Migrated) -> impl Migrate {
    Mover(migrate, |_, asked| asked == Migratetype::Movable)
}

/// A mover that is asked to move only what `can_move` says that it would, by place and type.
pub fn choosy_mover(
    can_move: impl Fn(Pfn, Migratetype) -> bool,
    migrate: impl Fn(Pfn, Pfn, Order) -> Migrated,
) -> impl Migrate {
    Mover(migrate, can_move)
}

/// Frees a block from within a reclaimer.
pub fn give(to: &dyn Release, pfn: Pfn, order: impl IntoOrder) -> Result<(), FreeError> {
    // SAFETY: no memory is behind the frames of a world, so none is at stake.
    unsafe { to.free(pfn, order.into_order()) }
}

/// What a thread runs. Boxed, so that starting one is compiled once for each result.
#[cfg(feature = "models")]
type Run<R> = Box<dyn FnOnce() -> R + Send>;

/// Runs `there` on another thread of a loom model while `here` runs. Returns what they return.
#[cfg(feature = "models")]
pub fn loom_pair<W: Send + Sync + 'static, A, B: Send + 'static>(
    world: &Arc<W>,
    here: impl FnOnce(&W) -> A,
    there: impl FnOnce(&W) -> B + Send + 'static,
) -> (A, B) {
    let shared = world.clone();
    let run: Run<B> = Box::new(move || there(&shared));
    let thread = ::loom::thread::spawn(run);
    (here(world), thread.join().expect("the thread did not panic"))
}

/// Likewise under shuttle.
#[cfg(feature = "models")]
pub fn shuttle_pair<W: Send + Sync + 'static, A, B: Send + 'static>(
    world: &Arc<W>,
    here: impl FnOnce(&W) -> A,
    there: impl FnOnce(&W) -> B + Send + 'static,
) -> (A, B) {
    let shared = world.clone();
    let run: Run<B> = Box::new(move || there(&shared));
    let thread = ::shuttle::thread::spawn(run);
    (here(world), thread.join().expect("the thread did not panic"))
}

/// Runs `body(shared, n)` on threads 0 to `threads - 1` of a shuttle run, together. Returns what they return.
#[cfg(feature = "models")]
pub fn shuttle_team<T: Send + Sync + 'static, R: Send + 'static>(
    shared: &Arc<T>,
    threads: usize,
    body: impl Fn(&T, usize) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let begin = |n| {
        let (shared, body) = (shared.clone(), body.clone());
        let run: Run<R> = Box::new(move || body(&shared, n));
        ::shuttle::thread::spawn(run)
    };
    let threads: Vec<_> = (0..threads).map(begin).collect();
    threads.into_iter().map(|thread| thread.join().expect("the thread did not panic")).collect()
}

/// Runs `body` under random schedules and under as many with few changes of priority.
#[cfg(feature = "models")]
pub fn schedules(executions: usize, body: impl Fn() + Copy + Send + Sync + 'static) {
    crate::platform::shuttle::random(executions, body);
    crate::platform::shuttle::pct(3, executions, body);
}
