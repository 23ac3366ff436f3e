//! The cache under every kind of schedule: shuttle, three CPUs and background reclaim, a few pages of memory.
//! The device's cells find two that are at a page's memory when they must not be.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ::shuttle::rand::{Rng, thread_rng};
use framewright::Cpu;
use framewright::config::{Config, Experiment, PcpFixed};
use framewright::platform::{Platform, SharedCell};
use framewright::reclaim::{BackgroundRequest, Migrate, Migrated};
use framewright::units::{Migratetype, NodeId, Order, Pfn, ZoneType};
use framewright_check::fixture::{BASE, Spec, World};
use framewright_check::platform::loom::full;
use framewright_check::platform::shuttle::{self, Shuttle};
use framewright_pagecache::{Cache, CacheError, Completion, Device, FileId, IoError, PageSlot, Progress};
use framewright_pagecache::{SpaceId, Swap};

const MEMORY: u64 = 48;
const BROKEN: IoError = IoError::from_code(5);
type Cell = <Shuttle as Platform>::Cell<u64>;

/// Pages of one number each. The maps are behind ordinary mutexes, never held where another thread may run.
struct Disk {
    memory: Vec<Cell>,
    stored: Mutex<BTreeMap<(FileId, u64), u64>>,
    begun: Mutex<Vec<(FileId, u64, Pfn, u64)>>,
    turns: AtomicU64,
}

#[expect(unsafe_code, reason = "cells are reached through pointers; they check that no two overlap")]
impl Disk {
    fn new() -> Self {
        Self {
            memory: (0..MEMORY).map(|_| Cell::new(0)).collect(),
            stored: Mutex::default(),
            begun: Mutex::default(),
            turns: AtomicU64::new(0),
        }
    }

    fn cell(&self, pfn: Pfn) -> &Cell {
        &self.memory[(pfn.0 - BASE.0) as usize]
    }

    fn load(&self, pfn: Pfn) -> u64 {
        // SAFETY: the cell panics if a thread writes at the same time.
        self.cell(pfn).with(|value| unsafe { *value })
    }

    fn store(&self, pfn: Pfn, number: u64) {
        // SAFETY: the cell panics if another thread is at it at the same time.
        self.cell(pfn).with_mut(|value| unsafe { *value = number });
    }

    /// One in six fails.
    fn turn(&self) -> Result<(), IoError> {
        if self.turns.fetch_add(1, Relaxed) % 6 == 5 { Err(BROKEN) } else { Ok(()) }
    }
}

// SAFETY: the cells find concurrent use themselves; that is what they are for.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Sync for Disk {}
// SAFETY: numbers.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Send for Disk {}

impl Device for Disk {
    fn page_bytes(&self) -> usize {
        8
    }

    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError> {
        let stored = self.stored.lock().unwrap().get(&(file, index)).copied();
        self.store(pfn, stored.unwrap_or_default());
        self.turn()
    }

    fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError> {
        let number = self.load(pfn);
        self.turn()?;
        self.begun.lock().unwrap().push((file, index, pfn, number));
        Ok(Progress::Begun)
    }

    fn completed(&self) -> Option<Completion> {
        let (file, index, pfn, number) = self.begun.lock().unwrap().pop()?;
        assert_eq!(self.load(pfn), number, "{pfn:?} has changed while it was written");
        let result = self.turn();
        if result.is_ok() {
            self.stored.lock().unwrap().insert((file, index), number);
        }
        Some(Completion { file, index, pfn, result })
    }

    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError> {
        self.stored.lock().unwrap().retain(|&(in_file, at), _| in_file != file || at < index);
        Ok(())
    }

    fn copy_in(&self, pfn: Pfn, _: usize, bytes: &[u8]) {
        self.store(pfn, u64::from_le_bytes(bytes.try_into().unwrap()));
    }

    fn copy_out(&self, pfn: Pfn, _: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.load(pfn).to_le_bytes());
    }

    fn clear(&self, pfn: Pfn) {
        self.store(pfn, 0);
    }
}

type Shop = World<Shuttle, PageSlot>;

/// Moves some page of the cache, whosever it is, as compaction does.
fn shift(cache: &Cache<'_, Shuttle, Disk>, cpu: &Cpu<'_, '_, Shuttle, PageSlot>) {
    let Ok(to) = cpu.alloc(Order::ZERO, Migratetype::Movable) else { return };
    let from = BASE.add(thread_rng().gen_range(0..MEMORY));
    let moved = cache.can_move(from, Order::ZERO, Migratetype::Movable)
        // SAFETY: `to` was allocated just now.
        && unsafe { cache.migrate(from, to, Order::ZERO) } == Migrated::Moved;
    cpu.free(if moved { from } else { to }, Order::ZERO).expect("nobody else's");
}

/// Content that pages of one CPU should have.
type Numbers = BTreeMap<u64, u64>;
type Shared = Cache<'static, Shuttle, Disk>;

