//! Arenas of every kind and size, and what is said when one cannot be made.

use core::alloc::Layout;
use core::ptr::NonNull;
use std::alloc::{alloc_zeroed, dealloc};
use std::thread;

use crate::common::{MIB, assert_all_free, described, free, order};
use framewright_host::framewright::config::Experiment;
use framewright_host::framewright::frame::FrameUser;
use framewright_host::framewright::{CpuId, NodeId, SetupError, ZoneId};
use framewright_host::{
    Arena, ArenaError, Backing, Config, Cpu, Migratetype, Order, PAGE_BYTES, Pfn, SharedArena, SharedBlock,
    Zeroable,
};

const MOVABLE: Migratetype = Migratetype::Movable;

#[test]
fn what_may_cross_threads_may_and_the_rest_may_not() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Arena>();
    shared::<Arena<Slot>>();
    shared::<SharedArena>();
    sent::<SharedBlock>();
    // That `Cpu` and `Block` are not `Send` is a `compile_fail` example of `Cpu`.
    let _: Option<Cpu<'_>> = None;
}

#[test]
fn every_byte_of_every_block_is_the_owners_own() {
    for backing in [Backing::Base, Backing::Huge] {
        let arena: Arena = Arena::builder().bytes(16 << 20).backing(backing).build().unwrap();
        let cpu = arena.attach().unwrap();
        let mut blocks = Vec::new();
        let mut n = 0_u64;
        while let Ok(mut block) = cpu.alloc_block(order((n % 5) as u8), MOVABLE) {
            assert!(block.bytes().iter().all(|&byte| byte == 0), "memory starts as zeroes");
            assert_eq!(block.bytes().len(), PAGE_BYTES << block.order().get());
            assert_eq!(block.bytes().as_ptr() as usize % block.bytes().len(), 0, "aligned to its size");
            block.bytes_mut().fill((n % 255) as u8 + 1);
            blocks.push((block, (n % 255) as u8 + 1));
            n += 1;
        }
        assert!(n > 500);
        for (block, pattern) in &blocks {
            assert!(block.bytes().iter().all(|byte| byte == pattern));
            assert_eq!(arena.frame_at(block.bytes().as_ptr()), Some(block.pfn()));
            assert_eq!(
                arena.frame_at(&block.bytes()[block.bytes().len() - 1]).unwrap().block_start(block.order()),
                block.pfn()
            );
        }
        drop(blocks);
        drop(cpu);
        assert_all_free(&arena);
    }
}

#[test]
fn sizes_that_are_no_multiple_of_anything_work() {
    for pages in [1, 2, 511, 512, 513, 1023, 1024, 1025, 5000] {
        for base in [0, 1 << 20] {
            let arena: Arena = described(pages, Config::default()).base(Pfn(base)).build().unwrap();
            assert_eq!(arena.frames(), Pfn(base)..Pfn(base + pages));
            assert_all_free(&arena);
            let cpu = arena.attach().unwrap();
            let mut got: Vec<Pfn> = core::iter::from_fn(|| cpu.alloc(Order::ZERO, MOVABLE).ok()).collect();
            got.sort_unstable();
            assert!(got.iter().copied().eq((base..base + pages).map(Pfn)), "each page once, {pages} pages");
            got.into_iter().for_each(|pfn| free(&cpu, pfn, Order::ZERO));
            drop(cpu);
            assert_all_free(&arena);
        }
    }
}

#[test]
fn bytes_are_rounded_up_to_pages() {
    let arena: Arena = Arena::builder().bytes(4097).backing(Backing::Described).build().unwrap();
    assert_eq!(arena.frames(), Pfn(0)..Pfn(2));
}

