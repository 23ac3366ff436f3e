//! What stands behind the handles that C holds.
//!
//! A handle is the address of a shell that is never given back to the system: a closed one is read as closed, and used
//! again for a later handle. The first word of every shell is its kind: for an attachment, the thread that may
//! use it.
#![expect(unsafe_code, reason = "handles are addresses that C passes back")]

use core::cell::{Cell, RefCell};
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use framewright_host::{Arena, Cpu, Migratetype};

use crate::balloon::Balloon;
use crate::shell::{CLOSED, Shell, Shells, closed};
use crate::status::{self, fw_status};

/// An open arena. All kinds but threads are odd numbers: no thread's control block is at an odd address.
const ARENA: usize = 0x6677_6172_656e_6121;
/// An attachment whose thread lends its lists.
const LENT: usize = 0x6677_6c65_6e74_2101;

/// Closes all handles in a forked child: the CPUs that they stand for are its parent's.
fn in_child() {
    ARENAS.inherit();
    CPUS.inherit();
}

/// An arena and what C has hooked up to it.
pub(crate) struct Kept {
    pub(crate) arena: Arena,
    /// Attachments that are open.
    pub(crate) attached: AtomicU64,
    pub(crate) balloon: Arc<Balloon>,
}

/// An arena: an allocator and its memory. Any thread may use the handle.
// The layout is said at `Shell`, not on the types that C sees: so the header has nothing of it.
#[derive(Debug)]
pub struct fw_arena(Shell<(), Arc<Kept>>);

/// A thread's hold of a CPU of an arena. Only the thread that attached may use it.
#[derive(Debug)]
pub struct fw_cpu(CpuShell);

// What the header's inline functions read of it, `struct fw_hits` there, is the thread and `Hits`. Programs are built
// with that layout and linked with libraries of later: so it never changes. A library that keeps other things here has
// 0 as the first word permanently, and the thread elsewhere: then programs of today call its functions.
type CpuShell = Shell<Hits, Held>;

static ARENAS: Shells<(), Arc<Kept>> = Shells::new();
static CPUS: Shells<Hits, Held> = Shells::new();

/// Where hits of single movable frames read and write: see `HitWords`.
#[repr(C)]
pub(crate) struct Hits {
    /// Top, floor and ceiling.
    list: *const AtomicU64,
    slots: *const AtomicU64,
    mask: u64,
    heads: *const AtomicU64,
    first: u64,
    frames: u64,
}

/// A list of which nothing is ever had, and to which nothing is put.
static NO_LIST: [AtomicU64; 3] = [AtomicU64::new(0), AtomicU64::new(u64::MAX), AtomicU64::new(0)];

impl Hits {
    /// With these, every call goes the whole way.
    fn none() -> Self {
        let list = NO_LIST.as_ptr();
        Self { list, slots: list, mask: 0, heads: list, first: 0, frames: 0 }
    }

    fn of(cpu: &Cpu<'_>) -> Self {
        let Some(words) = cpu.hit_words(Migratetype::Movable) else { return Self::none() };
        let in_a_row = [words.floor, words.ceiling] == [1, 2].map(|n| words.top.wrapping_add(n));
        if !in_a_row || words.stride != size_of::<u64>() {
            return Self::none();
        }
        Self {
            list: words.top,
            slots: words.slots,
            mask: words.mask,
            heads: words.heads,
            first: words.first.0,
            frames: words.frames,
        }
    }
}

// A handle of one kind that is passed as another is told by its first word. As `header/inline.h` says.
const _: () = assert!(core::mem::offset_of!(fw_arena, 0) == 0 && core::mem::offset_of!(fw_cpu, 0) == 0);
const _: () = assert!(core::mem::offset_of!(CpuShell, inline) == 8 && size_of::<Hits>() == 48);

/// What an open attachment has.
pub(crate) struct Held {
    // Before what it borrows from, so that it is dropped first.
    cpu: Cpu<'static>,
    pub(crate) kept: Arc<Kept>,
    /// Calls under way: more than one where a call runs a function of the caller's.
    calls: Cell<u32>,
}

/// A number that no other living thread has, and that costs one instruction: the address of its control block.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let address: usize;
        // SAFETY: the x86-64 ABI has the thread's own address there, which never changes.
        unsafe {
            core::arch::asm!("mov {}, fs:0", out(reg) address, options(nostack, pure, readonly, preserves_flags))
        };
        address
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: it takes nothing and always succeeds.
        unsafe { libc::pthread_self() as usize }
    }
}

