//! Units of the allocator. Pure: numbers in, numbers out.
//!
//! Each unit is a newtype with its own `Debug`, so that a page frame number, an order and a CPU cannot be confused, and
//! a failed assertion prints its unit.

use core::fmt;
use core::ops::Range;

/// Largest block order: a block of order 10 is 1024 base pages (4 MiB with 4 KiB pages, 64 MiB with 64 KiB).
pub const MAX_ORDER: Order = Order(10);
/// Number of orders, 0 to 10.
pub const NR_ORDERS: usize = MAX_ORDER.0 as usize + 1;
/// Order of a pageblock, the grain of mobility grouping; also the huge-page order on x86-64.
pub const PAGEBLOCK_ORDER: Order = Order(9);
/// Base pages in a pageblock.
pub const PAGEBLOCK_PAGES: u64 = PAGEBLOCK_ORDER.pages();
/// Most frames that a zone may span: links inside a descriptor are 28 bits wide. 1 TiB of 4 KiB frames; a node with
/// more has several zones.
pub const MAX_ZONE_PAGES: u64 = 1 << 28;
/// Largest order that is not "costly". Linux' per-CPU lists hold orders 0 to 3, and the huge order.
pub const COSTLY_ORDER: Order = Order(3);
/// Base pages in a memory section (128 MiB of 4 KiB pages on x86-64).
pub const SECTION_PAGES: u64 = 32768;

/// A page frame number: physical address divided by the base page size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Pfn(pub u64);

impl Pfn {
    /// The frame `pages` base pages above this one.
    #[must_use]
    #[inline]
    pub const fn add(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }

    /// The buddy of the order `order` block at `self`: the other half of the next larger block.
    ///
    /// `pfn XOR 2^order`: the addresses of two buddies differ in one bit.
    #[must_use]
    #[inline]
    pub const fn buddy(self, order: Order) -> Self {
        Self(self.0 ^ order.pages())
    }

    /// First frame of the aligned order `order` block that holds `self`.
    #[must_use]
    #[inline]
    pub const fn block_start(self, order: Order) -> Self {
        Self(self.0 & !(order.pages() - 1))
    }

    /// First frames of the pageblocks that a range touches.
    pub(crate) fn pageblocks(range: Range<Self>) -> impl Iterator<Item = Self> + Clone {
        let first = range.start.block_start(PAGEBLOCK_ORDER).0;
        (first..range.end.0).step_by(PAGEBLOCK_PAGES as usize).map(Self)
    }

    /// Whether an order `order` block may start here.
    #[must_use]
    #[inline]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.pages() - 1) == 0
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}", self.0)
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Binary logarithm of a block's size in base pages, 0 to [`MAX_ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Order(u8);

impl Order {
    /// The order of a single base page.
    pub const ZERO: Self = Self(0);

    /// The order `order`; `None` above [`MAX_ORDER`].
    #[must_use]
    #[inline]
    pub const fn new(order: u8) -> Option<Self> {
        if order as usize >= NR_ORDERS { None } else { Some(Self(order)) }
    }

    /// The smallest order whose blocks hold `pages` base pages; `None` if `pages` is more than the largest block has. 0
    /// pages need order 0.
    #[must_use]
    pub const fn for_pages(pages: u64) -> Option<Self> {
        if pages > MAX_ORDER.pages() {
            None
        } else {
            Self::new(pages.next_power_of_two().trailing_zeros() as u8)
        }
    }

    /// Base pages in a block of this order.
    #[must_use]
    #[inline]
    pub const fn pages(self) -> u64 {
        1 << self.0
    }

    /// The order as an array index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The order as a number.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Every order from `self` up to the largest.
    pub fn and_above(self) -> impl DoubleEndedIterator<Item = Self> {
        (self.0..NR_ORDERS as u8).map(Self)
    }

