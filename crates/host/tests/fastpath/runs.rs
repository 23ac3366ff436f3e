//! Cost of 256 frames in few runs, where half of the memory is free after random allocations and frees of single
//! frames.

use core::hint::black_box;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::alloc_zeroed;

use framewright_host::framewright::platform::{Metal, PinnedTo};
use framewright_host::framewright::{
    Allocator, Config, Cpu, CpuId, Memory, Migratetype, NodeId, Order, Pfn, Plan, ZoneSpec, ZoneType,
};

pub(crate) const FRAMES: u64 = 64 << 10;
pub(crate) const CALLS: u64 = 20;

#[unsafe(no_mangle)]
#[inline(never)]
fn few_runs(cpu: &Cpu<'_, '_, Metal>, out: &mut [Range<Pfn>]) -> usize {
    cpu.alloc_runs(256, Migratetype::Movable, out).len()
}

pub(crate) fn without_memory(zones: &[ZoneSpec], config: Config) -> Allocator<'static, Metal> {
    let plan = Plan::new(zones, &[NodeId(0)], &config).unwrap();
    // SAFETY: the layout has a size; the memory is zeroed, of that layout, and reached from nowhere else.
    let memory = unsafe {
        let room = NonNull::new(alloc_zeroed(plan.layout::<Metal, ()>().unwrap())).unwrap();
        Memory::carve(&plan, room)
    };
    Allocator::new(zones, &[NodeId(0)], config, memory, None).unwrap()
}

pub(crate) fn allocator(config: Config) -> Allocator<'static, Metal> {
    let zones = [ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(FRAMES), pages: FRAMES }];
    let allocator = without_memory(&zones, config);
    allocator.add_memory(zones[0].start, FRAMES).unwrap();
    allocator.resize_pcps();
    allocator
}

/// Runs of which each of [`CALLS`] calls is made, and those of as many single frames.
pub(crate) fn runs_and_singles() -> (usize, usize) {
    let allocator = allocator(Config::default());
    // SAFETY: this thread alone has the allocator.
    let pin = unsafe { PinnedTo::new(CpuId(0)) };
    let cpu = allocator.cpu(&pin);
    let get = || cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
    let put = |pfn| cpu.free(pfn, Order::ZERO).unwrap();
    let mut random = fastrand::Rng::with_seed(33);
    let mut held: Vec<Pfn> = (0..FRAMES).map(|_| get()).collect();
    for _ in 0..300_000 {
        if held.len() < FRAMES as usize && random.bool() {
            held.push(get());
        } else {
            put(held.swap_remove(random.usize(..held.len())));
        }
    }
    while held.len() > FRAMES as usize / 2 {
        put(held.swap_remove(random.usize(..held.len())));
    }
    cpu.drain();
    let mut out = vec![Pfn(0)..Pfn(0); 256];
    let mut runs = 0;
    for _ in 0..CALLS {
        let many = few_runs(black_box(&cpu), &mut out);
        runs += many;
        for pfn in out[..many].iter().flat_map(|run| run.start.0..run.end.0).map(Pfn) {
            held.push(pfn);
        }
        // As single frames from now on, others of which are freed: half of the memory stays in use.
        for run in &out[..many] {
            // SAFETY: the run is this caller's.
            unsafe { cpu.split_range(run.clone()).unwrap() };
        }
        (0..256).for_each(|_| put(held.swap_remove(random.usize(..held.len()))));
        cpu.drain();
    }
    let mut singles: Vec<Pfn> = (0..256).map(|_| get()).collect();
    singles.sort_unstable();
    let breaks = singles.windows(2).filter(|two| two[0].add(1) != two[1]).count();
    (runs, breaks + 1)
}
