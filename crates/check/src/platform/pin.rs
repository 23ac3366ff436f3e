//! The pin that all checking platforms share.

use core::cell::Cell;
use core::marker::PhantomData;

use framewright::platform::PinnedCpu;
use framewright::units::CpuId;

/// A CPU that belongs to the owner of this value.
///
/// It can be sent to another thread but not copied, cloned or shared, so that the borrow checker keeps
/// the contract of [`PinnedCpu`]: its owner is alone on its CPU, and moving a value to another
/// thread is itself an edge of happens-before.
#[derive(Debug)]
pub struct OwnedPin {
    cpu: CpuId,
    /// A `Cell` may be sent but not shared between threads.
    not_sync: PhantomData<Cell<()>>,
}

impl OwnedPin {
    /// The pin of `cpu`.
    ///
    /// # Safety
    /// No other pin of the same CPU is used with the same allocator as long as this one lives.
    #[expect(unsafe_code, reason = "the caller vouches for uniqueness")]
    pub const unsafe fn new(cpu: CpuId) -> Self {
        Self { cpu, not_sync: PhantomData }
    }
}

// SAFETY: by the contract of `new` there is one pin per CPU, and as it is neither `Clone` nor `Sync`, one
// thread at a time uses it; handing it over synchronises.
#[expect(unsafe_code, reason = "see above")]
unsafe impl PinnedCpu for OwnedPin {
    #[inline]
    fn cpu(&self) -> CpuId {
        self.cpu
    }
}
