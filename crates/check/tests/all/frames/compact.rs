//! Two bits for each frame instead of a word: refusals, two frees of one block, and the limits of such an allocator.

use std::rc::Rc;
use std::sync::Arc;

use framewright_check::platform::checked::interrupt;
use framewright_check::platform::loom;
use framewright_check::prelude::*;

fn config() -> Config {
    with_engine(Engine::Compact)
}

fn spec(pages: u64, cpus: usize) -> Spec {
    Spec::one_zone(pages, cpus).config(config())
}

/// 128 bytes for the frames of a pageblock, its own 16, and six bits.
#[test]
fn a_frame_has_less_than_three_tenths_of_a_byte() {
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 1 << 28 };
    let plan = Plan::new(&[zone], &[NodeId(0)], &config()).expect("a sound configuration");
    let bytes = plan.frames * 8 + plan.pageblocks * 16 + plan.maps * 64;
    assert_eq!((plan.frames, bytes), (0, (144 << 19) + 6 * 1024 * 64));
    assert!(bytes as f64 / (1_u64 << 28) as f64 <= 0.3);
}

/// One CPU frees a block while another takes frames of the same word from the zone, and gives them back.
#[test]
fn loom_sees_no_bit_lost_where_a_free_meets_a_refill() {
    for k in [0, 2] {
        loom::model(Bounds { preemptions: 2, spins: 4 }, move || {
            let world = Arc::new(few_lists::<Loom>(64));
            let pfn = world.must_alloc(0, k);
            let free = |world: &World<Loom>| world.must_free(0, pfn, k);
            let ((), got) = loom_pair(&world, free, move |world| {
                let got = world.must_alloc(1, k);
                world.on(1, |cpu| cpu.drain());
                got
            });
            assert_eq!(world.settled().allocated, 1 << k);
            world.must_free(0, got, k);
            world.drain_all();
            assert_eq!((world.settled().free, world.allocator().free_blocks(order(6))), (64, 1));
        });
    }
}

fn few_lists<P: Platform<Pin = OwnedPin>>(pages: u64) -> World<P> {
    spec(pages, 2).slots(4).fixed(2, 4).spins(1).build()
}

/// Two ranges that meet within a pageblock, and memory that is added twice.
#[test]
fn memory_is_added_once() {
    let world: World<Plain> = spec(4096, 1).memory([(BASE, 100)]).build();
    let allocator = world.allocator();
    let add = |from, pages| allocator.add_memory(BASE.add(from), pages);
    let listed = world.on(0, |cpu| {
        let all = cpu.alloc_all(0);
        assert_eq!(all.len(), 100);
        // Free in the zone, on the list, with a caller.
        all[..98].iter().for_each(|&pfn| cpu.must_free(pfn, 0));
        cpu.drain();
        cpu.must_free(all[98], 0);
        all[98]
    });
    assert_eq!(add(listed.0 - BASE.0, 1), Err(SetupError::RangeInUse(listed)), "on a list");
    for at in 0..100 {
        assert_eq!(add(at, 1), Err(SetupError::RangeInUse(BASE.add(at))));
    }
    assert_eq!(add(99, 100), Err(SetupError::RangeInUse(BASE.add(99))));
    assert_eq!((add(100, 300), add(500, 12)), (Ok(()), Ok(())));
    assert_eq!(add(511, 1), Err(SetupError::RangeInUse(BASE.add(511))));
    let account = world.settled();
    assert_eq!((account.reserved, account.allocated + account.on_pcp + account.free), (100, 412));
    assert_eq!(add(400, 100), Ok(()));
    assert_eq!(world.settled().reserved, 0);
}

/// Memory is not added again at any moment of an allocation: also when its frame is on no list any more, and not with a
/// caller yet.
#[test]
fn memory_that_is_being_handed_out_is_not_added_again() {
    let mut moments = 0;
    loop {
        let world = Rc::new(spec(PAGEBLOCK_PAGES, 1).memory([(BASE, 300)]).build::<Checked>());
        let pfn = world.must_alloc(0, 0);
        world.must_free(0, pfn, 0);
        let shared = world.clone();
        let adds = move || assert!(shared.allocator().add_memory(pfn, 1).is_err(), "it is there");
        let (got, added) = world.on(0, |cpu| interrupt(moments, adds, || cpu.alloc(Order::ZERO, M)));
        assert_eq!((got, world.settled().allocated), (Ok(pfn), 1));
        if !added {
            break;
        }
        moments += 1;
    }
    assert!(moments > 2, "{moments} moments");
}

