//! One CPU whose calls an interrupt handler interrupts: before the n-th access to a shared word or cell, for each n
//! in turn.
#![expect(unsafe_code, reason = "a platform vouches for its words and cells")]

use core::cell::{Cell, RefCell, UnsafeCell};
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::platform::{Platform, SharedCell};

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

word_over!(AtomicU64, Interruptible, |_, _| point());

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
