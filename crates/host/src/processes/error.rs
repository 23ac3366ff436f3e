//! Why a call on an arena of several processes failed.

use std::io;

use framewright::error::{AllocError, FreeError, SetupError};
use framewright::verify::Violation;
use framewright::{Order, Pfn};

/// Why a call on a [`ProcessArena`](super::ProcessArena) failed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The file holds no arena.
    #[error("the file holds no arena, or one that was never finished")]
    NotAnArena,
    /// The arena was made by another build of this library: its structures may be laid out in another way.
    #[error("the arena was made by another build of this library: all its processes must run the same one")]
    OtherBuild,
    /// The arena must be at this address in every process, and in this one something else does (perhaps the same
    /// arena).
    #[error("the arena must lie at {0:#x}, and something does in this process: attach early, and once")]
    AddressTaken(usize),
    /// [`MOST_PROCESSES`](super::MOST_PROCESSES) living processes use the arena.
    #[error("64 living processes use the arena: no place is left")]
    Full,
    /// No page, more than 1 TiB, or more than the address space has.
    #[error("an arena of several processes has at least one page and at most 1 TiB")]
    TooLarge,
    /// This process is a forked child of the one that attached.
    #[error("this process was forked from the one that attached: attach anew, by the file")]
    Forked,
    /// A process was killed while it mended what another one had left half changed, and this one failed to.
    #[error("the arena could not be mended after a process had been killed: make another")]
    Broken,
    /// The size or the configuration.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// No memory.
    #[error("{0}")]
    Alloc(#[source] AllocError),
    /// A wrong free.
    #[error("{0}")]
    Free(#[source] FreeError),
    /// The block is another process's, or none's.
    #[error("the block at {pfn:?} {}", to_release(*owner))]
    NotOwner {
        /// Its first frame.
        pfn: Pfn,
        /// The number of the process that owns it; `None`: none, until one adopts it.
        owner: Option<u16>,
    },
    /// There is no block with that first frame and order.
    #[error("no allocated block of order {order} starts at {pfn:?} (freed twice, or with another order?)")]
    NoSuchBlock {
        /// The frame.
        pfn: Pfn,
        /// The order.
        order: Order,
    },
    /// An invariant of the allocator does not hold.
    #[error("{0}")]
    Violation(#[source] Violation),
    /// The allocator's counts and the table of owners differ.
    #[error("{what}: {} by the table of owners, {} by the allocator", found.0, found.1)]
    Owners {
        /// The counts that should be equal.
        what: &'static str,
        /// By the table, and by the allocator.
        found: (u64, u64),
    },
}

/// Whose a block is, and what has to happen first.
fn to_release(owner: Option<u16>) -> String {
    owner.map_or_else(
        || "belongs to no process: adopt it first".to_owned(),
        |owner| format!("is process {owner}'s: it has to disown it first"),
    )
}
