//! The allocator's clients: page tables that grow and go, and object caches that all CPUs use together.
#![expect(unsafe_code, reason = "pages are mapped and objects are written to")]

use core::ptr::{self, NonNull};

use framewright::{CpuId, Migratetype, Order, Pfn};

use super::support::Rng;
use crate::cache::ObjectCache;
use crate::kernel::Kernel;
use crate::paging::PAGE;
use crate::{log, paging, smp};

/// Address at which pages are mapped for a while.
const SCRATCH: u64 = 0xffff_b000_0000_0000;
const PAGES: u64 = 2000;
/// Sizes of objects, and orders of the slabs that hold them.
const CACHES: [(usize, u8); 3] = [(64, 0), (192, 0), (1024, 3)];
const OBJECTS: usize = 400;
const STEPS: usize = 4000;

pub(super) fn run(kernel: &'static Kernel) {
    map_and_unmap(kernel);
    object_caches(kernel);
}

/// Maps pages a page table apart from each other, so that each needs one of its own; writes through the new
/// addresses, reads through the old.
fn map_and_unmap(kernel: &'static Kernel) {
    let tables = core::cell::Cell::new(0_u64);
    let address = |n: u64| SCRATCH + n * 3 * PAGE;
    for n in 0..PAGES {
        let page = kernel.alloc(Order::ZERO, Migratetype::Movable).unwrap_or_else(|error| panic!("{error}"));
        let mut table = || {
            let page = kernel.page_table();
            keep(kernel, page, tables.get());
            tables.set(page.0);
            page
        };
        // SAFETY: no other code maps anything there; the page is ours.
        unsafe {
            paging::map(address(n), page, false, &mut table);
            ptr::with_exposed_provenance_mut::<u64>(address(n) as usize).write(n ^ page.0);
        }
    }
    for n in 0..PAGES {
        // SAFETY: mapped above, and no other code uses it.
        let page = unsafe { paging::unmap(address(n)) };
        // SAFETY: the page is still ours.
        let found = unsafe { crate::kernel::memory(page).cast::<u64>().read() };
        assert_eq!(found, n ^ page.0, "what was written at {:#x} is not at {page:?}", address(n));
        kernel.free(page, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
    }
    let used = paging::prune(SCRATCH);
    let mut freed = 0;
    let mut at = tables.get();
    while at != 0 {
        let page = Pfn(at);
        at = kept(kernel, page);
        kernel.free(page, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
        freed += 1;
    }
    assert!(used && freed > 10, "the tables were the kernel's own");
    log!("client: {PAGES} pages mapped and unmapped through {freed} page tables");
}

/// Chains a table that is in use: its own slot is free for that.
fn keep(kernel: &Kernel, page: Pfn, next: u64) {
    // SAFETY: the page is ours.
    unsafe { kernel.pages.frames().with_user(page, |slot| slot.mark = next) };
}

fn kept(kernel: &Kernel, page: Pfn) -> u64 {
    // SAFETY: the page is ours.
    unsafe { kernel.pages.frames().with_user(page, |slot| slot.mark) }.unwrap_or(0)
}

/// Every CPU allocates and frees objects of all caches at random, writes to each and checks what it wrote.
fn object_caches(kernel: &'static Kernel) {
    let cache = |(size, order): (usize, u8)| {
        ObjectCache::new(kernel, size, Order::new(order).expect("it is below 11"))
    };
    let caches = CACHES.map(cache);
    smp::everywhere(kernel, usize::MAX, &|cpu| use_caches(cpu, &caches));
    for (cache, (size, _)) in caches.iter().zip(CACHES) {
        assert_eq!(cache.in_use(), (0, 0), "slabs of {size} bytes are left");
    }
    log!(
        "client: {} objects in slabs of {:?} a page block, on all CPUs",
        STEPS,
        caches.map(|c| c.per_slab())
    );
}

fn use_caches(cpu: CpuId, caches: &[ObjectCache]) {
    let mut rng = Rng::new(u64::from(cpu.0) + 77);
    let mut held: [Option<(NonNull<u8>, usize, u64)>; OBJECTS] = [None; OBJECTS];
    let give_back = |object: NonNull<u8>, which: usize, value: u64| {
        let words = object.cast::<u64>();
        let last = CACHES[which].0 / 8 - 1;
        // SAFETY: the object is ours, and as large as its cache says.
        let found = unsafe { (words.read(), words.add(last).read()) };
        assert_eq!(found, (value, value), "an object was written to by somebody else");
        // SAFETY: ours, and not used any more.
        unsafe { caches[which].free(object) }.unwrap_or_else(|error| panic!("{error}"));
    };
    for _ in 0..STEPS {
        let place = &mut held[rng.below(OBJECTS as u64) as usize];
        if let Some((object, which, value)) = place.take() {
            give_back(object, which, value);
            continue;
        }
        let which = rng.below(caches.len() as u64) as usize;
        let object = caches[which].alloc().unwrap_or_else(|error| panic!("{error}"));
        let value = rng.next();
        let last = CACHES[which].0 / 8 - 1;
        // SAFETY: as above.
        unsafe {
            object.cast::<u64>().write(value);
            object.cast::<u64>().add(last).write(value);
        }
        *place = Some((object, which, value));
    }
    for (object, which, value) in held.into_iter().flatten() {
        give_back(object, which, value);
    }
}
