//! States in the words of frame and pageblock descriptors, and how they are packed.

use core::fmt;

use crate::units::{CpuId, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, ZoneId};

/// Bits of a link between free blocks.
pub(super) const LINK_BITS: u32 = 28;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;

/// A word with `bits` in place of those of `mask`.
#[inline(always)]
const fn with_bits(word: u64, mask: u64, bits: u64) -> u64 {
    (word & !mask) + bits
}

/// Properties of a pageblock, packed into one word, so that a free gets zone and type in one read.
///
/// `type | present << 3 | type before isolation << 4 | reported << 7 | zone << 8 | poisoned << 16 |
/// absent frames << 17 | holder + 1 << 26`. One comparison tests whether a pageblock is of a zone and a type, is not
/// isolated, and has no bad frame in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo(pub(super) u64);

impl BlockInfo {
    const PRESENT: u64 = 1 << 3;
    const TYPE: u64 = 7;
    const BEFORE: u64 = 7 << 4;
    /// All of it was free when a hook was told of it, and no frame of it was handed out since.
    const REPORTED: u64 = 1 << 7;
    /// A frame of it that a caller uses was found bad.
    const POISONED: u64 = 1 << 16;
    /// First bit of the frames that were never added, less than a pageblock's: see [`absent`](Self::absent).
    const ABSENT_FRAMES: u32 = 17;
    /// First bit of the CPU, plus 1, whose call has isolated it and ends that itself.
    const HOLDER: u32 = Self::ABSENT_FRAMES + PAGEBLOCK_ORDER.get() as u32;
    const HOLDERS: u64 = u16::MAX as u64;
    const PLAIN: u64 = Self::TYPE | Self::POISONED;
    const TYPES: u64 = Self::TYPE | Self::BEFORE | Self::HOLDERS << Self::HOLDER;

    /// A word that no pageblock has, and no word that differs from one only in the type.
    pub(crate) const NOWHERE: Self = Self(1 << 63);

    /// A pageblock without memory.
    pub(crate) const ABSENT: Self = Self(0);

    /// A pageblock with memory, in `zone`.
    #[must_use]
    pub const fn new(zone: ZoneId, migratetype: Migratetype) -> Self {
        Self(Self::PRESENT + migratetype as u64 + ((zone.0 as u64) << 8))
    }

    /// Whether the pageblock has memory.
    #[must_use]
    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Type of the pageblock, and of blocks freed into it.
    #[must_use]
    #[inline]
    pub const fn migratetype(self) -> Migratetype {
        if cfg!(feature = "mobility") { Migratetype::from_bits(self.0) } else { Migratetype::Movable }
    }

    /// Whether it has an ordinary type and no bad frame in use.
    #[inline(always)]
    pub(crate) const fn is_plain(self) -> bool {
        !cfg!(feature = "mobility") || self.0 & Self::PLAIN < 3
    }

    /// Type of the pageblock, if it is [plain](Self::is_plain).
    #[inline(always)]
    pub(crate) const fn plain_type(self) -> Option<Migratetype> {
        Migratetype::ordinary(self.0 & Self::PLAIN)
    }

    /// Type of a pageblock that differs from this `unmovable` one only in the type, if that is an ordinary one.
    #[must_use]
    #[inline(always)]
    pub(crate) const fn ordinary_as(self, unmovable: Self) -> Option<Migratetype> {
        Migratetype::ordinary(self.0.wrapping_sub(unmovable.0))
    }

    /// The type to return to when isolation ends.
    #[must_use]
    pub const fn before_isolation(self) -> Migratetype {
        Migratetype::from_bits(self.0 >> 4)
    }

    /// The zone.
    #[must_use]
    #[inline]
    pub const fn zone(self) -> ZoneId {
        ZoneId((self.0 >> 8) as u8)
    }

    /// Whether a hook was told that all of it is free (see [`Cpu::report_free`](crate::Cpu::report_free)).
    #[must_use]
    pub const fn is_reported(self) -> bool {
        self.0 & Self::REPORTED != 0
    }

