//! A bad page among free CMA pages, which a refill finds.
#![expect(unsafe_code, reason = "planting a bad page means writing a free page's slot")]

use framewright::config::PcpFixed;
use framewright_host::{Config, Migratetype, Order, Pfn};
use framewright_sim::world::StructPage;

use crate::{Descriptor, Subject};

/// The counter of free CMA pages less those that are free, after a refill from a CMA pageblock whose tenth page is bad.
///
/// # Errors
/// The configuration is refused, or the refill finds no page.
pub fn free_cma_drift(mut config: Config) -> Result<f64, Box<dyn core::error::Error>> {
    let frames = Order::new(10).map_or(0, Order::pages);
    // So small a zone would have lists of single pages; one refill is to bring the bad page, too.
    config.experiment.pcp_fixed = Some(PcpFixed { batch: 63, high: 378 });
    let Subject::Struct64(arena) = Subject::new(config, Descriptor::Struct64, frames, 1)? else {
        unreachable!("descriptors of 64 bytes were asked for");
    };
    let allocator = arena.allocator();
    for pageblock in [0, 512] {
        allocator.set_pageblock_type(Pfn(pageblock), Migratetype::Cma);
    }
    // The tenth page of what the first refill will take. No thread has attached yet, so none touches it.
    // SAFETY: the frame is free, and this thread alone knows the arena.
    unsafe { allocator.frames().with_user(Pfn(9), |page: &mut StructPage| page.refcount = 1) };
    let cpu = arena.attach()?;
    cpu.alloc(Order::ZERO, Migratetype::Movable)?;
    let zone = &allocator.zones()[0];
    Ok(zone.free_cma_pages() as f64 - zone.free_pages() as f64)
}
