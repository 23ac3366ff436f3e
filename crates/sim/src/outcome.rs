//! Result of a run of tasks, and the caches that they run with.

use core::cell::RefCell;
use std::rc::Rc;

use crate::clock::Ps;
use crate::engine::{self, Events, Moved};
use crate::model::Model;
use crate::task::Usage;
use crate::world::{StructPage, World};

/// How long things take, about: a slice begins with as many CPUs in the middle of something as that takes of the whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// Time of user work for the time that it takes alone on a core.
    pub user: f64,
    /// A fault, lock and all, in ns.
    pub fault_ns: f64,
    /// A free, lock and all, in ns.
    pub free_ns: f64,
}

impl Default for Pace {
    /// Without contention.
    fn default() -> Self {
        Self { user: 1.0, fault_ns: 1500.0, free_ns: 500.0 }
    }
}

/// Time that faults and frees took.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Paid {
    /// Faults, and their time.
    pub faults: (u64, Ps),
    /// Pages freed, and the time of that.
    pub frees: (u64, Ps),
}

impl Paid {
    /// Each, with what user work took; `before` where there was none.
    #[must_use]
    pub fn pace(&self, usage: &Usage, before: Pace) -> Pace {
        let each =
            |(count, time): (u64, Ps), before| if count == 0 { before } else { time.as_ns() / count as f64 };
        Pace {
            user: if usage.work > Ps(0) { usage.user.as_ns() / usage.work.as_ns() } else { before.user },
            fault_ns: each(self.faults, before.fault_ns),
            free_ns: each(self.frees, before.free_ns),
        }
    }
}

/// Ledger in which tasks, which live on one host thread, write what they paid.
pub(crate) type Till = Rc<RefCell<Paid>>;

/// Does it, and writes down its time.
pub(crate) fn pay<T>(
    till: &Till,
    which: fn(&mut Paid) -> &mut (u64, Ps),
    pages: u64,
    work: impl FnOnce() -> T,
) -> T {
    let start = engine::now();
    let got = work();
    let paid = &mut *till.borrow_mut();
    let (count, time) = which(paid);
    *count += pages;
    *time += engine::now().since(start);
    got
}

/// Result of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Time by cause.
    pub usage: Usage,
    /// By zone: acquisitions of the lock, ns waited for it, ns held.
    pub locks: Vec<[u64; 3]>,
    /// Traffic of memory and caches.
    pub moved: Moved,
    /// Event counters.
    pub events: Events,
    /// Times of faults and frees.
    pub paid: Paid,
}

impl Outcome {
    /// Of a world after a run.
    pub(crate) fn of(world: &World<StructPage>, usage: Usage) -> Self {
        let allocator = world.allocator();
        let lock = |zone: &framewright::zone::Zone<_>| {
            let cpus = 0..allocator.cpus() as u16;
            cpus.map(|cpu| allocator.pcp(zone.id(), framewright::CpuId(cpu)).events()).fold(
                [0; 3],
                |[locks, wait, hold], pcp| {
                    [locks + pcp.lock_acquisitions, wait + pcp.lock_wait_ns, hold + pcp.lock_hold_ns]
                },
            )
        };
        Self {
            usage,
            locks: allocator.zones().iter().map(lock).collect(),
            moved: world.simulator().moved(),
            events: world.simulator().events(),
            paid: Paid::default(),
        }
    }

    /// The locks of all zones together.
    #[must_use]
    pub fn all_locks(&self) -> [u64; 3] {
        self.locks.iter().fold([0; 3], |sum, lock| core::array::from_fn(|n| sum[n] + lock[n]))
    }

    /// This result without the use of the locks before the run.
    pub(crate) fn since(mut self, before: &[[u64; 3]]) -> Self {
        for (after, before) in self.locks.iter_mut().zip(before) {
            *after = [after[0] - before[0], after[1] - before[1], after[2] - before[2]];
        }
        self
    }
}

/// Lets caches hold of the descriptors only what pages that are cleared and used leave them: a page's own 64 lines, and
/// in the second level as many again of the program's.
///
/// `share` is a factor on both: how much that is in truth is not known.
pub(crate) fn leave_little_cache(world: &mut World<StructPage>, model: &Model, share: f64) {
    let shared = |lines: u32| (f64::from(lines) * share) as u32;
    let l2 = shared(model.caches.l2 / 128);
    world.limit_frame_caches([l2, l2, shared(model.caches.l3 / 64)]);
}
