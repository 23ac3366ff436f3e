//! Why an arena could not be made or a thread not attach: one line each, with what to do.

use core::error::Error;
use core::fmt;
use core::ops::Range;
use std::io;

use framewright::frame::MAX_ZONE_PAGES;
use framewright::verify::Violation;
use framewright::{CpuId, Pfn, SetupError};

/// Why an arena could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum ArenaError {
    /// No size was given, or 0, or the holes leave no page.
    Empty,
    /// More pages than an arena can have, or frame numbers that end beyond 2^64.
    TooLarge {
        /// The first frame.
        base: Pfn,
        /// Pages asked for.
        pages: u64,
    },
    /// A hole that ends before it begins.
    Hole(Range<Pfn>),
    /// The first frame's number is not a multiple of 1024.
    Base(u64),
    /// More nodes than largest blocks to share out, or than an allocator can have, or none.
    Nodes {
        /// Nodes asked for.
        nodes: usize,
        /// Nodes possible.
        most: u64,
    },
    /// The caller's memory does not start at a multiple of the page size, or its length is none.
    Misaligned {
        /// Its address.
        address: usize,
        /// Its length in bytes.
        bytes: usize,
        /// Bytes in a base page.
        page: usize,
    },
    /// Address space could not be had.
    Reserve {
        /// The purpose.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system has no huge pages to give.
    HugePages {
        /// Pages needed.
        wanted: usize,
        /// Their size.
        page_bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not take advice to use huge pages.
    HugeAdvice(io::Error),
    /// The system does not bind memory to one of its nodes.
    Bind {
        /// The machine's node.
        node: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not commit all of the memory.
    Populate(io::Error),
    /// The system does not lock the memory.
    Lock {
        /// How much.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Poisoning writes to freed memory, and the arena has none.
    PoisonWithoutMemory,
    /// The allocator refused the zones, the CPUs or the configuration.
    Setup(SetupError),
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str(
                "the arena has no page: give it at least one with `bytes`, and no holes where all of them are",
            ),
            Self::TooLarge { base, pages } => write!(
                f,
                "{pages} pages from frame {:#x} on are too many: an arena has at most {}, and frame numbers end at 2^64",
                base.0,
                u64::from(u8::MAX) * MAX_ZONE_PAGES
            ),
            Self::Hole(hole) => {
                write!(f, "the hole from frame {:#x} to {:#x} ends before it begins", hole.start.0, hole.end.0)
            }
            Self::Base(base) => write!(
                f,
                "the first frame {base:#x} is not a multiple of 1024, the largest block: choose {:#x}",
                base - base % 1024
            ),
            Self::Nodes { nodes, most } => write!(
                f,
                "{nodes} nodes cannot share the arena: give it 1 to {most}; each has at least one block of order 10"
            ),
            Self::Misaligned { address, bytes, page } => {
                let before = address.wrapping_neg() % page;
                write!(
                    f,
                    "the memory given ({bytes} bytes at {address:#x}) does not consist of whole pages: "
                )?;
                let usable = bytes.saturating_sub(before) / page * page;
                if usable == 0 {
                    write!(f, "it does not hold one page of {page} bytes")
                } else {
                    write!(f, "use {usable} bytes at {:#x}", address.wrapping_add(before))
                }
            }
            Self::Reserve { what, bytes, source } => {
                write!(f, "cannot reserve {bytes} bytes of address space for {what} ({source}): ")?;
                f.write_str(
                    "ask for less, or allow it: `ulimit -v unlimited`, `sysctl vm.overcommit_memory=0`",
                )
            }
            Self::HugePages { wanted, page_bytes, source } if *page_bytes == 2 << 20 => write!(
                f,
                "the system has not {wanted} free huge pages of 2 MiB ({source}): reserve them with `sysctl \
                 vm.nr_hugepages={wanted}` or use `Backing::Huge`"
            ),
            Self::HugePages { wanted, page_bytes, source } => write!(
                f,
                "the system has not {wanted} free huge pages of {} MiB ({source}): write {wanted} to \
                 /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, or boot with more, or use `Backing::HugeTlb`",
                page_bytes >> 20,
                page_bytes >> 10
            ),
            Self::Populate(source) => write!(
                f,
                "the system does not commit the arena's memory ({source}): make it smaller, or build it without \
                 `prefault`"
            ),
            Self::Lock { bytes, source } => write!(
                f,
                "the system does not lock {bytes} bytes of memory ({source}): raise the limit with `ulimit -l`, or make \
                 the arena smaller"
            ),
            Self::Bind { node, source } => {
                write!(f, "memory cannot be bound to the machine's node {node}: {source}")
            }
            Self::HugeAdvice(source) => write!(
                f,
                "the system takes no advice on huge pages ({source}): use `Backing::Base` or `Backing::HugeTlb`"
            ),
            Self::PoisonWithoutMemory => {
                f.write_str("poisoning fills freed memory, and the arena has none: choose another backing")
            }
            Self::Setup(error) => error.fmt(f),
        }
    }
}

impl Error for ArenaError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Reserve { source, .. }
            | Self::Lock { source, .. }
            | Self::Populate(source)
            | Self::HugePages { source, .. }
            | Self::Bind { source, .. }
            | Self::HugeAdvice(source) => Some(source),
            Self::Setup(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SetupError> for ArenaError {
    fn from(error: SetupError) -> Self {
        Self::Setup(error)
    }
}

/// Why an arena's books could not be checked, or what is wrong with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VerifyError {
    /// A thread holds the CPU, and may be at work: detach it first.
    Busy(CpuId),
    /// The arena was made by a parent of this process.
    Forked,
    /// The books are wrong.
    Wrong(Violation),
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(cpu) => {
                write!(f, "a thread is attached to {cpu:?}: no thread may be at work; detach it, or join it")
            }
            Self::Forked => AttachError::Forked.fmt(f),
            Self::Wrong(violation) => violation.fmt(f),
        }
    }
}

impl Error for VerifyError {}

/// Why a thread could not attach to a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// Living threads hold all CPUs.
    AllTaken {
        /// How many there are.
        cpus: usize,
    },
    /// A living thread holds the CPU that was asked for.
    Taken(CpuId),
    /// The arena was made by a parent of this process.
    Forked,
    /// There is no such CPU.
    NoSuchCpu {
        /// The CPU asked for.
        cpu: usize,
        /// How many there are.
        cpus: usize,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AllTaken { cpus } => write!(
                f,
                "all {cpus} CPUs are taken by living threads: make the arena with more `cpus`, or detach one"
            ),
            Self::Forked => f.write_str(
                "the arena belongs to the process that made it, and this is a child of it: make another arena here",
            ),
            Self::Taken(cpu) => write!(f, "{cpu:?} is taken by a living thread: attach to any slot instead"),
            Self::NoSuchCpu { cpu, cpus } => {
                write!(f, "there is no CPU {cpu}: the arena has {cpus}, counted from 0")
            }
        }
    }
}

impl Error for AttachError {}
