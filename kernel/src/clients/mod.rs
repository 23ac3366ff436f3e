//! Other people's crates on this kernel's frames, each behind an adapter of at most sixty lines. Built with the feature
//! `clients` alone.
//!
//! | module | whose crate | on our frames |
//! |---|---|---|
//! | `disk` | `virtio-drivers` | rings, requests and data of a block device |
//! | `pci` | the same | nothing: where it finds devices |
//! | `tables` | `x86_64` | page tables in use, and what they map |
//!
//! # What was awkward
//! - `virtio-drivers` calls functions without a `self`, so the adapter needs the kernel as a global.
//! - It shares the caller's buffers with the device, and some of them are on the stack: the boot CPU's is mapped one to
//!   one.
//! - `x86_64` frees tables one by one and does not name their level: a frame needs no more than its number here.

pub(crate) mod disk;
pub(crate) mod pci;
pub(crate) mod tables;