    /// Whether a frame of it must not be handed out again after it is freed (see
    /// [`Cpu::hwpoison`](crate::Cpu::hwpoison)).
    #[must_use]
    #[inline]
    pub const fn is_poisoned(self) -> bool {
        cfg!(feature = "mobility") && self.0 & Self::POISONED != 0
    }

    /// This pageblock, reported or not.
    #[must_use]
    pub(crate) const fn reported(self, reported: bool) -> Self {
        Self(with_bits(self.0, Self::REPORTED, if reported { Self::REPORTED } else { 0 }))
    }

    /// This pageblock, with or without a bad frame in use.
    #[must_use]
    pub(crate) const fn poisoned(self, poisoned: bool) -> Self {
        Self(with_bits(self.0, Self::POISONED, if poisoned { Self::POISONED } else { 0 }))
    }

    /// This pageblock with another type, not isolated.
    #[must_use]
    pub const fn with_migratetype(self, migratetype: Migratetype) -> Self {
        Self(with_bits(self.0, Self::TYPES, migratetype as u64))
    }

    /// Frames of the pageblock that were never added. Only with compact metadata: otherwise their words say so, and
    /// this is 0.
    pub(crate) const fn absent(self) -> u64 {
        self.0 >> Self::ABSENT_FRAMES & (PAGEBLOCK_PAGES - 1)
    }

    /// This pageblock with another number of frames that were never added, less than all.
    #[must_use]
    pub(crate) const fn with_absent(self, frames: u64) -> Self {
        let mask = (PAGEBLOCK_PAGES - 1) << Self::ABSENT_FRAMES;
        Self(with_bits(self.0, mask, frames << Self::ABSENT_FRAMES))
    }

    /// The CPU in whose call it is isolated, if only that call ends the isolation.
    pub(crate) const fn holder(self) -> Option<CpuId> {
        match self.0 >> Self::HOLDER & Self::HOLDERS {
            0 => None,
            number => Some(CpuId(number as u16 - 1)),
        }
    }

    /// This pageblock, isolated; with a `holder` by a call of that CPU, which ends the isolation itself.
    pub(crate) const fn isolated_by(self, holder: Option<CpuId>) -> Self {
        let before = (self.migratetype() as u64) << 4;
        let number = match holder {
            None => 0,
            Some(cpu) => cpu.0 as u64 + 1,
        };
        Self(self.with_migratetype(Migratetype::Isolate).0 + before + (number << Self::HOLDER))
    }
}

impl fmt::Debug for BlockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_present() {
            write!(f, "{} pageblock of {:?}", self.migratetype(), self.zone())
        } else {
            f.write_str("no memory")
        }
    }
}

/// The upper half of the head word of a taken block that is, or last was, on one list of one CPU; the lower half is the
/// position. A comparison of the tag compares state, order, type and CPU together; a comparison of the whole word also
/// the position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlaceTag(u64);

impl PlaceTag {
    /// The tag of a CPU, for order 0 and the unmovable type.
    pub(crate) const fn new(cpu: CpuId) -> Self {
        Self((KIND_TAKEN << KIND) + SEATED + ((cpu.0 as u64) << CPU))
    }

    /// The tag of the same CPU for another order and ordinary type.
    #[inline]
    pub(crate) const fn on_list(self, order: Order, ordinary: Migratetype) -> Self {
        Self(self.of_order(order).0 + ((ordinary as u64) << ASKED))
    }

    /// Turns a tag of order 0 into that of another order.
    #[inline]
    pub(crate) const fn of_order(self, order: Order) -> Self {
        Self(self.0 + ((order.get() as u64) << ORDER))
    }

    /// The head word of a block at a position of the list.
    #[inline]
    pub(crate) const fn at(self, position: u32) -> u64 {
        self.0 + position as u64
    }

