//! Storage and threads that have a bad day, on purpose: to see what becomes of a program then.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use crate::arena::PAGE_BYTES;
use crate::files::FileCache;

impl FileCache<'_> {
    /// Has `per_thousand` of a thousand reads and writes fail: to see what becomes of a program then. A write that
    /// fails has written half of its pages.
    pub fn inject_faults(&self, per_thousand: u64) {
        self.cache.device().faults.failing.store(per_thousand, Relaxed);
    }

    /// Has `per_thousand` of a thousand syncs fail.
    pub fn inject_sync_faults(&self, per_thousand: u64) {
        self.cache.device().faults.failing_syncs.store(per_thousand, Relaxed);
    }

    /// Has every write fail that goes beyond `bytes` bytes of a file, as if the disk were full; 0 for no limit.
    pub fn inject_full(&self, bytes: u64) {
        self.cache.device().faults.full_at.store(bytes, Relaxed);
    }

    /// Has `per_thousand` of a thousand reads and writes take `delay` longer.
    pub fn inject_delays(&self, per_thousand: u64, delay: Duration) {
        self.cache.device().faults.delay_ns.store(delay.as_nanos() as u64, Relaxed);
        self.cache.device().faults.delayed.store(per_thousand, Relaxed);
    }

    /// Has storage read and write at most `bytes_per_second`, all files together, as a slower disk
    /// would; 0 for no limit.
    pub fn limit_storage(&self, bytes_per_second: u64) {
        let page_ns = (PAGE_BYTES as u64 * 1_000_000_000).checked_div(bytes_per_second).unwrap_or(0);
        self.cache.device().faults.page_ns.store(page_ns, Relaxed);
    }

    /// Has the next background thread that is woken sleep so long before it does anything.
    pub fn stall_background(&self, stall: Duration) {
        self.stall_ns.store(stall.as_nanos() as u64, Relaxed);
    }
}
