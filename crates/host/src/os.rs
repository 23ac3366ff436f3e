//! The operating system as the allocator needs it: memory and a clock.
//!
//! Raw system calls are here, in `forks`, `robust` and `processes`. Nothing here is called on the way of an allocation
//! or a free that finds memory, except for the clock when `lock_timing` is on.
#![expect(unsafe_code, reason = "system calls take and return raw addresses")]

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::forks::{self, Generation};

/// `CLOCK_MONOTONIC` in nanoseconds, read without entering the kernel.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer. The clock always exists, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Has every running thread of this process pass a full memory barrier: some 12 µs if one runs. `false` where the
/// system has no such call, or forbids it.
pub(crate) fn membarrier() -> bool {
    let call = |command: libc::c_int| {
        // SAFETY: no memory is involved.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    // The first call of a process, and of a forked child, is refused: it has to register.
    call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        || (call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
}

/// Writes `pieces`, one after the other, from `offset` of a file on, in one call. Returns the bytes written.
pub(crate) fn write_pieces(file: &File, pieces: &[&[u8]], offset: u64) -> io::Result<usize> {
    let vectors: Vec<libc::iovec> = pieces
        .iter()
        .map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() })
        .collect();
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the vectors name memory that is borrowed for as long as this takes, and that is only read.
    let written =
        unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as libc::c_int, offset) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Makes sure that a file has `bytes` bytes, and a place on the disk for them where the file system can promise that.
pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    if len == 0 {
        return Ok(());
    }
    // SAFETY: no memory is involved.
    let reserved = until_uninterrupted(|| unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) });
    match reserved {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            if file.metadata()?.len() < bytes {
                file.set_len(bytes)
            } else {
                Ok(())
            }
        }
        reserved => reserved,
    }
}

/// What a system call that returned a number below 0 failed with.
pub(crate) fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a system call again as long as signals interrupt it.
fn until_uninterrupted(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    while call() != 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// Has reads and writes of an open file pass the system's cache by, where the file system allows it.
pub(crate) fn set_direct(file: &File) -> io::Result<()> {
    // SAFETY: no memory is involved, and the descriptor is the file's own.
    let set = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        flags >= 0 && libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) == 0
    };
    if set { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The user that this process acts as.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: no memory is involved, and the call cannot fail.
    unsafe { libc::geteuid() }
}

/// The size of the pages that the system maps memory in.
pub(crate) fn system_page_bytes() -> usize {
    // SAFETY: no memory is involved; this name is always known.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The machine's nodes with memory, and the distances between them, row by row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MachineNodes {
    pub(crate) ids: Vec<usize>,
    pub(crate) distances: Vec<u8>,
}

/// The system's description of its nodes; `None` if it makes no sense.
pub(crate) fn machine_nodes() -> Option<MachineNodes> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/devices/system/node/{name}")).ok();
    let numbers = |name: &str| -> Option<Vec<usize>> {
        Some(list(&read(name)?)?.into_iter().map(|id| id as usize).collect())
    };
    let (online, ids) = (numbers("online")?, numbers("has_memory")?);
    let mut distances = Vec::new();
    for from in &ids {
        let row = read(&format!("node{from}/distance"))?;
        // A column for each node that is online.
        let row: Vec<u8> = row.split_whitespace().map(|n| n.parse().ok()).collect::<Option<_>>()?;
        for to in &ids {
            distances.push(*row.get(online.iter().position(|id| id == to)?)?);
        }
    }
    (!ids.is_empty()).then_some(MachineNodes { ids, distances })
}

/// `0-3,8,10-11`, as in a `cpulist`.
pub(crate) fn list(text: &str) -> Option<Vec<u32>> {
    const MOST: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if last < first || numbers.len() + (last - first) as usize >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The CPU that this thread runs on, and its node; both may have changed by the time that the caller looks.
pub(crate) fn cpu_and_node() -> Option<(usize, usize)> {
    let (mut cpu, mut node) = (0_u32, 0_u32);
    // SAFETY: two valid places for the answer; the third argument is not used any more.
    let failed = unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, &mut node, ptr::null_mut::<u8>()) };
    (failed == 0).then_some((cpu as usize, node as usize))
}