    /// Whether two head words name the same list as the place where the block is, or last was.
    #[inline]
    pub(crate) const fn same_list(head: u64, listed: u64) -> bool {
        (head ^ listed) >> POSITION_BITS == 0
    }
}

/// Place on the per-CPU lists where a taken block is, or last was: CPU, list and position.
///
/// The list place is not cleared when the block is handed out, so that an allocation touches no descriptor. The block
/// is on the list exactly if the list holds this block at this position *now*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListPlace {
    /// The CPU whose list it is.
    pub cpu: CpuId,
    /// Position on the list, counted without wrapping to the size of its storage.
    pub position: u32,
}

/// State of a block, or of a frame, as its head word records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not a head: inside a larger block, or never used.
    Body,
    /// Head of a free block on the buddy list of `order` and `list`. The links are frame numbers relative to
    /// the zone's link base; a link to the block itself ends the list.
    Free {
        /// Order of the block.
        order: Order,
        /// The type of the list it is on, which can differ from its pageblock's.
        list: Migratetype,
        /// The next block on the list.
        next: u32,
        /// The previous block on the list.
        prev: u32,
    },
    /// Head of a block that the buddy lists have given out.
    Taken {
        /// Order of the block.
        order: Order,
        /// Requested type: unmovable, movable or reclaimable. High-atomic means that the block was freed, and that its
        /// CPU is about to give it back to the zone.
        asked: Migratetype,
        /// Its last place on a per-CPU list, if it had one.
        list_place: Option<ListPlace>,
    },
    /// Head of a block that a check has found bad. It stays out of use.
    Quarantined {
        /// Order of the block.
        order: Order,
    },
    /// A frame that is not the allocator's: a hole, or reserved by firmware.
    Reserved,
}

/// The head word of a free block, for the lists: a link can change without unpacking the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeHead(pub(super) u64);

impl FreeHead {
    const PREV: u32 = LINK_BITS;
    const LIST: u32 = 2 * LINK_BITS;
    /// First bit of the order and, above it, the bit of a free block.
    const KIND: u32 = Self::LIST + 3;

    #[inline]
    pub(crate) fn new(order: Order, list: Migratetype, next: u32, prev: u32) -> Self {
        debug_assert!(u64::from(next) <= LINK_MASK && u64::from(prev) <= LINK_MASK);
        Self(
            FREE + (u64::from(order.get()) << Self::KIND)
                + ((list as u64) << Self::LIST)
                + (u64::from(prev) << Self::PREV)
                + u64::from(next),
        )
    }

    /// The head word of a pageblock that is free as a whole, when such pageblocks are kept as bits: it has no links.
    #[inline(always)]
    pub(crate) fn whole(list: Migratetype) -> Self {
        Self::new(PAGEBLOCK_ORDER, list, 0, 0)
    }

    /// The head, if it is that of a free block of this order.
    #[inline]
    pub(crate) fn of_order(word: u64, order: Order) -> Option<Self> {
        (word >> Self::KIND == (FREE >> Self::KIND) + u64::from(order.get())).then_some(Self(word))
    }

    /// The packed word.
    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn list(self) -> Migratetype {
        if cfg!(feature = "mobility") {
            Migratetype::from_bits(self.0 >> Self::LIST)
        } else {
            Migratetype::Movable
        }
    }

    #[inline]
    pub(crate) fn next(self) -> u32 {
        (self.0 & LINK_MASK) as u32
    }

    #[inline]
    pub(crate) fn prev(self) -> u32 {
        (self.0 >> Self::PREV & LINK_MASK) as u32
    }

    #[inline]
    pub(crate) fn with_next(self, next: u32) -> Self {
        Self(with_bits(self.0, LINK_MASK, u64::from(next)))
    }

    #[inline]
    pub(crate) fn with_prev(self, prev: u32) -> Self {
        Self(with_bits(self.0, LINK_MASK << Self::PREV, u64::from(prev) << Self::PREV))
    }
}