/// User data that no check looks at.
struct Unchecked(#[expect(dead_code, reason = "it takes room")] u64);

impl FrameUser for Unchecked {
    const CHECKED: bool = false;

    fn check(&self) -> Option<&'static str> {
        None
    }
}

/// User data without a byte, which is checked.
struct Sizeless;

impl FrameUser for Sizeless {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        None
    }
}

#[test]
fn what_needs_a_word_is_refused() {
    let refused = |config: Config| {
        let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: BASE, pages: 1024 };
        let error = Plan::new(&[zone], &[NodeId(0)], &config).expect_err("it needs words");
        assert!(matches!(error, SetupError::CompactNeeds(_)), "{error}");
        error.to_string()
    };
    refused(config().but(|config| config.poison = true));
    let has_slots = [
        std::panic::catch_unwind(|| _ = spec(1024, 1).build_with::<Plain, _>(|_| Slot::GOOD)),
        std::panic::catch_unwind(|| _ = spec(1024, 1).build_with::<Plain, _>(|_| Unchecked(0))),
        std::panic::catch_unwind(|| _ = spec(1024, 1).build_with::<Plain, _>(|_| Sizeless)),
    ];
    assert!(has_slots.iter().all(Result::is_err), "user slots have no room");
    let world: World<Plain> = spec(1024, 1).build();
    world.on(0, |cpu| {
        assert_eq!(cpu.hwpoison(BASE), Err(HwpoisonError::NoWords));
        assert_eq!(cpu.unpoison(BASE), Err(HwpoisonError::NotPoisoned));
        // No word says of a frame that it is movable.
        cpu.must_alloc_at(BASE.add(7), 0);
        let never = mover(|from, _, _| panic!("{from:?} is offered"));
        let got = cpu.alloc_contig_with(1024, 1024, M, &Helpers::NONE.with_migrate(&never));
        assert_eq!(got.map_err(|error| error.why), Err(AllocFailure::NoMemory));
    });
}

// ---- memory that is initialised when it is needed ------------------------------------------------------------------

fn lazy(engine: Engine, pages: u64) -> World<Plain> {
    let config = config().engine(engine).bare().but(|config| config.lazy_pageblocks = true);
    Spec::one_zone(pages, 1).config(config).build()
}

const BLOCKS: u64 = 12;

fn is_present(world: &World<Plain>, block: u64) -> bool {
    world.allocator().frames().info(BASE.add(block * MAX_ORDER.pages())).is_present()
}

/// All of it counts, is found and can be had, and unneeded memory is not touched.
#[test]
fn untouched_memory_is_there() {
    for engine in FORMS {
        for k in [0, 3, 9, 10] {
            let pages = BLOCKS * MAX_ORDER.pages() + 300;
            let world = lazy(engine, pages);
            let allocator = world.allocator();
            assert_eq!((world.settled().free, allocator.free_pages()), (pages, pages));
            assert_eq!(allocator.free_blocks(MAX_ORDER), BLOCKS);
            assert!(is_present(&world, 0) && !is_present(&world, 1) && !is_present(&world, BLOCKS - 1));
            let mut oracle = world.spec().oracle();
            world.on(0, |cpu| {
                let types = [M, Migratetype::Unmovable, Migratetype::Reclaimable];
                for n in 0.. {
                    let Ok(pfn) = cpu.alloc(order(k), types[n % 3]) else { break };
                    let block = Block { pfn, order: order(k) };
                    oracle.handed_out(block).expect("a block without an owner");
                    if n % 701 == 0 {
                        world.check(&oracle);
                    }
                }
            });
            world.check(&oracle);
            assert!(world.settled().free < 1 << k || k > 8, "order {k}");
            assert_eq!(world.settled().allocated >> 10, BLOCKS, "order {k}");
        }
    }
}

