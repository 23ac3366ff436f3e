//! Attaching, allocating, freeing: what a thread does with its CPU.
#![expect(unsafe_code, reason = "C passes pointers")]

use core::ffi::c_void;

use framewright_host::framewright::hotplug::OfflineFailure;
use framewright_host::{AllocError, Migratetype, Order, Pfn, Request};

use crate::arena::FW_NO_FRAME;
use crate::handle::{arena_of, close_cpu, cpu_of, fw_arena, fw_cpu, open_cpu, ours};
use crate::status::{self, Failure, fw_error, fw_shortfall, fw_status, tried};

/// The kernel's own data: stays where it is.
pub const FW_UNMOVABLE: u32 = 0;
/// Its owner can move it, or do without: user pages, page cache.
pub const FW_MOVABLE: u32 = 1;
/// Its owner can free it on demand.
pub const FW_RECLAIMABLE: u32 = 2;

#[inline(always)]
pub(crate) fn kind(order: u32, migratetype: u32) -> Result<(Order, Migratetype), fw_status> {
    let migratetype = match migratetype {
        FW_UNMOVABLE => Migratetype::Unmovable,
        FW_MOVABLE => Migratetype::Movable,
        FW_RECLAIMABLE => Migratetype::Reclaimable,
        _ => return Err(no_such_kind()),
    };
    Ok((order_of(order)?, migratetype))
}

#[cold]
#[inline(never)]
fn no_such_kind() -> fw_status {
    let text =
        "the order is above FW_MAX_ORDER, or the type is none of FW_UNMOVABLE, FW_MOVABLE, FW_RECLAIMABLE";
    status::argument(text)
}

#[inline(always)]
pub(crate) fn order_of(order: u32) -> Result<Order, fw_status> {
    u8::try_from(order).ok().and_then(Order::new).ok_or_else(no_such_kind)
}

/// The frame that was allocated; `FW_NO_FRAME` if none was.
pub(crate) fn allocated(result: Result<Pfn, AllocError>) -> u64 {
    match result {
        Ok(pfn) => pfn.0,
        Err(error) => {
            status::fail(Failure::Alloc(error));
            FW_NO_FRAME
        }
    }
}

/// Attaches this thread to a free CPU: from then on it allocates and frees through the lists of that CPU without
/// locks. The end of the thread detaches, too, before destructors of `pthread_key_create` run. A destructor that
/// attaches must detach: nothing does it later, and `fw_arena_close` returns `FW_ERR_BUSY` permanently. One thread may
/// be attached to several arenas, and more than once to one.
///
/// # Safety
/// `arena` is NULL or was a handle; `out` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_attach(arena: *mut fw_arena, out: *mut *mut fw_cpu) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { attach(arena, None, out) }
}

/// Like `fw_attach`, to CPU number `number`, counted from 0.
///
/// # Safety
/// As `fw_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_attach_cpu(
    arena: *mut fw_arena,
    number: u32,
    out: *mut *mut fw_cpu,
) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { attach(arena, Some(number as usize), out) }
}

unsafe fn attach(arena: *mut fw_arena, number: Option<usize>, out: *mut *mut fw_cpu) -> fw_status {
    // SAFETY: by the caller's promise.
    let out = tried!(unsafe { status::place(out, "the place for the handle is NULL") });
    *out = core::ptr::null_mut();
    // SAFETY: by the caller's promise.
    let opened = unsafe { arena_of(arena) }.and_then(|kept| {
        open_cpu(kept, |arena| {
            let attached = number.map_or_else(|| arena.attach(), |number| arena.attach_to(number));
            attached.map_err(status::attach)
        })
    });
    match opened {
        Ok(cpu) => {
            *out = cpu;
            fw_status::FW_OK
        }
        Err(status) => status,
    }
}

/// Gives the pages on the lists of the CPU back, then the CPU. Blocks that the thread has allocated stay allocated.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_detach(cpu: *mut fw_cpu) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { close_cpu(cpu) }
}

/// The number of the CPU, from 0. `UINT32_MAX` for a handle that is not this thread's.
///
/// # Safety
/// As `fw_detach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_cpu_number(cpu: *const fw_cpu) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { cpu_of(cpu) }.map_or(u32::MAX, |cpu| cpu.id().0.into())
}

