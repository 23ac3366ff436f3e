//! Arenas in a file of memory that processes share.
#![expect(unsafe_code, reason = "C passes pointers")]

use core::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use framewright_host::processes::{ProcessArena, ProcessError, ProcessOptions};
use framewright_host::{Order, Pfn};

use crate::arena::{self, FW_BACKING_BASE, FW_BACKING_HUGETLB, FW_NO_FRAME, fw_options};
use crate::cpu::{kind, order_of};
use crate::shell::{Shell, Shells};
use crate::status::{self, Failure, fw_error, fw_status, fw_why, of_violation, tried};

/// First word of an open handle, an odd number. Handles of other kinds begin with other words.
const OPEN: usize = 0x6677_5f73_686d_2121;

/// This process's use of an arena that it shares with others. Any thread may use the handle.
#[derive(Debug)]
pub struct fw_shm(Shell<(), ProcessArena>);

const _: () = assert!(core::mem::offset_of!(fw_shm, 0) == 0);

static SHMS: Shells<(), ProcessArena> = Shells::new();

/// Counts of such an arena's base pages by their place, and of its events.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_shm_account {
    /// On the buddy lists.
    pub free: u64,
    /// On the lists in front of the buddy lists, which all processes share.
    pub on_lists: u64,
    /// Owned by this process.
    pub mine: u64,
    /// Owned by other living processes.
    pub others: u64,
    /// Owned by dead processes, and not taken back yet.
    pub of_the_dead: u64,
    /// Disowned by their process, and adopted by none.
    pub disowned: u64,
    /// How often the allocator's tables were made again, since a process had been killed while it changed them.
    pub rebuilds: u64,
    /// Processes found dead.
    pub deaths: u64,
    /// Pages taken back from them.
    pub taken_back: u64,
}

/// Hands out the handle of an arena that was opened.
fn opened(arena: Result<ProcessArena, ProcessError>, out: &mut *mut fw_shm) -> fw_status {
    let opened = arena.map(|arena| SHMS.open(OPEN, (), arena, || SHMS.inherit()));
    status::ended(opened.map(|shell| *out = core::ptr::from_ref(shell).cast_mut().cast()).map_err(fail))
}

fn fail(error: ProcessError) -> fw_status {
    fail_with(error, 0)
}

/// Like [`fail`], of a call that named a block of `order`.
fn fail_with(error: ProcessError, order: u32) -> fw_status {
    let status = match error {
        ProcessError::Alloc(error) => return status::fail(Failure::Alloc(error)),
        ProcessError::Free(error) => return status::fail(Failure::Free(error)),
        ProcessError::Violation(error) => {
            return of_violation(&error, fw_status::FW_ERR_INVARIANT).tell(error);
        }
        ProcessError::System { .. } => fw_status::FW_ERR_SYSTEM,
        ProcessError::NotOwner { .. } | ProcessError::NoSuchBlock { .. } => fw_status::FW_ERR_REFUSED,
        ProcessError::Forked => fw_status::FW_ERR_HANDLE,
        ProcessError::Full => fw_status::FW_ERR_NO_CPU,
        ProcessError::AddressTaken(_) => fw_status::FW_ERR_BUSY,
        ProcessError::Broken | ProcessError::Owners { .. } => fw_status::FW_ERR_INVARIANT,
        _ => fw_status::FW_ERR_SETUP,
    };
    let mut told = fw_error::of(status);
    match error {
        ProcessError::System { ref source, .. } => told.system = source.raw_os_error().unwrap_or(0),
        ProcessError::NotOwner { pfn, owner } => {
            (told.why, told.pfn, told.order) = (fw_why::FW_WHY_NOT_OWNER, pfn.0, order);
            told.other_owner = owner.unwrap_or(0).into();
        }
        ProcessError::NoSuchBlock { pfn, order } => {
            (told.why, told.pfn, told.order) = (fw_why::FW_WHY_NOT_ALLOCATED, pfn.0, order.get().into());
        }
        _ => {}
    }
    told.tell(error)
}

/// # Safety
/// `shm` is NULL or was a handle, and no thread closes it during the borrow.
unsafe fn of<'a>(shm: *const fw_shm) -> Result<&'a ProcessArena, fw_status> {
    // SAFETY: handles are never freed.
    let Some(shell) = (unsafe { shm.as_ref() }) else { return Err(status::null("the arena is NULL")) };
    // SAFETY: by the caller's promise.
    unsafe { shell.0.open_as(OPEN) }
}

