//! Mistakes that must fail the run with a reason. None of these returns.
#![expect(unsafe_code, reason = "these do on purpose what must not be done")]

use core::hint::black_box;
use core::ptr;

use framewright::{Migratetype, Order};

use crate::kernel::{Kernel, Page};
use crate::paging::FRAMES;
use crate::smp;

pub(super) fn page_fault(_: &'static Kernel) {
    // SAFETY: none: page 0 is not mapped, and the processor reports it.
    unsafe { ptr::without_provenance_mut::<u64>(black_box(0x18)).write_volatile(1) };
}

fn run_off_the_stack() {
    fn deeper(n: u64) -> u64 {
        let room = black_box([n; 64]);
        if n == 0 { room[0] } else { deeper(n - 1) + room[1] }
    }
    black_box(deeper(black_box(1000)));
}

pub(super) fn stack_overflow(kernel: &'static Kernel) {
    smp::beside(kernel, usize::MAX, &|_| run_off_the_stack(), || ());
}

pub(super) fn boot_stack_overflow(_: &'static Kernel) {
    run_off_the_stack();
}

pub(super) fn double_free(kernel: &'static Kernel) {
    let pfn = kernel.alloc(Order::ZERO, Migratetype::Movable).expect("one page");
    for _ in 0..2 {
        kernel.free(pfn, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
    }
}

pub(super) fn corruption(kernel: &'static Kernel) {
    let order = Order::new(1).expect("it is below 11");
    let pfn = kernel.alloc(order, Migratetype::Movable).expect("two pages");
    kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
    let at =
        FRAMES as usize + (pfn.0 as usize + 1) * size_of::<framewright::Frame<crate::metal::Metal, Page>>();
    // SAFETY: none: a wild write into the descriptor of another owner's page. `verify` finds it.
    unsafe { ptr::with_exposed_provenance_mut::<u64>(at).write(u64::MAX) };
}
