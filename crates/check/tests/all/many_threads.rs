//! The whole allocator under many threads. shuttle: nine threads on eight CPUs, random schedules and schedules
//! with few priority changes; all kinds of calls are made together.

use std::sync::{Arc, Mutex};

use ::shuttle::rand::{Rng, thread_rng};
use framewright_check::prelude::*;

const CPUS: usize = 8;

/// Pages at the start of each of the two pageblocks: few, so that the CPUs fight for them.
const PER_PAGEBLOCK: u64 = 64;

struct Shop {
    /// Frames from the first pageblock to the second: they are in different sections, if there are several.
    stride: u64,
    world: World<Shuttle>,
    oracle: SharedOracle,
    /// Blocks on their way from the thread that allocated them to the one that frees them. An ordinary mutex:
    /// it is never held where another thread may run.
    handed_over: Mutex<Vec<Block>>,
}

impl Shop {
    fn new(config: Config) -> Self {
        let stride = config.experiment.section_pages.max(PAGEBLOCK_PAGES);
        let world: World<Shuttle> = Spec::one_zone(2 * stride, CPUS)
            .memory([(BASE, PER_PAGEBLOCK), (BASE.add(stride), PER_PAGEBLOCK)])
            .config(config)
            .build();
        assert_eq!(world.zone().sections() > 1, stride > PAGEBLOCK_PAGES);
        let oracle = SharedOracle::new(BASE, 2 * stride);
        Self { stride, world, oracle, handed_over: Mutex::default() }
    }

    /// Everything one CPU does: `steps` random calls, then it gives its blocks back, and leaves, drained or not.
    fn work(&self, cpu: usize, steps: u32) {
        let pin = self.world.pin(cpu);
        let cpu = self.world.cpu(&pin);
        let free = |block: Block| {
            self.oracle.giving_back(block);
            cpu.must_free(block.pfn, block.order);
        };
        let mut mine = Vec::new();
        for _ in 0..steps {
            match thread_rng().gen_range(0..16) {
                0..7 => {
                    let order = Order::new([0, 0, 0, 0, 1, 2, 3, 5][thread_rng().gen_range(0..8)]);
                    let order = order.expect("an order");
                    if let Ok(pfn) = cpu.alloc(order, ORDINARY[thread_rng().gen_range(0..3)]) {
                        let block = Block { pfn, order };
                        self.oracle.handed_out(block);
                        mine.push(block);
                    }
                }
                7..11 if !mine.is_empty() => free(mine.swap_remove(thread_rng().gen_range(0..mine.len()))),
                11 if !mine.is_empty() => {
                    let block = mine.swap_remove(0);
                    self.handed_over.lock().expect("no thread panicked").push(block);
                }
                12..14 => {
                    let block = self.handed_over.lock().expect("no thread panicked").pop();
                    block.into_iter().for_each(free);
                }
                14 => cpu.drain(),
                _ => cpu.answer(),
            }
        }
        mine.into_iter().for_each(free);
        if thread_rng().gen_bool(0.5) {
            cpu.drain();
        }
        self.world.unpin(pin);
    }

    /// Calls of a thread without a CPU during the work.
    fn disturb(&self, steps: u32) {
        let allocator = self.world.allocator();
        for _ in 0..steps {
            let pageblock = BASE.add(thread_rng().gen_range(0..2) * self.stride);
            match thread_rng().gen_range(0..5) {
                0 => {
                    let (batch, high) = (thread_rng().gen_range(1..8), thread_rng().gen_range(0..32));
                    allocator.resize_pcps_of(ZoneId(0), Sizing { batch, high_min: high, high_max: high });
                }
                1 => allocator.request_drain(),
                2 => {
                    allocator.isolate_pageblock(pageblock);
                }
                3 => {
                    allocator.unisolate_pageblock(pageblock);
                }
                _ => {
                    let to = [M, Migratetype::Unmovable, Migratetype::Cma];
                    allocator.set_pageblock_type(pageblock, to[thread_rng().gen_range(0..3)]);
                }
            }
        }
    }

    /// All threads have ended: every page is accounted for, first where it is, then all of them merged again.
    fn close(&self) {
        for block in self.handed_over.lock().expect("no thread panicked").drain(..) {
            self.oracle.giving_back(block);
            self.world.must_free(0, block.pfn, block.order);
        }
        let account = self.world.settled();
        assert_eq!((account.allocated, self.oracle.pages_owned()), (0, 0), "{account:?}");
        assert_eq!(account.free + account.on_pcp, 2 * PER_PAGEBLOCK, "{account:?}");
        for cpu in 0..CPUS {
            self.world.on(cpu, |cpu| cpu.drain());
        }
        for n in 0..2 {
            self.world.allocator().unisolate_pageblock(BASE.add(n * self.stride));
        }
        let account = self.world.settled();
        assert_eq!(account.free, 2 * PER_PAGEBLOCK, "{account:?}");
        let whole = order(6);
        assert_eq!(self.world.allocator().free_blocks(whole), 2, "{}", self.world.allocator().buddyinfo());
    }
}

/// Nine threads together, under random schedules and under schedules with few priority changes.
fn run(config: Config) {
    let steps = if full() { 60 } else { 24 };
    let body = move || {
        let shop = Arc::new(Shop::new(config));
        let workers: Vec<_> = (0..CPUS)
            .map(|cpu| {
                let shop = shop.clone();
                ::shuttle::thread::spawn(move || shop.work(cpu, steps))
            })
            .collect();
        shop.disturb(steps / 2);
        for worker in workers {
            worker.join().expect("the thread did not panic");
        }
        shop.close();
    };
    schedules(if full() { 3000 } else { 8 }, body);
}

fn small(config: Config) -> Config {
    config.slots(16).fixed(4, 12).spins(3)
}

#[test]
fn nine_threads_lose_nothing() {
    run(small(Config::framewright()));
}

#[test]
fn nine_threads_lose_nothing_without_words() {
    run(small(with_engine(Engine::Compact)));
}

#[test]
fn nine_threads_lose_nothing_as_linux_does_it() {
    run(small(Config::linux_v6_1().but(|config| config.experiment.lock_kind = LockKind::Ticket)));
}

#[test]
fn nine_threads_lose_nothing_block_by_block() {
    run(small(with_engine(Engine::Linux).but(|config| config.experiment.pcp_rule = PcpRule::V5_4)));
}

#[test]
fn nine_threads_lose_nothing_in_two_sections() {
    for engine in [Engine::Framewright, Engine::Compact] {
        let config = small(with_engine(engine));
        run(config.sections(1024));
    }
}
