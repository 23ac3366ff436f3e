//! What each command does: its arguments, and the way from them to what is printed.

pub mod bench;
pub mod boot;
pub mod compare;
pub mod fidelity;
pub mod import;
pub mod machines;
pub mod record;
pub mod replay;
pub mod study;