// ---- arenas --------------------------------------------------------------------------------------------------

/// Opens a handle for an arena.
pub(crate) fn open_arena(arena: Arena, balloon: Arc<Balloon>) -> *mut fw_arena {
    let kept = Arc::new(Kept { arena, attached: AtomicU64::new(0), balloon });
    core::ptr::from_ref(ARENAS.open(ARENA, (), kept, in_child)).cast_mut().cast()
}

/// The arena behind a handle.
///
/// # Safety
/// `arena` is NULL or was a handle, and no thread closes it during the borrow.
pub(crate) unsafe fn arena_of<'a>(arena: *const fw_arena) -> Result<&'a Arc<Kept>, fw_status> {
    // SAFETY: shells are never given back.
    let Some(shell) = (unsafe { arena.as_ref() }) else { return Err(status::null("the arena is NULL")) };
    // SAFETY: by the caller's promise.
    unsafe { shell.0.open_as(ARENA) }
}

/// Closes a handle, if no thread is attached to its arena.
///
/// # Safety
/// As [`arena_of`], and no other thread uses the handle.
pub(crate) unsafe fn close_arena(arena: *const fw_arena) -> fw_status {
    let is_free = |kept: &Arc<Kept>| {
        let text = "threads are attached to the arena: detach them first (the end of a thread does)";
        let is_free = kept.attached.load(Ordering::Acquire) == 0;
        if is_free { Ok(()) } else { Err(status::plain(fw_status::FW_ERR_BUSY, text)) }
    };
    // SAFETY: by the caller's promise.
    let checked = unsafe { arena_of(arena) }.and_then(is_free);
    // SAFETY: an open handle, and no other thread uses it, by the caller's promise.
    status::ended(checked.map(|()| unsafe { (*arena).0.close() }))
}

// ---- attachments ---------------------------------------------------------------------------------------------

/// The attachments that a thread has opened: those still open when it ends are closed then.
struct Own(RefCell<Vec<&'static CpuShell>>);

impl Drop for Own {
    fn drop(&mut self) {
        self.0.take().into_iter().filter(|shell| is_mine(shell)).for_each(close);
    }
}

thread_local!(static OWN: Own = const { Own(RefCell::new(Vec::new())) });

fn is_mine(shell: &CpuShell) -> bool {
    shell.kind.load(Ordering::Relaxed) == this_thread()
}

/// Opens a handle for an attachment of this thread, made by `attach`.
pub(crate) fn open_cpu(
    kept: &Arc<Kept>,
    attach: impl FnOnce(&'static Arena) -> Result<Cpu<'static>, fw_status>,
) -> Result<*mut fw_cpu, fw_status> {
    // SAFETY: the arena stays where it is while an `Arc` of it exists. `Held` keeps one beside the attachment, and
    // drops the attachment first.
    let arena: &'static Arena = unsafe { &*core::ptr::from_ref(&kept.arena) };
    let held = Held { cpu: attach(arena)?, kept: Arc::clone(kept), calls: Cell::new(0) };
    kept.attached.fetch_add(1, Ordering::AcqRel);
    let shell = CPUS.open(this_thread(), Hits::of(&held.cpu), held, in_child);
    // In a thread that is ending already, the handle stays open until its CPU is reaped.
    let _ = OWN.try_with(|attached| attached.0.borrow_mut().push(shell));
    Ok(core::ptr::from_ref(shell).cast_mut().cast())
}

/// What an attachment has, if the handle is this thread's.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[inline(always)]
unsafe fn held<'a>(cpu: *const fw_cpu) -> Option<&'a Held> {
    // SAFETY: shells are never given back.
    let shell = unsafe { cpu.as_ref() }?;
    if !is_mine(&shell.0) {
        return None;
    }
    // SAFETY: this thread is the one that may reach it, and has not closed it: a shell that names a thread holds an
    // attachment.
    Some(unsafe { (*shell.0.held.get()).as_ref().unwrap_unchecked() })
}

/// The attachment behind a handle, if it is this thread's: for calls that run no function of the caller's.
///
/// # Safety
/// As [`held`].
#[inline(always)]
pub(crate) unsafe fn ours<'a>(cpu: *const fw_cpu) -> Option<&'a Cpu<'static>> {
    // SAFETY: by the caller's promise.
    unsafe { held(cpu) }.map(|held| &held.cpu)
}

/// An attachment during a call: a function of the caller's that runs in it cannot close it.
pub(crate) struct Called<'a>(pub(crate) &'a Held);

