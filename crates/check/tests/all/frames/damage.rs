//! Damage of maps, bins and links: counted once, mended where possible, and sound memory stays usable.

use framewright_check::prelude::*;
use heads::open;

/// Pageblocks without per-CPU lists.
fn world(engine: Engine, pageblocks: u64) -> World<Plain> {
    Spec::one_zone(pageblocks * PAGEBLOCK_PAGES, 1).engine(engine).bare().build()
}

/// A frame whose bit is set although a caller has it: freed, it is counted as refused, and free once.
#[test]
fn a_bit_that_is_set_already_is_not_counted_twice() {
    // Freed past the lists, and from one of them.
    let ways = [PcpOrders::None, PcpOrders::UpToHuge];
    let blocks = [(5, 0), (0, 0), (63, 0), (4, 1), (32, 5), (128, 6)];
    for (pcp_orders, (at, n)) in ways.into_iter().flat_map(|way| blocks.map(|block| (way, block))) {
        let world = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).orders(pcp_orders).plain();
        for (at, n) in [(at, n), (300, 0)] {
            world.must_alloc_at(0, BASE.add(at), n);
        }
        let word = (at / 64) as usize;
        world.corrupt(Spot::MapWord(BASE, word), world.word(Spot::MapWord(BASE, word)) | 1 << (at % 64));
        let before = world.zone().free_pages();
        world.must_free(0, BASE.add(at), n);
        world.on(0, |cpu| cpu.drain());
        let pages = order(n).pages();
        assert_eq!(world.counts().refused_pages, 1, "frame {at}, order {n}, {pcp_orders:?}");
        assert_eq!(world.zone().free_pages(), before + pages - 1);
        let frames = if pages < 64 { (1 << pages) - 1 } else { u64::MAX } << (at % 64);
        let bits = world.word(Spot::MapWord(BASE, word));
        assert_eq!(bits & frames, frames, "all of it is free");
    }
}

/// A head word is damaged while one frame or two of its pageblock are with callers, and frames come back. What it says
/// of their number and of its neighbours does not matter: the pageblock is a free block when its map says so, no
/// sooner, and bins whose links are wrong are made again.
#[test]
fn a_pageblock_is_free_when_its_map_says_so() {
    // Frames out, frames that come back, what the head word says is free, whether its links are right, bins made anew.
    for (out, back, free, links, rebuilt) in [
        (1, 1, 511, false, Some(1)),
        (1, 1, 1023, true, Some(1)),
        (2, 2, 1023, true, Some(1)),
        (2, 1, 511, true, None),
        (2, 1, 511, false, None),
    ] {
        let world = world(Engine::Framewright, 2);
        let frames: Vec<_> = (0..out).map(|_| world.must_alloc(0, 0)).collect();
        let start = frames[0].block_start(PAGEBLOCK_ORDER);
        let me = (start.0 - BASE.0) / PAGEBLOCK_PAGES;
        let link = if links { me } else { 1 - me };
        world.corrupt(Spot::PageblockHead(start), open(free, 8, link, link));
        for (n, &pfn) in frames[..back].iter().enumerate() {
            world.must_free(0, pfn, 0);
            let counts = world.counts();
            assert!(
                rebuilt.is_none_or(|rebuilt| counts.rebuilt_bins == rebuilt),
                "{n} of {back}: {counts:?}"
            );
        }
        assert_eq!(world.allocator().free_blocks(MAX_ORDER), u64::from(back == out));
        let all = world.alloc_all(0, 0);
        assert!(frames[back..].iter().all(|pfn| !all.contains(pfn)), "it is with a caller");
        assert_eq!(all.len(), 2 * PAGEBLOCK_PAGES as usize - (out - back));
    }
}

