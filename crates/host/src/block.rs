//! Blocks that free themselves.
//!
//! Holds the `unsafe` that turns "owns the block" into references to its memory.
#![expect(unsafe_code, reason = "owning a block is the right to its memory")]

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::slice;
use std::sync::Arc;

use framewright::frame::FrameUser;
use framewright::{AllocError, Flags, FreeError, Migratetype, Order, Pfn, Request};

use crate::arena::Arena;
use crate::cpu::Cpu;
use crate::shared::{Shared, SharedArena, last_used};

/// Place of a block of an arena, if it has one.
fn memory<M: FrameUser>(arena: &Arena<M>, pfn: Pfn, order: Order) -> Option<NonNull<[u8]>> {
    let start = arena.address(pfn)?;
    Some(NonNull::slice_from_raw_parts(start, arena.page_bytes() << order.get()))
}

/// Reports a free that was refused although the block has an owner: its owner's promise was broken. The pages stay
/// allocated. A panic would hide what led here, so it is left to builds with assertions.
#[cold]
fn refused(error: FreeError) {
    debug_assert!(std::thread::panicking(), "a block was freed or split behind its owner's back: {error}");
}

macro_rules! block_methods {
    () => {
        /// The block's first frame.
        #[must_use]
        #[inline]
        pub const fn pfn(&self) -> Pfn {
            self.pfn
        }

        /// The block's order.
        #[must_use]
        #[inline]
        pub const fn order(&self) -> Order {
            self.order
        }

        /// The block's memory: `2^order` [base pages](crate::Arena::page_bytes). `None` if the arena's
        /// frames are described only.
        #[must_use]
        #[inline]
        pub fn as_ptr(&self) -> Option<NonNull<[u8]>> {
            memory(self.arena(), self.pfn, self.order)
        }

        /// The block's memory. It holds what its last owner left, at first zeroes.
        ///
        /// # Panics
        /// If the arena's frames are described only.
        #[must_use]
        pub fn bytes(&self) -> &[u8] {
            let memory = self.as_ptr().expect("an arena with memory behind its frames");
            // SAFETY: the block is ours until it is dropped, so no other code writes there; it is initialised.
            unsafe { slice::from_raw_parts(memory.as_ptr().cast(), memory.len()) }
        }

        /// The block's memory, for writing.
        ///
        /// # Panics
        /// If the arena's frames are described only.
        #[must_use]
        pub fn bytes_mut(&mut self) -> &mut [u8] {
            let memory = self.as_ptr().expect("an arena with memory behind its frames");
            // SAFETY: the block is ours until it is dropped, and borrowed exclusively; it is initialised.
            unsafe { slice::from_raw_parts_mut(memory.as_ptr().cast(), memory.len()) }
        }

        /// Runs `f` on the user slot of the block's `n`-th frame.
        ///
        /// # Panics
        /// If the block has at most `n` frames.
        pub fn with_user<R>(&mut self, n: u64, f: impl FnOnce(&mut M) -> R) -> R {
            assert!(n < self.order.pages(), "frame {n} of a block of {}", self.order.pages());
            let frames = self.arena().allocator().frames();
            // SAFETY: the block is ours and borrowed exclusively, which `f` cannot undo.
            unsafe { frames.with_user(self.pfn.add(n), f) }.expect("an owned block lies in the map")
        }
    };
}

/// An allocated block that an attached thread owns. Freed through the thread's CPU when dropped.
pub struct Block<'c, M: FrameUser = ()> {
    cpu: &'c Cpu<'c, M>,
    pfn: Pfn,
    order: Order,
}

impl<M: FrameUser> fmt::Debug for Block<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("pfn", &self.pfn).field("order", &self.order).finish()
    }
}