#[test]
fn sixteen_tebibytes_are_described_and_usable() {
    let pages = (16_u64 << 40) / PAGE_BYTES as u64;
    let arena: Arena = described(pages, Config::default()).build().unwrap();
    assert_eq!(arena.allocator().zones().len(), 16, "a zone spans at most 1 TiB");
    assert_eq!(arena.allocator().free_pages(), pages);
    assert!(!arena.has_memory());
    assert_eq!(arena.address(Pfn(0)), None);
    let cpu = arena.attach().unwrap();
    let blocks: Vec<_> = Order::all().map(|order| (cpu.alloc(order, MOVABLE).unwrap(), order)).collect();
    for (pfn, order) in blocks {
        free(&cpu, pfn, order);
    }
    // The last zone is reached when the others are full, not before; here by name of a frame.
    let last = Pfn(pages - 1);
    // SAFETY: refused, so nothing happens.
    assert!(unsafe { cpu.free(last, Order::ZERO) }.is_err());
    drop(cpu);
    assert_all_free(&arena);
}

#[test]
fn more_than_the_machines_memory_is_reserved_and_committed_as_touched() {
    let arena: Arena = Arena::builder().bytes(1 << 40).build().unwrap();
    let cpu = arena.attach().unwrap();
    let mut block = cpu.alloc_block(order(10), MOVABLE).unwrap();
    block.bytes_mut().fill(1);
    assert!(block.bytes().iter().all(|&byte| byte == 1));
}

#[test]
fn nodes_share_the_frames_and_their_cpus_prefer_them() {
    let arena: Arena = described(64 * MIB, Config::default()).nodes(4).cpus(8).build().unwrap();
    let zones = arena.allocator().zones();
    assert_eq!(zones.len(), 4);
    for (n, zone) in zones.iter().enumerate() {
        assert_eq!((zone.spec().node, zone.spec().pages), (NodeId(n as u16), 16 * MIB));
    }
    for slot in 0..8 {
        let cpu = arena.attach_to(slot).unwrap();
        let pfn = cpu.alloc(Order::ZERO, MOVABLE).unwrap();
        assert_eq!(pfn.0 / (16 * MIB), slot as u64 % 4, "slot {slot} allocates on its node");
        free(&cpu, pfn, Order::ZERO);
    }
    // One CPU can use all nodes, its own first.
    let cpu = arena.attach_to(2).unwrap();
    let blocks: Vec<Pfn> = core::iter::from_fn(|| cpu.alloc(order(10), MOVABLE).ok()).collect();
    assert_eq!(blocks.len() as u64, 64 * MIB / 1024);
    assert!(blocks[..4].iter().all(|pfn| pfn.0 / (16 * MIB) == 2));
    blocks.into_iter().for_each(|pfn| free(&cpu, pfn, order(10)));
    drop(cpu);
    assert_all_free(&arena);
}

#[test]
fn a_node_is_one_zone_whose_sections_are_no_border() {
    let arena: Arena = described(1 << 18, Config::default()).base(Pfn(1 << 18)).cpus(16).build().unwrap();
    let [zone] = arena.allocator().zones() else { panic!("a zone for each node and type") };
    assert_eq!(zone.sections(), 16);
    let cpus: Vec<_> = (0..16).map(|slot| arena.attach_to(slot).unwrap()).collect();
    let huge = cpus[3].alloc_contig_range(arena.frames());
    huge.expect("all of the memory is free");
    assert_eq!(arena.allocator().free_pages(), 0);
    // SAFETY: frames without memory, allocated just now.
    unsafe { cpus[5].free_contig_range(arena.frames()) }.expect("it is allocated");
    cpus.iter().for_each(|cpu| cpu.drain());
    let blocks: Vec<Pfn> = core::iter::from_fn(|| cpus[1].alloc(order(3), MOVABLE).ok()).collect();
    assert_eq!(blocks.len(), 1 << 15, "one CPU can have all");
    blocks.into_iter().for_each(|pfn| free(&cpus[2], pfn, order(3)));
    drop(cpus);
    assert_all_free(&arena);
}

