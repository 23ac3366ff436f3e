//! mimalloc, through its own interface, not as the program's allocator.
//!
//! Each thread owns "pages" of 64 KiB and more, each of one block size, and links its free blocks through their first
//! bytes: it touches what it frees. Frees by other threads go to a list of the page that its owner collects.
//! Up to 4 KiB a power of two is aligned by itself; up to 64 KiB it asks for size + alignment and aligns within;
//! above, it maps each block from the operating system and unmaps it again.
//!
//! Configured to keep the memory it has (`purge_delay` -1), which its documentation gives for speed.
#![expect(unsafe_code, reason = "C interface")]

use framewright_workload::target::{Mobility, Target, TargetCpu};
use libmimalloc_sys as mi;

use crate::limit::{Limit, Quota};

/// Crate and version.
pub const VERSION: &str = "libmimalloc-sys 0.1.49";

/// log2 of the frame's bytes.
const SHIFT: u32 = 12;

/// Number of the option `purge_delay` in the mimalloc that is compiled in, 3.3; the binding does not name it.
const PURGE_DELAY: mi::mi_option_t = 15;

/// mimalloc with a limit on frames. All instances share the one mimalloc of the process.
#[derive(Debug)]
pub struct Mimalloc {
    limit: Limit,
}

impl Mimalloc {
    /// Lets `cpus` CPUs allocate `frames` at a time.
    #[must_use]
    pub fn new(frames: u64, cpus: usize) -> Self {
        // SAFETY: the number is that of an option of this version.
        unsafe { mi::mi_option_set(PURGE_DELAY, -1) };
        Self { limit: Limit::new(frames, cpus) }
    }
}

impl Target for Mimalloc {
    type Cpu<'a> = Access<'a>;

    fn attach(&self, _cpu: usize) -> Access<'_> {
        Access { quota: self.limit.quota() }
    }
}

/// One thread's access; mimalloc finds the thread's heap itself.
#[derive(Debug)]
pub struct Access<'a> {
    quota: Quota<'a>,
}

impl TargetCpu for Access<'_> {
    #[inline]
    fn alloc(&mut self, order: u8, _mobility: Mobility) -> Option<u64> {
        if !self.quota.allocate(order) {
            return None;
        }
        let bytes = 1 << (SHIFT + u32::from(order));
        // SAFETY: any size and any power of two as alignment may be asked for.
        let block = unsafe { mi::mi_malloc_aligned(bytes, bytes) };
        if block.is_null() {
            self.quota.free(order);
            return None;
        }
        Some((block.expose_provenance() >> SHIFT) as u64)
    }

    #[inline]
    fn free(&mut self, frame: u64, order: u8) {
        let block = core::ptr::with_exposed_provenance_mut((frame as usize) << SHIFT);
        // SAFETY: by the contract of `TargetCpu`, `alloc` returned this block, and no thread uses it.
        unsafe { mi::mi_free(block) };
        self.quota.free(order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_one_it_should_be() {
        // SAFETY: no arguments.
        let version = unsafe { mi::mi_version() };
        assert_eq!(version, 30302, "check the number of purge_delay in include/mimalloc.h, then this line");
        _ = Mimalloc::new(1, 1);
        // SAFETY: the number is that of an option of this version.
        assert_eq!(unsafe { mi::mi_option_get(PURGE_DELAY) }, -1);
    }
}
