//! Memory that a boot leaves for later, kept beside the allocator that borrows it.
#![expect(unsafe_code, reason = "what borrows lies beside what it borrows")]

use core::mem::MaybeUninit;
use core::ops::Range;
use core::slice;
use core::sync::atomic::AtomicU64;

use framewright::Pfn;
use framewright::defer::{Deferred, DeferredMemory, ZoneCursor};

use crate::platform::Host;

/// The deferral, and everything that it borrows. Vectors, so that they may move while they are borrowed.
pub(crate) struct DeferredInit {
    /// One.
    deferred: Vec<Deferred<'static, Host>>,
    _zones: Vec<MaybeUninit<ZoneCursor<'static, Host>>>,
    _slots: Vec<AtomicU64>,
    _free: Vec<Range<Pfn>>,
}

impl DeferredInit {
    /// A deferral of `zones` zones and `workers` workers: `make` gets its memory and the free ranges.
    pub(crate) fn new(
        zones: usize,
        workers: usize,
        free: Vec<Range<Pfn>>,
        make: impl FnOnce(DeferredMemory<'static, Host>, &'static [Range<Pfn>]) -> Deferred<'static, Host>,
    ) -> Self {
        let mut zones: Vec<_> = (0..zones).map(|_| MaybeUninit::uninit()).collect();
        let slots: Vec<AtomicU64> = (0..workers).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the vectors are kept beside the deferral, are not changed, and are dropped after it. Their
        // elements stay where they are when the vectors move.
        let (memory, all_free) = unsafe {
            let memory = DeferredMemory {
                zones: slice::from_raw_parts_mut(zones.as_mut_ptr(), zones.len()),
                slots: slice::from_raw_parts(slots.as_ptr(), slots.len()),
            };
            (memory, slice::from_raw_parts(free.as_ptr(), free.len()))
        };
        Self { deferred: vec![make(memory, all_free)], _zones: zones, _slots: slots, _free: free }
    }

    /// Address of the deferral, for as long as this is kept.
    pub(crate) fn deferred(&self) -> *const Deferred<'static, Host> {
        self.deferred.as_ptr()
    }
}
