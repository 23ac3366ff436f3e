//! An operation that refilled or drained lists.

use core::fmt;

/// An operation that refilled or drained lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of the operation.
    pub op: u64,
    /// CPU that it ran on.
    pub cpu: u16,
    /// Pages that went from the zone to the lists.
    pub refilled: u64,
    /// Pages that went back.
    pub drained: u64,
    /// Pages on the CPU's lists afterwards.
    pub count: u32,
    /// `high` of these lists afterwards.
    pub high: u32,
    /// A number that depends on all frames handed out so far: see [`Frames`].
    pub frames: u32,
}

impl Step {
    /// Whether two kernels did the same, whichever frames they handed out.
    pub(crate) fn moves_as(&self, second: &Self) -> bool {
        Self { frames: second.frames, ..*self } == *second
    }
}

/// Digest of what was handed out: FNV-1a over the frames, a word at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames(pub(crate) u32);

impl Default for Frames {
    fn default() -> Self {
        Self(2_166_136_261)
    }
}

impl Frames {
    /// Adds a block by its first frame, counted from where the kernel counts.
    pub(crate) const fn add(&mut self, frame: u64) {
        self.0 = (self.0 ^ frame as u32).wrapping_mul(16_777_619);
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, cpu, refilled, drained, count, high, frames: _ } = self;
        write!(
            f,
            "operation {op} on CPU {cpu} refilled {refilled} and drained {drained} pages, {count} on the lists, high {high}"
        )
    }
}
