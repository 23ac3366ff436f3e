//! Arenas under pressure, with real threads: caches that give pages back, background threads, virtual nodes.
#![expect(unsafe_code, reason = "raw frames are freed")]

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;

use framewright_host::framewright::ZoneId;
use framewright_host::framewright::policy::nodes::NodePolicy;
use framewright_host::framewright::reclaim::{
    Migrate, Migrated, Reclaim, ReclaimRequest, Reclaimable, Reclaimed, Release,
};
use framewright_host::framewright::units::{PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use framewright_host::{
    Arena, AttachError, Backing, Config, Cpu, Migratetype, NodeId, NodeMask, Order, Pfn, Request,
    SharedArena, SharedBlock,
};

const MIB: u64 = 1 << 20;

fn with_marks() -> Config {
    Config::framewright().with_marks()
}

/// A cache of raw pages.
#[derive(Default)]
struct Cache {
    pages: Mutex<VecDeque<Pfn>>,
    stalls: AtomicBool,
}

impl Reclaim for Cache {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        if self.stalls.swap(false, Relaxed) {
            thread::sleep(Duration::from_secs(1));
        }
        let mut done = Reclaimed::default();
        for _ in 0..ask.target.min(32) {
            let Some(pfn) = self.pages.lock().unwrap().pop_front() else { break };
            done.scanned += 1;
            if ask.wants(pfn) {
                // SAFETY: the cache owns it.
                unsafe { to.free(pfn, Order::ZERO) }.expect("the cache owns it");
                done.freed += 1;
            } else {
                self.pages.lock().unwrap().push_back(pfn);
            }
        }
        done
    }

    fn reclaimable(&self, _: ZoneId) -> Reclaimable {
        let pages = self.pages.lock().unwrap().len() as u64;
        Reclaimable { file_lru: pages, file: pages, ..Reclaimable::default() }
    }
}

fn press(arena: &Arena, cache: &Cache, threads: usize, pages: usize) {
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let cpu = arena.attach().unwrap();
                for _ in 0..pages {
                    let pfn = cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
                    cache.pages.lock().unwrap().push_back(pfn);
                }
            });
        }
    });
}

/// Ten times the memory through four threads, with and without background threads, and with one that stalls
/// for a second: every request is served, and every page is accounted for.
#[test]
fn ten_times_the_memory_through_four_threads() {
    for (background, stalls) in [(false, false), (true, false), (true, true)] {
        let builder = Arena::builder().bytes(64 * MIB).cpus(4).nodes(2).config(with_marks());
        let builder = builder.backing(Backing::Described);
        let arena: Arena = if background { builder.background() } else { builder }.build().unwrap();
        let cache = Arc::new(Cache { stalls: AtomicBool::new(stalls), ..Cache::default() });
        assert!(arena.set_reclaim(cache.clone()));
        assert!(!arena.set_reclaim(cache.clone()), "once for good");
        thread::scope(|scope| {
            if background {
                for node in 0..2 {
                    let arena = &arena;
                    scope.spawn(move || arena.run_background(NodeId(node)).unwrap());
                }
            }
            press(&arena, &cache, 4, 40_960);
            // On a busy machine the background threads may not have run yet.
            let has_run = || arena.allocator().node_totals().pageoutrun > 0;
            for _ in (0..100).take_while(|_| background && !has_run()) {
                press(&arena, &cache, 4, 4096);
            }
            arena.stop_background();
        });
        let held = cache.pages.lock().unwrap().len() as u64;
        let account = arena.allocator().verify().unwrap();
        assert_eq!(account.allocated, held, "{account:?}");
        let events = arena.allocator().node_totals();
        if background {
            assert!(events.pageoutrun > 0);
        } else {
            assert!(events.allocstall > 0 && events.pageoutrun == 0);
        }
        println!(
            "{background} {stalls}: {} stalls, {} background runs",
            events.allocstall, events.pageoutrun
        );
    }
}

