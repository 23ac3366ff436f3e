//! The lab: records real page allocations, replays them under two configurations, and says what the
//! difference is. `main` is the `framewright` command; everything it does is a function here.
//!
//! | module | what it holds |
//! |---|---|
//! | [`progress`], [`interrupt`] | how far long work is; Ctrl-C |
//! | `quantity` | what several workloads report |
//! | [`answer`] | a replay in five lines and ten rows |
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
//! | [`session`] | what every command begins and ends with |
//! | [`cli`], [`command`] | arguments, and what each command does |
//!
//! They stand in the order to read them.
#![deny(unsafe_code)]

pub mod answer;
pub mod booting;
pub mod cli;
pub mod command;
pub mod configure;
pub mod detect;
pub mod doctor;
pub mod fidelity;
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
pub mod subject;
mod toml_file;
pub mod trial;

/// The TOML files of `machines/` and `studies/`, which the build script found.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}
