//! Owners of blocks: one word per frame, in the file. It is what the allocator's own tables are made again from when
//! a process was killed while it changed them, so each change of it is one store.
//!
//! The word of a block's first frame: bits 0–3 the order, bit 4 whether the allocator's tables know the block as
//! reserved memory (they were made again while it was allocated), bits 8–23 the owner. 0: no block starts here, as
//! inside a block.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use framewright::{Order, Pfn};

/// The owner of blocks that no process owns: they outlive all of them.
pub(super) const NOBODY: u16 = u16::MAX;

const ORDER: u32 = 0xf;
const EARLIER: u32 = 1 << 4;
const OWNER: u32 = 8;

/// A block that is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owned {
    pub(super) order: Order,
    pub(super) owner: u16,
    /// The allocator's tables were made again since, and know it as reserved.
    pub(super) earlier: bool,
}

impl Owned {
    fn word(self) -> u32 {
        u32::from(self.order.get()) | if self.earlier { EARLIER } else { 0 } | u32::from(self.owner) << OWNER
    }

    fn of(word: u32) -> Option<Self> {
        let order = Order::new((word & ORDER) as u8)?;
        (word != 0).then_some(Self { order, owner: (word >> OWNER) as u16, earlier: word & EARLIER != 0 })
    }
}

/// The table. All but [`get`](Self::get) are for the lock's holder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners<'a>(pub(super) &'a [AtomicU32]);

impl Owners<'_> {
    pub(super) fn get(self, pfn: Pfn) -> Option<Owned> {
        self.0.get(usize::try_from(pfn.0).ok()?).and_then(|word| Owned::of(word.load(Relaxed)))
    }

    pub(super) fn set(self, pfn: Pfn, owned: Option<Owned>) {
        self.0[pfn.0 as usize].store(owned.map_or(0, Owned::word), Relaxed);
    }

    /// Every block, in ascending order. The table may be changed at and before the block that was returned last.
    pub(super) fn blocks(self) -> impl Iterator<Item = (Pfn, Owned)> {
        let mut at = 0;
        core::iter::from_fn(move || {
            while at < self.0.len() {
                let pfn = Pfn(at as u64);
                match self.get(pfn) {
                    None => at += 1,
                    Some(owned) => {
                        at += owned.order.pages() as usize;
                        return Some((pfn, owned));
                    }
                }
            }
            None
        })
    }
}
