//! The allocator, unchanged, on machines we don't have.
//!
//! Virtual CPUs are coroutines in one host thread, ordered by virtual time. Every shared access of the
//! allocator goes through the platform, and there a model of caches, coherence and memory bandwidth
//! says what it costs. Nothing depends on the host: the same seed gives the same events on every machine.
//!
//! # The modules, each using only those above it
//! | module | what it holds |
//! |---|---|
//! | [`clock`] | virtual time, and the generator behind everything random. Pure |
//! | [`model`] | what a machine is made of and what its parts cost. Pure |
//! | [`memory`] | lazily committed host memory that the simulated machine's memory lies in |
//! | [`bandwidth`] | how much memory traffic passes, and what queues |
//! | [`lines`] | who holds which cache line |
//! | [`trace`] | what each virtual CPU did when, for Perfetto |
//! | [`engine`] | virtual CPUs, and what each access costs them |
//! | [`platform`] | the allocator's platform: words, cells, pins that are charged |
//! | [`world`] | an allocator in simulated memory, with names for its lines |
//! | [`list_locked`] | a plain list behind a test-and-set lock, to calibrate with |
//! | [`mod@bench`] | the benchmarks `bulk`, `rand` and `repeat`, simulated |
//! | [`boot`] | the allocator's own boot, simulated |
//! | [`lru`] | the lists of pages in use that a kernel keeps for each node, and their lock |
//! | [`rwsem`] | the kernel's reader/writer semaphores, as writers meet them |
//! | [`sched`] | tasks on virtual CPUs: run queues, sleep and wake, and what the kernel does around an allocation |
//! | [`kernbench`] | a kernel compile on all CPUs, from a recorded one |
//! | [`scaling`] | bulk, random, churn and hand-over on 1 to all CPUs |
//! | [`replay`] | a recorded trace on virtual CPUs, in several copies |
//! | [`page_test`] | heaps that grow and shrink, page by page |
//! | [`page_fault`] | mappings that are touched and unmapped, again and again |
//! | [`first_touch`] | memory touched for the first time, with huge pages and with base pages |
//! | [`disk`] | a disk with one arm: what waits, what it takes. Pure |
//! | [`files`] | programs that write files, through the page cache, on that disk |
//! | [`calibration`] | what the model was fitted to, and how far it is off |
#![deny(unsafe_code)]

pub mod bandwidth;
pub mod bench;
pub mod boot;
pub mod calibration;
pub mod clock;
pub mod disk;
pub mod engine;
pub mod files;
pub mod first_touch;
pub mod kernbench;
pub mod lines;
pub mod list_locked;
pub mod lru;
pub mod memory;
pub mod model;
pub mod page_fault;
pub mod page_test;
pub mod platform;
pub mod replay;
pub mod rwsem;
pub mod scaling;
pub mod sched;
pub mod trace;
pub mod world;

pub use clock::Ps;
pub use engine::{Report, Simulator};
pub use model::{Fitted, Model};
pub use platform::Sim;
pub use world::World;