// ---- memory --------------------------------------------------------------------------------------------

/// Private zeroed memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes before and after it that no thread can touch.
    guard: usize,
    made: Generation,
}

// SAFETY: an address range that no other code unmaps; who may use which part is its users' affair.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The half of a word that the kernel compares: it knows words of 32 bits only.
fn futex(word: &AtomicU64) -> *const u32 {
    let half = if cfg!(target_endian = "big") { 1 } else { 0 };
    word.as_ptr().cast_const().cast::<u32>().wrapping_add(half)
}

/// Sleeps until [`wake_one`] is called on `word`, if it holds `expected`, a number below 2^32; or less long.
pub(crate) fn wait_on(word: &AtomicU64, expected: u64) {
    // SAFETY: the kernel reads the word, which lives as long as the borrow, and no time limit.
    unsafe {
        let forever = ptr::null::<libc::timespec>();
        // Not private: an arena's memory may be that of several processes.
        libc::syscall(libc::SYS_futex, futex(word), libc::FUTEX_WAIT, expected as u32, forever);
    }
}

/// Wakes one thread that sleeps on `word`, if any does.
pub(crate) fn wake_one(word: &AtomicU64) {
    // SAFETY: the kernel uses the address as a name only.
    unsafe { libc::syscall(libc::SYS_futex, futex(word), libc::FUTEX_WAKE, 1) };
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Mapping {
    /// `bytes` of zeroes at a multiple of `align`, a power of two: reserved now, committed page by page as they
    /// are touched. `bytes` must not be 0.
    pub(crate) fn lazy(bytes: usize, align: usize) -> io::Result<Self> {
        Self::reserve(bytes, align, 0)
    }

    /// Like [`lazy`](Self::lazy), between two pages that no thread can touch.
    pub(crate) fn guarded(bytes: usize, align: usize) -> io::Result<Self> {
        Self::reserve(bytes, align, system_page_bytes())
    }

    fn reserve(bytes: usize, align: usize, guard: usize) -> io::Result<Self> {
        debug_assert!(bytes > 0 && align.is_power_of_two());
        let page = system_page_bytes();
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let bytes = bytes.checked_next_multiple_of(page).ok_or_else(too_large)?;
        // The kernel aligns to pages only: ask for more, then cut off both ends.
        let slack = align.saturating_sub(page);
        let asked = bytes.checked_add(slack + 2 * guard);
        let asked = asked.filter(|&n| isize::try_from(n).is_ok()).ok_or_else(too_large)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let all = unsafe { map(ptr::null_mut(), asked, READ_WRITE, ANONYMOUS | libc::MAP_NORESERVE) }?;
        // SAFETY: inside the mapping.
        let before = unsafe { all.add(guard) }.align_offset(align);
        // SAFETY: both ends are in the mapping just made, and no thread has seen it yet.
        unsafe {
            unmap(all, before);
            unmap(all.add(before + 2 * guard + bytes), slack - before);
            let start = all.add(before + guard);
            let mapping = Self { start, bytes, guard, made: Generation::now() };
            for place in [start.sub(guard), start.add(bytes)].into_iter().filter(|_| guard > 0) {
                check(libc::mprotect(place.as_ptr().cast(), guard, libc::PROT_NONE))?;
            }
            Ok(mapping)
        }
    }

    /// `bytes` of zeroes in pages of `page` bytes, 2 MiB or 1 GiB, from the system's pool, at a multiple of `align`.
    /// `bytes` must be a multiple of `page`, and not 0. They are set aside in the pool now, so that a later touch
    /// cannot fail; unless the memory is bound to a node ([`bind`](Self::bind)): the pool promises a number of pages of
    /// the machine, not of each node. See [`populate`](Self::populate).
    pub(crate) fn hugetlb(bytes: usize, align: usize, page: usize) -> io::Result<Self> {
        let size = (page.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT;
        let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_HUGETLB | size;
        loop {
            // Aligned ranges are found by reserving one and letting it go: the pool may hold not one page more
            // than needed, so that asking for more and cutting off is no way.
            let place = Self::lazy(bytes, align.max(page))?.start();
            // SAFETY: `NOREPLACE` leaves alone what another thread has put there since.
            match unsafe { map(place.as_ptr(), bytes, READ_WRITE, flags) } {
                Ok(start) if start == place => {
                    return Ok(Self { start, bytes, guard: 0, made: Generation::now() });
                }
                // Before Linux 4.17 the address is only a wish.
                // SAFETY: a mapping that was made just now.
                Ok(elsewhere) => unsafe { unmap(elsewhere, bytes) },
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps the memory out of children of this process. They have no use for it, need not copy its page tables, and
    /// direct I/O on memory that is shared with a child may corrupt it (open(2), `O_DIRECT`). The range stays taken
    /// there: it reads as zeroes in a child, or, where the kernel does not offer that (pages of hugetlb), a touch is a
    /// fault.
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: advice that does not change what the memory holds here.
        let advise = |advice| check(unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) });
        if advise(libc::MADV_WIPEONFORK).is_err() {
            let mut duties = forks::hold();
            advise(libc::MADV_DONTFORK)?;
            duties.fill(self.start.as_ptr() as usize, self.bytes);
        }
        Ok(())
    }

    /// Has the system commit all pages now, as if each were written to.
    pub(crate) fn populate(&self) -> io::Result<()> {
        // SAFETY: it does not change what the memory holds.
        if unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // Linux before 5.14: one touch for each page.
        for page in (0..self.bytes).step_by(system_page_bytes()) {
            // SAFETY: inside the mapping. An atomic addition of nothing changes nothing, also if other code uses the
            // page.
            unsafe {
                self.start.add(page).cast::<core::sync::atomic::AtomicU8>().as_ref().fetch_add(0, Relaxed)
            };
        }
        Ok(())
    }

    /// Keeps the memory from being swapped out: all pages are committed now, and stay.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: it does not change what the memory holds.
        check(unsafe { libc::mlock(self.start.as_ptr().cast(), self.bytes) })
    }

    /// How many pages that a part of the range reaches into are in memory. The part begins with a page.
    pub(crate) fn resident(&self, offset: usize, bytes: usize) -> usize {
        debug_assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        let mut pages = vec![0_u8; bytes.div_ceil(system_page_bytes())];
        // SAFETY: a part of our own mapping; the list has a byte for each of its pages.
        let failed =
            unsafe { libc::mincore(self.start.as_ptr().add(offset).cast(), bytes, pages.as_mut_ptr()) };
        if failed == 0 { pages.iter().filter(|&&page| page & 1 == 1).count() } else { 0 }
    }

    /// Gives a part of the memory back to the system: it reads as zeroes from now on. Whether it did.
    ///
    /// # Safety
    /// No code uses it during the call, or relies on what it held.
    pub(crate) unsafe fn give_back(&self, offset: usize, bytes: usize) -> bool {
        debug_assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: a part of our own private mapping, and the caller's by its promise.
        unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), bytes, libc::MADV_DONTNEED) == 0 }
    }

    /// Asks for huge pages where the range has room for them.
    pub(crate) fn advise_huge(&self) -> io::Result<()> {
        // SAFETY: advice on our own mapping; it does not change what the memory holds.
        check(unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_HUGEPAGE) })
    }

    /// Gives the memory back to the system: it reads as zeroes from now on. No code uses it during the call.
    pub(crate) fn forget(&mut self) {
        // SAFETY: our own private mapping, and no thread has a borrow of it. Anonymous memory that was given back is
        // zero at the next touch; the call cannot fail for a range that is mapped.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED) };
    }

    /// Has the system take the pages of a part of the range from one of the machine's nodes. Pages that are
    /// there already stay where they are.
    pub(crate) fn bind(&self, offset: usize, bytes: usize, node: usize) -> io::Result<()> {
        self.set_policy(offset, bytes, libc::MPOL_BIND, &[node])
    }

    /// Like [`bind`](Self::bind), by a policy (`MPOL_…`) for several nodes.
    pub(crate) fn set_policy(
        &self,
        offset: usize,
        bytes: usize,
        mode: i32,
        nodes: &[usize],
    ) -> io::Result<()> {
        debug_assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        const BITS: usize = usize::BITS as usize;
        let mut mask = [0_usize; 1024 / BITS];
        for node in nodes {
            *mask.get_mut(node / BITS).ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % BITS);
        }
        // SAFETY: the range is ours, and where its pages come from does not change what they hold; the mask is
        // as long as is said.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr().add(offset),
                bytes,
                mode,
                mask.as_ptr(),
                mask.len() * BITS,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A child's references to the memory may be alive, and lead to other memory that came to be there.
        if self.made.is_over() {
            return;
        }
        forks::hold().end_fill(self.start.as_ptr() as usize);
        // SAFETY: the range is ours, and all that borrowed from it is gone.
        unsafe { unmap(self.start.sub(self.guard), self.bytes + 2 * self.guard) };
    }
}