#[test]
fn a_background_thread_needs_its_slot() {
    let without: Arena = Arena::builder().bytes(4 * MIB).build().unwrap();
    assert_eq!(without.run_background(NodeId(0)), Err(AttachError::NoBackground(NodeId(0))));
    let arena: Arena = Arena::builder().bytes(4 * MIB).background().build().unwrap();
    assert_eq!(arena.run_background(NodeId(1)), Err(AttachError::NoBackground(NodeId(1))));
    assert!(arena.attach_to(arena.cpus()).is_err(), "its slot is nobody else's");
    arena.stop_background();
    arena.run_background(NodeId(0)).unwrap();
}

/// A cache of blocks that free themselves, as one would hook a bounded cache library up: reclaim drops entries,
/// and never hears of [`Release`].
struct Blocks(Mutex<VecDeque<SharedBlock>>);

impl Reclaim for Blocks {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
        let some: Vec<SharedBlock> = {
            let mut blocks = self.0.lock().unwrap();
            let some = blocks.len().min(ask.target.min(32) as usize);
            blocks.drain(..some).collect()
        };
        let freed = some.len() as u64;
        drop(some);
        Reclaimed { scanned: freed, freed }
    }
}

#[test]
fn a_cache_of_blocks_that_free_themselves() {
    let arena: SharedArena = Arena::builder().bytes(4 * MIB).build_shared().unwrap();
    let cache = Arc::new(Blocks(Mutex::default()));
    assert!(arena.set_reclaim(cache.clone()));
    for n in 0..10_240_u64 {
        let mut block = arena.alloc_block(Order::ZERO, Migratetype::Movable).unwrap();
        block.bytes_mut()[..8].copy_from_slice(&n.to_le_bytes());
        cache.0.lock().unwrap().push_back(block);
    }
    let blocks = core::mem::take(&mut *cache.0.lock().unwrap());
    let kept: Vec<u64> =
        blocks.iter().map(|b| u64::from_le_bytes(b.bytes()[..8].try_into().unwrap())).collect();
    assert!(kept.is_sorted() && kept.last() == Some(&10_239), "the newest are there, and what they say");
    drop(blocks);
}

/// Virtual nodes exercise policies: blocks are from the nodes they are asked for on.
#[test]
fn virtual_nodes_and_policies() {
    let distances = [10, 20, 40, 20, 10, 20, 40, 20, 10];
    let arena: Arena = Arena::builder()
        .bytes(48 * MIB)
        .backing(Backing::Described)
        .cpus(3)
        .nodes(3)
        .distances(distances)
        .build()
        .unwrap();
    let cpu = arena.attach_to(0).unwrap();
    let node_of = |pfn: Pfn| {
        let allocator = arena.allocator();
        allocator.zones()[allocator.frames().info(pfn).zone().index()].spec().node
    };
    let page = Request::new(Order::ZERO, Migratetype::Movable);
    for turn in 0..9 {
        let request = page.on(NodePolicy::Interleave { nodes: NodeMask(0b101), turn });
        let pfn = cpu.alloc_with(&request).unwrap();
        assert_eq!(node_of(pfn), NodeId(if turn % 2 == 0 { 0 } else { 2 }));
        // SAFETY: allocated just now.
        unsafe { cpu.free(pfn, Order::ZERO) }.unwrap();
    }
    let bound = page.on(NodePolicy::Bind(NodeMask(0b010)));
    let mut pages = 0;
    while let Ok(pfn) = cpu.alloc_with(&bound) {
        assert_eq!(node_of(pfn), NodeId(1));
        pages += 1;
    }
    assert_eq!(pages, 16 * MIB / 4096);
    assert!(Arena::builder().bytes(48 * MIB).nodes(2).distances([10, 9, 9, 10]).build::<()>().is_err());
}

/// An owner of pages that moves them: what is in them comes along.
#[derive(Default)]
struct Mover {
    arena: Mutex<Option<(usize, Pfn)>>,
    pages: Mutex<std::collections::HashMap<Pfn, u64>>,
}

// SAFETY: it moves only blocks that it owns, under its lock.
unsafe impl Migrate for Mover {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, _: Order) -> Migrated {
        let mut pages = self.pages.lock().unwrap();
        let Some(n) = pages.remove(&from) else { return Migrated::Stays };
        let (start, first) = self.arena.lock().unwrap().unwrap();
        let at = |pfn: Pfn| (start + (pfn.0 - first.0) as usize * 4096) as *mut u8;
        // SAFETY: both pages are in the arena's memory, and this owner's.
        unsafe { core::ptr::copy_nonoverlapping(at(from), at(to), 4096) };
        pages.insert(to, n);
        Migrated::Moved
    }
}

