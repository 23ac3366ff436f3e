//! Locks that outlive their owner: robust mutexes, for the CPUs of an arena and for arenas that processes share.
//!
//! The kernel itself walks the list of robust mutexes that an ending thread still holds, however it ends, and marks
//! them. So there is no thread number that could be reused, and nothing to poll. It marks at most 2048 of one thread
//! (`ROBUST_LIST_LIMIT`): of a thread that ends with more held, the rest stay taken.
#![expect(unsafe_code, reason = "mutexes are reached by address")]

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::slice;
use std::io;
use std::sync::Mutex;

use crate::error::ArenaError;

// Part of POSIX and of every Linux C library's stable interface; the crate `libc` lacks the declarations.
unsafe extern "C" {
    fn pthread_mutexattr_setrobust(attr: *mut libc::pthread_mutexattr_t, robust: i32) -> i32;
    fn pthread_mutex_consistent(mutex: *mut libc::pthread_mutex_t) -> i32;
}
const PTHREAD_MUTEX_ROBUST: i32 = 1;

/// A robust mutex. From [`init`](Self::init) on it must stay where it is until the end of the threads that ever left it
/// held, because their lists run through it.
#[repr(transparent)]
pub(crate) struct RobustMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is made to be shared.
unsafe impl Send for RobustMutex {}
// SAFETY: as above.
unsafe impl Sync for RobustMutex {}

/// How a lock was acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    /// It was free.
    Free,
    /// Its owner ended without releasing it.
    OwnerDied,
}

/// Why a lock was not acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// This thread has it already.
    Mine,
    /// Another thread has it, or it cannot be used again: its owner died, and the next one released it unmended.
    Taken,
}

fn check(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

impl RobustMutex {
    const fn new() -> Self {
        Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    /// Makes the mutex, for the threads of this process, or of all that have it mapped.
    ///
    /// # Safety
    /// No thread has locked it.
    pub(crate) unsafe fn init(&self, is_shared: bool) -> io::Result<()> {
        let mut attr = core::mem::MaybeUninit::uninit();
        let shared = if is_shared { libc::PTHREAD_PROCESS_SHARED } else { libc::PTHREAD_PROCESS_PRIVATE };
        // SAFETY: `attr` is initialised by the first call and destroyed by the last; the mutex by the caller's promise.
        unsafe {
            check(libc::pthread_mutexattr_init(attr.as_mut_ptr()))?;
            check(pthread_mutexattr_setrobust(attr.as_mut_ptr(), PTHREAD_MUTEX_ROBUST))?;
            // A thread that waits for itself is told so.
            check(libc::pthread_mutexattr_settype(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ERRORCHECK))?;
            check(libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), shared))?;
            let made = check(libc::pthread_mutex_init(self.0.get(), attr.as_ptr()));
            libc::pthread_mutexattr_destroy(attr.as_mut_ptr());
            made
        }
    }

    fn acquired(result: i32) -> Result<Acquired, Refused> {
        match result {
            0 => Ok(Acquired::Free),
            libc::EOWNERDEAD => Ok(Acquired::OwnerDied),
            libc::EDEADLK => Err(Refused::Mine),
            _ => Err(Refused::Taken),
        }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> Result<Acquired, Refused> {
        // SAFETY: an initialised mutex that stays where it is.
        Self::acquired(unsafe { libc::pthread_mutex_lock(self.0.get()) })
    }

    /// Acquires the lock if no living thread has it. No system call.
    fn try_lock(&self) -> Result<Acquired, Refused> {
        // SAFETY: as above.
        Self::acquired(unsafe { libc::pthread_mutex_trylock(self.0.get()) })
    }

    /// Marks what the lock guards as whole again. The lock was [`Acquired::OwnerDied`], and this thread has it.
    pub(crate) fn mended(&self) {
        // SAFETY: as above. If this thread has it not, the call refuses.
        unsafe { pthread_mutex_consistent(self.0.get()) };
    }

    /// Releases the lock, which this thread has.
    pub(crate) fn unlock(&self) {
        // SAFETY: as above. If this thread has it not, the call refuses: robust mutexes check their owner.
        let result = unsafe { libc::pthread_mutex_unlock(self.0.get()) };
        debug_assert_eq!(result, 0, "released a lock that another thread holds");
    }
}

/// A row of robust mutexes. What each guards, a CPU's lists, is whole between any two operations: there is nothing to
/// mend.
pub(crate) struct OwnerLocks(NonNull<[RobustMutex]>);

// SAFETY: a row of locks, made to be shared.
unsafe impl Send for OwnerLocks {}
// SAFETY: as above.
unsafe impl Sync for OwnerLocks {}

impl OwnerLocks {
    /// `count` free locks.
    pub(crate) fn new(count: usize) -> Result<Self, ArenaError> {
        let locks: Box<[RobustMutex]> = (0..count).map(|_| RobustMutex::new()).collect();
        let locks = Self(NonNull::from(Box::leak(locks)));
        // SAFETY: no thread has seen them.
        let made = locks.row().iter().try_for_each(|lock| unsafe { lock.init(false) });
        let bytes = size_of_val(locks.row());
        made.map(|()| locks).map_err(|source| ArenaError::Reserve { what: "CPUs", bytes, source })
    }

    fn row(&self) -> &[RobustMutex] {
        // SAFETY: leaked by `new` and freed by `drop` alone; locks are only reached by shared references.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    fn whole(&self, n: usize, acquired: Result<Acquired, Refused>) -> Result<Acquired, Refused> {
        if acquired == Ok(Acquired::OwnerDied) {
            self.row()[n].mended();
        }
        acquired
    }

    /// Acquires lock `n` if no living thread holds it; else `None`. O(1), no system call.
    pub(crate) fn try_acquire(&self, n: usize) -> Option<Acquired> {
        self.acquire_or_own(n).ok()
    }

    /// Like [`try_acquire`](Self::try_acquire), but tells a lock of this thread from another's.
    pub(crate) fn acquire_or_own(&self, n: usize) -> Result<Acquired, Refused> {
        self.whole(n, self.row()[n].try_lock())
    }

    /// Acquires lock `n`, which this thread does not hold; sleeps until it can.
    pub(crate) fn acquire(&self, n: usize) -> Acquired {
        self.acquire_unless_mine(n)
            .expect("this thread holds the CPU's lock already: it was entered again from within a call")
    }

    /// Like [`acquire`](Self::acquire), but `None` if this thread holds the lock already.
    pub(crate) fn acquire_unless_mine(&self, n: usize) -> Option<Acquired> {
        match self.whole(n, self.row()[n].lock()) {
            Err(Refused::Mine) => None,
            acquired => Some(acquired.expect("a lock whose owner died is mended when it is acquired")),
        }
    }

    /// Releases a lock that this thread holds when dropped, also when a panic passes.
    pub(crate) const fn guard(&self, n: usize) -> OwnerGuard<'_> {
        OwnerGuard { locks: self, n }
    }

    /// Releases lock `n`, which this thread holds.
    pub(crate) fn release(&self, n: usize) {
        self.row()[n].unlock();
    }
}

