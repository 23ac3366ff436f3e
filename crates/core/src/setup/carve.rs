//! Carves an allocator's own structures out of one range of zeroed memory.
#![expect(unsafe_code, reason = "typed slices are cut out of the caller's memory")]

use core::alloc::Layout;
use core::mem::{MaybeUninit, size_of};
use core::ptr::NonNull;
use core::slice;

use super::{Memory, Plan};
use crate::error::SetupError;
use crate::frame::{Frame, Zeroable, filled};
use crate::platform::Platform;

/// Alignment of each slice: no two slices share a cache line, or a pair of lines that is fetched together.
const ALIGN: usize = 128;

/// Memory that is handed out from its start on.
struct Room {
    /// `None` if room is only counted.
    start: Option<NonNull<u8>>,
    /// Bytes handed out so far. They saturate: no memory is so large.
    used: usize,
}

impl Room {
    /// Room for `len` elements; no elements where room is only counted.
    fn take<'m, T>(&mut self, len: usize) -> &'m mut [MaybeUninit<T>] {
        const { assert!(align_of::<T>() <= ALIGN) };
        let offset = self.add_bytes(size_of::<T>(), len);
        let Some(start) = self.start else { return &mut [] };
        // SAFETY: by the promise of `Memory::carve` the memory has the room that was counted and only the caller
        // reaches it for `'m`; no two slices overlap, and any bytes are a `MaybeUninit`. Aligned: `start` is aligned as
        // the layout says, the offset to the type.
        unsafe { slice::from_raw_parts_mut(start.add(offset).cast().as_ptr(), len) }
    }

    /// Offset of room for `len` elements. Out of line: it is called for each kind of structure.
    #[inline(never)]
    fn add_bytes(&mut self, each: usize, len: usize) -> usize {
        let start = self.used.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
        self.used = start.saturating_add(each.saturating_mul(len));
        start
    }
}

impl Plan {
    /// Size and alignment of one range for all structures, for [`Memory::carve`].
    ///
    /// # Errors
    /// The address space is too small.
    pub fn layout<P: Platform, M>(&self) -> Result<Layout, SetupError> {
        self.layout_with::<P, M>(self.frames)
    }

    /// Size and alignment of one range for all structures but frame descriptors, for [`Memory::carve_beside`].
    ///
    /// # Errors
    /// The address space is too small.
    pub fn tables_layout<P: Platform>(&self) -> Result<Layout, SetupError> {
        self.layout_with::<P, ()>(0)
    }

    fn layout_with<P: Platform, M>(&self, frames: usize) -> Result<Layout, SetupError> {
        let mut room = Room { start: None, used: 0 };
        // SAFETY: no structure has an element.
        unsafe { Memory::<P, M>::tables(self, &mut room) };
        room.take::<Frame<P, M>>(frames);
        Layout::from_size_align(room.used, ALIGN).map_err(|_| SetupError::TooLarge)
    }
}

impl<'m, P: Platform, M> Memory<'m, P, M> {
    /// All structures, in memory that has the [layout](Plan::layout) of `plan`.
    ///
    /// # Safety
    /// The memory is zeroed and has the layout's size and alignment, and for `'m` only this value reaches it. Zero
    /// bytes are a [`P::Word`] that holds 0 and a valid `P::Cell<M>`, as with
    /// [`AtomicU64`](core::sync::atomic::AtomicU64) and [`UnsafeCell`](core::cell::UnsafeCell).
    ///
    /// [`P::Word`]: Platform::Word
    #[must_use]
    pub unsafe fn carve(plan: &Plan, start: NonNull<u8>) -> Self
    where
        M: Zeroable,
    {
        let mut room = Room { start: Some(start), used: 0 };
        // SAFETY: zeroed, and zeroes are a valid word and slot by the caller's promise and `Zeroable`.
        unsafe {
            let tables = Self::tables(plan, &mut room);
            Self { frames: filled(room.take(plan.frames)), ..tables }
        }
    }

    /// All structures, with frame descriptors at another place, in memory that has the [tables'
    /// layout](Plan::tables_layout) of `plan`.
    ///
    /// # Safety
    /// As [`carve`](Self::carve), without the condition on `M`.
    #[must_use]
    pub unsafe fn carve_beside(plan: &Plan, frames: &'m [Frame<P, M>], start: NonNull<u8>) -> Self {
        // SAFETY: by the caller's promise.
        let tables = unsafe { Self::tables(plan, &mut Room { start: Some(start), used: 0 }) };
        Self { frames, ..tables }
    }

    /// All structures but frame descriptors.
    ///
    /// # Safety
    /// The memory of `room` is zeroed, and zeroes are a valid word.
    unsafe fn tables(plan: &Plan, room: &mut Room) -> Self {
        // SAFETY: zeroes are what `new` makes of pageblocks, maps and queue nodes where they are a word that holds 0; a
        // zone's number is an integer.
        unsafe {
            Self {
                zones: room.take(plan.zones),
                sections: room.take(plan.sections),
                section_words: filled(room.take(plan.section_words)),
                pcps: room.take(plan.pcps),
                more_lists: room.take(plan.more_lists),
                queue: filled(room.take(plan.queue)),
                slots: filled(room.take(plan.slots)),
                zonelist: filled(room.take(plan.zonelist)),
                nodes: room.take(plan.nodes),
                contexts: filled(room.take(plan.contexts)),
                pageblocks: filled(room.take(plan.pageblocks)),
                maps: filled(room.take(plan.maps)),
                frames: &[],
            }
        }
    }
}
