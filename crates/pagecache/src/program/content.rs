//! Content of a program's files.

/// Content of a file from `offset` on, which is a multiple of 8: numbers that look random.
pub(super) fn content(name: u32, offset: u64, bytes: &mut [u8]) {
    for (word, n) in bytes.chunks_mut(8).zip(offset / 8..) {
        let n = (n ^ u64::from(name) << 40 ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word.copy_from_slice(&(n ^ n >> 31).to_le_bytes()[..word.len()]);
    }
}