/// # Safety
/// As [`of`].
unsafe fn with(shm: *const fw_shm, f: impl FnOnce(&ProcessArena) -> Result<(), ProcessError>) -> fw_status {
    // SAFETY: by the caller's promise.
    status::ended(unsafe { of(shm) }.and_then(|arena| f(arena).map_err(fail)))
}

/// The same for a block.
///
/// # Safety
/// As [`of`].
unsafe fn with_block(
    shm: *const fw_shm,
    order: u32,
    f: impl FnOnce(&ProcessArena, Order) -> Result<(), ProcessError>,
) -> fw_status {
    let order = tried!(order_of(order));
    let fail = |error| fail_with(error, order.get().into());
    // SAFETY: by the caller's promise.
    status::ended(unsafe { of(shm) }.and_then(|arena| f(arena, order).map_err(fail)))
}

/// Makes an arena in a new memfd and attaches this process to it. Of the options, `bytes` (at most 1 TiB), `preset`,
/// `flags` without memory options, and `backing` count, which is `FW_BACKING_BASE` or `FW_BACKING_HUGETLB`. `name` is
/// what the file is called in `/proc/PID/maps`, at most 249 bytes; NULL: `framewright`.
///
/// # Safety
/// `options` is NULL or valid; `name` is NULL or a C string; `out` is NULL or can be written to. Until `fw_shm_close`
/// this process leaves open what the library has opened. If it closes all descriptors, as `closefrom` does, others
/// take it for dead, and get its blocks while it uses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_create(
    options: *const fw_options,
    name: *const c_char,
    out: *mut *mut fw_shm,
) -> fw_status {
    // SAFETY: by the caller's promise.
    let out = tried!(unsafe { status::place(out, "the place for the handle is NULL") });
    *out = core::ptr::null_mut();
    // SAFETY: by the caller's promise.
    let options = tried!(unsafe { arena::read(options) });
    let config = tried!(arena::config(&options));
    tried!(arena::only_config(&options));
    let mut wanted = ProcessOptions::new(options.bytes);
    wanted.config = config;
    wanted.huge_pages = match options.backing {
        FW_BACKING_BASE => false,
        FW_BACKING_HUGETLB => true,
        _ => {
            let text = "an arena that processes share has FW_BACKING_BASE or FW_BACKING_HUGETLB";
            return status::argument(text);
        }
    };
    if !name.is_null() {
        // SAFETY: by the caller's promise.
        wanted.name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    }
    opened(ProcessArena::create(&wanted), out)
}

/// Attaches this process to the arena in a memfd that `fw_shm_create` has made, there or here. The descriptor stays the
/// caller's. Every process maps the arena at the same addresses; `FW_ERR_BUSY` if something else is mapped there,
/// `FW_ERR_NO_CPU` if 64 living processes are attached.
///
/// # Safety
/// `out` is NULL or can be written to; `fd` is a descriptor that is open during the call. What the
/// library has opened stays open, as for `fw_shm_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_attach(fd: c_int, out: *mut *mut fw_shm) -> fw_status {
    // SAFETY: by the caller's promise.
    let out = tried!(unsafe { status::place(out, "the place for the handle is NULL") });
    *out = core::ptr::null_mut();
    if fd < 0 {
        return status::argument("the descriptor is negative");
    }
    // SAFETY: by the caller's promise.
    opened(ProcessArena::attach(unsafe { BorrowedFd::borrow_raw(fd) }), out)
}

/// Gives back every block that this process owns, and ends its use of the arena. The arena is gone when the last
/// process has closed it and every descriptor of its file.
///
/// # Safety
/// `shm` is NULL or was a handle, and no other thread uses it in this moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_close(shm: *mut fw_shm) -> fw_status {
    // SAFETY: by the caller's promise.
    let open = unsafe { of(shm) }.map(drop);
    // SAFETY: an open handle, and no other thread uses it, by the caller's promise.
    status::ended(open.map(|()| unsafe { (*shm).0.close() }))
}

/// The descriptor of the arena's file, to be passed to another process. It stays the arena's, and is closed on exec:
/// pass a `dup` of it. −1 if the handle is not valid.
///
/// # Safety
/// `shm` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_fd(shm: *const fw_shm) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe { of(shm) }.map_or(-1, |arena| arena.file().as_raw_fd())
}

/// This process's number in the arena, from 1. 0 if the handle is not valid.
///
/// # Safety
/// As `fw_shm_fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_number(shm: *const fw_shm) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { of(shm) }.map_or(0, |arena| arena.number().into())
}

/// How many base pages the arena has; frames are numbered from 0. 0 if the handle is not valid.
///
/// # Safety
/// As `fw_shm_fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_pages(shm: *const fw_shm) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { of(shm) }.map_or(0, ProcessArena::pages)
}

