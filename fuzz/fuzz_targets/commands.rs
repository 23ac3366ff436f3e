//! See `framewright_fuzz::commands`.
#![cfg_attr(fuzzing, no_main)]

framewright_fuzz::target!(commands);