    /// Every order, smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        Self::ZERO.and_above()
    }

    /// The blocks that tile a range, ascending: each as large as its place and the rest of the range let it be.
    pub(crate) fn tiles(range: Range<Pfn>) -> impl Iterator<Item = (Pfn, Self)> {
        let (mut at, end) = (range.start, range.end);
        core::iter::from_fn(move || {
            let order = (at < end).then(|| Self::largest_at(at, end.0 - at.0))?;
            at = at.add(order.pages());
            Some((Pfn(at.0 - order.pages()), order))
        })
    }

    /// The next smaller order.
    pub(crate) const fn down(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(order) => Some(Self(order)),
            None => None,
        }
    }

    /// The next larger order. `self` must be below [`MAX_ORDER`].
    #[must_use]
    #[inline]
    pub(crate) const fn up(self) -> Self {
        debug_assert!((self.0 as usize) < NR_ORDERS - 1);
        Self(self.0 + 1)
    }

    /// An order unpacked from a descriptor, where four bits hold it.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self((bits & 0xf) as u8)
    }

    /// The largest order of a block that may start at `pfn` and has at most `pages` pages.
    ///
    /// `pages` must not be 0.
    #[must_use]
    #[inline]
    pub fn largest_at(pfn: Pfn, pages: u64) -> Self {
        debug_assert!(pages > 0);
        let by_alignment = if pfn.0 == 0 { 63 } else { pfn.0.trailing_zeros() };
        let by_size = 63 - pages.leading_zeros();
        Self(by_alignment.min(by_size).min(NR_ORDERS as u32 - 1) as u8)
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {}", self.0)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The index with a number: one beyond every slice if a word of this machine is too small for the number.
#[inline(always)]
pub(crate) const fn index(number: u64) -> usize {
    if number > usize::MAX as u64 { usize::MAX } else { number as usize }
}

/// Numbers of the set bits of a word, ascending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ones(pub(crate) u64);

impl Iterator for Ones {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let n = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(n)
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($number:ty), $word:literal;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $number);

        impl $name {
            /// The number as an array index.
            #[must_use]
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        })*
    };
}

numbers! {
    /// A memory node.
    NodeId(u16), "node";
    /// A CPU; on a host a slot that one thread at a time holds and uses as its CPU.
    CpuId(u16), "cpu";
    /// Index of a zone in the allocator's zone table.
    ZoneId(u8), "zone";
}

/// Most nodes of an allocator: the bits of a [`NodeMask`]. Linux is usually built for 64 or 1024.
pub const MAX_NODES: usize = 64;

/// A set of nodes below [`MAX_NODES`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct NodeMask(pub u64);

impl NodeMask {
    /// No node.
    pub const NONE: Self = Self(0);
    /// Every node.
    pub const ALL: Self = Self(u64::MAX);

    /// The set of one node; empty if its number is not below [`MAX_NODES`].
    #[must_use]
    pub const fn of(node: NodeId) -> Self {
        if (node.0 as usize) < MAX_NODES { Self(1 << node.0) } else { Self::NONE }
    }

    /// Whether the set has `node`.
    #[must_use]
    pub const fn has(self, node: NodeId) -> bool {
        self.0 & Self::of(node).0 != 0
    }

    /// The nodes that are in this set or in `more`.
    #[must_use]
    pub const fn or(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The nodes that are in both sets.
    #[must_use]
    pub const fn and(self, mask: Self) -> Self {
        Self(self.0 & mask.0)
    }

    /// Whether the set has no node.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The nodes of the set, lowest first.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        (0..MAX_NODES as u16).map(NodeId).filter(move |&node| self.has(node))
    }
}

impl FromIterator<NodeId> for NodeMask {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::NONE, |mask, node| mask.or(Self::of(node)))
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Type of a zone, by the devices and blocks that can use its addresses, lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ZoneType {
    /// Below 16 MiB: for the oldest devices.
    Dma = 0,
    /// Below 4 GiB: for 32-bit devices.
    Dma32 = 1,
    /// All other memory.
    Normal = 2,
    /// Memory for movable blocks only, so that it can be taken offline.
    Movable = 3,
}

impl ZoneType {
    /// Every type, lowest first.
    pub const ALL: [Self; 4] = [Self::Dma, Self::Dma32, Self::Normal, Self::Movable];
}

/// The name in `/proc/buddyinfo`.
impl fmt::Display for ZoneType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        })
    }
}

/// Mobility of a block: whether its owner can move it. Each pageblock has one type; grouping blocks by it limits
/// fragmentation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Migratetype {
    /// Stays where it is until freed.
    Unmovable = 0,
    /// Can be migrated: anonymous memory, page cache.
    Movable = 1,
    /// Freed on request rather than moved: caches that shrink; and file pages, if compaction need not move them. Blocks
    /// that are kept until their memory is needed then share pageblocks, and more huge pages stay whole.
    Reclaimable = 2,
    /// Reserve for high-order requests that cannot wait.
    HighAtomic = 3,
    /// Contiguous-memory area: lent to movable blocks until its owner needs it.
    Cma = 4,
    /// Isolated: neither handed out nor counted as free.
    Isolate = 5,
}

