//! Behaviour of the allocator, in figures: many short scenarios, each with a line in `digests.txt`.
//!
//! A scenario is a fixed sequence of calls under one configuration. Its line has the number of calls, and a digest each
//! of their results (frames, refusals, questions to reclaimers and movers), of the places of free memory, and of all
//! counters; then how many accesses to shared words and cells the calls make. [`check`](record::check) compares. A test
//! of a property states what is right; these show only that something is no longer as it was, and where. `cargo xtask
//! mutants` counts on them: few changes of a policy leave all digests as they are.
//!
//! A change of behaviour on purpose refreshes the lines, and its commit gives the reason:
//!
//! ```text
//! FRAMEWRIGHT_REFRESH=all cargo test -p framewright-check --test all behaviour
//! ```
//!
//! The lines of `linux_*` scenarios record what past kernels do: calls, returned, free and counted change only where a
//! preset was wrong. The accesses may change with the code.

mod booting;
mod mixed;
mod owner;
mod pressure;
mod record;
mod world;

use framewright_check::prelude::*;

/// A test for each scenario, by module and name, and the list of their names.
macro_rules! scenarios {
    ($($group:ident: $run:expr, [$($name:ident),* $(,)?];)*) => {
        $(mod $group {
            $(#[test]
            fn $name() {
                let name = stringify!($name);
                let full = concat!(stringify!($group), "::", stringify!($name));
                let run: fn(&str, &mut crate::behaviour::record::Trail) = $run;
                crate::behaviour::record::check(full, |trail| run(name, trail));
            })*
        })*

        /// The names of all scenarios.
        const NAMES: &[&str] = &[$($(concat!(stringify!($group), "::", stringify!($name)),)*)*];
    };
}

scenarios! {
    calls: |name, trail| crate::behaviour::mixed::run(crate::behaviour::world::config(name), 1, trail), [
        framewright, framewright_marks, linux_v3_0, linux_v5_4, linux_v6_1, linux_v6_7, linux_v6_16,
        own_lists, own_no_lists, own_zero, own_costly, own_fixed,
        own_slots, own_fraction, own_min_refill, own_ticket, own_parking, own_poison, own_zeroed, own_faults,
        own_reports, own_16k, own_v5_4, own_v6_1, own_v6_7, own_v6_16_lists, own_grouped, own_by_zone, own_v3_0_marks,
        own_compact, own_compact_marks, own_compact_slots, own_compact_reports, own_lazy, own_lazy_compact,
        own_up_to_costly_and_huge,
    ];
    other_calls: |name, trail| crate::behaviour::mixed::run(crate::behaviour::world::config(name), 2, trail), [
        framewright, framewright_marks, linux_v3_0, linux_v5_4, linux_v6_1, linux_v6_7, linux_v6_16, own_lists, own_faults,
        own_reports, own_poison, own_compact, own_lazy, own_lazy_compact, own_tight, own_boost, own_cached, own_v6_7,
        own_fixed, own_slots, own_no_lists, own_16k, own_zeroed,     ];
    bad_slots: |name, trail| crate::behaviour::mixed::checked(crate::behaviour::world::config(name), 3, trail), [
        checked_under_lock, checked_after, checked_lists, checked_v5_4,
    ];
    one_node: |name, trail| {
        crate::behaviour::pressure::run(&crate::behaviour::world::one_node(crate::behaviour::world::config(name)), 11, trail);
    }, [
        framewright, framewright_marks, linux_v3_0, linux_v5_4_marks, linux_v6_1_marks, linux_v6_7_marks, linux_v6_16_marks,
        own_limits, own_boost, own_tight, own_v3_0_marks, own_compact_marks, own_lazy_marks,
    ];
    two_nodes: |name, trail| {
        crate::behaviour::pressure::run(&crate::behaviour::world::three_zones(crate::behaviour::world::config(name)), 12, trail);
    }, [framewright_marks, linux_v3_0, linux_v6_1_marks, linux_v6_7_marks, own_grouped, own_boost, own_lazy_marks];
    four_nodes: |name, trail| {
        crate::behaviour::pressure::run(&crate::behaviour::world::four_nodes(crate::behaviour::world::config(name)), 13, trail);
    }, [
        framewright_marks, linux_v3_0, linux_v6_1_marks, linux_v6_16_marks, own_cached, own_cached_before, own_cached_clear,
        own_zone_reclaim, own_zone_reclaim_all, own_by_zone, own_grouped, own_compact_marks,
    ];
    many_zones: |name, trail| {
        crate::behaviour::pressure::run(&crate::behaviour::world::many_zones(crate::behaviour::world::config(name)), 14, trail);
    }, [framewright_marks, linux_v3_0, own_cached_clear];
    compaction: |name, trail| {
        crate::behaviour::pressure::compaction(&crate::behaviour::world::three_zones(crate::behaviour::world::config(name)), 15, trail);
    }, [framewright, linux_v3_0, linux_v6_1_marks, own_lists, own_reports, own_compact, own_lazy];
    boot: |name, trail| {
        use super::Split;
        let (split, clear) = match name {
            "by_one_thread" => (Split::OneThread, false),
            "by_all_cpus" => (Split::AllCpus, false),
            "by_section" => (Split::AllCpusBySection, false),
            "cleared_by_one_thread" => (Split::OneThread, true),
            "cleared_by_all_cpus" => (Split::AllCpus, true),
            "cleared_by_section" => (Split::AllCpusBySection, true),
            "workers_of_one_thread" => return crate::behaviour::booting::workers(Split::OneThread, 21, trail),
            "workers_of_all_cpus" => return crate::behaviour::booting::workers(Split::AllCpus, 22, trail),
            "workers_by_section" => return crate::behaviour::booting::workers(Split::AllCpusBySection, 23, trail),
            _ if name.starts_with("own_") || name.starts_with("linux_") => {
                let config = crate::behaviour::world::config(name);
                return crate::behaviour::booting::late(config, Split::AllCpusBySection, false, 6, trail);
            }
            _ => panic!("no way to boot is called {name}"),
        };
        crate::behaviour::booting::late(crate::behaviour::world::config("framewright"), split, clear, 5, trail);
    }, [
        by_one_thread, by_all_cpus, by_section, cleared_by_one_thread, cleared_by_all_cpus, cleared_by_section,
        own_compact, own_lists, own_poison, linux_v3_0, linux_v6_7,
        workers_of_one_thread, workers_of_all_cpus, workers_by_section,
    ];
}
