//! Small worlds, gone through completely: every sequence of allocations, given blocks, frees and drains, judged against
//! a plain set of the blocks that callers have.

use std::collections::{BTreeMap, BTreeSet};

use framewright_check::exhaust;
use framewright_check::prelude::*;

/// Frames of a section: the fewest.
const SECTION: u64 = MAX_ORDER.pages();

/// Blocks that callers have of `pages` frames from [`BASE`] on; all others are free.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Model {
    pages: u64,
    taken: BTreeSet<Block>,
}

impl Model {
    fn has(&self, block: Block) -> bool {
        let end = |block: &Block| block.pfn.0 + block.order.pages();
        let inside = BASE <= block.pfn && end(&block) <= BASE.0 + self.pages;
        let apart = |held: &Block| end(held) <= block.pfn.0 || end(&block) <= held.pfn.0;
        block.pfn.is_aligned(block.order) && inside && self.taken.iter().all(apart)
    }

    /// The free blocks, each as large as it goes, by order.
    fn blocks(&self) -> BTreeMap<Order, Vec<Pfn>> {
        let mut blocks: BTreeMap<Order, Vec<Pfn>> = BTreeMap::new();
        let mut pfn = BASE;
        while pfn < BASE.add(self.pages) {
            let largest = Order::all().rfind(|&order| self.has(Block { pfn, order }));
            if let Some(order) = largest {
                blocks.entry(order).or_default().push(pfn);
            }
            pfn = pfn.add(largest.map_or(1, Order::pages));
        }
        blocks
    }
}

/// A call by a CPU.
#[derive(Clone, Copy, Debug)]
enum Action {
    Alloc(usize, Order, Migratetype),
    At(Block),
    Free(usize, Block),
    Drain(usize),
}

/// A world, the calls that are made there, and how many one after another.
#[derive(Clone)]
struct Small {
    spec: Spec,
    allocs: Vec<(u8, Migratetype)>,
    places: Vec<Block>,
    depth: usize,
}

impl Small {
    fn new(spec: Spec, orders: &[u8], types: &[Migratetype], depth: usize) -> Self {
        let allocs = orders.iter().flat_map(|&n| types.iter().map(move |&asked| (n, asked))).collect();
        Self { spec, allocs, places: Vec::new(), depth }
    }

    /// Every state that sequences of calls lead to. A state is what is taken and the types of pageblocks, and the order
    /// of lists where calls name their blocks. Only without per-CPU lists, whose contents are no part of it.
    fn states(&self) {
        let reached = exhaust::reach(self.depth, |path: &[Action]| {
            let mut run = Run::new(self);
            path.iter().for_each(|&action| run.make(action));
            run.judge();
            run.refuses_the_rest();
            let frames = run.world.allocator().frames();
            let pageblocks = 0..run.model.pages.div_ceil(PAGEBLOCK_PAGES);
            let types: Vec<_> =
                pageblocks.map(|n| frames.info(BASE.add(n * PAGEBLOCK_PAGES)).migratetype()).collect();
            let lists = (!self.places.is_empty()).then(|| run.world.free_lists());
            let actions = run.actions();
            ((run.model, types, lists), actions)
        });
        println!("{:?}: {reached:?}", self.spec.config.engine);
    }

    /// Every sequence of calls. In the end of each all that is free comes together again.
    fn sequences(&self) {
        let runs = exhaust::every(|choices| {
            let mut run = Run::new(self);
            for _ in 0..self.depth {
                let actions = run.actions();
                run.make(choices.pick(&actions));
                run.judge();
            }
            run.refuses_the_rest();
            run.model.taken.iter().for_each(|block| run.world.must_free(0, block.pfn, block.order));
            run.world.drain_all();
            run.model.taken.clear();
            run.judge();
        });
        println!("{:?}: {runs} sequences", self.spec.config.engine);
    }
}

struct Run<'a> {
    small: &'a Small,
    world: World<Plain>,
    model: Model,
}

