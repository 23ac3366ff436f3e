//! How calls end: a status, and the explained error of each thread's last failed call.
#![expect(unsafe_code, reason = "C passes pointers")]

use core::cell::RefCell;
use core::ffi::{c_char, c_int};
use core::fmt;

use framewright_host::framewright::error::{AllocFailure, FreeFailure, Shortfall};
use framewright_host::framewright::verify::Violation;
use framewright_host::{
    AllocError, ArenaError, AttachError, FreeError, Order, PlaceError, PlaceFailure, State,
};

/// How a call ended. 0 is success, everything else is negative.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum fw_status {
    /// It did what it should.
    #[default]
    FW_OK = 0,
    /// A pointer is NULL that must not be.
    FW_ERR_NULL = -1,
    /// The handle is closed, or of another kind, or of the parent process.
    FW_ERR_HANDLE = -2,
    /// The handle was attached by another thread.
    FW_ERR_THREAD = -3,
    /// An argument is out of range.
    FW_ERR_ARGUMENT = -4,
    /// No zone has a free block of the order.
    FW_ERR_NO_MEMORY = -5,
    /// Zones have blocks of the order, and their watermarks keep them.
    FW_ERR_BELOW_MARK = -6,
    /// The free was refused: the error has the state of the block.
    FW_ERR_REFUSED = -7,
    /// Living threads hold all CPUs, or the one asked for; or living processes all places of an arena that they share.
    FW_ERR_NO_CPU = -8,
    /// The description of an arena makes no sense, or the arena was made without what the call needs.
    FW_ERR_SETUP = -9,
    /// The operating system refused: the error has its number.
    FW_ERR_SYSTEM = -10,
    /// Something is still in use.
    FW_ERR_BUSY = -11,
    /// An invariant of the allocator does not hold.
    FW_ERR_INVARIANT = -12,
}

use fw_status::*;

/// Why a free was refused, or a given place cannot be had: the member `why` of `fw_error`.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum fw_why {
    /// The error is about something else.
    #[default]
    FW_WHY_NONE = 0,
    /// The frame is not the arena's, or is offline.
    FW_WHY_FOREIGN = 1,
    /// A block of this order cannot start at this frame.
    FW_WHY_MISALIGNED = 2,
    /// The block is free already; in an arena that processes share, no block of this order starts at this frame.
    FW_WHY_NOT_ALLOCATED = 3,
    /// The block is allocated, with the order `other_order`.
    FW_WHY_WRONG_ORDER = 4,
    /// The frame is inside the block of order `other_order` at `other_pfn`.
    FW_WHY_INSIDE = 5,
    /// The block was found bad and is out of use.
    FW_WHY_QUARANTINED = 6,
    /// The frame was never handed out.
    FW_WHY_RESERVED = 7,
    /// The block belongs to another process, or to none: `other_owner` is its number, 0 for none.
    FW_WHY_NOT_OWNER = 8,
    /// Some of the place is in use: the block at `other_pfn`, of order `other_order` if that is known.
    FW_WHY_IN_USE = 9,
    /// Some of the place, at `other_pfn`, is on the list of a CPU: `other_owner` is its number. Its thread was asked
    /// for it.
    FW_WHY_LISTED = 10,
    /// Some of the place, at `other_pfn`, is isolated: it is not handed out.
    FW_WHY_ISOLATED = 11,
    /// A check has found the memory bad.
    FW_WHY_BAD = 12,
    /// It was made to fail (`fw_inject`).
    FW_WHY_INJECTED = 13,
}

use fw_why::*;

/// Shortfall of one zone for a request (`fw_explain`). Counts are base pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_shortfall {
    /// Its number.
    pub zone: u32,
    /// Its node.
    pub node: u32,
    /// Order of its largest free block that the request may use; -1 if there is none.
    pub largest_order: i32,
    /// Free.
    pub free: u32,
    /// On other CPUs' lists.
    pub on_other_cpus: u32,
    /// Kept by watermarks and reserves.
    pub kept: u32,
    /// Pages that its reclaimer might still free: all that the zone manages, because `fw_reclaim_fn` does not count; 0
    /// without one.
    pub reclaimable: u32,
}

