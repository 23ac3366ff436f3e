//! See `framewright_fuzz::trace`.
#![cfg_attr(fuzzing, no_main)]

framewright_fuzz::target!(trace);
