//! Random histories under every configuration, judged by the oracle after each call: see [`history`].

use framewright_check::history::{self, Counts};
use framewright_check::prelude::*;

/// Any configuration, zones and memory. Half of the inputs mean none, or one that is too large.
#[test]
fn any_history_under_any_configuration() {
    let (inputs, longest) = match () {
        () if full() => (4000, 40_000),
        () if quick() => (30, 6000),
        () => (150, 6000),
    };
    let mut random = fastrand::Rng::with_seed(1);
    let played = (0..inputs).filter(|_| {
        let length = random.usize(..longest);
        let input: Vec<u8> = core::iter::repeat_with(|| random.u8(..)).take(length).collect();
        history::play(&input, 1)
    });
    let played = played.count();
    println!("{played} of {inputs}");
    assert!(played > inputs / 4, "{played} of {inputs} inputs mean a history");
}

/// Four zones on two nodes, of which two have one type, with a hole in one and a ragged end in another.
fn four_zones(config: Config) -> Spec {
    let zone = |node, kind, start, pages| zone(node, kind, BASE.0 + start, pages);
    let zones = [
        zone(0, ZoneType::Dma32, 0, 1024),
        zone(0, ZoneType::Normal, 1024, 1024),
        zone(0, ZoneType::Normal, 2048, 1024),
        zone(1, ZoneType::Movable, 4096, 2548),
    ];
    let memory = [(0, 1024), (1024, 512), (1024 + 700, 324), (2048, 1024), (4096, 2548)];
    Spec::zones(zones, 3)
        .memory(memory.map(|(start, pages)| (BASE.add(start), pages)))
        .cpu_nodes([NodeId(0), NodeId(0), NodeId(1)])
        .config(config)
}

/// The configurations that programs have, with and without marks and checks.
#[test]
fn any_history_under_the_presets() {
    let presets = [Config::linux_v3_0(), Config::linux_v5_4(), Config::linux_v6_1(), Config::linux_v6_7()];
    let mut all = Counts::default();
    for (n, config) in (0..).zip(ENGINES.into_iter().chain(presets)) {
        for config in [config, config.with_marks(), config.check(RefillCheck::AfterUnlock).with_marks()] {
            let mut random = fastrand::Rng::with_seed(n);
            let calls = match () {
                () if full() => 40_000,
                () if quick() => 1000,
                () => 2500,
            };
            let spec = four_zones(config.spins(1));
            let done =
                history::play_in(&spec, history::BAD, &mut || random.u8(..), 1, |_, made| made < calls);
            all.allocated += done.allocated;
            all.failed += done.failed;
            all.refused += done.refused;
        }
    }
    assert!(all.allocated > 10_000 && all.failed > 100 && all.refused > 1000, "{all:?}");
}