impl Deref for Called<'_> {
    type Target = Cpu<'static>;

    fn deref(&self) -> &Cpu<'static> {
        &self.0.cpu
    }
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get() - 1);
    }
}

/// The attachment behind a handle, for a call; or why it is not this thread's.
///
/// # Safety
/// As [`held`].
pub(crate) unsafe fn cpu_of<'a>(cpu: *const fw_cpu) -> Result<Called<'a>, fw_status> {
    // SAFETY: by the caller's promise.
    let held = unsafe { held(cpu).ok_or_else(|| not_ours(cpu)) }?;
    held.calls.set(held.calls.get() + 1);
    Ok(Called(held))
}

/// Why a handle is not this thread's attachment.
///
/// # Safety
/// As [`held`].
#[cold]
#[inline(never)]
unsafe fn not_ours(cpu: *const fw_cpu) -> fw_status {
    // SAFETY: shells are never given back.
    let Some(shell) = (unsafe { cpu.as_ref() }) else { return status::null("the CPU handle is NULL") };
    let kind = shell.0.kind.load(Ordering::Relaxed);
    if kind == CLOSED || kind % 2 == 1 {
        return closed();
    }
    let text = "another thread attached this handle: each thread attaches for itself";
    status::plain(fw_status::FW_ERR_THREAD, text)
}

/// Whether other threads are attached to an arena.
pub(crate) fn others_attached(kept: &Arc<Kept>) -> bool {
    let is_of = |shell: &&&CpuShell| {
        // SAFETY: of this thread's own, which are open.
        let held = unsafe { (*shell.held.get()).as_ref() };
        held.is_some_and(|held| Arc::ptr_eq(&held.kept, kept))
    };
    let attached = OWN.try_with(|attached| attached.0.borrow().iter().filter(is_of).count()).unwrap_or(0);
    kept.attached.load(Ordering::Acquire) > attached as u64
}

/// The shell of an attachment of this thread that no call uses.
///
/// # Safety
/// As [`held`].
unsafe fn unused(cpu: *const fw_cpu) -> Result<&'static CpuShell, fw_status> {
    // SAFETY: by the caller's promise.
    if unsafe { cpu_of(cpu) }?.0.calls.get() > 1 {
        let text = "a call on this handle is under way, which has called the function that calls this";
        return Err(status::plain(fw_status::FW_ERR_BUSY, text));
    }
    // SAFETY: not NULL, or it would have been refused, and shells are never given back.
    Ok(unsafe { &(*cpu).0 })
}

/// Closes an attachment of this thread.
///
/// # Safety
/// As [`held`].
pub(crate) unsafe fn close_cpu(cpu: *const fw_cpu) -> fw_status {
    // SAFETY: by the caller's promise.
    status::ended(unsafe { unused(cpu) }.map(|shell| {
        let _ = OWN.try_with(|attached| attached.0.borrow_mut().retain(|&mine| !core::ptr::eq(mine, shell)));
        close(shell);
    }))
}

/// Closes an attachment; this thread is the one that has it.
fn close(shell: &'static CpuShell) {
    // SAFETY: this thread is the one that may reach it.
    let held = unsafe { &mut *shell.held.get() };
    if let Some(Held { cpu, kept, .. }) = held.take() {
        drop(cpu);
        kept.attached.fetch_sub(1, Ordering::AcqRel);
    }
    shell.kind.store(CLOSED, Ordering::Release);
}

/// Runs `f` while an attachment of this thread lends its lists. The handle counts as closed during that.
///
/// # Safety
/// As [`held`].
pub(crate) unsafe fn lend(cpu: *const fw_cpu, f: impl FnOnce()) -> fw_status {
    // SAFETY: by the caller's promise.
    status::ended(unsafe { unused(cpu) }.map(|shell| {
        // Neither this thread's nor free to be opened again.
        shell.kind.store(LENT, Ordering::Release);
        // SAFETY: this thread is the one that may reach it, and its handle leads nowhere until the next line but one.
        if let Some(held) = unsafe { (*shell.held.get()).as_mut() } {
            held.cpu.idle(f);
        }
        // In a child that `f` has forked, it is closed permanently.
        let _ = shell.kind.compare_exchange(LENT, this_thread(), Ordering::AcqRel, Ordering::Relaxed);
    }))
}
