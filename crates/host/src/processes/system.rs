//! What an arena of several processes asks of the system: a file of memory at one address, a lock in it that notices
//! when its holder is killed, and locks on the file that tell which processes live.
#![expect(unsafe_code, reason = "system calls take and return raw addresses")]

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;

/// A new file of `bytes` bytes of zeroes, in memory, whose size nobody can change.
pub(super) fn memory_file(name: &CStr, bytes: usize, huge: bool) -> io::Result<OwnedFd> {
    let huge = if huge { libc::MFD_HUGETLB | libc::MFD_HUGE_2MB } else { 0 };
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that is nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes as u64)?;
    // So that no process can make the others' memory vanish beneath them.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is involved.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// ---- memory ------------------------------------------------------------------------------------------------------

/// A file's memory at one address, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range; what in it may be used by whom is its users' affair.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps the whole file at `address`, if nothing is there yet.
    pub(super) fn map(file: RawFd, address: usize, bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = core::ptr::without_provenance_mut(address);
        // SAFETY: `NOREPLACE` leaves alone whatever is there.
        let start = unsafe { libc::mmap(at, bytes, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::AddrInUse)?;
        let memory = Self { start, bytes };
        if start.as_ptr() as usize != address {
            // A system older than 4.17 takes the address as a hint.
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        // A forked child is no process of the arena: what it touches here is a fault, not a corruption.
        // SAFETY: advice on our own mapping.
        check(unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTFORK) })?;
        Ok(memory)
    }

    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and whoever borrowed from it is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Makes a range of the file zeroes again. Nobody uses it meanwhile.
///
/// # Safety
/// The memory is the mapping of that range, and nobody else's.
pub(super) unsafe fn clear(file: RawFd, offset: usize, memory: NonNull<u8>, bytes: usize) {
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory of anybody else is involved.
    if unsafe { libc::fallocate(file, punch, offset as libc::off_t, bytes as libc::off_t) } != 0 {
        // SAFETY: by the caller's promise.
        unsafe { memory.write_bytes(0, bytes) };
    }
}

// ---- the lock ----------------------------------------------------------------------------------------------------

// Part of POSIX and of every Linux C library's stable interface; the crate `libc` lacks the declarations.
unsafe extern "C" {
    fn pthread_mutexattr_setrobust(attr: *mut libc::pthread_mutexattr_t, robust: i32) -> i32;
    fn pthread_mutex_consistent(mutex: *mut libc::pthread_mutex_t) -> i32;
}
const PTHREAD_MUTEX_ROBUST: i32 = 1;

/// How the lock was come by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Locked {
    /// It was free.
    Free,
    /// Its holder was killed, or its thread ended: what it guards may be half changed.
    HolderDied,
}

/// Makes the lock. Any thread of any process that has the memory mapped may use it then.
///
/// # Safety
/// `mutex` is memory for one, which nobody has locked.
pub(super) unsafe fn make_lock(mutex: *mut libc::pthread_mutex_t) -> io::Result<()> {
    let check = |error| if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) };
    let mut attr = core::mem::MaybeUninit::uninit();
    // SAFETY: `attr` is initialised by the first call and destroyed by the last; the mutex by the caller's promise.
    unsafe {
        check(libc::pthread_mutexattr_init(attr.as_mut_ptr()))?;
        check(pthread_mutexattr_setrobust(attr.as_mut_ptr(), PTHREAD_MUTEX_ROBUST))?;
        check(libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED))?;
        let made = check(libc::pthread_mutex_init(mutex, attr.as_ptr()));
        libc::pthread_mutexattr_destroy(attr.as_mut_ptr());
        made
    }
}

/// Waits for the lock. `None` if it can never be had again: whoever mended what it guards failed.
///
/// # Safety
/// `mutex` was made, and this thread does not hold it.
pub(super) unsafe fn lock(mutex: *mut libc::pthread_mutex_t) -> Option<Locked> {
    // SAFETY: by the caller's promise.
    match unsafe { libc::pthread_mutex_lock(mutex) } {
        0 => Some(Locked::Free),
        libc::EOWNERDEAD => Some(Locked::HolderDied),
        _ => None,
    }
}

/// Says that what the lock guards is whole again.
///
/// # Safety
/// This thread has the lock, and it was [`Locked::HolderDied`].
pub(super) unsafe fn mended(mutex: *mut libc::pthread_mutex_t) {
    // SAFETY: by the caller's promise.
    unsafe { pthread_mutex_consistent(mutex) };
}

/// # Safety
/// This thread has the lock.
pub(super) unsafe fn unlock(mutex: *mut libc::pthread_mutex_t) {
    // SAFETY: by the caller's promise.
    unsafe { libc::pthread_mutex_unlock(mutex) };
}

// ---- who lives ---------------------------------------------------------------------------------------------------

/// A process's own opening of the file. The system drops the locks that were taken through it when the process ends,
/// however it ends.
#[derive(Debug)]
pub(super) struct Life(RawFd);

/// Descriptors that a forked child must close, or it would keep its parent alive in the others' eyes. −1: free.
static OPENINGS: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];
/// Forks that this process is the child of, since the first arena.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A number that differs in a forked child.
#[inline]
pub(super) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for opening in &OPENINGS {
        let fd = opening.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the child's copy of a descriptor that only `Life` uses, and refuses to in a child.
            unsafe { libc::close(fd) };
        }
    }
}

impl Life {
    pub(super) fn new(file: RawFd) -> io::Result<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the function takes nothing, and may run in any child.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        // A descriptor that was passed on would share its locks with whoever passed it: open the file anew.
        let opened = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{file}"))?;
        let fd = opened.as_raw_fd();
        let is_kept = |opening: &AtomicI32| {
            opening.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if !OPENINGS.iter().any(is_kept) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(Self(opened.into_raw_fd()))
    }

    fn set(&self, byte: usize, kind: i32) -> bool {
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: byte as libc::off_t,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: `lock` is a valid description.
        unsafe { libc::fcntl(self.0, libc::F_OFD_SETLK, &raw const lock) == 0 }
    }

    /// Takes the lock on a byte, if no living process has it.
    pub(super) fn take(&self, byte: usize) -> bool {
        self.set(byte, libc::F_WRLCK)
    }

    /// Gives it up.
    pub(super) fn give(&self, byte: usize) {
        self.set(byte, libc::F_UNLCK);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let is_ours = |opening: &AtomicI32| {
            opening.compare_exchange(self.0, -1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        // A forked child has closed it already: the number may be somebody else's by now.
        if OPENINGS.iter().any(is_ours) {
            // SAFETY: ours since `new`, and closed once.
            unsafe { libc::close(self.0) };
        }
    }
}
