//! A slab-like cache of objects of one size, on top of the page allocator.
//!
//! A slab is a block; its free objects are a list through themselves. What a slab needs to know is in the user's
//! slot of its first frame's descriptor, so that a freed object finds it by its address alone.
#![expect(unsafe_code, reason = "objects are carved out of blocks, and free ones hold the list")]

use core::ptr::NonNull;

use framewright::{AllocError, FreeError, Migratetype, Order, Pfn};

use crate::kernel::{Kernel, Page, memory};
use crate::lock::SpinLock;
use crate::paging::PAGE;

/// Objects of one size.
pub(crate) struct ObjectCache {
    kernel: &'static Kernel,
    /// Bytes of an object; a multiple of 8.
    size: usize,
    order: Order,
    slabs: SpinLock<Slabs>,
}

struct Slabs {
    /// First frame of the first slab with free objects; 0 for none.
    partial: u64,
    slabs: u64,
    objects: u64,
}

impl ObjectCache {
    /// A cache without slabs of objects of `size` bytes, in blocks of `order`.
    ///
    /// # Panics
    /// The size is no multiple of 8, or no object fits a slab.
    pub(crate) const fn new(kernel: &'static Kernel, size: usize, order: Order) -> Self {
        assert!(size >= 8 && size.is_multiple_of(8) && size <= (PAGE << order.get()) as usize);
        Self { kernel, size, order, slabs: SpinLock::new(Slabs { partial: 0, slabs: 0, objects: 0 }) }
    }

    /// Objects in a slab.
    pub(crate) const fn per_slab(&self) -> usize {
        (PAGE << self.order.get()) as usize / self.size
    }

    /// Slabs and objects in use.
    pub(crate) fn in_use(&self) -> (u64, u64) {
        let slabs = self.slabs.lock();
        (slabs.slabs, slabs.objects)
    }

    /// The slot of a slab that is ours.
    fn with_slab<R>(&self, slab: u64, f: impl FnOnce(&mut Page) -> R) -> R {
        // SAFETY: the cache owns the block, the lock is held by every caller, and `f` reaches one slot.
        let result = unsafe { self.kernel.pages.frames().with_user(Pfn(slab), f) };
        result.expect("a slab is a block of the allocator")
    }

    /// Allocates an object. Its content is anything.
    ///
    /// # Errors
    /// There is no block for another slab.
    pub(crate) fn alloc(&self) -> Result<NonNull<u8>, AllocError> {
        let mut slabs = self.slabs.lock();
        if slabs.partial == 0 {
            let block = self.kernel.alloc(self.order, Migratetype::Unmovable)?;
            let first = self.carve(block);
            self.with_slab(block.0, |page| {
                (page.free, page.used, page.next) = (first, 0, 0);
            });
            slabs.partial = block.0;
            slabs.slabs += 1;
        }
        let slab = slabs.partial;
        let (object, next_slab) = self.with_slab(slab, |page| {
            let object = core::ptr::with_exposed_provenance_mut::<u64>(page.free as usize);
            // SAFETY: a free object of this slab holds the address of the next one, or 0.
            page.free = unsafe { object.read() };
            page.used += 1;
            (object, if page.free == 0 { page.next } else { slab })
        });
        slabs.partial = next_slab;
        slabs.objects += 1;
        Ok(NonNull::new(object.cast()).expect("a slab lists objects until its list is empty"))
    }

    /// Makes the list of a new slab's objects; returns the first one's address.
    fn carve(&self, block: Pfn) -> u64 {
        let start = memory(block);
        let mut next = 0;
        for n in (0..self.per_slab()).rev() {
            // SAFETY: the block is ours and has room for these objects.
            unsafe {
                let object = start.add(n * self.size).cast::<u64>();
                object.write(next);
                next = object.expose_provenance() as u64;
            }
        }
        next
    }

    /// Frees an object. A slab that has none in use any more goes back to the allocator.
    ///
    /// # Errors
    /// The reason why the slab's block is refused.
    ///
    /// # Safety
    /// The object is this cache's, and no code uses it any more.
    pub(crate) unsafe fn free(&self, object: NonNull<u8>) -> Result<(), FreeError> {
        let slab = Pfn(object.as_ptr().expose_provenance() as u64 / PAGE).block_start(self.order).0;
        let mut slabs = self.slabs.lock();
        slabs.objects -= 1;
        let first = slabs.partial;
        let (was_full, is_empty) = self.with_slab(slab, |page| {
            let was_full = page.free == 0;
            // SAFETY: no code uses the object any more.
            unsafe { object.as_ptr().cast::<u64>().write(page.free) };
            page.free = object.as_ptr().expose_provenance() as u64;
            page.used -= 1;
            if was_full {
                page.next = first;
            }
            (was_full, page.used == 0)
        });
        if was_full {
            slabs.partial = slab;
        }
        if is_empty {
            self.unlink(&mut slabs, slab);
            slabs.slabs -= 1;
            self.kernel.free(Pfn(slab), self.order)?;
        }
        Ok(())
    }

    /// Takes a slab off the list of those with room. O(slabs on it).
    fn unlink(&self, slabs: &mut Slabs, slab: u64) {
        let behind = self.with_slab(slab, |page| page.next);
        if slabs.partial == slab {
            slabs.partial = behind;
            return;
        }
        let mut at = slabs.partial;
        loop {
            let next = self.with_slab(at, |page| page.next);
            if next == slab {
                self.with_slab(at, |page| page.next = behind);
                return;
            }
            at = next;
        }
    }
}
