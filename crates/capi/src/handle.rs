//! What stands behind the handles that C holds.
//!
//! A handle is the address of a shell that is never given back to the system: a closed one is read as closed, and used
//! again for a later handle. The first word of every shell says what it is: for an attachment, the thread that may
//! use it.
#![expect(unsafe_code, reason = "handles are addresses that C passes back")]

use core::cell::RefCell;
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use framewright_host::{Arena, Attached, Migratetype};

use crate::balloon::Balloon;
use crate::status::{self, fw_status};

/// A closed shell. No thread has this address for its control block.
const CLOSED: usize = 0;
/// An open arena: no thread's control block lies at an odd address.
const ARENA: usize = 0x6677_6172_656e_6121;
/// An attachment whose thread lends its lists. An odd number, too.
const LENT: usize = 0x6677_6c65_6e74_2101;

/// An arena and what C has hooked up to it.
pub(crate) struct Kept {
    pub(crate) arena: Arena,
    /// Attachments that are open.
    pub(crate) attached: AtomicU64,
    pub(crate) balloon: Arc<Balloon>,
}

/// An arena: an allocator and its memory. Any thread may use the handle.
pub struct fw_arena(ArenaShell);

// The layout is said here, not on the type that C sees: so its header has nothing of it.
#[repr(C)]
struct ArenaShell {
    kind: AtomicUsize,
    kept: UnsafeCell<Option<Arc<Kept>>>,
}

// SAFETY: `kept` is written only under the registry's lock while the shell is closed, or by the one call that closes
// it; C promises not to close a handle that another thread uses.
unsafe impl Sync for fw_arena {}
// SAFETY: as above.
unsafe impl Send for fw_arena {}

impl fmt::Debug for fw_arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("fw_arena").finish_non_exhaustive()
    }
}

/// A thread's hold of a CPU slot of an arena. Only the thread that attached may use it.
pub struct fw_cpu(CpuShell);

// What the header's inline functions read of it, `struct fw_hits` there, is `thread` and `hits`. Programs are built with that
// layout and linked with libraries of later: so it never changes. A library that keeps other things here has 0 as the
// first word for ever, and the thread elsewhere: then programs of today call its functions.
#[repr(C)]
struct CpuShell {
    /// The thread that may use it.
    thread: AtomicUsize,
    hits: UnsafeCell<Hits>,
    held: UnsafeCell<Option<Held>>,
}

/// Where hits of single movable frames read and write: see `HitWords`.
#[repr(C)]
struct Hits {
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
    const fn none() -> Self {
        let list = NO_LIST.as_ptr();
        Self { list, slots: list, mask: 0, heads: list, first: 0, frames: 0 }
    }

    fn of(cpu: &Attached<'_>) -> Self {
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

// A handle of one kind that is passed as another is told by its first word.
const _: () = assert!(core::mem::offset_of!(fw_arena, 0) == 0 && core::mem::offset_of!(fw_cpu, 0) == 0);
// As `header/inline.h` says.
const _: () = assert!(core::mem::offset_of!(CpuShell, hits) == 8 && size_of::<Hits>() == 48);

/// What an open attachment has.
struct Held {
    // Before what it borrows from, so that it is dropped first.
    cpu: Attached<'static>,
    kept: Arc<Kept>,
}

// SAFETY: only the thread named in `thread` reaches `hits` and `held`.
unsafe impl Sync for fw_cpu {}
// SAFETY: as above.
unsafe impl Send for fw_cpu {}

impl fmt::Debug for fw_cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("fw_cpu").finish_non_exhaustive()
    }
}

/// All shells ever made, open and closed.
struct Registry {
    arenas: Vec<&'static fw_arena>,
    cpus: Vec<&'static fw_cpu>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { arenas: Vec::new(), cpus: Vec::new() });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
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
    watch_forks();
    let kept = Arc::new(Kept { arena, attached: AtomicU64::new(0), balloon });
    let mut registry = registry();
    let closed = registry.arenas.iter().find(|shell| shell.0.kind.load(Ordering::Acquire) == CLOSED);
    let shell = closed.copied().unwrap_or_else(|| {
        let shell: &fw_arena = Box::leak(Box::new(fw_arena(ArenaShell {
            kind: AtomicUsize::new(CLOSED),
            kept: UnsafeCell::new(None),
        })));
        registry.arenas.push(shell);
        shell
    });
    // SAFETY: the shell is closed, and the registry's lock keeps others from opening it.
    unsafe { *shell.0.kept.get() = Some(kept) };
    shell.0.kind.store(ARENA, Ordering::Release);
    core::ptr::from_ref(shell).cast_mut()
}

