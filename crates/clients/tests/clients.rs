//! Crates of other authors at work on an arena's frames.

use core::alloc::Layout;
use std::sync::{Arc, Mutex};

use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as ArenaVec;
use framewright_clients::{guest, heap, tables};
use framewright_host::{Arena, Migratetype, Order, Pfn, SharedArena};
use talc::cell::TalcCell;
use talc::source::AllocatorSource as TalcSource;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};
use x86_64::VirtAddr;
use x86_64::structures::paging::mapper::{CleanUp, Translate};
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, Mapper, Page, PageTableFlags, Size4KiB};

fn shared(bytes: u64) -> SharedArena {
    Arena::builder().bytes(bytes).build_shared().unwrap()
}

#[test]
fn collections_live_in_an_arena_and_give_it_all_back() {
    let arena = shared(16 << 20);
    let mut numbers = ArenaVec::new_in(arena.clone());
    for n in 0..100_000_u64 {
        numbers.push(n);
    }
    assert_eq!(arena.frame_at(numbers.as_ptr().cast()).map(|pfn| pfn.0 < 4096), Some(true));
    assert_eq!(numbers.iter().sum::<u64>(), 99_999 * 50_000);
    assert!(numbers.try_reserve(1 << 30).is_err(), "more than the arena has is an error, no abort");
    drop(numbers);
    arena.detach();
    assert_eq!(arena.allocator().free_pages(), 4096);
}

/// A buffer becomes smaller where it is: nothing is copied, and no memory is needed for it.
#[test]
fn a_buffer_shrinks_in_a_full_arena() {
    let arena: Arena = Arena::builder().bytes(4 << 20).cpus(1).build().unwrap();
    let cpu = arena.attach().unwrap();
    for (bytes, kept, pages) in
        [(4 << 20, 5000, 2), (1 << 20, 1, 1), (300_000, 300_000, 128), (8192, 8192, 2)]
    {
        let mut buffer = ArenaVec::with_capacity_in(bytes, &cpu);
        buffer.extend((0..kept).map(|n| n as u8));
        let rest: Vec<_> =
            core::iter::from_fn(|| cpu.alloc_block(Order::ZERO, Migratetype::Movable).ok()).collect();
        let before = buffer.as_ptr();
        buffer.shrink_to_fit();
        assert_eq!((buffer.as_ptr(), buffer.len()), (before, kept));
        assert!(buffer.iter().enumerate().all(|(n, &byte)| byte == n as u8));
        drop(rest);
        cpu.drain();
        assert_eq!(arena.counts().allocated, pages, "{bytes} bytes");
        drop(buffer);
        assert_eq!(arena.counts().allocated, 0);
    }
}

#[test]
fn a_map_lives_on_what_a_thread_is_attached_to() {
    let arena: Arena = Arena::builder().bytes(16 << 20).build().unwrap();
    let cpu = arena.attach().unwrap();
    let mut squares = hashbrown::HashMap::new_in(&cpu);
    for n in 0..50_000_u64 {
        squares.insert(n, n * n);
    }
    assert!(squares.allocator().arena().allocator().free_pages() < 4096 - 200, "1.2 MB are in the arena");
    squares.retain(|n, _| n % 3 == 0);
    squares.shrink_to_fit();
    assert!((0..50_000).all(|n| squares.get(&n).copied() == (n % 3 == 0).then_some(n * n)));
    assert!(squares.try_reserve(10_000_000).is_err(), "more than the arena has is an error, no abort");
    drop(squares);
    drop(cpu);
    assert_eq!(arena.allocator().free_pages(), 4096);
}

#[test]
fn talc_grows_by_blocks_and_gives_them_back() {
    let arena = shared(16 << 20);
    let source = TalcSource::with_block_size(arena.clone(), 1 << 16);
    let heap: TalcCell<_, talc::DefaultBinning> = TalcCell::new(source);
    let layout = |n: usize| Layout::from_size_align(n * 37 % 5000 + 1, 8).unwrap();
    let mut blocks = Vec::new();
    for n in 1..2000_usize {
        let block = heap.allocate(layout(n)).unwrap().cast::<u8>();
        assert!(arena.frame_at(block.as_ptr()).is_some(), "{n}");
        // SAFETY: the block has this size.
        unsafe { block.write_bytes(n as u8, layout(n).size()) };
        blocks.push((block, n));
    }
    for (block, n) in blocks {
        // SAFETY: ours until freed here.
        unsafe {
            let bytes = core::slice::from_raw_parts(block.as_ptr(), layout(n).size());
            assert!(bytes.iter().all(|&at| at == n as u8));
            heap.deallocate(block, layout(n));
        }
    }
    assert!(heap.allocate(Layout::from_size_align(20 << 20, 8).unwrap()).is_err());
    drop(heap);
    arena.verify().unwrap();
}

#[test]
fn a_heap_grows_by_blocks_and_gives_them_back() {
    let arena = shared(16 << 20);
    // A block that is no segment is not freed by it.
    let (segments, block) =
        (heap::Segments::new(arena.clone()), arena.alloc_block(Order::ZERO, Migratetype::Movable).unwrap());
    let start = block.as_ptr().unwrap().cast().as_ptr();
    assert!(!dlmalloc::Allocator::free(&segments, start, 4096));
    drop(block);
    let mut heap = dlmalloc::Dlmalloc::new_with_allocator(segments);
    let mut blocks = Vec::new();
    for n in 1..2000_usize {
        let size = n * 37 % 5000 + 1;
        // SAFETY: each block is freed below, with its size.
        let block = unsafe { heap.malloc(size, 8) };
        assert!(arena.frame_at(block).is_some(), "{n}");
        // SAFETY: the block has this size.
        unsafe { block.write_bytes(n as u8, size) };
        blocks.push((block, size, n as u8));
    }
    for (block, size, byte) in blocks {
        // SAFETY: ours until freed here.
        unsafe {
            assert!(core::slice::from_raw_parts(block, size).iter().all(|&at| at == byte));
            heap.free(block, size, 8);
        }
    }
    // SAFETY: nothing is allocated any more.
    unsafe { heap.trim(0) };
    arena.allocator().verify().unwrap();
}

