//! All checks of the allocator, in one binary.
#![deny(unsafe_code)]

mod accounts;
mod frames;
mod histories;
mod lists;
mod locks;
mod many_threads;
mod noticed;
mod schedules;
mod shortage;
mod small_worlds;
mod twins;
mod violations;
mod wrong_frees;

use framewright::error::FreeError;
use framewright::reclaim::Release;
use framewright::{Order, Pfn};

/// Frees a block from within a reclaimer.
#[expect(unsafe_code, reason = "a reclaimer vouches for what it frees")]
fn give(to: &dyn Release, pfn: Pfn, order: Order) -> Result<(), FreeError> {
    // SAFETY: nothing lies behind these frames: no memory is at stake, whoever owns them.
    unsafe { to.free(pfn, order) }
}
