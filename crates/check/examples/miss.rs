//! Which functions an order-0 allocation that misses passes, and a free that drains, in a build that inlines none:
//!
//! ```text
//! cargo build -p framewright-check --example miss
//! valgrind --tool=callgrind --callgrind-out-file=miss.out --collect-atstart=no --toggle-collect=one_alloc \
//!     target/debug/examples/miss alloc
//! grep -ohE '^c?fn=\([0-9]+\) .*' miss.out | grep framewright | sed 's/^[^ ]* //' | sort -u | wc -l
//! ```
//! For the free `one_free` and `free`. Closures and what the compiler generates for a type count, too.
#![expect(unsafe_code, reason = "memory for the allocator's own structures; functions called by name")]

use core::ptr::NonNull;

use framewright::platform::{Metal, PinnedTo};
use framewright::{
    Allocator, Config, Cpu, CpuId, Memory, Migratetype, NodeId, Order, Pfn, Plan, ZoneId, ZoneSpec, ZoneType,
};

const ZONES: [ZoneSpec; 1] =
    [ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(1 << 18), pages: 256 << 10 }];
/// With several CPUs the zone has several sections.
const CPUS: [NodeId; 4] = [NodeId(0); 4];
/// Allocated before.
const HELD: usize = 20_000;

#[unsafe(no_mangle)]
#[inline(never)]
fn one_alloc(cpu: &Cpu<'_, '_, Metal>) -> Pfn {
    cpu.alloc(Order::ZERO, Migratetype::Movable).expect("most of the memory is free")
}

#[unsafe(no_mangle)]
#[inline(never)]
fn one_free(cpu: &Cpu<'_, '_, Metal>, pfn: Pfn) {
    cpu.free(pfn, Order::ZERO).expect("it is allocated");
}

/// Allocates until the list is empty; then either allocates, or frees what was allocated, first block first, up to the
/// drain. Calls [`one_free`] for the free with number `at`. Returns the number of the free that drained.
fn run(frees: bool, at: usize) -> usize {
    let plan = Plan::new(&ZONES, &CPUS, &Config::default()).expect("a plan");
    let layout = plan.layout::<Metal, ()>().expect("a layout");
    // SAFETY: the layout is not empty; zeroed memory that nothing else uses, and that is never given back.
    let memory =
        unsafe { Memory::carve(&plan, NonNull::new(std::alloc::alloc_zeroed(layout)).expect("memory")) };
    let allocator = Allocator::new(&ZONES, &CPUS, Config::default(), memory, None).expect("an allocator");
    allocator.add_memory(ZONES[0].start, ZONES[0].pages).expect("its memory");
    allocator.resize_pcps();
    // SAFETY: this thread alone has the allocator.
    let pin = unsafe { PinnedTo::new(CpuId(0)) };
    let cpu = allocator.cpu(&pin);
    let mut held: Vec<Pfn> =
        (0..HELD).map(|_| cpu.alloc(Order::ZERO, Migratetype::Movable).expect("memory")).collect();
    held.extend(core::iter::from_fn(|| cpu.alloc_hit(Order::ZERO, Migratetype::Movable)));
    if !frees {
        one_alloc(&cpu);
        return 0;
    }
    let drains = || allocator.pcp(ZoneId(0), CpuId(0)).events().drains;
    let before = drains();
    for (n, &pfn) in held.iter().enumerate() {
        if n == at {
            one_free(&cpu, pfn);
        } else {
            cpu.free(pfn, Order::ZERO).expect("it is allocated");
        }
        if drains() != before {
            return n;
        }
    }
    panic!("no free has drained the list");
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("alloc") => {
            run(false, 0);
        }
        Some("free") => {
            let drains = run(true, usize::MAX);
            assert_eq!(run(true, drains), drains, "the second run is the first one again");
        }
        _ => eprintln!("usage: miss alloc|free"),
    }
}
