//! Making and ending arenas; where their frames are.
#![expect(unsafe_code, reason = "C passes pointers")]

use core::ffi::{c_char, c_void};
use core::mem::offset_of;
use core::ptr::NonNull;
use core::slice;
use std::sync::Arc;

use framewright_host::framewright::config::{Engine, LockKind};
use framewright_host::{Arena, Backing, Config, Pfn};

use crate::balloon::Balloon;
use crate::handle::{arena_of, close_arena, fw_arena, open_arena};
use crate::status::{self, fw_status, tried};

/// A frame number that no frame has: what a failed allocation returns.
pub const FW_NO_FRAME: u64 = u64::MAX;

/// Bytes of a base page, unless the options say otherwise.
pub const FW_PAGE_BYTES: usize = 4096;

/// The largest order: 1024 base pages.
pub const FW_MAX_ORDER: u32 = 10;

/// The order of a pageblock and of a huge page: 512 base pages; of 4 KiB, they are 2 MiB.
pub const FW_PAGEBLOCK_ORDER: u32 = 9;

/// Orders, 0 included.
pub const FW_ORDERS: usize = 11;

/// Counts up when a program built for an older library would no longer run with this one.
pub const FW_ABI: u32 = 2;

/// Pages of the system's size. The constants `FW_BACKING_…` name the memory behind an arena's frames.
pub const FW_BACKING_BASE: u32 = 0;
/// Pages of the system's size, with advice to use huge pages (`MADV_HUGEPAGE`).
pub const FW_BACKING_HUGE: u32 = 1;
/// Pages of 2 MiB from the system's hugetlb pool, set aside when the arena is made.
pub const FW_BACKING_HUGETLB: u32 = 2;
/// None: frames are numbers. For memory that is mapped elsewhere, such as a guest's.
pub const FW_BACKING_DESCRIBED: u32 = 3;
/// The caller's memory: `memory` and `bytes`, whole pages, not touched by other code until the arena is closed. It may
/// be a mapping of a memfd or of a file in hugetlbfs.
pub const FW_BACKING_CALLER: u32 = 4;

/// Framewright's own settings, which measured best. The other presets reproduce a release of Linux, but for the lock of
/// its zones: threads that wait for it sleep.
pub const FW_PRESET_DEFAULT: u32 = 0;
/// Linux 3.0.
pub const FW_PRESET_LINUX_3_0: u32 = 300;
/// Linux 5.4.
pub const FW_PRESET_LINUX_5_4: u32 = 504;
/// Linux 6.1.
pub const FW_PRESET_LINUX_6_1: u32 = 601;
/// Linux 6.7.
pub const FW_PRESET_LINUX_6_7: u32 = 607;
/// Linux 6.16.
pub const FW_PRESET_LINUX_6_16: u32 = 616;

/// Zones keep watermarks: what they keep is for reclaim and for requests that cannot wait.
pub const FW_KEEP_MARKS: u32 = 1;
/// Free memory is filled with a pattern that is verified before it is handed out. Slow, and all of the memory is
/// committed when the arena is made.
pub const FW_POISON: u32 = 2;
/// One node for each of the machine's that has memory, bound to it; `nodes` is ignored.
pub const FW_MACHINE_NODES: u32 = 4;
/// With CPUs for background reclaim and compaction (see `fw_run_background`).
pub const FW_BACKGROUND: u32 = 8;

/// Freed memory is filled with zeroes, so that `fw_alloc_zeroed` need not.
pub const FW_INIT_ON_FREE: u32 = 16;
/// Allocations can be made to fail (see `fw_inject`). Each takes the slow path.
pub const FW_FAULT_INJECTION: u32 = 32;
/// Free memory can be reported (see `fw_report_free`).
pub const FW_FREE_REPORTING: u32 = 64;
/// Free memory is kept on lists of blocks as in Linux, whatever the preset says.
pub const FW_FREE_LISTS: u32 = 128;
/// Free memory is kept as bits, whatever the preset says.
pub const FW_FREE_MAPS: u32 = 256;
/// All of the arena's own memory is committed when the arena is made. The caller's is left as it is.
pub const FW_PREFAULT: u32 = 2048;
/// All of the arena's own memory is kept from being swapped out (`mlock`), and so committed. The caller's is left as it
/// is.
pub const FW_LOCK_MEMORY: u32 = 4096;
/// A page before the arena's own memory and one after it are a fault to touch. Not with `FW_BACKING_HUGETLB`, nor with
/// the caller's memory.
pub const FW_GUARD_PAGES: u32 = 8192;
/// Two bits are kept for each frame instead of a word, and memory is initialised when it is needed: an arena of any
/// size is made immediately. Not with `FW_POISON` and `FW_FREE_LISTS`; no frame can be marked as bad, and no block
/// below order 9 is moved.
pub const FW_COMPACT: u32 = 16384;

