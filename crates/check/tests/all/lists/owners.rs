//! A frame that changes owner through the allocator: the CPU that gets it is its only owner, and what the last owner
//! wrote to it happens before. loom; the payload of each frame is a cell that its owner alone touches.

use std::sync::Arc as StdArc;

use framewright_check::platform::loom;
use framewright_check::prelude::*;
use framewright_check::refute;

const BOUNDS: Bounds = Bounds { preemptions: 2, spins: 8 };

const PAGES: u64 = 4;

/// Small lists of order 0: what loom can go through.
fn config(lock_kind: LockKind) -> Config {
    few_pages(4, 2, 4, 1).but(|config| config.experiment.lock_kind = lock_kind)
}

/// Four frames, two CPUs, and what the frames' owners write.
struct Owners {
    world: World<Loom>,
    payload: Payload<Loom>,
}

impl Owners {
    fn new(config: Config) -> StdArc<Self> {
        let world = Spec::one_zone(PAGES, 2).config(config).build();
        StdArc::new(Self { world, payload: Payload::new(BASE, PAGES) })
    }

    /// Allocates a frame on `cpu` and writes to it, if there is one.
    fn try_get(&self, cpu: usize) -> Option<Block> {
        let pfn = self.world.on(cpu, |cpu| cpu.alloc(Order::ZERO, M)).ok()?;
        let block = Block { pfn, order: Order::ZERO };
        self.payload.enter(block, 1);
        Some(block)
    }

    fn get(&self, cpu: usize) -> Block {
        self.try_get(cpu).expect("memory is left")
    }

    fn put(&self, cpu: usize, block: Block) {
        self.payload.leave(block, 1);
        self.world.must_free(cpu, block.pfn, block.order);
    }

    fn drain(&self, cpu: usize) {
        self.world.on(cpu, |cpu| cpu.drain());
    }

    /// All is still, and every page is where it should be.
    fn account_for(&self, live: u64) {
        let account = self.world.settled();
        assert_eq!(account.allocated, live, "{account:?}");
        assert_eq!(account.free + account.on_pcp, PAGES - live, "{account:?}");
    }
}

/// Runs `there` on another thread while `here` runs, after `before`; both get what `before` returned. `live`
/// blocks are out at the end, all told.
fn model<T: Copy + Send + 'static>(
    name: &str,
    bounds: Bounds,
    before: impl Fn(&Owners) -> T + Send + Sync + 'static,
    here: impl Fn(&Owners, T) -> u64 + Send + Sync + 'static,
    there: impl Fn(&Owners, T) -> u64 + Copy + Send + Sync + 'static,
) {
    let parts = StdArc::new((before, here));
    for lock_kind in [LockKind::Ticket, LockKind::Queued] {
        let parts = parts.clone();
        let executions = loom::model(bounds, move || {
            let owners = Owners::new(config(lock_kind));
            let given = parts.0(&owners);
            let others = owners.clone();
            let thread = ::loom::thread::spawn(move || there(&others, given));
            let mine = parts.1(&owners, given);
            let theirs = thread.join().expect("the thread did not panic");
            owners.account_for(mine + theirs);
        });
        println!("{name}, {lock_kind:?}: {executions} executions");
    }
}

#[test]
fn two_cpus_refill_from_one_zone() {
    let get_two = |cpu| {
        move |owners: &Owners, ()| {
            owners.get(cpu);
            owners.get(cpu);
            2
        }
    };
    model("refill, refill", BOUNDS.widened_if_full(), |_| (), get_two(0), get_two(1));
}

/// Runs leave the zone under its lock, and their head words are written afterwards: no other CPU gets one of their
/// frames, and what another CPU frees may be in a run.
#[test]
fn one_cpu_takes_runs_while_another_frees_and_allocates() {
    model(
        "runs, drain and refill",
        BOUNDS.widened_if_full(),
        |owners| owners.get(1),
        |owners, _| {
            let mut out = [const { Pfn(0)..Pfn(0) }; 2];
            let runs = owners.world.on(0, |cpu| cpu.alloc_runs(2, M, &mut out).to_vec());
            let frames: Vec<_> = runs.into_iter().flat_map(|run| run.start.0..run.end.0).map(Pfn).collect();
            for &pfn in &frames {
                owners.payload.enter(Block { pfn, order: Order::ZERO }, 1);
            }
            frames.len() as u64
        },
        |owners, block| {
            owners.put(1, block);
            owners.drain(1);
            owners.get(1);
            1
        },
    );
}

#[test]
fn one_cpu_drains_what_another_needs() {
    model(
        "drain, refill",
        BOUNDS.widened_if_full(),
        |owners| {
            // Written to, and back on CPU 0's list.
            let blocks = [owners.get(0), owners.get(0)];
            blocks.into_iter().for_each(|block| owners.put(0, block));
        },
        |owners, ()| {
            owners.drain(0);
            0
        },
        |owners, ()| (0..PAGES).map_while(|_| owners.try_get(1)).count() as u64,
    );
}