/// Arguments of one random call of a CPU.
struct Call<'a> {
    cache: &'a Shared,
    on: &'a Cpu<'a, 'a, Shuttle, PageSlot>,
    cpu: u32,
    /// Page.
    index: u64,
    /// Number to store in it.
    number: u64,
}
type Step = fn(&Call<'_>, &mut Numbers);

/// Checks a number that was read, if the read succeeded.
fn check_read(model: &Numbers, index: u64, result: Result<(), CacheError>, bytes: [u8; 8]) {
    if result.is_ok() {
        assert_eq!(u64::from_le_bytes(bytes), model.get(&index).copied().unwrap_or_default());
    }
}

fn note(model: &mut Numbers, index: u64, number: u64, stored: Result<(), CacheError>) {
    match stored {
        Ok(()) => drop(model.insert(index, number)),
        Err(error) => assert!(matches!(error, CacheError::Io(_) | CacheError::NoMemory(_)), "{error}"),
    }
}

/// A call on a file of the CPU's own, or on one that all share and no thread relies on.
fn work(&Call { cache, on, cpu, index, number }: &Call<'_>, model: &mut Numbers) {
    let (mine, shared) = (FileId(cpu), FileId(99));
    let (helpers, stored, mut bytes) = (cache.helpers(), number.to_le_bytes(), [0; 8]);
    match thread_rng().gen_range(0..22) {
        0..6 => note(model, index, number, cache.write(on, &helpers, (mine, index, 0), &stored)),
        6..9 => {
            let result = cache.read(on, &helpers, (mine, index, 0), &mut bytes);
            check_read(model, index, result, bytes);
        }
        9..11 => drop(cache.store_mapped(on, &helpers, (shared, index % 4, 0), &stored)),
        11..13 => drop(cache.load_mapped(on, &helpers, (shared, index % 4, 0), &mut bytes)),
        13 => drop(cache.flush(if index.is_multiple_of(2) { mine } else { shared })),
        14 => drop(cache.write_back(4)),
        15 => assert!(matches!(cache.write_all(), Ok(()) | Err(CacheError::Io(BROKEN)))),
        16 => cache.unmap(shared),
        // Of any CPU: what a page held is read again.
        17 => drop(cache.drop_pages(on, FileId(index as u32 % 3))),
        18..21 => shift(cache, on),
        _ => {
            cache.truncate(on, mine, index).unwrap();
            model.retain(|&at, _| at < index);
        }
    }
}

/// A call on anonymous pages of the CPU's own, on some that all share and drop, or on a file.
fn swap(&Call { cache, on, cpu, index, number }: &Call<'_>, model: &mut Numbers) {
    let (mine, shared, file) = (SpaceId(cpu), SpaceId(99), FileId(cpu));
    let (helpers, stored, mut bytes) = (cache.helpers(), number.to_le_bytes(), [0; 8]);
    match thread_rng().gen_range(0..21) {
        0..8 => note(model, index, number, cache.store_anon(on, &helpers, (mine, index, 0), &stored)),
        8..12 => {
            let result = cache.load_anon(on, &helpers, (mine, index, 0), &mut bytes);
            check_read(model, index, result, bytes);
        }
        12 => drop(cache.store_anon(on, &helpers, (shared, index % 4, 0), &stored)),
        13 => drop(cache.load_anon(on, &helpers, (shared, index % 4, 0), &mut bytes)),
        14 => cache.drop_space(on, shared),
        15 => drop(cache.write(on, &helpers, (file, index, 0), &stored)),
        16 => drop(cache.read(on, &helpers, (file, index, 0), &mut bytes)),
        17..20 => shift(cache, on),
        _ => {
            cache.unmap_anon(on, mine, index..index + 4);
            model.retain(|at, _| !(index..index + 4).contains(at));
        }
    }
}

/// Steps of three CPUs, and background reclaim on a fourth. Returns what each CPU's pages should have.
fn three_cpus(world: &'static Shop, cache: &Arc<Shared>, steps: u64, step: Step) -> Vec<Numbers> {
    let spawn = |cpu: u32| {
        let cache = cache.clone();
        ::shuttle::thread::spawn(move || {
            let (pin, mut model) = (world.pin(cpu as usize), Numbers::new());
            let on = world.cpu(&pin);
            for n in 0..steps {
                let index = thread_rng().gen_range(0..MEMORY / 2);
                let number = n << 8 | u64::from(cpu);
                step(&Call { cache: &cache, on: &on, cpu, index, number }, &mut model);
            }
            on.drain();
            world.unpin(pin);
            model
        })
    };
    let workers = [0, 1, 2].map(spawn);
    for _ in 0..4 {
        let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
        world.on(3, |cpu| cpu.background(NodeId(0), asked, &cache.helpers()));
    }
    workers.into_iter().map(|worker| worker.join().unwrap()).collect()
}

/// All pages of a CPU's space, read and dropped one by one: where memory and swap are both full, there is room
/// for the others then.
fn close(world: &Shop, cache: &Shared, models: &[Numbers]) {
    let on =
        |call: &mut dyn FnMut(&framewright::Cpu<'_, '_, Shuttle, PageSlot>)| world.on(0, |cpu| call(cpu));
    on(&mut |cpu| {
        cache.drop_space(cpu, SpaceId(99));
        (0..3).for_each(|file| cache.truncate(cpu, FileId(file), 0).unwrap());
    });
    let mut left: Vec<(SpaceId, u64, u64)> = (0..)
        .map(SpaceId)
        .zip(models)
        .flat_map(|(space, model)| model.iter().map(move |(&index, &number)| (space, index, number)))
        .collect();
    for _ in 0..200 {
        left.retain(|&(space, index, number)| {
            let mut bytes = [0; 8];
            let mut kept = true;
            on(&mut |cpu| {
                if cache.load_anon(cpu, &cache.helpers(), (space, index, 0), &mut bytes).is_ok() {
                    assert_eq!(u64::from_le_bytes(bytes), number, "{space:?} page {index}");
                    cache.unmap_anon(cpu, space, index..index + 1);
                    kept = false;
                }
            });
            kept
        });
    }
    assert_eq!(left, [], "most reads succeed");
}

fn shop() -> &'static Shop {
    let config = Config {
        min_free_kib: 24,
        experiment: Experiment {
            pcp_slots: 4,
            pcp_fixed: Some(PcpFixed { batch: 2, high: 4 }),
            remote_drain_spins: 2,
            ..Experiment::default()
        },
        ..Config::framewright()
    };
    let spec = Spec::one_zone(MEMORY, 4).config(config.with_marks());
    Box::leak(Box::new(spec.build_with(|_| PageSlot::default())))
}

