//! Anonymous pages of a [`FileCache`]: memory that may be larger than the arena, as long as it fits into the swap
//! area with it.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use framewright::ZoneId;
use framewright_pagecache::state::ZoneCounts;
use framewright_pagecache::{Cache, CacheError, PageSlot, SpaceId, SwapUse};

use crate::cpu::Cpu;
use crate::files::{FileCache, by_page};

impl FileCache<'_> {
    /// Makes a space of anonymous pages. It is as large as offsets go, and takes memory where it is stored to.
    ///
    /// # Panics
    /// If there have been 2³² of them.
    #[must_use]
    pub fn make_space(&self) -> SpaceId {
        let made = self.spaces.fetch_update(Relaxed, Relaxed, |made| made.checked_add(1));
        SpaceId(made.expect("fewer spaces than numbers"))
    }

    /// Stores at `offset` of a space.
    ///
    /// # Errors
    /// There is no memory, or a page could not be read from the swap area: it can be tried again. Pages before the
    /// one that failed have been stored to. Or the range ends behind the last offset; then nothing has been.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn store_anon(
        &self,
        cpu: &Cpu<'_, PageSlot>,
        space: SpaceId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        in_space(offset, bytes.len())?;
        by_page(offset, bytes.len()).try_for_each(|(index, at, part)| {
            self.here()?.store_anon(cpu.core(), &self.helpers(), (space, index, at), &bytes[part])
        })
    }

    /// Loads from `offset` of a space: zeroes where it was never stored to.
    ///
    /// # Errors
    /// As [`store_anon`](Self::store_anon).
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn load_anon(
        &self,
        cpu: &Cpu<'_, PageSlot>,
        space: SpaceId,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), CacheError> {
        in_space(offset, bytes.len())?;
        by_page(offset, bytes.len()).try_for_each(|(index, at, part)| {
            self.here()?.load_anon(cpu.core(), &self.helpers(), (space, index, at), &mut bytes[part])
        })
    }

    /// Drops pages of a space: their memory and their place in the swap area are free immediately.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn unmap_anon(&self, cpu: &Cpu<'_, PageSlot>, space: SpaceId, pages: Range<u64>) {
        let _ = self.here().map(|cache| cache.unmap_anon(cpu.core(), space, pages));
    }

    /// Drops a space with all its pages.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn drop_space(&self, cpu: &Cpu<'_, PageSlot>, space: SpaceId) {
        let _ = self.here().map(|cache| cache.drop_space(cpu.core(), space));
    }

    /// Anonymous pages in memory.
    #[must_use]
    pub fn anon_pages(&self) -> u64 {
        self.here().map(Cache::anon_pages).unwrap_or_default()
    }

    /// Counts of the cache's pages in a zone.
    #[must_use]
    pub fn zone_counts(&self, zone: ZoneId) -> ZoneCounts {
        self.here().map(|cache| cache.zone_counts(zone)).unwrap_or_default()
    }

    /// How full the swap area is.
    #[must_use]
    pub fn swap_use(&self) -> SwapUse {
        self.here().map(Cache::swap_use).unwrap_or_default()
    }
}

/// Refuses a range that ends behind the last offset of a space.
fn in_space(offset: u64, len: usize) -> Result<(), CacheError> {
    offset.checked_add(len as u64).map(drop).ok_or(CacheError::Range)
}
