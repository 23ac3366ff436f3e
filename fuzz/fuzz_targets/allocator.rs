//! See `framewright_fuzz::allocator`.
#![cfg_attr(fuzzing, no_main)]

framewright_fuzz::target!(allocator);
