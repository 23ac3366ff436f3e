//! Reclaimers, good and hostile: what they are asked, that what they give back is found, and that none of
//! them corrupts the allocator or keeps a request endlessly.

use core::cell::{Cell, RefCell};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use framewright::policy::reclaim::{FIRST_PRIORITY, SCANNED_BEFORE_WRITING};
use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::sync::Mutex;

use framewright_check::prelude::*;

/// A cache that gives its oldest pages back.
#[derive(Default)]
struct Cache {
    pages: Mutex<VecDeque<Pfn>>,
    asked: Mutex<Vec<(By, ZoneId, u8)>>,
}

impl Cache {
    fn keep(&self, pfn: Pfn) {
        self.pages.lock().expect("no thread panicked").push_back(pfn);
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.asked.lock().expect("no thread panicked").push((ask.by, ask.zone, ask.priority));
        let mut pages = self.pages.lock().expect("no thread panicked");
        let mut done = Reclaimed::default();
        for _ in 0..(pages.len() >> ask.priority).max(1) {
            let Some(pfn) = pages.pop_front() else { break };
            done.scanned += 1;
            if !ask.wants(pfn) {
                pages.push_back(pfn);
                continue;
            }
            give(to, pfn, 0).expect("the cache owns it");
            done.freed += 1;
            if done.freed >= ask.target {
                break;
            }
        }
        done
    }

    fn reclaimable(&self, _: ZoneId) -> Reclaimable {
        let pages = self.pages.lock().expect("no thread panicked").len() as u64;
        Reclaimable { file_lru: pages, file: pages, ..Reclaimable::default() }
    }
}

fn helpers(reclaim: &dyn Reclaim) -> Helpers<'_> {
    Helpers::NONE.with_reclaim(reclaim)
}

/// Ten times the memory passes through a cache, and every request is served.
#[test]
fn a_cache_makes_room() {
    for generation in GENERATIONS {
        let world = Spec::one_zone(4096, 1).config(marked(generation)).plain();
        let cache = Cache::default();
        world.on(0, |cpu| {
            for _ in 0..40_960 {
                cache.keep(cpu.alloc_with(&page(), &helpers(&cache)).expect("the cache makes room"));
            }
        });
        let min = world.zone().marks().min;
        assert!(world.allocator().free_pages() >= min, "the reserve is untouched");
        let events = world.zone().events();
        assert_eq!(events.pgsteal_direct, 40_960 - (4096 - world.allocator().free_pages()));
        assert!(events.pgscan_direct >= events.pgsteal_direct);
        assert!(world.allocator().node_events(NodeId(0)).allocstall > 0);
        world.settled();
    }
}

/// An empty cache is asked a bounded number of times, at falling priorities, and the error has what is left.
#[test]
fn a_cache_with_nothing_is_not_asked_for_ever() {
    for generation in GENERATIONS {
        let world = Spec::one_zone(4096, 1).config(marked(generation)).plain();
        let cache = Cache::default();
        world.on(0, |cpu| while cpu.request(&page()).is_ok() {});
        let error =
            world.on(0, |cpu| cpu.alloc_with(&page(), &helpers(&cache))).expect_err("nothing is left");
        assert_eq!((error.tried, error.reclaimable), (1, 0));
        let asked = cache.asked.lock().expect("no thread panicked");
        assert_eq!(asked[..13].iter().map(|a| a.2).collect::<Vec<_>>(), (0..=12).rev().collect::<Vec<_>>());
        assert!(asked.len() <= 17 * 13, "{}", asked.len());
    }
}

/// Misdeed of a hostile reclaimer when it is asked.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Malice {
    ClaimsALot,
    Panics,
    FreesForeign,
    FreesTwice,
}

struct Hostile {
    malice: Malice,
    asked: AtomicU64,
    held: Mutex<Vec<Pfn>>,
}

impl Reclaim for Hostile {
    fn reclaim(&self, _: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.asked.fetch_add(1, Relaxed);
        match self.malice {
            Malice::ClaimsALot => {}
            Malice::Panics => panic!("a reclaimer's own mistake"),
            Malice::FreesForeign => {
                give(to, Pfn(1), Order::ZERO).expect_err("no frame of this allocator");
            }
            Malice::FreesTwice => {
                if let Some(pfn) = self.held.lock().expect("no thread panicked").pop() {
                    give(to, pfn, 0).expect("it is allocated");
                    give(to, pfn, 0).expect_err("a second time");
                }
            }
        }
        Reclaimed { scanned: 1 << 40, freed: 1 << 40 }
    }
}