/// Address of a frame's first byte, in every process. NULL if the arena has no such frame.
///
/// # Safety
/// As `fw_shm_fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_address(shm: *const fw_shm, pfn: u64) -> *mut c_void {
    // SAFETY: by the caller's promise.
    let address = unsafe { of(shm) }.ok().and_then(|arena| arena.address(Pfn(pfn)));
    address.map_or(core::ptr::null_mut(), |address| address.as_ptr().cast())
}

/// Allocates a block for this process, and returns its first frame's number; `FW_NO_FRAME` if that fails. It takes back
/// the blocks of dead processes before it fails.
///
/// # Safety
/// As `fw_shm_fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_alloc(shm: *mut fw_shm, order: u32, migratetype: u32) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok(arena) = (unsafe { of(shm) }) else { return FW_NO_FRAME };
    let (order, migratetype) = tried!(kind(order, migratetype), FW_NO_FRAME);
    match arena.alloc(order, migratetype) {
        Ok(pfn) => pfn.0,
        Err(error) => {
            fail(error);
            FW_NO_FRAME
        }
    }
}

/// Frees a block that this process owns.
///
/// # Safety
/// As `fw_shm_fd`, and the block's memory is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_free(shm: *mut fw_shm, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { with_block(shm, order, |arena, order| arena.free(Pfn(pfn), order)) }
}

/// Disowns a block of this process: it stays allocated when this process ends, and any process may adopt it. To hand a
/// block over, disown it, then tell the other process its number.
///
/// # Safety
/// As `fw_shm_fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_disown(shm: *mut fw_shm, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { with_block(shm, order, |arena, order| arena.disown(Pfn(pfn), order)) }
}

/// Adopts a block that no process owns: it is this process's now.
///
/// # Safety
/// As `fw_shm_fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_adopt(shm: *mut fw_shm, pfn: u64, order: u32) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { with_block(shm, order, |arena, order| arena.adopt(Pfn(pfn), order)) }
}

/// Takes the blocks of dead processes back. Writes how many processes and base pages to what is not NULL.
///
/// # Safety
/// As `fw_shm_fd`, and both are NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_reap(shm: *mut fw_shm, processes: *mut u32, pages: *mut u64) -> fw_status {
    let reap = |arena: &ProcessArena| {
        let reaped = arena.reap()?;
        // SAFETY: by the caller's promise.
        unsafe {
            status::give(processes, reaped.processes);
            status::give(pages, reaped.pages);
        }
        Ok(())
    };
    // SAFETY: by the caller's promise.
    unsafe { with(shm, reap) }
}

/// Writes up to `count` disowned blocks to `frames` and `orders`, by ascending frame, and returns how many there are.
/// For a process that cleans up after others.
///
/// # Safety
/// As `fw_shm_fd`; `frames` and `orders` have room for `count` each, or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_disowned(
    shm: *mut fw_shm,
    frames: *mut u64,
    orders: *mut u32,
    count: usize,
) -> usize {
    // SAFETY: by the caller's promise.
    let Ok(arena) = (unsafe { of(shm) }) else { return 0 };
    match arena.disowned() {
        Ok(blocks) => {
            for (n, (pfn, order)) in blocks.iter().take(count).enumerate() {
                // SAFETY: by the caller's promise.
                unsafe {
                    if !frames.is_null() {
                        frames.add(n).write(pfn.0);
                    }
                    if !orders.is_null() {
                        orders.add(n).write(order.get().into());
                    }
                }
            }
            blocks.len()
        }
        Err(error) => {
            fail(error);
            0
        }
    }
}

/// Checks every invariant of the allocator, and that it and the table of owners agree on every block; says where every
/// page is. O(frames). Others wait for it.
///
/// # Safety
/// As `fw_shm_fd`, and `out` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_shm_verify(shm: *mut fw_shm, out: *mut fw_shm_account) -> fw_status {
    let verify = |arena: &ProcessArena| {
        let account = arena.verify()?;
        let (rebuilds, deaths, taken_back) = arena.history();
        let account = fw_shm_account {
            free: account.free,
            on_lists: account.on_lists,
            mine: account.mine,
            others: account.others,
            of_the_dead: account.of_the_dead,
            disowned: account.disowned,
            rebuilds,
            deaths,
            taken_back,
        };
        // SAFETY: by the caller's promise.
        unsafe { status::give(out, account) };
        Ok(())
    };
    // SAFETY: by the caller's promise.
    unsafe { with(shm, verify) }
}
