//! Stores to lines that other CPUs look at.

use super::*;

#[test]
fn a_store_to_a_line_that_another_cpu_polls_is_waited_for_and_others_are_not() {
    // One CPU stores to a line again and again; the other polls that line, or has only read it once.
    let took = [(true, 1.0), (true, 0.5), (false, 1.0)].map(|(polls, store_exposed)| {
        let (mut simulator, words) = machine(Model { store_exposed, ..model(2) }, 2);
        let took = Cell::new(0.0);
        let program = |n: usize| {
            let word = &words[0].0;
            if n == 1 {
                while word.load(Relaxed) < 20 && polls {
                    Sim::relax();
                }
                return;
            }
            spend(Ps::from_ns(1000.0));
            let before = now();
            for stored in 1..=20 {
                word.store(stored, Relaxed);
                spend(Ps::from_ns(200.0));
            }
            took.set((now().since(before).as_ns() - 20.0 * 200.0) / 20.0);
        };
        simulator.run(programs(2, &program), Ps(0));
        took.get()
    });
    // A transfer is 50 ns.
    let [all, half, unpolled] = took;
    assert!(all > 40.0 && half > 20.0 && half < 0.6 * all && unpolled < 5.0, "{took:?}");
}
