//! Lazily committed host memory. What the simulated machine describes and never touches costs nothing.
#![expect(unsafe_code, reason = "memory comes from a raw system call, and typed slices are carved out of it")]

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::slice;
use std::io;

use crate::model::LINE;

/// Private zeroed memory, committed as it is touched and given back when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// `bytes` of zeroes, at least one.
    ///
    /// # Errors
    /// The system has no address space left.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { start, bytes })
    }

    /// First byte.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and no borrow of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A plan of what goes where in a mapping to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room(usize);

/// Place of a slice in a mapping.
#[derive(Debug)]
pub struct Place<T> {
    offset: usize,
    len: usize,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl Room {
    /// Room for `len` elements, aligned for them and to two cache lines, so that neighbours share none.
    ///
    /// # Panics
    /// If an address space cannot hold it.
    pub fn add<T>(&mut self, len: usize) -> Place<T> {
        let align = align_of::<T>().max(2 * LINE);
        let offset = self.0.next_multiple_of(align);
        let bytes = size_of::<T>().checked_mul(len).expect("more than an address space");
        self.0 = offset.checked_add(bytes).expect("more than an address space");
        Place { offset, len, value: PhantomData }
    }

    /// Lets what comes next begin with a page of its own.
    pub fn align_to_page(&mut self) {
        self.0 = self.0.next_multiple_of(PAGE);
    }

    /// Bytes planned so far.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0
    }
}

/// Bytes of a page of the host, or a divisor of them.
const PAGE: usize = 4096;

/// Makes a range of some mapping read as zeroes: whole pages are given back, the rest is written.
///
/// # Safety
/// The memory is private and anonymous, valid for writes, and no other thread touches it during the call.
pub(crate) unsafe fn clear(start: *mut u8, bytes: usize) {
    let before = start.align_offset(PAGE).min(bytes);
    let pages = (bytes - before) / PAGE * PAGE;
    // SAFETY: three parts of the caller's memory. Private anonymous pages that were given back read as zeroes.
    unsafe {
        start.write_bytes(0, before);
        let middle = start.add(before);
        if pages > 0 && libc::madvise(middle.cast(), pages, libc::MADV_DONTNEED) != 0 {
            middle.write_bytes(0, pages);
        }
        middle.add(pages).write_bytes(0, bytes - before - pages);
    }
}

impl<T> Place<T> {
    /// First byte within the mapping.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// First byte after it within the mapping.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.offset + self.len * size_of::<T>()
    }

    /// The first element.
    ///
    /// # Panics
    /// If the mapping is not the one that was planned.
    #[must_use]
    pub fn at(&self, mapping: &Mapping) -> NonNull<T> {
        assert!(self.end() <= mapping.bytes(), "a place in another mapping");
        // SAFETY: it is inside the mapping.
        unsafe { mapping.start().add(self.offset).cast() }
    }

    /// The slice, in a lifetime of the caller's choice.
    ///
    /// # Safety
    /// The memory holds `len` valid elements, zeroes included, that are written to only through them; the
    /// mapping outlives `'a`.
    #[must_use]
    pub unsafe fn slice<'a>(&self, mapping: &Mapping) -> &'a [T] {
        // SAFETY: by the caller's promise; aligned by `Room::add`, the mapping being page-aligned.
        unsafe { slice::from_raw_parts(self.at(mapping).as_ptr(), self.len) }
    }

    /// The slice, to write to.
    ///
    /// # Safety
    /// As [`slice`](Self::slice), and the memory is reached in no other way.
    #[must_use]
    pub unsafe fn slice_mut<'a>(&self, mapping: &Mapping) -> &'a mut [T] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.at(mapping).as_ptr(), self.len) }
    }
}

/// A table of which only what is touched takes memory. All entries begin as zeroes.
#[derive(Debug)]
pub struct LazyTable<T> {
    mapping: Mapping,
    len: usize,
    value: PhantomData<T>,
}

impl<T: Copy> LazyTable<T> {
    /// A table of `len` entries.
    ///
    /// # Safety
    /// All bytes zero is a valid `T`.
    ///
    /// # Errors
    /// The system has no address space left.
    pub unsafe fn new(len: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= LINE) };
        let bytes =
            len.checked_mul(size_of::<T>()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { mapping: Mapping::new(bytes)?, len, value: PhantomData })
    }

    /// An entry.
    ///
    /// # Panics
    /// If there is none of the index.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> &mut T {
        assert!(index < self.len, "no entry {index} in a table of {}", self.len);
        // SAFETY: inside the mapping, exclusively ours, and zeroes are valid by the promise of `new`.
        unsafe { self.mapping.start().cast::<T>().add(index).as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terabyte_costs_what_is_touched() {
        // SAFETY: 0 is a number.
        let mut table = unsafe { LazyTable::<u64>::new(1 << 37) }.expect("address space");
        *table.get_mut((1 << 37) - 1) = 7;
        assert_eq!((*table.get_mut(0), *table.get_mut((1 << 37) - 1)), (0, 7));
    }

    #[test]
    fn cleared_memory_reads_as_zeroes_and_its_neighbours_stay() {
        let mapping = Mapping::new(8 * PAGE).expect("memory");
        for (from, bytes) in [(0, 8 * PAGE), (100, 3 * PAGE), (PAGE, PAGE), (5, 10), (PAGE - 1, 2 * PAGE)] {
            // SAFETY: all of it is in the mapping.
            let memory = unsafe {
                mapping.start().as_ptr().write_bytes(0xaa, 8 * PAGE);
                clear(mapping.start().as_ptr().add(from), bytes);
                slice::from_raw_parts(mapping.start().as_ptr(), 8 * PAGE)
            };
            assert!(memory[from..from + bytes].iter().all(|&byte| byte == 0), "{from} {bytes}");
            assert!(memory[..from].iter().chain(&memory[from + bytes..]).all(|&byte| byte == 0xaa));
        }
    }

    #[test]
    fn places_share_no_line() {
        let mut room = Room::default();
        let (a, b) = (room.add::<u8>(1), room.add::<u8>(1));
        assert_eq!((a.offset(), b.offset(), room.bytes()), (0, 128, 129));
    }
}