impl<'a> Run<'a> {
    fn new(small: &'a Small) -> Self {
        let model = Model { pages: small.spec.pages(), taken: BTreeSet::new() };
        Self { small, world: small.spec.build(), model }
    }

    fn has_lists(&self) -> bool {
        self.small.spec.config.experiment.pcp_orders != PcpOrders::None
    }

    fn actions(&self) -> Vec<Action> {
        let Small { allocs, places, .. } = self.small;
        let mut actions: Vec<_> = places.iter().copied().map(Action::At).collect();
        for cpu in 0..self.world.allocator().cpus() {
            actions.extend(allocs.iter().map(|&(n, asked)| Action::Alloc(cpu, order(n), asked)));
            actions.extend(self.model.taken.iter().map(|&block| Action::Free(cpu, block)));
            actions.extend(self.has_lists().then_some(Action::Drain(cpu)));
        }
        actions
    }

    /// A block that is handed out is free. A given block is refused only if it is not, and without lists that hold
    /// some, any block only if none is.
    fn make(&mut self, action: Action) {
        let (world, model) = (&self.world, &mut self.model);
        match action {
            Action::Alloc(cpu, order, asked) => {
                let got = world.on(cpu, |cpu| cpu.alloc(order, asked));
                if let Ok(pfn) = got {
                    let block = Block { pfn, order };
                    assert!(model.has(block), "{action:?} got {pfn}, which is not free");
                    model.taken.insert(block);
                } else if !self.has_lists() {
                    let any = (0..self.model.pages).map(|n| Block { pfn: BASE.add(n), order });
                    assert_eq!(
                        any.into_iter().find(|&block| self.model.has(block)),
                        None,
                        "{action:?}: {got:?}"
                    );
                }
            }
            Action::At(block) => {
                let got = world.on(0, |cpu| cpu.alloc_at(block.pfn, block.order));
                assert_eq!(got.is_ok(), model.has(block), "{action:?}: {got:?}");
                if got.is_ok() {
                    model.taken.insert(block);
                }
            }
            Action::Free(cpu, block) => {
                world.must_free(cpu, block.pfn, block.order);
                assert!(model.taken.remove(&block));
            }
            Action::Drain(cpu) => world.on(cpu, |cpu| cpu.drain()),
        }
    }

    /// Each page is where the model has it: with a caller, or free in blocks as large as they go, or on a list.
    fn judge(&self) {
        let account = self.world.settled();
        let taken: u64 = self.model.taken.iter().map(|block| block.order.pages()).sum();
        assert_eq!(account.allocated, taken, "{account:?}");
        assert_eq!(account.free + account.on_pcp, self.model.pages - taken, "{account:?}");
        if account.on_pcp == 0 {
            let free = self.world.free_lists();
            for (order, blocks) in self.model.blocks() {
                let mut found: Vec<_> =
                    Migratetype::ALL.iter().flat_map(|&list| free.blocks(list, order)).copied().collect();
                found.sort_unstable();
                assert_eq!(found, blocks, "order {order}");
            }
        }
    }

    /// No free but those of the blocks that callers have is accepted, and a refused one changes nothing. Around each
    /// block and at the ends; all frames of a large zone would take too long.
    fn refuses_the_rest(&self) {
        let Model { pages, taken } = &self.model;
        let seen = || (self.world.free_lists(), self.world.allocator().totals());
        let before = seen();
        let near = taken.iter().flat_map(|block| [0, 1, block.order.pages()].map(|n| block.pfn.add(n)));
        let places: BTreeSet<Pfn> = if *pages <= 16 {
            (BASE.0 - 1..=BASE.0 + pages).map(Pfn).collect()
        } else {
            near.chain([Pfn(BASE.0 - 1), BASE, BASE.add(*pages)]).collect()
        };
        let orders: BTreeSet<Order> = self.small.allocs.iter().map(|&(n, _)| order(n)).collect();
        self.world.on(0, |cpu| {
            for (pfn, &order) in
                places.into_iter().flat_map(|pfn| orders.iter().map(move |order| (pfn, order)))
            {
                if !taken.contains(&Block { pfn, order }) {
                    assert!(cpu.free(pfn, order).is_err(), "accepted: order {order} at {pfn}");
                }
            }
        });
        assert_eq!(seen(), before, "a refused free changed something");
    }
}

