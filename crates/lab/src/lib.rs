//! The lab: records real page allocations, replays them under two configurations, and says what the
//! difference is. `main` is the `framewright` command; everything it does is a function here.
//!
//! | module | what it holds |
//! |---|---|
//! | [`interrupt`], [`progress`] | Ctrl-C; how far long work is |
//! | `toml_file` | files of machines, studies and settings, with the line of an error |
//! | `quantity` | quantities that several workloads report |
//! | [`settings`], [`configure`] | configurations as data |
//! | [`machine`] | machines that are described, from `machines/*.toml` |
//! | [`shipped`] | traces: the one that comes with the command, and a user's |
//! | [`profile`] | what a trace says of its program |
//! | [`simulate`] | machines as models, and what of them is uncertain |
//! | [`booting`] | boot of a memory map, with threads as CPUs |
//! | [`doctor`] | the page allocator of a running Linux, examined |
//! | [`trial`] | a command under two settings of this machine's kernel |
//! | [`replaying`] | a trace under several configurations |
//! | [`modelled`] | a trace on a modelled machine |
//! | [`study`] | experiments as data, and what runs them |
//! | [`schema`] | JSON schemas of studies and machines |
//! | [`detect`] | this machine as a description |
//! | [`answer`] | a replay in five lines and ten rows |
//! | [`session`] | what every command begins and ends with |
//! | [`command`], [`cli`] | what each command does, and its arguments |
//!
//! They are in the order to read them: each uses only those above it. What is timed of the allocator is in
//! [`framewright_subject`], results, tables and pages in [`framewright_report`], traces in [`framewright_trace`].
#![deny(unsafe_code)]
// `eprintln!` panics where the reader of standard error has gone: `progress::say`.
#![deny(clippy::print_stderr)]

pub mod answer;
pub mod booting;
pub mod cli;
pub mod command;
pub mod configure;
pub mod detect;
pub mod doctor;
pub mod interrupt;
pub mod machine;
pub mod modelled;
pub mod profile;
pub mod progress;
mod quantity;
pub mod replaying;
pub mod schema;
pub mod session;
pub mod settings;
pub mod shipped;
pub mod simulate;
pub mod study;
mod toml_file;
pub mod trial;

/// The TOML files of `machines/` and `studies/`, which the build script found.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}
