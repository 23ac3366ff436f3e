//! The system as an arena of several processes needs it: a file of memory at one address, and locks on the file that
//! tell which processes live.
#![expect(unsafe_code, reason = "system calls take and return raw addresses")]

use core::ffi::CStr;
use core::ptr::NonNull;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::forks::{self, Generation};
use crate::os::check;

/// A new file of `bytes` bytes of zeroes, in memory, whose size no process can change.
pub(super) fn memory_file(name: &CStr, bytes: usize, huge: bool) -> io::Result<OwnedFd> {
    let huge = if huge { libc::MFD_HUGETLB | libc::MFD_HUGE_2MB } else { 0 };
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which no other code has.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes as u64)?;
    // So that no process can make the others' memory vanish beneath them.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is involved.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

// ---- memory ------------------------------------------------------------------------------------------------------

/// A file's memory at one address, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    made: Generation,
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
        // SAFETY: `NOREPLACE` leaves alone all that is there.
        let start = unsafe { libc::mmap(at, bytes, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::AddrInUse)?;
        let memory = Self { start, bytes, made: Generation::now() };
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

    /// Whether this process is a child of the one that mapped it.
    pub(super) fn is_forked(&self) -> bool {
        self.made.is_over()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A child has not inherited it: the range may be that of an arena which the child has attached to itself.
        if self.made.is_over() {
            return;
        }
        // SAFETY: the range is ours, and all that borrowed from it is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Makes a range of the file zeroes again. No code uses it during the call.
///
/// # Safety
/// The memory is the mapping of that range, and no other code has it.
pub(super) unsafe fn clear(file: RawFd, offset: usize, memory: NonNull<u8>, bytes: usize) {
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory of other owners is involved.
    if unsafe { libc::fallocate(file, punch, offset as libc::off_t, bytes as libc::off_t) } != 0 {
        // SAFETY: by the caller's promise.
        unsafe { memory.write_bytes(0, bytes) };
    }
}

// ---- who lives ---------------------------------------------------------------------------------------------------

/// A process's own opening of the file. The system drops the locks that were taken through it when the process ends,
/// however it ends.
#[derive(Debug)]
pub(super) struct Life(RawFd);

impl Life {
    pub(super) fn new(file: RawFd) -> io::Result<Self> {
        // A descriptor that was passed on would share its locks with the process that passed it: open the file again.
        let path = format!("/proc/self/fd/{file}");
        let mut duties = forks::hold();
        let opened = OpenOptions::new().read(true).write(true).open(path)?.into_raw_fd();
        // A forked child must not keep its parent alive in the eyes of other processes.
        duties.close(opened);
        Ok(Self(opened))
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
        // A forked child has closed it already: the number may be another file's by now.
        if forks::hold().end_close(self.0) {
            // SAFETY: ours since `new`, and closed once.
            unsafe { libc::close(self.0) };
        }
    }
}