/// Allocates `2^order` base pages of a type, aligned to their size, and returns the first frame's number; `FW_NO_FRAME`
/// if that fails. O(1) without any lock if the list of the CPU has a block.
///
/// # Safety
/// As `fw_detach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc(cpu: *mut fw_cpu, order: u32, migratetype: u32) -> u64 {
    // SAFETY: by the caller's promise.
    if let Some(attached) = unsafe { ours(cpu) } {
        // Each type apart, so that the list's place is a constant.
        let hit = match (order, migratetype) {
            (0, FW_MOVABLE) => attached.alloc_hit(Order::ZERO, Migratetype::Movable),
            (0, FW_UNMOVABLE) => attached.alloc_hit(Order::ZERO, Migratetype::Unmovable),
            _ => None,
        };
        if let Some(pfn) = hit {
            return pfn.0;
        }
    }
    // SAFETY: by the caller's promise.
    unsafe { alloc_slow(cpu, order, migratetype) }
}

/// Everything but a base page that is at hand, out of line: that needs no stack. In the ABI of C, nothing unwinds out
/// of it, so the call to it is a jump.
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_slow(cpu: *mut fw_cpu, order: u32, migratetype: u32) -> u64 {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) }, FW_NO_FRAME);
    let (order, migratetype) = tried!(kind(order, migratetype), FW_NO_FRAME);
    allocated(cpu.alloc(order, migratetype))
}

/// Shortfall of each zone for such a block now, in the order in which an allocation tries them: the first `room` of
/// them into `zones`. Returns how many zones there are. Nothing is allocated. O(zones · CPUs).
///
/// # Safety
/// `cpu` is NULL or was a handle, and `zones` is NULL or has room for `room` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_explain(
    cpu: *mut fw_cpu,
    order: u32,
    migratetype: u32,
    zones: *mut fw_shortfall,
    room: usize,
) -> usize {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) }, 0);
    let (order, migratetype) = tried!(kind(order, migratetype), 0);
    let lacks = cpu.explain(&Request::new(order, migratetype));
    let room = if zones.is_null() { 0 } else { room };
    for (n, lack) in lacks.iter().enumerate().take(room) {
        // SAFETY: room for them, by the caller's promise.
        unsafe { zones.add(n).write(status::of_zone(lack)) };
    }
    lacks.len()
}

/// Frees a block that any CPU of the arena has allocated, with its order. A wrong free is refused, and nothing
/// changes.
///
/// # Safety
/// As `fw_detach`. If the block is allocated, it is the caller's, and its memory is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free(cpu: *mut fw_cpu, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    if let Some(attached) = unsafe { ours(cpu) } {
        // SAFETY: by the caller's promise.
        let hit = order == 0 && unsafe { attached.free_hit(Pfn(pfn), Order::ZERO) };
        if hit {
            return fw_status::FW_OK;
        }
    }
    // SAFETY: by the caller's promise.
    unsafe { free_slow(cpu, pfn, order) }
}

/// Everything but a base page that is at hand, out of line: that needs no stack. In the ABI of C, nothing unwinds out
/// of it, so the call to it is a jump.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(cpu: *mut fw_cpu, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let order = tried!(order_of(order));
    // SAFETY: by the caller's promise.
    status::freed(unsafe { cpu.free(Pfn(pfn), order) })
}

/// `fw_alloc(cpu, 0, FW_MOVABLE)`: the commonest block, without the two arguments to look at.
///
/// # Safety
/// As `fw_detach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc_page(cpu: *mut fw_cpu) -> u64 {
    // SAFETY: by the caller's promise.
    match unsafe { ours(cpu) }.and_then(|cpu| cpu.alloc_hit(Order::ZERO, Migratetype::Movable)) {
        Some(pfn) => pfn.0,
        // SAFETY: as above.
        None => unsafe { alloc_slow(cpu, 0, FW_MOVABLE) },
    }
}

/// `fw_free(cpu, pfn, 0)`, without the argument to look at.
///
/// # Safety
/// As `fw_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_page(cpu: *mut fw_cpu, pfn: u64) -> fw_status {
    // SAFETY: by the caller's promise.
    if unsafe { ours(cpu) }.is_some_and(|cpu|
        // SAFETY: as above.
        unsafe { cpu.free_hit(Pfn(pfn), Order::ZERO) })
    {
        return fw_status::FW_OK;
    }
    // SAFETY: by the caller's promise.
    unsafe { free_slow(cpu, pfn, 0) }
}

