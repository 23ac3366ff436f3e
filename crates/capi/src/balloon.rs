//! What a caller's reclaimer and balloon are: functions that are called when memory runs short, and the blocks that the
//! balloon holds.
#![expect(unsafe_code, reason = "C passes pointers and functions")]

use core::cell::Cell;
use core::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use framewright_host::framewright::reclaim::{
    Migrate, Migrated, Reclaim, ReclaimRequest, Reclaimed, Release,
};
use framewright_host::{Order, Pfn};

use crate::status::{self, fw_status};

/// Request to a reclaimer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_ask {
    /// From which zone.
    pub zone: u32,
    /// Its node.
    pub node: u32,
    /// The order of the request behind it.
    pub order: u32,
    /// How hard: look at `pages >> priority` of what there is.
    pub priority: u32,
    /// Base pages that are enough.
    pub target: u64,
    /// First frame of the zone, and the first after it: pages elsewhere do not help.
    pub first: u64,
    /// The first frame behind the zone.
    pub end: u64,
    /// Not 0: it may wait for a device.
    pub may_wait: u32,
}

/// Sink for the pages that a reclaimer gives back: valid during the call that it was passed to.
#[derive(Debug)]
pub struct fw_release {
    pub(crate) to: *const c_void,
    pub(crate) free: unsafe fn(*const c_void, Pfn, Order) -> fw_status,
    pub(crate) freed: Cell<u64>,
}

/// A reclaimer: gives back pages with `fw_release_free` and returns how many base pages it looked at. It is called on
/// the thread that allocates, and on the one that runs `fw_run_background`, with no lock held; it may free through this
/// thread's own handles, too. It must not exit by `longjmp` or an exception. As in Linux, a request asks for each zone
/// with priority 12 and less, to 0, and of up to order 3 it does so 17 times before it fails.
pub type fw_reclaim_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, ask: *const fw_ask, to: *mut fw_release) -> u64>;

/// Callbacks of a balloon for a block: `inflated` when it has taken it from the arena (a guest tells its hypervisor
/// that it may have the memory), `deflated` before it gives it back.
pub type fw_balloon_fn = Option<unsafe extern "C" fn(context: *mut c_void, pfn: u64, order: u32)>;

/// Copies what is in the block of `order` at `from` to the one at `to` and uses that from now on: not 0. Or 0, if the
/// block is not its own, or has to stay. It is called on a thread that allocates, with no lock held, and with any
/// movable block.
pub type fw_migrate_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, from: u64, to: u64, order: u32) -> u32>;

/// The caller's functions, with what they are given.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) reclaim:
        OnceLock<(unsafe extern "C" fn(*mut c_void, *const fw_ask, *mut fw_release) -> u64, Context)>,
    pub(crate) balloon: OnceLock<BalloonHooks>,
    pub(crate) migrate: OnceLock<(unsafe extern "C" fn(*mut c_void, u64, u64, u32) -> u32, Context)>,
}

/// What the caller wants back with each call: may be used on any thread, which `fw_set_reclaim` asks for.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) *mut c_void);
// SAFETY: see above.
unsafe impl Send for Context {}
// SAFETY: see above.
unsafe impl Sync for Context {}

/// What the caller set for the balloon.
pub(crate) struct BalloonHooks {
    pub(crate) inflated: fw_balloon_fn,
    pub(crate) deflated: fw_balloon_fn,
    pub(crate) context: Context,
    pub(crate) on_pressure: bool,
}

/// The blocks that an arena's balloon holds, and all that helps the arena.
#[derive(Default)]
pub(crate) struct Balloon {
    blocks: Mutex<Vec<(Pfn, Order)>>,
    pub(crate) hooks: Hooks,
    pub(crate) hooked: OnceLock<()>,
}

impl Balloon {
    pub(crate) fn blocks(&self) -> MutexGuard<'_, Vec<(Pfn, Order)>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Base pages in it.
    pub(crate) fn pages(&self) -> u64 {
        self.blocks().iter().map(|(_, order)| order.pages()).sum()
    }

    pub(crate) fn tell(&self, function: impl Fn(&BalloonHooks) -> fw_balloon_fn, pfn: Pfn, order: Order) {
        if let Some(hooks) = self.hooks.balloon.get()
            && let Some(function) = function(hooks)
        {
            // SAFETY: by the promise of the caller that set it.
            unsafe { function(hooks.context.0, pfn.0, order.get().into()) };
        }
    }

    /// Gives back blocks that `wanted` names, until `pages` are: each through `free`. Those of at least `order` first,
    /// of which a request of that order needs one. Returns the pages.
    pub(crate) fn deflate(
        &self,
        pages: u64,
        order: Order,
        wanted: impl Fn(Pfn) -> bool,
        mut free: impl FnMut(Pfn, Order) -> bool,
    ) -> u64 {
        let mut given = 0;
        while given < pages {
            let mut blocks = self.blocks();
            let find = |least| blocks.iter().rposition(|&(pfn, order)| order >= least && wanted(pfn));
            let Some(at) = find(order).or_else(|| find(Order::ZERO)) else { break };
            let (pfn, order) = blocks.swap_remove(at);
            drop(blocks);
            self.tell(|hooks| hooks.deflated, pfn, order);
            if free(pfn, order) {
                given += order.pages();
            }
        }
        given
    }
}

/// Frees through a `&dyn Release` whose address was hidden in an `fw_release`.
///
/// # Safety
/// `to` is the address of a `&dyn Release` that is alive, and the block is the caller's.
unsafe fn release(to: *const c_void, pfn: Pfn, order: Order) -> fw_status {
    // SAFETY: by the caller's promise.
    let to: &dyn Release = unsafe { *to.cast::<&dyn Release>() };
    // SAFETY: by the caller's promise.
    status::freed(unsafe { to.free(pfn, order) })
}

// SAFETY: the caller that set the function vouches for it (`fw_set_migrate`).
unsafe impl Migrate for Balloon {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let Some((function, context)) = self.hooks.migrate.get() else { return Migrated::Stays };
        // SAFETY: by the promise of the caller that set it.
        let moved = unsafe { function(context.0, from.0, to.0, order.get().into()) };
        if moved == 0 { Migrated::Stays } else { Migrated::Moved }
    }
}

impl Reclaim for Balloon {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let mut done = Reclaimed::default();
        if let Some((function, context)) = self.hooks.reclaim.get() {
            let asked = fw_ask {
                zone: ask.zone.0.into(),
                node: ask.node.0.into(),
                order: ask.order.get().into(),
                priority: ask.priority.into(),
                target: ask.target,
                first: ask.ranges.first().map_or(0, |range| range.start.0),
                end: ask.ranges.last().map_or(0, |range| range.end.0),
                may_wait: ask.may_wait.into(),
            };
            let mut handle =
                fw_release { to: core::ptr::from_ref(&to).cast(), free: release, freed: Cell::new(0) };
            // SAFETY: by the promise of the caller that set it; both structures outlive the call.
            done.scanned = unsafe { function(context.0, &raw const asked, &raw mut handle) };
            done.freed = handle.freed.get();
        }
        let deflates = self.hooks.balloon.get().is_some_and(|hooks| hooks.on_pressure);
        if deflates && done.freed < ask.target {
            let pages = self.deflate(
                ask.target - done.freed,
                ask.order,
                |pfn| ask.wants(pfn),
                |pfn, order| {
                    // SAFETY: what is in the balloon is the balloon's, and the balloon is of this arena.
                    unsafe { to.free(pfn, order) }.is_ok()
                },
            );
            done.scanned += pages;
            done.freed += pages;
        }
        done
    }
}
