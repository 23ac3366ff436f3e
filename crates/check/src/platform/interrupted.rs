//! One CPU whose calls an interrupt handler interrupts: before the n-th access to a shared word or cell, for each n
//! in turn.
#![expect(unsafe_code, reason = "a platform vouches for its words and cells")]

use core::cell::{Cell, RefCell, UnsafeCell};
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::platform::{Platform, SharedCell, Word};

use super::pin::OwnedPin;
use super::plain::next_tick;

/// The platform.
#[derive(Debug)]
pub struct Interrupted;

// SAFETY: words, cells and pins keep their contracts (see each); it clears nothing.
unsafe impl Platform for Interrupted {
    type Word = Interruptible;
    type Cell<T> = Place<T>;
    type Pin = OwnedPin;

    fn relax() {
        assert!(!STATE.with(|state| state.inside.get()), "a handler waits");
    }

    fn now_ns() -> u64 {
        next_tick()
    }
}

type Handler = Box<dyn FnOnce()>;

struct State {
    /// Accesses before the handler runs.
    left: Cell<u64>,
    handler: RefCell<Option<Handler>>,
    inside: Cell<bool>,
}

std::thread_local! {
    static STATE: State =
        const { State { left: Cell::new(0), handler: RefCell::new(None), inside: Cell::new(false) } };
}

/// Runs `call`, and `handler` in the middle of it: after `accesses` of its accesses. Returns what `call` does; and
/// `handler`, if `call` ended before its turn came.
pub fn interrupt<R>(accesses: u64, handler: impl FnOnce() + 'static, call: impl FnOnce() -> R) -> (R, bool) {
    STATE.with(|state| {
        state.left.set(accesses);
        *state.handler.borrow_mut() = Some(Box::new(handler));
    });
    let result = call();
    let has_run = STATE.with(|state| state.handler.borrow_mut().take().is_none());
    (result, has_run)
}

/// A place where the handler may run.
fn point() {
    STATE.with(|state| {
        if state.handler.borrow().is_none() {
            return;
        }
        let Some(left) = state.left.get().checked_sub(1) else {
            let handler = state.handler.borrow_mut().take();
            state.inside.set(true);
            handler.expect("it is there")();
            state.inside.set(false);
            return;
        };
        state.left.set(left);
    });
}

/// An atomic word.
#[derive(Debug)]
pub struct Interruptible(AtomicU64);

// SAFETY: the standard library's atomic, call by call.
unsafe impl Word for Interruptible {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    fn load(&self, order: Ordering) -> u64 {
        point();
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        point();
        self.0.store(value, order);
    }

    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        point();
        self.0.compare_exchange(current, new, success, failure)
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        point();
        self.0.swap(value, order)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        point();
        self.0.fetch_add(value, order)
    }
}

/// A cell that finds out whether a handler enters it while the interrupted call is in it.
#[derive(Debug)]
pub struct Place<T> {
    value: UnsafeCell<T>,
    inside: Cell<bool>,
}

impl<T> Place<T> {
    fn enter(&self) -> *mut T {
        point();
        assert!(!self.inside.replace(true), "a cell is entered twice");
        self.value.get()
    }
}

// SAFETY: the pointer is that of the cell's own value, which lives as long as `&self`.
unsafe impl<T> SharedCell<T> for Place<T> {
    fn new(value: T) -> Self {
        Self { value: UnsafeCell::new(value), inside: Cell::new(false) }
    }

    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        let result = f(self.enter());
        self.inside.set(false);
        result
    }

    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        let result = f(self.enter());
        self.inside.set(false);
        result
    }
}
