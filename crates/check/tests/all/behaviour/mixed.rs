//! Random calls of every kind on three zones with holes: all orders and types, given blocks, many together, ranges,
//! wrong frees, drains, sizes, isolation, CMA, memory that comes and goes, bad frames, reports, faults.

use framewright::fault::FaultRule;
use framewright_check::platform::plain::pass;
use framewright_check::prelude::*;

use crate::behaviour::owner::{Held, Owner};
use crate::behaviour::record::Trail;
use crate::behaviour::world::{CPUS, SPAN, look, look_at_first, three_zones};

/// Calls of one scenario.
const CALLS: u32 = 420;

pub(crate) struct Drive<'w, M: FrameUser> {
    pub(crate) owner: Owner<'w, M>,
    pub(crate) random: fastrand::Rng,
    offline: Vec<(Pfn, u64)>,
    last: Option<Block>,
}

pub(crate) fn any_order(random: &mut fastrand::Rng) -> Order {
    let n = match random.u32(0..10) {
        0..5 => 0,
        5..8 => random.u8(1..4),
        8 => random.u8(4..9),
        _ => random.u8(9..11),
    };
    order(n)
}

impl<'w, M: FrameUser> Drive<'w, M> {
    pub(crate) fn new(world: &'w World<Checked, M>, seed: u64, trail: &'w mut Trail) -> Self {
        look_at_first(world, trail);
        let random = fastrand::Rng::with_seed(seed);
        Self { owner: Owner::new(world, trail), random, offline: Vec::new(), last: None }
    }

