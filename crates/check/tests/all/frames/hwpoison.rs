//! Frames whose memory has failed: never handed out again, in whichever state they were; with free lists and
//! maps, and with the heads of large blocks in either place.

use framewright_check::exhaust::{self, Choices};
use framewright_check::prelude::*;

fn worlds(pages: u64, cpus: usize, pcp_orders: PcpOrders) -> Vec<World<Plain>> {
    let world = |engine| {
        // The other CPU answers no request: a test that waits for it in earnest takes minutes beside busy programs.
        Spec::one_zone(pages, cpus).engine(engine).orders(pcp_orders).spins(1).build()
    };
    vec![world(Engine::Framewright), world(Engine::Linux)]
}

#[test]
fn a_free_frame_is_withdrawn_at_once() {
    for world in worlds(2048, 1, PcpOrders::UpToCostlyAndHuge) {
        for n in [0, 5, 511, 512, 1024 + 513] {
            let bad = BASE.add(n);
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(bad)), Ok(Hwpoisoned::Withdrawn));
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(bad)), Err(HwpoisonError::Already));
            let refused = world.on(0, |cpu| cpu.free(bad, order(0))).expect_err("no CPU has it");
            assert_eq!(refused.why, FreeFailure::Quarantined);
            let all = world.everything();
            assert!(all.len() == 2047 && !all.contains(&bad));
            assert_eq!((world.settled().quarantined, world.allocator().hwpoisoned_pages()), (1, 1));
            assert!(world.on(0, |cpu| cpu.alloc_at(bad, order(0))).is_err());
            world.on(0, |cpu| cpu.unpoison(bad)).expect("it is out of use");
            assert_eq!(world.on(0, |cpu| cpu.unpoison(bad)), Err(HwpoisonError::NotPoisoned));
            assert_eq!((world.settled().free, world.allocator().free_blocks(MAX_ORDER)), (2048, 2));
            assert_eq!(world.allocator().hwpoisoned_pages(), 0);
        }
        for n in [Pfn(0), BASE.add(2048), Pfn(u64::MAX)] {
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(n)), Err(HwpoisonError::Foreign));
            assert_eq!(world.on(0, |cpu| cpu.unpoison(n)), Err(HwpoisonError::Foreign));
        }
    }
}

/// A frame that was never added, of a pageblock that has others.
#[test]
fn a_frame_that_was_never_added_cannot_be_withdrawn() {
    for engine in STORES {
        let world = Spec::one_zone(1024, 1).memory([(BASE, 900)]).engine(engine).plain();
        for n in [900, 1000] {
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(BASE.add(n))), Err(HwpoisonError::Foreign));
        }
        assert_eq!((world.allocator().hwpoisoned_pages(), world.everything().len()), (0, 900));
    }
}

