//! Setting the caller's reclaim and balloon, and filling and emptying the balloon.
#![expect(unsafe_code, reason = "C passes pointers and functions")]

use core::ffi::c_void;
use std::sync::Arc;

use framewright_host::framewright::{NodeId, ZoneId};
use framewright_host::{Flags, Migratetype, Order, Pfn, Request};

use crate::balloon::{
    Balloon, BalloonHooks, Context, fw_balloon_fn, fw_migrate_fn, fw_reclaim_fn, fw_release,
};
use crate::cpu::order_of;
use crate::handle::{Kept, arena_of, cpu_of, fw_arena, fw_cpu};
use crate::status::{self, fw_status, tried};

fn hook_up(kept: &Kept) {
    kept.balloon.hooked.get_or_init(|| {
        kept.arena.set_reclaim(Arc::<Balloon>::clone(&kept.balloon));
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
    let kept = tried!(unsafe { arena_of(arena) });
    let Some(reclaim) = reclaim else { return status::null("the reclaimer is NULL") };
    if kept.balloon.hooks.reclaim.set((reclaim, Context(context))).is_err() {
        return status::plain(fw_status::FW_ERR_BUSY, "the arena has a reclaimer already");
    }
    hook_up(kept);
    fw_status::FW_OK
}

/// Has `migrate` move movable blocks where a large block, or a given range, is wanted and memory is fragmented. Once
/// for good: `FW_ERR_BUSY` if it was set already.
///
/// # Safety
/// `arena` is NULL or was a handle. `migrate` may be called with `context` on any thread that uses the arena, until the
/// arena is closed. It answers with something else than 0 only if the block at `from` is its own, allocated with
/// `order`, and no other code frees or uses it; from then on it has the block at `to`, and the one at `from` is the
/// allocator's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_set_migrate(
    arena: *mut fw_arena,
    migrate: fw_migrate_fn,
    context: *mut c_void,
) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    let Some(migrate) = migrate else { return status::null("the mover is NULL") };
    if kept.balloon.hooks.migrate.set((migrate, Context(context))).is_err() {
        return status::plain(fw_status::FW_ERR_BUSY, "the arena has a mover already");
    }
    kept.arena.set_migrate(Arc::<Balloon>::clone(&kept.balloon));
    fw_status::FW_OK
}

/// Moves movable blocks of zone `zone` together, as far as `fw_set_migrate`'s function moves them, and returns the base
/// pages moved. O(frames).
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_compact(cpu: *mut fw_cpu, zone: u32) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok(cpu) = (unsafe { cpu_of(cpu) }) else { return 0 };
    if zone as usize >= cpu.arena().allocator().zones().len() {
        status::argument("the arena has no such zone");
        return 0;
    }
    cpu.compact(ZoneId(zone as u8)).moved
}

/// One round of background compaction of node `node`: moves pages so that huge pages become free, as far as
/// `fw_set_migrate`'s function moves them, and returns the base pages moved. For a thread that calls it every 50 ms;
/// `fw_run_background` does it by itself. Nothing happens while nearly all free memory is in free huge pages.
/// O(pageblocks / 64), and what the mover takes.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_compact_proactively(cpu: *mut fw_cpu, node: u32) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok(cpu) = (unsafe { cpu_of(cpu) }) else { return 0 };
    if node as usize >= cpu.arena().allocator().nodes().len() {
        status::argument("the arena has no such node");
        return 0;
    }
    cpu.compact_proactively(NodeId(node as u16)).moved
}

/// Gives a block back from within a reclaimer.
///
/// # Safety
/// `to` is what the reclaimer was passed, during that call; the block is the reclaimer's, and its memory is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_release_free(to: *mut fw_release, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let Some(to) = (unsafe { to.as_ref() }) else {
        return status::null("the place to give pages back to is NULL");
    };
    let order = tried!(order_of(order));
    // SAFETY: made by `reclaim` above for the call that is under way; the block by the caller's promise.
    let status = unsafe { (to.free)(to.to, Pfn(pfn), order) };
    if status == fw_status::FW_OK {
        to.freed.set(to.freed.get() + order.pages());
    }
    status
}

/// Sets what an arena's balloon does with its blocks; either may be NULL. With `on_pressure` not 0, an allocation that
/// would fail deflates it first, by a block of its order if the balloon has one. Once for good: `FW_ERR_BUSY` if it was
/// set already.
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
    let kept = tried!(unsafe { arena_of(arena) });
    let hooks = BalloonHooks { inflated, deflated, context: Context(context), on_pressure: on_pressure != 0 };
    if kept.balloon.hooks.balloon.set(hooks).is_err() {
        return status::plain(fw_status::FW_ERR_BUSY, "the balloon's functions are set already");
    }
    hook_up(kept);
    fw_status::FW_OK
}

/// Moves up to `pages` base pages from the arena into its balloon, in blocks as large as there are, and returns how
/// many. Reclaimers are not asked.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_balloon_inflate(cpu: *mut fw_cpu, pages: u64) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok(cpu) = (unsafe { cpu_of(cpu) }) else { return 0 };
    let mut taken = 0;
    for order in Order::all().rev() {
        while pages - taken >= order.pages() {
            // Not through helpers: a balloon that deflates on pressure would fill itself with its own pages.
            let Ok(pfn) = cpu.alloc_with(&Request::new(order, Migratetype::Unmovable).with(Flags::NO_WAIT))
            else {
                break;
            };
            taken += order.pages();
            cpu.0.kept.balloon.tell(|hooks| hooks.inflated, pfn, order);
            cpu.0.kept.balloon.blocks().push((pfn, order));
        }
    }
    taken
}

/// Gives at least `pages` base pages back from the balloon, if it has them, and returns how many.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_balloon_deflate(cpu: *mut fw_cpu, pages: u64) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok(cpu) = (unsafe { cpu_of(cpu) }) else { return 0 };
    // SAFETY: what is in the balloon is the balloon's.
    cpu.0.kept.balloon.deflate(
        pages,
        Order::ZERO,
        |_| true,
        |pfn, order| unsafe { cpu.free(pfn, order) }.is_ok(),
    )
}

/// Works for a node in the background, on this thread, until `fw_stop_background`: reclaims, in an arena with
/// `FW_KEEP_MARKS`; and every 50 ms makes a round of background compaction (see `fw_compact_proactively`), if
/// `fw_set_migrate` was called. The arena needs `FW_BACKGROUND`.
///
/// # Safety
/// `arena` is NULL or was a handle, and is not closed before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_run_background(arena: *mut fw_arena, node: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = Arc::clone(tried!(unsafe { arena_of(arena) }));
    let Ok(node) = u16::try_from(node) else {
        return status::argument("there is no such node");
    };
    status::ended(kept.arena.run_background(NodeId(node)).map_err(status::attach))
}

/// Ends `fw_run_background` of all nodes, now and later, without waiting for it.
///
/// # Safety
/// `arena` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_stop_background(arena: *mut fw_arena) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    kept.arena.stop_background();
    fw_status::FW_OK
}