/// A bit too many, and the map is full while the head word still counts a frame that is not: a free block all the same.
#[test]
fn a_map_that_fills_too_early_closes_its_pageblock() {
    let world = world(Engine::Framewright, 2);
    let [first, second] = [(); 2].map(|()| world.must_alloc(0, 0));
    let start = first.block_start(PAGEBLOCK_ORDER);
    assert_eq!(second.block_start(PAGEBLOCK_ORDER), start);
    let word = (second.0 % PAGEBLOCK_PAGES / 64) as usize;
    let bits = world.word(Spot::MapWord(start, word));
    world.corrupt(Spot::MapWord(start, word), bits | 1 << (second.0 % 64));
    world.must_free(0, first, 0);
    assert_eq!(world.allocator().free_blocks(MAX_ORDER), 1);
    assert_eq!(world.zone().free_pages(), 2 * PAGEBLOCK_PAGES - 1);
}

/// Bins that are made again: a pageblock whose head counts free frames and that has none does not count them any more.
#[test]
fn bins_that_are_made_anew_leave_nothing_stale() {
    let world = world(Engine::Framewright, 3);
    let blocks = [(); 3].map(|()| world.must_alloc(0, 9));
    let full = blocks[0];
    world.must_free(0, blocks[1], 9);
    world.must_free(0, blocks[2], 9);
    world.on(0, |cpu| {
        // The block is many now, each of which is taken.
        #[expect(unsafe_code, reason = "the block is the test's")]
        // SAFETY: it was just allocated, and no other thread has it.
        unsafe { cpu.split(full, order(9), Order::ZERO) }.expect("it is allocated");
    });
    let second = world.must_alloc(0, 0);
    let start = second.block_start(PAGEBLOCK_ORDER);
    world.corrupt(Spot::PageblockHead(full), open(5, 0, 7, 7));
    world.corrupt(Spot::PageblockHead(start), open(511, 8, 1, 2));
    world.must_free(0, second, 0);
    assert_eq!(world.counts().rebuilt_bins, 1);
    world.must_free(0, full.add(9), 0);
    assert_eq!(world.settled().free, 2 * PAGEBLOCK_PAGES + 1);
    assert_eq!(world.counts().rebuilt_bins, 1);
}

/// A steal that finds nothing where the list says is none.
#[test]
fn a_steal_from_a_damaged_list_is_not_counted() {
    let world = world(Engine::Linux, 2);
    let [huge, _] = [9, 0].map(|n| world.must_alloc(0, n));
    let second = huge.buddy(PAGEBLOCK_ORDER);
    assert_eq!(world.allocator().free_blocks(order(8)), 1);
    // The largest free block would be in the pageblock that is taken as a whole.
    world.corrupt(Spot::First(order(8), M), huge.0 - BASE.0);
    world.corrupt(Spot::Last(order(8), M), huge.0 - BASE.0);
    let before = world.counts();
    let pfn = world.must_alloc_of(0, 0, Migratetype::Unmovable);
    assert_eq!(pfn.block_start(PAGEBLOCK_ORDER), second);
    let after = world.counts();
    assert_eq!((after.fallbacks - before.fallbacks, after.steals - before.steals), (2, 1));
}

/// The head word of a free block in the middle of a list says something else of its list, or of the block before it: a
/// CPU that takes that block finds it. The list is given up, and what was on it is out of use and counted.
#[test]
fn a_list_whose_links_do_not_agree_is_given_up() {
    for (damaged, lost) in [(heads::free(0, M, 2, 0), 5), (heads::free(0, Migratetype::Cma, 2, 6), 4)] {
        let world = world(Engine::Linux, 2);
        let frame = |n| BASE.add(n);
        assert_eq!(world.alloc_all(0, 0).len() as u64, 2 * PAGEBLOCK_PAGES);
        // The list has 8, 6, 4, 2, 0.
        [0, 2, 4, 6, 8].into_iter().for_each(|n| world.must_free(0, frame(n), 0));
        assert_eq!(world.corrupt(Spot::Head(frame(4)), damaged), heads::free(0, M, 2, 6));
        world.on(0, |cpu| cpu.alloc_at(frame(6), Order::ZERO)).expect_err("its list is damaged");
        let snapshot = world.allocator().zone_snapshot(world.zone());
        assert_eq!((snapshot.counts.damaged_pages, snapshot.nr_free[0]), (lost, 5 - lost));
        assert_eq!((snapshot.free, world.alloc_all(0, 0)), (5 - lost, vec![]));
    }
}

