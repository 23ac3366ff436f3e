//! Topology and caches by the instruction `cpuid`, for systems without sysfs. Nothing on processors other than x86-64.

#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::__cpuid_count;

/// The leaves that describe caches: Intel's, and AMD's of the same form.
#[cfg(target_arch = "x86_64")]
const CACHES: [u32; 2] = [4, 0x8000_001d];

/// Size of the cache of this level that holds data, in KiB.
#[cfg(target_arch = "x86_64")]
pub(super) fn cache_kib(level: u32) -> Option<f64> {
    let highest = |first: u32| __cpuid_count(first, 0).eax;
    for leaf in CACHES.into_iter().filter(|leaf| *leaf <= highest(leaf & 0x8000_0000)) {
        for index in 0..8 {
            let leaf_data = __cpuid_count(leaf, index);
            // 1 is a cache of data, 3 one of both.
            if ![1, 3].contains(&(leaf_data.eax & 0x1f)) || leaf_data.eax >> 5 & 7 != level {
                continue;
            }
            let (line, parts, ways) =
                ((leaf_data.ebx & 0xfff) + 1, (leaf_data.ebx >> 12 & 0x3ff) + 1, (leaf_data.ebx >> 22) + 1);
            let sets = u64::from(leaf_data.ecx) + 1;
            return Some((u64::from(line) * u64::from(parts) * u64::from(ways) * sets) as f64 / 1024.0);
        }
    }
    None
}

/// Logical CPUs of a core.
#[cfg(target_arch = "x86_64")]
pub(super) fn threads_per_core() -> Option<usize> {
    if __cpuid_count(0, 0).eax < 0xb {
        return None;
    }
    let leaf_data = __cpuid_count(0xb, 0);
    // 1 is the level of threads.
    (leaf_data.ecx >> 8 & 0xff == 1)
        .then_some((leaf_data.ebx & 0xffff) as usize)
        .filter(|threads| *threads > 0)
}

/// Name of the hypervisor.
#[cfg(target_arch = "x86_64")]
pub(super) fn hypervisor() -> Option<String> {
    if __cpuid_count(1, 0).ecx >> 31 == 0 {
        return None;
    }
    let leaf_data = __cpuid_count(0x4000_0000, 0);
    let bytes: Vec<u8> =
        [leaf_data.ebx, leaf_data.ecx, leaf_data.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    let name: String = bytes.iter().map(|byte| char::from(*byte)).filter(char::is_ascii_graphic).collect();
    Some(if name.is_empty() { "a hypervisor".to_owned() } else { name })
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn cache_kib(_: u32) -> Option<f64> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn threads_per_core() -> Option<usize> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn hypervisor() -> Option<String> {
    None
}