#[test]
fn hostile_reclaimers_end_and_corrupt_nothing() {
    for generation in GENERATIONS {
        for malice in [Malice::ClaimsALot, Malice::Panics, Malice::FreesForeign, Malice::FreesTwice] {
            let world = Spec::one_zone(1024, 1).config(marked(generation)).plain();
            let held = world.on(0, |cpu| cpu.request_all(&page()));
            let before = held.len();
            let hostile = Hostile { malice, asked: AtomicU64::new(0), held: Mutex::new(held) };
            let pin = world.pin(0);
            let cpu = world.cpu(&pin);
            let mut served = 0;
            for _ in 0..20 {
                let got = catch_unwind(AssertUnwindSafe(|| cpu.alloc_with(&page(), &helpers(&hostile))));
                match got {
                    Ok(result) => served += u64::from(result.is_ok()),
                    Err(_) => assert_eq!(malice, Malice::Panics),
                }
            }
            let gave = before - hostile.held.lock().expect("no thread panicked").len();
            assert!(served <= gave as u64, "{malice:?}: served {served} of {gave}");
            assert!(hostile.asked.load(Relaxed) <= 20 * 17 * 13, "{malice:?}");
            // Neither the CPU nor the zone is left marked: a good cache is asked as ever.
            let cache = Cache::default();
            hostile.held.lock().expect("no thread panicked").drain(..).for_each(|pfn| cache.keep(pfn));
            cpu.alloc_with(&page(), &helpers(&cache)).expect("the cache makes room");
            world.settled();
        }
    }
}

/// A reclaimer that allocates: it gets the reserve, and is not asked for what it is just doing.
struct Greedy<'c> {
    cpu: &'c dyn Fn(&Helpers<'_>) -> Option<Pfn>,
    depth: AtomicU64,
    got: Mutex<Vec<Pfn>>,
}

impl Reclaim for Greedy<'_> {
    fn reclaim(&self, _: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        assert_eq!(self.depth.fetch_add(1, Relaxed), 0, "entered again from within");
        let mut got = self.got.lock().expect("no thread panicked");
        // Memory to write with, and back again.
        let scratch = (self.cpu)(&helpers(self)).expect("the reserve is for this");
        give(to, scratch, 0).expect("it is allocated");
        if let Some(pfn) = got.pop() {
            give(to, pfn, 0).expect("it is allocated");
        }
        self.depth.fetch_sub(1, Relaxed);
        Reclaimed { scanned: 1, freed: 1 }
    }
}

#[test]
fn a_reclaimer_that_allocates_is_served_from_the_reserve() {
    for generation in GENERATIONS {
        let world = Spec::one_zone(1024, 1).config(marked(generation)).plain();
        let pin = world.pin(0);
        let cpu = world.cpu(&pin);
        let held = cpu.request_all(&page());
        let alloc = |helpers: &Helpers<'_>| cpu.alloc_with(&page(), helpers).ok();
        let greedy = Greedy { cpu: &alloc, depth: AtomicU64::new(0), got: Mutex::new(held) };
        for _ in 0..100 {
            cpu.alloc_with(&page(), &helpers(&greedy)).expect("it makes room");
        }
        world.settled();
    }
}

/// A request that must not fail waits until another CPU frees.
#[test]
fn a_request_that_must_not_fail_waits() {
    for generation in GENERATIONS {
        let world = Spec::one_zone(1024, 2).config(marked(generation)).plain();
        let mut held = world.on(0, |cpu| cpu.request_all(&page()));
        std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| world.on(0, |cpu| cpu.request(&page().with(Flags::NO_FAIL)).is_ok()));
            std::thread::sleep(core::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            world.on(1, |cpu| {
                held.drain(..64).for_each(|pfn| cpu.must_free(pfn, 0));
            });
            assert!(waiting.join().expect("no panic"));
        });
    }
}

