//! A frame goes bad while it is in use: once freed, it is found when a list is refilled, and never handed out again.

use framewright::config::RefillCheck;
use framewright::{Migratetype, Order};

use super::support::{Books, Chain};
use crate::kernel::{Kernel, Page};
use crate::log;

/// Pages allocated in search of the bad one: more than the blocks at the front of the lists hold.
const SEARCHED: u64 = 20_000;

pub(super) fn run(kernel: &'static Kernel) {
    if kernel.pages.config().experiment.refill_check == RefillCheck::Off {
        log!("quarantine: frames are not checked on this machine; say `check` on the command line");
        return;
    }
    let before = Books::read(kernel);
    let bad = kernel.alloc(Order::ZERO, Migratetype::Movable).unwrap_or_else(|error| panic!("{error}"));
    kernel.slot(bad, Order::ZERO, bad, |slot| slot.flags |= Page::BAD);
    kernel.free(bad, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
    // Onto the buddy lists: what is on a CPU's list has been checked.
    kernel.with_cpu(|cpu| cpu.drain());
    let chain = Chain::new();
    for _ in 0..SEARCHED {
        let pfn = kernel.alloc(Order::ZERO, Migratetype::Movable).unwrap_or_else(|error| panic!("{error}"));
        assert!(pfn != bad, "{bad:?} was handed out, and is bad");
        chain.push(kernel, pfn, Order::ZERO);
    }
    while let Some((pfn, order)) = chain.pop(kernel) {
        kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
    }
    let after = Books::read(kernel);
    assert_eq!(after.0.quarantined, before.0.quarantined + 1, "{bad:?} was not found");
    let error = kernel.free(bad, Order::ZERO).expect_err("it is out of use");
    log!("quarantine: {bad:?} was found and is out of use; {error}");
}