#[test]
fn compaction_moves_what_is_in_the_pages() {
    moves_what_is_in_the_pages(2, |cpu| cpu.compact(ZoneId(0)).moved);
    // Rounds empty pageblocks of which a quarter is in use.
    moves_what_is_in_the_pages(4, |cpu| {
        let round = || Some(cpu.compact_proactively(NodeId(0)).moved).filter(|&moved| moved > 0);
        core::iter::from_fn(round).sum()
    });
    let arena: Arena = Arena::builder().bytes(4 * MIB).build().unwrap();
    assert_eq!(arena.attach().unwrap().compact_proactively(NodeId(0)).moved, 0, "nobody moves its blocks");
}

/// A background thread makes rounds by itself, without watermarks too; and none if the configuration wants none.
#[test]
fn a_background_thread_moves_pages() {
    moves_what_is_in_the_pages(4, |cpu| {
        let arena = cpu.arena();
        let ideal = arena.allocator().free_pages() / PAGEBLOCK_PAGES;
        thread::scope(|scope| {
            scope.spawn(|| arena.run_background(NodeId(0)).unwrap());
            while arena.allocator().free_blocks(PAGEBLOCK_ORDER) * 100 < ideal * 95 {
                thread::yield_now();
            }
            arena.stop_background();
        });
        arena.allocator().node_totals().pgmigrate_success
    });
}

/// One page in `n` stays, and is moved.
fn moves_what_is_in_the_pages(one_in: u64, compact: impl Fn(&Cpu<'_>) -> u64) {
    let arena: Arena = Arena::builder().bytes(32 * MIB).background().build().unwrap();
    let mover = Arc::new(Mover::default());
    let first = arena.frames().start;
    *mover.arena.lock().unwrap() = Some((arena.address(first).unwrap().as_ptr() as usize, first));
    assert!(arena.set_migrate(mover.clone()));
    let cpu = arena.attach().unwrap();
    let mut n = 0_u64;
    let mut all = Vec::new();
    while let Ok(pfn) = cpu.alloc(Order::ZERO, Migratetype::Movable) {
        // SAFETY: the page is this thread's.
        unsafe { arena.address(pfn).unwrap().cast::<u64>().write(n) };
        all.push((pfn, n));
        n += 1;
    }
    for (pfn, n) in all {
        if n % one_in != 1 {
            // SAFETY: allocated above.
            unsafe { cpu.free(pfn, Order::ZERO) }.unwrap();
        } else {
            mover.pages.lock().unwrap().insert(pfn, n);
        }
    }
    cpu.drain();
    let ideal = arena.allocator().free_pages() / PAGEBLOCK_PAGES;
    assert_eq!(arena.allocator().free_blocks(PAGEBLOCK_ORDER), 0);
    assert!(compact(&cpu) > 0 && arena.allocator().free_blocks(PAGEBLOCK_ORDER) * 100 >= ideal * 95);
    for (&pfn, &n) in &*mover.pages.lock().unwrap() {
        // SAFETY: the page is the owner's.
        let found = unsafe { arena.address(pfn).unwrap().cast::<u64>().read() };
        assert_eq!(found, n, "moved, and not what it was");
    }
}

/// The machine's own nodes: as many as the system has with memory, each usable.
#[test]
fn the_machines_nodes() {
    let arena: Arena = Arena::builder().bytes(64 * MIB).machine_nodes().build().unwrap();
    let nodes = arena.allocator().nodes().len() as u64;
    assert!(nodes >= 1);
    let cpu = arena.attach().unwrap();
    for node in (0..nodes as u16).map(NodeId) {
        let request =
            Request::new(Order::ZERO, Migratetype::Movable).on(NodePolicy::Bind(NodeMask::of(node)));
        let pfn = cpu.alloc_with(&request).unwrap();
        // SAFETY: the page is this thread's.
        unsafe { arena.address(pfn).unwrap().write_bytes(0x5a, 4096) };
        // SAFETY: allocated just now.
        unsafe { cpu.free(pfn, Order::ZERO) }.unwrap();
    }
}