    fn world(&self) -> &'w World<Checked, M> {
        self.owner.world
    }

    /// One call on a CPU; what it returns and touches is noted. A mover or reclaimer may be called from within.
    pub(crate) fn call<R: core::fmt::Debug>(&self, f: impl FnOnce() -> R) -> R {
        let (result, touched) = framewright_check::platform::checked::tally(f);
        let mut trail = self.owner.trail.borrow_mut();
        trail.note(&result);
        trail.add(touched);
        result
    }

    pub(crate) fn look(&self) {
        look(self.world(), &mut self.owner.trail.borrow_mut());
    }

    fn frame(&mut self) -> Pfn {
        BASE.add(self.random.u64(0..SPAN))
    }

    fn pageblock(&mut self) -> Pfn {
        BASE.add(self.random.u64(0..11) * PAGEBLOCK_PAGES)
    }

    /// A block in use; the last one in every second case.
    pub(crate) fn take_live(&mut self) -> Option<Held> {
        let mut live = self.owner.live.borrow_mut();
        if live.is_empty() {
            return None;
        }
        let n = if self.random.bool() { live.len() - 1 } else { self.random.usize(0..live.len()) };
        Some(live.remove(n))
    }

    fn any_live(&mut self) -> Option<Held> {
        let live = self.owner.live.borrow();
        (!live.is_empty()).then(|| live[self.random.usize(0..live.len())])
    }

    pub(crate) fn free(&mut self, cpu: usize, held: Held) {
        let Block { pfn, order } = held.block;
        let world = self.world();
        self.call(|| world.on(cpu, |cpu| cpu.free(pfn, order)).expect("it was owned"));
        self.last = Some(held.block);
    }

    fn alloc(&mut self, cpu: usize) {
        let (order, kind) = (any_order(&mut self.random), ORDINARY[self.random.usize(0..3)]);
        let world = self.world();
        let got = match self.random.u32(0..8) {
            0 => self.call(|| world.on(cpu, |cpu| cpu.alloc_hit(order, kind))),
            1 => self.call(|| world.on(cpu, |cpu| cpu.alloc_listed(order, kind))),
            2 => self.call(|| world.on(cpu, |cpu| cpu.alloc_hit_zeroed(order, kind))),
            3 => {
                let highest = [ZoneType::Dma, ZoneType::Dma32, ZoneType::Normal][self.random.usize(0..3)];
                self.call(|| world.on(cpu, |cpu| cpu.alloc_in(order, kind, highest))).ok()
            }
            4 => {
                let flags = [Flags::HIGH, Flags::NO_WAIT, Flags::ATOMIC, Flags::VICTIM, Flags::ZERO];
                let flags = flags[self.random.usize(0..5)];
                let request = Request::new(order, kind).with(flags);
                self.call(|| world.on(cpu, |cpu| cpu.alloc_with(&request, &Helpers::NONE))).ok()
            }
            _ => self.call(|| world.on(cpu, |cpu| cpu.alloc(order, kind))).ok(),
        };
        if let Some(pfn) = got {
            self.owner.keep(pfn, order, kind);
            self.note_content(pfn);
        }
    }

    /// Notes the content of a frame that was handed out just now, if frames have any.
    fn note_content(&self, pfn: Pfn) {
        let config = self.world().allocator().config();
        if config.poison || config.init_on_free {
            self.owner.trail.borrow_mut().note(&self.world().page(pfn));
        }
    }

    /// Many of one kind, then as many frees: refills and drains.
    fn burst(&mut self, cpu: usize) {
        let order = order([0, 0, 0, 0, 1, 2, 3, 9][self.random.usize(0..8)]);
        let (kind, count) = (ORDINARY[self.random.usize(0..3)], self.random.usize(1..260) >> order.get());
        let (world, to) = (self.world(), if self.random.bool() { cpu } else { (cpu + 1) % CPUS });
        let got: Vec<Pfn> = self
            .call(|| world.on(cpu, |cpu| (0..=count).map_while(|_| cpu.alloc(order, kind).ok()).collect()));
        let kept = if self.random.bool() { got.len() / 4 } else { 0 };
        got[..kept].iter().for_each(|&pfn| self.owner.keep(pfn, order, kind));
        let reversed = self.random.bool();
        self.call(|| {
            world.on(to, |cpu| {
                for n in kept..got.len() {
                    let n = if reversed { got.len() - 1 - (n - kept) } else { n };
                    cpu.free(got[n], order).expect("it was owned");
                }
            });
        });
    }

    fn bulk(&mut self, cpu: usize) {
        let order = order([0, 0, 0, 1, 2, 3, 4, 9][self.random.usize(0..8)]);
        let kind = ORDINARY[self.random.usize(0..3)];
        let most = if self.random.u32(0..6) == 0 { 6000 } else { 400 };
        let mut out = vec![Pfn(0); self.random.usize(0..most) >> order.get()];
        let world = self.world();
        let got = self.call(|| world.on(cpu, |cpu| cpu.alloc_bulk(order, kind, &mut out)));
        out.truncate(got);
        self.owner.trail.borrow_mut().note(&out);
        let freed = self.random.usize(0..=got);
        out[freed..].iter().for_each(|&pfn| self.owner.keep(pfn, order, kind));
        // One of them twice, and one without an owner.
        let mut blocks = out[..freed].to_vec();
        blocks.extend(blocks.first().copied());
        blocks.push(Pfn(3));
        if self.random.bool() {
            self.random.shuffle(&mut blocks);
        }
        let _ = self.call(|| world.on(cpu, |cpu| cpu.free_bulk(order, &blocks)));
    }

    fn wrong_free(&mut self, cpu: usize) {
        let any = self.any_live().map(|held| held.block);
        let block = match (self.random.u32(0..4), any) {
            (0, Some(block)) => Block { order: any_order(&mut self.random), ..block },
            (1, Some(block)) => Block { pfn: block.pfn.add(1), ..block },
            (2, _) if self.last.is_some() => self.last.expect("it is some"),
            _ => Block {
                pfn: Pfn(BASE.0 - 600 + self.random.u64(0..7000)),
                order: any_order(&mut self.random),
            },
        };
        if self.owner.live.borrow().iter().any(|held| held.block == block) {
            return;
        }
        let world = self.world();
        let hit = self.random.bool();
        if hit && self.call(|| world.on(cpu, |cpu| cpu.free_hit(block.pfn, block.order))) {
            panic!("a wrong free hit: {block:?}");
        }
        let refused = self.call(|| world.on(cpu, |cpu| cpu.free(block.pfn, block.order)));
        self.owner.trail.borrow_mut().note(&refused.expect_err("it is wrong").block_start());
    }

    fn change(&mut self, cpu: usize) {
        let (world, at) = (self.world(), self.pageblock());
        let allocator = world.allocator();
        match self.random.u32(0..14) {
            12 | 13 => {
                // Holes, what is there already, nothing, and more than the zone has.
                let (start, pages) = (self.frame(), [0, 1, 7, 64, 188, 512, 4000][self.random.usize(0..7)]);
                let start = if self.random.bool() { BASE.add(1024 + 512) } else { start };
                let _ = self.call(|| allocator.add_memory(start, pages));
            }
            0 => self.call(|| world.on(cpu, |cpu| cpu.drain())),
            1 => self.call(|| allocator.request_drain()),
            2 => {
                pass(2_000_000_000);
                self.call(|| allocator.request_tick());
            }
            3 => self.call(|| world.on(cpu, |cpu| cpu.tick())),
            4 => self.call(|| world.on(cpu, |cpu| cpu.answer())),
            5 => {
                let (batch, high_min, more) =
                    (self.random.u32(1..64), self.random.u32(0..256), self.random.u32(0..256));
                let size = Sizing { batch, high_min, high_max: high_min + more };
                let zone = ZoneId(self.random.u8(0..3));
                self.call(|| allocator.resize_pcps_of(zone, size));
            }
            6 => self.call(|| allocator.resize_pcps()),
            7 => self.call(|| allocator.resize_watermarks()),
            8 => drop(self.call(|| allocator.isolate_pageblock(at))),
            9 | 10 => drop(self.call(|| allocator.unisolate_pageblock(at))),
            _ => {
                let to = Migratetype::ALL[self.random.usize(0..Migratetype::ALL.len())];
                self.call(|| allocator.set_pageblock_type(at, to));
            }
        }
    }

    fn come_and_go(&mut self, cpu: usize) {
        let (world, start) = (self.world(), self.pageblock());
        if !self.offline.is_empty() && self.random.bool() {
            let (start, pages) = self.offline.swap_remove(self.random.usize(0..self.offline.len()));
            let _ = self.call(|| world.allocator().online(start, pages));
            return;
        }
        let zone = world.allocator().zones().iter().find(|zone| zone.spec().spans(start));
        let end = start.add(PAGEBLOCK_PAGES * self.random.u64(1..3));
        let end = zone.map_or(end, |zone| zone.spec().end().min(end));
        if let Ok(pages) = self.call(|| world.on(cpu, |cpu| cpu.offline(start..end))) {
            assert_eq!(pages, end.0 - start.0, "all of it was memory");
            self.offline.push((start, pages));
        }
    }

    fn by_place(&mut self, cpu: usize) {
        let (world, pfn) = (self.world(), self.frame());
        let order = any_order(&mut self.random);
        match self.random.u32(0..4) {
            0 | 1 => {
                let pfn = if self.random.u32(0..8) > 0 { pfn.block_start(order) } else { pfn };
                if self.call(|| world.on(cpu, |cpu| cpu.alloc_at(pfn, order))).is_ok() {
                    self.owner.keep(pfn, order, Migratetype::Unmovable);
                }
            }
            2 => {
                let mut out = vec![(Pfn(0), Order::ZERO); self.random.usize(0..20)];
                let got = self.call(|| world.on(cpu, |cpu| cpu.take_free(pfn, order, &mut out)));
                for &(pfn, order) in &out[..got] {
                    self.owner.trail.borrow_mut().note(&(pfn, order));
                    self.owner.keep(pfn, order, Migratetype::Unmovable);
                }
            }
            _ => {
                let range = pfn..pfn.add(self.random.u64(0..900));
                let helpers = Helpers::NONE.with_migrate(&self.owner);
                let got = self.call(|| world.on(cpu, |cpu| cpu.alloc_contig_range(range.clone(), &helpers)));
                if got.is_ok() {
                    self.look();
                    self.call(|| world.on(cpu, |cpu| cpu.free_contig_range(range)))
                        .expect("it was allocated so");
                }
            }
        }
    }

    fn rest(&mut self, cpu: usize) {
        let (world, pfn, order) = (self.world(), self.frame(), any_order(&mut self.random));
        match self.random.u32(0..6) {
            0 => drop(self.call(|| world.on(cpu, |cpu| cpu.hwpoison(pfn)))),
            1 => drop(self.call(|| world.on(cpu, |cpu| cpu.unpoison(pfn)))),
            2 => {
                let report = |blocks: &[(Pfn, Order)]| {
                    self.owner.trail.borrow_mut().note(&blocks);
                    blocks.len() % 2 == 1
                };
                self.call(|| world.on(cpu, |cpu| cpu.report_free(order, report)));
            }
            3 => {
                let rule = match self.random.u32(0..3) {
                    0 => None,
                    1 => Some(FaultRule {
                        orders: u16::MAX << order.get(),
                        times: Some(2),
                        ..FaultRule::nth(3)
                    }),
                    _ => Some(FaultRule::share(30, 7)),
                };
                self.call(|| world.allocator().inject(rule.as_ref()));
            }
            4 => drop(self.call(|| world.on(cpu, |cpu| cpu.compact(ZoneId(cpu.id().0 as u8), &self.owner)))),
            _ => self.split(cpu),
        }
    }

    #[expect(unsafe_code, reason = "the caller of split vouches for owning it")]
    fn split(&mut self, cpu: usize) {
        let world = self.world();
        let Some(Held { block: Block { pfn, order: from }, kind }) = self.take_live() else { return };
        let to = any_order(&mut self.random);
        // SAFETY: it was owned, and no other thread is at work.
        match self.call(|| world.on(cpu, |cpu| unsafe { cpu.split(pfn, from, to) })) {
            Ok(()) => {
                for n in 0..1 << (from.get() - to.get()) {
                    self.owner.keep(pfn.add(n << to.get()), to, kind);
                }
            }
            Err(_) => self.owner.keep(pfn, from, kind),
        }
    }

    fn step(&mut self) {
        let cpu = self.random.usize(0..CPUS);
        match self.random.u32(0..100) {
            0..34 => self.alloc(cpu),
            34..58 => {
                if let Some(held) = self.take_live() {
                    self.free(cpu, held);
                }
            }
            58..63 => self.wrong_free(cpu),
            63..72 => self.change(cpu),
            72..76 => self.come_and_go(cpu),
            76..84 => self.by_place(cpu),
            84..90 => self.rest(cpu),
            90..94 => self.bulk(cpu),
            _ => self.burst(cpu),
        }
    }

    /// All that is allocated is freed, and what was changed is as before.
    fn end(mut self) {
        let world = self.world();
        let allocator = world.allocator();
        let _ = allocator.inject(None);
        for (start, pages) in core::mem::take(&mut self.offline) {
            let _ = self.call(|| allocator.online(start, pages));
        }
        while let Some(held) = self.take_live() {
            self.free(0, held);
        }
        self.look();
        (0..CPUS).for_each(|cpu| self.call(|| world.on(cpu, |cpu| cpu.drain())));
        for n in 0..11 {
            allocator.unisolate_pageblock(BASE.add(n * PAGEBLOCK_PAGES));
        }
        self.look();
    }
}

pub(crate) fn run(config: Config, seed: u64, trail: &mut Trail) {
    run_in(&three_zones(config).build(), seed, trail);
}

pub(crate) fn checked(config: Config, seed: u64, trail: &mut Trail) {
    run_in(&three_zones(config).build_with(|pfn| Slot::bad((pfn.0 + 5).is_multiple_of(97))), seed, trail);
}

fn run_in<M: FrameUser>(world: &World<Checked, M>, seed: u64, trail: &mut Trail) {
    let mut drive = Drive::new(world, seed, trail);
    for n in 0..CALLS {
        drive.step();
        if n % 24 == 0 {
            drive.look();
        }
    }
    drive.end();
    // Frames of a node that does not exist are asked for, too.
    trail.note(&world.on(0, |cpu| {
        let request = Request::new(Order::ZERO, Migratetype::Movable);
        let nowhere = framewright::policy::nodes::NodePolicy::Preferred(NodeId(9));
        cpu.alloc_with(&request.on(nowhere), &Helpers::NONE)
    }));
}
