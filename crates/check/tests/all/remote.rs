//! Lists that a CPU in need drains while their owner runs: no block is handed out twice, and none is lost.

use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use framewright_check::platform::loom::{self, Bounds, LoomWith, full};
use framewright_check::platform::shuttle::{self, Shuttle};
use framewright_check::prelude::*;
use framewright_check::refute::must_fail;

const O: Order = Order::ZERO;

fn world<P: Platform<Pin = OwnedPin>>(pages: u64, cpus: usize, pcp_orders: PcpOrders) -> World<P> {
    Spec::one_zone(pages, cpus).slots(4).fixed(2, 4).orders(pcp_orders).spins(1).build()
}

/// CPU 0 allocates and frees the pages of its list; each of `drainers` other CPUs drains all lists and takes a page.
fn drained_under_the_owner<const LIGHT: bool, const HEAVY: bool>(drainers: usize, preemptions: usize) {
    let executions = loom::model(Bounds { preemptions, spins: 2 }, move || {
        let world = Arc::new(world::<LoomWith<true, LIGHT, HEAVY>>(4, 1 + drainers, PcpOrders::Zero));
        world.on(0, |cpu| {
            let pages = [(); 2].map(|()| cpu.must_alloc(O));
            pages.into_iter().for_each(|pfn| cpu.must_free(pfn, O));
        });
        let threads: Vec<_> = (1..=drainers)
            .map(|n| {
                let world = world.clone();
                ::loom::thread::spawn(move || {
                    world.allocator().request_drain();
                    world.on(n, |cpu| cpu.alloc(O, M).ok())
                })
            })
            .collect();
        let mut held: Vec<Pfn> = world.on(0, |cpu| {
            let first = cpu.alloc(O, M).ok();
            let second = cpu.alloc(O, M).ok();
            first.into_iter().for_each(|pfn| cpu.must_free(pfn, O));
            second.into_iter().chain(cpu.alloc(O, M)).collect()
        });
        held.extend(threads.into_iter().filter_map(|thread| thread.join().expect("no panic")));
        held.sort_unstable();
        let all = held.len();
        held.dedup();
        assert_eq!(held.len(), all, "a page has two owners");
        assert_eq!(world.settled().allocated, all as u64);
    });
    println!("{drainers} drainers, {preemptions} preemptions: {executions} executions");
}

#[test]
fn loom_sees_no_page_with_two_owners() {
    drained_under_the_owner::<true, true>(1, if full() { 3 } else { 2 });
    if full() {
        drained_under_the_owner::<true, true>(2, 1);
    }
}

#[test]
fn loom_misses_either_half_of_the_barrier() {
    let told = ["two owners", "settled", "is allocated", "per-CPU", "list"];
    must_fail("no barrier in hits", &told, || drained_under_the_owner::<false, true>(1, 3));
    must_fail("no barrier in drains", &told, || drained_under_the_owner::<true, false>(1, 3));
}