/// Two nodes, the CPU on the first, whose memory is a cache's that zone reclaim can do nothing about.
fn two_nodes(cache: ZonelistCache) -> World<Plain> {
    let config = Config::linux_v3_0().bare().but(|config| {
        config.zone_reclaim = ZoneReclaimMode::ON;
        config.experiment.zonelist_cache = cache;
    });
    Spec::zones([normal(0, 0x10_0000, 8192), normal(1, 0x10_2000, 8192)], 1)
        .distances([10, 40, 40, 10])
        .config(config)
        .build()
}

/// Pages that zone reclaim looks at in vain; it counts how often.
fn pinned(asked: &Cell<u64>) -> impl Reclaim + '_ {
    reclaimer(4096, |ask, _| {
        asked.set(asked.get() + 1);
        Reclaimed { scanned: 4096 >> ask.priority, freed: 0 }
    })
}

/// The worked example of the zonelist cache: scans of the exhausted local zone per allocation.
#[test]
fn zlc_first_scans_an_exhausted_zone_once() {
    let scans = |cache| {
        let world = two_nodes(cache);
        let scans = Cell::new(0);
        let pinned = pinned(&scans);
        world.on(0, |cpu| {
            let local = page().with(Flags::THIS_NODE.and(Flags::ATOMIC));
            while cpu.request(&local).is_ok() {}
            for _ in 0..1000 {
                cpu.alloc_with(&page(), &helpers(&pinned)).expect("node 1 has plenty");
            }
        });
        let events = world.allocator().node_events(NodeId(0));
        assert_eq!(events.zone_reclaim_scans, events.zone_reclaim_failed);
        (events.zone_reclaim_scans, events.zlc_skipped)
    };
    assert_eq!(scans(ZonelistCache::Off), (1000, 0));
    assert_eq!(scans(ZonelistCache::AfterFirstZone), (1000, 0), "each walk starts without the notes");
    assert_eq!(scans(ZonelistCache::BeforeFirstZone).0, 1);
    assert_eq!(scans(ZonelistCache::BeforeFirstZoneAndClear).0, 1, "no request reclaimed directly");
}

/// With both zones exhausted, direct reclaim's progress makes *zlc-reconsider* look again.
#[test]
fn zlc_reconsider_forgets_after_progress() {
    let skipped = |cache| {
        let world = two_nodes(cache);
        let lru = Cache::default();
        world.on(0, |cpu| {
            while let Ok(pfn) = cpu.request(&page()) {
                lru.keep(pfn);
            }
            for _ in 0..5000 {
                lru.keep(cpu.alloc_with(&page(), &helpers(&lru)).expect("the cache makes room"));
            }
        });
        world.settled();
        let events = world.allocator().node_events(NodeId(0));
        (events.zone_reclaim_scans, events.zlc_set_up > 0)
    };
    for cache in [ZonelistCache::BeforeFirstZone, ZonelistCache::BeforeFirstZoneAndClear] {
        let (scans, set_up) = skipped(cache);
        assert!(scans > 0 && set_up, "{cache:?}");
    }
    assert!(!skipped(ZonelistCache::Off).1);
}

/// A node whose requests never reclaim directly, because background reclaim keeps up.
struct Woken(Mutex<Vec<NodeId>>);

impl Background for Woken {
    fn wake(&self, node: NodeId) {
        self.0.lock().expect("no thread panicked").push(node);
    }
}

#[test]
fn background_reclaim_keeps_requests_out_of_direct_reclaim() {
    for generation in GENERATIONS {
        let world = Spec::one_zone(16384, 2).config(marked(generation)).plain();
        let (cache, woken) = (Cache::default(), Woken(Mutex::default()));
        let helpers = helpers(&cache).with_background(&woken);
        let node = NodeId(0);
        assert_eq!(world.allocator().background_sleep(node), None, "no CPU has asked");
        for _ in 0..50_000 {
            cache.keep(world.on(0, |cpu| cpu.alloc_with(&page(), &helpers)).expect("the cache makes room"));
            if woken.0.lock().expect("no thread panicked").pop().is_some() {
                let asked = world.allocator().background_sleep(node).expect("a request asked");
                assert_eq!(asked, BackgroundRequest { order: Order::ZERO, highest: ZoneType::Movable });
                let rest = world.on(1, |cpu| cpu.background(node, asked, &helpers));
                assert!(rest.balanced && rest.total.freed > 0, "{rest:?}");
                let zone = world.zone();
                assert!(zone.free_pages() > zone.marks().high);
                assert_eq!(world.allocator().background_sleep(node), None);
            }
        }
        let events = world.allocator().node_events(NodeId(0));
        assert_eq!(events.allocstall, 0, "{generation:?}");
        assert!(events.pageoutrun > 10);
        let zone = world.zone().events();
        assert!(zone.pgsteal_kswapd > 0 && zone.pgsteal_direct == 0);
        world.settled();
    }
}