#[test]
fn a_drain_request_is_answered_at_the_next_call() {
    // With two preemptions it takes a minute.
    let bounds = if full() { BOUNDS.widened_if_full() } else { Bounds { preemptions: 1, ..BOUNDS } };
    model(
        "request, call",
        bounds,
        |owners| {
            let blocks = [owners.get(0), owners.get(0)];
            owners.put(0, blocks[1]);
            blocks[0]
        },
        // A free, and then an allocation, that find the request or do not.
        |owners, block| {
            owners.put(0, block);
            u64::from(owners.try_get(0).is_some())
        },
        // Three frames are two more than the zone has: the third is asked of CPU 0.
        |owners, _| (0..3).map_while(|_| owners.try_get(1)).count() as u64,
    );
}

#[test]
fn a_cpu_that_leaves_answers_what_it_was_asked() {
    model(
        "request, leave",
        BOUNDS.widened_if_full(),
        |owners| {
            let blocks = [owners.get(0), owners.get(0)];
            blocks.into_iter().for_each(|block| owners.put(0, block));
        },
        |owners, ()| {
            owners.drain(0);
            assert_eq!(owners.world.pcp(0).count(), 0);
            0
        },
        |owners, ()| {
            owners.world.allocator().request_drain();
            u64::from(owners.try_get(1).is_some())
        },
    );
}

#[test]
fn a_frame_freed_on_another_cpu_is_allocated_there() {
    model(
        "free there, allocate there",
        BOUNDS.widened_if_full(),
        |owners| owners.get(0),
        // The first CPU goes on with its own list, in whose storage the frame once was.
        |owners, _| {
            let block = owners.get(0);
            owners.put(0, block);
            owners.get(0);
            1
        },
        |owners, block| {
            owners.put(1, block);
            assert_eq!(owners.get(1), block, "last in, first out");
            1
        },
    );
}

#[test]
fn a_frame_comes_back_to_the_first_cpu_through_the_zone() {
    model(
        "free there, drain, refill",
        BOUNDS.widened_if_full(),
        // Nothing else is left.
        |owners| [(); PAGES as usize].map(|()| owners.get(0))[0],
        |owners, _| PAGES - 1 + u64::from(owners.try_get(0).is_some()),
        |owners, block| {
            owners.put(1, block);
            owners.drain(1);
            0
        },
    );
}

/// The one mistake that may slip through is seen by these models: two CPUs free the same frame at one instant, and it
/// last sat on the list of one of them.
#[test]
fn two_frees_at_once_are_found() {
    let expected =
        ["bears mark", "causality violation", "Causality violation", "per-CPU list", "blocks overlap"];
    refute::must_fail("two CPUs free a frame at once", &expected, || {
        loom::model(BOUNDS, || {
            let owners = Owners::new(config(LockKind::Queued));
            let block = owners.get(0);
            owners.payload.leave(block, 1);
            let others = owners.clone();
            let free_and_get = move |owners: &Owners, cpu: usize| {
                let freed = owners.world.on(cpu, |cpu| cpu.free(block.pfn, block.order)).is_ok();
                if freed {
                    owners.get(cpu);
                }
            };
            let thread = ::loom::thread::spawn(move || free_and_get(&others, 1));
            free_and_get(&owners, 0);
            thread.join().expect("the thread did not panic");
            owners.world.settled();
        });
    });
}

/// Two CPUs free the same block at one instant: one of them is refused. With words that holds only if the block last
/// sat on the list of neither; with two bits it always does.
#[test]
fn one_of_two_frees_at_once_is_refused() {
    let two_bits = few_pages(4, 2, 4, 1).engine(Engine::Compact).orders(PcpOrders::UpToHuge);
    for (config, pages, k) in
        [(config(LockKind::Queued), PAGES, 0), (two_bits, 8, 0), (two_bits, 8, 1), (two_bits, 8, 2)]
    {
        loom::model(BOUNDS, move || {
            let cpus = if config.engine == Engine::Compact { 2 } else { 3 };
            let world = StdArc::new(Spec::one_zone(pages, cpus).config(config).build::<Loom>());
            let block = world.must_alloc(if cpus == 3 { 2 } else { 0 }, k);
            let free = move |world: &World<Loom>, cpu| world.on(cpu, |cpu| cpu.free(block, order(k))).is_ok();
            let (mine, theirs) = loom_pair(&world, |world| free(world, 0), move |world| free(world, 1));
            assert!(mine != theirs, "order {k}: freed by {} CPUs", u8::from(mine) + u8::from(theirs));
            assert_eq!(world.settled().allocated, 0);
        });
    }
}
