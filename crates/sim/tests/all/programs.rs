//! Programs for real threads on virtual CPUs.

use core::sync::atomic::Ordering;

use framewright::{Config, NodeId, Pfn, Word as _, ZoneSpec, ZoneType};
use framewright_sim::platform::SimWord;
use framewright_sim::world::{Meet, Programs};
use framewright_sim::{Ps, World, engine};

use crate::testing::round;

#[test]
fn programs_own_their_cpu_and_none_passes_before_all_have_arrived() {
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 1 << 14 };
    let mut world: World =
        World::with_lines(&round(3), &[zone], Config::framewright(), None, 1, 3 * Meet::LINES)
            .expect("a world");
    world.answer_all(3);
    let programs = Programs::new(&mut world);
    let shared = programs.place("shared", SimWord::new(0));
    for run in 1..=2 {
        let results = programs.run(3, |index, meet, data| {
            // The last one has most to do.
            engine::spend(Ps(1_000_000 * (index as u64 + 1)));
            shared.fetch_add(1, Ordering::AcqRel);
            let arrived = engine::now();
            meet.wait();
            let seen = shared.load(Ordering::Acquire);
            assert_eq!(data.cpu().id().index(), index);
            (arrived, engine::now(), seen)
        });
        let last = results.iter().map(|(arrived, ..)| *arrived).max().expect("three");
        assert!(
            results.len() == 3 && results.iter().all(|(_, passed, seen)| *passed >= last && *seen == 3 * run)
        );
    }
}