#[test]
fn a_guest_has_its_memory_from_an_arena() {
    let arena = shared(16 << 20);
    let guest = guest::Guest::new(&arena, 0x10_0000, 3).unwrap();
    let memory = guest.memory();
    assert_eq!(memory.num_regions(), 3);
    // Across the border of two blocks that need not be neighbours.
    let border = GuestAddress(0x10_0000 + (2 << 20) - 3);
    memory.write_slice(b"across", border).unwrap();
    let mut back = [0; 6];
    memory.read_slice(&mut back, border).unwrap();
    assert_eq!(&back, b"across");
    assert!(memory.write_slice(&[0], GuestAddress(0)).is_err());
    let kept = memory.clone();
    drop(guest);
    assert_eq!(
        arena.verify().unwrap().allocated,
        3 * 512,
        "a clone of the memory is not freed beneath its owner"
    );
    drop(kept);
    drop(guest::Guest::new(&arena, 0, 5).unwrap());
    assert_eq!(arena.verify().unwrap().allocated, 3 * 512);
    // Its memory lives as long as a guest does, whatever becomes of the handle.
    let guest = guest::Guest::new(&arena, 0, 1).unwrap();
    drop(arena);
    guest.memory().write_slice(b"alone", GuestAddress(0)).unwrap();
}

#[test]
fn page_tables_are_made_of_our_frames() {
    let arena: Arena = Arena::builder().bytes(16 << 20).build().unwrap();
    let cpu = arena.attach().unwrap();
    let mut frames = tables::Frames(&cpu);
    let mut tables = frames.tables();
    let page = |n: u64| Page::<Size4KiB>::containing_address(VirtAddr::new(0x4000_0000 + n * 0x60_1000));
    let mut mapped = Vec::new();
    for n in 0..200 {
        let frame = frames.allocate_frame().unwrap();
        let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE;
        // SAFETY: no processor uses these tables.
        unsafe { tables.map_to(page(n), frame, flags, &mut frames) }.unwrap().ignore();
        mapped.push(frame);
    }
    for (n, frame) in (0..).zip(&mapped) {
        assert_eq!(tables.translate_addr(page(n).start_address() + 5), Some(frame.start_address() + 5));
    }
    for (n, &frame) in (0..).zip(&mapped) {
        assert_eq!(tables.unmap(page(n)).unwrap().0, frame);
        // SAFETY: no thread maps it any more.
        unsafe { frames.deallocate_frame(frame) };
    }
    // SAFETY: no processor uses these tables.
    unsafe { tables.clean_up(&mut frames) };
    drop(cpu);
    assert_eq!(arena.allocator().free_pages(), 4095, "all but the root came back");
}

/// Notes the text and the fields of each event; and allocates, if there is an arena.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>, Option<SharedArena>);

impl tracing::Subscriber for Listener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "framewright"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn core::fmt::Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        let allocates = |arena: &SharedArena| arena.alloc_block(Order::ZERO, Migratetype::Movable).is_ok();
        assert!(self.1.as_ref().is_none_or(allocates));
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn listeners_are_told_what_an_arena_does() {
    let listener = Listener::default();
    tracing::subscriber::with_default(listener.clone(), || {
        let make = || Arena::builder().bytes(16 << 20).cpus(1).prefault().build().unwrap();
        // While another thread meets an event for the first time, `tracing` may take it for one that no listener wants.
        let mut arena: Arena = make();
        while listener.0.lock().unwrap().is_empty() {
            tracing::callsite::rebuild_interest_cache();
            arena = make();
        }
        let cpu = arena.attach().unwrap();
        assert!(arena.attach().is_err());
        let held: Vec<_> =
            core::iter::from_fn(|| cpu.alloc_block(Order::ZERO, Migratetype::Movable).ok()).collect();
        assert_eq!(held.len(), 4096);
        drop(held);
        cpu.hwpoison(Pfn(7)).unwrap();
        assert!(cpu.trim(Order::ZERO).pages > 4000);
    });
    let told = listener.0.lock().unwrap().clone();
    let wanted = [
        "DEBUG message=arena made pages=4096 page_bytes=4096 nodes=1 slots=1",
        "DEBUG message=no CPU to attach to cpus=1",
        "DEBUG message=allocation failed order=0 migratetype=Movable error=",
        "WARN message=a frame is bad pfn=7 found=Withdrawn",
        "DEBUG message=memory given back to the system pages=4095",
    ];
    for (line, wanted) in told.iter().zip(wanted) {
        assert!(line.starts_with(wanted), "{wanted}: {told:#?}");
    }
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
}

/// A listener may allocate from the arena that tells it of something, also where all CPUs are taken.
#[test]
fn a_listener_allocates_during_a_call_through_the_spare_cpu() {
    let arena: SharedArena = Arena::builder().bytes(4 << 20).cpus(1).build_shared().unwrap();
    let _only = arena.attach().unwrap();
    let listener = Listener(Arc::default(), Some(arena.clone()));
    tracing::subscriber::with_default(listener.clone(), || {
        while listener.0.lock().unwrap().is_empty() {
            tracing::callsite::rebuild_interest_cache();
            arena.trim(Order::ZERO);
        }
    });
}
