//! jemalloc, through its own interface, not as the program's allocator.
//!
//! Small sizes, 4 KiB among them, come from per-thread caches refilled from slabs under the arena's bin lock; larger
//! ones are extents of their own, up to 32 KiB (order 3; this version caps it there) cached per thread too,
//! otherwise found in a map and split or merged under the arena's lock. Records are apart from the blocks, so
//! pages stay untouched.
//!
//! Configured as its TUNING.md says for CPU time: dirty pages are kept (`dirty_decay_ms:-1`), metadata may use huge
//! pages. Padding against cache conflicts is compiled out: on aligned blocks it does nothing but enlarge them.
#![expect(unsafe_code, reason = "C interface")]

use core::ffi::{c_char, c_int, c_void};

use framewright_workload::target::{Mobility, Target, TargetCpu};
use tikv_jemalloc_sys as je;

use crate::limit::{Limit, Quota};

/// Crate and version.
pub const VERSION: &str = "tikv-jemalloc-sys 0.7.1+5.3.1-0-g81034ce1f1373e37dc865038e1bc8eeecf559ce8";

/// log2 of the frame's bytes.
const SHIFT: u32 = 12;

/// jemalloc reads this once, at its first call.
// SAFETY: the name is that of jemalloc's own (weak) symbol, and type and meaning are what it expects.
#[unsafe(export_name = "_rjem_malloc_conf")]
static CONFIG: Option<&'static c_char> = Some({
    let text = c"dirty_decay_ms:-1,muzzy_decay_ms:-1,metadata_thp:auto";
    // SAFETY: the pointer is to the first byte of a string that lives as long as the program.
    unsafe { &*text.as_ptr() }
});

/// jemalloc with a limit on frames. All instances share the one jemalloc of the process.
#[derive(Debug)]
pub struct Jemalloc {
    limit: Limit,
}

impl Jemalloc {
    /// Lets `cpus` CPUs allocate `frames` at a time.
    ///
    /// # Panics
    /// If jemalloc did not take its configuration: the program was linked with another one.
    #[must_use]
    pub fn new(frames: u64, cpus: usize) -> Self {
        assert!(dirty_decay_ms() == Some(-1), "jemalloc ignores its configuration: another one was linked");
        Self { limit: Limit::new(frames, cpus) }
    }
}

/// How long jemalloc keeps unused pages, as it says itself; -1: always.
fn dirty_decay_ms() -> Option<isize> {
    let mut value = 0_isize;
    let mut size = size_of::<isize>();
    // SAFETY: the name ends in 0, and the buffer is an ssize_t, as documented for `opt.dirty_decay_ms`.
    let status = unsafe {
        je::mallctl(
            c"opt.dirty_decay_ms".as_ptr(),
            (&raw mut value).cast::<c_void>(),
            &raw mut size,
            core::ptr::null_mut(),
            0,
        )
    };
    (status == 0 && size == size_of::<isize>()).then_some(value)
}

impl Target for Jemalloc {
    type Cpu<'a> = Access<'a>;

    fn attach(&self, _cpu: usize) -> Access<'_> {
        Access { quota: self.limit.quota() }
    }
}

/// One thread's access; jemalloc finds the thread's cache itself.
#[derive(Debug)]
pub struct Access<'a> {
    quota: Quota<'a>,
}

/// Blocks of one page lie at multiples of it in any case; with flags, calls of jemalloc leave its fast path.
#[inline]
const fn flags(order: u8) -> c_int {
    if order == 0 { 0 } else { je::MALLOCX_LG_ALIGN((SHIFT + order as u32) as usize) }
}

impl TargetCpu for Access<'_> {
    #[inline]
    fn alloc(&mut self, order: u8, _mobility: Mobility) -> Option<u64> {
        if !self.quota.allocate(order) {
            return None;
        }
        let size = 1 << (SHIFT + u32::from(order));
        // SAFETY: the size is not 0, and the alignment is a power of two.
        let block = unsafe {
            match flags(order) {
                0 => je::malloc(size),
                flags => je::mallocx(size, flags),
            }
        };
        if block.is_null() {
            self.quota.free(order);
            return None;
        }
        Some((block.expose_provenance() >> SHIFT) as u64)
    }

    #[inline]
    fn free(&mut self, frame: u64, order: u8) {
        let block = core::ptr::with_exposed_provenance_mut((frame as usize) << SHIFT);
        // SAFETY: by the contract of `TargetCpu`, `alloc` returned this block with this order, so with this size and
        // alignment, and no thread uses it.
        unsafe { je::sdallocx(block, 1 << (SHIFT + u32::from(order)), flags(order)) };
        self.quota.free(order);
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        // SAFETY: `thread.tcache.flush` takes and gives no value. What this thread cached goes back to its arenas.
        _ = unsafe {
            je::mallctl(
                c"thread.tcache.flush".as_ptr(),
                core::ptr::null_mut(),
                core::ptr::null_mut(),
                core::ptr::null_mut(),
                0,
            )
        };
    }
}
