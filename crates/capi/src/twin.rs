//! The hot pair in Rust, in the same library, so that one program can compare it with the one in C.
#![expect(unsafe_code, reason = "C passes pointers")]

use framewright_host::{Migratetype, Order};

use crate::handle::{cpu_of, fw_cpu};

/// Allocates and frees a page `pairs` times through the Rust interface. Returns how many succeeded.
///
/// # Safety
/// `cpu` is NULL or was a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_twin_pairs(cpu: *mut fw_cpu, pairs: u64) -> u64 {
    // SAFETY: by the caller's promise.
    let Ok(cpu) = (unsafe { cpu_of(cpu) }) else { return 0 };
    let mut done = 0;
    for _ in 0..pairs {
        let Ok(pfn) = cpu.alloc(Order::ZERO, Migratetype::Movable) else { continue };
        // SAFETY: allocated just now.
        done += u64::from(unsafe { cpu.free(core::hint::black_box(pfn), Order::ZERO) }.is_ok());
    }
    done
}
