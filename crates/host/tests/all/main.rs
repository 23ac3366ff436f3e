//! The host's tests in one program, so that the allocator is compiled for them once. Apart from it are `fastpath`,
//! which counts instructions, and `stress`, which also runs as released.

mod arena;
mod attach;
mod blocks;
mod boot;
mod cache;
mod callers;
mod common;
mod descriptors;
mod durability;
mod exhaustion;
mod forks;
mod fuzz;
mod ops;
mod pages;
mod ranges;
mod sharers;
