//! See `framewright_fuzz::maps`.
#![cfg_attr(fuzzing, no_main)]

framewright_fuzz::target!(maps);
