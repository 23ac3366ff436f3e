//! Platforms on which the generic allocator is checked: one module each, all in one binary.
//!
//! | platform | for | what it finds |
//! |---|---|---|
//! | [`Plain`](plain::Plain) | long histories, exhaustive small worlds | wrong results, at full speed |
//! | [`Checked`](checked::Checked) | one thread | a cell entered while it is entered; counts every shared access |
//! | [`Interrupted`](interrupted::Interrupted) | one CPU and a handler | what a handler breaks that runs before any one of a call's accesses |
//! | [`Loom`](loom::Loom) | two or three threads, every interleaving and every allowed stale read | missing orderings, races |
//! | [`Shuttle`](shuttle::Shuttle) | many threads, random interleavings, sequentially consistent | lost updates, double owners, deadlock |
//!
//! loom owns questions of ordering, shuttle questions of size.

pub mod checked;
pub mod interrupted;
#[cfg(feature = "models")]
pub mod loom;
pub mod pin;
pub mod plain;
#[cfg(feature = "models")]
pub mod shuttle;