#[test]
fn three_cpus_swap() {
    let steps = if full() { 80 } else { 40 };
    let body = move || {
        let world = shop();
        let swap_area = Swap::new(FileId(1000), thread_rng().gen_range(10..80));
        let cache = Arc::new(Cache::new(world.allocator(), Disk::new()).with_swap(swap_area));
        let models = three_cpus(world, &cache, steps, swap);
        cache.verify().unwrap();
        assert_eq!(world.settled().allocated, cache.pages().0 + cache.anon_pages());
        close(world, &cache, &models);
        cache.verify().unwrap();
        assert_eq!((cache.swap_use().free, cache.anon_pages()), (u64::from(swap_area.slots), 0));
        assert_eq!(world.settled().allocated, 0);
    };
    let executions = if full() { 300 } else { 30 };
    shuttle::random(executions, body);
    shuttle::pct(3, executions, body);
}

/// A page that is dropped while another CPU loads it is gone: only a store makes a page.
#[test]
fn a_load_makes_no_page() {
    let body = || {
        let world = shop();
        let cache =
            Arc::new(Cache::new(world.allocator(), Disk::new()).with_swap(Swap::new(FileId(1000), 100)));
        let (space, loader) = (SpaceId(1), cache.clone());
        let all = 0..MEMORY;
        world.on(0, |cpu| {
            for index in all.clone() {
                let _ = cache.store_anon(cpu, &cache.helpers(), (space, index, 0), &[1; 8]);
            }
        });
        let loads = ::shuttle::thread::spawn(move || {
            world.on(1, |cpu| {
                for index in 0..MEMORY {
                    let _ = loader.load_anon(cpu, &loader.helpers(), (space, index, 0), &mut [0; 8]);
                }
            });
        });
        world.on(0, |cpu| cache.unmap_anon(cpu, space, all));
        loads.join().unwrap();
        cache.verify().unwrap();
        assert_eq!((cache.anon_pages(), cache.swap_use().free), (0, 100));
    };
    shuttle::random(30, body);
    shuttle::pct(3, 30, body);
}

#[test]
fn three_cpus_and_background_reclaim() {
    let steps = if full() { 60 } else { 25 };
    let body = move || {
        let world = shop();
        let cache = Arc::new(Cache::new(world.allocator(), Disk::new()));
        let models = three_cpus(world, &cache, steps, work);
        for (file, model) in (0..).map(FileId).zip(&models) {
            assert!((0..200).any(|_| cache.flush(file).is_ok()), "most writes succeed");
            let stored = cache.device().stored.lock().unwrap();
            for (&index, &number) in model {
                assert_eq!(stored.get(&(file, index)).copied(), Some(number), "{file:?} page {index}");
            }
        }
        assert!((0..200).any(|_| cache.flush(FileId(99)).is_ok()));
        cache.verify().unwrap();
        assert_eq!(world.settled().allocated, cache.pages().0);
    };
    let executions = if full() { 2000 } else { 30 };
    shuttle::random(executions, body);
    shuttle::pct(3, executions, body);
}
