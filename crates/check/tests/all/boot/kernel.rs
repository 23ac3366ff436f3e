//! A kernel's allocator in a `static`: ranges first, then the allocator and a view for each CPU.
#![expect(unsafe_code, reason = "a test vouches for its CPUs and its memory as a kernel does")]

use core::alloc::Layout;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::alloc_zeroed;

use framewright::error::SetupError;
use framewright::kernel::KernelAllocator;
use framewright::{Config, CpuId, Migratetype::Movable, Order, Pfn};

const FIRST: Pfn = Pfn(1 << 18);

/// Memory for an allocator's own structures, wherever its frames are.
fn room(range: &Range<Pfn>) -> Option<NonNull<u8>> {
    let bytes = ((range.end.0 - range.start.0) << 12) as usize;
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 4096).ok()?) })
}

#[test]
fn ranges_come_before_the_allocator_and_other_frames_later() {
    static KERNEL: KernelAllocator<2> = KernelAllocator::new();
    let (low, high) = (FIRST..FIRST.add(4096), FIRST.add(8192)..FIRST.add(12_288));
    // Without a whole frame: a reader of firmware ranges rounds their starts up and their ends down.
    let empty = [Pfn(0)..Pfn(0), Pfn(8)..Pfn(7), Pfn(u64::MAX)..Pfn(u64::MAX)];
    // SAFETY: one thread makes all calls, one view at a time, and the frames are numbers.
    unsafe {
        assert!(KERNEL.cpu(CpuId(0)).is_none(), "nothing is made");
        for range in empty {
            assert_eq!(KERNEL.give(range), Ok(()));
        }
        assert_eq!(KERNEL.make(2, Config::default(), room), Err(SetupError::ZoneCount(0)));
        assert_eq!(KERNEL.give(low.clone()), Ok(()));
        assert_eq!(KERNEL.give(high), Ok(()));
        assert_eq!(KERNEL.make(3, Config::default(), room), Err(SetupError::CpuCount(3)));
        KERNEL.make(2, Config::default(), room).expect("there is room");
        assert_eq!(KERNEL.make(2, Config::default(), |_| None), Ok(()), "it is made already");
        let between = FIRST.add(4096)..FIRST.add(8192);
        assert_eq!(KERNEL.give(between.clone()), Err(between.clone()));

        let cpu = KERNEL.cpu(CpuId(1)).expect("it is made");
        assert!(core::ptr::eq(cpu, KERNEL.cpu(CpuId(1)).expect("as before")), "a view is made once");
        assert!(KERNEL.cpu(CpuId(2)).is_none(), "no such CPU");
        let allocator = cpu.allocator();
        assert_eq!((allocator.zones()[0].spec().start, allocator.zones()[0].spec().pages), (FIRST, 12_288));
        let before = allocator.free_pages();
        assert!((7000..8192).contains(&before), "{before}: all but its own structures");

        // Frames that were never handed out are added; the allocated block before them is freed.
        let block = cpu.alloc(Order::ZERO, Movable).expect("there is memory");
        cpu.free_or_add(block..block.add(1)).expect("it is allocated");
        cpu.free_or_add(between.clone()).expect("it is new");
        cpu.drain();
        assert_eq!(allocator.free_pages(), before + 4096);
        assert!(cpu.free_or_add(between).is_err(), "it is free");
        assert_eq!(allocator.free_pages(), before + 4096);
        assert!(allocator.verify().is_ok());
    }
}

#[test]
fn ranges_beyond_the_last_place_come_back() {
    static KERNEL: KernelAllocator<1> = KernelAllocator::new();
    // SAFETY: one thread makes all calls, and the frames are numbers.
    unsafe {
        for n in 0..64 {
            assert_eq!(KERNEL.give(FIRST.add(2 * n)..FIRST.add(2 * n + 1)), Ok(()));
        }
        let more = FIRST.add(128)..FIRST.add(129);
        assert_eq!(KERNEL.give(more.clone()), Err(more));
    }
}