/// Background reclaim that frees nothing gives up: zones are flagged, and after 16 runs no request wakes it. The
/// next page that comes back raises hope again.
#[test]
fn hopeless_background_reclaim_gives_up() {
    let world = Spec::one_zone(4096, 1).config(marked(Generation::V3_0)).plain();
    let (scanned, woken) = (Cell::new(0), Woken(Mutex::default()));
    let pinned = pinned(&scanned);
    let helpers = helpers(&pinned).with_background(&woken);
    let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
    world.on(0, |cpu| {
        let mut last = None;
        while let Ok(pfn) = cpu.request(&page()) {
            last = Some(pfn);
        }
        for _ in 0..16 {
            // v3.0 counts a zone that nothing can be got from as done.
            cpu.background(NodeId(0), asked, &helpers);
        }
        let zone = world.zone();
        assert!(zone.is_unreclaimable());
        let scans = scanned.get();
        let limited = Request { flags: Flags::NO_RETRY, ..page() };
        cpu.alloc_with(&limited, &helpers).expect_err("nothing is left");
        assert_eq!(scanned.get() - scans, 1, "an unreclaimable zone is tried at the first priority only");
        cpu.must_free(last.expect("there was memory"), 0);
        assert!(!zone.is_unreclaimable(), "a page came back");
    });
}

/// The snapshot reads like `/proc/vmstat`: a name and a number per line, no name twice, sums that agree.
#[test]
fn vmstat_reads_as_the_kernels_does() {
    let world = Spec::one_zone(4096, 1).config(marked(Generation::V6_1)).plain();
    let cache = Cache::default();
    world.on(0, |cpu| {
        for _ in 0..8192 {
            cache.keep(cpu.alloc_with(&page(), &helpers(&cache)).expect("the cache makes room"));
        }
    });
    let text = world.allocator().vmstat().to_string();
    let mut rows = std::collections::BTreeMap::new();
    for line in text.lines() {
        let (name, value) = line.split_once(' ').expect("a name and a number");
        let value: u64 = value.parse().expect("a number");
        assert!(rows.insert(name, value).is_none(), "{name} twice");
    }
    assert_eq!(rows["pgalloc_normal"], 8192);
    assert_eq!(rows["pgalloc_normal"] - rows["pgfree"], 4096 - rows["nr_free_pages"]);
    assert_eq!(rows["pgsteal_direct_normal"], rows["pgfree"]);
    assert_eq!(rows["numa_hit"], 8192);
    for name in ["allocstall", "pgscan_kswapd_normal", "pageoutrun", "zone_reclaim_failed", "compact_stall"] {
        assert!(rows.contains_key(name), "{name}");
    }
}

/// Pages that a reclaimer gives back by another CPU than the one that asks count as far as the zone has grown.
#[test]
fn memory_that_comes_back_elsewhere_counts() {
    let world = Spec::one_zone(4096, 2).config(Config::linux_v6_1().bare().with_marks()).plain();
    let all = RefCell::new(world.on(0, |cpu| cpu.request_all(&page())));
    let elsewhere = reclaimer(0, |_, _| {
        let Some(pfn) = all.borrow_mut().pop() else { return Reclaimed::default() };
        world.must_free(1, pfn, 0);
        Reclaimed { scanned: 1, freed: 7 }
    });
    world.on(0, |cpu| cpu.alloc_with(&page(), &helpers(&elsewhere))).expect("memory comes back");
    let events = world.zone().events();
    assert!(events.pgsteal_direct > 0);
    assert_eq!(events.pgsteal_direct, events.pgscan_direct, "one for each that was looked at");
}

