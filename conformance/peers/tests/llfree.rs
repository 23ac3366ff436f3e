//! `Alloc` of LLFree on Framewright. A request's local reservation is a CPU; classes of trees have no counterpart but
//! the small and the huge one, which blocks' orders tell apart.

#[path = "world.rs"]
mod world;
pub mod thread {
    pub use llfree::util::parallel;
    /// Their tests name four cores; a machine may have fewer.
    pub fn pin(_core: usize) {}
}
use framewright::{Migratetype, Order, Pfn};
use llfree::{Alloc, Class, Classing, Error, FrameId, HUGE_ORDER, Init, MetaData, MetaSize, Request, Result};
use llfree::{Stats, TreeStats};
use std::fmt;
use world::World;

pub struct Framewright<'a> {
    world: World,
    /// Kept for the test, which frees it.
    meta: Option<MetaData<'a>>,
}

impl fmt::Debug for Framewright<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.world.allocator(), f)
    }
}

impl Framewright<'_> {
    fn pages(request: Request) -> u64 {
        1 << request.order
    }
}

impl<'a> Alloc<'a> for Framewright<'a> {
    fn name() -> &'static str {
        "Framewright"
    }

    fn new(frames: usize, init: Init, _: &Classing, meta: MetaData<'a>) -> Result<Self> {
        let world = World::new(0..frames as u64).map_err(|_| Error::Initialization)?;
        world.add(0..frames as u64).map_err(|_| Error::Initialization)?;
        match init {
            Init::FreeAll => {}
            Init::AllocAll => {
                let huge = 1 << HUGE_ORDER;
                while world.block(0, huge, huge).is_some() {}
            }
            // No state outlives the allocator.
            _ => return Err(Error::Initialization),
        }
        Ok(Self { world, meta: Some(meta) })
    }

    fn metadata_size(_: &Classing, _: usize) -> MetaSize {
        MetaSize { local: 64, trees: 64, lower: 64 }
    }

    unsafe fn metadata(&mut self) -> MetaData<'a> {
        self.meta.take().expect("asked for once")
    }

    fn get(&self, frame: Option<FrameId>, request: Request) -> Result<(FrameId, Class)> {
        let cpu = request.local.unwrap_or(0);
        let got = match frame {
            Some(FrameId(pfn)) => {
                let order = Order::new(request.order as u8).ok_or(Error::Argument)?;
                self.world.get(cpu, |cpu| cpu.alloc_at(Pfn(pfn as u64), order)).ok().map(|()| pfn as u64)
            }
            None => match Order::new(request.order as u8) {
                Some(order) => {
                    self.world.get(cpu, |cpu| cpu.alloc(order, Migratetype::Movable)).ok().map(|pfn| pfn.0)
                }
                None => self.world.block(cpu, Self::pages(request), Self::pages(request)),
            },
        };
        got.map(|pfn| (FrameId(pfn as usize), request.class)).ok_or(Error::Memory)
    }

    fn put(&self, frame: FrameId, request: Request) -> Result<()> {
        let cpu = request.local.unwrap_or(0);
        self.world.free(cpu, frame.0 as u64, Self::pages(request)).then_some(()).ok_or(Error::Argument)
    }

    fn frames(&self) -> usize {
        self.world.frames() as usize
    }

    fn tree_stats(&self) -> TreeStats {
        TreeStats { free_frames: self.world.free_frames() as usize, ..TreeStats::default() }
    }

    fn stats(&self) -> Stats {
        let huge = Order::new(HUGE_ORDER as u8).expect("an order");
        Stats {
            free_frames: self.world.free_frames() as usize,
            free_huge: self.world.free_blocks(huge) as usize,
            free_trees: 0,
        }
    }

    fn stats_at(&self, _: FrameId, _: usize) -> Stats {
        self.stats()
    }

    fn drain(&self) {
        self.world.drain();
    }

    fn validate(&self) {
        self.world.verify();
    }
}