#[test]
fn the_callers_memory_is_used_and_left_alone_outside() {
    let layout = Layout::from_size_align(4 << 20, 2 * PAGE_BYTES).unwrap();
    // SAFETY: the layout has a size.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
    // One page short at either end.
    // SAFETY: inside the allocation.
    let (inside, bytes) = (unsafe { start.add(PAGE_BYTES) }, layout.size() - 2 * PAGE_BYTES);
    {
        // SAFETY: no other thread touches it until the arena is gone, at the end of this block.
        let arena: Arena = unsafe { Arena::builder().memory(inside, bytes) }.build().unwrap();
        assert_eq!(arena.frames(), Pfn(0)..Pfn(1022));
        assert_eq!(arena.address(Pfn(0)), Some(inside));
        let cpu = arena.attach().unwrap();
        let mut blocks: Vec<_> = core::iter::from_fn(|| cpu.alloc_block(Order::ZERO, MOVABLE).ok()).collect();
        assert_eq!(blocks.len(), 1022);
        blocks.iter_mut().for_each(|block| block.bytes_mut().fill(0xff));
        drop(blocks);
        drop(cpu);
        assert_all_free(&arena);
    }
    // SAFETY: the arena is gone; the allocation is ours again.
    unsafe {
        let all = core::slice::from_raw_parts(start.as_ptr(), layout.size());
        assert!(all[..PAGE_BYTES].iter().chain(&all[layout.size() - PAGE_BYTES..]).all(|&byte| byte == 0));
        assert!(all[PAGE_BYTES..layout.size() - PAGE_BYTES].iter().all(|&byte| byte == 0xff));
        dealloc(start.as_ptr(), layout);
    }
}

#[test]
fn the_callers_memory_must_be_whole_pages() {
    let mut memory = vec![0_u8; 5 * PAGE_BYTES];
    let start = memory.as_mut_ptr();
    let to_page = start.align_offset(PAGE_BYTES);
    let try_at = |offset: usize, bytes: usize| {
        // SAFETY: at most offset 8192 of a buffer of 5 pages; what is built is dropped immediately.
        let builder = unsafe { Arena::builder().memory(NonNull::new(start.add(offset)).unwrap(), bytes) };
        builder.build::<()>().map(drop).map_err(|error| error.to_string())
    };
    try_at(to_page, 2 * PAGE_BYTES).unwrap();
    let message = try_at(to_page + 1, 3 * PAGE_BYTES).unwrap_err();
    let address = start as usize + to_page + PAGE_BYTES;
    assert!(message.ends_with(&format!("use 8192 bytes at {address:#x}")), "{message}");
    let message = try_at(to_page, 2 * PAGE_BYTES + 1).unwrap_err();
    assert!(message.contains("use 8192 bytes"), "{message}");
    let message = try_at(to_page + 1, 100).unwrap_err();
    assert!(message.contains("does not hold one page"), "{message}");
    assert!(try_at(to_page, 0).is_err());
}

/// One line that states the fault and, somewhere, what to do.
fn refusal(builder: framewright_host::ArenaBuilder, advice: &str) -> ArenaError {
    let error = builder.build::<()>().map(drop).expect_err("an arena that cannot be made");
    let message = error.to_string();
    assert!(message.contains(advice) && !message.contains('\n'), "{message}");
    error
}

#[test]
fn bad_descriptions_are_refused_in_one_line() {
    refusal(Arena::builder(), "no page");
    refusal(described(100, Config::default()).base(Pfn(1000)), "choose 0x0");
    refusal(described(100, Config::default()).base(Pfn(5000)), "choose 0x1000");
    refusal(described(2048, Config::default()).nodes(3), "1 to 2");
    refusal(described(2048, Config::default()).nodes(0), "1 to 2");
    refusal(described(100, Config::default()).cpus(0), "1 to 65535");
    refusal(described(100, Config::default()).cpus(0).background(), "1 to 65535");
    refusal(described(100, Config::default()).cpus(65536), "1 to 65535");
    refusal(described(100, Config::default()).cpus(usize::MAX), "1 to 65535");
    refusal(described(u64::MAX, Config::default()), "too many");
    refusal(described(1024, Config::default()).base(Pfn(!1023)), "too many");
    refusal(described(256, Config::default()).base(Pfn(!1023)), "too many");
    let reversed = core::ops::Range { start: Pfn(90), end: Pfn(10) };
    refusal(described(2048, Config::default()).holes([reversed]), "ends before it begins");
    refusal(described(2048, Config::default()).holes([Pfn(0)..Pfn(1000), Pfn(1000)..Pfn(9999)]), "no page");
    refusal(described(1024, Config::default()).base(Pfn(1 << 52)), "starts at a multiple of 1024");
    refusal(Arena::builder().bytes(u64::MAX), "too many");
    refusal(described(100, Config { poison: true, ..Config::default() }), "choose another backing");
    refusal(described(100, Config { init_on_free: true, ..Config::default() }), "choose another backing");
    let error = refusal(
        described(
            100,
            Config { experiment: Experiment { pcp_slots: 3, ..Experiment::default() }, ..Config::default() },
        ),
        "power of two",
    );
    assert!(matches!(error, ArenaError::Setup(SetupError::Setting { name: "pcp_slots", value: 3, .. })));
    refusal(described(100, Config { pcp_free_part: 0, ..Config::default() }), "at least 1");
    assert!(core::error::Error::source(&error).is_some());
}

