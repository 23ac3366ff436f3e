//! What unit tests of policies and of their users share.

/// A small generator, so that long histories repeat exactly.
pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    /// The next number.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number, reduced to below `n`.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
