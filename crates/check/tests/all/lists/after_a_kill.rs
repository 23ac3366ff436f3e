//! What was freed by a victim, or by another CPU during a pause, is looked for at the min mark.

use core::cell::Cell;

use framewright::config::{Config, Experiment, Generation, PcpOrders};
use framewright::reclaim::{Reclaim, ReclaimRequest, Reclaimable, Reclaimed, Release};
use framewright::units::{Migratetype, Order, Pfn, ZoneId};
use framewright::{Helpers, Request};
use framewright_check::fixture::{Spec, World};
use framewright_check::platform::plain::Plain;

fn page() -> Request<'static> {
    Request::new(Order::ZERO, Migratetype::Movable)
}

/// Reclaim never frees anything. `victim` pages come free, through CPU 1, with each kill; `meanwhile` pages, once,
/// during the first pause.
struct Nothing<'w> {
    world: &'w World<Plain>,
    held: Cell<Vec<Pfn>>,
    victim: usize,
    meanwhile: Cell<usize>,
    on_lists: u64,
    reclaims: Cell<u32>,
    kills: Cell<u32>,
}

impl Nothing<'_> {
    fn free(&self, pages: usize) {
        let mut held = self.held.take();
        self.world.on(1, |cpu| {
            held.drain(..pages).for_each(|pfn| cpu.free(pfn, Order::ZERO).expect("it is allocated"));
        });
        self.held.set(held);
    }
}

impl Reclaim for Nothing<'_> {
    fn reclaim(&self, _: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
        self.reclaims.set(self.reclaims.get() + 1);
        Reclaimed::default()
    }

    fn reclaimable(&self, _: ZoneId) -> Reclaimable {
        Reclaimable { file_lru: self.on_lists, file: self.on_lists, ..Reclaimable::default() }
    }

    fn wait_if_congested(&self, _: ZoneId, _: u32) {
        self.free(self.meanwhile.take());
    }

    fn kill(&self) -> bool {
        self.kills.set(self.kills.get() + 1);
        self.free(self.victim);
        true
    }
}

/// One page is asked for where 256 are free, which is the min mark; the high mark is 384. Returns how often reclaim
/// was asked, and how many were killed.
fn ask(generation: Generation, victim: usize, meanwhile: usize, on_lists: u64) -> (u32, u32) {
    let config = Config {
        boost_factor: 0,
        experiment: Experiment {
            marks: generation,
            fallback: generation,
            passes: generation,
            reclaim: generation,
            pcp_orders: PcpOrders::None,
            ..Experiment::default()
        },
        ..Config::framewright()
    };
    let world: World<Plain> = Spec::one_zone(16384, 2).config(config.with_marks()).build();
    let held = world.on(0, |cpu| {
        core::iter::from_fn(|| cpu.alloc_with(&page(), &Helpers::NONE).ok()).collect::<Vec<_>>()
    });
    let helper = Nothing {
        world: &world,
        held: Cell::new(held),
        victim,
        meanwhile: Cell::new(meanwhile),
        on_lists,
        reclaims: Cell::new(0),
        kills: Cell::new(0),
    };
    let helpers = Helpers::NONE.with_reclaim(&helper);
    world.on(0, |cpu| cpu.alloc_with(&page(), &helpers)).expect("a victim freed enough");
    (helper.reclaims.get(), helper.kills.get())
}

/// The first victim frees 64 pages: 320 are above min, and below high.
#[test]
fn one_victim_is_enough_v3_0() {
    let (reclaims, kills) = ask(Generation::V3_0, 64, 0, 0);
    assert_eq!(kills, 1, "victims, after {reclaims} calls of the reclaimer");
}

#[test]
fn one_victim_is_enough_v6_1() {
    let (reclaims, kills) = ask(Generation::V6_1, 64, 0, 0);
    assert_eq!(kills, 1, "victims, after {reclaims} calls of the reclaimer");
}

/// Another CPU frees 64 pages while the request pauses for the first time: nobody has to die.
#[test]
fn what_others_free_during_a_pause_is_found_v6_1() {
    let (reclaims, kills) = ask(Generation::V6_1, 64, 64, 64);
    assert_eq!(kills, 0, "victims, after {reclaims} calls of the reclaimer");
}
