//! A program without an operating system that holds the allocator. It is never run: `cargo xtask size` measures its
//! code.
#![no_std]
#![no_main]
#![deny(unsafe_code)]

mod port;
