//! The lab: records real page allocations, replays them under two configurations, and says what the
//! difference is. `main` is the `framewright` command; everything it does is a function here.
//!
//! | module | what it holds |
//! |---|---|
//! | [`error`] | how a command fails: one line, an exit code |
//! | [`terminal`], [`progress`], [`interrupt`] | what the output may look like; how far long work is; Ctrl-C |
//! | [`host`] | fingerprint of the machine a command runs on |
//! | [`result`] | the one result format, read and written |
//! | [`quantity`] | what results report: unit, direction and meaning, once |
//! | [`stats`] | statistics, each with its formula |
//! | [`answer`] | a replay in five lines and ten rows |
//! | [`table`], [`plot`], [`summary`] | results for reading: styles, formats, plots, a few lines |
//! | [`report`] | results as one HTML page |
//! | [`machine`] | machines we don't have, from `machines/*.toml` |
//! | [`detect`] | this machine as such a description |
//! | [`settings`], [`configure`] | configurations as data |
//! | [`schema`] | JSON schemas of studies and machines |
//! | [`shipped`] | traces: the one that comes with the command, and a user's |
//! | [`subject`] | the allocator as something to measure |
//! | [`booting`] | boot of a memory map, with threads as CPUs |
//! | [`profile`] | what a trace says of its program |
//! | [`doctor`] | the page allocator of a running Linux, examined |
//! | [`replaying`] | a trace under several configurations |
//! | [`fidelity`] | a kernel and its preset, the same operations through both |
//! | [`modelled`] | a trace on a modelled machine |
//! | [`simulate`] | machines as models, and what of them is uncertain |
//! | [`trial`] | a command under two settings of this machine's kernel |
//! | [`study`] | experiments as data, and what runs them |
//! | [`compare`] | saved results side by side |
//! | [`session`] | what every command begins and ends with |
//! | [`cli`], [`command`] | arguments, and what each command does |
//!
//! They stand in the order to read them.
#![deny(unsafe_code)]

pub mod answer;
pub mod booting;
pub mod cli;
pub mod command;
pub mod compare;
pub mod configure;
pub mod detect;
pub mod doctor;
pub mod error;
pub mod fidelity;
pub mod host;
pub mod interrupt;
pub mod machine;
pub mod modelled;
pub mod plot;
pub mod profile;
pub mod progress;
pub mod quantity;
pub mod replaying;
pub mod report;
pub mod result;
pub mod schema;
pub mod session;
pub mod settings;
pub mod shipped;
pub mod simulate;
pub mod stats;
pub mod study;
pub mod subject;
pub mod summary;
pub mod table;
pub mod terminal;
mod toml_file;
pub mod trial;

/// The TOML files of `machines/` and `studies/`, which the build script found.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}