pub(super) const FREE: u64 = 1 << 63;
pub(super) const KIND_TAKEN: u64 = 1;
pub(super) const KIND_QUARANTINED: u64 = 2;
const KIND_RESERVED: u64 = 3;
/// For pageblocks only: see [`OpenHead`].
const KIND_OPEN: u64 = 4;
const POSITION_BITS: u32 = 32;
pub(super) const CPU: u32 = POSITION_BITS;
pub(super) const ORDER: u32 = CPU + 16;
pub(super) const ASKED: u32 = ORDER + 4;
pub(super) const SEATED: u64 = 1 << (ASKED + 2);
pub(super) const KIND: u32 = ASKED + 3;
/// For words that are not a free block's: the frame was found bad (see `poison`).
pub(super) const MARK: u64 = 1 << (KIND + 3);

impl State {
    /// Frames from the head word on that have this state: those of the block, or one.
    pub(crate) const fn pages(self) -> u64 {
        match self {
            Self::Free { order, .. } | Self::Taken { order, .. } | Self::Quarantined { order } => {
                order.pages()
            }
            Self::Body | Self::Reserved => 1,
        }
    }

    /// Free: `next | prev << 28 | list << 56 | order << 59 | 1 << 63`. Otherwise: `position | cpu << 32 |
    /// order << 48 | asked << 52 | placed << 54 | kind << 55`. Body is zero.
    #[inline]
    pub(super) fn pack(self) -> u64 {
        match self {
            Self::Body => 0,
            Self::Free { order, list, next, prev } => FreeHead::new(order, list, next, prev).0,
            Self::Taken { order, asked, list_place } => {
                let block =
                    (KIND_TAKEN << KIND) + (u64::from(order.get()) << ORDER) + ((asked as u64 & 3) << ASKED);
                match list_place {
                    None => block,
                    Some(ListPlace { cpu, position }) => {
                        block + SEATED + (u64::from(cpu.0) << CPU) + u64::from(position)
                    }
                }
            }
            Self::Quarantined { order } => (KIND_QUARANTINED << KIND) + (u64::from(order.get()) << ORDER),
            Self::Reserved => KIND_RESERVED << KIND,
        }
    }

    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        if word & FREE != 0 {
            let head = FreeHead(word);
            return Self::Free {
                order: Order::from_bits(word >> FreeHead::KIND),
                list: head.list(),
                next: head.next(),
                prev: head.prev(),
            };
        }
        let order = Order::from_bits(word >> ORDER);
        match word >> KIND & 7 {
            0 | KIND_OPEN => Self::Body,
            KIND_TAKEN => Self::Taken {
                order,
                asked: Migratetype::from_bits(word >> ASKED & 3),
                list_place: (word & SEATED != 0)
                    .then_some(ListPlace { cpu: CpuId((word >> CPU) as u16), position: word as u32 }),
            },
            KIND_QUARANTINED => Self::Quarantined { order },
            _ => Self::Reserved,
        }
    }
}

/// The head word of an open pageblock: the number of its free frames, which are bits of its map, the order of the
/// largest free block, and its neighbours on the list of its bin. A link can change without unpacking the word. Written
/// under the zone lock. All other readers unpack it as [`State::Body`]: no large block starts here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenHead(u64);

impl OpenHead {
    /// Bits of a pageblock's number in a zone.
    const LINK: u32 = LINK_BITS - PAGEBLOCK_ORDER.get() as u32;
    const LARGEST: u32 = 2 * Self::LINK;
    /// Directly below the kind, so that one comparison tests both.
    const FREE: u32 = KIND - 10;
    const MASK: u64 = (1 << Self::LINK) - 1;
    const FREE_MASK: u64 = (1 << 10) - 1;

