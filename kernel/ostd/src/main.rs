//! A small kernel on ostd, Asterinas' framework, that boots with Framewright or with osdk-frame-allocator as its frame
//! allocator and runs the same work on either. `kernel/ostd/test` boots both.
#![no_std]
#![no_main]
#![deny(unsafe_code)]

#[cfg(feature = "framewright")]
mod frames;

use core::alloc::Layout;
use core::hint::{black_box, spin_loop};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ostd::arch::read_tsc;
use ostd::mm::frame::GlobalFrameAllocator;
use ostd::mm::{FrameAllocOptions, PAGE_SIZE, UniqueFrame};
use ostd::prelude::*;
use ostd::sync::SpinLock;

#[cfg(feature = "framewright")]
#[ostd::global_frame_allocator]
static FRAMES: frames::Frames = frames::Frames;
#[cfg(not(feature = "framewright"))]
#[ostd::global_frame_allocator]
static FRAMES: osdk_frame_allocator::FrameAllocator = osdk_frame_allocator::FrameAllocator;

#[ostd::global_heap_allocator]
static HEAP: osdk_heap_allocator::HeapAllocator = osdk_heap_allocator::HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slots(layout: Layout) -> Option<ostd::mm::heap::SlotInfo> {
    osdk_heap_allocator::type_from_layout(layout)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    println!("panic: {}", info);
    ostd::power::poweroff(ostd::power::ExitCode::Failure)
}

const PAIRS: u64 = 100_000;
/// Room for the frames that a test holds: all of 8 GiB.
static HELD: SpinLock<[u32; 2 << 20]> = SpinLock::new([0; 2 << 20]);
static ONLINE: AtomicUsize = AtomicUsize::new(0);
static PHASE: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);

fn pages(n: usize) -> Layout {
    Layout::from_size_align(n * PAGE_SIZE, PAGE_SIZE).expect("a layout")
}

fn frames() -> &'static dyn GlobalFrameAllocator {
    black_box(&FRAMES)
}

/// Layouts of osdk-frame-allocator's own test: an allocation is aligned, and every frame of it is unused in ostd's
/// metadata. The frames come back by the two ways that its test and ostd take.
fn layouts() {
    for (n, align) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 4), (8, 8), (16, 16)] {
        let layout = Layout::from_size_align(n * PAGE_SIZE, align * PAGE_SIZE).expect("a layout");
        for is_added in [true, false] {
            let addr = frames().alloc(layout).expect("there is memory");
            assert!(addr.is_multiple_of(layout.align()), "{:?} at {:#x}", layout, addr);
            for frame in (addr..addr + layout.size()).step_by(PAGE_SIZE) {
                UniqueFrame::from_unused(frame, ()).expect("the frame is unused").reset_as_unused();
            }
            if is_added {
                frames().add_free_memory(addr, layout.size());
            } else {
                frames().dealloc(addr, layout.size());
            }
        }
    }
    println!("layouts: ok");
}

/// Ticks of the time stamp counter, which are instructions with `-icount shift=0`, for one of `n` rounds.
fn measure(what: &str, n: u64, mut round: impl FnMut()) {
    round();
    let from = read_tsc();
    for _ in 0..n {
        round();
    }
    let ticks = read_tsc() - from;
    println!("figure {}: {}.{}", what, ticks / n, ticks % n * 10 / n);
}

fn pair() {
    let frames = frames();
    let frame = frames.alloc(pages(1)).expect("there is memory");
    frames.dealloc(black_box(frame), PAGE_SIZE);
}

/// Takes every frame there is, sees each once, and gives them back. Returns how many.
fn all_of_memory() -> usize {
    let mut held = HELD.lock();
    let mut n = 0;
    while let Some(addr) = frames().alloc(pages(1)) {
        held[n] = (addr / PAGE_SIZE) as u32;
        n += 1;
    }
    held[..n].sort_unstable();
    assert!(held[..n].windows(2).all(|pair| pair[0] < pair[1]), "a frame twice");
    for &frame in &held[..n] {
        frames().dealloc(frame as usize * PAGE_SIZE, PAGE_SIZE);
    }
    n
}

/// The largest run that can be had, in frames, to within an eighth.
fn largest() -> usize {
    let mut best = 0;
    for order in 0..20 {
        for eighths in 8..16 {
            let n = ((1 << order) * eighths) / 8;
            if let Some(addr) = frames().alloc(pages(n)) {
                best = best.max(n);
                frames().dealloc(addr, n * PAGE_SIZE);
            }
        }
    }
    best
}

