//! Calls that name memory by its place, on three CPUs at the same time: ranges, hotplug, bad frames, reports and
//! isolated pageblocks beside allocations, splits and frees. shuttle.

use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use ::shuttle::sync::Mutex;
use framewright_check::prelude::*;

use super::somewhere;

const CPUS: usize = 3;
const PAGEBLOCKS: u64 = 4;
const PAGES: u64 = PAGEBLOCKS * PAGEBLOCK_PAGES;
const STEPS: usize = 8;

struct Shared {
    world: World<Shuttle>,
    oracle: SharedOracle,
    /// Frames that were reported as bad.
    bad: Mutex<Vec<Pfn>>,
}

/// What a thread has, and gives back in the end.
#[derive(Default)]
struct Mine {
    blocks: Vec<Block>,
    isolated: Option<Pfn>,
}

/// Times that a call of each kind succeeded.
static DONE: [AtomicU64; 10] = [const { AtomicU64::new(0) }; 10];

impl Shared {
    /// Notes that a thread got the blocks of a range, if it did, each as large as its alignment and the rest allow.
    fn own<E>(&self, mine: &mut Mine, got: Result<Range<Pfn>, E>) -> bool {
        let Ok(range) = got else { return false };
        Block::tiles(range.clone()).for_each(|block| self.oracle.handed_out(block));
        mine.blocks.extend(Block::tiles(range));
        true
    }

    fn free(&self, cpu: usize, block: Block) {
        self.oracle.giving_back(block);
        self.world.must_free(cpu, block.pfn, block.order);
    }

    /// Makes a call on CPU `n`, and counts it if it succeeds.
    fn step(&self, n: usize, mine: &mut Mine) {
        let (world, allocator) = (&self.world, self.world.allocator());
        let pick = |below: usize| thread_rng().gen_range(0..below);
        let order = [0, 0, 3, 9, 10].map(order)[pick(5)];
        let start = BASE.add(pick(PAGEBLOCKS as usize) as u64 * PAGEBLOCK_PAGES);
        let pfn = start.add([0, 1, 3, 500][pick(4)]);
        let kind = pick(DONE.len());
        let is_done = match kind {
            0 | 1 => {
                self.own(mine, world.on(n, |cpu| cpu.alloc(order, M)).map(|pfn| pfn..pfn.add(order.pages())))
            }
            2 => mine.blocks.pop().map(|block| self.free(n, block)).is_some(),
            3 => {
                let range = pfn..pfn.add([1, 9, 512, 700][pick(4)]);
                let got = world.on(n, |cpu| cpu.alloc_contig_range(range.clone(), &Helpers::NONE));
                self.own(mine, got.map(|()| range))
            }
            // What one CPU has taken offline, any may bring back.
            4 if pick(2) == 0 => allocator.online(start, PAGEBLOCK_PAGES).is_ok(),
            4 => {
                let end = start.add(PAGEBLOCK_PAGES * (1 + pick(2) as u64)).min(BASE.add(PAGES));
                world.on(n, |cpu| cpu.offline(start..end)).is_ok()
            }
            5 => {
                let found = world.on(n, |cpu| cpu.hwpoison(pfn));
                found.map(|_| self.bad.lock().expect("no thread panicked").push(pfn)).is_ok()
            }
            6 => world.on(n, |cpu| cpu.unpoison(pfn)).is_ok(),
            7 => {
                let check = |blocks: &[(Pfn, Order)]| {
                    let blocks = || blocks.iter().map(|&(pfn, order)| Block { pfn, order });
                    blocks().for_each(|block| self.oracle.handed_out(block));
                    blocks().for_each(|block| self.oracle.giving_back(block));
                    true
                };
                world.on(n, |cpu| cpu.report_free(PAGEBLOCK_ORDER, check)).blocks > 0
            }
            8 => match mine.isolated.take() {
                Some(start) => {
                    allocator.unisolate_pageblock(start).expect("it was isolated") <= PAGEBLOCK_PAGES
                }
                None => {
                    mine.isolated = allocator.isolate_pageblock(start).map(|_| start);
                    mine.isolated.is_some()
                }
            },
            _ => self.split(n, mine),
        };
        DONE[kind].fetch_add(u64::from(is_done), Relaxed);
    }