/// All flags: 512 and 1,024 are none.
const FLAGS: u32 = ((FW_COMPACT << 1) - 1) & !(512 | 1024);
/// Flags of how the allocator works; the others choose its memory.
const CONFIG_FLAGS: u32 = FW_KEEP_MARKS
    | FW_POISON
    | FW_INIT_ON_FREE
    | FW_FAULT_INJECTION
    | FW_FREE_REPORTING
    | FW_FREE_LISTS
    | FW_FREE_MAPS
    | FW_COMPACT;

/// Describes an arena. `fw_options_init` fills in what is usual; zero stands for it, too, except in `size` and `bytes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_options {
    /// Bytes of this structure that the program has: members that come later count as 0, and members that the library
    /// does not know must be 0.
    pub size: u32,
    /// One of `FW_BACKING_…`.
    pub backing: u32,
    /// The arena's size in bytes, rounded up to whole pages. Only address space is reserved, unless the backing or a
    /// flag commits memory.
    pub bytes: u64,
    /// The number of the first frame, a multiple of 1024.
    pub base: u64,
    /// Address of the memory, with `FW_BACKING_CALLER`. A block's address is a multiple of its size if this one is a
    /// multiple of 1024 base pages.
    pub memory: *mut c_void,
    /// CPUs: threads that can be attached at the same time, at most 65535. 0: twice the machine's processors, at least
    /// 4.
    pub cpus: u32,
    /// Nodes of equal size, at most 16. 0: one.
    pub nodes: u32,
    /// One of `FW_PRESET_…`.
    pub preset: u32,
    /// `FW_KEEP_MARKS` and those after it, or'ed.
    pub flags: u32,
    /// Bytes of a base page: 4, 8, 16, 32 or 64 KiB. 0: `FW_PAGE_BYTES`. Blocks are as many times larger.
    pub page_bytes: u32,
    /// 0.
    pub reserved: [u32; 7],
}

/// The library's version as text, such as `"0.1.0"`.
#[unsafe(no_mangle)]
pub extern "C" fn fw_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The `FW_ABI` of the library that was found when the program was started.
#[unsafe(no_mangle)]
pub extern "C" fn fw_abi() -> u32 {
    FW_ABI
}

/// No header's options are larger: what says so was not initialised.
const MOST_OPTIONS: usize = 4096;

const fn usual(bytes: u64) -> fw_options {
    fw_options {
        size: size_of::<fw_options>() as u32,
        backing: FW_BACKING_BASE,
        bytes,
        base: 0,
        memory: core::ptr::null_mut(),
        cpus: 0,
        nodes: 0,
        preset: FW_PRESET_DEFAULT,
        flags: 0,
        page_bytes: 0,
        reserved: [0; 7],
    }
}

/// Fills in the options of an arena of `bytes` bytes with base pages of its own: the members of this header, and
/// `size`. No later library writes more here.
///
/// # Safety
/// `options` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_options_init(options: *mut fw_options, bytes: u64) -> fw_status {
    // SAFETY: by the caller's promise.
    let Some(options) = (unsafe { options.as_mut() }) else { return status::null("the options are NULL") };
    *options = usual(bytes);
    fw_status::FW_OK
}

/// The options that a program has written, which may have been built with an older or a later header: what it does not
/// have counts as 0, and what this library does not know must be 0.
///
/// # Safety
/// `options` is NULL or valid: its first member is its size in bytes.
pub(crate) unsafe fn read(options: *const fw_options) -> Result<fw_options, fw_status> {
    if options.is_null() {
        return Err(status::null("the options are NULL"));
    }
    const KNOWN: usize = size_of::<fw_options>();
    // SAFETY: by the caller's promise.
    let size = unsafe { (&raw const (*options).size).read() } as usize;
    if size < offset_of!(fw_options, base) {
        let text = "the options are too small to hold a size in bytes: begin with fw_options_init";
        return Err(status::argument(text));
    }
    if size > MOST_OPTIONS {
        let text = "the options' first member is not their size: begin with fw_options_init";
        return Err(status::argument(text));
    }
    let mut read = usual(0);
    // SAFETY: `size` bytes are there, by the caller's promise.
    let beyond = unsafe {
        let bytes = options.cast::<u8>();
        bytes.copy_to_nonoverlapping((&raw mut read).cast(), size.min(KNOWN));
        slice::from_raw_parts(bytes.add(size.min(KNOWN)), size.saturating_sub(KNOWN))
    };
    if beyond.iter().any(|&byte| byte != 0) {
        let text = "the options have a member that this library does not know: it is older than the header";
        return Err(status::argument(text));
    }
    Ok(read)
}

