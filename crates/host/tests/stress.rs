//! Long random histories on several threads, against an oracle that knows only what callers were told.
//!
//! Threads allocate and free all orders and types, hand blocks to one another, attach and detach, and are killed
//! between operations. In the end every page is where it should be.

#[path = "all/common.rs"]
mod common;

use core::array;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;
use std::thread;

use common::{MIB, Oracle, TYPES, account, assert_all_free, described, free, order, run_and_kill, thread_ns};
use framewright_host::framewright::config::{Engine, Experiment, LockKind, LockPlace, PcpOrders};
use framewright_host::{Arena, Config, Cpu, Migratetype, Order, Pfn, SharedArena};

type Held = Vec<(Pfn, Order)>;

/// State that the threads of one history share.
struct World {
    arena: Arena,
    oracle: Oracle,
    /// Blocks on their way from one thread to another.
    exchange: Mutex<Held>,
    /// Pages that all threads together may hold: above it, frees outweigh.
    target: u64,
    held_pages: AtomicU64,
    failed: AtomicU64,
}

/// One thread's part. It survives the thread, so that what a killed thread had allocated is not lost.
struct Part {
    rng: fastrand::Rng,
    name: u8,
    held: Held,
}

impl World {
    fn new(pages: u64, cpus: usize, config: Config) -> Self {
        Self {
            arena: described(pages, config).cpus(cpus).build().unwrap(),
            oracle: Oracle::new(pages),
            exchange: Mutex::default(),
            target: pages / 2,
            held_pages: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    fn alloc(&self, cpu: &Cpu<'_>, part: &mut Part) {
        // Mostly single pages, as in life, but every order.
        let size = order(if part.rng.u32(..2) == 0 { 0 } else { part.rng.u8(..11) });
        let migratetype = TYPES[part.rng.usize(..3)];
        match cpu.alloc(size, migratetype) {
            Ok(pfn) => {
                self.oracle.handed_out(pfn, size, part.name);
                self.held_pages.fetch_add(size.pages(), Relaxed);
                part.held.push((pfn, size));
            }
            Err(error) => {
                assert_eq!(error.order, size);
                self.failed.fetch_add(1, Relaxed);
            }
        }
    }

    fn free(&self, cpu: &Cpu<'_>, (pfn, size): (Pfn, Order)) {
        self.oracle.given_back(pfn, size);
        self.held_pages.fetch_sub(size.pages(), Relaxed);
        free(cpu, pfn, size);
    }

    fn operate(&self, cpu: &Cpu<'_>, part: &mut Part) {
        let full = self.held_pages.load(Relaxed) > self.target;
        match part.rng.u64(..16) {
            0..7 if !full => self.alloc(cpu, part),
            // Now and then beyond the target, into failing allocations.
            7 => self.alloc(cpu, part),
            8 if !part.held.is_empty() => {
                let block = part.held.swap_remove(part.rng.usize(..part.held.len()));
                self.exchange.lock().unwrap().push(block);
            }
            9 | 10 => {
                let block = self.exchange.lock().unwrap().pop();
                if let Some(block) = block {
                    self.free(cpu, block);
                }
            }
            11 if !part.held.is_empty() && part.rng.u32(..8) == 0 => {
                let (pfn, from) = part.held.pop().unwrap();
                let to = order(part.rng.u8(..=from.get()));
                // SAFETY: the block is this thread's.
                unsafe { cpu.split(pfn, from, to) }.unwrap();
                let parts = 1 << (from.get() - to.get());
                part.held.extend((0..parts).map(|n| (pfn.add(n << to.get()), to)));
            }
            12 if part.rng.u32(..512) == 0 => cpu.drain(),
            _ if !part.held.is_empty() => {
                let block = part.held.swap_remove(part.rng.usize(..part.held.len()));
                self.free(cpu, block);
            }
            _ => self.alloc(cpu, part),
        }
    }

    /// One thread's history, in stretches that end by detaching, or by death if `kill`.
    fn live(&self, part: &mut Part, operations: u64, kill: bool) {
        let mut left = operations;
        while left > 0 {
            let stretch = (1 + part.rng.u64(..20_000)).min(left);
            left -= stretch;
            let dies = kill && part.rng.u32(..2) == 0;
            let mut stretch_of_life = || {
                let cpu = loop {
                    match self.arena.attach() {
                        Ok(cpu) => break cpu,
                        Err(_) => thread::yield_now(),
                    }
                };
                for _ in 0..stretch {
                    self.operate(&cpu, part);
                }
                if dies {
                    core::mem::forget(cpu);
                }
            };
            if dies {
                run_and_kill(stretch_of_life);
            } else {
                stretch_of_life();
            }
        }
    }

    /// Runs `threads` histories of `operations` together, checks the books with blocks still held, frees
    /// everything and checks them again.
    fn run(&self, seed: u64, threads: u8, operations: u64, kill: bool) {
        let mut parts: Vec<Part> = (0..threads)
            .map(|n| Part {
                rng: fastrand::Rng::with_seed(seed << 8 | u64::from(n)),
                name: n + 1,
                held: Vec::new(),
            })
            .collect();
        thread::scope(|scope| {
            for part in &mut parts {
                scope.spawn(|| self.live(part, operations / u64::from(threads), kill));
            }
        });
        self.arena.reap();
        let held = account(&self.arena);
        assert_eq!(held.allocated, self.oracle.taken(), "{held:?}");
        assert_eq!(held.allocated, self.held_pages.load(Relaxed));
        assert_eq!((held.on_pcp, held.quarantined), (0, 0));
        let frames = self.arena.frames();
        assert_eq!(held.free + held.allocated, frames.end.0 - frames.start.0, "every page is accounted for");

        let cpu = self.arena.attach().unwrap();
        let exchanged = core::mem::take(&mut *self.exchange.lock().unwrap());
        parts
            .into_iter()
            .flat_map(|part| part.held)
            .chain(exchanged)
            .for_each(|block| self.free(&cpu, block));
        drop(cpu);
        assert_eq!(self.oracle.taken(), 0);
        assert_all_free(&self.arena);
    }
}

#[test]
fn a_million_operations_from_4_threads() {
    let world = World::new(64 * MIB, 4, Config::default());
    world.run(1, 4, 1_000_000, false);
    assert!(world.failed.into_inner() > 0, "memory ran short now and then");
}

#[test]
fn a_million_operations_with_threads_killed_between_them() {
    World::new(64 * MIB, 4, Config::default()).run(2, 4, 1_000_000, true);
}

#[test]
fn histories_in_every_configuration() {
    let base = Config::default();
    let full = std::env::var_os("FRAMEWRIGHT_FULL").is_some();
    for (n, config) in [
        Config::linux_v5_4(),
        Config::linux_v6_1(),
        Config::linux_v6_7(),
        Config {
            experiment: Experiment {
                lock_kind: LockKind::Ticket,
                lock_place: LockPlace::WithOrder0Lists,
                lock_timing: true,
                ..base.experiment
            },
            ..base
        },
        Config {
            engine: Engine::Linux,
            experiment: Experiment { lock_place: LockPlace::OtherEnd, pcp_slots: 2, ..base.experiment },
            ..base
        },
        Config { experiment: Experiment { pcp_orders: PcpOrders::None, ..base.experiment }, ..base },
        Config { engine: Engine::Compact, lazy_pageblocks: true, ..base },
        Config {
            engine: Engine::Compact,
            experiment: Experiment { pcp_orders: PcpOrders::None, ..base.experiment },
            ..base
        },
        Config {
            experiment: Experiment { pcp_orders: PcpOrders::UpToCostly, pcp_fraction: 8, ..base.experiment },
            ..base
        },
    ]
    .into_iter()
    .enumerate()
    {
        println!("{config:?}");
        // A lock that is handed on in order waits for threads that have no processor: beside other programs each call
        // takes a hundred times as long.
        let in_order = matches!(config.experiment.lock_kind, LockKind::Ticket | LockKind::Queued);
        let operations = if in_order && !full { 8_000 } else { 100_000 };
        World::new(32 * MIB, 4, config).run(10 + n as u64, 4, operations, n % 2 == 0);
    }
}

#[test]
fn histories_where_memory_is_always_short() {
    for seed in 0..4 {
        let mut world = World::new(2 * MIB, 8, Config::default());
        world.target = u64::MAX;
        world.run(100 + seed, 8, 100_000, true);
        assert!(world.failed.into_inner() > 1000);
    }
}

#[test]
fn histories_with_more_threads_than_slots() {
    World::new(32 * MIB, 2, Config::default()).run(200, 8, 200_000, true);
}

#[test]
fn histories_over_several_nodes() {
    let mut world = World::new(64 * MIB, 4, Config::default());
    world.arena = described(64 * MIB, Config::default()).nodes(3).build().unwrap();
    world.run(300, 4, 200_000, true);
}

#[test]
#[ignore = "takes minutes: cargo test --release -p framewright-host --test stress -- --ignored"]
fn a_hundred_million_operations_from_4_threads() {
    World::new(256 * MIB, 4, Config::default()).run(3, 4, 100_000_000, true);
}

/// A pair with a block that any thread may drop has no locked instruction that a pair with a block bound to its thread
/// lacks. Counting references would need two, so it must take less time than a pair of the second kind with two of them
/// beside it: the least of many runs of each, interleaved, in one process. As released: with assertions, other things
/// count.
#[test]
#[cfg_attr(debug_assertions, ignore = "as released: cargo test --release -p framewright-host --test stress")]
fn a_shared_block_costs_less_than_counting_references_would() {
    const PAIRS: u32 = 20_000;
    let arena: SharedArena = Arena::builder().bytes(16 << 20).cpus(2).build_shared().unwrap();
    let cpu = arena.attach().unwrap();
    let references = AtomicUsize::new(0);
    let bound = || drop(black_box(cpu.alloc_block(Order::ZERO, Migratetype::Movable).unwrap()));
    let timed = |pair: &dyn Fn()| {
        let begun = thread_ns();
        pair();
        thread_ns() - begun
    };
    let mut least = [u64::MAX; 3];
    for _ in 0..60 {
        let run = [
            timed(&|| (0..PAIRS).for_each(|_| bound())),
            timed(&|| {
                for _ in 0..PAIRS {
                    drop(black_box(arena.alloc_block(Order::ZERO, Migratetype::Movable).unwrap()));
                }
            }),
            timed(&|| {
                for _ in 0..PAIRS {
                    black_box(&references).fetch_add(1, Relaxed);
                    bound();
                    black_box(&references).fetch_sub(1, Relaxed);
                }
            }),
        ];
        least = array::from_fn(|n| least[n].min(run[n]));
    }
    let [block, shared, counted] = least.map(|ns| ns as f64 / f64::from(PAIRS));
    println!("Block {block:.1} ns, SharedBlock {shared:.1}, with two locked instructions {counted:.1}");
    assert!(shared < counted, "{shared} ns, {counted} with references counted");
}
