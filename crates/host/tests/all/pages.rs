//! Base pages of 16 and 64 KiB.

use core::ptr::NonNull;

use framewright_host::{
    Arena, ArenaError, Backing, Config, FileCache, Migratetype, Order, PAGE_BYTES, PageSlot, Pfn,
};

use crate::common::{assert_all_free, order};

const MOVABLE: Migratetype = Migratetype::Movable;

#[test]
fn blocks_are_as_large_as_their_pages_say() {
    for page in [4 << 10, 16 << 10, 64 << 10] {
        let arena: Arena = Arena::builder().bytes(256 << 20).page_bytes(page).cpus(2).build().unwrap();
        assert_eq!((arena.page_bytes(), arena.frames().end.0), (page, (256 << 20) / page as u64));
        let cpu = arena.attach().unwrap();
        let mut end = Vec::new();
        for k in [0, 3, 9, 10].into_iter().filter(|&k| page << k <= 64 << 20) {
            let mut block = cpu.alloc_block_zeroed(order(k), MOVABLE).unwrap();
            assert_eq!(block.bytes().len(), page << k);
            let address = block.as_ptr().unwrap().cast::<u8>();
            assert!(address.addr().get().is_multiple_of(page << k), "a block is aligned to its size");
            assert_eq!(arena.frame_at(address.as_ptr()), Some(block.pfn()));
            let last = address.as_ptr().wrapping_add((page << k) - 1);
            assert_eq!(arena.frame_at(last), Some(block.pfn().add(order(k).pages() - 1)));
            block.bytes_mut().fill(k + 1);
            end.push(block);
        }
        // No thread has written into another's memory.
        for block in &end {
            let mark = block.order().get() + 1;
            assert!(block.bytes().iter().all(|&byte| byte == mark));
        }
        drop(end);
        drop(cpu);
        assert_all_free(&arena);
    }
}

#[test]
fn every_page_of_64_kib_can_be_had_and_goes_back_to_the_system() {
    let arena: Arena = Arena::builder().bytes(192 << 20).page_bytes(64 << 10).cpus(2).build().unwrap();
    let cpu = arena.attach().unwrap();
    let mut all = Vec::new();
    while let Ok(mut block) = cpu.alloc_block(Order::ZERO, MOVABLE) {
        block.bytes_mut().fill(1);
        all.push(block);
    }
    assert_eq!(all.len(), 3072);
    drop(all);
    let trimmed = cpu.trim(Order::ZERO);
    // All but what a zone keeps for others while some is out of use.
    assert!((2048..=3072).contains(&trimmed.pages), "{trimmed:?}");
    // A page that has gone back reads as zeroes.
    assert!(cpu.alloc_block(Order::ZERO, MOVABLE).unwrap().bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn what_is_reckoned_in_bytes_follows() {
    let marks = |page_bytes: usize| {
        let config = Config { min_free_kib: 16 << 10, ..Config::default().with_marks() };
        let arena: Arena = Arena::builder()
            .bytes(4 << 30)
            .page_bytes(page_bytes)
            .backing(Backing::Described)
            .config(config)
            .build()
            .unwrap();
        let zone = &arena.allocator().zones()[0];
        let batch = arena.allocator().pcp(zone.id(), framewright_host::CpuId(0)).sizing().batch;
        (zone.marks().min * page_bytes as u64, u64::from(batch) * page_bytes as u64)
    };
    let (min, batch) = marks(4 << 10);
    assert_eq!(min, 16 << 20);
    for page in [16 << 10, 64 << 10] {
        let (same, less) = marks(page);
        assert_eq!(same, min, "the same memory is kept, whatever the pages");
        assert!(less <= 2 * batch, "{less} bytes at a time, {batch} with pages of 4 KiB");
    }
}

#[test]
fn other_sizes_and_what_wants_4_kib_are_refused() {
    for wrong in [0, 1, 2 << 10, 5 << 10, 128 << 10, 1 << 20, usize::MAX] {
        let error = Arena::builder().bytes(64 << 20).page_bytes(wrong).build::<()>().unwrap_err();
        assert!(error.to_string().contains(&format!("base pages of {wrong} bytes")), "{wrong}: {error}");
    }
    let mut memory = vec![0_u8; 1 << 20];
    let start = NonNull::from(&mut memory[..]).cast::<u8>();
    let offset = start.addr().get().wrapping_neg() % (64 << 10) + PAGE_BYTES;
    // SAFETY: inside the vector, which outlives the attempt.
    let builder = unsafe { Arena::builder().memory(start.add(offset), 128 << 10) };
    let error = builder.page_bytes(64 << 10).build::<()>().unwrap_err();
    assert!(matches!(error, ArenaError::Misaligned { page: 65_536, .. }), "{error}");
    assert!(error.to_string().contains("use 65536 bytes at"), "{error}");
    let arena: Arena<PageSlot> = Arena::builder().bytes(64 << 20).page_bytes(16 << 10).build().unwrap();
    let cache = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| drop(FileCache::new(&arena))));
    assert!(cache.is_err(), "a page cache of other pages");
    assert_eq!(
        arena.address(Pfn(1)).unwrap().addr().get() - arena.address(Pfn(0)).unwrap().addr().get(),
        16 << 10
    );
}