/// A call that names a place finds it as if it had been initialised.
#[test]
fn a_place_is_touched_when_it_is_named() {
    for engine in FORMS {
        let make = || lazy(engine, BLOCKS * MAX_ORDER.pages());
        let last = BASE.add(BLOCKS * MAX_ORDER.pages() - 1);
        let world = make();
        world.on(0, |cpu| {
            assert_eq!(cpu.free(last, Order::ZERO).expect_err("it is free").why, FreeFailure::NotAllocated);
            assert!(!is_present(&world, BLOCKS - 1), "a wrong free changes nothing");
            cpu.must_alloc_at(last, 0);
            cpu.alloc_at(last, Order::ZERO).expect_err("it is not any more");
            cpu.must_free(last, 0);
        });
        assert_eq!(world.allocator().free_blocks(MAX_ORDER), BLOCKS);
        let world = make();
        let again = world.allocator().add_memory(last, 1);
        assert_eq!(again, Err(SetupError::RangeInUse(last)));
        // Beside memory that is untouched.
        let before = BASE.add(MAX_ORDER.pages() - 24);
        assert_eq!(make().allocator().add_memory(before, 24), Err(SetupError::RangeInUse(before)));
        assert_eq!(world.allocator().isolate_pageblock(last), Some(PAGEBLOCK_PAGES));
        assert_eq!(world.allocator().unisolate_pageblock(last), Some(PAGEBLOCK_PAGES));
        let world = make();
        let range = BASE.add(3 * 1024)..BASE.add(4 * 1024 + 7);
        world.on(0, |cpu| cpu.alloc_contig_range(range.clone(), &Helpers::NONE)).expect("free");
        assert!(is_present(&world, 4) && !is_present(&world, 5));
        world.on(0, |cpu| cpu.free_contig_range(range)).expect("it is allocated");
        let start = last.block_start(PAGEBLOCK_ORDER);
        let gone = world.on(0, |cpu| cpu.offline(start..last.add(1)));
        assert_eq!(gone, Ok(PAGEBLOCK_PAGES));
        world.allocator().online(start, PAGEBLOCK_PAGES).expect("it went offline");
        assert_eq!((world.settled().free, world.allocator().free_blocks(MAX_ORDER)), (BLOCKS << 10, BLOCKS));
    }
}

/// Nothing says which blocks of a pageblock are movable. Most of a movable one is, so that an unmovable request takes a
/// block there, not the pageblock.
#[test]
fn a_movable_pageblock_stays_movable() {
    let config = config().bare();
    let world = Spec::one_zone(16 * PAGEBLOCK_PAGES, 1).config(config).plain();
    let get = |order: Order, asked| world.must_alloc_of(0, order, asked);
    (0..15).for_each(|_| _ = get(PAGEBLOCK_ORDER, M));
    (0..400).for_each(|_| _ = get(Order::ZERO, M));
    let pfn = get(Order::ZERO, Migratetype::Unmovable);
    let counts = world.counts();
    assert_eq!((counts.fallbacks, counts.steals), (1, 0));
    assert_eq!(world.allocator().frames().info(pfn).migratetype(), M);
    world.settled();
}

/// Without words: a frame on a list is not reserved because its neighbour is.
#[test]
fn a_reserved_neighbour_says_nothing_of_a_listed_frame() {
    let world = Spec::one_zone(4096, 1).memory([(BASE.add(1), 4095)]).engine(Engine::Compact).plain();
    world.on(0, |cpu| {
        cpu.must_alloc_at(BASE.add(1), 0);
        cpu.must_free(BASE.add(1), 0);
        let why = |pfn| cpu.free(pfn, Order::ZERO).expect_err("it is not allocated").why;
        assert_eq!((why(BASE.add(1)), why(BASE)), (FreeFailure::NotAllocated, FreeFailure::Reserved));
    });
}

/// Without words: of neighbours on lists of different CPUs each is on the list that is named.
#[test]
fn a_listed_frame_is_found_on_its_own_list() {
    let world = spec(4096, 3).plain();
    for (cpu, n) in [(0, 6), (1, 7), (0, 8)] {
        world.must_alloc_at(cpu, BASE.add(n), 0);
        world.must_free(cpu, BASE.add(n), 0);
    }
    for (cpu, n) in [(1, 7), (0, 6), (0, 8)] {
        let pfn = BASE.add(n);
        let why = world.on(2, |cpu| cpu.alloc_at(pfn, Order::ZERO)).expect_err("no CPU answers").why;
        assert_eq!(why, PlaceFailure::Listed { pfn, cpu: CpuId(cpu) });
    }
}
