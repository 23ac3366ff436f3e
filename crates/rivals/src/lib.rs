//! Other allocators behind the [`Target`] trait, to be measured beside Framewright.
//!
//! | name | what it is | how it is used |
//! |---|---|---|
//! | [`vec_per_thread`] | a stack of frames per thread: nothing is shared, nothing coalesces | the practical limit |
//! | [`vec_mutex`] | the same stacks, one set behind a `std` mutex | |
//! | [`buddy_system_allocator`] | buddy lists of ordered sets, lowest address first | behind its own spin lock |
//! | [`frame_alloc`] | lock-free buddy bitmaps with summaries | the core alone |
//! | `frame_alloc_depot` | the same behind per-CPU magazines and a shared depot for single frames | its default sizes |
//! | `jemalloc` | thread caches over arenas of extents | tuned for CPU time, never purges |
//! | `mimalloc` | free lists in 64 KiB pages of one thread each | never purges |
//!
//! Each gets the same number of frames for the same number of CPUs, and the configuration that its own
//! documentation suggests for speed; each adapter says which. No page is touched, except by mimalloc, which
//! links free blocks through their first bytes.
//!
//! # Example
//! ```
//! use framewright_rivals::frame_alloc::FrameAlloc;
//! use framewright_workload::bench::{Case, Scale, Workload, measure};
//!
//! let target = FrameAlloc::new(1 << 14)?;
//! let case = Case::all(&[Workload::HotPair], &[0], &[1])[0];
//! for metric in measure(&target, &case, &Scale::tiny(), 0).metrics {
//!     println!("{}: {} {}", metric.name, metric.value, metric.unit);
//! }
//! # Ok::<(), String>(())
//! ```
#![deny(unsafe_code)]

pub mod buddy_system_allocator;
pub mod frame_alloc;
#[cfg(feature = "jemalloc")]
pub mod jemalloc;
#[cfg(any(feature = "jemalloc", feature = "mimalloc"))]
mod limit;
#[cfg(feature = "mimalloc")]
pub mod mimalloc;
mod stacks;
pub mod vec_mutex;
pub mod vec_per_thread;

use framewright_workload::bench::{Allocator, Runner};
use framewright_workload::target::Target;

/// Largest order that any rival hands out, as Framewright and Linux do.
const MAX_ORDER: u8 = 10;

/// An allocator to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Name in results.
    pub name: &'static str,
    /// Crate and version; empty for those that are written here.
    pub version: &'static str,
    /// Frees coalesce, so that larger blocks can be had again.
    pub coalesces: bool,
}

/// All rivals of this build, in the order they print.
pub const RIVALS: &[Rival] = &[
    Rival { name: "vec_per_thread", version: "", coalesces: false },
    Rival { name: "vec_mutex", version: "", coalesces: false },
    Rival { name: "buddy_system_allocator", version: "buddy_system_allocator 0.13.0", coalesces: true },
    Rival { name: "frame_alloc", version: "frame-alloc 0.1.0", coalesces: true },
    Rival { name: "frame_alloc_depot", version: "frame-alloc 0.1.0", coalesces: true },
    #[cfg(feature = "jemalloc")]
    Rival { name: "jemalloc", version: jemalloc::VERSION, coalesces: true },
    #[cfg(feature = "mimalloc")]
    Rival { name: "mimalloc", version: mimalloc::VERSION, coalesces: true },
];

/// A runner for each of [`RIVALS`], in that order.
#[must_use]
pub fn runners() -> Vec<Box<dyn Runner>> {
    vec![
        boxed("vec_per_thread", vec_per_thread::VecPerThread::new),
        boxed("vec_mutex", |frames, _| vec_mutex::VecMutex::new(frames)),
        boxed("buddy_system_allocator", |frames, _| buddy_system_allocator::BuddySystem::new(frames)),
        boxed("frame_alloc", |frames, _| frame_alloc::FrameAlloc::new(frames)),
        boxed("frame_alloc_depot", frame_alloc::FrameAllocDepot::new),
        #[cfg(feature = "jemalloc")]
        boxed("jemalloc", |frames, cpus| Ok(jemalloc::Jemalloc::new(frames, cpus))),
        #[cfg(feature = "mimalloc")]
        boxed("mimalloc", |frames, cpus| Ok(mimalloc::Mimalloc::new(frames, cpus))),
    ]
}

fn boxed<T, F>(name: &str, build: F) -> Box<dyn Runner>
where
    T: Target + 'static,
    F: FnMut(u64, usize) -> Result<T, String> + 'static,
{
    Box::new(Allocator::new(name, build))
}