/// The arena behind a handle.
///
/// # Safety
/// `arena` is NULL or was a handle, and nobody closes it meanwhile.
pub(crate) unsafe fn arena_of<'a>(arena: *const fw_arena) -> Result<&'a Arc<Kept>, fw_status> {
    // SAFETY: shells are never given back.
    let Some(shell) = (unsafe { arena.as_ref() }) else { return Err(status::null("the arena is NULL")) };
    if shell.0.kind.load(Ordering::Acquire) != ARENA {
        return Err(closed());
    }
    // SAFETY: open, so it was written before, and nobody writes meanwhile.
    unsafe { &*shell.0.kept.get() }.as_ref().ok_or_else(closed)
}

/// Closes a handle, if nothing is attached to its arena.
///
/// # Safety
/// As [`arena_of`], and nobody else uses the handle.
pub(crate) unsafe fn close_arena(arena: *const fw_arena) -> fw_status {
    // SAFETY: by the caller's promise.
    let kept = match unsafe { arena_of(arena) } {
        Ok(kept) => kept,
        Err(status) => return status,
    };
    if kept.attached.load(Ordering::Acquire) > 0 {
        return status::plain(
            fw_status::FW_ERR_BUSY,
            "threads are attached to the arena: detach them first (the end of a thread does)",
        );
    }
    // SAFETY: not NULL, or it would have been refused above.
    let shell = unsafe { &*arena };
    // SAFETY: open until the next line but one, so nobody else writes; nobody else uses it, by the caller's promise.
    let kept = unsafe { (*shell.0.kept.get()).take() };
    shell.0.kind.store(CLOSED, Ordering::Release);
    drop(kept);
    fw_status::FW_OK
}

#[cold]
fn closed() -> fw_status {
    status::plain(
        fw_status::FW_ERR_HANDLE,
        "the handle is closed, or of another kind, or of the parent process",
    )
}

// ---- attachments ---------------------------------------------------------------------------------------------

/// The attachments that a thread has opened: those still open when it ends are closed then.
struct Own(RefCell<Vec<&'static fw_cpu>>);

impl Drop for Own {
    fn drop(&mut self) {
        for shell in self.0.take() {
            if shell.0.thread.load(Ordering::Relaxed) == this_thread() {
                close(shell);
            }
        }
    }
}

thread_local!(static OWN: Own = const { Own(RefCell::new(Vec::new())) });

/// Opens a handle for an attachment of this thread, made by `attach`.
pub(crate) fn open_cpu(
    kept: &Arc<Kept>,
    attach: impl FnOnce(&'static Arena) -> Result<Attached<'static>, fw_status>,
) -> Result<*mut fw_cpu, fw_status> {
    // SAFETY: the arena stays where it is while an `Arc` of it exists. `Held` keeps one beside the attachment, and
    // drops the attachment first.
    let arena: &'static Arena = unsafe { &*core::ptr::from_ref(&kept.arena) };
    let held = Held { cpu: attach(arena)?, kept: Arc::clone(kept) };
    let mut registry = registry();
    let closed = registry.cpus.iter().find(|shell| shell.0.thread.load(Ordering::Acquire) == CLOSED);
    let shell = closed.copied().unwrap_or_else(|| {
        let shell: &fw_cpu = Box::leak(Box::new(fw_cpu(CpuShell {
            thread: AtomicUsize::new(CLOSED),
            hits: UnsafeCell::new(Hits::none()),
            held: UnsafeCell::new(None),
        })));
        registry.cpus.push(shell);
        shell
    });
    // SAFETY: the shell is closed, and the registry's lock keeps others from opening it.
    unsafe {
        *shell.0.hits.get() = Hits::of(&held.cpu);
        *shell.0.held.get() = Some(held);
    }
    kept.attached.fetch_add(1, Ordering::AcqRel);
    shell.0.thread.store(this_thread(), Ordering::Release);
    drop(registry);
    // In a thread that is ending already, the handle stays open until its arena's slot is reaped.
    let _ = OWN.try_with(|own| own.0.borrow_mut().push(shell));
    Ok(core::ptr::from_ref(shell).cast_mut())
}

/// The attachment behind a handle, if it is this thread's.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[inline(always)]
pub(crate) unsafe fn ours<'a>(cpu: *const fw_cpu) -> Option<&'a Attached<'static>> {
    // SAFETY: shells are never given back.
    let shell = unsafe { cpu.as_ref() }?;
    if shell.0.thread.load(Ordering::Relaxed) != this_thread() {
        return None;
    }
    // SAFETY: this thread is the one that may reach it, and has not closed it: a shell that names a thread holds an
    // attachment.
    Some(&unsafe { (*shell.0.held.get()).as_ref().unwrap_unchecked() }.cpu)
}

/// The same, or why not.
///
/// # Safety
/// As [`ours`].
pub(crate) unsafe fn cpu_of<'a>(cpu: *const fw_cpu) -> Result<&'a Attached<'static>, fw_status> {
    // SAFETY: by the caller's promise.
    unsafe { ours(cpu).ok_or_else(|| not_ours(cpu)) }
}