pub(crate) fn config(options: &fw_options) -> Result<Config, fw_status> {
    let mut config = match options.preset {
        FW_PRESET_DEFAULT => Config::framewright(),
        FW_PRESET_LINUX_3_0 => Config::linux_v3_0(),
        FW_PRESET_LINUX_5_4 => Config::linux_v5_4(),
        FW_PRESET_LINUX_6_1 => Config::linux_v6_1(),
        FW_PRESET_LINUX_6_7 => Config::linux_v6_7(),
        FW_PRESET_LINUX_6_16 => Config::linux_v6_16(),
        _ => {
            return Err(status::argument("the preset is none of FW_PRESET_…"));
        }
    };
    // A thread that waits may be without a processor: if the lock were handed to it, as in a kernel, all would wait.
    config.experiment.lock_kind = LockKind::ByPlatform;
    if options.flags & !FLAGS != 0 {
        return Err(status::argument("the flags have a bit that this library does not know"));
    }
    if options.flags & FW_KEEP_MARKS != 0 {
        config = config.with_marks();
    }
    let is_set = |flag| options.flags & flag != 0;
    if is_set(FW_FREE_LISTS) && (is_set(FW_FREE_MAPS) || is_set(FW_COMPACT)) {
        return Err(status::argument("two of the flags contradict each other"));
    }
    if options.reserved != [0; 7] {
        return Err(status::argument(
            "a reserved member of the options is not 0: begin with fw_options_init",
        ));
    }
    config.poison |= is_set(FW_POISON);
    config.init_on_free |= is_set(FW_INIT_ON_FREE);
    config.fault_injection |= is_set(FW_FAULT_INJECTION);
    config.free_reporting |= is_set(FW_FREE_REPORTING);
    if is_set(FW_FREE_LISTS) {
        config.engine = Engine::Linux;
    }
    if is_set(FW_FREE_MAPS) {
        config.engine = Engine::Framewright;
    }
    if is_set(FW_COMPACT) {
        config.engine = Engine::Compact;
        config.lazy_pageblocks = true;
    }
    Ok(config)
}

/// What an arena that processes share has no use for.
pub(crate) fn only_config(options: &fw_options) -> Result<(), fw_status> {
    if options.flags & !CONFIG_FLAGS != 0 || ![0, FW_PAGE_BYTES as u32].contains(&options.page_bytes) {
        let text = "an arena that processes share has pages of 4 KiB, one node and no memory options";
        return Err(status::argument(text));
    }
    Ok(())
}

/// Makes an arena. O(bytes / 4 MiB): its pages are committed when they are first touched, unless the backing or a flag
/// commits them now.
///
/// # Safety
/// `options` is NULL or valid; `out` is NULL or can be written to. With `FW_BACKING_CALLER`, the memory can be read and
/// written, is initialised, and no other code touches it until the arena is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_arena_new(options: *const fw_options, out: *mut *mut fw_arena) -> fw_status {
    // SAFETY: by the caller's promise.
    let out = tried!(unsafe { status::place(out, "the place for the handle is NULL") });
    *out = core::ptr::null_mut();
    // SAFETY: by the caller's promise.
    let options = tried!(unsafe { read(options) });
    let config = tried!(config(&options));
    let mut builder = Arena::builder().bytes(options.bytes).base(Pfn(options.base)).config(config);
    builder = match options.backing {
        FW_BACKING_BASE => builder.backing(Backing::Base),
        FW_BACKING_HUGE => builder.backing(Backing::Huge),
        FW_BACKING_HUGETLB => builder.backing(Backing::HugeTlb),
        FW_BACKING_DESCRIBED => builder.backing(Backing::Described),
        FW_BACKING_CALLER => {
            let Some(memory) = NonNull::new(options.memory.cast()) else {
                return status::null("the caller's memory is NULL");
            };
            let Ok(bytes) = usize::try_from(options.bytes) else {
                return status::argument("the caller's memory is larger than the address space");
            };
            // SAFETY: by the caller's promise.
            unsafe { builder.memory(memory, bytes) }
        }
        _ => return status::argument("the backing is none of FW_BACKING_…"),
    };
    if options.page_bytes != 0 {
        builder = builder.page_bytes(options.page_bytes as usize);
    }
    if options.flags & FW_PREFAULT != 0 {
        builder = builder.prefault();
    }
    if options.flags & FW_LOCK_MEMORY != 0 {
        builder = builder.lock_memory();
    }
    if options.flags & FW_GUARD_PAGES != 0 {
        builder = builder.guard_pages();
    }
    if options.cpus != 0 {
        builder = builder.cpus(options.cpus as usize);
    }
    if options.flags & FW_MACHINE_NODES != 0 {
        builder = builder.machine_nodes();
    } else if options.nodes != 0 {
        builder = builder.nodes(options.nodes as usize);
    }
    if options.flags & FW_BACKGROUND != 0 {
        builder = builder.background();
    }
    match builder.build() {
        Ok(arena) => {
            *out = open_arena(arena, Arc::new(Balloon::default()));
            fw_status::FW_OK
        }
        Err(error) => status::arena(&error),
    }
}

