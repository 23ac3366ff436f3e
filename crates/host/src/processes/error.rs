//! Why a call on an arena of several processes failed.

use core::error::Error;
use core::fmt;
use std::io;

use framewright::error::{AllocError, FreeError, SetupError};
use framewright::verify::Violation;
use framewright::{Order, Pfn};

/// Why a call on a [`ProcessArena`](super::ProcessArena) failed. Nothing has changed then.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProcessError {
    /// The system refused something.
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The file holds no arena.
    NotAnArena,
    /// The arena was made by another build of this library: its structures may be laid out in another way.
    OtherBuild,
    /// The arena must be at this address in every process, and in this one something else does (perhaps the same
    /// arena).
    AddressTaken(usize),
    /// [`MOST_PROCESSES`](super::MOST_PROCESSES) living processes use the arena.
    Full,
    /// More than 1 TiB, or than the address space has.
    TooLarge,
    /// This process is a forked child of the one that attached.
    Forked,
    /// A process was killed while it mended what another one had left half changed, and this one failed to.
    Broken,
    /// The size or the configuration.
    Setup(SetupError),
    /// No memory.
    Alloc(AllocError),
    /// A wrong free.
    Free(FreeError),
    /// The block is another process's, or none's.
    NotOwner {
        /// Its first frame.
        pfn: Pfn,
        /// The number of the process that owns it; `None`: none, until one adopts it.
        owner: Option<u16>,
    },
    /// There is no block with that first frame and order.
    NoSuchBlock {
        /// The frame.
        pfn: Pfn,
        /// The order.
        order: Order,
    },
    /// An invariant of the allocator does not hold.
    Violation(Violation),
    /// The allocator's counts and the table of owners differ.
    Owners {
        /// The counts that should be equal.
        what: &'static str,
        /// By the table, and by the allocator.
        found: (u64, u64),
    },
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { what, source } => write!(f, "{what}: {source}"),
            Self::NotAnArena => f.write_str("the file holds no arena, or one that was never finished"),
            Self::OtherBuild => f.write_str(
                "the arena was made by another build of this library: all its processes must run the same one",
            ),
            Self::AddressTaken(address) => write!(
                f,
                "the arena must lie at {address:#x}, and something does in this process: attach early, and once"
            ),
            Self::Full => f.write_str("64 living processes use the arena: no place is left"),
            Self::TooLarge => f.write_str("an arena of several processes has at most 1 TiB"),
            Self::Forked => f.write_str("this process was forked from the one that attached: attach anew, by the file"),
            Self::Broken => f.write_str("the arena could not be mended after a process had been killed: make another"),
            Self::Setup(error) => error.fmt(f),
            Self::Alloc(error) => error.fmt(f),
            Self::Free(error) => error.fmt(f),
            Self::NotOwner { pfn, owner: Some(owner) } => {
                write!(f, "the block at {pfn:?} is process {owner}'s: it has to disown it first")
            }
            Self::NotOwner { pfn, owner: None } => {
                write!(f, "the block at {pfn:?} belongs to no process: adopt it first")
            }
            Self::NoSuchBlock { pfn, order } => {
                write!(f, "no allocated block of order {order} starts at {pfn:?} (freed twice, or with another order?)")
            }
            Self::Violation(error) => error.fmt(f),
            Self::Owners { what, found: (owners, allocator) } => {
                write!(f, "{what}: {owners} by the table of owners, {allocator} by the allocator")
            }
        }
    }
}

impl Error for ProcessError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::System { source, .. } => Some(source),
            Self::Setup(error) => Some(error),
            Self::Alloc(error) => Some(error),
            Self::Free(error) => Some(error),
            Self::Violation(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SetupError> for ProcessError {
    fn from(error: SetupError) -> Self {
        Self::Setup(error)
    }
}
