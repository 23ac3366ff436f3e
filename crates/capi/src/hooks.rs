//! The caller's reclaim and balloon: functions that are called when memory runs short.
#![expect(unsafe_code, reason = "C passes pointers and functions")]

use core::cell::Cell;
use core::ffi::c_void;
use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use framewright_host::framewright::NodeId;
use framewright_host::framewright::reclaim::{Ask, Reclaim, Reclaimed, Release};
use framewright_host::{Flags, Migratetype, Order, Pfn, Request};

use crate::handle::{Kept, arena_of, fw_arena, fw_cpu, kept_of};
use crate::status::{self, Failure, fw_status};

/// What is wanted of a reclaimer.
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
    /// First frame of the zone, and the first behind it: pages elsewhere do not help.
    pub first: u64,
    /// The first frame behind the zone.
    pub end: u64,
    /// Not 0: it may wait for a device.
    pub may_wait: u32,
}

/// Where a reclaimer gives pages back: valid during the call that it was passed to.
#[derive(Debug)]
pub struct fw_release {
    to: *const c_void,
    free: unsafe fn(*const c_void, Pfn, Order) -> fw_status,
    freed: Cell<u64>,
}

/// A reclaimer: gives back pages with `fw_release_free` and returns how many base pages it looked at. It is called on the
/// thread that allocates, and on the one that runs `fw_run_background`, with no lock held; it may free through this
/// thread's own handles, too. It must not exit by `longjmp` or an exception.
pub type fw_reclaim_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, ask: *const fw_ask, to: *mut fw_release) -> u64>;

/// What a balloon does with a block: `inflated` when it has taken it from the arena (a guest tells its hypervisor that it
/// may have the memory), `deflated` before it gives it back.
pub type fw_balloon_fn = Option<unsafe extern "C" fn(context: *mut c_void, pfn: u64, order: u32)>;

/// The caller's functions, with what they are given.
#[derive(Default)]
struct Hooks {
    reclaim: OnceLock<(unsafe extern "C" fn(*mut c_void, *const fw_ask, *mut fw_release) -> u64, Context)>,
    balloon: OnceLock<BalloonHooks>,
}

/// What the caller wants back with each call: may be used on any thread, which `fw_set_reclaim` asks for.
#[derive(Clone, Copy)]
struct Context(*mut c_void);
// SAFETY: see above.
unsafe impl Send for Context {}
// SAFETY: see above.
unsafe impl Sync for Context {}

struct BalloonHooks {
    inflated: fw_balloon_fn,
    deflated: fw_balloon_fn,
    context: Context,
    on_pressure: bool,
}

/// The blocks that an arena's balloon holds, and all that helps the arena.
#[derive(Default)]
pub(crate) struct Balloon {
    blocks: Mutex<Vec<(Pfn, Order)>>,
    hooks: Hooks,
    hooked: OnceLock<()>,
}

impl fmt::Debug for Balloon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balloon").field("pages", &self.pages()).finish_non_exhaustive()
    }
}

impl Balloon {
    fn blocks(&self) -> MutexGuard<'_, Vec<(Pfn, Order)>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Base pages in it.
    pub(crate) fn pages(&self) -> u64 {
        self.blocks().iter().map(|(_, order)| order.pages()).sum()
    }

    fn tell(&self, function: impl Fn(&BalloonHooks) -> fw_balloon_fn, pfn: Pfn, order: Order) {
        if let Some(hooks) = self.hooks.balloon.get()
            && let Some(function) = function(hooks)
        {
            // SAFETY: by the promise of whoever set it.
            unsafe { function(hooks.context.0, pfn.0, order.get().into()) };
        }
    }