impl<'c, M: FrameUser> Block<'c, M> {
    /// Takes charge of an allocated block.
    ///
    /// # Safety
    /// The block is one of `cpu`'s arena, allocated with `order`, and the caller gives up owning it.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw(cpu: &'c Cpu<'_, M>, pfn: Pfn, order: Order) -> Self {
        Self { cpu, pfn, order }
    }

    /// Gives the block up without freeing it: it is now a raw frame, the caller's to free.
    #[must_use = "the block stays allocated"]
    #[inline]
    pub fn into_raw(self) -> (Pfn, Order) {
        let block = ManuallyDrop::new(self);
        (block.pfn, block.order)
    }

    /// Cuts the block into blocks of order `to`, in ascending order, each freed on its own. O(2^(order − to)).
    ///
    /// # Panics
    /// If `to` is larger than the block's order.
    pub fn split(self, to: Order) -> impl ExactSizeIterator<Item = Self> {
        assert!(to <= self.order, "{:?} does not divide into blocks of {to:?}", self.order);
        let cpu = self.cpu;
        let (pfn, from) = self.into_raw();
        // SAFETY: the block was ours, and has just been given up.
        let split = unsafe { cpu.split(pfn, from, to) };
        // SAFETY: a part of a block that was ours, allocated on its own since the split, handed out once.
        let make = |cpu: &&'c Cpu<'c, M>, pfn, order| unsafe { Self::from_raw(cpu, pfn, order) };
        Parts::new(cpu, split, make, pfn, from, to)
    }

    fn arena(&self) -> &'c Arena<M> {
        self.cpu.arena()
    }

    block_methods!();
}

impl<M: FrameUser> Drop for Block<'_, M> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the block is ours, and this is its end.
        if let Err(error) = unsafe { self.cpu.free(self.pfn, self.order) } {
            refused(error);
        }
    }
}

/// The parts of a block that are not yet handed out; they are freed if it is dropped.
struct Parts<H, B> {
    /// Memory that each part keeps.
    handle: H,
    make: fn(&H, Pfn, Order) -> B,
    at: Pfn,
    order: Order,
    left: usize,
}

impl<H, B> Parts<H, B> {
    fn new(
        handle: H,
        split: Result<(), FreeError>,
        make: fn(&H, Pfn, Order) -> B,
        at: Pfn,
        from: Order,
        order: Order,
    ) -> Self {
        let left = if split.is_ok() { 1 << (from.get() - order.get()) } else { 0 };
        if let Err(error) = split {
            refused(error);
        }
        Self { handle, make, at, order, left }
    }
}

impl<H, B> Iterator for Parts<H, B> {
    type Item = B;

    fn next(&mut self) -> Option<B> {
        self.left = self.left.checked_sub(1)?;
        let pfn = self.at;
        self.at = pfn.add(self.order.pages());
        Some((self.make)(&self.handle, pfn, self.order))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<H, B> ExactSizeIterator for Parts<H, B> {}

impl<H, B> Drop for Parts<H, B> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// An allocated block that may move between threads: it frees itself wherever it is dropped, and keeps its arena
/// alive.
pub struct SharedBlock<M: FrameUser = ()> {
    shared: ManuallyDrop<Arc<Shared<M>>>,
    pfn: Pfn,
    order: Order,
}

impl<M: FrameUser> fmt::Debug for SharedBlock<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBlock").field("pfn", &self.pfn).field("order", &self.order).finish()
    }
}

impl<M: FrameUser> SharedBlock<M> {
    /// Takes charge of an allocated block.
    ///
    /// # Safety
    /// The block is one of `arena`, allocated with `order`, and the caller gives up owning it.
    #[must_use]
    pub unsafe fn from_raw(arena: SharedArena<M>, pfn: Pfn, order: Order) -> Self {
        // SAFETY: our caller's promise.
        unsafe { Self::new(Arc::clone(&arena.0), pfn, order) }
    }

    /// # Safety
    /// As [`from_raw`](Self::from_raw).
    #[inline]
    pub(crate) unsafe fn new(shared: Arc<Shared<M>>, pfn: Pfn, order: Order) -> Self {
        Self { shared: ManuallyDrop::new(shared), pfn, order }
    }

    /// Gives the block up without freeing it: it is now a raw frame, the caller's to free.
    #[must_use = "the block stays allocated"]
    pub fn into_raw(self) -> (Pfn, Order) {
        let mut block = ManuallyDrop::new(self);
        // SAFETY: `block` is not used afterwards, and never dropped.
        unsafe { ManuallyDrop::drop(&mut block.shared) };
        (block.pfn, block.order)
    }

