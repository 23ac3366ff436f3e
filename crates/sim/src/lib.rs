//! The allocator, unchanged, on machines we don't have.
//!
//! Virtual CPUs are coroutines in one host thread, ordered by virtual time. Every shared access of the
//! allocator goes through the platform, and there a model of caches, coherence and memory bandwidth
//! charges it. Nothing depends on the host: the same seed gives the same events on every machine.
//!
//! # The modules, each using only those above it
//! | module | what it holds |
//! |---|---|
//! | [`clock`] | virtual time, and the generator behind everything random. Pure |
//! | [`model`] | what a machine is made of and what its parts cost. Pure |
//! | [`memory`] | lazily committed host memory that the simulated machine's memory is in |
//! | [`bandwidth`] | how much memory traffic passes, and what queues |
//! | [`lines`] | who holds which cache line |
//! | [`trace`] | what each virtual CPU did when, for Perfetto |
//! | [`engine`] | virtual CPUs, and what each access costs them |
//! | [`platform`] | the allocator's platform: words, cells, pins that are charged |
//! | [`world`] | an allocator in simulated memory, with names for its lines |
//! | [`list_locked`] | a list behind a test-and-set lock, to calibrate with |
//! | [`mod@bench`] | the benchmarks `bulk`, `rand` and `repeat`, simulated |
//! | [`boot`] | the allocator's own boot, simulated |
//! | [`lru`] | the lists of pages in use that a kernel keeps for each node, and their lock |
//! | [`task`] | programs on virtual CPUs, and what the kernel does around an allocation |
//! | [`outcome`] | what a run of tasks came to, and the caches that they run with |
//! | [`stage`] | the generated workloads of `framewright-workload` on virtual CPUs |
//! | [`replay`] | a recorded trace on virtual CPUs, in several copies |
//! | [`queue`] | bounds and mean values of CPUs that share locks and memory, from demands. Pure |
//! | [`page_fault`] | mappings that are touched and unmapped, again and again |
//! | [`first_touch`] | memory touched for the first time, with huge pages and with base pages |
//! | [`calibration`] | what the model was fitted to, and how far it is off |
//!
//! # Example
//! Costs of a page for Linux 6.0 on a socket of 1 and of 8 cores, each of which allocates and frees 400 pages in bulk.
//! ```
//! use framewright::Order;
//! use framewright::policy::pcp::Sizing;
//! use framewright_sim::bench::{Bench, Case, Linux, linux, linux_6_0};
//! use framewright_sim::model::{Bandwidth, Caches, Fitted, Latency, Model, Shape};
//!
//! // Nanoseconds, GB/s and lines of a made-up socket; the repository's `machines/` describes real ones.
//! let model = Model {
//!     shape: Shape { sockets: 1, nodes: 1, cores_per_node: 8, cores_per_l3: 8, threads_per_core: 1 },
//!     latency: Latency {
//!         l2: 6.0,
//!         l3: 30.0,
//!         sibling: 8.0,
//!         same_l3: [50.0, 60.0],
//!         other_l3: [60.0; 2],
//!         other_die: 60.0,
//!         other_socket: [110.0, 130.0],
//!         dram: [90.0, 140.0],
//!     },
//!     bandwidth: Bandwidth { node_read: 160.0, node_mixed: 130.0, core: 13.0, saturated: 1.8 },
//!     caches: Caches { l1: 768, l2: 20_480, l3: 640_000 },
//!     pause_ns: 60.0,
//!     mispredict_ns: 6.0,
//!     guesses: false,
//!     exchange_ns: 8.0,
//!     smt_yield: 1.25,
//!     store_exposed: 0.75,
//!     fitted: Fitted {
//!         alloc_ns: 50.0,
//!         free_ns: 25.0,
//!         access_ns: 1.5,
//!         walk_ns: 30.0,
//!         dependent: 0.4,
//!         page_ns: 0.5,
//!     },
//!     own_access_ns: None,
//!     own_hit_ns: 2.0,
//!     transfers: 1.0,
//!     drift_pages: 120,
//!     kernel: None,
//! };
//! let setup = Linux { config: linux_6_0(), sizing: Sizing { batch: 63, high_min: 378, high_max: 378 } };
//! let get_ns = |cores| {
//!     let case = Case { bench: Bench::Bulk, order: Order::ZERO, cores, blocks: 400, stands_for: 400 };
//!     linux(&model, &setup, &case, 1).map(|outcome| outcome.get_ns.expect("bulk times allocations"))
//! };
//! assert!(get_ns(8)? > get_ns(1)?, "they wait for the zone lock");
//! # Ok::<(), framewright_sim::world::WorldError>(())
//! ```
#![deny(unsafe_code)]

pub mod bandwidth;
pub mod bench;
pub mod boot;
pub mod calibration;
pub mod clock;
pub mod engine;
pub mod first_touch;
pub mod lines;
pub mod list_locked;
pub mod lru;
pub mod memory;
pub mod model;
pub mod outcome;
pub mod page_fault;
pub mod platform;
pub mod queue;
pub mod replay;
pub mod stage;
pub mod task;
pub mod trace;
pub mod world;

pub use clock::Ps;
pub use engine::{Report, Simulator};
pub use model::{Fitted, Model};
pub use platform::Sim;
pub use world::World;