    /// Splits the block that the thread got last.
    #[expect(unsafe_code, reason = "the caller of split vouches for owning the block")]
    fn split(&self, n: usize, mine: &mut Mine) -> bool {
        let Some(Block { pfn, order: from }) = mine.blocks.pop() else { return false };
        let to = order(from.get().saturating_sub(3));
        self.oracle.giving_back(Block { pfn, order: from });
        // SAFETY: the block is this thread's.
        self.world.on(n, |cpu| unsafe { cpu.split(pfn, from, to) }).expect("it is allocated");
        for pfn in (0..from.pages()).step_by(to.pages() as usize).map(|at| pfn.add(at)) {
            self.oracle.handed_out(Block { pfn, order: to });
            mine.blocks.push(Block { pfn, order: to });
        }
        true
    }

    fn end(&self, n: usize, mine: Mine) {
        mine.blocks.into_iter().for_each(|block| self.free(n, block));
        if let Some(start) = mine.isolated {
            self.world.allocator().unisolate_pageblock(start).expect("it was isolated");
        }
    }
}

/// In the end all frames are free, after what went offline is back and what was found bad is good.
#[test]
fn calls_by_place_lose_no_frame() {
    for engine in [Engine::Framewright, Engine::Linux, Engine::Compact] {
        let run = move || {
            // A mark may be lost if a CPU does not answer in time.
            let config =
                few_pages(16, 4, 12, 100_000).engine(engine).but(|config| config.free_reporting = true);
            let config = config.sections([1024, 4096][thread_rng().gen_range(0..2)]);
            let world = somewhere(PAGES, CPUS).config(config).build();
            let shared = Arc::new(Shared {
                world,
                oracle: SharedOracle::new(BASE, PAGES),
                bad: Mutex::new(Vec::new()),
            });
            shuttle_team(&shared, CPUS, |shared: &Shared, n| {
                let mut mine = Mine::default();
                (0..STEPS).for_each(|_| shared.step(n, &mut mine));
                shared.end(n, mine);
            });
            let (world, allocator) = (&shared.world, shared.world.allocator());
            world.drain_all();
            for start in (0..PAGEBLOCKS).map(|n| BASE.add(n * PAGEBLOCK_PAGES)) {
                if !allocator.frames().contains(start) {
                    allocator.online(start, PAGEBLOCK_PAGES).expect("it went offline");
                }
            }
            let account = world.settled();
            assert_eq!((account.allocated, account.free + account.quarantined), (0, PAGES), "{account:?}");
            // With lists a frame that is found bad and good at the same time may count wrong.
            let is_counted = engine == Engine::Linux || allocator.hwpoisoned_pages() == account.quarantined;
            assert!(is_counted, "{account:?}, and {} bad frames", allocator.hwpoisoned_pages());
            assert_eq!((world.zone().managed_pages(), world.zone().present_pages()), (PAGES, PAGES));
            for &pfn in shared.bad.lock().expect("no thread panicked").iter() {
                let _ = world.on(0, |cpu| cpu.unpoison(pfn));
            }
            assert_eq!(world.settled().free, PAGES);
            assert!(engine == Engine::Linux || allocator.hwpoisoned_pages() == 0);
            assert_eq!(allocator.zone_snapshot(world.zone()).isolated_pageblocks, 0);
        };
        schedules(if full() { 5000 } else { 20 }, run);
    }
    let done = DONE.each_ref().map(|done| done.load(Relaxed));
    // A few schedules need not hold each.
    assert!(quick() || done.iter().all(|&done| done > 0), "a kind of call never succeeded: {done:?}");
}
