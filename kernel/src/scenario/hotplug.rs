//! CPUs go and come back.

use framewright::{Migratetype, Order};

use crate::kernel::Kernel;
use crate::percpu::{self, State};
use crate::{log, smp};

/// Every CPU but the first: it fills its lists, stops (which empties them), starts again and allocates. Twice, for
/// what is left behind by the first time.
pub(super) fn cpus(kernel: &'static Kernel) {
    for _ in 0..2 {
        smp::everywhere(kernel, usize::MAX, &|_| {
            let pfn = kernel.alloc(Order::ZERO, Migratetype::Movable).expect("one page");
            kernel.free(pfn, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
        });
        for own in kernel.online().skip(1) {
            let cpu = own.number();
            let held = |cpu| -> u32 {
                kernel.pages.zones().iter().map(|zone| kernel.pages.pcp(zone.id(), cpu).count()).sum()
            };
            let before = held(cpu);
            smp::stop(kernel, cpu);
            assert_eq!((own.state(), held(cpu)), (State::Off, 0), "{cpu:?} left pages on its lists");
            log!("smpboot: {cpu:?} is now offline; it gave back {before} pages");
            smp::start(kernel, cpu);
            log!("smpboot: {cpu:?} on {:?} is online", own.node());
        }
        let all = kernel.pages.cpus();
        assert_eq!(kernel.online().count(), all, "a CPU is missing");
        assert!((0..all).all(|cpu| percpu::of(framewright::CpuId(cpu as u16)).is_some()));
    }
}
