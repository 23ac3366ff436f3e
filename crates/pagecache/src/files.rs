//! Files: reading, writing, mapping, truncating, reading ahead.

use framewright::platform::Platform;
use framewright::{Cpu, Flags, Helpers, Pfn};

use crate::cache::{Cache, CacheError, Fill, Use};
use crate::device::Device;
use crate::policy;
use crate::slot::{FileId, Marks, PageSlot};
use crate::state::State;

impl<P: Platform, D: Device> Cache<'_, P, D> {
    /// End, in their file, of bytes from `offset` of a page on. Refuses the swap area, what is not in one page, and
    /// what is behind the largest file, of 2⁶³ − 1 bytes: a page counts with all of its bytes, because all are
    /// written.
    fn end_in_file(
        &self,
        (file, index, offset): (FileId, u64, usize),
        len: usize,
    ) -> Result<u64, CacheError> {
        self.is_ordinary(file)?;
        self.in_page(offset, len)?;
        if index > self.last_index() {
            return Err(CacheError::Range);
        }
        Ok(index * self.device.page_bytes() as u64 + (offset + len) as u64)
    }

    /// The last page that a file may have.
    fn last_index(&self) -> u64 {
        i64::MAX as u64 / self.device.page_bytes() as u64 - 1
    }

    /// Refuses the file that is the swap area.
    pub(crate) fn is_ordinary(&self, file: FileId) -> Result<(), CacheError> {
        if self.swap.is_some_and(|swap| swap.file == file) { Err(CacheError::Range) } else { Ok(()) }
    }

    /// Reads from page `index` of a file, from `offset` on. Reads ahead if that goes on in sequence.
    ///
    /// # Errors
    /// There is no memory, the device failed, or the range is none.
    pub fn read(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &mut [u8],
    ) -> Result<(), CacheError> {
        self.end_in_file((file, index, offset), bytes.len())?;
        let ahead = self.locked(|state| {
            let entry = state.file(file);
            let fresh = entry.last_read != Some(index);
            entry.window = policy::read_ahead(entry.last_read, index, entry.window);
            entry.last_read = Some(index);
            if fresh { entry.window } else { 0 }
        });
        let pfn = self.get(cpu, helpers, (file.into(), index), Use::Shared, Fill::Stored)?;
        self.device.copy_out(pfn, offset, bytes);
        self.end_use(pfn);
        // Behind what storage holds there is nothing to read.
        let is_stored = |&next: &u64| next <= self.last_index() && self.device.may_hold(file, next);
        for next in (1..=ahead).map(|n| index + n).take_while(is_stored) {
            if self.locked(|state| state.find(file, next).is_some()) {
                continue;
            }
            // Only what can be had easily; what fails will be read, or fail, when it is wanted.
            let Ok(read) = self.bring(cpu, helpers, (file.into(), next), Flags::NO_RETRY, Fill::Stored)
            else {
                break;
            };
            if let Some(pfn) = read {
                self.locked(|state| {
                    state.events.read_ahead += 1;
                    // No thread has used it yet.
                    self.slots.with(pfn, |slot| slot.marks = slot.marks.with(Marks::REFERENCED, false));
                    self.end_use_locked(pfn);
                });
            }
        }
        Ok(())
    }

    /// Writes to page `index` of a file, from `offset` on. It is on storage after [`flush`](Self::flush).
    ///
    /// # Errors
    /// There is no memory, the device failed to read what the page held, or the range is none.
    pub fn write(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        let end = self.end_in_file((file, index, offset), bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let fill = if bytes.len() < self.device.page_bytes() { Fill::Stored } else { Fill::Nothing };
        let pfn = self.get(cpu, helpers, (file.into(), index), Use::Alone, fill)?;
        self.device.extend(file, end);
        self.change(pfn, offset, bytes);
        self.throttle();
        Ok(())
    }

    /// Stores through a mapping of page `index` of a file, as a program does that has mapped it: the page
    /// stays mapped until reclaim unmaps it, and its use is only noticed when reclaim looks.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn store_mapped(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        let end = self.end_in_file((file, index, offset), bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let pfn = self.get(cpu, helpers, (file.into(), index), Use::Alone, Fill::Stored)?;
        self.device.extend(file, end);
        self.locked(|state| self.use_mapped(state, pfn));
        self.change(pfn, offset, bytes);
        self.throttle();
        Ok(())
    }

    /// Loads through a mapping, likewise.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn load_mapped(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        helpers: &Helpers<'_>,
        (file, index, offset): (FileId, u64, usize),
        bytes: &mut [u8],
    ) -> Result<(), CacheError> {
        self.end_in_file((file, index, offset), bytes.len())?;
        let pfn = self.get(cpu, helpers, (file.into(), index), Use::Shared, Fill::Stored)?;
        self.device.copy_out(pfn, offset, bytes);
        self.locked(|state| {
            self.use_mapped(state, pfn);
            self.end_use_locked(pfn);
        });
        Ok(())
    }

    /// A page was used through a mapping.
    fn use_mapped(&self, state: &mut State, pfn: Pfn) {
        let zone = self.zone_of(pfn);
        state.set(&self.slots, zone, pfn, Marks::MAPPED, true);
        state.set(&self.slots, zone, pfn, Marks::YOUNG, true);
    }

    /// A file is no longer mapped: its pages are as any others.
    pub fn unmap(&self, file: FileId) {
        self.locked(|state| {
            let mut at = 0;
            while let Some((index, pfn)) = state.next_page(file, at) {
                state.set(&self.slots, self.zone_of(pfn), pfn, Marks::MAPPED, false);
                let Some(next) = index.checked_add(1) else { break };
                at = next;
            }
        });
    }

    /// Drops the pages of a file from page `index` on, here and on storage: memory is free immediately, and what
    /// was not flushed is gone. Waits for those who use them. Other threads may read there during the call, but not
    /// write.
    ///
    /// # Errors
    /// The device failed, or the file is the swap area.
    pub fn truncate(
        &self,
        cpu: &Cpu<'_, '_, P, PageSlot>,
        file: FileId,
        index: u64,
    ) -> Result<(), CacheError> {
        self.is_ordinary(file)?;
        self.drop_each(cpu, file.into(), (index, u64::MAX), true, |_| true);
        self.device.truncate(file, index)?;
        // What another thread has read from storage before that.
        self.drop_each(cpu, file.into(), (index, u64::MAX), true, |_| true);
        Ok(())
    }

    /// Drops all pages of a file, written or not, and what is known of it: its number may be used for another file.
    /// Storage stays as it is. Waits for the users of the pages, and for those being written; no thread may use
    /// the file from when this is called.
    pub fn forget(&self, cpu: &Cpu<'_, '_, P, PageSlot>, file: FileId) {
        self.drop_each(cpu, file.into(), (0, u64::MAX), true, |_| true);
        self.locked(|state| drop(state.files.remove(&file)));
    }

    /// Drops the pages of a file that storage holds as well. Waits for those who use them. What a flush promises holds
    /// for them still.
    ///
    /// # Errors
    /// Some are [`Dirty`](CacheError::Dirty): they stay.
    pub fn drop_pages(&self, cpu: &Cpu<'_, '_, P, PageSlot>, file: FileId) -> Result<(), CacheError> {
        self.drop_each(cpu, file.into(), (0, u64::MAX), false, |slot| !slot.marks.has(Marks::DIRTY));
        self.locked(|state| state.last_dirty(Some(file))).map_or(Ok(()), |_| Err(CacheError::Dirty))
    }
}
