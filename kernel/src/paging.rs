//! Page tables. All memory is mapped one to one (`entry.s`); other addresses are mapped here.
#![expect(unsafe_code, reason = "page tables decide what addresses mean")]

use core::ptr;

use framewright::Pfn;

use crate::arch;
use crate::lock::SpinLock;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a large page.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;
/// Address of the frame descriptors: that of frame `n` is at `n` times its size.
pub(crate) const FRAMES: u64 = 0xffff_ea00_0000_0000;
/// Address of the kernel stacks.
pub(crate) const STACKS: u64 = 0xffff_c900_0000_0000;
/// First address that is not mapped one to one.
pub(crate) const DIRECT_END: u64 = 512 << 30;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

unsafe extern "C" {
    static mut boot_pt: [u64; 512];
}

/// Source of page tables for new pages: frames of pages that read as zeroes.
pub(crate) type Tables<'a> = &'a mut dyn FnMut() -> Pfn;

static LOCK: SpinLock<()> = SpinLock::new(());

/// Address at which physical memory is mapped.
pub(crate) const fn direct(address: u64) -> *mut u8 {
    assert!(address < DIRECT_END);
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Unmaps page 0, so that a null pointer is noticed. What the loader put there has been read.
pub(crate) fn forget_page_0() {
    // SAFETY: one CPU runs; Rust has no object in page 0.
    unsafe { (&raw mut boot_pt).cast::<u64>().write(0) };
    arch::forget_page(0);
}

/// The entry for `address` in the table at `level` (3 is the root, 0 the last), tables made as needed.
///
/// # Safety
/// The lock is held, and no other code has the tables that `tables` gives.
unsafe fn entry(address: u64, level: u32, tables: Tables<'_>) -> *mut u64 {
    let mut table = arch::page_tables();
    for at in (level..=3).rev() {
        let index = (address >> (12 + 9 * at) & 511) as usize;
        // SAFETY: a page table is a page of 512 entries.
        let entry = unsafe { direct(table).cast::<u64>().add(index) };
        if at == level {
            return entry;
        }
        // SAFETY: as above, and the lock is held.
        unsafe {
            if *entry & PRESENT == 0 {
                *entry = (tables().0 * PAGE) | WRITABLE | PRESENT;
            }
            assert!(*entry & LARGE == 0, "{address:#x} lies in a larger page");
            table = *entry & ADDRESS;
        }
    }
    unreachable!("the loop ends at `level`")
}

/// Maps the page at `address` to `frame`: a large page if `large` is set, and `frame` is the first of one.
///
/// # Panics
/// Something is mapped there.
///
/// # Safety
/// The address is in none of the ranges that others use, the frames are the caller's, and what `tables`
/// gives is no other code's.
pub(crate) unsafe fn map(address: u64, frame: Pfn, large: bool, tables: Tables<'_>) {
    let _held = LOCK.lock();
    let (level, size) = if large { (1, LARGE | LARGE_PAGE) } else { (0, PAGE) };
    assert!(address.is_multiple_of(size & !LARGE) && (frame.0 * PAGE).is_multiple_of(size & !LARGE));
    // SAFETY: the lock is held; the rest by the caller's promise.
    unsafe {
        let entry = entry(address, level, tables);
        assert!(*entry & PRESENT == 0, "{address:#x} is mapped already");
        *entry = (frame.0 * PAGE) | (size & LARGE) | NO_EXECUTE | WRITABLE | PRESENT;
    }
}

/// Unmaps the page at `address` and returns its frame. Only this CPU forgets it: the caller knows that no other
/// CPU has used it, or has been reset since.
///
/// # Safety
/// No code uses the page any more.
pub(crate) unsafe fn unmap(address: u64) -> Pfn {
    let _held = LOCK.lock();
    // SAFETY: the lock is held; no table is made for what is mapped.
    let old = unsafe { entry(address, 0, &mut || panic!("{address:#x} is not mapped")).replace(0) };
    assert!(old & PRESENT != 0, "{address:#x} is not mapped");
    arch::forget_page(address);
    Pfn((old & ADDRESS) / PAGE)
}
