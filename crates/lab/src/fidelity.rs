//! Whether a preset does what the kernel of its name does: the same operations through both, side by side.
//!
//! | module | what it has |
//! |---|---|
//! | [`ops`] | a trace's allocations and frees as a list that a kernel module can replay |
//! | [`answer`] | what that module says the kernel's per-CPU lists did |
//! | [`layout`] | where free blocks lay before the first operation |
//! | [`sequence`] | the same list through a preset, and the first operation at which the two differ |
//! | [`zone`] | a zone's size and lists from `/proc` |
//! | [`history`] | what the kernel's lists held, as far as a recording's events tell |
//! | [`whole`] | a trace with the allocator's inside recorded, and the same trace through a preset |
//!
//! `kernel/linux` boots a packaged Linux with the module. There the kernel and the preset must agree operation by
//! operation. In a recorded trace of a running machine, what the lists held at its start and what has no event is
//! reconstructed first; then counts and the order of refills and drains are compared.

pub mod answer;
pub mod history;
pub mod layout;
pub mod ops;
pub mod sequence;
pub mod step;
pub mod whole;
pub mod zone;
