//! Cost: a hit costs the same at any fullness and with any number of sections, and an event of one CPU writes to few
//! words of others.

use framewright::Cpu;
use framewright_check::platform::checked::{Checked, tally};
use framewright_check::prelude::*;

use super::WAYS;

/// Accesses of an allocation and a free of the same block, over and over, in each sixteenth of the memory that `cpus`
/// share.
fn pairs(config: Config, sections: u64, (cpus, size): (usize, Order)) -> Vec<u64> {
    const PAIRS: u64 = 1000;
    let pages = 128 * PAGEBLOCK_PAGES;
    let spec = Spec::one_zone(pages, cpus);
    let section_pages = if sections > 1 { pages / sections } else { 0 };
    let experiment = Experiment { remote_drain_spins: 1, section_pages, ..config.experiment };
    let world: World<Checked> = spec.config(Config { experiment, ..config }).build();
    let pair = |cpu: &Cpu<'_, '_, Checked>| {
        let pfn = cpu.must_alloc(size);
        cpu.must_free(pfn, size);
    };
    let sixteenth = || {
        (0..pages / 16).for_each(|_| _ = world.must_alloc(0, Order::ZERO));
        let (_, touched) = tally(|| world.on(0, |cpu| (0..PAIRS).for_each(|_| pair(cpu))));
        touched.accesses() / PAIRS
    };
    (0..15).map(|_| sixteenth()).collect()
}

/// Ways of one zone that the promises hold for. The presets count each hit and tell each CPU of a mark, as Linux does.
fn ways() -> impl Iterator<Item = (&'static str, fn() -> Config)> {
    let ours = WAYS.into_iter().filter(|(name, _, sections)| *sections == 1 && !name.starts_with("linux"));
    ours.map(|(name, config, _)| (name, config))
}

/// A hot pair costs the same at any fullness, and with any number of sections.
#[test]
fn p09_a_hit_costs_the_same_at_any_fullness_and_with_any_number_of_sections() {
    // Of huge blocks two CPUs may keep several each.
    let cases = [(16, Order::ZERO), (2, PAGEBLOCK_ORDER)];
    for ((name, config), case) in ways().flat_map(|way| cases.map(|case| (way, case))) {
        let costs = [1, 4, 16].map(|sections| pairs(config(), sections, case));
        println!("{name}, {case:?}: {costs:?}");
        let all = || costs.iter().flatten().copied();
        let (least, most) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
        assert!(
            most <= least + least / 4 + 2,
            "{name}: a hot pair takes {least} to {most} accesses: {costs:?}"
        );
    }
}

/// The work of one CPU with a zone writes to as many words if the zone has 64 times as many CPUs: what takes a zone
/// across its marks, misses of every order, frees of blocks of other CPUs.
#[test]
fn p10_an_event_of_one_cpu_writes_to_a_bounded_number_of_lines_of_others() {
    for (name, config) in ways() {
        let writes = [4, 256].map(|cpus| {
            let config = config().with_marks();
            let experiment = Experiment { remote_drain_spins: 1, ..config.experiment };
            let config = Config { watermark_scale: 1000, experiment, ..config };
            let world: World<Checked> = Spec::one_zone(512 * PAGEBLOCK_PAGES, cpus).config(config).build();
            let zone = world.zone();
            while zone.free_pages() > zone.marks().high + 1024 {
                world.must_alloc(0, MAX_ORDER);
            }
            let event = || {
                for k in [0, 9, 10] {
                    let all = [0; 3].map(|_: u64| world.must_alloc(0, order(k)));
                    all.into_iter().for_each(|pfn| world.must_free(1, pfn, order(k)));
                }
            };
            (0..3).for_each(|_| event());
            let (_, touched) = tally(|| (0..10).for_each(|_| event()));
            touched.stores + touched.rmws + touched.cell_writes
        });
        println!("{name}: {writes:?} writes with 4 CPUs and with 256");
        // A list of huge blocks has one block if 256 CPUs share the zone, so it refills and drains more often.
        assert!(writes[1] <= 2 * writes[0], "{name}: {writes:?} writes with 4 CPUs and with 256");
    }
}
