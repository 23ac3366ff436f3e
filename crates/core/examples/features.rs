//! An allocator with the features that it was compiled with: it allocates and frees, and refuses settings that need a
//! feature which is left out. A test of `xtask` runs this program once for each feature that is left out.
#![expect(unsafe_code, reason = "memory for the allocator's own structures")]

use core::ptr::NonNull;

#[cfg(feature = "settings")]
use framewright::CpuId;
#[cfg(feature = "settings")]
use framewright::config::{Engine, Experiment, LockKind};
use framewright::platform::OneCpu;
use framewright::{
    Allocator, Config, Cpu, Helpers, Memory, Migratetype, NodeId, Order, Pfn, Plan, SetupError, ZoneSpec,
    ZoneType,
};

/// The second one is tried first: it has the higher type.
const ZONES: [ZoneSpec; 2] = [
    ZoneSpec { node: NodeId(0), kind: ZoneType::Dma32, start: Pfn(0), pages: 16 << 10 },
    ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(16 << 10), pages: 64 << 10 },
];
const PAGES: u64 = 80 << 10;

fn make(config: Config) -> Result<Allocator<'static, OneCpu>, SetupError> {
    let plan = Plan::new(&ZONES, CPUS, &config)?;
    let layout = plan.layout::<OneCpu, ()>()?;
    // SAFETY: the layout is not empty; zeroed memory that nothing else uses, and that is never given back.
    let memory =
        unsafe { Memory::carve(&plan, NonNull::new(std::alloc::alloc_zeroed(layout)).expect("memory")) };
    Allocator::new(&ZONES, CPUS, config, memory, None)
}

const ONE: Order = Order::new(1).expect("an order");

/// Where there may be two CPUs, a zone has several sections. Only the first CPU makes calls.
const CPUS: &[NodeId] = if cfg!(feature = "smp") { &[NodeId(0); 2] } else { &[NodeId(0)] };

/// Without `settings` there are no presets. If there were one, a call would reach it, and not this method.
#[cfg(not(feature = "settings"))]
trait NoPresets: Sized {
    fn linux_v6_7() -> &'static str {
        "absent"
    }
}
#[cfg(not(feature = "settings"))]
impl NoPresets for Config {}

/// Without `boot` there is no [`Allocator::defer`]. If there were, a call would reach it, and not this method: the
/// program would not compile.
#[cfg(not(feature = "boot"))]
trait NoDefer: Sized {
    fn defer(&mut self) -> &'static str {
        "absent"
    }
}
#[cfg(not(feature = "boot"))]
impl NoDefer for Allocator<'static, OneCpu> {}

/// Random allocations and frees: no frame is handed out twice, and memory is had until there is none.
fn churn(cpu: &Cpu<'_, '_, OneCpu>) {
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    let mut used = vec![false; PAGES as usize];
    let mut random = 1_u64;
    for n in 0..200_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = (random >> 33) as usize;
        // Fills up and empties in turn.
        let allocates = draw % 16 < if n / 20_000 % 2 == 0 { 11 } else { 5 };
        if allocates || held.is_empty() {
            // Mostly small.
            let order = Order::new([0, 0, 0, 0, 1, 2, 3, 5, 6, 8, 9, 10][draw / 16 % 12]).expect("an order");
            let migratetype = Migratetype::ALL[draw / 256 % 3];
            let Ok(pfn) = cpu.alloc(order, migratetype) else { continue };
            assert!(pfn.is_aligned(order));
            for frame in &mut used[pfn.0 as usize..][..order.pages() as usize] {
                assert!(!core::mem::replace(frame, true), "{pfn:?} of {order:?} is handed out twice");
            }
            held.push((pfn, order));
        } else {
            let (pfn, order) = held.swap_remove(draw / 16 % held.len());
            used[pfn.0 as usize..][..order.pages() as usize].fill(false);
            assert!(
                cpu.free(pfn, if order == Order::ZERO { ONE } else { Order::ZERO }).is_err(),
                "{order:?}"
            );
            cpu.free(pfn, order).expect("it is allocated");
        }
        if n % 20_000 == 0 {
            let account = cpu.allocator().verify().expect("sound");
            assert_eq!(account.allocated, used.iter().filter(|&&used| used).count() as u64);
        }
    }
    held.into_iter().for_each(|(pfn, order)| cpu.free(pfn, order).expect("it is allocated"));
}

