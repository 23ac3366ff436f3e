//! What reclaimers are asked, how often, and by which CPU that needs memory.

use core::cell::{Cell, RefCell};
use std::sync::Mutex;

use framewright::policy::reclaim::{MAX_FAILURES, SCANNED_BEFORE_WRITING};
use framewright_check::prelude::*;

/// The node of the CPUs that ask.
const NODE: NodeId = NodeId(1);

fn helpers(reclaim: &dyn Reclaim) -> Helpers<'_> {
    Helpers::NONE.with_reclaim(reclaim)
}

/// What a reclaimer is asked: for pages or small objects of a zone, for an order, at a priority, for so many pages, and
/// whether it may write and unmap; to wait; to have pages written.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Asked {
    Pages(By, ZoneId, Order, u8, u64, [bool; 2]),
    Slab(By, ZoneId, Order, u8, u64, [bool; 2]),
    Wait(u32),
    Flush(u64),
}

/// What a call asks, as one of [`Asked::Pages`] and [`Asked::Slab`].
fn asked(kind: fn(By, ZoneId, Order, u8, u64, [bool; 2]) -> Asked, ask: &ReclaimRequest<'_>) -> Asked {
    kind(ask.by, ask.zone, ask.order, ask.priority, ask.target, [ask.may_write, ask.may_unmap])
}

/// Looks at ten pages whenever it is asked for some, frees none, and notes what it was asked. The first two zones, a
/// DMA32 and a Normal one, are on these nodes.
struct Notes(RefCell<Vec<Asked>>, [NodeId; 2]);

impl Reclaim for Notes {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
        let kind = [ZoneType::Dma32, ZoneType::Normal][ask.zone.index()];
        assert!(ask.node == self.1[ask.zone.index()] && ask.kind == kind && ask.ranges.len() == 1, "{ask:?}");
        self.0.borrow_mut().push(asked(Asked::Pages, ask));
        Reclaimed { scanned: 10, freed: 0 }
    }

    fn shrink(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
        self.0.borrow_mut().push(asked(Asked::Slab, ask));
        Reclaimed::default()
    }

    fn wait_if_congested(&self, _: ZoneId, ms: u32) {
        self.0.borrow_mut().push(Asked::Wait(ms));
    }

    fn wake_flushers(&self, pages: u64) {
        self.0.borrow_mut().push(Asked::Flush(pages));
    }
}

/// Every question of direct and of background reclaim that frees nothing, in order: zones that the request may not use,
/// or of another node, are not asked for.
#[test]
fn reclaim_asks_with_rising_effort() {
    let zones = [
        zone(1, ZoneType::Dma32, 0x1000, 2048),
        normal(1, 0x1800, 2048),
        zone(1, ZoneType::Movable, 0x2000, 2048),
        normal(0, 0x2800, 2048),
    ];
    let [dma32, normal] = [ZoneId(0), ZoneId(1)];
    let three = order(3);
    for generation in GENERATIONS {
        let world = Spec::zones(zones, 1).cpu_nodes([NODE]).config(marked(generation)).plain();
        world.on(0, |cpu| cpu.request_all(&page().with(Flags::VICTIM)));
        let notes = Notes(RefCell::default(), [NODE; 2]);
        let request = Request::new(three, Migratetype::Unmovable).with(Flags::NO_RETRY.and(Flags::THIS_NODE));
        world.on(0, |cpu| cpu.alloc_with(&request, &helpers(&notes))).expect_err("nothing is free");
        let (mut expected, mut scanned, mut may_write) = (Vec::new(), 0, false);
        for priority in (0..=12).rev() {
            let by = By::Direct;
            for zone in [normal, dma32] {
                expected.push(Asked::Pages(by, zone, three, priority, 32, [may_write, true]));
                scanned += 10;
            }
            expected.push(Asked::Slab(by, normal, three, priority, 32, [may_write, true]));
            if scanned > SCANNED_BEFORE_WRITING {
                expected.push(Asked::Flush(scanned));
                may_write = true;
            }
            if priority <= 9 {
                expected.push(Asked::Wait(100));
            }
        }
        assert_eq!(notes.0.take(), expected, "{generation:?}");
        let events = world.allocator().node_events(NODE);
        assert_eq!((events.allocstall, events.reclaim_refused), (1, 0), "{generation:?}");

        let asked = BackgroundRequest { order: three, highest: ZoneType::Normal };
        let outcome = world.on(0, |cpu| cpu.background(NODE, asked, &helpers(&notes)));
        // v3.0 looks once more whether there are single pages, at least.
        let rounds = [three, Order::ZERO];
        let rounds = &rounds[..if generation == Generation::V3_0 { 2 } else { 1 }];
        let (mut expected, by) = (Vec::new(), By::Background);
        for (&order, priority) in rounds.iter().flat_map(|order| (0..=12).rev().map(move |n| (order, n))) {
            for zone in [dma32, normal] {
                expected.push(Asked::Pages(by, zone, order, priority, u64::MAX, [priority < 12, true]));
                expected.push(Asked::Slab(by, zone, order, priority, u64::MAX, [priority < 12, true]));
            }
            if priority <= 9 {
                expected.push(Asked::Wait(100));
            }
        }
        assert_eq!(notes.0.take(), expected, "{generation:?}");
        let total = Reclaimed { scanned: 260 * rounds.len() as u64, freed: 0 };
        assert_eq!(outcome, BackgroundOutcome { total, balanced: false }, "{generation:?}");
        let scanned = [dma32, normal].map(|zone| world.allocator().zones()[zone.index()].events());
        assert!(scanned.iter().all(|events| events.pgscan_direct == 130 && events.pgsteal_direct == 0));
        assert!(scanned.iter().all(|events| events.pgscan_kswapd == 130 * rounds.len() as u64));
    }
}

