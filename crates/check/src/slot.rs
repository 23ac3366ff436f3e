//! The slot that frames of tests have: one type for all tests of a platform, so that the allocator is compiled once for
//! them.

use core::cell::Cell;

use framewright::frame::{FrameUser, Zeroable};

/// A frame's slot. Its number says what a check of the frame finds: nothing, but for three of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot(pub u64);

impl Slot {
    /// That of a frame which is as it should be.
    pub const GOOD: Self = Self(0);
    /// That of a bad frame.
    pub const BAD: Self = Self(u64::MAX);
    /// That of a frame which is bad once this thread has said [`go_bad`].
    pub const GOES_BAD: Self = Self(u64::MAX - 1);
    /// That of a frame whose check panics.
    pub const PANICS: Self = Self(u64::MAX - 2);

    /// That of a bad frame, or of a good one.
    pub const fn bad(is_bad: bool) -> Self {
        if is_bad { Self::BAD } else { Self::GOOD }
    }
}

std::thread_local! {
    static CHECKS: Cell<u64> = const { Cell::new(0) };
    static HAS_GONE_BAD: Cell<bool> = const { Cell::new(false) };
}

/// Checks of slots by this thread so far.
pub fn checks() -> u64 {
    CHECKS.get()
}

/// Makes frames that go bad bad, or good again, for this thread.
pub fn go_bad(are_bad: bool) {
    HAS_GONE_BAD.set(are_bad);
}

impl FrameUser for Slot {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        CHECKS.set(CHECKS.get() + 1);
        assert_ne!(*self, Self::PANICS, "a check that panics");
        let is_bad = *self == Self::BAD || *self == Self::GOES_BAD && HAS_GONE_BAD.get();
        is_bad.then_some("bad")
    }
}

// SAFETY: a number.
#[expect(unsafe_code, reason = "a number may have all bytes zero")]
unsafe impl Zeroable for Slot {}