    /// `free`: number of free frames, 1 to 512. `largest`: order of the largest free block. `next` and `prev`: numbers
    /// of pageblocks, from the zone's first; a pageblock's own number ends the list.
    #[inline]
    pub(crate) fn new(free: u32, largest: u8, next: u32, prev: u32) -> Self {
        debug_assert!(u64::from(next.max(prev)) <= Self::MASK && u64::from(free) <= Self::FREE_MASK);
        Self(
            (KIND_OPEN << KIND)
                + (u64::from(largest) << Self::LARGEST)
                + (u64::from(free) << Self::FREE)
                + (u64::from(prev) << Self::LINK)
                + u64::from(next),
        )
    }

    /// The head, if it is that of an open pageblock.
    #[inline(always)]
    pub(crate) const fn of(word: u64) -> Option<Self> {
        if word >> KIND == KIND_OPEN { Some(Self(word)) } else { None }
    }

    /// The packed word.
    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    /// Number of free frames.
    #[inline(always)]
    pub(crate) const fn free(self) -> u32 {
        (self.0 >> Self::FREE & Self::FREE_MASK) as u32
    }

    /// Order of the largest free block.
    #[inline(always)]
    pub(crate) const fn largest(self) -> u8 {
        (self.0 >> Self::LARGEST & 0xf) as u8
    }

    /// Number of the next pageblock on the list; its own number if there is none.
    #[inline(always)]
    pub(crate) const fn next(self) -> u32 {
        (self.0 & Self::MASK) as u32
    }

    /// Number of the previous pageblock on the list.
    #[inline(always)]
    pub(crate) const fn prev(self) -> u32 {
        (self.0 >> Self::LINK & Self::MASK) as u32
    }

    /// This head with `free` free frames.
    #[inline(always)]
    pub(crate) const fn with_free(self, free: u32) -> Self {
        Self(with_bits(self.0, Self::FREE_MASK << Self::FREE, (free as u64) << Self::FREE))
    }

    /// This head with `pages` more free frames, fewer than all.
    #[inline(always)]
    pub(crate) const fn with_more(self, pages: u64) -> Self {
        Self(self.0 + (pages << Self::FREE))
    }

    /// Whether the free frames of two heads are equal after division by 16, in fewer instructions than by unpacking.
    #[inline(always)]
    pub(crate) const fn is_in_step_with(self, head: Self) -> bool {
        (self.0 ^ head.0) >> (Self::FREE + 4) == 0
    }

    #[inline(always)]
    pub(crate) const fn with_next(self, next: u32) -> Self {
        Self(with_bits(self.0, Self::MASK, next as u64))
    }

    #[inline(always)]
    pub(crate) const fn with_prev(self, prev: u32) -> Self {
        Self(with_bits(self.0, Self::MASK << Self::LINK, (prev as u64) << Self::LINK))
    }

    /// The least head word of a pageblock with at least 64 free frames, an eighth. Allocations should take from fuller
    /// pageblocks first.
    pub(crate) const SPARSE: u64 = KIND_OPEN << KIND | 64 << Self::FREE;

    /// The least head word of a pageblock with more free frames than this one, and not below
    /// [`SPARSE`](Self::SPARSE).
    #[inline(always)]
    pub(crate) fn sparser(self) -> u64 {
        Self::SPARSE.max(((self.0 >> Self::FREE) + 1) << Self::FREE)
    }

    /// Whether a head word is that of an open pageblock and at least `least`, which is of one, too.
    #[inline(always)]
    pub(crate) const fn is_sparse(word: u64, least: u64) -> bool {
        word.wrapping_sub(least) < ((KIND_OPEN + 1) << KIND) - least
    }
}

const _: () = assert!(OpenHead::LARGEST + 4 <= OpenHead::FREE);

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body => f.write_str("not the first frame of a block"),
            Self::Free { order, list, .. } => write!(f, "free, order {order}, {list}"),
            Self::Taken { order, asked, .. } => write!(f, "allocated, order {order}, {asked}"),
            Self::Quarantined { order } => write!(f, "quarantined, order {order}"),
            Self::Reserved => f.write_str("reserved"),
        }
    }
}

#[cfg(test)]
mod tests;