/// The arena that an attachment of this thread belongs to.
///
/// # Safety
/// As [`cpu_of`].
pub(crate) unsafe fn kept_of<'a>(
    cpu: *const fw_cpu,
) -> Result<(&'a Attached<'static>, &'a Arc<Kept>), fw_status> {
    // SAFETY: by the caller's promise.
    let attached = unsafe { cpu_of(cpu) }?;
    // SAFETY: open and ours, or it would have been refused.
    let held = unsafe { (*(*cpu).0.held.get()).as_ref() };
    held.map(|held| (attached, &held.kept)).ok_or_else(closed)
}

/// Why a handle is not this thread's attachment.
///
/// # Safety
/// As [`cpu_of`].
#[cold]
#[inline(never)]
unsafe fn not_ours(cpu: *const fw_cpu) -> fw_status {
    // SAFETY: shells are never given back.
    let Some(shell) = (unsafe { cpu.as_ref() }) else { return status::null("the CPU handle is NULL") };
    match shell.0.thread.load(Ordering::Relaxed) {
        CLOSED | ARENA | LENT => closed(),
        _ => status::plain(
            fw_status::FW_ERR_THREAD,
            "another thread attached this handle: each thread attaches for itself",
        ),
    }
}

/// Whether other threads are attached to an arena.
pub(crate) fn others_attached(kept: &Arc<Kept>) -> bool {
    let is_of = |shell: &&&fw_cpu| {
        // SAFETY: of this thread's own, which are open.
        let held = unsafe { (*shell.0.held.get()).as_ref() };
        held.is_some_and(|held| Arc::ptr_eq(&held.kept, kept))
    };
    let own = OWN.try_with(|own| own.0.borrow().iter().filter(is_of).count()).unwrap_or(0);
    kept.attached.load(Ordering::Acquire) > own as u64
}

/// Closes an attachment of this thread.
///
/// # Safety
/// As [`cpu_of`].
pub(crate) unsafe fn close_cpu(cpu: *const fw_cpu) -> fw_status {
    // SAFETY: by the caller's promise.
    if let Err(status) = unsafe { cpu_of(cpu) } {
        return status;
    }
    // SAFETY: not NULL, and shells are never given back.
    let shell: &'static fw_cpu = unsafe { &*cpu };
    let _ = OWN.try_with(|own| own.0.borrow_mut().retain(|&mine| !core::ptr::eq(mine, shell)));
    close(shell);
    fw_status::FW_OK
}

/// Closes an attachment; this thread is the one that has it.
fn close(shell: &'static fw_cpu) {
    // SAFETY: this thread is the one that may reach it.
    let held = unsafe { &mut *shell.0.held.get() };
    if let Some(Held { cpu, kept }) = held.take() {
        drop(cpu);
        kept.attached.fetch_sub(1, Ordering::AcqRel);
    }
    shell.0.thread.store(CLOSED, Ordering::Release);
}

/// Runs `f` while an attachment of this thread lends its lists. The handle counts as closed meanwhile.
///
/// # Safety
/// As [`cpu_of`].
pub(crate) unsafe fn lend(cpu: *const fw_cpu, f: impl FnOnce()) -> fw_status {
    // SAFETY: by the caller's promise.
    if let Err(status) = unsafe { cpu_of(cpu) } {
        return status;
    }
    // SAFETY: not NULL, and shells are never given back.
    let shell: &'static fw_cpu = unsafe { &*cpu };
    // Neither this thread's nor free to be opened again.
    shell.0.thread.store(LENT, Ordering::Release);
    // SAFETY: this thread is the one that may reach it, and its handle leads nowhere until the next line but one.
    if let Some(held) = unsafe { (*shell.0.held.get()).as_mut() } {
        held.cpu.idle(f);
    }
    shell.0.thread.store(this_thread(), Ordering::Release);
    fw_status::FW_OK
}

// ---- forks ---------------------------------------------------------------------------------------------------

/// Closes all handles in a forked child: the slots that they stand for are its parent's.
fn watch_forks() {
    static ONCE: Once = Once::new();
    // The guard that the parent's thread takes before the fork, and that both give back.
    thread_local!(static GUARD: RefCell<Option<MutexGuard<'static, Registry>>> = const { RefCell::new(None) });
    extern "C" fn before() {
        let guard = registry();
        let _ = GUARD.try_with(|place| place.replace(Some(guard)));
    }
    extern "C" fn in_parent() {
        let _ = GUARD.try_with(RefCell::take);
    }
    extern "C" fn in_child() {
        let _ = GUARD.try_with(|place| {
            if let Some(registry) = place.take() {
                // The number of no thread: neither this child's handles nor free to be opened again, because what
                // they hold must not be dropped here.
                registry.cpus.iter().for_each(|shell| shell.0.thread.store(ARENA, Ordering::Release));
                registry.arenas.iter().for_each(|shell| shell.0.kind.store(usize::MAX, Ordering::Release));
            }
        });
    }
    ONCE.call_once(|| {
        // SAFETY: the three take nothing and may run at any fork of this process.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}