fn main() {
    #[cfg(feature = "settings")]
    {
        let marks = make(Config { keep_marks: true, ..Config::default() });
        let refused = (!cfg!(feature = "passes")).then_some(SetupError::NeedsFeature("passes"));
        assert_eq!(marks.err(), refused);
        for engine in [Engine::Linux, Engine::Compact] {
            assert!(make(Config { engine, ..Config::default() }).is_ok(), "{engine:?}");
        }
        for lock_kind in [LockKind::Ticket, LockKind::Queued, LockKind::Parking] {
            let experiment = Experiment { lock_kind, ..Experiment::default() };
            let allocator = make(Config { experiment, ..Config::default() }).expect("any lock");
            for zone in ZONES {
                allocator.add_memory(zone.start, zone.pages).expect("the zone's memory");
            }
            let block = allocator.try_alloc(CpuId(0), Order::ZERO, Migratetype::Movable);
            let freed = block.map(|block| allocator.try_free(block, Order::ZERO));
            assert_eq!(freed, Some(Ok(())), "no CPU holds the {lock_kind:?} lock");
        }
    }
    #[cfg(not(feature = "settings"))]
    assert_eq!(Config::linux_v6_7(), "absent");
    let two = Plan::new(&ZONES, &[NodeId(0); 2], &Config::default());
    assert_eq!(two.err(), (!cfg!(feature = "smp")).then_some(SetupError::CpuCount(2)));

    let allocator = make(Config::default()).expect("the default needs no feature");
    #[cfg(not(feature = "boot"))]
    let mut allocator = allocator;
    #[cfg(not(feature = "boot"))]
    assert_eq!(allocator.defer(), "absent");
    assert_eq!(allocator.zones()[1].sections(), if cfg!(feature = "smp") { 4 } else { 1 });
    for zone in ZONES {
        allocator.add_memory(zone.start, zone.pages).expect("the zone's memory");
    }
    allocator.resize_pcps();
    let cpu = allocator.cpu(&OneCpu);
    // Unless per-CPU lists are left out, a block that was freed is on the list and the next one handed out.
    let block = cpu.alloc(Order::ZERO, Migratetype::Unmovable).expect("memory");
    assert!(ZONES[1].spans(block));
    cpu.free(block, Order::ZERO).expect("it is allocated");
    assert_eq!(allocator.pcp_pages() > 0, cfg!(feature = "lists"));
    let retyped = allocator.set_pageblock_type(block, Migratetype::Cma);
    assert_eq!(retyped.is_some(), cfg!(feature = "mobility"));
    let again = allocator.set_pageblock_type(block, Migratetype::Movable);
    assert_eq!(again.is_some(), cfg!(feature = "mobility"));
    // While a pageblock is isolated, frees look at their pageblocks, if there are lists on which they could put blocks.
    assert_eq!(allocator.isolate_pageblock(block).is_some(), cfg!(feature = "mobility"));
    allocator.verify().expect("sound with an isolated pageblock");
    assert_eq!(allocator.unisolate_pageblock(block).is_some(), cfg!(feature = "mobility"));
    churn(&cpu);
    let range = cpu.alloc_contig_with(2048, 2048, Migratetype::Movable, &Helpers::NONE);
    assert_eq!(range.is_ok(), cfg!(feature = "mobility"), "{range:?}");
    if let Ok(range) = range {
        // SAFETY: it is this program's, and not used.
        unsafe { cpu.free_range(range) }.expect("it is allocated");
    }
    assert_eq!(cpu.hwpoison(block).is_ok(), cfg!(feature = "mobility"));
    assert_eq!(cpu.unpoison(block).is_ok(), cfg!(feature = "mobility"));
    for order in [Order::ZERO, Order::new(3).expect("an order"), Order::new(10).expect("an order")] {
        let mut held = Vec::new();
        let error = loop {
            match cpu.alloc(order, Migratetype::Movable) {
                Ok(pfn) => held.push(pfn),
                Err(error) => break error,
            }
        };
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(held.len() as u64, PAGES / order.pages());
        for &pfn in &held {
            cpu.free(pfn, order).expect("it is allocated");
            assert!(cpu.free(pfn, order).is_err(), "a double free");
        }
    }
    cpu.drain();
    assert_eq!(allocator.verify().expect("sound").free, PAGES);
}