impl Migratetype {
    /// Every type, in list order.
    pub const ALL: [Self; 6] =
        [Self::Unmovable, Self::Movable, Self::Reclaimable, Self::HighAtomic, Self::Cma, Self::Isolate];

    /// The type as an array index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The three types that requests name.
    pub const ORDINARY: [Self; 3] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// Whether this is one of the three types that requests name and per-CPU lists hold. Blocks of these types may
    /// merge across pageblock borders.
    #[must_use]
    #[inline]
    pub const fn is_ordinary(self) -> bool {
        (self as u8) < 3
    }

    /// The ordinary type with this number.
    #[inline(always)]
    pub(crate) const fn ordinary(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Unmovable),
            1 => Some(Self::Movable),
            2 => Some(Self::Reclaimable),
            _ => None,
        }
    }

    /// A type unpacked from a descriptor, where three bits hold it.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits & 7 {
            0 => Self::Unmovable,
            1 => Self::Movable,
            2 => Self::Reclaimable,
            3 => Self::HighAtomic,
            4 => Self::Cma,
            _ => Self::Isolate,
        }
    }
}

/// The name in `/proc/pagetypeinfo`.
impl fmt::Display for Migratetype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
            Self::HighAtomic => "HighAtomic",
            Self::Cma => "CMA",
            Self::Isolate => "Isolate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with words of 32 bits, a frame number that is beyond them names no frame.
    #[test]
    fn a_number_beyond_a_word_is_no_index() {
        assert_eq!([0, 7, 1 << 31].map(index), [0, 7, 1 << 31]);
        for number in [1 << 32, 1 << 41 | 7, u64::MAX] {
            assert!(index(number) as u64 >= number.min(usize::MAX as u64), "{number:#x}");
        }
    }

    #[test]
    fn an_order_for_pages_is_the_smallest_that_holds_them() {
        let for_pages = |pages| Order::for_pages(pages).map(Order::get);
        assert_eq!([0, 1, 2, 3, 4, 5, 1023, 1024].map(for_pages), [0, 0, 1, 2, 2, 3, 10, 10].map(Some));
        assert_eq!([1025, u64::MAX].map(for_pages), [None; 2]);
    }

    #[test]
    fn a_mask_is_a_set_of_nodes_below_its_end() {
        let [first, some, last, beyond] = [0, 7, MAX_NODES as u16 - 1, MAX_NODES as u16].map(NodeId);
        let mask: NodeMask = [last, first, some, some, beyond].into_iter().collect();
        assert!(!mask.is_empty() && mask.iter().eq([first, some, last]));
        assert!(NodeMask::of(beyond).is_empty() && !NodeMask::ALL.has(beyond) && NodeMask::ALL.has(last));
        assert_eq!(mask.and(NodeMask::of(some)), NodeMask::of(some));
        assert_eq!((NodeMask::ALL.iter().count(), NodeMask::NONE.iter().count()), (MAX_NODES, 0));
    }

    #[test]
    fn buddies_are_each_others() {
        for order in Order::all() {
            for start in 0..4 {
                let pfn = Pfn(start * order.pages());
                assert_eq!(pfn.buddy(order).buddy(order), pfn);
                assert_ne!(pfn.buddy(order), pfn);
            }
        }
    }

    #[test]
    fn largest_block_is_bounded_by_alignment_size_and_the_largest_order() {
        let cases =
            [(0, 1, 0), (0, 1024, 10), (0, 5000, 10), (1, 100, 0), (2, 100, 1), (512, 511, 8), (512, 512, 9)];
        for (pfn, pages, order) in cases {
            assert_eq!(Order::largest_at(Pfn(pfn), pages).get(), order, "at {pfn}, {pages} pages");
        }
    }

    #[test]
    fn orders_end_at_ten() {
        assert_eq!(Order::new(10), Some(MAX_ORDER));
        assert_eq!(Order::new(11), None);
        assert_eq!(Order::all().count(), 11);
    }
}