#[test]
fn shares_of_any_size_are_shares() {
    let arena: Arena = described(4096, Config::default()).node_shares([u64::MAX, u64::MAX]).build().unwrap();
    assert_eq!(arena.allocator().zones().iter().map(|zone| zone.spec().pages).collect::<Vec<_>>(), [2048; 2]);
}

#[test]
fn address_space_that_cannot_be_had_is_explained() {
    let error = refusal(Arena::builder().bytes(200 << 40), "ask for less");
    assert!(matches!(error, ArenaError::Reserve { what: "pages", .. }));
}

#[test]
fn huge_pages_from_the_pool_work_or_are_explained() {
    // As many as no machine has set aside: always refused.
    let error = refusal(Arena::builder().bytes(1 << 44).backing(Backing::HugeTlb), "vm.nr_hugepages=8388608");
    assert!(matches!(error, ArenaError::HugePages { wanted: 8_388_608, .. }));
    // And a few, which a machine may have.
    match Arena::builder().bytes(8 << 20).backing(Backing::HugeTlb).build::<()>() {
        Ok(arena) => {
            let cpu = arena.attach().unwrap();
            let mut block = cpu.alloc_block(order(10), MOVABLE).unwrap();
            assert_eq!(block.bytes().as_ptr() as usize % (4 << 20), 0);
            block.bytes_mut().fill(1);
            drop(block);
            drop(cpu);
            drop(arena);
            // Half of the last page is the arena's; the system binds whole ones.
            let builder = Arena::builder().bytes(7 << 20).backing(Backing::HugeTlb);
            assert_eq!(builder.machine_nodes().build::<()>().unwrap().counts().managed, 7 * 256);
        }
        Err(error) => assert!(error.to_string().contains("vm.nr_hugepages=4"), "{error}"),
    }
}

/// 56 bytes, so that a descriptor is as large as Linux' `struct page`.
struct Slot([u64; 7]);

impl FrameUser for Slot {
    const CHECKED: bool = true;
    fn check(&self) -> Option<&'static str> {
        (self.0[0] == u64::MAX).then_some("marked bad")
    }
}

// SAFETY: numbers.
unsafe impl Zeroable for Slot {}

#[test]
fn user_slots_are_zero_or_made_and_belong_to_the_blocks_owner() {
    let arena: Arena<Slot> = described(MIB, Config::default()).build().unwrap();
    let cpu = arena.attach().unwrap();
    let mut block = cpu.alloc_block(order(3), MOVABLE).unwrap();
    for n in 0..8 {
        block.with_user(n, |slot| {
            assert_eq!(slot.0, [0; 7]);
            slot.0 = [n; 7];
        });
    }
    assert_eq!(block.with_user(5, |slot| slot.0), [5; 7]);
    drop(block);
    drop(cpu);
    assert_all_free(&arena);

    let made = described(MIB, Config::default()).base(Pfn(1024)).build_with(|pfn| Slot([pfn.0; 7])).unwrap();
    let cpu = made.attach().unwrap();
    let mut block = cpu.alloc_block(order(2), MOVABLE).unwrap();
    let pfn = block.pfn();
    assert_eq!(block.with_user(3, |slot| slot.0), [pfn.0 + 3; 7]);
}

