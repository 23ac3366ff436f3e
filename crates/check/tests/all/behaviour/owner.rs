//! Owner of the memory that a scenario allocates: gives it back when asked, moves it, and notes each question.

use core::cell::{Cell, RefCell};

use framewright_check::prelude::*;

use crate::behaviour::record::Trail;
use crate::behaviour::world::CPUS;

/// A block in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) block: Block,
    pub(crate) kind: Migratetype,
}

/// Owner of all blocks of a world.
pub(crate) struct Owner<'w, M: FrameUser> {
    pub(crate) world: &'w World<Checked, M>,
    pub(crate) live: RefCell<Vec<Held>>,
    pub(crate) trail: RefCell<&'w mut Trail>,
    /// Nodes whose background reclaim was woken.
    pub(crate) woken: RefCell<Vec<NodeId>>,
    /// Victims that are left.
    pub(crate) victims: Cell<u32>,
    /// The CPU that is at work.
    pub(crate) busy: Cell<usize>,
}

impl<'w, M: FrameUser> Owner<'w, M> {
    pub(crate) fn new(world: &'w World<Checked, M>, trail: &'w mut Trail) -> Self {
        Self {
            world,
            live: RefCell::default(),
            trail: RefCell::new(trail),
            woken: RefCell::default(),
            victims: Cell::new(3),
            busy: Cell::new(0),
        }
    }

    fn note(&self, value: &dyn core::fmt::Debug) {
        self.trail.borrow_mut().note(value);
    }

    pub(crate) fn keep(&self, pfn: Pfn, order: Order, kind: Migratetype) {
        self.live.borrow_mut().push(Held { block: Block { pfn, order }, kind });
    }

    fn zone_of(&self, pfn: Pfn) -> ZoneId {
        self.world.allocator().frames().info(pfn).zone()
    }
}

/// Pages that reclaim may not free: every fifth is dirty, every seventh mapped.
fn is_dirty(pfn: Pfn) -> bool {
    pfn.0.is_multiple_of(5)
}

fn is_mapped(pfn: Pfn) -> bool {
    pfn.0.is_multiple_of(7)
}

impl<M: FrameUser> Reclaim for Owner<'_, M> {
    #[expect(unsafe_code, reason = "a reclaimer vouches for what it frees")]
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.note(ask);
        let mut done = Reclaimed::default();
        let mut live = self.live.borrow_mut();
        let most = (live.len() as u64 >> ask.priority).clamp(32, 256);
        live.retain(|held| {
            let Held { block: Block { pfn, order }, kind } = *held;
            if kind != Migratetype::Movable || !ask.wants(pfn) || done.scanned >= most {
                return true;
            }
            done.scanned += order.pages();
            if done.freed >= ask.target
                || (is_dirty(pfn) && !ask.may_write)
                || (is_mapped(pfn) && !ask.may_unmap)
                || (is_dirty(pfn) && !ask.may_wait && ask.priority > 6)
            {
                return true;
            }
            // SAFETY: nothing is behind these frames: no memory is at stake.
            let freed = unsafe { to.free(pfn, order) };
            done.freed += if freed.is_ok() { order.pages() } else { 0 };
            freed.is_err()
        });
        drop(live);
        let ours = core::ptr::from_ref(self.world.allocator()).cast::<()>();
        self.note(&(done, to.freed(), to.cpu(), to.allocator() == ours));
        done
    }

    #[expect(unsafe_code, reason = "a reclaimer vouches for what it frees")]
    fn shrink(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.note(&(ask.by, ask.zone, ask.priority, "shrink"));
        let mut live = self.live.borrow_mut();
        let Some(n) = live.iter().position(|held| held.kind == Migratetype::Reclaimable) else {
            return Reclaimed { scanned: 1, freed: 0 };
        };
        let Block { pfn, order } = live.remove(n).block;
        // SAFETY: as above.
        let freed = unsafe { to.free(pfn, order) };
        Reclaimed { scanned: 2, freed: if freed.is_ok() { order.pages() } else { 0 } }
    }

    fn reclaimable(&self, zone: ZoneId) -> Reclaimable {
        let mut held = Reclaimable::default();
        for &Held { block: Block { pfn, order }, kind } in &*self.live.borrow() {
            if self.zone_of(pfn) != zone {
                continue;
            }
            let pages = order.pages();
            match kind {
                Migratetype::Movable => {
                    held.file_lru += pages;
                    held.file += pages;
                    held.file_mapped += if is_mapped(pfn) { pages } else { 0 };
                    held.file_dirty += if is_dirty(pfn) { pages } else { 0 };
                }
                Migratetype::Reclaimable => held.slab += pages,
                _ => {}
            }
        }
        self.note(&(zone, "asked what there is"));
        held
    }

    fn wait_if_congested(&self, zone: ZoneId, ms: u32) {
        self.note(&(zone, ms, "waited"));
    }

    fn wake_flushers(&self, pages: u64) {
        self.note(&(pages, "flushed"));
    }

    fn kill(&self) -> bool {
        let left = self.victims.get();
        self.note(&(left, "kill"));
        if left == 0 {
            return false;
        }
        self.victims.set(left - 1);
        let mut live = self.live.borrow_mut();
        let from = live.len() / 2;
        let victims: Vec<Held> = live.drain(from..).collect();
        drop(live);
        // Another CPU: that one is at work.
        self.world.on((self.busy.get() + 1) % CPUS, |cpu| {
            for held in &victims {
                cpu.free(held.block.pfn, held.block.order).expect("it was owned");
            }
        });
        !victims.is_empty()
    }
}

#[expect(unsafe_code, reason = "a mover vouches for what it moves")]
// SAFETY: `live` has the blocks of this scenario, and no other thread is at work.
unsafe impl<M: FrameUser> Migrate for Owner<'_, M> {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        self.note(&(from, to, order, "move"));
        let mut live = self.live.borrow_mut();
        let found = live.iter_mut().find(|held| held.block == Block { pfn: from, order });
        match found.filter(|_| !from.0.is_multiple_of(11)) {
            Some(held) => {
                held.block.pfn = to;
                Migrated::Moved
            }
            None => Migrated::Stays,
        }
    }
}

impl<M: FrameUser> Background for Owner<'_, M> {
    fn wake(&self, node: NodeId) {
        self.note(&(node, "woken"));
        self.woken.borrow_mut().push(node);
    }
}