/// Writing is woken when more pages were looked at in vain than that, not when as many were.
#[test]
fn flushers_are_woken_when_much_was_looked_at() {
    struct Looks(u64, Mutex<Vec<u64>>);
    impl Reclaim for Looks {
        fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            Reclaimed { scanned: if ask.priority == FIRST_PRIORITY { self.0 } else { 0 }, freed: 0 }
        }
        fn wake_flushers(&self, pages: u64) {
            self.1.lock().expect("no thread panicked").push(pages);
        }
    }
    for (scanned, wakes) in [(SCANNED_BEFORE_WRITING, false), (SCANNED_BEFORE_WRITING + 1, true)] {
        let world = Spec::one_zone(4096, 1).config(Config::linux_v6_1().bare().with_marks()).plain();
        let request = page();
        let looks = Looks(scanned, Mutex::default());
        world.on(0, |cpu| {
            while cpu.request(&request).is_ok() {}
            let helpers = Helpers::NONE.with_reclaim(&looks);
            assert!(cpu.alloc_with(&request, &helpers).is_err(), "nothing comes back");
        });
        let woken = looks.1.into_inner().expect("no thread panicked");
        assert_eq!(woken.first().copied(), wakes.then_some(scanned));
    }
}

/// Caches of small objects, which give up to so many pages back in a round.
struct Slabs {
    pages: RefCell<Vec<Pfn>>,
    per_round: usize,
}

impl Reclaim for Slabs {
    fn reclaim(&self, _: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
        Reclaimed::default()
    }

    fn shrink(&self, _: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let mut pages = self.pages.borrow_mut();
        let left = pages.len() - self.per_round;
        let freed =
            pages.drain(left..).map(|pfn| give(to, pfn, 0).expect("it is the cache's")).count() as u64;
        Reclaimed { scanned: freed, freed }
    }

    fn reclaimable(&self, _: ZoneId) -> Reclaimable {
        Reclaimable { slab: self.pages.borrow().len() as u64, ..Reclaimable::default() }
    }
}

/// Zone reclaim shrinks caches of small objects by what is requested, round by round; it has failed if they did not
/// shrink by as much.
#[test]
fn zone_reclaim_shrinks_caches_of_small_objects() {
    for (per_round, shrunk, failed) in [(0, 0, 1), (1, 8, 0), (3, 9, 0)] {
        let world = two_nodes(ZonelistCache::Off);
        let pages = world.on(0, |cpu| cpu.request_all(&page().with(Flags::THIS_NODE.and(Flags::ATOMIC))));
        let slabs = Slabs { pages: RefCell::new(pages), per_round };
        let before = slabs.pages.borrow().len();
        let eight = Request::new(order(3), M);
        world.on(0, |cpu| cpu.alloc_with(&eight, &helpers(&slabs))).expect("node 1 has plenty");
        let events = world.allocator().node_events(NodeId(0));
        assert_eq!((events.zone_reclaim_scans, events.zone_reclaim_failed), (1, failed), "{per_round}");
        assert_eq!(before - slabs.pages.borrow().len(), shrunk, "{per_round}");
    }
}

/// A reclaimer frees onto the lists of the CPU that asks: the refill after zone reclaim loses none of these pages.
#[test]
fn a_refill_after_zone_reclaim_loses_no_page_of_the_list() {
    let default = Config::framewright().with_marks();
    for config in
        [default, default.fixed(4, 8), default.engine(Engine::Compact).fixed(4, 8), Config::linux_v3_0()]
    {
        let config = config.but(|config| config.zone_reclaim = ZoneReclaimMode::ON);
        let world = Spec::one_zone(16 << 10, 1).config(config).plain();
        let cache = Cache::default();
        world.on(0, |cpu| {
            for _ in 0..20 << 10 {
                cache.keep(cpu.alloc_with(&page(), &helpers(&cache)).expect("the cache makes room"));
            }
            assert!(world.allocator().node_events(NodeId(0)).zone_reclaim_scans > 0);
            let left = core::mem::take(&mut *cache.pages.lock().expect("no thread panicked"));
            left.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
            cpu.drain();
        });
        assert_eq!(world.settled().allocated, 0, "{config:?}");
    }
}
