//! Background reclaim of a node: the work of the thread that is woken for it, or of a task in a simulation.
//!
//! ```text
//! loop {
//!     match allocator.background_sleep(node) {
//!         Some(asked) => { cpu.background(node, asked, &helpers); }
//!         None => sleep until Background::wake(node), or for any time
//!     }
//! }
//! ```

use super::Cpu;
use crate::alloc::Allocator;
use crate::config::PcpRule;
use crate::events::count;
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::policy::Generation;
use crate::policy::reclaim::{self as policy, Balance, CLUSTER, FIRST_PRIORITY, WAIT_PRIORITY};
use crate::policy::watermark::{self, Access};
use crate::reclaim::{BackgroundRequest, By, Helpers, Reclaim, ReclaimRequest, Reclaimed, Reclaiming};
use crate::units::{NodeId, Order, ZoneType};
use crate::zone::Zone;

/// Most zones of an allocator.
const MOST_ZONES: usize = u8::MAX as usize;
/// Rounds with progress after which the call returns, so that the caller can do other work.
const ROUNDS: u32 = 64;
/// Longest wait for a congested device.
const WAIT_MS: u32 = 100;

/// Result of a run of background reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackgroundOutcome {
    /// Pages scanned and freed.
    pub total: Reclaimed,
    /// Whether the node is balanced now. If not, and pages were freed, call again. If none were freed, another call
    /// helps only after some pages became free elsewhere.
    pub balanced: bool,
}

impl<P: Platform, M: FrameUser> Allocator<'_, P, M> {
    /// Takes the request for background reclaim of a node. If there is none, returns `None` and marks the caller as
    /// about to sleep: then the next CPU that requests reclaim calls
    /// [`Background::wake`](crate::reclaim::Background::wake). No wake-up is lost in between. One caller per node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn background_sleep(&self, node: NodeId) -> Option<BackgroundRequest> {
        self.node(node).wakeup.sleep()
    }

    /// Requests background reclaim of a node, like an allocation that finds a zone low. Returns whether the caller must
    /// wake the sleeping thread.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn background_wake(&self, node: NodeId, asked: BackgroundRequest) -> bool {
        self.node(node).wakeup.request(asked)
    }
}