/// A range of two blocks, of which the second cannot be unlinked: the first one is free again.
#[test]
fn what_was_taken_before_the_damage_goes_back() {
    for engine in STORES {
        let world = world(engine, 2);
        let upper = BASE.add(PAGEBLOCK_PAGES);
        // Two free blocks that do not merge.
        world.allocator().set_pageblock_type(upper, Migratetype::Cma);
        assert_eq!(world.allocator().free_blocks(PAGEBLOCK_ORDER), 2);
        if engine == Engine::Framewright {
            world.corrupt(Spot::Whole(Migratetype::Cma, 0), 0);
        } else {
            world.corrupt(Spot::First(PAGEBLOCK_ORDER, Migratetype::Cma), 0);
            world.corrupt(Spot::Last(PAGEBLOCK_ORDER, Migratetype::Cma), 0);
        }
        world.on(0, |cpu| cpu.alloc_at(BASE, MAX_ORDER)).expect_err("half of it cannot be taken");
        assert_eq!(world.zone().free_pages(), PAGEBLOCK_PAGES, "{engine:?}");
        assert_eq!(world.on(0, |cpu| cpu.alloc_at(BASE, PAGEBLOCK_ORDER)), Ok(()));
        assert_eq!(world.zone().free_pages(), 0);
    }
}

/// A pageblock that its bit calls free, and its head word does not: no CPU gets it, and the others are had. As a
/// single, and as half of a pair, for each order.
#[test]
fn a_free_pageblock_that_does_not_say_so_is_out_of_use() {
    for (block, asked, pageblocks) in [0, 1, 2].into_iter().flat_map(|block| {
        [0, 9, 10].into_iter().flat_map(move |asked| [3, 4].map(move |pageblocks| (block, asked, pageblocks)))
    }) {
        let world = world(Engine::Framewright, pageblocks);
        let bad = BASE.add(block * PAGEBLOCK_PAGES);
        // As after a free by a caller that did not own it: taken, of order 0.
        world.corrupt(Spot::PageblockHead(bad), 1 << 55);
        world.allocator().verify().expect_err("it does not say what its bit says");
        let got = world.alloc_all(0, asked);
        assert!(got.iter().all(|pfn| bad.0.wrapping_sub(pfn.0) >= order(asked).pages()), "{bad:?}: {got:?}");
        let rest = (pageblocks - 1) * PAGEBLOCK_PAGES / order(asked).pages();
        let broken = u64::from(asked == 10 && block < 2 && pageblocks == 3);
        assert_eq!(got.len() as u64, rest - broken, "{block} of {pageblocks}, order {asked}");
        got.into_iter().for_each(|pfn| world.must_free(0, pfn, asked));
        // No search looks for pairs where there are none.
        let looked = asked < 10 || block / 2 < pageblocks / 2;
        let lost = if looked { PAGEBLOCK_PAGES } else { 0 };
        assert_eq!(world.counts().damaged_pages, lost, "{block} of {pageblocks}, order {asked}");
        let free = pageblocks * PAGEBLOCK_PAGES - lost;
        assert_eq!(world.zone().free_pages(), free, "{block} of {pageblocks}, order {asked}");
    }
}

/// Both halves of a pair: neither is handed out, the other pair is.
#[test]
fn a_pair_of_which_both_halves_do_not_say_so_is_out_of_use() {
    for asked in [0, 9, 10] {
        let world = world(Engine::Framewright, 4);
        for bad in [BASE, BASE.add(PAGEBLOCK_PAGES)] {
            world.corrupt(Spot::PageblockHead(bad), 1 << 55);
        }
        let got = world.alloc_all(0, asked);
        assert!(got.iter().all(|pfn| *pfn >= BASE.add(2 * PAGEBLOCK_PAGES)), "order {asked}: {got:?}");
        assert_eq!(got.len() as u64, 2 * PAGEBLOCK_PAGES / order(asked).pages(), "order {asked}");
        assert_eq!(world.counts().damaged_pages, 2 * PAGEBLOCK_PAGES, "order {asked}");
        assert_eq!(world.zone().free_pages(), 0, "order {asked}");
    }
}