/// Closes an arena and gives its memory back; the caller's memory is the caller's again. Blocks that are still
/// allocated are gone. `FW_ERR_BUSY` while a thread is attached.
///
/// # Safety
/// `arena` is NULL or was a handle, and no other thread uses it in this moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_arena_close(arena: *mut fw_arena) -> fw_status {
    // SAFETY: by the caller's promise.
    unsafe { close_arena(arena) }
}

/// The first frame's number. `FW_NO_FRAME` for a handle that is none.
///
/// # Safety
/// `arena` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_first_frame(arena: *const fw_arena) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { arena_of(arena) }.map_or(FW_NO_FRAME, |kept| kept.arena.frames().start.0)
}

/// The arena's base pages. 0 for a handle that is none.
///
/// # Safety
/// As `fw_first_frame`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_pages(arena: *const fw_arena) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { arena_of(arena) }.map_or(0, |kept| kept.arena.frames().end.0 - kept.arena.frames().start.0)
}

/// Bytes of the arena's base pages. 0 for a handle that is none.
///
/// # Safety
/// As `fw_first_frame`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_page_bytes(arena: *const fw_arena) -> usize {
    // SAFETY: by the caller's promise.
    unsafe { arena_of(arena) }.map_or(0, |kept| kept.arena.page_bytes())
}

/// How many CPUs threads may attach to. 0 for a handle that is none.
///
/// # Safety
/// As `fw_first_frame`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_cpu_count(arena: *const fw_arena) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { arena_of(arena) }.map_or(0, |kept| kept.arena.cpus() as u32)
}

/// Address of a frame's first byte. NULL if the frame is not the arena's, or the arena has no memory.
///
/// # Safety
/// As `fw_first_frame`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_address(arena: *const fw_arena, pfn: u64) -> *mut c_void {
    // SAFETY: by the caller's promise.
    let address = unsafe { arena_of(arena) }.ok().and_then(|kept| kept.arena.address(Pfn(pfn)));
    address.map_or(core::ptr::null_mut(), |address| address.as_ptr().cast())
}

/// The frame that an address is in. `FW_NO_FRAME` if it is not in the arena's memory.
///
/// # Safety
/// As `fw_first_frame`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_frame_at(arena: *const fw_arena, address: *const c_void) -> u64 {
    // SAFETY: by the caller's promise.
    let frame = unsafe { arena_of(arena) }.ok().and_then(|kept| kept.arena.frame_at(address.cast()));
    frame.map_or(FW_NO_FRAME, |pfn| pfn.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads under a preset took 300 times as long as one where the machine had other work.
    #[test]
    fn the_lock_of_no_preset_waits_for_a_thread_that_has_no_processor() {
        for preset in [0, 300, 504, 601, 607, 616] {
            let mut options = core::mem::MaybeUninit::uninit();
            // SAFETY: it can be written to, and is then.
            let options = unsafe {
                assert_eq!(fw_options_init(options.as_mut_ptr(), 1 << 20), fw_status::FW_OK);
                fw_options { preset, ..options.assume_init() }
            };
            let config = config(&options).expect("a preset");
            assert_eq!(config.experiment.lock_kind, LockKind::ByPlatform, "{preset}");
        }
    }
}
