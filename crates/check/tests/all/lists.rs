//! The lists that each CPU has of its own: hits, refills, drains, damage.

mod after_a_kill;
mod damaged_lists;
mod fast_path;
mod handover;
mod list_sizes;
mod owners;
mod refill_check;
