//! Filling long runs of memory with zeroes, past the caches.
//!
//! Boot clears gigabytes of frame descriptors and looks at few of them soon. An ordinary store first reads the line
//! that it will overwrite; a streaming store does not, and leaves the caches to others. In runs of 64 KiB to 1 MiB,
//! which is what a worker clears at a time, it moved two to three times as much as `memset`, which itself streams only
//! in far longer runs.
#![expect(unsafe_code, reason = "the memory comes as an address")]

/// From this many bytes on, lines are streamed: the least run of descriptors that boot clears is a pageblock's.
#[cfg(target_arch = "x86_64")]
const STREAMED: usize = 4096;

/// Makes `bytes` from `start` on zero.
///
/// # Safety
/// The memory is valid for writes, and no other thread touches it at the same time.
pub(crate) unsafe fn clear(start: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAMED {
        let before = start.align_offset(64);
        let lines = (bytes - before) / 64;
        let after = bytes - before - lines * 64;
        // SAFETY: three parts of the caller's memory; the second is whole, aligned lines.
        unsafe {
            start.write_bytes(0, before);
            stream(start.add(before), lines);
            start.add(bytes - after).write_bytes(0, after);
        }
        return;
    }
    // SAFETY: by the caller's promise.
    unsafe { start.write_bytes(0, bytes) };
}

/// # Safety
/// As [`clear`], of `lines` lines of 64 bytes from a multiple of 64 on.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(start: *mut u8, lines: usize) {
    use core::arch::x86_64::_mm_sfence;

    // SAFETY: by the caller's promise; wide stores only where the processor has them.
    unsafe {
        if std::is_x86_feature_detected!("avx") {
            stream_wide(start, lines);
        } else {
            stream_narrow(start, lines);
        }
        // Streaming stores are not waited for: the thread that publishes the memory does so after this.
        _mm_sfence();
    }
}

/// # Safety
/// As [`stream`], and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream_wide(start: *mut u8, lines: usize) {
    use core::arch::x86_64::{__m256i, _mm256_setzero_si256, _mm256_stream_si256};

    let zero = _mm256_setzero_si256();
    for line in 0..lines {
        // SAFETY: inside the caller's memory, at a multiple of 32.
        unsafe {
            let at = start.add(line * 64).cast::<__m256i>();
            _mm256_stream_si256(at, zero);
            _mm256_stream_si256(at.add(1), zero);
        }
    }
}

/// # Safety
/// As [`stream`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_narrow(start: *mut u8, lines: usize) {
    use core::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_stream_si128};

    // SAFETY: every processor of this architecture has SSE2.
    let zero = unsafe { _mm_setzero_si128() };
    for line in 0..lines {
        // SAFETY: inside the caller's memory, at multiples of 16.
        unsafe {
            let at = start.add(line * 64).cast::<__m128i>();
            for part in 0..4 {
                _mm_stream_si128(at.add(part), zero);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_bytes_asked_for_are_cleared() {
        let mut memory = vec![0xaa_u8; 3 * STREAMED];
        for offset in [0, 1, 15, 16, 63, 64, 100] {
            for bytes in [0, 1, 63, 64, 4095, STREAMED, STREAMED + 1, STREAMED + 64 + 7, 2 * STREAMED] {
                memory.fill(0xaa);
                // SAFETY: inside the vector.
                unsafe { clear(memory.as_mut_ptr().add(offset), bytes) };
                let wrong = memory.iter().enumerate().find(|(at, byte)| {
                    **byte != if (offset..offset + bytes).contains(at) { 0 } else { 0xaa }
                });
                assert_eq!(wrong, None, "{bytes} bytes at {offset}");
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_widths_clear_whole_lines() {
        #[repr(align(64))]
        struct Lines([u8; 256]);
        let mut lines = Lines([0xaa; 256]);
        // SAFETY: two lines inside the array.
        unsafe { stream_narrow(lines.0.as_mut_ptr().add(64), 2) };
        assert!(lines.0[64..192].iter().all(|byte| *byte == 0));
        assert!(lines.0[..64].iter().chain(&lines.0[192..]).all(|byte| *byte == 0xaa));
        if std::is_x86_feature_detected!("avx") {
            // SAFETY: the last line, and the processor has AVX.
            unsafe { stream_wide(lines.0.as_mut_ptr().add(192), 1) };
            assert!(lines.0[192..].iter().all(|byte| *byte == 0) && lines.0[63] == 0xaa);
        }
    }
}
