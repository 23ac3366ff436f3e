//! All checks of the allocator, in one binary.
#![deny(unsafe_code)]

mod accounts;
mod after_a_kill;
mod bulk;
mod compaction;
mod damaged_lists;
mod exhausted_zone;
mod explanations;
mod fast_path;
mod faults;
mod given;
mod handover;
mod high_order_atomic;
mod histories;
mod hwpoison;
mod list_sizes;
mod locks;
mod many_threads;
mod maps;
mod marks;
mod noticed;
mod owners;
mod pageblocks;
mod reclaimers;
mod refill_check;
mod reports;
mod requests;
mod schedules;
mod small_lists;
mod small_worlds;
mod twins;
mod violations;
mod wakeups;
mod wrong_frees;
mod zonelists;

use framewright::error::FreeError;
use framewright::reclaim::Release;
use framewright::{Order, Pfn};

/// Frees a block from within a reclaimer.
#[expect(unsafe_code, reason = "a reclaimer vouches for what it frees")]
fn give(to: &dyn Release, pfn: Pfn, order: Order) -> Result<(), FreeError> {
    // SAFETY: nothing lies behind these frames: no memory is at stake, whoever owns them.
    unsafe { to.free(pfn, order) }
}
