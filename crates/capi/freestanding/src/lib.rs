//! The allocator for kernels in C: `framewright_kernel.h` says what each function does.
#![no_std]
#![deny(unsafe_code)]

mod abi;