/// Calls of a sequence: few in every run, more with `--full`, one less with `--quick`.
fn calls(few: usize, many: usize) -> usize {
    match () {
        () if full() => many,
        () if quick() => few - 1,
        () => few,
    }
}

fn without_lists(engine: Engine, pages: u64) -> Spec {
    Spec::one_zone(pages, 1).engine(engine).bare()
}

#[test]
fn without_lists_a_request_fails_only_if_no_block_is_free() {
    let every: [Engine; 3] = ENGINES.map(|config| config.engine);
    for engine in every {
        let zone = |pages| without_lists(engine, pages);
        Small::new(zone(16), &[0, 1, 2, 3, 4], &[M], calls(5, 10)).states();
        // Across words and pageblocks.
        Small::new(zone(PAGEBLOCK_PAGES + 200), &[0, 5, 6, 7, 8, 9], &[M], calls(4, 6)).states();
        // Types that take from each other.
        Small::new(zone(32), &[0, 1, 3], &ORDINARY, calls(4, 6)).states();
        Small::new(zone(3 * PAGEBLOCK_PAGES), &[0, 8, 9], &ORDINARY, calls(4, 5)).states();
    }
}

#[test]
fn a_given_block_is_had_if_and_only_if_it_is_free() {
    let block = |(n, k): (u64, u8)| Block { pfn: BASE.add(n), order: order(k) };
    let small = (0..5_u8).flat_map(|k| (0..16).step_by(1 << k).map(move |n| (n, k)));
    let large =
        [(0, 0), (0, 9), (0, 10), (511, 0), (512, 9), (512, 6), (576, 6), (640, 3), (1023, 0), (1024, 9)];
    let large = large.into_iter().chain([(1024, 10), (1200, 4), (1216, 5), (1024 + 511, 0), (1, 1)]);
    let small: Vec<_> = small.map(block).collect();
    let large: Vec<_> = large.map(block).collect();
    for engine in ENGINES.map(|config| config.engine) {
        for (pages, places) in [(16, &small), (1024 + 512 + 100, &large)] {
            let world = Small::new(without_lists(engine, pages), &[0], &[M], calls(3, 5));
            Small { places: places.clone(), ..world }.states();
        }
    }
}

/// A zone of three sections gives what one store would.
#[test]
fn a_request_is_refused_only_where_no_section_has_its_block() {
    for engine in FORMS {
        let zone = without_lists(engine, 3 * SECTION).sections(SECTION);
        assert_eq!(zone.plain().zone().sections(), 3);
        Small::new(zone, &[8, 9, 10], &[M, Migratetype::Unmovable], calls(4, 6)).states();
    }
}

/// Lists of two blocks: every refill, drain and free through them.
#[test]
fn with_lists_no_block_has_two_owners_and_none_is_lost() {
    let zone = |engine, cpus, orders| {
        let config = with_engine(engine).orders(orders).fixed(2, 4).slots(2).spins(0);
        Spec::one_zone(16, cpus).config(config.but(|config| config.experiment.pcp_min_refill = 2))
    };
    for engine in ENGINES.map(|config| config.engine) {
        Small::new(zone(engine, 1, PcpOrders::UpToCostly), &[0, 1, 3], &[M], calls(4, 7)).sequences();
        Small::new(zone(engine, 2, PcpOrders::UpToCostly), &[0, 2], &[M], calls(4, 6)).sequences();
    }
    // Of a zone that is one block of order 4, that block is on the list of an order that Linux has none for.
    Small::new(zone(Engine::Framewright, 1, PcpOrders::UpToHuge), &[0, 4], &[M], calls(5, 8)).sequences();
}