/// # Safety
/// With `MAP_FIXED` in `flags`, the caller owns the range that is replaced.
unsafe fn map(at: *mut u8, bytes: usize, protection: i32, flags: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: by the caller's promise nothing in use is replaced.
    let start = unsafe { libc::mmap(at.cast(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// # Safety
/// The caller owns the range, and it is not used any more.
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: by the caller's promise. It fails only for a malformed range, which `lazy` does not make.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The policy of a mapping's first page.
    pub(crate) fn policy(mapping: &Mapping) -> io::Result<i32> {
        let mut mode = -1_i32;
        // `MPOL_F_ADDR`, which the crate `libc` lacks.
        let (none, flag) = (ptr::null_mut::<usize>(), 2);
        // SAFETY: a valid place for the answer, and none for a mask.
        let failed = unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, none, 0, mapping.start.as_ptr(), flag)
        };
        if failed == 0 { Ok(mode) } else { Err(io::Error::last_os_error()) }
    }

    #[test]
    fn lists_of_nodes_and_cpus() {
        assert_eq!(list("0\n"), Some(vec![0]));
        assert_eq!(list("0-2,5,8-9\n"), Some(vec![0, 1, 2, 5, 8, 9]));
        assert_eq!(list("\n"), Some(vec![]));
        assert_eq!((list("none"), list("3-1"), list("0-99999")), (None, None, None));
    }

    #[test]
    fn a_mapping_is_aligned_zeroed_and_writable() {
        for align in [1, 4096, 2 << 20, 4 << 20] {
            let mapping = Mapping::lazy(5000, align).unwrap();
            assert_eq!(mapping.start().as_ptr() as usize % align, 0);
            assert_eq!(mapping.bytes() % system_page_bytes(), 0);
            let end = mapping.bytes() - 1;
            // SAFETY: inside the mapping, which no other code uses.
            unsafe {
                assert_eq!(mapping.start().add(end).read(), 0);
                mapping.start().add(end).write(7);
                assert_eq!(mapping.start().add(end).read(), 7);
            }
        }
    }

    #[test]
    fn a_mapping_too_large_for_the_address_space_is_an_error() {
        assert!(Mapping::lazy(usize::MAX, 4096).is_err());
        assert!(Mapping::lazy(isize::MAX as usize, 4 << 20).is_err());
        assert!(Mapping::lazy(1 << 60, 4096).is_err());
    }

    /// Where the system's pages are larger than ours, a zone may end inside one.
    #[test]
    fn a_part_of_a_page_counts_as_a_page() {
        let page = system_page_bytes();
        let mapping = Mapping::lazy(2 * page, page).unwrap();
        mapping.populate().unwrap();
        assert_eq!(mapping.resident(0, page + 1), 2);
    }

    /// The system refuses to cut a mapping in two where a process has too many.
    #[test]
    fn memory_is_guarded_and_kept_from_children_or_refused() {
        // SAFETY: a child, in which no thread beside it needs a mapping, makes system calls, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(std::panic::catch_unwind(with_many_mappings).unwrap_or(100));
            }
            let mut status = -1;
            assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
        }
    }

    fn with_many_mappings() -> i32 {
        let page = system_page_bytes();
        let outer = Mapping::lazy(3 * page, page).unwrap();
        // SAFETY: one-page mappings that nothing uses, a child that ends, and a pipe: the system can read the guard
        // pages, or cannot.
        unsafe {
            let made = Generation::now();
            let inner = Mapping { start: outer.start.add(page), bytes: page, guard: 0, made };
            let mut some = [ptr::null_mut(); 16];
            for n in 0.. {
                // Neighbours that differ, so that each is one of its own.
                let protection = if n % 2 == 0 { libc::PROT_NONE } else { libc::PROT_READ };
                let at = libc::mmap(ptr::null_mut(), 1, protection, ANONYMOUS, -1, 0);
                if at == libc::MAP_FAILED {
                    break;
                }
                some[n % some.len()] = at;
                if n == 200_000 {
                    // The limit is beyond what a test should reach.
                    return 0;
                }
            }
            let _refused = inner.keep_from_children();
            core::mem::forget(inner);
            let guarded = some.into_iter().find_map(|at| {
                libc::munmap(at, 1);
                Mapping::guarded(page, page).ok()
            });
            let guarded = guarded.unwrap();
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let guards = [guarded.start.sub(page), guarded.start.add(page)];
            let is_open = guards.iter().any(|guard| libc::write(pipe[1], guard.as_ptr().cast(), 1) == 1);
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            i32::from(is_open) | i32::from(status != 0) << 1
        }
    }

    /// Pages of hugetlb, where the machine has a pool, and shared memory in their place, which the kernel does not wipe
    /// on a fork, either. In a child the range is taken, and a touch is a fault.
    #[test]
    fn memory_that_the_kernel_does_not_wipe_is_a_taken_hole_in_a_child() {
        let bytes = 64 << 20;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let start = unsafe { map(ptr::null_mut(), bytes, READ_WRITE, flags) }.unwrap();
        let shared = Mapping { start, bytes, guard: 0, made: Generation::now() };
        is_a_taken_hole_in_a_child(&shared);
        if let Ok(huge) = Mapping::hugetlb(4 << 20, 2 << 20, 2 << 20) {
            is_a_taken_hole_in_a_child(&huge);
        }
    }

    fn is_a_taken_hole_in_a_child(mapping: &Mapping) {
        let (start, bytes) = (mapping.start, mapping.bytes);
        mapping.keep_from_children().unwrap();
        let range = start.as_ptr() as usize..start.as_ptr() as usize + bytes;
        // SAFETY: a child makes system calls, reads memory of its own, and ends.
        let in_a_child = |touches: bool| unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                if touches {
                    libc::_exit(i32::from(start.as_ptr().read_volatile()));
                }
                // More than the range, in pieces, and the range itself by name.
                let free = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let hits = (0..200).any(|_| {
                    let place = libc::mmap(ptr::null_mut(), 1 << 20, libc::PROT_NONE, free, -1, 0);
                    range.contains(&(place as usize))
                });
                let at = start.as_ptr().cast();
                let named = libc::mmap(at, bytes, libc::PROT_NONE, free | libc::MAP_FIXED_NOREPLACE, -1, 0);
                libc::_exit(i32::from(hits) | i32::from(named != libc::MAP_FAILED) << 1);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
        };
        assert_eq!((in_a_child(false), in_a_child(true)), (0, -libc::SIGSEGV));
        // SAFETY: the mapping, which nothing else uses.
        assert_eq!(unsafe { start.read_volatile() }, 0, "the parent's memory stays");
    }

    /// A signal is no reason to refuse a swap file.
    #[test]
    fn an_interrupted_call_is_made_again() {
        for (errors, ended) in [
            (&[libc::EINTR, libc::EINTR, 0][..], None),
            (&[libc::EINTR, libc::ENOSPC], Some(libc::ENOSPC)),
            (&[0], None),
        ] {
            let mut left = errors.iter();
            let call = || {
                let error = *left.next().expect("it has ended");
                // SAFETY: the thread's own.
                unsafe { *libc::__errno_location() = error };
                if error == 0 { 0 } else { -1 }
            };
            let result = super::until_uninterrupted(call);
            assert_eq!(result.err().and_then(|error| error.raw_os_error()), ended);
            assert_eq!(left.next(), None);
        }
    }
}
