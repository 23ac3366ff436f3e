//! All checks of the allocator, in one binary.
#![deny(unsafe_code)]

mod bulk;
mod fast_path;
mod handover;
mod histories;
mod list_sizes;
mod locks;
mod many_threads;
mod owners;
mod pageblocks;
mod refill_check;
mod small_lists;
mod small_worlds;
mod twins;
mod violations;