    /// Cuts the block into blocks of order `to`, in ascending order, each freed on its own. O(2^(order − to)).
    ///
    /// # Panics
    /// If `to` is larger than the block's order.
    pub fn split(self, to: Order) -> impl ExactSizeIterator<Item = Self> {
        assert!(to <= self.order, "{:?} does not divide into blocks of {to:?}", self.order);
        let arena = SharedArena::of(Arc::clone(&self.shared));
        let (pfn, from) = self.into_raw();
        // SAFETY: the block was ours, and has just been given up.
        let split = unsafe { arena.split(pfn, from, to) };
        // SAFETY: a part of a block that was ours, allocated on its own since the split, handed out once.
        let make =
            |arena: &SharedArena<M>, pfn, order| unsafe { Self::new(Arc::clone(&arena.0), pfn, order) };
        Parts::new(arena, split, make, pfn, from, to)
    }

    fn arena(&self) -> &Arena<M> {
        &self.shared.arena
    }

    block_methods!();
}

/// Its memory: as [`bytes`](Self::bytes), and panics as that does.
impl<M: FrameUser> Deref for SharedBlock<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl<M: FrameUser> DerefMut for SharedBlock<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl<M: FrameUser> AsRef<[u8]> for SharedBlock<M> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl<M: FrameUser> Drop for SharedBlock<M> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken here alone, at the block's end.
        let shared = unsafe { ManuallyDrop::take(&mut self.shared) };
        if let Err(error) = SharedArena::free_block(shared, self.pfn, self.order) {
            refused(error);
        }
    }
}

impl<M: FrameUser> Cpu<'_, M> {
    /// Allocates a block of `order` that holds zeroes, and frees itself through this CPU: what
    /// [`Flags::ZERO`](crate::Flags::ZERO) asks for. O(bytes).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and if the arena's frames are described only.
    pub fn alloc_block_zeroed(
        &self,
        order: Order,
        migratetype: Migratetype,
    ) -> Result<Block<'_, M>, AllocError> {
        let hit = if self.arena().annotated.is_on() {
            None
        } else {
            self.core().alloc_hit_zeroed(order, migratetype)
        };
        let pfn = match hit {
            Some(pfn) => pfn,
            None => self.alloc_with(&Request::new(order, migratetype).with(Flags::ZERO))?,
        };
        // SAFETY: allocated just now, with this order, and owned by no other code.
        Ok(unsafe { Block::from_raw(self, pfn, order) })
    }

    /// Allocates a block of `order` that frees itself through this CPU. It holds what its last owner left.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[inline]
    pub fn alloc_block(&self, order: Order, migratetype: Migratetype) -> Result<Block<'_, M>, AllocError> {
        let pfn = self.alloc(order, migratetype)?;
        // SAFETY: allocated just now, with this order, and owned by no other code.
        Ok(unsafe { Block::from_raw(self, pfn, order) })
    }
}

impl<M: FrameUser> SharedArena<M> {
    /// Allocates a block of `order` that frees itself on whichever thread drops it.
    ///
    /// # Errors
    /// As [`Cpu::alloc`].
    #[inline]
    pub fn alloc_block(&self, order: Order, migratetype: Migratetype) -> Result<SharedBlock<M>, AllocError> {
        // SAFETY: used here alone, and neither call runs code of others or drops an attachment.
        let hit = unsafe { last_used(&self.0) }.and_then(|attachment| {
            let pfn = attachment.cpu.alloc_hit(order, migratetype)?;
            Some((pfn, attachment.reference()))
        });
        let (pfn, shared) = match hit {
            Some(hit) => hit,
            None => (self.alloc(order, migratetype)?, Arc::clone(&self.0)),
        };
        // SAFETY: allocated just now, with this order, and owned by no other code.
        Ok(unsafe { SharedBlock::new(shared, pfn, order) })
    }

    /// Allocates a block of `order` that holds zeroes, likewise. O(bytes).
    ///
    /// # Errors
    /// As [`Cpu::alloc_block_zeroed`].
    pub fn alloc_block_zeroed(
        &self,
        order: Order,
        migratetype: Migratetype,
    ) -> Result<SharedBlock<M>, AllocError> {
        let pfn = self.alloc_with(&Request::new(order, migratetype).with(Flags::ZERO))?;
        // SAFETY: allocated just now, with this order, and owned by no other code.
        Ok(unsafe { SharedBlock::new(Arc::clone(&self.0), pfn, order) })
    }
}