    /// Gives back blocks that `wanted` names, until `pages` are: each through `free`. Returns the pages.
    fn deflate(
        &self,
        pages: u64,
        wanted: impl Fn(Pfn) -> bool,
        mut free: impl FnMut(Pfn, Order) -> bool,
    ) -> u64 {
        let mut given = 0;
        while given < pages {
            let mut blocks = self.blocks();
            let Some(at) = blocks.iter().rposition(|&(pfn, _)| wanted(pfn)) else { break };
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
    match unsafe { to.free(pfn, order) } {
        Ok(()) => fw_status::FW_OK,
        Err(error) => status::fail(Failure::Free(error)),
    }
}

impl Reclaim for Balloon {
    fn reclaim(&self, ask: &Ask<'_>, to: &dyn Release) -> Reclaimed {
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
            let place: &dyn Release = to;
            let mut handle =
                fw_release { to: core::ptr::from_ref(&place).cast(), free: release, freed: Cell::new(0) };
            // SAFETY: by the promise of whoever set it; both structures outlive the call.
            done.scanned = unsafe { function(context.0, &raw const asked, &raw mut handle) };
            done.freed = handle.freed.get();
        }
        let deflates = self.hooks.balloon.get().is_some_and(|hooks| hooks.on_pressure);
        if deflates && done.freed < ask.target {
            let pages = self.deflate(
                ask.target - done.freed,
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

fn hook_up(kept: &Kept) {
    kept.balloon.hooked.get_or_init(|| {
        let reclaim: Arc<Balloon> = Arc::clone(&kept.balloon);
        kept.arena.set_reclaim(reclaim);
    });
}

/// Has `reclaim` asked for pages before an allocation fails. Once for good: `FW_ERR_BUSY` if one is set already.
///
/// # Safety
/// `arena` is NULL or was a handle. `reclaim` may be called with `context` on any thread that uses the arena, until the
/// arena is closed, and frees only blocks that are its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_set_reclaim(
    arena: *mut fw_arena,
    reclaim: fw_reclaim_fn,
    context: *mut c_void,
) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = match unsafe { arena_of(arena) } {
        Ok(kept) => kept,
        Err(status) => return status,
    };
    let Some(reclaim) = reclaim else { return status::null("the reclaimer is NULL") };
    if kept.balloon.hooks.reclaim.set((reclaim, Context(context))).is_err() {
        return status::plain(fw_status::FW_ERR_BUSY, "the arena has a reclaimer already");
    }
    hook_up(kept);
    fw_status::FW_OK
}

/// Gives a block back from within a reclaimer.
///
/// # Safety
/// `to` is what the reclaimer was passed, during that call; the block is the reclaimer's, and nobody uses its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_release_free(to: *mut fw_release, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let Some(to) = (unsafe { to.as_ref() }) else {
        return status::null("the place to give pages back to is NULL");
    };
    let Some(order) = u8::try_from(order).ok().and_then(Order::new) else {
        return status::plain(fw_status::FW_ERR_ARGUMENT, "the order is above FW_MAX_ORDER");
    };
    // SAFETY: made by `reclaim` above for the call that is under way; the block by the caller's promise.
    let status = unsafe { (to.free)(to.to, Pfn(pfn), order) };
    if status == fw_status::FW_OK {
        to.freed.set(to.freed.get() + order.pages());
    }
    status
}

/// Sets what an arena's balloon does with its blocks; either may be NULL. With `on_pressure` not 0, an allocation that
/// would fail deflates it first. Once for good: `FW_ERR_BUSY` if it was set already.
///
/// # Safety
/// As `fw_set_reclaim`, for both functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_set_balloon(
    arena: *mut fw_arena,
    inflated: fw_balloon_fn,
    deflated: fw_balloon_fn,
    context: *mut c_void,
    on_pressure: u32,
) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = match unsafe { arena_of(arena) } {
        Ok(kept) => kept,
        Err(status) => return status,
    };
    let hooks = BalloonHooks { inflated, deflated, context: Context(context), on_pressure: on_pressure != 0 };
    if kept.balloon.hooks.balloon.set(hooks).is_err() {
        return status::plain(fw_status::FW_ERR_BUSY, "the balloon's functions are set already");
    }
    hook_up(kept);
    fw_status::FW_OK
}

/// Moves up to `pages` base pages from the arena into its balloon, in blocks as large as there are, and returns how many.
/// Reclaimers are not asked.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_balloon_inflate(cpu: *mut fw_cpu, pages: u64) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok((cpu, kept)) = (unsafe { kept_of(cpu) }) else { return 0 };
    let mut taken = 0;
    for order in Order::all().rev() {
        while pages - taken >= order.pages() {
            // Not through helpers: a balloon that deflates on pressure would fill itself with its own pages.
            let Ok(pfn) = cpu.alloc_with(&Request::new(order, Migratetype::Unmovable).with(Flags::NO_WAIT))
            else {
                break;
            };
            taken += order.pages();
            kept.balloon.tell(|hooks| hooks.inflated, pfn, order);
            kept.balloon.blocks().push((pfn, order));
        }
    }
    taken
}

/// Gives at least `pages` base pages back from the balloon, if it has so many, and returns how many.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_balloon_deflate(cpu: *mut fw_cpu, pages: u64) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok((cpu, kept)) = (unsafe { kept_of(cpu) }) else { return 0 };
    // SAFETY: what is in the balloon is the balloon's.
    kept.balloon.deflate(pages, |_| true, |pfn, order| unsafe { cpu.free(pfn, order) }.is_ok())
}

/// Reclaims for a node in the background, on this thread, until `fw_stop_background`. The arena needs `FW_BACKGROUND`,
/// and `FW_KEEP_MARKS` for there to be anything to do.
///
/// # Safety
/// `arena` is NULL or was a handle, and is not closed before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_run_background(arena: *mut fw_arena, node: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = match unsafe { arena_of(arena) } {
        Ok(kept) => Arc::clone(kept),
        Err(status) => return status,
    };
    let Ok(node) = u16::try_from(node) else {
        return status::plain(fw_status::FW_ERR_ARGUMENT, "there is no such node");
    };
    match kept.arena.run_background(NodeId(node)) {
        Ok(()) => fw_status::FW_OK,
        Err(error) => status::fail(Failure::Attach(error)),
    }
}

/// Ends `fw_run_background` of all nodes, now and later, without waiting for it.
///
/// # Safety
/// `arena` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_stop_background(arena: *mut fw_arena) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { arena_of(arena) }.map_or_else(
        |status| status,
        |kept| {
            kept.arena.stop_background();
            fw_status::FW_OK
        },
    )
}