/// As `fw_alloc`, and returns where the block is; NULL if that fails. The memory holds what its last owner left, at
/// first zeroes, or what the caller's memory held; with `FW_POISON` a pattern.
///
/// # Safety
/// As `fw_detach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_alloc_pages(cpu: *mut fw_cpu, order: u32, migratetype: u32) -> *mut c_void {
    // SAFETY: by the caller's promise.
    let Ok(attached) = (unsafe { cpu_of(cpu) }) else { return core::ptr::null_mut() };
    if !attached.arena().has_memory() {
        status::plain(fw_status::FW_ERR_SETUP, "the arena has no memory behind its frames: use fw_alloc");
        return core::ptr::null_mut();
    }
    // SAFETY: by the caller's promise.
    let pfn = unsafe { fw_alloc(cpu, order, migratetype) };
    attached.arena().address(Pfn(pfn)).map_or(core::ptr::null_mut(), |address| address.as_ptr().cast())
}

/// Frees a block by its address, with its order. NULL is nothing to free.
///
/// # Safety
/// As `fw_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_free_pages(cpu: *mut fw_cpu, pages: *mut c_void, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let attached = tried!(unsafe { cpu_of(cpu) });
    if pages.is_null() {
        return fw_status::FW_OK;
    }
    let Some(pfn) = attached.arena().frame_at(pages.cast()) else {
        return status::argument("the address is not in the arena's memory");
    };
    if attached.arena().address(pfn).is_none_or(|start| start.as_ptr().cast() != pages) {
        return status::argument("the address is inside a page: pass the block's first byte");
    }
    // SAFETY: by the caller's promise.
    unsafe { fw_free(cpu, pfn.0, order) }
}

/// Turns an allocated block of order `from` into allocated blocks of order `to`, each to be freed on its own.
///
/// # Safety
/// As `fw_free`, but the block's memory may be in use. No other code frees or splits the block during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_split(cpu: *mut fw_cpu, pfn: u64, from: u32, to: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let from = tried!(order_of(from));
    let to = tried!(order_of(to));
    if to > from {
        return status::argument("a block is split into smaller ones: `to` is above `from`");
    }
    // SAFETY: by the caller's promise.
    let split = unsafe { cpu.split(Pfn(pfn), from, to) };
    status::ended(split.map_err(|error| {
        status::of_free(&error).tell(error.to_string().replacen("cannot free", "cannot split", 1))
    }))
}

/// Gives the pages on the lists of the CPU back to the zones.
///
/// # Safety
/// As `fw_detach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_drain(cpu: *mut fw_cpu) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    cpu.drain();
    fw_status::FW_OK
}

/// Does what other CPUs have asked this one for. Every free does, and every allocation that finds its list empty; a
/// thread that makes none for long calls this.
///
/// # Safety
/// As `fw_detach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_answer(cpu: *mut fw_cpu) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    cpu.answer();
    fw_status::FW_OK
}

/// Takes `pages` frames from `pfn` on offline, whole pageblocks: they are not handed out until `fw_online`. Writes how
/// many have gone to `gone`, if that is not NULL.
///
/// # Safety
/// As `fw_detach`, and `gone` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_offline(cpu: *mut fw_cpu, pfn: u64, pages: u64, gone: *mut u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let cpu = tried!(unsafe { cpu_of(cpu) });
    let Some(end) = pfn.checked_add(pages) else {
        return status::argument("the range wraps around");
    };
    let pages = tried!(cpu.offline(Pfn(pfn)..Pfn(end)).map_err(|error| {
        let is_busy = error.why != OfflineFailure::NotPageblocks;
        let status = if is_busy { fw_status::FW_ERR_BUSY } else { fw_status::FW_ERR_ARGUMENT };
        fw_error { pfn: error.start.0, ..fw_error::of(status) }.tell(error)
    }));
    // SAFETY: by the caller's promise.
    unsafe { status::give(gone, pages) };
    fw_status::FW_OK
}

/// Brings frames online that were taken offline.
///
/// # Safety
/// `arena` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_online(arena: *mut fw_arena, pfn: u64, pages: u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    status::ended(
        kept.arena
            .allocator()
            .online(Pfn(pfn), pages)
            .map_err(|error| fw_error { pfn, ..fw_error::of(fw_status::FW_ERR_ARGUMENT) }.tell(error)),
    )
}
