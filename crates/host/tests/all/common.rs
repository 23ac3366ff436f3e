//! Helpers of this crate's tests: one way to make an arena, an oracle, and threads that are ended without
//! notice.
#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses its own part of this")]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

use framewright_host::framewright::stat::Totals;
use framewright_host::framewright::verify::Account;
use framewright_host::{
    Arena, ArenaBuilder, Backing, CacheError, Config, Cpu, FrameUser, Migratetype, Order, Pfn,
};

/// Frames per MiB.
pub(crate) const MIB: u64 = 256;

pub(crate) const TYPES: [Migratetype; 3] =
    [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable];

pub(crate) fn order(order: u8) -> Order {
    Order::new(order).expect("an order from 0 to 10")
}

/// Frames without memory, four CPU slots.
pub(crate) fn described(pages: u64, config: Config) -> ArenaBuilder {
    Arena::builder().pages(pages).backing(Backing::Described).cpus(4).config(config)
}

/// Owners of frames, by what callers were told alone.
pub(crate) struct Oracle(Box<[AtomicU8]>);

impl Oracle {
    pub(crate) fn new(frames: u64) -> Self {
        Self((0..frames).map(|_| AtomicU8::new(0)).collect())
    }

    fn block(&self, pfn: Pfn, order: Order) -> &[AtomicU8] {
        assert!(pfn.is_aligned(order), "{pfn:?} is no place for {order:?}");
        &self.0[pfn.0 as usize..][..order.pages() as usize]
    }

    /// Notes that a block was handed out to `owner`, not 0. Called right after.
    pub(crate) fn handed_out(&self, pfn: Pfn, order: Order, owner: u8) {
        for (frame, n) in self.block(pfn, order).iter().zip(0..) {
            if let Err(holder) = frame.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Acquire) {
                panic!("{:?} was handed out to {owner} while {holder} had it", pfn.add(n));
            }
        }
    }

    /// Notes that a block's owner is about to free it.
    pub(crate) fn given_back(&self, pfn: Pfn, order: Order) {
        for (frame, n) in self.block(pfn, order).iter().zip(0..) {
            assert_ne!(frame.swap(0, Ordering::AcqRel), 0, "{:?} was free already", pfn.add(n));
        }
    }

    /// Frames that have an owner.
    pub(crate) fn taken(&self) -> u64 {
        self.0.iter().filter(|frame| frame.load(Ordering::Relaxed) != 0).count() as u64
    }
}

/// Everything that can be seen of an arena while no thread uses it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sight {
    account: Account,
    totals: Totals,
    zoneinfo: String,
    buddyinfo: String,
}

pub(crate) fn sight<M: FrameUser>(arena: &Arena<M>) -> Sight {
    let allocator = arena.allocator();
    Sight {
        account: account(arena),
        totals: allocator.totals(),
        zoneinfo: allocator.zoneinfo().to_string(),
        buddyinfo: allocator.buddyinfo().to_string(),
    }
}

pub(crate) fn account<M: FrameUser>(arena: &Arena<M>) -> Account {
    arena.allocator().verify().unwrap_or_else(|violation| panic!("{violation}"))
}

/// Every page is free and on the buddy lists, and nothing is wrong.
#[track_caller]
pub(crate) fn assert_all_free<M: FrameUser>(arena: &Arena<M>) {
    let account = account(arena);
    let frames = arena.frames();
    assert_eq!(account.free, frames.end.0 - frames.start.0, "{account:?}");
    assert_eq!((account.on_pcp, account.allocated, account.quarantined), (0, 0, 0));
}

/// Frees a raw block that the test owns.
#[track_caller]
pub(crate) fn free<M: FrameUser>(cpu: &Cpu<'_, M>, pfn: Pfn, order: Order) {
    // SAFETY: tests of raw frames use no `Block`s and no memory.
    unsafe { cpu.free(pfn, order) }.unwrap_or_else(|error| panic!("{error}"));
}

/// Runs `f` on a thread of its own which then ends immediately: no destructor runs, neither of what `f` left on its
/// stack nor of thread-locals. Returns when the kernel has cleaned up after it.
pub(crate) fn run_and_kill<'a>(f: impl FnOnce() + Send + 'a) {
    type Task<'a> = Box<dyn FnOnce() + Send + 'a>;

    extern "C" fn main(task: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: made below from a box, and given to this thread alone.
        let task = unsafe { Box::from_raw(task.cast::<Task<'_>>()) };
        if std::panic::catch_unwind(core::panic::AssertUnwindSafe(task)).is_err() {
            std::process::abort();
        }
        // SAFETY: ends this thread. Its stack is freed by the join, and holds nothing that needs dropping.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        unreachable!("the thread has ended")
    }

    let task: *mut Task<'a> = Box::into_raw(Box::new(Box::new(f)));
    // SAFETY: `main` takes over the task. It borrows for `'a`, and is over when the join below returns.
    unsafe {
        let mut thread = MaybeUninit::uninit();
        assert_eq!(libc::pthread_create(thread.as_mut_ptr(), core::ptr::null(), main, task.cast()), 0);
        assert_eq!(libc::pthread_join(thread.assume_init(), core::ptr::null_mut()), 0);
    }
}

/// Nanoseconds that this thread has run: other work of the machine in the meantime is not counted.
pub(crate) fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Tries again what a faulty device failed.
pub(crate) fn insist<T>(mut call: impl FnMut() -> Result<T, CacheError>) -> T {
    for _ in 0..1000 {
        match call() {
            Ok(value) => return value,
            Err(CacheError::Io(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("a thousand failures in a row");
}