/// Two buddies of different types, of which one is damaged: a request for both does not look endlessly.
#[test]
fn a_damaged_half_of_two_types_is_looked_at_once() {
    for half in 0..2 {
        for asked in [M, Migratetype::Unmovable, Migratetype::Reclaimable] {
            let world = world(Engine::Framewright, 2);
            world.allocator().set_pageblock_type(BASE, Migratetype::Unmovable);
            assert_eq!(world.allocator().free_blocks(MAX_ORDER), 1);
            let bad = BASE.add(half * PAGEBLOCK_PAGES);
            world.corrupt(Spot::PageblockHead(bad), 0);
            world.on(0, |cpu| cpu.alloc(MAX_ORDER, asked)).expect_err("half of it is damaged");
            let second = world.on(0, |cpu| cpu.alloc(PAGEBLOCK_ORDER, asked));
            assert_eq!(second, Ok(bad.buddy(PAGEBLOCK_ORDER)), "{half}, {asked}");
            assert_eq!(world.counts().damaged_pages, PAGEBLOCK_PAGES, "{half}, {asked}");
            assert_eq!(world.zone().free_pages(), 0);
        }
    }
}

/// Two free buddies of different types are one block for a request of order 10, and keep their types for others.
#[test]
fn two_types_make_one_block_when_no_pair_is_left() {
    let world = world(Engine::Framewright, 4);
    world.allocator().set_pageblock_type(BASE, Migratetype::Unmovable);
    assert_eq!(world.allocator().free_blocks(MAX_ORDER), 2);
    let first = world.must_alloc(0, 10);
    assert_eq!(first, BASE.add(MAX_ORDER.pages()), "a pair goes first");
    let second = world.must_alloc(0, 10);
    assert_eq!((second, world.allocator().frames().info(BASE).migratetype()), (BASE, M));
    world.must_free(0, second, 10);
    world.allocator().set_pageblock_type(BASE, Migratetype::Unmovable);
    assert_eq!(world.must_alloc(0, 9), BASE.add(PAGEBLOCK_PAGES));
    assert_eq!(world.must_alloc_of(0, 9, Migratetype::Unmovable), BASE);
}

/// A single, and two buddies of different types, in the 65th word of the bitmaps alone.
#[test]
fn free_pageblocks_far_from_the_start_are_found() {
    const PAGEBLOCKS: u64 = 64 * 64 + 3;
    let world = world(Engine::Framewright, PAGEBLOCKS);
    let (pair, last) =
        (BASE.add((PAGEBLOCKS - 3) * PAGEBLOCK_PAGES), BASE.add((PAGEBLOCKS - 1) * PAGEBLOCK_PAGES));
    assert_eq!(world.alloc_all(0, PAGEBLOCK_ORDER).len() as u64, PAGEBLOCKS);
    world.must_free(0, last, 9);
    assert_eq!(world.must_alloc(0, 9), last);
    [pair, pair.add(PAGEBLOCK_PAGES)].iter().for_each(|&pfn| world.must_free(0, pfn, 9));
    world.allocator().set_pageblock_type(pair, Migratetype::Unmovable);
    assert_eq!(world.must_alloc(0, 10), pair);
}

/// A pageblock whose bit is gone, and bits of those that a caller has or that there are not: nothing is handed out
/// twice.
#[test]
fn a_bit_of_a_free_pageblock_that_is_wrong_hands_nothing_out_twice() {
    for value in 0..128 {
        let world = world(Engine::Framewright, 4);
        let held = [(); 2].map(|()| world.must_alloc(0, 9));
        assert_eq!(world.corrupt(Spot::Whole(M, 0), value), 0b1100);
        assert_eq!(world.allocator().verify().is_ok(), value == 0b1100, "{value:#x}");
        let mut all: Vec<_> = held.to_vec();
        while let Ok(pfn) = world.on(0, |cpu| cpu.alloc(PAGEBLOCK_ORDER, M)) {
            assert!(!all.contains(&pfn), "{value:#x}: {pfn} was handed out twice");
            all.push(pfn);
        }
        assert_eq!(all.len() as u32, 2 + (value & 0b1100_u64).count_ones(), "{value:#x}");
        all.into_iter().for_each(|pfn| world.must_free(0, pfn, 9));
    }
}