/// Of a block of each order, each of some frames; freed on its own CPU, on another, in bulk, or in parts.
#[test]
fn a_frame_in_use_is_withdrawn_when_it_is_freed() {
    let runs = exhaust::every(|choices: &mut Choices| {
        let worlds = worlds(2048, 2, choices.pick(&[PcpOrders::None, PcpOrders::UpToCostlyAndHuge]));
        let world = choices.pick(&worlds.iter().collect::<Vec<_>>());
        let k = choices.pick(&[0, 2, 6, 9, 10]);
        let pages = order(k).pages();
        let pfn = world.on(0, |cpu| {
            // One that sat on a list before, if there are lists.
            let first = cpu.must_alloc(k);
            cpu.must_free(first, k);
            cpu.must_alloc(k)
        });
        let mut bad = [0, pages / 2, pages - 1].map(|n| pfn.add(n)).to_vec();
        bad.dedup();
        let (from, to) = choices.pick(&[(0, 3), (0, 2), (0, 1), (2, 3)]);
        let bad = bad[from.min(bad.len() - 1)..to.min(bad.len())].to_vec();
        for &frame in &bad {
            let found = world.on(0, |cpu| cpu.hwpoison(frame));
            assert_eq!(found, Ok(Hwpoisoned::InUse { pfn, order: order(k) }));
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(frame)), Err(HwpoisonError::Already));
        }
        assert_eq!((world.settled().quarantined, world.settled().allocated), (0, pages));
        let way = choices.below(4);
        match way {
            0 => world.must_free(0, pfn, k),
            1 => world.must_free(1, pfn, k),
            2 => world.on(0, |cpu| cpu.free_bulk(order(k), &[pfn])).expect("it is allocated"),
            _ => {
                let to = order(choices.pick(&[0, k.min(9), k]));
                world.on(0, |cpu| {
                    #[expect(unsafe_code, reason = "the caller of split vouches for owning it")]
                    // SAFETY: the block is this test's, and no other thread is at work.
                    unsafe { cpu.split(pfn, order(k), to) }.expect("it is allocated");
                    let parts = (0..pages).step_by(to.pages() as usize);
                    parts.for_each(|n| cpu.must_free(pfn.add(n), to));
                });
            }
        }
        assert!(world.on(1, |cpu| cpu.free(pfn, order(k))).is_err(), "freed twice");
        world.drain_all();
        let all = world.everything();
        assert!(bad.iter().all(|frame| !all.contains(frame)), "a bad frame was handed out");
        assert_eq!(all.len(), 2048 - bad.len());
        assert_eq!(world.settled().quarantined, bad.len() as u64);
        assert_eq!(world.on(0, |cpu| cpu.hwpoison(bad[0])), Err(HwpoisonError::Already), "it is out of use");
        // Its pageblock is as any other again, but for the frame.
        assert!(!world.allocator().frames().info(pfn).is_poisoned());
        bad.iter().for_each(|&frame| world.on(1, |cpu| cpu.unpoison(frame)).expect("it is out of use"));
        assert_eq!(world.allocator().free_blocks(MAX_ORDER), 2);
    });
    println!("{runs} runs");
}

#[test]
fn a_mark_is_taken_back_while_the_frame_is_in_use() {
    for world in worlds(1024, 1, PcpOrders::UpToCostlyAndHuge) {
        let pfn = world.must_alloc(0, 3);
        for frame in [pfn, pfn.add(5)] {
            world.on(0, |cpu| cpu.hwpoison(frame)).expect("it is in use");
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(frame)), Err(HwpoisonError::Already));
        }
        assert!(world.allocator().frames().info(pfn).is_poisoned());
        world.on(0, |cpu| cpu.unpoison(pfn)).expect("it is marked");
        assert!(world.allocator().frames().info(pfn).is_poisoned(), "the other one is marked still");
        world.on(0, |cpu| cpu.unpoison(pfn.add(5))).expect("it is marked");
        assert!(!world.allocator().frames().info(pfn).is_poisoned());
        assert_eq!(world.allocator().hwpoisoned_pages(), 0);
        world.must_free(0, pfn, 3);
        assert_eq!(world.everything().len(), 1024);
    }
}

/// A frame on the list of a CPU that does not answer: it goes out of use when that CPU drains, or when the CPU that got
/// it from there frees it.
#[test]
fn a_frame_on_the_list_of_a_silent_cpu() {
    for drains in [true, false] {
        for world in worlds(4096, 2, PcpOrders::UpToCostlyAndHuge) {
            let bad = world.on(1, |cpu| {
                let pfn = cpu.must_alloc(0);
                cpu.must_free(pfn, 0);
                pfn
            });
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(bad)), Ok(Hwpoisoned::Listed(CpuId(1))));
            world.on(1, |cpu| {
                if drains {
                    cpu.answer();
                } else {
                    assert_eq!(cpu.alloc(order(0), M).ok(), Some(bad));
                    cpu.must_free(bad, 0);
                }
                cpu.drain();
            });
            assert_eq!(world.settled().quarantined, 1);
            let all = world.everything();
            assert!(all.len() == 4095 && !all.contains(&bad));
        }
    }
}

