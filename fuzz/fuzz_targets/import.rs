//! See `framewright_fuzz::import`.
#![cfg_attr(fuzzing, no_main)]

framewright_fuzz::target!(import);
