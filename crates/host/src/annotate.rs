//! Telling memory checkers whose memory is whose, with the feature `annotations`: what is in no block is out of bounds
//! for Valgrind's memcheck (on x86-64) and for AddressSanitizer, whichever the program runs under. Without the feature,
//! and under neither, nothing happens.
//!
//! A block is accessible from when it is handed out until it is freed through an [`Cpu`](crate::Cpu), a
//! [`SharedArena`](crate::SharedArena) or a block that frees itself. What a reclaimer gives back stays accessible until
//! it is handed out again. Arenas that fill freed memory themselves (poisoning, zeroes), that boot from a firmware's
//! map, or that a [`FileCache`](crate::FileCache) uses tell nothing. With the feature, no hit is inlined in C, and each
//! call looks whether a checker is there.
#![expect(
    unsafe_code,
    reason = "checkers are told by an instruction sequence and by functions found at run time"
)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use framewright::reclaim::{Migrate, Migrated};
use framewright::{Migratetype, Order, Pfn};

/// Whether the feature is on.
const BUILT: bool = cfg!(feature = "annotations");

/// The memory of an arena whose owners checkers are told. All of it is accessible again when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Annotated(Option<Active>);

#[derive(Debug)]
struct Active {
    place: Place,
    on: AtomicBool,
}

/// Addresses of frames.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: NonNull<u8>,
    bytes: usize,
    first: Pfn,
    shift: u32,
}

// SAFETY: an address that is only named.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    fn of(&self, pfn: Pfn, pages: u64) -> (*const u8, usize) {
        let offset = (pfn.0.wrapping_sub(self.first.0) as usize) << self.shift;
        (self.start.as_ptr().wrapping_add(offset), (pages as usize) << self.shift)
    }
}

impl Annotated {
    /// Nothing of this memory, where frames from `first` on are, has an owner yet.
    pub(crate) fn begin(start: NonNull<u8>, bytes: usize, first: Pfn, page_bytes: usize) -> Self {
        if !BUILT || !tools().any() {
            return Self(None);
        }
        let place = Place { start, bytes, first, shift: page_bytes.trailing_zeros() };
        tools().close(start.as_ptr(), bytes);
        Self(Some(Active { place, on: AtomicBool::new(true) }))
    }

    /// Says nothing more: all is accessible.
    pub(crate) fn end(&self) {
        if let Some(active) = &self.0
            && active.on.swap(false, Relaxed)
        {
            tools().open(active.place.start.as_ptr(), active.place.bytes);
        }
    }

    #[inline(always)]
    fn place(&self) -> Option<Place> {
        if !BUILT {
            return None;
        }
        self.0.as_ref().filter(|active| active.on.load(Relaxed)).map(|active| active.place)
    }

    /// Whether a checker is told.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.place().is_some()
    }

    /// These frames have an owner.
    #[inline(always)]
    pub(crate) fn open(&self, pfn: Pfn, pages: u64) {
        if let Some(place) = self.place() {
            let (start, bytes) = place.of(pfn, pages);
            tools().open(start, bytes);
        }
    }

    /// These frames have no owner.
    pub(crate) fn close(&self, pfn: Pfn, pages: u64) {
        if let Some(place) = self.place() {
            let (start, bytes) = place.of(pfn, pages);
            tools().close(start, bytes);
        }
    }

    /// A mover that tells checkers of what it moves.
    pub(crate) fn annotating(
        &self,
        migrate: Arc<dyn Migrate + Send + Sync>,
    ) -> Arc<dyn Migrate + Send + Sync> {
        match self.place() {
            Some(place) => Arc::new(Mover { migrate, place }),
            None => migrate,
        }
    }
}

impl Drop for Annotated {
    fn drop(&mut self) {
        self.end();
    }
}

struct Mover {
    migrate: Arc<dyn Migrate + Send + Sync>,
    place: Place,
}

// SAFETY: it does what the one inside does.
unsafe impl Migrate for Mover {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let open = self.place.of(to, order.pages());
        tools().open(open.0, open.1);
        // SAFETY: by the caller's promise.
        let done = unsafe { self.migrate.migrate(from, to, order) };
        let left = if done == Migrated::Moved { from } else { to };
        let close = self.place.of(left, order.pages());
        tools().close(close.0, close.1);
        done
    }

    fn can_move(&self, from: Pfn, order: Order, asked: Migratetype) -> bool {
        self.migrate.can_move(from, order, asked)
    }
}

// ---- checkers --------------------------------------------------------------------------------------------

type Poison = unsafe extern "C" fn(*const u8, usize);

/// Checker of this process.
struct Tools {
    valgrind: bool,
    /// AddressSanitizer's functions that close and open memory.
    asan: Option<(Poison, Poison)>,
}

fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let find = |name: &core::ffi::CStr| {
            // SAFETY: a look-up by name among what the program has loaded.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: the sanitizer's public interface gives these functions this type.
            (!found.is_null()).then(|| unsafe { core::mem::transmute::<*mut libc::c_void, Poison>(found) })
        };
        let asan = find(c"__asan_poison_memory_region").zip(find(c"__asan_unpoison_memory_region"));
        Tools { valgrind: request(RUNNING_ON_VALGRIND, core::ptr::null(), 0) > 0, asan }
    })
}

impl Tools {
    fn any(&self) -> bool {
        self.valgrind || self.asan.is_some()
    }

    fn close(&self, start: *const u8, bytes: usize) {
        if let Some((close, _)) = self.asan {
            // SAFETY: the memory is the arena's, and no thread uses it.
            unsafe { close(start, bytes) };
        }
        if self.valgrind {
            request(MAKE_MEM_NOACCESS, start, bytes);
        }
    }

    fn open(&self, start: *const u8, bytes: usize) {
        if let Some((_, open)) = self.asan {
            // SAFETY: the memory is the arena's.
            unsafe { open(start, bytes) };
        }
        if self.valgrind {
            // It holds what its last owner left, at first zeroes: that may be read.
            request(MAKE_MEM_DEFINED, start, bytes);
        }
    }
}

// From Valgrind's manual, "The client request mechanism", and its headers' numbers: memcheck's begin with `MC`.
const RUNNING_ON_VALGRIND: usize = 0x1001;
const MAKE_MEM_NOACCESS: usize = 0x4d43_0000;
const MAKE_MEM_DEFINED: usize = 0x4d43_0002;

/// Asks Valgrind for something: rotations that leave a register as it is, and an exchange with itself, are its sign. 0
/// without it.
#[cfg(target_arch = "x86_64")]
fn request(what: usize, start: *const u8, bytes: usize) -> usize {
    let arguments = [what, start.addr(), bytes, 0, 0, 0];
    let mut result = 0_usize;
    // SAFETY: on a processor, the instructions change nothing but flags. Valgrind reads the arguments, and writes
    // `rdx`.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") arguments.as_ptr(),
            inout("rdx") result,
            options(nostack),
        );
    }
    core::hint::black_box(&arguments);
    core::mem::take(&mut result)
}

#[cfg(not(target_arch = "x86_64"))]
fn request(_: usize, _: *const u8, _: usize) -> usize {
    0
}
