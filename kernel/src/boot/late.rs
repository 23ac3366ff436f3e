//! The rest of the memory, on all CPUs of each node; and the work that may go on during it.

use core::sync::atomic::{AtomicU64, Ordering};

use framewright::boot::deferred::{UnitStep, Worker};
use framewright::units::MAX_ORDER;
use framewright::{CpuId, Migratetype, NodeId, Order, Pfn};
use framewright_kernel::args;

use super::Early;
use super::phases::Ms;
use crate::kernel::{Kernel, Page};
use crate::machine::MAX_NODES;
use crate::metal::Metal;
use crate::{clock, log, smp};

/// Initialised memory of each node, by all workers together.
struct Progress {
    begin: u64,
    pages: [AtomicU64; MAX_NODES],
    /// The tick at which the last unit was done.
    ended: [AtomicU64; MAX_NODES],
}

impl Progress {
    fn new() -> Self {
        let zeroes = || [const { AtomicU64::new(0) }; MAX_NODES];
        Self { begin: clock::ticks(), pages: zeroes(), ended: zeroes() }
    }

    /// Steps `worker` once; `false` if nothing is left to claim on its node.
    fn step(&self, kernel: &Kernel, worker: &mut Worker<'_, '_, Metal, Page>) -> bool {
        let UnitStep::Unit(zone, pages) = worker.step() else { return false };
        let node = usize::from(kernel.pages.zones()[zone.index()].spec().node.0);
        self.pages[node].fetch_add(pages, Ordering::Relaxed);
        self.ended[node].fetch_max(clock::ticks(), Ordering::Relaxed);
        true
    }

    /// Pages and ticks of each node.
    fn nodes(&self) -> [(u64, u64); MAX_NODES] {
        core::array::from_fn(|node| {
            let ended = self.ended[node].load(Ordering::Relaxed);
            (self.pages[node].load(Ordering::Relaxed), ended.saturating_sub(self.begin))
        })
    }
}

/// Initialises what boot has left, then ends boot.
///
/// On the command line, `busy` has every second CPU allocate and free during it, and `scaling` has one CPU and two
/// take turns, and compares them.
pub(crate) fn run(kernel: &'static Kernel, booting: Early) {
    let line = kernel.machine.command_line();
    if args::find(line, "scaling").is_some() {
        scaling(kernel, &booting);
    }
    let progress = Progress::new();
    match args::find(line, "busy") {
        Some(_) => busy(kernel, &booting, &progress),
        None => smp::everywhere(kernel, usize::MAX, &|cpu| work(kernel, &booting, &progress, cpu)),
    }
    for (node, (pages, ticks)) in progress.nodes().iter().enumerate().take(kernel.machine.nodes()) {
        let cpus = kernel.cpu_nodes.iter().filter(|home| usize::from(home.0) == node).count();
        log!("node {node} deferred pages initialised in {} ms: {pages} pages, {cpus} CPUs", Ms(*ticks));
    }
    let growth = booting.finish().unwrap_or_else(|booting| panic!("boot cannot end: {booting:?}"));
    log!("deferred: {} pages in {} growths of allocations that could not wait", growth.pages, growth.times);
    print_zones(kernel);
}

/// Does one CPU's share: its own node, then nodes that have no CPU.
fn work(kernel: &Kernel, booting: &Early, progress: &Progress, cpu: CpuId) {
    let node = kernel.cpu_nodes[cpu.index()];
    let mut worker = booting.worker(node).expect("a slot for each CPU");
    while progress.step(kernel, &mut worker) {}
    for node in (0..kernel.machine.nodes() as u16).map(NodeId) {
        if !kernel.cpu_nodes.contains(&node) {
            worker.move_to(node);
            while progress.step(kernel, &mut worker) {}
        }
    }
}

/// Every second CPU allocates and frees until all is initialised; a CPU alone does both in turn. First they take
/// more than there is, so that they must initialise some of it themselves.
fn busy(kernel: &'static Kernel, booting: &Early, progress: &Progress) {
    let allocations = AtomicU64::new(0);
    let cpus = kernel.online().count();
    let barrier = smp::Barrier::new(cpus);
    smp::everywhere(kernel, usize::MAX, &|cpu| {
        let is_user = cpus == 1 || cpu.0 % 2 == 1;
        let mut user = User::new(kernel, cpu);
        if is_user {
            user.take_large();
        }
        barrier.wait(kernel);
        if cpus == 1 {
            let mut worker = booting.worker(kernel.cpu_nodes[cpu.index()]).expect("a slot for each CPU");
            while progress.step(kernel, &mut worker) {
                user.step();
            }
        }
        if !is_user || cpus == 1 {
            work(kernel, booting, progress, cpu);
            // Nodes whose CPUs are all users.
            booting.run();
        }
        while is_user && booting.left() > 0 {
            user.step();
        }
        allocations.fetch_add(user.end(), Ordering::Relaxed);
    });
    log!("deferred: {} allocations meanwhile", allocations.load(Ordering::Relaxed));
}

/// Blocks that a user holds.
const HELD: usize = 128;

/// Someone who cannot wait: holds blocks, and frees and allocates them in turn.
struct User<'k> {
    kernel: &'k Kernel,
    held: [Option<(Pfn, Order)>; HELD],
    next: usize,
    allocations: u64,
    cpu: CpuId,
}

impl<'k> User<'k> {
    fn new(kernel: &'k Kernel, cpu: CpuId) -> Self {
        Self { kernel, held: [None; HELD], next: 0, allocations: 0, cpu }
    }