/// Calls its function when it is dropped, also by a panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Parameters of one run.
struct NodeRun<'r> {
    node: NodeId,
    order: Order,
    highest: ZoneType,
    reclaimer: &'r dyn Reclaim,
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Reclaims until the node's zones up to `asked.highest` are balanced, or nothing more can be freed, or 64 rounds
    /// are over. On return the freed pages are on the buddy lists.
    pub fn background(
        &self,
        node: NodeId,
        asked: BackgroundRequest,
        helpers: &Helpers<'_>,
    ) -> BackgroundOutcome {
        let mut rest = BackgroundOutcome::default();
        let state = self.allocator.nodes().get(node.index());
        let (Some(reclaimer), Some(state)) = (helpers.reclaim, state) else { return rest };
        let Some(_here) = Reclaiming::<P>::enter(self.allocator.context(self.cpu)) else { return rest };
        let mut run = NodeRun { node, order: asked.order, highest: asked.highest, reclaimer };
        count(&state.events.pageoutrun, 1);
        let (mut boosts, mut had_memory) = ([0; MOST_ZONES], [false; MOST_ZONES]);
        for zone in self.on_node(&run) {
            (boosts[zone.id().index()], had_memory[zone.id().index()]) = (zone.pressure.boost(), true);
        }
        // During the run CPUs keep fewer pages on their lists (v6.1 and later).
        let set_active = |active: bool| {
            // A zone may have lost its last memory since.
            let covers =
                |zone: &&Zone<P>| zone.managed_pages() > 0 || !active && had_memory[zone.id().index()];
            for zone in self.zones_on(node, asked.highest).filter(covers) {
                if zone.pressure.set_reclaim_active(active) {
                    self.tell_pressure(zone);
                }
            }
        };
        let heeds = self.allocator.config.experiment.pcp_rule != PcpRule::V5_4;
        let _active = heeds.then(|| {
            set_active(true);
            OnDrop(|| set_active(false))
        });
        for _ in 0..ROUNDS {
            let (round, balanced) = self.balance_round(&run);
            rest.total += round;
            rest.balanced = balanced;
            if balanced {
                break;
            }
            if round.freed < CLUSTER {
                if run.order == Order::ZERO || self.allocator.config.experiment.reclaim == Generation::V6_1 {
                    break;
                }
                // The node is fragmented: go on until single pages are balanced.
                run.order = Order::ZERO;
            }
        }
        state.set_failures(if rest.total.freed > 0 || rest.balanced { 0 } else { state.failures() + 1 });
        // By number: a zone may have got its first memory since.
        for zone in self.on_node(&run) {
            let (pressure, seen) = (&zone.pressure, boosts[zone.id().index()]);
            if seen > 0 {
                // The reclaim has worked it off (v6.1).
                pressure.set_boost(pressure.boost().saturating_sub(seen));
            }
        }
        if rest.balanced {
            self.count_quick_hits(&run);
        }
        rest
    }

    /// The populated zones of the run, lowest first.
    fn on_node<'r>(&'r self, run: &NodeRun<'_>) -> impl Iterator<Item = &'r Zone<'r, P>> + 'r {
        self.zones_on(run.node, run.highest).filter(|zone| zone.managed_pages() > 0)
    }

    /// The zones of a node up to a type, lowest first.
    fn zones_on<'r>(&'r self, node: NodeId, highest: ZoneType) -> impl Iterator<Item = &'r Zone<'r, P>> + 'r {
        let zones = self.allocator.zones;
        ZoneType::ALL.into_iter().filter(move |&kind| kind <= highest).flat_map(move |kind| {
            zones.iter().filter(move |zone| zone.spec().node == node && zone.spec().kind == kind)
        })
    }

    fn meets_mark(&self, zone: &Zone<P>, order: Order, mark: u64, reserve: u64) -> bool {
        let access = Access { cma: true, ..Access::default() };
        self.has_above(zone, &watermark::Check { order, mark, reserve, access })
    }

    /// Writes the state of the run's zones to `out`. Returns how many there are.
    fn balances(&self, run: &NodeRun<'_>, out: &mut [Balance; MOST_ZONES]) -> usize {
        let mut len = 0;
        for (zone, place) in self.on_node(run).zip(out) {
            *place = Balance {
                pages: zone.managed_pages(),
                meets_high: self.meets_mark(zone, run.order, zone.marks().high, 0),
                unreclaimable: zone.is_unreclaimable(),
            };
            len += 1;
        }
        len
    }

    /// One round: all priorities, or until enough was freed to start over. Returns what was freed, and whether the node
    /// is balanced.
    fn balance_round(&self, run: &NodeRun<'_>) -> (Reclaimed, bool) {
        let mut zones = [Balance::default(); MOST_ZONES];
        let generation = self.allocator.config.experiment.reclaim;
        let mut total = Reclaimed::default();
        for priority in (0..=FIRST_PRIORITY).rev() {
            let len = self.balances(run, &mut zones);
            if policy::is_balanced(generation, run.order, &zones[..len]) {
                return (total, true);
            }
            let Some(end) = policy::highest_unbalanced(&zones[..len], priority) else { break };
            // Linux also looks at the pages scanned so far: none at the first priority.
            let may_write = priority < FIRST_PRIORITY;
            for zone in self.on_node(run).take(end + 1) {
                if zone.is_unreclaimable() && priority != FIRST_PRIORITY {
                    continue;
                }
                total += self.shrink_zone(run, zone, priority, may_write);
            }
            if total.freed >= CLUSTER {
                break;
            }
            if priority <= WAIT_PRIORITY
                && total.scanned > 0
                && let Some(zone) = self.on_node(run).next()
            {
                run.reclaimer.wait_if_congested(zone.id(), WAIT_MS);
            }
        }
        let len = self.balances(run, &mut zones);
        (total, policy::is_balanced(generation, run.order, &zones[..len]))
    }

    fn shrink_zone(&self, run: &NodeRun<'_>, zone: &Zone<P>, priority: u8, may_write: bool) -> Reclaimed {
        let marks = zone.marks();
        let mark = policy::shrink_mark(marks.high, marks.low, zone.managed_pages());
        let mut done = Reclaimed::default();
        if self.meets_mark(zone, run.order, mark, zone.reserve(run.highest)) {
            return done;
        }
        let (by, order) = (By::Background, run.order);
        let goal = ReclaimRequest { by, order, priority, may_write, ..ReclaimRequest::ANY };
        done += self.reclaim_from(run.reclaimer, zone, goal, false);
        let slab = self.reclaim_from(run.reclaimer, zone, goal, true);
        done.freed += slab.freed;
        // Other CPUs wait for these pages.
        self.local(zone.id()).drain_all();
        let on_lists = run.reclaimer.reclaimable(zone.id()).on_lists();
        if policy::is_unreclaimable(zone.pressure.scanned(), on_lists, slab.freed) {
            zone.pressure.give_up();
        }
        done
    }

    /// Counts a zone that is below a mark again. Linux looks after a short sleep, this function at once.
    fn count_quick_hits(&self, run: &NodeRun<'_>) {
        let events = &self.allocator.node(run.node).events;
        let below = |mark: fn(&Zone<P>) -> u64| {
            self.on_node(run).any(|zone| !self.meets_mark(zone, Order::ZERO, mark(zone), 0))
        };
        if below(|zone| zone.marks().low) {
            count(&events.kswapd_low_wmark_hit_quickly, 1);
        } else if below(|zone| zone.marks().high) {
            count(&events.kswapd_high_wmark_hit_quickly, 1);
        }
    }
}