/// Reason why this thread's last failed call failed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fw_error {
    /// How the call ended.
    pub status: fw_status,
    /// The operating system's error number (`errno`); 0 if it is not about the system.
    pub system: c_int,
    /// The frame that was refused, or asked for; 0 if the error is about none.
    pub pfn: u64,
    /// The order of the block that was refused, or asked for; 0 if the error is about none.
    pub order: u32,
    /// Why a free was refused, or a place cannot be had.
    pub why: fw_why,
    /// First frame of the block that the frame is in, with `FW_WHY_INSIDE`; of what is in the way of a place.
    pub other_pfn: u64,
    /// The order of the block that is there, with `FW_WHY_INSIDE`, `FW_WHY_WRONG_ORDER` and `FW_WHY_IN_USE`.
    pub other_order: u32,
    /// The number of the process that owns the block, with `FW_WHY_NOT_OWNER`; the CPU, with `FW_WHY_LISTED`.
    pub other_owner: u32,
    /// Zones that an allocation tried. The rest is what they lacked together; `fw_explain` tells them apart.
    pub zones_tried: u32,
    /// Order of their largest free block that the request may use; -1 if there is none.
    pub largest_order: i32,
    /// Free base pages.
    pub free: u32,
    /// On other CPUs' lists, asked for and not come back yet.
    pub on_other_cpus: u32,
    /// Kept by watermarks and reserves.
    pub kept: u32,
    /// Pages that reclaimers might still free: all that the zones manage, or 0 without a reclaimer.
    pub reclaimable: u32,
}

impl fw_error {
    /// Keeps it, with the text that explains it, as why this thread's call fails.
    #[cold]
    pub(crate) fn tell(self, text: impl fmt::Display) -> fw_status {
        fail(Failure::Told(self, text.to_string().into()))
    }

    pub(crate) fn of(status: fw_status) -> Self {
        Self { status, largest_order: -1, ..Self::default() }
    }
}

