//! An allocator with the features that it was compiled with: it allocates and frees, and refuses settings that need a
//! feature which is left out. A test of `xtask` runs this program once for each feature that is left out.
#![expect(unsafe_code, reason = "memory for the allocator's own structures")]

use core::ptr::NonNull;

use framewright::config::Engine;
use framewright::platform::OneCpu;
use framewright::{
    Allocator, Config, Memory, Migratetype, NodeId, Order, Pfn, Plan, SetupError, ZoneSpec, ZoneType,
};

const ZONES: [ZoneSpec; 1] =
    [ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 64 << 10 }];

fn make(config: Config) -> Result<Allocator<'static, OneCpu>, SetupError> {
    let plan = Plan::new(&ZONES, &[NodeId(0)], &config)?;
    let layout = plan.layout::<OneCpu, ()>()?;
    // SAFETY: the layout is not empty; zeroed memory that nothing else uses, and that is never given back.
    let memory =
        unsafe { Memory::carve(&plan, NonNull::new(std::alloc::alloc_zeroed(layout)).expect("memory")) };
    Allocator::new(&ZONES, &[NodeId(0)], config, memory, None)
}

/// A setting that needs a feature is refused without it.
fn needs(feature: &'static str, is_there: bool, config: Config) {
    let refused = make(config).err();
    assert_eq!(refused, (!is_there).then_some(SetupError::NeedsFeature(feature)), "{feature}");
}

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

fn main() {
    needs("engines", cfg!(feature = "engines"), Config { engine: Engine::Linux, ..Config::default() });
    needs("engines", cfg!(feature = "engines"), Config { engine: Engine::Compact, ..Config::default() });
    needs("passes", cfg!(feature = "passes"), Config { keep_marks: true, ..Config::default() });

    let mut config = Config::default();
    config.experiment.section_pages = 16 << 10;
    let allocator = make(config).expect("the default needs no feature");
    #[cfg(not(feature = "boot"))]
    let mut allocator = allocator;
    #[cfg(not(feature = "boot"))]
    assert_eq!(allocator.defer(), "absent");
    assert_eq!(allocator.zones()[0].sections(), if cfg!(feature = "sections") { 4 } else { 1 });
    allocator.add_memory(ZONES[0].start, ZONES[0].pages).expect("the zone's memory");
    allocator.resize_pcps();
    let cpu = allocator.cpu(&OneCpu);
    for order in [Order::ZERO, Order::new(3).expect("an order"), Order::new(10).expect("an order")] {
        let mut held = Vec::new();
        let error = loop {
            match cpu.alloc(order, Migratetype::Movable) {
                Ok(pfn) => held.push(pfn),
                Err(error) => break error,
            }
        };
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(held.len() as u64, ZONES[0].pages / order.pages());
        for &pfn in &held {
            cpu.free(pfn, order).expect("it is allocated");
            assert!(cpu.free(pfn, order).is_err(), "a double free");
        }
    }
    cpu.drain();
    assert_eq!(allocator.verify().expect("sound").free, ZONES[0].pages);
}
