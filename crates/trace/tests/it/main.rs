//! Traces from outside: files, imports, recordings. One binary, so that it is linked once.

mod beside_perf;
mod bounds;
mod common;
mod import_perf;
mod record_run;
mod second_reader;
mod trace_file;