/// What is kept of a failure: texts are made when they are asked for.
pub(crate) enum Failure {
    None,
    Plain(fw_status, &'static str),
    Alloc(AllocError),
    Free(FreeError),
    Told(fw_error, Box<str>),
}

thread_local!(static LAST: RefCell<Failure> = const { RefCell::new(Failure::None) });

impl Failure {
    fn error(&self) -> fw_error {
        match self {
            Self::None => fw_error::of(FW_OK),
            Self::Plain(status, _) => fw_error::of(*status),
            Self::Alloc(error) => of_alloc(error),
            Self::Free(error) => of_free(error),
            Self::Told(error, _) => *error,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no call of this thread has failed"),
            Self::Plain(_, text) => f.write_str(text),
            Self::Alloc(error) => error.fmt(f),
            Self::Free(error) => error.fmt(f),
            Self::Told(_, text) => f.write_str(text),
        }
    }
}

pub(crate) fn of_violation(violation: &Violation, status: fw_status) -> fw_error {
    fw_error { pfn: violation.pfn.map_or(0, |pfn| pfn.0), ..fw_error::of(status) }
}

#[cold]
pub(crate) fn attach(error: AttachError) -> fw_status {
    let status = match error {
        AttachError::NoSuchCpu { .. } | AttachError::NoBackground(_) => FW_ERR_ARGUMENT,
        _ => FW_ERR_NO_CPU,
    };
    fw_error::of(status).tell(error)
}

fn of_alloc(error: &AllocError) -> fw_error {
    let status = match error.why {
        AllocFailure::BelowMark => FW_ERR_BELOW_MARK,
        AllocFailure::NotAllowed => FW_ERR_ARGUMENT,
        AllocFailure::NoDirectMap => FW_ERR_SETUP,
        AllocFailure::Forked => FW_ERR_HANDLE,
        _ => FW_ERR_NO_MEMORY,
    };
    let injected = matches!(error.why, AllocFailure::Injected);
    fw_error {
        order: error.order.get().into(),
        why: if injected { FW_WHY_INJECTED } else { FW_WHY_NONE },
        zones_tried: error.tried.into(),
        largest_order: error.largest.map_or(-1, |order| order.get().into()),
        free: error.free,
        on_other_cpus: error.on_other_cpus,
        kept: error.kept,
        reclaimable: error.reclaimable,
        ..fw_error::of(status)
    }
}

pub(crate) fn of_zone(zone: &Shortfall) -> fw_shortfall {
    fw_shortfall {
        zone: zone.zone.0.into(),
        node: zone.node.0.into(),
        largest_order: zone.largest.map_or(-1, |order| order.get().into()),
        free: zone.free,
        on_other_cpus: zone.on_other_cpus,
        kept: zone.kept,
        reclaimable: zone.reclaimable,
    }
}

pub(crate) fn of_free(error: &FreeError) -> fw_error {
    let made = fw_error { pfn: error.pfn.0, order: error.order.get().into(), ..fw_error::of(FW_ERR_REFUSED) };
    match error.why {
        FreeFailure::Foreign => fw_error { why: FW_WHY_FOREIGN, ..made },
        FreeFailure::Misaligned => fw_error { why: FW_WHY_MISALIGNED, ..made },
        FreeFailure::NotAllocated => fw_error { why: FW_WHY_NOT_ALLOCATED, ..made },
        FreeFailure::WrongOrder { allocated } => {
            fw_error { why: FW_WHY_WRONG_ORDER, other_order: allocated.get().into(), ..made }
        }
        FreeFailure::Inside { order } => {
            let other_pfn = error.block_start().map_or(0, |start| start.0);
            fw_error { why: FW_WHY_INSIDE, other_pfn, other_order: order.get().into(), ..made }
        }
        FreeFailure::Quarantined => fw_error { why: FW_WHY_QUARANTINED, ..made },
        FreeFailure::Reserved => fw_error { why: FW_WHY_RESERVED, ..made },
    }
}

/// A given place that could not be had. The order is that of a block of so many pages, 0 for a range.
pub(crate) fn of_place(error: &PlaceError) -> fw_error {
    let order = Order::for_pages(error.pages).filter(|order| order.pages() == error.pages);
    let made = |status| fw_error {
        pfn: error.pfn.0,
        order: order.map_or(0, |order| order.get().into()),
        ..fw_error::of(status)
    };
    match error.why {
        PlaceFailure::Foreign => fw_error { why: FW_WHY_FOREIGN, ..made(FW_ERR_ARGUMENT) },
        PlaceFailure::Misaligned => fw_error { why: FW_WHY_MISALIGNED, ..made(FW_ERR_ARGUMENT) },
        PlaceFailure::InUse { pfn, state } => {
            let other_order = if let State::Taken { order, .. } = state { order.get().into() } else { 0 };
            fw_error { why: FW_WHY_IN_USE, other_pfn: pfn.0, other_order, ..made(FW_ERR_BUSY) }
        }
        PlaceFailure::Listed { pfn, cpu } => {
            fw_error { why: FW_WHY_LISTED, other_pfn: pfn.0, other_owner: cpu.0.into(), ..made(FW_ERR_BUSY) }
        }
        PlaceFailure::Isolated(pfn) => {
            fw_error { why: FW_WHY_ISOLATED, other_pfn: pfn.0, ..made(FW_ERR_BUSY) }
        }
        PlaceFailure::BelowMark => made(FW_ERR_BELOW_MARK),
        PlaceFailure::Bad => fw_error { why: FW_WHY_BAD, ..made(FW_ERR_REFUSED) },
        PlaceFailure::Injected => fw_error { why: FW_WHY_INJECTED, ..made(FW_ERR_NO_MEMORY) },
    }
}

/// Keeps why this thread's call fails, and returns the status to end it with.
#[cold]
pub(crate) fn fail(failure: Failure) -> fw_status {
    let status = failure.error().status;
    // While a thread ends there may be no place left to keep it.
    let _ = LAST.try_with(|last| last.replace(failure));
    status
}

/// The same, for a reason known when this was compiled.
#[cold]
pub(crate) fn plain(status: fw_status, text: &'static str) -> fw_status {
    fail(Failure::Plain(status, text))
}

/// What a step of a call has returned; if it failed, the call ends with its status, or with the second argument.
macro_rules! tried {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(status) => return status,
        }
    };
    ($result:expr, $failed:expr) => {
        match $result {
            Ok(value) => value,
            Err(_) => return $failed,
        }
    };
}
pub(crate) use tried;