/// Two huge neighbours with a bad frame each are given back without them.
#[test]
fn huge_neighbours_go_back_without_their_bad_frames() {
    for (bad, at) in [(&[0_u64][..], 7), (&[1], 7), (&[0, 1], 7), (&[0], 0), (&[0, 1], 0)] {
        let world = Spec::one_zone(8 * 1024, 1).plain();
        let huge = world.on(0, |cpu| [(); 2].map(|()| cpu.must_alloc(PAGEBLOCK_ORDER)));
        world.on(0, |cpu| {
            for &n in bad {
                cpu.hwpoison(huge[n as usize].add(at)).expect("it is in use");
            }
            huge.iter().for_each(|&pfn| cpu.must_free(pfn, PAGEBLOCK_ORDER));
            cpu.drain();
        });
        let account = world.settled();
        assert_eq!((account.free, account.quarantined), (8 * 1024 - bad.len() as u64, bad.len() as u64));
    }
}

/// All memory of a zone goes offline and comes back, where new memory stays untouched until it is needed, and where all
/// of it is written when it comes.
#[test]
fn a_failed_frame_stays_out_of_use_where_memory_comes_back_to_an_empty_zone() {
    let pages = 8 * PAGEBLOCK_PAGES;
    for (sections, poison) in
        [pages, 4 * PAGEBLOCK_PAGES].into_iter().flat_map(|sections| [(sections, false), (sections, true)])
    {
        let with = |config: &mut Config| (config.lazy_pageblocks, config.poison) = (true, poison);
        let world = Spec::one_zone(pages, 2).but(with).sections(sections).plain();
        let bad = BASE.add(3 * PAGEBLOCK_PAGES + 7);
        world.on(0, |cpu| cpu.hwpoison(bad)).expect("it is there");
        assert_eq!(world.on(0, |cpu| cpu.offline(BASE..BASE.add(pages))), Ok(pages));
        assert_eq!((world.zone().managed_pages(), world.zone().present_pages()), (0, 0));
        world.allocator().online(BASE, pages).expect("it is offline");
        let got = world.alloc_all(0, 0);
        assert!(!got.contains(&bad) && got.len() as u64 == pages - 1, "{} frames", got.len());
    }
}

/// With maps a frame is bad again when it comes back; with lists its failure is forgotten.
#[test]
fn a_failed_frame_that_goes_offline_is_counted_no_more() {
    for (world, after) in worlds(2048, 1, PcpOrders::UpToCostlyAndHuge).iter().zip([1, 0]) {
        let (start, known) = (BASE.add(PAGEBLOCK_PAGES), || world.allocator().hwpoisoned_pages());
        world.on(0, |cpu| cpu.hwpoison(start.add(7))).expect("it is free");
        assert_eq!(world.on(0, |cpu| cpu.offline(start..start.add(PAGEBLOCK_PAGES))), Ok(PAGEBLOCK_PAGES));
        assert_eq!(known(), 0);
        world.allocator().online(start, PAGEBLOCK_PAGES).expect("it is offline");
        assert_eq!((known(), world.settled().quarantined), (after, after));
    }
}

/// A bad frame in the upper half of a block of the largest order: when the block is split, frees of the lower half look
/// for bad frames no more.
#[test]
fn a_split_tells_which_half_has_the_bad_frame() {
    for world in worlds(2048, 1, PcpOrders::None) {
        let pfn = world.must_alloc(0, MAX_ORDER);
        let bad = pfn.add(PAGEBLOCK_PAGES + 7);
        world.on(0, |cpu| cpu.hwpoison(bad)).expect("it is in use");
        let looks = || [pfn, bad].map(|pfn| world.allocator().frames().info(pfn).is_poisoned());
        for (to, marked) in [(MAX_ORDER, [true, true]), (PAGEBLOCK_ORDER, [false, true])] {
            #[expect(unsafe_code, reason = "the caller of split vouches for owning it")]
            // SAFETY: the block is this test's, and no other thread is at work.
            world.on(0, |cpu| unsafe { cpu.split(pfn, MAX_ORDER, to) }).expect("it is allocated");
            assert_eq!(looks(), marked);
        }
    }
}
