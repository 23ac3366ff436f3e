//! All checks of the allocator, in one binary.
#![deny(unsafe_code)]

mod accounts;
mod any_context;
mod behaviour;
mod boot;
mod frames;
mod histories;
mod lists;
mod locks;
mod many_threads;
mod owners;
mod places;
mod promises;
mod remote;
mod runs;
mod schedules;
mod sections;
mod setup;
mod short_port;
mod shortage;
mod small_worlds;
mod violations;
mod wrong_frees;