/// A lock that is released when this is dropped.
pub(crate) struct OwnerGuard<'a> {
    locks: &'a OwnerLocks,
    n: usize,
}

impl OwnerGuard<'_> {
    /// Keeps the lock: it is the caller's to release.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for OwnerGuard<'_> {
    fn drop(&mut self) {
        self.locks.release(self.n);
    }
}

/// The first locks of a row, which this thread holds, released when this is dropped. No list of guards: that may have
/// to come from the very arena, through `Heap`.
pub(crate) struct FirstLocks<'a> {
    pub(crate) locks: &'a OwnerLocks,
    pub(crate) count: usize,
}

impl Drop for FirstLocks<'_> {
    fn drop(&mut self) {
        (0..self.count).for_each(|n| self.locks.release(n));
    }
}

/// Rows that outlive their arenas. It is never read: it shows leak checkers that these are kept on purpose.
static KEPT: Mutex<Vec<OwnerLocks>> = Mutex::new(Vec::new());

impl Drop for OwnerLocks {
    fn drop(&mut self) {
        // A guard that was forgotten leaves its lock on the list of a living thread: the kernel will visit it
        // when that thread ends, so the row must stay.
        for n in 0..self.len() {
            match self.try_acquire(n) {
                Some(_) => self.release(n),
                // In a child another thread of the parent may hold the list permanently: what is not on it stays, too.
                None => return drop(KEPT.try_lock().map(|mut kept| kept.push(Self(self.0)))),
            }
        }
        // SAFETY: no thread holds or waits for any of them, and `new` made the row from this box.
        unsafe {
            for lock in self.row() {
                libc::pthread_mutex_destroy(lock.0.get());
            }
            drop(Box::from_raw(self.0.as_ptr()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once_and_freed_once() {
        let locks = OwnerLocks::new(2).unwrap();
        assert_eq!(locks.try_acquire(0), Some(Acquired::Free));
        assert_eq!(locks.acquire_or_own(0), Err(Refused::Mine), "not even by the same thread");
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(locks.acquire_or_own(0), Err(Refused::Taken)));
        });
        assert_eq!(locks.try_acquire(1), Some(Acquired::Free));
        locks.release(0);
        assert_eq!(locks.acquire(0), Acquired::Free);
        locks.release(0);
        locks.release(1);
    }

    #[test]
    fn a_thread_that_ends_with_a_lock_held_is_noticed() {
        let locks = OwnerLocks::new(1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(locks.try_acquire(0), Some(Acquired::Free)));
        });
        for acquired in [Acquired::OwnerDied, Acquired::Free] {
            assert_eq!(locks.acquire(0), acquired);
            locks.release(0);
        }
    }

    #[test]
    fn locks_left_held_stay_where_the_kernel_will_look_for_them() {
        let locks = OwnerLocks::new(1).unwrap();
        assert_eq!(locks.try_acquire(0), Some(Acquired::Free));
        let row = locks.0;
        drop(locks);
        // SAFETY: the row was kept because its lock is held; this is what the test shows.
        let lock = unsafe { &*row.as_ptr().cast::<RobustMutex>() };
        assert_eq!(lock.try_lock(), Err(Refused::Mine));
        lock.unlock();
        // SAFETY: no thread holds it any more, and `new` made it from a box.
        drop(unsafe { Box::from_raw(row.as_ptr()) });
    }

    /// As if another thread of the parent had dropped a row in the moment of the fork.
    #[test]
    fn a_child_does_not_wait_for_the_list_of_rows() {
        let mut locks = Some(OwnerLocks::new(1).unwrap());
        assert_eq!(locks.as_ref().unwrap().try_acquire(0), Some(Acquired::Free));
        let list = KEPT.lock();
        // SAFETY: the child drops its copy, and ends; one that waits permanently is ended by the signal.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                drop(locks.take());
                libc::_exit(0);
            }
            let mut status = -1;
            assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
        }
        drop(list);
        locks.unwrap().release(0);
    }
}