/// Three pageblocks in one bin, of which one says something else of a neighbour: the CPU that takes it out of the bin
/// finds that, with any wrong link, and makes the bins again.
#[test]
fn a_wrong_link_is_found_by_the_cpu_that_follows_it() {
    const LINKS: u64 = (1 << 38) - 1;
    let open = || {
        let world = world(Engine::Framewright, 4);
        for n in 0..3 {
            world.must_alloc_at(0, BASE.add(n * PAGEBLOCK_PAGES), 0);
        }
        world
    };
    for me in 0..3 {
        let start = BASE.add(me * PAGEBLOCK_PAGES);
        for (next, prev) in (0..5).flat_map(|next| (0..5).map(move |prev| (next, prev))) {
            let world = open();
            let head = world.word(Spot::PageblockHead(start));
            let damaged = head & !LINKS | prev << 19 | next;
            world.corrupt(Spot::PageblockHead(start), damaged);
            world.must_alloc_at(0, start.add(256), 8);
            assert_eq!(world.counts().rebuilt_bins, u64::from(head != damaged), "{me}: {next}, {prev}");
            assert_eq!(world.settled().free, 4 * PAGEBLOCK_PAGES - 3 - 256);
        }
    }
}

/// A pageblock whose head word promises what its map has not.
#[test]
fn a_promise_that_the_map_does_not_keep_is_found() {
    let world = world(Engine::Framewright, 2);
    let start = world.must_alloc(0, 0).block_start(PAGEBLOCK_ORDER);
    (0..8).for_each(|n| {
        world.corrupt(Spot::MapWord(start, n), 0);
    });
    let pfn = world.must_alloc(0, 3);
    assert_ne!(pfn.block_start(PAGEBLOCK_ORDER), start);
    assert_eq!(world.counts().rebuilt_bins, 1);
}

/// Frames that are freed together.
#[test]
fn a_bit_that_is_set_already_is_not_counted_twice_in_a_bulk() {
    let world = world(Engine::Framewright, 2);
    let frames = [5, 9, 20, 300].map(|n| BASE.add(n));
    world.on(0, |cpu| frames.iter().for_each(|&pfn| cpu.must_alloc_at(pfn, 0)));
    let word = Spot::MapWord(BASE, 0);
    world.corrupt(word, world.word(word) | 1 << 9);
    let before = world.zone().free_pages();
    assert_eq!(world.on(0, |cpu| cpu.free_bulk(Order::ZERO, &frames[..3])), Ok(()));
    assert_eq!((world.counts().refused_pages, world.zone().free_pages()), (1, before + 2));
    assert_eq!(world.word(word), u64::MAX);
}

/// A frame whose head word says nothing any more, in a pageblock whose first frame was never added: it is that frame
/// which is not free, not the one before it.
#[test]
fn a_frame_of_no_block_is_named_itself() {
    for engine in STORES {
        let memory = [(BASE.add(1), PAGEBLOCK_PAGES - 1)];
        let world = Spec::one_zone(PAGEBLOCK_PAGES, 1).memory(memory).engine(engine).bare().plain();
        let pfn = BASE.add(1);
        world.must_alloc_at(0, pfn, 0);
        world.corrupt(Spot::Head(pfn), 0);
        let why = world.on(0, |cpu| cpu.alloc_at(pfn, Order::ZERO)).expect_err("it is not free").why;
        assert_eq!(why, PlaceFailure::InUse { pfn, state: State::Body }, "{engine:?}");
    }
}
