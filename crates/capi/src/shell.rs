//! Handles of any kind: memory that C points to, and what of it is closed in a forked child.
#![expect(unsafe_code, reason = "a handle is used by its kind's rules")]

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use framewright_host::forks;

use crate::status::{self, fw_status};

/// A closed shell. No thread has this address for its control block.
pub(crate) const CLOSED: usize = 0;
/// A handle of the parent process: closed, and never opened again, because what it holds must not be dropped here.
pub(crate) const INHERITED: usize = usize::MAX;

/// What a handle leads to: memory that is never given back, so that a closed handle can be read.
#[repr(C)]
pub(crate) struct Shell<I, T> {
    /// What the handle is: for an attachment, the thread that may use it.
    pub(crate) kind: AtomicUsize,
    /// What C reads of it.
    pub(crate) inline: UnsafeCell<I>,
    pub(crate) held: UnsafeCell<Option<T>>,
}

impl<I, T> fmt::Debug for Shell<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shell").finish_non_exhaustive()
    }
}

// SAFETY: `inline` and `held` are written only by the call that opens or closes the shell, and used by those that find
// it open; C promises not to close a handle that another thread uses, and an attachment is used by its thread alone.
unsafe impl<I, T> Sync for Shell<I, T> {}
// SAFETY: as above.
unsafe impl<I, T> Send for Shell<I, T> {}

/// All shells of a kind that were ever made, open and closed.
pub(crate) struct Shells<I: 'static, T: 'static>(Mutex<Vec<&'static Shell<I, T>>>);

impl<I, T> Shells<I, T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn all(&self) -> MutexGuard<'_, Vec<&'static Shell<I, T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a shell. `in_child` is run in forked children, and closes all of this kind.
    pub(crate) fn open(&self, kind: usize, inline: I, held: T, in_child: fn()) -> &'static Shell<I, T> {
        // So that a child finds no list half changed.
        let mut duties = forks::hold();
        duties.call(in_child);
        let mut shells = self.all();
        let closed = shells.iter().find(|shell| shell.kind.load(Ordering::Acquire) == CLOSED).copied();
        let shell = match closed {
            Some(shell) => {
                // SAFETY: the shell is closed, and the lock keeps others from opening it.
                unsafe {
                    *shell.inline.get() = inline;
                    *shell.held.get() = Some(held);
                }
                shell
            }
            None => {
                let (inline, held) = (UnsafeCell::new(inline), UnsafeCell::new(Some(held)));
                let shell = &*Box::leak(Box::new(Shell { kind: AtomicUsize::new(CLOSED), inline, held }));
                shells.push(shell);
                shell
            }
        };
        shell.kind.store(kind, Ordering::Release);
        shell
    }

    /// In a child: closes all for good.
    pub(crate) fn inherit(&self) {
        self.all().iter().for_each(|shell| shell.kind.store(INHERITED, Ordering::Release));
    }
}

impl<T> Shell<(), T> {
    /// What an open shell of a kind holds.
    ///
    /// # Safety
    /// No thread closes it during the borrow.
    pub(crate) unsafe fn open_as(&self, kind: usize) -> Result<&T, fw_status> {
        if self.kind.load(Ordering::Acquire) != kind {
            return Err(closed());
        }
        // SAFETY: open, so it was written before, and no thread writes during the borrow.
        unsafe { &*self.held.get() }.as_ref().ok_or_else(closed)
    }

    /// Closes an open shell, and drops what it held.
    ///
    /// # Safety
    /// No other thread uses it.
    pub(crate) unsafe fn close(&self) {
        // SAFETY: by the caller's promise; it is open until the next line, so that no other thread writes.
        let held = unsafe { (*self.held.get()).take() };
        self.kind.store(CLOSED, Ordering::Release);
        drop(held);
    }
}

#[cold]
pub(crate) fn closed() -> fw_status {
    status::plain(
        fw_status::FW_ERR_HANDLE,
        "the handle is closed, or of another kind, or of the parent process",
    )
}
