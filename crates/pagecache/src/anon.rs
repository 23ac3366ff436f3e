//! Anonymous pages: memory of no file. They are made when they are first stored to, go to the swap area when memory
//! is short, come back when they are used, and end with their space.

use core::ops::Range;

use framewright::platform::Platform;
use framewright::{Cpu, Flags, Helpers};

use crate::cache::{Cache, CacheError, Fill, Use};
use crate::device::Device;
use crate::slot::{Owner, PageSlot, SpaceId};
use crate::state::State;

/// Slots of the swap area that are given back in one go: others want the lock, too.
const RELEASED: usize = 256;

impl<P: Platform, D: Device> Cache<'_, P, D> {
    /// Stores to page `index` of a space, from `offset` on. A page that was never stored to holds zeroes.
    ///
    /// # Errors
    /// There is no memory, the page could not be read from the swap area, or the range is none. What the page
    /// held it holds still.
    pub fn store_anon(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (space, index, offset): (SpaceId, u64, usize),
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.in_page(offset, bytes.len())?;
        let pfn = self.get(cpu, helpers, (space.into(), index), Use::Alone, Fill::Stored)?;
        self.change(pfn, offset, bytes);
        Ok(())
    }

    /// Loads from page `index` of a space, from `offset` on. What was never stored to reads as zeroes and takes no
    /// memory.
    ///
    /// # Errors
    /// As [`store_anon`](Self::store_anon).
    pub fn load_anon(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (space, index, offset): (SpaceId, u64, usize),
        bytes: &mut [u8],
    ) -> Result<(), CacheError> {
        self.in_page(offset, bytes.len())?;
        self.check_cpu(cpu);
        let page = (Owner::Space(space), index);
        // Only a store makes a page: one that another thread drops during the call stays dropped.
        while self
            .locked(|state| state.find(space, index).is_some() || state.swap.find((space, index)).is_some())
        {
            let found = self.try_get(page.0, index, Use::Shared);
            let brought = || self.bring(cpu, helpers, page, Flags::NONE, Fill::Swapped);
            if let Some(pfn) = found.map_or_else(brought, |pfn| Ok(Some(pfn)))? {
                self.device.copy_out(pfn, offset, bytes);
                self.end_use(pfn);
                return Ok(());
            }
        }
        bytes.fill(0);
        Ok(())
    }

    /// Drops pages of a space: their memory and their slots of the swap area are free immediately. Waits for those who
    /// use them. What others store there in the meantime may stay.
    pub fn unmap_anon(&self, cpu: &Cpu<'_, '_, P, PageSlot>, space: SpaceId, pages: Range<u64>) {
        if let Some(last) = pages.end.checked_sub(1) {
            self.drop_anon(cpu, space, (pages.start, last));
        }
    }

    /// Drops a space with all its pages, likewise.
    pub fn drop_space(&self, cpu: &Cpu<'_, '_, P, PageSlot>, space: SpaceId) {
        self.drop_anon(cpu, space, (0, u64::MAX));
    }

    fn drop_anon(&self, cpu: &Cpu<'_, '_, P, PageSlot>, space: SpaceId, pages: (u64, u64)) {
        // Pages in memory go with their slots. Then the slots of those that are not: one that comes back in the
        // meantime keeps its slot as long as it is read from there, and the next round drops it.
        loop {
            self.drop_each(cpu, Owner::Space(space), pages, true, |_| true);
            let mut came_back = false;
            let mut from = Some(pages.0);
            while let Some(first) = from {
                from = self.locked(|state| {
                    let State { swap, index, .. } = state;
                    swap.release_pages(space, (first, pages.1), RELEASED, |at| {
                        let cached = index.contains_key(&(Owner::Space(space), at));
                        came_back |= cached;
                        cached
                    })
                });
            }
            if !came_back {
                return;
            }
        }
    }
}
