//! Counters, snapshots, verification.
#![expect(unsafe_code, reason = "C passes pointers")]

use core::ffi::c_char;

use framewright_host::PageCounts;
use framewright_host::framewright::ZoneType;
use framewright_host::framewright::units::NR_ORDERS;

use crate::arena::FW_ORDERS;
use crate::handle::{arena_of, fw_arena, others_attached};
use crate::status::{self, copy, fw_status, of_violation, tried};

/// An arena's counters since it was made, and what is where now. Pages are base pages; a racy read while threads are
/// busy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_stats {
    /// Pages that the arena manages.
    pub managed: u64,
    /// Of these, free on the buddy lists.
    pub free: u64,
    /// Of these, on the lists of CPUs: free, and at hand for the thread of each.
    pub on_lists: u64,
    /// Of these, with callers: the rest.
    pub allocated: u64,
    /// In the balloon: counted as allocated, too.
    pub in_balloon: u64,
    /// Refills of the lists of CPUs.
    pub refills: u64,
    /// Pages that they brought.
    pub refilled_pages: u64,
    /// Drains of the lists of CPUs.
    pub drains: u64,
    /// Pages that they took back.
    pub drained_pages: u64,
    /// Times that a zone lock was taken.
    pub lock_acquisitions: u64,
    /// Times that another CPU held it first.
    pub lock_waits: u64,
    /// Times an allocation or a refill took from another type's pageblocks.
    pub fallbacks: u64,
    /// Pages found bad and taken out of use.
    pub bad_pages: u64,
    /// Blocks written to after they had been freed (with `FW_POISON`).
    pub poison_overwrites: u64,
    /// Frames that `fw_hwpoison` has named, and that are not back in use.
    pub hwpoisoned: u64,
}

/// One zone at one moment, consistent in itself. Pages are base pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_zone {
    /// Its node.
    pub node: u32,
    /// Its type: 0 DMA, 1 DMA32, 2 Normal, 3 Movable.
    pub kind: u32,
    /// First frame.
    pub start: u64,
    /// Frames spanned.
    pub spanned: u64,
    /// Pages managed.
    pub managed: u64,
    /// Pages free on the buddy lists.
    pub free: u64,
    /// Free blocks by order.
    pub free_blocks: [u64; FW_ORDERS],
    /// The watermarks that its memory calls for, whether it keeps them or not: min.
    pub mark_min: u64,
    /// Low.
    pub mark_low: u64,
    /// High.
    pub mark_high: u64,
}

const _: () = assert!(FW_ORDERS == NR_ORDERS);

/// Counts of an arena's pages by their place, made by `fw_verify`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_account {
    /// On buddy lists.
    pub free: u64,
    /// On the lists of CPUs.
    pub on_lists: u64,
    /// With callers.
    pub allocated: u64,
    /// Found bad and out of use.
    pub quarantined: u64,
    /// Reserved.
    pub reserved: u64,
}

/// The forms of `fw_text`: as `/proc/buddyinfo`.
pub const FW_TEXT_BUDDYINFO: u32 = 0;
/// As `/proc/zoneinfo`.
pub const FW_TEXT_ZONEINFO: u32 = 1;
/// As `/proc/vmstat`.
pub const FW_TEXT_VMSTAT: u32 = 2;

/// Reads an arena's counters. O(zones × CPUs).
///
/// # Safety
/// `arena` is NULL or was a handle; `out` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_stat(arena: *const fw_arena, out: *mut fw_stats) -> fw_status {
    // SAFETY: by the caller's promise.
    let out = tried!(unsafe { status::place(out, "the place for the counters is NULL") });
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    let allocator = kept.arena.allocator();
    let PageCounts { managed, free, on_lists, allocated, hwpoisoned } = kept.arena.counts();
    let totals = allocator.totals();
    *out = fw_stats {
        managed,
        free,
        on_lists,
        allocated,
        in_balloon: kept.balloon.pages(),
        refills: totals.pcp.refills,
        refilled_pages: totals.pcp.refilled_pages,
        drains: totals.pcp.drains,
        drained_pages: totals.pcp.drained_pages,
        lock_acquisitions: totals.pcp.lock_acquisitions,
        lock_waits: totals.pcp.lock_waits,
        fallbacks: totals.fallbacks,
        bad_pages: totals.pcp.bad_pages,
        poison_overwrites: totals.pcp.poison_overwrites,
        hwpoisoned,
    };
    fw_status::FW_OK
}

