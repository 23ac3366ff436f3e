//! See `framewright_fuzz::documents`.
#![cfg_attr(fuzzing, no_main)]

framewright_fuzz::target!(documents);