/// Zone reclaim asks for a zone of the CPU's own node, or of one without CPUs, before the next zone is tried: as its
/// mode allows, and for no request that cannot wait.
#[test]
fn zone_reclaim_asks_as_its_mode_allows() {
    let (on, write, unmap) = (ZoneReclaimMode::ON, ZoneReclaimMode::WRITE, ZoneReclaimMode::UNMAP);
    let all = on.and(write).and(write.and(unmap));
    for (mode, may) in [(on, [false, false]), (on.and(write), [true, false]), (all, [true, true])] {
        for (n, target) in [(0, 32), (6, 64)] {
            let config = marked(Generation::V3_0).but(|config| config.zone_reclaim = mode);
            let zones = [zone(0, ZoneType::Dma32, 0x10_0000, 4096), normal(1, 0x10_1000, 4096)];
            let world = Spec::zones(zones, 2).cpu_nodes([NODE, NodeId(0)]).config(config).plain();
            world.on(0, |cpu| cpu.request_all(&page().with(Flags::THIS_NODE.and(Flags::ATOMIC))));
            let notes = Notes(RefCell::default(), [NodeId(0), NODE]);
            let request = Request::new(order(n), M);
            world.on(0, |cpu| cpu.alloc_with(&request, &helpers(&notes))).expect("node 0 has plenty");
            let expected: Vec<_> = (0..=4)
                .rev()
                .map(|priority| Asked::Pages(By::Zone, ZoneId(1), order(n), priority, target, may))
                .collect();
            assert_eq!(notes.0.take(), expected, "{mode:?}");
            let atomic = request.with(Flags::NO_WAIT);
            world.on(0, |cpu| cpu.alloc_with(&atomic, &helpers(&notes))).expect("node 0 has plenty");
            // A CPU reclaims no zone of a node that has CPUs of its own.
            world.on(0, |cpu| cpu.request_all(&page().with(Flags::ATOMIC)));
            let limited = request.with(Flags::NO_RETRY);
            world.on(0, |cpu| cpu.alloc_with(&limited, &helpers(&notes))).expect_err("nothing is left");
            let of_zones = notes.0.take().into_iter().filter_map(|asked| match asked {
                Asked::Pages(By::Zone, zone, ..) => Some(zone),
                _ => None,
            });
            assert!(of_zones.into_iter().all(|zone| zone == ZoneId(1)), "{mode:?}");
        }
    }
}

/// Wakes of the thread of background reclaim.
struct Wakes(Mutex<u64>);

impl Background for Wakes {
    fn wake(&self, _: NodeId) {
        *self.0.lock().expect("no thread panicked") += 1;
    }
}

/// After sixteen runs of background reclaim that freed nothing no request wakes it. A page that it frees, or that a
/// request frees for itself, is hope.
#[test]
fn who_frees_nothing_is_not_woken_again() {
    for frees_itself in [false, true] {
        let world = Spec::one_zone(4096, 1).config(marked(Generation::V6_1)).plain();
        let held = RefCell::new(world.on(0, |cpu| cpu.request_all(&page().with(Flags::VICTIM))));
        let gives = Cell::new(0);
        let gives_some = reclaimer(1 << 40, |_, to| {
            let freed = gives.replace(0);
            (0..freed)
                .for_each(|_| give(to, held.borrow_mut().pop().expect("it has some"), 0).expect("its own"));
            Reclaimed { scanned: 1, freed }
        });
        let wakes = Wakes(Mutex::new(0));
        let is_woken = || {
            while world.allocator().background_sleep(NodeId(0)).is_some() {}
            let limited = page().with(Flags::NO_RETRY);
            let with_thread = helpers(&gives_some).with_background(&wakes);
            world.on(0, |cpu| cpu.alloc_with(&limited, &with_thread)).expect_err("below the mark");
            core::mem::take(&mut *wakes.0.lock().expect("no thread panicked")) > 0
        };
        let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
        for run in 0..MAX_FAILURES {
            assert!(is_woken(), "after {run} runs");
            let outcome = world.on(0, |cpu| cpu.background(NodeId(0), asked, &helpers(&gives_some)));
            assert_eq!((outcome.total.freed, outcome.balanced), (0, false));
        }
        assert!(!is_woken(), "it has failed so often");
        gives.set(1);
        if frees_itself {
            assert!(!is_woken(), "it is asked before the request frees a page");
        } else {
            let outcome = world.on(0, |cpu| cpu.background(NodeId(0), asked, &helpers(&gives_some)));
            assert_eq!((outcome.total.freed, outcome.balanced), (1, false));
        }
        assert!(is_woken(), "there is hope");
    }
}