/// The arena's zones. 0 for a handle that is none.
///
/// # Safety
/// `arena` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_zones(arena: *const fw_arena) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { arena_of(arena) }.map_or(0, |kept| kept.arena.allocator().zones().len() as u32)
}

/// A snapshot of zone `zone`, counted from 0.
///
/// # Safety
/// As `fw_stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_snapshot(arena: *const fw_arena, zone: u32, out: *mut fw_zone) -> fw_status {
    // SAFETY: by the caller's promise.
    let out = tried!(unsafe { status::place(out, "the place for the snapshot is NULL") });
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    let allocator = kept.arena.allocator();
    let Some(zone) = allocator.zones().get(zone as usize) else {
        return status::argument("the arena has no such zone");
    };
    let snapshot = allocator.zone_snapshot(zone);
    let kind = ZoneType::ALL.iter().position(|&kind| kind == snapshot.spec.kind).unwrap_or_default();
    *out = fw_zone {
        node: snapshot.spec.node.0.into(),
        kind: kind as u32,
        start: snapshot.spec.start.0,
        spanned: snapshot.spec.pages,
        managed: snapshot.managed,
        free: snapshot.free,
        free_blocks: snapshot.nr_free,
        mark_min: snapshot.marks.min,
        mark_low: snapshot.marks.low,
        mark_high: snapshot.marks.high,
    };
    fw_status::FW_OK
}

/// Prints an arena in the form of one of Linux' files. Writes at most `size` bytes including the final 0, and returns
/// how many bytes the whole text has without it; 0 for a handle or a form that is none.
///
/// # Safety
/// `arena` is NULL or was a handle; `buffer` is NULL or `size` bytes can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_text(
    arena: *const fw_arena,
    form: u32,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: by the caller's promise.
    let Ok(kept) = (unsafe { arena_of(arena) }) else { return 0 };
    let allocator = kept.arena.allocator();
    let text = match form {
        FW_TEXT_BUDDYINFO => allocator.buddyinfo().to_string(),
        FW_TEXT_ZONEINFO => allocator.zoneinfo().to_string(),
        FW_TEXT_VMSTAT => allocator.vmstat().to_string(),
        _ => {
            status::argument("the form is none of FW_TEXT_…");
            return 0;
        }
    };
    // SAFETY: by the caller's promise.
    unsafe { copy(&text, buffer, size) }
}

/// Checks every invariant of the allocator and says where every page is. O(frames). No thread may allocate or free in
/// the meantime. If something seems wrong and other threads are attached, the answer is `FW_ERR_BUSY`: they may be at
/// work. If this thread alone is, `FW_ERR_INVARIANT`.
///
/// # Safety
/// `arena` is NULL or was a handle; `out` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_verify(arena: *const fw_arena, out: *mut fw_account) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = tried!(unsafe { arena_of(arena) });
    match kept.arena.allocator().verify() {
        Ok(account) => {
            let account = fw_account {
                free: account.free,
                on_lists: account.on_pcp,
                allocated: account.allocated,
                quarantined: account.quarantined,
                reserved: account.reserved,
            };
            // SAFETY: by the caller's promise.
            unsafe { status::give(out, account) };
            fw_status::FW_OK
        }
        Err(violation) if others_attached(kept) => of_violation(&violation, fw_status::FW_ERR_BUSY)
            .tell(format_args!("{violation}; or other threads are at work: detach them, and verify again")),
        Err(violation) => of_violation(&violation, fw_status::FW_ERR_INVARIANT).tell(violation),
    }
}

/// Asks every CPU to give back what its lists hold; each does when it next answers (see `fw_answer`). What threads have
/// left that ended without detaching is brought back immediately; returns these pages.
///
/// # Safety
/// `arena` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_drain_all(arena: *mut fw_arena) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok(kept) = (unsafe { arena_of(arena) }) else { return 0 };
    kept.arena.allocator().request_drain();
    kept.arena.reap().pages
}
