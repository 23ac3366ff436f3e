//! Memory that a victim has freed, or another CPU during a pause, is looked for at the min mark.

use core::cell::Cell;

use framewright_check::prelude::*;

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
            held.drain(..pages).for_each(|pfn| cpu.must_free(pfn, 0));
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
    let world = Spec::one_zone(16384, 2).config(marked(generation)).plain();
    let held = world.on(0, |cpu| cpu.request_all(&page()));
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

/// The first victim frees 64 pages: 320 are above min, and below high. In v6.1 no victim is needed if another CPU frees
/// as many while the request pauses for the first time.
#[test]
fn what_a_victim_or_another_cpu_frees_is_found() {
    for (generation, during_pause, on_lists, victims) in
        [(Generation::V3_0, 0, 0, 1), (Generation::V6_1, 0, 0, 1), (Generation::V6_1, 64, 64, 0)]
    {
        let (reclaims, kills) = ask(generation, 64, during_pause, on_lists);
        assert_eq!(kills, victims, "{generation:?}: victims, after {reclaims} calls of the reclaimer");
    }
}
