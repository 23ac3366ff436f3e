//! Why an arena could not be made or a thread not attach: one line each, with what to do.

use core::ops::Range;
use std::io;

use framewright::frame::MAX_ZONE_PAGES;
use framewright::verify::Violation;
use framewright::{CpuId, NodeId, Pfn, SetupError};

/// Why an arena could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// No size was given, or 0, or the holes leave no page.
    #[error("the arena has no page: give it at least one with `bytes`, and no holes where all of them are")]
    Empty,
    /// More pages than an arena can have, or frame numbers that end beyond 2^64.
    #[error(
        "{pages} pages from frame {:#x} on are too many: an arena has at most {}, and frame numbers end at 2^64",
        base.0,
        u64::from(u8::MAX) * MAX_ZONE_PAGES
    )]
    TooLarge {
        /// The first frame.
        base: Pfn,
        /// Pages asked for.
        pages: u64,
    },
    /// A hole that ends before it begins.
    #[error("the hole from frame {:#x} to {:#x} ends before it begins", .0.start.0, .0.end.0)]
    Hole(Range<Pfn>),
    /// The first frame's number is not a multiple of 1024.
    #[error(
        "the first frame {base:#x} is not a multiple of 1024, the largest block: choose {whole:#x}",
        base = .0,
        whole = .0 - .0 % 1024
    )]
    Base(u64),
    /// More nodes than largest blocks to share out, or than an allocator can have, or none.
    #[error(
        "{nodes} nodes cannot share the arena: give it 1 to {most}; each has at least one block of order 10"
    )]
    Nodes {
        /// Nodes asked for.
        nodes: usize,
        /// Nodes possible.
        most: u64,
    },
    /// The caller's memory does not start at a multiple of the page size, or its length is none.
    #[error(
        "the memory given ({bytes} bytes at {address:#x}) does not consist of whole pages: {}",
        whole_pages(*address, *bytes, *page)
    )]
    Misaligned {
        /// Its address.
        address: usize,
        /// Its length in bytes.
        bytes: usize,
        /// Bytes in a base page.
        page: usize,
    },
    /// Base pages of another size than 4, 8, 16, 32 or 64 KiB.
    #[error("base pages of {0} bytes: an arena has pages of 4, 8, 16, 32 or 64 KiB")]
    PageBytes(usize),
    /// Address space could not be had.
    #[error(
        "cannot reserve {bytes} bytes of address space for {what} ({source}): ask for less, or allow it: `ulimit -v \
         unlimited`, `sysctl vm.overcommit_memory=0`; with thousands of arenas also a larger `vm.max_map_count`"
    )]
    Reserve {
        /// The purpose.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system has no huge pages to give.
    #[error("the system has not {wanted} free huge pages of {} MiB ({source}): {}", page_bytes >> 20, more_huge_pages(*wanted, *page_bytes))]
    HugePages {
        /// Pages needed.
        wanted: usize,
        /// Their size.
        page_bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not take advice to use huge pages.
    #[error("the system takes no advice on huge pages ({0}): choose the backing `Base` or `HugeTlb`")]
    HugeAdvice(#[source] io::Error),
    /// The system does not bind memory to one of its nodes.
    #[error("memory cannot be bound to the machine's node {node}: {source}")]
    Bind {
        /// The machine's node.
        node: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not commit all of the memory.
    #[error(
        "the system does not commit the arena's memory ({0}): make it smaller, or build it without `prefault`"
    )]
    Populate(#[source] io::Error),
    /// The system does not lock the memory.
    #[error(
        "the system does not lock {bytes} bytes of memory ({source}): raise the limit with `ulimit -l`, or make the \
         arena smaller"
    )]
    Lock {
        /// How much.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Poisoning and `init_on_free` write to freed memory, and the arena has none.
    #[error("poisoning and init_on_free fill freed memory, and the arena has none: choose another backing")]
    PoisonWithoutMemory,
    /// The allocator refused the zones, the CPUs or the configuration.
    #[error("{0}")]
    Setup(#[from] SetupError),
}

/// The whole pages of memory that was given, in words.
fn whole_pages(address: usize, bytes: usize, page: usize) -> String {
    let before = address.wrapping_neg() % page;
    match bytes.saturating_sub(before) / page * page {
        0 => format!("it does not hold one page of {page} bytes"),
        usable => format!("use {usable} bytes at {:#x}", address.wrapping_add(before)),
    }
}

/// The way to get huge pages of a size.
fn more_huge_pages(wanted: usize, page_bytes: usize) -> String {
    if page_bytes == 2 << 20 {
        format!("reserve them with `sysctl vm.nr_hugepages={wanted}`, or choose the backing `Huge`")
    } else {
        format!(
            "write {wanted} to /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, or boot with more, or choose the \
             backing `HugeTlb`",
            page_bytes >> 10
        )
    }
}

/// Why an arena's books could not be checked, or what is wrong with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A thread holds the CPU, and may be at work: detach it first.
    #[error("a thread is attached to {0:?}: no thread may be at work; detach it, or join it")]
    Busy(CpuId),
    /// The arena was made by a parent of this process.
    #[error("{}", AttachError::Forked)]
    Forked,
    /// The books are wrong.
    #[error("{0}")]
    Wrong(Violation),
}

/// Why a thread could not attach to a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Living threads hold all CPUs.
    #[error("all {cpus} CPUs are taken by living threads: make the arena with more `cpus`, or detach one")]
    AllTaken {
        /// How many there are.
        cpus: usize,
    },
    /// A living thread holds the CPU that was asked for.
    #[error("{0:?} is taken by a living thread: attach to any slot instead")]
    Taken(CpuId),
    /// The arena was made by a parent of this process.
    #[error(
        "the arena belongs to the process that made it, and this is a child of it: make another arena here"
    )]
    Forked,
    /// There is no such CPU.
    #[error("there is no CPU {cpu}: the arena has {cpus}, counted from 0")]
    NoSuchCpu {
        /// The CPU asked for.
        cpu: usize,
        /// How many there are.
        cpus: usize,
    },
    /// The arena keeps no CPU for work in the background of the node, or has no such node.
    #[error(
        "no CPU is kept for work in the background of {0:?}: make the arena with `background` and that node"
    )]
    NoBackground(NodeId),
}
