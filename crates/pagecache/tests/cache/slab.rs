//! Caches of small objects beside the page cache.

use std::sync::Mutex;

use framewright::Migratetype;
use framewright::config::Generation;
use framewright::reclaim::{Reclaim, Release};
use framewright::units::{Order, Pfn, ZoneId};
use framewright_check::platform::plain::Plain;
use framewright_pagecache::slab::{BATCH, Shrinker};
use framewright_pagecache::{Cache, FileId};

use crate::disk::{BYTES, Disk};
use crate::{Handle, Kept, PAGES, world};

/// Objects in a page.
const IN_A_PAGE: u64 = 32;

/// Objects, page by page, that all may go or, if they are in use, none.
#[derive(Default)]
struct Objects {
    pages: Mutex<Vec<Pfn>>,
    in_use: bool,
}

impl Objects {
    fn fill(&self, cpu: &Handle<'_>, pages: u64) {
        let page = || cpu.alloc(Order::ZERO, Migratetype::Reclaimable).unwrap();
        self.pages.lock().unwrap().extend((0..pages).map(|_| page()));
    }

    fn left(&self) -> u64 {
        self.pages.lock().unwrap().len() as u64
    }
}

impl Shrinker for Objects {
    fn objects(&self) -> u64 {
        self.left() * IN_A_PAGE
    }

    fn pages(&self, _: ZoneId) -> u64 {
        self.left()
    }

    fn shrink(&self, objects: u64, to: &dyn Release) {
        assert_eq!(objects, BATCH);
        let pages = if self.in_use { 0 } else { objects / IN_A_PAGE };
        for _ in 0..pages {
            let Some(pfn) = self.pages.lock().unwrap().pop() else { return };
            // SAFETY: allocated for these objects, and popped.
            unsafe { to.free(pfn, Order::ZERO) }.unwrap();
        }
    }
}

/// Reads `pages` pages of a file that storage does not hold.
fn stream(world: &Kept, cache: &Cache<'_, Plain, Disk>, pages: u64) {
    world.on(0, |cpu| {
        let mut bytes = [1; BYTES];
        for index in 0..pages {
            cache.read(cpu, &cache.helpers(), (FileId(1), index, 0), &mut bytes).unwrap();
            assert_eq!(bytes, [0; BYTES]);
        }
    });
}

#[test]
fn objects_make_room_as_pages_do() {
    for generation in [Generation::V3_0, Generation::V6_1] {
        let world = world(generation, 1);
        let (objects, used) = (Objects::default(), Objects { in_use: true, ..Objects::default() });
        world.on(0, |cpu| {
            objects.fill(cpu, PAGES / 2);
            used.fill(cpu, PAGES / 8);
        });
        let mut cache = Cache::new(world.allocator(), Disk::default());
        cache.set_shrinkers(&[&objects as &dyn Shrinker, &used]);
        assert_eq!(cache.reclaimable(ZoneId(0)).slab, PAGES / 2 + PAGES / 8);
        stream(&world, &cache, PAGES / 4);
        assert_eq!(objects.left(), PAGES / 2, "there is room for all");
        stream(&world, &cache, 4 * PAGES);
        assert!(objects.left() < PAGES / 8, "{} pages of objects are left", objects.left());
        assert_eq!(used.left(), PAGES / 8);
        let scanned = world.allocator().node_totals().slabs_scanned;
        assert!(scanned.is_multiple_of(BATCH) && scanned / IN_A_PAGE > PAGES / 4, "{scanned}");
        cache.verify().unwrap();
        let kept = cache.pages().0 + objects.left() + used.left();
        assert_eq!(world.settled().allocated, kept, "each page is in a cache or free");
    }
}

/// A request without pages of files to search finds no objects either (v3.0), but the request does not hang.
#[test]
fn objects_in_use_do_not_go() {
    let world = world(Generation::V6_1, 1);
    let used = Objects { in_use: true, ..Objects::default() };
    let mut cache = Cache::new(world.allocator(), Disk::default());
    cache.set_shrinkers(&[&used as &dyn Shrinker]);
    world.on(0, |cpu| {
        while let Ok(pfn) = cpu.alloc(Order::ZERO, Migratetype::Reclaimable) {
            used.pages.lock().unwrap().push(pfn);
        }
        assert!(cache.read(cpu, &cache.helpers(), (FileId(1), 0, 0), &mut [0; BYTES]).is_err());
    });
    assert_eq!(world.settled().allocated, used.left());
}
