//! The entry point, and calls of the allocator that the linker must keep.
#![expect(unsafe_code, reason = "the entry point, and memory for the allocator's own structures")]

use core::alloc::Layout;
use core::hint::{black_box, spin_loop};
use core::ptr::NonNull;

#[cfg(feature = "smp")]
use framewright::platform::Metal as Here;
#[cfg(not(feature = "smp"))]
use framewright::platform::OneCpu as Here;
use framewright::{
    Allocator, Config, Cpu, Memory, Migratetype, NodeId, Order, Pfn, Plan, ZoneSpec, ZoneType,
};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        spin_loop();
    }
}

/// The short way of `docs/porting.md`. A kernel stops where a step fails.
fn allocator(
    zones: &[ZoneSpec],
    nodes: &'static [NodeId],
    early: fn(Layout) -> NonNull<u8>,
) -> Option<Allocator<'static, Here>> {
    let config = Config::default();
    let plan = Plan::new(zones, nodes, &config).ok()?;
    let room = early(plan.layout::<Here, ()>().ok()?);
    // SAFETY: the memory is zeroed, as large as the plan says, and reached from nowhere else.
    let memory = unsafe { Memory::carve(&plan, room) };
    let allocator = Allocator::new(zones, nodes, config, memory, None).ok()?;
    for zone in zones {
        allocator.add_memory(zone.start, zone.pages).ok()?;
    }
    allocator.resize_pcps();
    Some(allocator)
}

/// An allocation through one CPU's view.
#[inline(never)]
fn alloc(cpu: &Cpu<'_, '_, Here>, order: u8) -> Option<Pfn> {
    cpu.alloc(Order::new(order)?, Migratetype::Movable).ok()
}

#[inline(never)]
fn free(cpu: &Cpu<'_, '_, Here>, pfn: Pfn, order: u8) -> bool {
    Order::new(order).is_some_and(|order| cpu.free(pfn, order).is_ok())
}

#[cfg(feature = "smp")]
#[inline(never)]
fn more(cpu: &Cpu<'_, '_, Here>) {
    use framewright::{AllocError, Helpers, Request};
    let _: Result<Pfn, AllocError> = black_box(
        cpu.alloc_with(black_box(&Request::new(Order::ZERO, Migratetype::Movable)), &Helpers::NONE),
    );
    let mut out = [Pfn(0); 16];
    let got = cpu.alloc_bulk(Order::ZERO, Migratetype::Movable, &mut out);
    let _ = black_box(cpu.free_bulk(Order::ZERO, &out[..got]));
    cpu.drain();
    cpu.answer();
    cpu.allocator().request_drain();
}

#[cfg(feature = "all")]
#[inline(never)]
fn all(cpu: &Cpu<'_, '_, Here>, helpers: &framewright::Helpers<'_>) {
    use framewright::Request;
    use framewright::boot::early::Early;
    use framewright::boot::map::{Kind, MemoryMap};
    let _ = black_box(cpu.alloc_with(black_box(&Request::new(Order::ZERO, Migratetype::Movable)), helpers));
    let _ = black_box(cpu.alloc_contig_with(black_box(5000), 512, Migratetype::Movable, helpers));
    let mut runs = [const { Pfn(0)..Pfn(0) }; 16];
    let _ = black_box(cpu.alloc_runs(black_box(100), Migratetype::Movable, &mut runs));
    let _ = black_box(cpu.offline(black_box(Pfn(0)..Pfn(512))));
    let _ = black_box(cpu.allocator().online(black_box(Pfn(0)), 512));
    let _ = black_box(cpu.hwpoison(black_box(Pfn(7))));
    // SAFETY: it is never run.
    let _ = black_box(unsafe { cpu.free_range(black_box(Pfn(0)..Pfn(7))) });
    let _ = black_box(cpu.allocator().try_alloc(cpu.id(), Order::ZERO, Migratetype::Movable));
    let _ = black_box(cpu.allocator().try_free(black_box(Pfn(1)), Order::ZERO));
    let _ = black_box(cpu.allocator().verify());
    let mut map = MemoryMap::new(&mut [], &mut []);
    let _ = black_box(map.add(black_box(0), 4096, Kind::Usable));
    let _ = black_box(Early::new(map, &mut []).map());
}

/// The entry point.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let zones = [ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(1 << 18), pages: 1 << 18 }];
    let early: fn(Layout) -> NonNull<u8> = black_box(|_| NonNull::dangling());
    let zones = black_box(&zones[..]);
    if let Some(allocator) = allocator(zones, black_box(&[NodeId(0)]), early) {
        #[cfg(not(feature = "smp"))]
        let pin = Here;
        #[cfg(feature = "smp")]
        // SAFETY: it is never run.
        let pin = unsafe { framewright::platform::PinnedTo::new(framewright::CpuId(0)) };
        let cpu = allocator.cpu(&pin);
        if let Some(pfn) = alloc(&cpu, black_box(3)) {
            black_box(free(&cpu, pfn, 3));
        }
        #[cfg(feature = "smp")]
        more(&cpu);
        #[cfg(feature = "all")]
        all(&cpu, black_box(&framewright::Helpers::NONE));
    }
    loop {
        spin_loop();
    }
}
