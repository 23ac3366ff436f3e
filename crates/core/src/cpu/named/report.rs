//! Free page reporting: a hook is told of each large free block, once until it is allocated again. The hook may belong
//! to a hypervisor, which takes the memory from its guest (Linux: `page_reporting`, virtio-balloon), or to a system
//! that unmaps it.

use crate::cpu::Cpu;
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId};
use crate::zone::Zone;

/// Most blocks in one call of a hook. They are out of use during the call. Linux: 32.
pub const REPORTED_AT_ONCE: usize = 32;

/// Blocks that hooks were told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reported {
    /// Number of blocks.
    pub blocks: u64,
    /// Base pages in them.
    pub pages: u64,
}

/// Blocks that are taken to be reported. They are freed when this is dropped, also by a panic.
struct Unreported<'c, 'a, 'm, P: Platform, M: FrameUser> {
    cpu: &'c Cpu<'a, 'm, P, M>,
    zone: ZoneId,
    blocks: [(Pfn, Order); REPORTED_AT_ONCE],
    len: usize,
    /// Whether the hook was called, and has not refused.
    told: bool,
}

impl<P: Platform, M: FrameUser> Drop for Unreported<'_, '_, '_, P, M> {
    fn drop(&mut self) {
        let local = self.cpu.local(self.zone);
        for &(pfn, order) in &self.blocks[..self.len] {
            if self.cpu.allocator.config.poison {
                self.cpu.fill_freed(pfn, order);
            }
            local.under_lock(pfn, |buddy| buddy.put_reported(pfn, order, self.told));
        }
    }
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Tells `hook` of free blocks of at least `order`, at most [`REPORTED_AT_ONCE`] in a call, that it was not told of
    /// since they were last allocated. The smallest blocks that can be reported are pageblocks, of order 9. Returns the
    /// number of blocks and pages.
    ///
    /// The blocks are allocated while the hook runs, with no lock held, and free again when it returns. If it returns
    /// `false`, or panics, they count as not reported, and the call ends. Blocks on CPUs' lists are not free. Nothing
    /// is taken from a zone that is near its low mark. With poisoning, blocks are filled again after the hook. Without
    /// [`Config::free_reporting`](crate::Config::free_reporting) the call does nothing.
    ///
    /// To be called from time to time, by one CPU at a time. O(pageblocks), and the lock of a zone for each block.
    pub fn report_free(&self, order: Order, mut hook: impl FnMut(&[(Pfn, Order)]) -> bool) -> Reported {
        let mut all = Reported::default();
        let least = order.max(PAGEBLOCK_ORDER);
        if self.allocator.config.free_reporting {
            let mut zones = self.allocator.zones.iter();
            let _all_told = zones.all(|zone| self.report_zone(zone, least, &mut hook, &mut all));
        }
        all
    }

    /// Reports the blocks of one zone. Returns whether the hook wants more.
    fn report_zone(
        &self,
        zone: &Zone<P>,
        least: Order,
        hook: &mut impl FnMut(&[(Pfn, Order)]) -> bool,
        all: &mut Reported,
    ) -> bool {
        let frames = &self.allocator.frames;
        self.allocator.touch(zone.spec().start, zone.spec().end());
        let mut at = zone.spec().start;
        while at < zone.spec().end() {
            let none = [(Pfn(0), Order::ZERO); REPORTED_AT_ONCE];
            let mut taken = Unreported { cpu: self, zone: zone.id(), blocks: none, len: 0, told: false };
            while at < zone.spec().end() && taken.len < REPORTED_AT_ONCE {
                let start = at;
                at = at.add(PAGEBLOCK_PAGES);
                let info = frames.info(start);
                // Read without the lock, and checked again with it.
                if !info.is_present() || info.is_reported() || is_low(zone) {
                    continue;
                }
                let (head, State::Free { order, .. }) = frames.find(start) else { continue };
                if order < least {
                    continue;
                }
                let block = self.local(zone.id()).under_lock(head, |buddy| {
                    let (pfn, order) = buddy.take_unreported(head, least)?;
                    frames.set_tiles(pfn..pfn.add(order.pages()), Migratetype::Unmovable);
                    Some((pfn, order))
                });
                if let Some(block) = block {
                    taken.blocks[taken.len] = block;
                    taken.len += 1;
                }
            }
            let blocks = &taken.blocks[..taken.len];
            if blocks.is_empty() {
                continue;
            }
            if !hook(blocks) {
                return false;
            }
            all.blocks += blocks.len() as u64;
            all.pages += blocks.iter().map(|(_, order)| order.pages()).sum::<u64>();
            taken.told = true;
        }
        true
    }
}

/// Whether a zone is so short of memory that a request could fail while its blocks are being reported.
fn is_low<P: Platform>(zone: &Zone<P>) -> bool {
    zone.free_pages() < zone.marks().low + MAX_ORDER.pages()
}