/// The status to end a call with.
pub(crate) fn ended(result: Result<(), fw_status>) -> fw_status {
    result.err().unwrap_or(FW_OK)
}

/// The caller's place for a result.
///
/// # Safety
/// `out` is NULL or can be written to.
pub(crate) unsafe fn place<'a, T>(out: *mut T, null_text: &'static str) -> Result<&'a mut T, fw_status> {
    // SAFETY: by the caller's promise.
    unsafe { out.as_mut() }.ok_or_else(|| null(null_text))
}

/// Writes a result that the caller may not want.
///
/// # Safety
/// `out` is NULL or can be written to.
pub(crate) unsafe fn give<T>(out: *mut T, result: T) {
    // SAFETY: by the caller's promise.
    if let Some(out) = unsafe { out.as_mut() } {
        *out = result;
    }
}

/// How a free ended.
pub(crate) fn freed(result: Result<(), FreeError>) -> fw_status {
    ended(result.map_err(|error| fail(Failure::Free(error))))
}

#[cold]
pub(crate) fn null(what: &'static str) -> fw_status {
    plain(FW_ERR_NULL, what)
}

#[cold]
pub(crate) fn argument(what: &'static str) -> fw_status {
    plain(FW_ERR_ARGUMENT, what)
}

/// An arena that could not be made.
#[cold]
pub(crate) fn arena(error: &ArenaError) -> fw_status {
    let (status, source) = match error {
        ArenaError::Reserve { source, .. }
        | ArenaError::HugePages { source, .. }
        | ArenaError::Bind { source, .. } => (FW_ERR_SYSTEM, source.raw_os_error()),
        ArenaError::HugeAdvice(source) | ArenaError::Populate(source) | ArenaError::Lock { source, .. } => {
            (FW_ERR_SYSTEM, source.raw_os_error())
        }
        _ => (FW_ERR_SETUP, None),
    };
    fw_error { system: source.unwrap_or(0), ..fw_error::of(status) }.tell(error)
}

/// Why this thread's last failed call failed. `FW_OK` in the status if none has.
///
/// # Safety
/// `out` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_last_error(out: *mut fw_error) -> fw_status {
    // SAFETY: by the caller's promise.
    let Some(out) = (unsafe { out.as_mut() }) else { return FW_ERR_NULL };
    *out = LAST.try_with(|last| last.borrow().error()).unwrap_or(fw_error::of(FW_OK));
    FW_OK
}

/// The error as one line of text, with what to do where something can be done. Writes at most `size` bytes
/// including the final 0, and returns how many bytes the whole text has without it.
///
/// # Safety
/// `buffer` is NULL or `size` bytes can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_last_error_text(buffer: *mut c_char, size: usize) -> usize {
    let text = LAST.try_with(|last| last.borrow().to_string()).unwrap_or_default();
    // SAFETY: by the caller's promise.
    unsafe { copy(&text, buffer, size) }
}

/// The name of a status, such as `"FW_ERR_NO_MEMORY"`; `"?"` for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn fw_status_name(status: c_int) -> *const c_char {
    let name = match status {
        0 => c"FW_OK",
        -1 => c"FW_ERR_NULL",
        -2 => c"FW_ERR_HANDLE",
        -3 => c"FW_ERR_THREAD",
        -4 => c"FW_ERR_ARGUMENT",
        -5 => c"FW_ERR_NO_MEMORY",
        -6 => c"FW_ERR_BELOW_MARK",
        -7 => c"FW_ERR_REFUSED",
        -8 => c"FW_ERR_NO_CPU",
        -9 => c"FW_ERR_SETUP",
        -10 => c"FW_ERR_SYSTEM",
        -11 => c"FW_ERR_BUSY",
        -12 => c"FW_ERR_INVARIANT",
        _ => c"?",
    };
    name.as_ptr()
}

/// Copies a text as C wants it, cut to what fits. Returns its whole length.
///
/// # Safety
/// `buffer` is NULL or `size` bytes can be written there.
pub(crate) unsafe fn copy(text: &str, buffer: *mut c_char, size: usize) -> usize {
    if !buffer.is_null() && size > 0 {
        let fits = text.len().min(size - 1);
        // SAFETY: `fits` and the final 0 are at most `size` bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, fits);
            buffer.add(fits).write(0);
        }
    }
    text.len()
}
