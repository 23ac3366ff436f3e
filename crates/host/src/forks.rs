//! Forks of this process: how a handle knows that it was made by a parent, and what a child must do before anything
//! else of the program runs there.
//!
//! One handler of `fork(3)` for all kinds of handles. It holds the lock of [`Duties`] during a fork, so that no thread
//! has opened a file and not noted it yet. A fork by a bare system call is not noticed.
#![expect(unsafe_code, reason = "system calls take raw addresses")]

use core::cell::UnsafeCell;
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Forks between this process and the one that made its first handle.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process, of several of which each is a fork of the one before, that made something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generation(u32);

impl Generation {
    /// This process'.
    pub(crate) fn now() -> Self {
        watch();
        Self(FORKS.load(Relaxed))
    }

    /// Whether this process is a later one. A load.
    #[inline]
    pub(crate) fn is_over(self) -> bool {
        FORKS.load(Relaxed) != self.0
    }
}

/// Tasks of a child before `fork` returns there.
pub struct Duties {
    /// Closes these: open, they would keep its parent alive in the eyes of other processes.
    openings: Vec<RawFd>,
    /// Puts an empty file in the place of these, which would keep their parent's locks, too: handles close them later.
    withheld: Vec<RawFd>,
    /// Takes these address ranges, which a child does not inherit, so that nothing else comes to be there.
    holes: Vec<(usize, usize)>,
    /// Calls these.
    others: Vec<fn()>,
}

static DUTIES: Mutex<Duties> =
    Mutex::new(Duties { openings: Vec::new(), withheld: Vec::new(), holes: Vec::new(), others: Vec::new() });

impl fmt::Debug for Duties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duties").finish_non_exhaustive()
    }
}

/// Keeps other threads from forking until it is dropped. What a child has to do is said through it. Do not call code of
/// others in the meantime.
pub fn hold() -> MutexGuard<'static, Duties> {
    watch();
    DUTIES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Duties {
    /// Has every child call `f` before `fork` returns there. No other thread is in [`hold`] then, and `f` must not call
    /// it.
    pub fn call(&mut self, f: fn()) {
        if !self.others.iter().any(|&known| ptr::fn_addr_eq(known, f)) {
            self.others.push(f);
        }
    }

    pub(crate) fn close(&mut self, opening: RawFd) {
        self.openings.push(opening);
    }

    /// Whether [`close`](Self::close) was asked for, and no child has done it.
    pub(crate) fn end_close(&mut self, opening: RawFd) -> bool {
        let at = self.openings.iter().position(|&open| open == opening);
        at.map(|at| self.openings.swap_remove(at)).is_some()
    }

    /// Keeps an open file from children as long as the result lives, which has to end before the file is closed.
    pub(crate) fn withhold(&mut self, file: &File) -> Withheld {
        self.withheld.push(file.as_raw_fd());
        Withheld(file.as_raw_fd())
    }

    pub(crate) fn fill(&mut self, start: usize, bytes: usize) {
        self.holes.push((start, bytes));
    }

    pub(crate) fn end_fill(&mut self, start: usize) {
        self.holes.retain(|hole| hole.0 != start);
    }

    fn done_by_child(&mut self) {
        for opening in self.openings.drain(..) {
            // SAFETY: the child's copy of a descriptor whose owner asks `end_close` before it closes it.
            unsafe { libc::close(opening) };
        }
        for opening in self.withheld.drain(..) {
            // SAFETY: as above, and the number stays that of an open file, its handle's to close. Where no file can be
            // made, the child keeps the lock.
            unsafe {
                let empty = libc::eventfd(0, libc::EFD_CLOEXEC);
                libc::dup3(empty, opening, libc::O_CLOEXEC);
                libc::close(empty);
            }
        }
        for (start, bytes) in self.holes.drain(..) {
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            let at = ptr::without_provenance_mut(start);
            // SAFETY: `NOREPLACE` leaves alone what is there.
            if unsafe { libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) } != at {
                // Another handler of this fork has mapped something there, and references to the parent's memory lead
                // to it.
                std::process::abort();
            }
        }
        self.others.iter().for_each(|f| f());
    }
}

/// See [`Duties::withhold`].
pub(crate) struct Withheld(RawFd);

impl Drop for Withheld {
    fn drop(&mut self) {
        hold().withheld.retain(|&opening| opening != self.0);
    }
}

/// The lock, from before a fork until after it.
struct Held(UnsafeCell<Option<MutexGuard<'static, Duties>>>);

// SAFETY: only the thread that holds the lock of `DUTIES` reaches it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

fn watch() {
    extern "C" fn before() {
        let guard = DUTIES.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this thread has the lock.
        unsafe { *HELD.0.get() = Some(guard) };
    }
    extern "C" fn in_parent() {
        // SAFETY: this thread has the lock since `before`. It is given back when the guard is out of its place.
        drop(unsafe { (*HELD.0.get()).take() });
    }
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Relaxed);
        // SAFETY: as above; this is the only thread.
        if let Some(mut duties) = unsafe { (*HELD.0.get()).take() } {
            duties.done_by_child();
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three take nothing, stay permanently, and may run at any fork of this process.
        let failed = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        assert_eq!(failed, 0, "no memory for a handler of forks");
    });
}