/// Two owners allocate, free and hand over; three CPUs run out of memory again and again.
#[test]
fn shuttle_sees_every_page_accounted_for() {
    for engine in [Engine::Framewright, Engine::Compact] {
        shuttle::random(if full() { 20_000 } else { 300 }, move || {
            let config = world::<Shuttle>(64, 5, PcpOrders::UpToHuge).allocator().config().engine(engine);
            let world = Arc::new(Spec::one_zone(64, 5).config(config).build::<Shuttle>());
            let oracle = Arc::new(SharedOracle::new(BASE, 64));
            let threads: Vec<_> = (0..5)
                .map(|n| {
                    let (world, oracle) = (world.clone(), oracle.clone());
                    ::shuttle::thread::spawn(move || run(&world, &oracle, n))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            world.settled();
        });
    }
}

fn run(world: &World<Shuttle>, oracle: &SharedOracle, n: usize) {
    let mut held: Vec<Block> = Vec::new();
    for _ in 0..12 {
        let order = Order::new(thread_rng().gen_range(0..3)).expect("an order");
        let most = if n < 2 { 4 } else { 16 };
        world.on(n, |cpu| match () {
            () if held.len() < most && thread_rng().gen_ratio(2, 3) => {
                if let Ok(pfn) = cpu.alloc(order, M) {
                    oracle.handed_out(Block { pfn, order });
                    held.push(Block { pfn, order });
                }
            }
            () if held.is_empty() => world.allocator().request_drain(),
            () => {
                let block = held.swap_remove(thread_rng().gen_range(0..held.len()));
                oracle.giving_back(block);
                cpu.must_free(block.pfn, block.order);
            }
        });
    }
}

/// The protocol of `pcp/turn.rs` by hand, over one stack of frames: each part of it is needed.
mod twin {
    use core::sync::atomic::Ordering::SeqCst;
    use std::sync::Arc;

    use ::shuttle::rand::{Rng, thread_rng};
    use ::shuttle::sync::atomic::{AtomicBool, AtomicU64};
    use ::shuttle::thread;
    use framewright_check::platform::shuttle;
    use framewright_check::refute::must_fail;

    /// Part that is left out.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Without {
        Nothing,
        /// A hit does not write `inside`.
        Inside,
        /// A drain does not look at it.
        Look,
        /// A drain goes on although the owner has taken its turn away.
        Confirmation,
        /// A slow call does not wait for a drain.
        Wait,
        /// A slow call takes no turn.
        Turn,
    }

    const FREE: u64 = 0;
    const OWNER: u64 = 1;
    const ASKED: u64 = 2;
    const DRAINING: u64 = 3;
    const FRAMES: u64 = 3;

    #[derive(Default)]
    struct Twin {
        inside: AtomicU64,
        turn: AtomicU64,
        is_open: AtomicU64,
        bottom: AtomicU64,
        top: AtomicU64,
        slots: [AtomicU64; 32],
        /// By frame: whether a caller, or the zone, has it.
        taken: [AtomicBool; FRAMES as usize],
        drains: AtomicBool,
    }

    impl Twin {
        fn new() -> Self {
            let twin = Self::default();
            (0..FRAMES).for_each(|frame| twin.slots[frame as usize].store(frame, SeqCst));
            twin.top.store(FRAMES, SeqCst);
            twin.is_open.store(1, SeqCst);
            twin
        }

        /// The frame at the head, by a hit or a slow call of the owner.
        fn pop(&self, without: Without) -> Option<u64> {
            self.call(without, || {
                let top = self.top.load(SeqCst);
                (top > self.bottom.load(SeqCst)).then(|| {
                    self.top.store(top - 1, SeqCst);
                    self.slots[top as usize - 1].load(SeqCst)
                })
            })
        }

        fn push(&self, without: Without, frame: u64) {
            self.call(without, || {
                let top = self.top.load(SeqCst);
                self.slots[top as usize].store(frame, SeqCst);
                self.top.store(top + 1, SeqCst);
            });
        }

        fn call<R>(&self, without: Without, f: impl FnOnce() -> R) -> R {
            if without != Without::Inside {
                self.inside.store(1, SeqCst);
            }
            if self.is_open.load(SeqCst) == 1 {
                let result = f();
                self.inside.store(0, SeqCst);
                return result;
            }
            self.inside.store(0, SeqCst);
            loop {
                let turn = self.turn.load(SeqCst);
                let waits = turn == DRAINING && without != Without::Wait;
                let is_mine = || self.turn.compare_exchange(turn, OWNER, SeqCst, SeqCst).is_ok();
                if without == Without::Turn || (!waits && is_mine()) {
                    break;
                }
                thread::yield_now();
            }
            let result = f();
            self.is_open.store(1, SeqCst);
            if without != Without::Turn {
                self.turn.store(FREE, SeqCst);
            }
            result
        }

        /// All frames, unless the owner is in a call. One CPU at a time.
        fn drain(&self, without: Without) -> Vec<u64> {
            if self.drains.swap(true, SeqCst) {
                return Vec::new();
            }
            let mut frames = Vec::new();
            if self.turn.compare_exchange(FREE, ASKED, SeqCst, SeqCst).is_ok() {
                self.is_open.store(0, SeqCst);
                thread::yield_now();
                let is_outside = without == Without::Look || self.inside.load(SeqCst) == 0;
                let next = if is_outside { DRAINING } else { FREE };
                let confirmed = self.turn.compare_exchange(ASKED, next, SeqCst, SeqCst).is_ok();
                if is_outside && (confirmed || without == Without::Confirmation) {
                    let (bottom, top) = (self.bottom.load(SeqCst), self.top.load(SeqCst));
                    frames.extend((bottom..top).map(|place| self.slots[place as usize].load(SeqCst)));
                    self.bottom.store(top, SeqCst);
                    self.turn.store(FREE, SeqCst);
                }
            }
            self.drains.store(false, SeqCst);
            frames
        }

        fn take(&self, frame: u64) {
            assert!(!self.taken[frame as usize].swap(true, SeqCst), "two owners of frame {frame}");
        }
    }

    fn run(without: Without) {
        shuttle::random(20_000, move || {
            let twin = Arc::new(Twin::new());
            let drainers: Vec<_> = (0..2)
                .map(|_| {
                    let twin = twin.clone();
                    thread::spawn(move || twin.drain(without).into_iter().for_each(|frame| twin.take(frame)))
                })
                .collect();
            let mut held = Vec::new();
            for _ in 0..8 {
                match held.pop() {
                    Some(frame) if thread_rng().gen_ratio(1, 2) => {
                        twin.taken[frame as usize].store(false, SeqCst);
                        twin.push(without, frame);
                    }
                    frame => {
                        held.extend(frame);
                        let popped = twin.pop(without);
                        popped.into_iter().for_each(|frame| twin.take(frame));
                        held.extend(popped);
                    }
                }
            }
            drainers.into_iter().for_each(|drainer| drainer.join().expect("no panic"));
            let on_list = twin.top.load(SeqCst).saturating_sub(twin.bottom.load(SeqCst));
            let taken = twin.taken.iter().filter(|taken| taken.load(SeqCst)).count() as u64;
            assert_eq!(taken + on_list, FRAMES, "two owners, or none");
        });
    }

    #[test]
    fn no_part_of_the_protocol_can_be_left_out() {
        run(Without::Nothing);
        for without in [Without::Inside, Without::Look, Without::Confirmation, Without::Wait, Without::Turn] {
            must_fail(&format!("{without:?}"), &["two owners"], move || run(without));
        }
    }
}