/// A million allocations and frees of single frames in random order, of which at most `most` are held together. The
/// largest run while `kept` of those that are left are held.
fn churn(most: usize, kept: usize) -> usize {
    let mut held = HELD.lock();
    let (mut n, mut state) = (0, 0x9e37_79b9_7f4a_7c15_u64);
    let mut failed = 0;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let mut take = |held: &mut [u32], n: &mut usize| match frames().alloc(pages(1)) {
        Some(addr) => {
            held[*n] = (addr / PAGE_SIZE) as u32;
            *n += 1;
        }
        None => failed += 1,
    };
    for _ in 0..most {
        take(&mut *held, &mut n);
    }
    println!("churn: {} frames held", n);
    for _ in 0..1_000_000 {
        if n == 0 || (n < most && random(2) == 0) {
            take(&mut *held, &mut n);
        } else {
            let at = random(n);
            frames().dealloc(held[at] as usize * PAGE_SIZE, PAGE_SIZE);
            n -= 1;
            held[at] = held[n];
        }
    }
    while n > kept {
        let at = random(n);
        frames().dealloc(held[at] as usize * PAGE_SIZE, PAGE_SIZE);
        n -= 1;
        held[at] = held[n];
    }
    println!("churn: {} frames held", n);
    println!("churn: {} allocations refused", failed);
    let best = largest();
    for &frame in &held[..n] {
        frames().dealloc(frame as usize * PAGE_SIZE, PAGE_SIZE);
    }
    best
}

/// Frames that one CPU allocates and the next one frees, and segments that fall apart.
fn on_each_cpu(cpu: usize) {
    let options = options();
    for round in 0..2_000 {
        pair();
        let segment = options.alloc_segment(1 + (round + cpu) % 9).expect("there is memory");
        let first = segment.slice(&(0..PAGE_SIZE));
        drop(segment);
        drop(first);
        let frame = (frames().alloc(pages(1)).expect("there is memory") / PAGE_SIZE) as u32;
        let left = core::mem::replace(&mut MAILBOX.lock()[(cpu + round) % 8], frame);
        if left != 0 {
            frames().dealloc(left as usize * PAGE_SIZE, PAGE_SIZE);
        }
    }
}
static MAILBOX: SpinLock<[u32; 8]> = SpinLock::new([0; 8]);

fn options() -> FrameAllocOptions {
    let mut options = FrameAllocOptions::new();
    options.zeroed(false);
    options
}

/// Every other CPU: returning would want a task to switch to.
fn other_cpu() {
    let cpu = ONLINE.fetch_add(1, SeqCst) + 1;
    while PHASE.load(SeqCst) == 0 {
        spin_loop();
    }
    on_each_cpu(cpu);
    DONE.fetch_add(1, SeqCst);
    loop {
        spin_loop();
    }
}

#[ostd::main]
fn kernel_main() {
    let cpus = ostd::cpu::num_cpus();
    println!("cpus {}", cpus);
    if cpus > 1 {
        ostd::boot::smp::register_ap_entry(other_cpu);
        while ONLINE.load(SeqCst) < cpus - 1 {
            spin_loop();
        }
        PHASE.store(1, SeqCst);
        on_each_cpu(0);
        while DONE.load(SeqCst) < cpus - 1 {
            spin_loop();
        }
        for frame in core::mem::take(&mut *MAILBOX.lock()).into_iter().filter(|frame| *frame != 0) {
            frames().dealloc(frame as usize * PAGE_SIZE, PAGE_SIZE);
        }
        println!("rounds on all CPUs: done");
    }
    layouts();
    let options = options();
    // Ticks are instructions on one CPU only.
    if cpus == 1 {
        measure("one frame", PAIRS, pair);
        for (what, n) in [("segment of 2", 2), ("segment of 8", 8), ("segment of 512", 512)] {
            measure(what, 1000, || drop(black_box(options.alloc_segment(n).expect("there is memory"))));
        }
    }
    for n in [1024, 1025, 65_536] {
        match options.alloc_segment(n) {
            Ok(segment) => println!("request of {} frames: served, {} bytes", n, segment.size()),
            Err(error) => println!("request of {} frames: {:?}", n, error),
        }
    }
    let total = all_of_memory();
    println!("figure frames: {}", total);
    println!("figure largest run before: {}", largest());
    println!("figure largest run after churn: {}", churn(total / 2, total / 2));
    // With osdk-frame-allocator it does not end.
    if cfg!(any(feature = "framewright", feature = "churn")) {
        println!("figure largest run at half after churn: {}", churn(total * 9 / 10, total / 2));
        println!("frames after churn: {}", if all_of_memory() == total { "all" } else { "LOST" });
    }
    println!("end");
    ostd::power::poweroff(ostd::power::ExitCode::Success);
}