    /// A mark that only the holder of a block knows.
    fn stamp(&self, order: Order) -> u64 {
        u64::from(self.cpu.0) << 32 | u64::from(order.get()) << 8 | 0x5a
    }

    fn give_back(&self, pfn: Pfn, order: Order) {
        for frame in Self::ends(pfn, order) {
            let found = self.kernel.slot(pfn, order, frame, |slot| slot.mark);
            assert_eq!(
                found,
                self.stamp(order),
                "{frame:?} was initialised, or handed out, while it was held"
            );
        }
        self.kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Fills every place with the largest block: 512 MiB.
    fn take_large(&mut self) {
        for at in 0..self.held.len() {
            self.take(at, MAX_ORDER);
        }
    }

    fn step(&mut self) {
        let at = self.next % self.held.len();
        if let Some((pfn, order)) = self.held[at].take() {
            self.give_back(pfn, order);
        }
        // Orders 0 to 5, small ones more often.
        let order = (self.next as u64 * 7 % 61).trailing_zeros().min(10) as u8;
        self.take(at, Order::new(order).expect("at most 10"));
        self.next += 1;
    }

    fn take(&mut self, at: usize, order: Order) {
        let Ok(pfn) = self.kernel.alloc(order, Migratetype::Movable) else { return };
        let stamp = self.stamp(order);
        for frame in Self::ends(pfn, order) {
            self.kernel.slot(pfn, order, frame, |slot| slot.mark = stamp);
        }
        self.held[at] = Some((pfn, order));
        self.allocations += 1;
    }

    const fn ends(pfn: Pfn, order: Order) -> [Pfn; 2] {
        [pfn, Pfn(pfn.0 + order.pages() - 1)]
    }

    fn end(mut self) -> u64 {
        for (pfn, order) in core::mem::replace(&mut self.held, [None; HELD]).into_iter().flatten() {
            self.give_back(pfn, order);
        }
        self.allocations
    }
}

/// Units in a row of one CPU over which [`scaling`] takes a rate: short, so that some stretches find both processors
/// of a busy host at work.
const STRETCH: u64 = 16;
/// Units in a turn of one CPU, and of two.
const TURN_UNITS: [u64; 2] = [256, 768];
/// Most and fewest turns of each.
const TURNS: (u64, u64) = (8, 2);

/// One CPU and two take turns. Of each the fastest stretch counts: how many units were done in its time, by both.
fn scaling(kernel: &'static Kernel, booting: &Early) {
    let units = booting.left() / MAX_ORDER.pages();
    let turns = (units / TURN_UNITS.iter().sum::<u64>()).saturating_sub(1).min(TURNS.0);
    assert!(turns >= TURNS.1, "the machine has too little memory to compare one CPU and two");
    let mut best = [1; 2];
    for _ in 0..turns {
        for (best, cpus) in best.iter_mut().zip([1, 2]) {
            *best = (*best).max(fastest_stretch(kernel, booting, cpus));
        }
    }
    let ticks = best.map(|rate| (1000 << 32) / rate);
    let hundredths = ticks[0] * 100 / ticks[1];
    log!("scaling: 1 CPU {} ticks, 2 CPUs {} ticks for 1000 units", ticks[0], ticks[1]);
    log!("scaling: {}.{:02} times as fast", hundredths / 100, hundredths % 100);
}

/// Units in 2^32 ticks, in the fastest stretch of a turn. Of the other CPU's units those count that were begun and
/// ended within the stretch.
fn fastest_stretch(kernel: &'static Kernel, booting: &Early, cpus: usize) -> u64 {
    let barrier = smp::Barrier::new(cpus);
    let (left, best) = (AtomicU64::new(TURN_UNITS[cpus - 1]), AtomicU64::new(1));
    let done = [const { AtomicU64::new(0) }; 2];
    smp::everywhere(kernel, cpus, &|cpu| {
        let mut worker = booting.worker(NodeId(0)).expect("a slot for each CPU");
        let (mine, others) = (&done[cpu.index()], &done[1 - cpu.index()]);
        let mut begun = [(0, 0); STRETCH as usize];
        barrier.wait_awake();
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            let (n, now, theirs) =
                (mine.load(Ordering::Relaxed), clock::ticks(), others.load(Ordering::Relaxed));
            let place = &mut begun[(n % STRETCH) as usize];
            if n >= STRETCH {
                let (since, had) = *place;
                let units = STRETCH + (theirs - had).saturating_sub(1);
                best.fetch_max((units << 32) / (now - since), Ordering::Relaxed);
            }
            *place = (now, theirs);
            assert!(worker.step() != UnitStep::Idle, "nothing left to claim");
            mine.store(n + 1, Ordering::Relaxed);
        }
    });
    best.into_inner()
}

/// The zones in the end. CPUs are alike.
fn print_zones(kernel: &Kernel) {
    for zone in kernel.pages.zones() {
        let (spec, sizing) = (zone.spec(), kernel.pages.pcp(zone.id(), CpuId(0)).sizing());
        log!(
            "  Node {} {:<8} spanned {} present {} managed {}, per-CPU lists: batch {}, high {} to {}",
            spec.node.0,
            spec.kind,
            spec.pages,
            zone.present_pages(),
            zone.managed_pages(),
            sizing.batch,
            sizing.high_min,
            sizing.high_max
        );
    }
}