#[test]
#[should_panic(expected = "frame 4 of a block of 4")]
fn user_slots_outside_the_block_are_out_of_reach() {
    let arena: Arena<Slot> = described(MIB, Config::default()).build().unwrap();
    let cpu = arena.attach().unwrap();
    cpu.alloc_block(order(2), MOVABLE).unwrap().with_user(4, |_| ());
}

#[test]
fn an_arena_can_be_made_and_dropped_by_different_threads() {
    let arena: Arena = thread::spawn(|| Arena::builder().bytes(1 << 20).build().unwrap()).join().unwrap();
    drop(arena.attach().unwrap());
    thread::spawn(move || drop(arena)).join().unwrap();
}

#[test]
fn snapshots_print_as_the_kernels_files_do() {
    let arena: Arena = Arena::builder()
        .pages(4096)
        .cpus(2)
        .backing(Backing::Described)
        .config(Config::linux_v5_4())
        .build()
        .unwrap();
    let cpu = arena.attach().unwrap();
    let page = cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
    // One page of the first block of order 10 is out; its other halves are on the lists below.
    assert_eq!(
        arena.allocator().buddyinfo().to_string(),
        "Node 0, zone   Normal      1      1      1      1      1      1      1      1      1      1      3 \n"
    );
    let zoneinfo = arena.allocator().zoneinfo().to_string();
    assert!(zoneinfo.starts_with("Node 0, zone   Normal\n  pages free     4095\n"), "{zoneinfo}");
    for line in [
        "        managed  4096",
        "        spanned  4096",
        "      nr_free_pages 4095",
        "    cpu: 1",
        "              count:    0",
        "              batch:    1",
    ] {
        assert!(zoneinfo.lines().any(|found| found == line), "`{line}` in {zoneinfo}");
    }
    // SAFETY: allocated above; the arena has no memory.
    unsafe { cpu.free(page, Order::ZERO) }.unwrap();
    drop(cpu);
    assert!(arena.allocator().buddyinfo().to_string().ends_with("      0      0      4 \n"));
}

/// Linux has a worker on each CPU that does this once a second.
#[test]
fn a_tick_lets_lists_shrink_also_while_their_thread_does_something_else() {
    for config in [Config::framewright(), Config::linux_v6_7()] {
        let arena = Arena::builder().pages(1 << 18).backing(Backing::Described).cpus(2).config(config);
        let arena: Arena = arena.build().unwrap();
        let mut cpu = arena.attach_to(0).unwrap();
        let lists = || arena.allocator().pcp(ZoneId(0), CpuId(0));
        let state = || (lists().high(), lists().count());
        // Each refill raises `high`.
        let blocks: Vec<_> = (0..20_000).map(|_| cpu.alloc(Order::ZERO, MOVABLE).unwrap()).collect();
        blocks.into_iter().for_each(|pfn| free(&cpu, pfn, Order::ZERO));
        let size = lists().sizing();
        let shrunk = |(high, count): (u32, u32)| {
            let most = (high - high / 8).max(count.saturating_sub(32 * size.batch)).max(size.high_min);
            assert!(most < high, "there is something to shrink: {high} {count} {size:?}");
            most
        };
        // Immediately where the slot is lent.
        let expected = shrunk(state());
        cpu.idle(|| arena.tick());
        assert_eq!(lists().high(), expected);
        assert!(lists().count() <= expected);
        // At its next slow call where it is held.
        let before = state();
        arena.tick();
        assert_eq!(state(), before, "only the owner moves its blocks");
        cpu.answer();
        assert_eq!(lists().high(), shrunk(before));
        assert!(lists().count() <= lists().high());
        let before = state();
        cpu.tick();
        assert_eq!(lists().high(), shrunk(before), "the owner needs nobody to ask");
        drop(cpu);
        assert_all_free(&arena);
    }
}
