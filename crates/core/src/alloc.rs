//! The allocator: zones, per-CPU lists and zonelists in the caller's memory; sizes, pageblocks.

mod add;
mod drain;

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::Buddy;
use crate::config::Config;
use crate::defer::Deferred;
use crate::error::SetupError;
use crate::fault::{FaultCounts, FaultRule, Faults};
use crate::frame::{self, DirectMap, FrameMap, FrameUser};
use crate::pcp::{self, Local, Pcp};
use crate::platform::{Platform, Word};
use crate::policy::pcp::Sizing;
use crate::policy::reclaim::RECLAIM_DISTANCE;
use crate::policy::watermark;
use crate::reclaim::Node;
use crate::setup::{self, Memory, Plan, cut_of, make_zones, most_on_list, sizing};
use crate::sync::{Exclusive, QueueNode, Waiter};
use crate::units::{CpuId, Migratetype, NodeId, Order, Pfn, ZoneId, ZoneType};
use crate::zone::{Zone, ZoneSpec};
use crate::zonelist;

/// A page-frame allocator on the platform `P`, with a user slot `M` for each frame.
///
/// Shared by all CPUs. A CPU allocates and frees through [`Allocator::cpu`].
pub struct Allocator<'m, P: Platform, M = ()> {
    pub(crate) frames: FrameMap<'m, P, M>,
    pub(crate) zones: &'m [Zone<'m, P>],
    /// One row per zone, one column per CPU.
    pub(crate) pcps: &'m [Pcp<'m, P>],
    queue: &'m [QueueNode<P>],
    /// One row per node: all zones in the order in which the node tries them.
    zonelist: &'m [ZoneId],
    cpu_nodes: &'m [NodeId],
    nodes: &'m [Node<P>],
    /// By CPU: whether it is in reclaim.
    contexts: &'m [P::Word],
    pub(crate) config: Config,
    pub(crate) direct_map: Option<DirectMap>,
    /// Memory that boot has left for later.
    pub(crate) later: Option<Later<'m, P, M>>,
    faults: Faults<P>,
    /// Number of frames that were found bad and not taken back into use.
    pub(crate) hwpoisoned: P::Word,
    /// One CPU at a time drains the lists of others.
    drains: Exclusive<P>,
    /// See [`begin_change`](Self::begin_change).
    changes: Exclusive<P>,
}

/// Memory to initialise later, and the function that makes its descriptors; `None` if they are as new.
pub(crate) struct Later<'m, P: Platform, M> {
    pub(crate) deferred: &'m Deferred<'m, P>,
    pub(crate) clear: Option<Clear<P, M>>,
}

/// Makes the descriptors of the pageblocks between two frames.
pub(crate) type Clear<P, M> = for<'f> fn(&FrameMap<'f, P, M>, Pfn, Pfn);

impl<P: Platform, M> fmt::Debug for Allocator<'_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator").field("zones", &self.zones).field("config", &self.config).finish()
    }
}

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// Makes an allocator over `zones`. It has no memory yet (see [`add_memory`](Self::add_memory)), and per-CPU lists
    /// of the boot size (see [`resize_pcps`](Self::resize_pcps)).
    ///
    /// CPU `n` is on node `cpu_nodes[n]`. All node distances count as equal. O(plan).
    ///
    /// # Errors
    /// As [`Plan::new`], and if a slice of `memory` does not have the plan's length, or poisoning lacks a direct map.
    pub fn new(
        zones: &[ZoneSpec],
        cpu_nodes: &'m [NodeId],
        config: Config,
        memory: Memory<'m, P, M>,
        direct_map: Option<DirectMap>,
    ) -> Result<Self, SetupError> {
        Self::with_distances(zones, cpu_nodes, None, config, memory, direct_map)
    }

    /// Like [`new`](Self::new), on a machine with known node distances: a table of nodes × nodes, row by row, 10 on its
    /// diagonal and at least 10 elsewhere. They order the zonelists, and bound zone reclaim.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if the table is invalid.
    pub fn with_distances(
        zones: &[ZoneSpec],
        cpu_nodes: &'m [NodeId],
        distances: Option<&[u8]>,
        config: Config,
        memory: Memory<'m, P, M>,
        direct_map: Option<DirectMap>,
    ) -> Result<Self, SetupError> {
        let plan = Plan::new(zones, cpu_nodes, &config)?;
        macro_rules! check {
            ($($buffer:ident)*) => {$(
                if memory.$buffer.len() != plan.$buffer {
                    return Err(SetupError::WrongBuffer(stringify!($buffer)));
                }
            )*};
        }
        check! { frames pageblocks maps slots pcps more_lists zones sections }
        check! { section_words queue zonelist nodes contexts }
        if !config.engine.has_words() && (size_of::<M>() > 0 || M::CHECKED) {
            return Err(SetupError::CompactNeeds("frames without user slots (`M = ()`)"));
        }
        if (config.poison || config.init_on_free) && direct_map.is_none() {
            return Err(SetupError::PoisonNeedsDirectMap);
        }
        let cpus = cpu_nodes.len();
        let mut slots = memory.slots;
        let mut more = memory.more_lists.iter_mut();
        let pcps = frame::fill(memory.pcps, |n| {
            let most = most_on_list(&zones[n / cpus], &config, cpu_nodes);
            let (pcp_slots, rest) = slots.split_at(pcp::slots_per_pcp(&config, most));
            slots = rest;
            let cut = cut_of(&zones[n / cpus], &config, cpu_nodes);
            let section = n % cpus * cut.sections() / cpus;
            Pcp::new(&config, CpuId((n % cpus) as u16), section, most, pcp_slots, more.next())
        });
        let made =
            make_zones(zones, cpu_nodes, &config, (memory.zones, memory.sections, memory.section_words));
        let rows = memory.zonelist;
        zonelist::build(zones, cpu_nodes, distances, config.experiment.zonelist_order, rows)?;
        let nodes = frame::fill(memory.nodes, |node| {
            let far = |to: usize| distances.is_some_and(|d| d[node * plan.nodes + to] > RECLAIM_DISTANCE);
            let near = (0..plan.nodes).filter(|&to| !far(to)).map(|to| NodeId(to as u16)).collect();
            Node::new(near, cpu_nodes.contains(&NodeId(node as u16)))
        });
        Ok(Self {
            frames: FrameMap::new(
                plan.base,
                memory.frames,
                memory.pageblocks,
                memory.maps,
                config.experiment.heads_in_pageblocks,
            ),
            zones: made,
            pcps,
            queue: memory.queue,
            zonelist: rows,
            cpu_nodes,
            nodes,
            contexts: memory.contexts,
            config,
            direct_map,
            later: None,
            faults: Faults::new(),
            hwpoisoned: P::Word::new(0),
            drains: Exclusive::new(),
            changes: Exclusive::new(),
        })
    }

    /// The configuration the allocator was made with.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Every zone, in the order given to [`new`](Self::new).
    #[must_use]
    pub const fn zones(&self) -> &'m [Zone<'m, P>] {
        self.zones
    }

    /// Number of CPUs.
    #[must_use]
    pub const fn cpus(&self) -> usize {
        self.cpu_nodes.len()
    }

    /// Every node, by number.
    #[must_use]
    pub const fn nodes(&self) -> &'m [Node<P>] {
        self.nodes
    }

    pub(crate) fn node(&self, node: NodeId) -> &'m Node<P> {
        &self.nodes[node.index()]
    }

    /// The node that a CPU is on.
    #[must_use]
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.cpu_nodes[cpu.index()]
    }

    /// The CPU's word that records whether it is in reclaim.
    pub(crate) fn context(&self, cpu: CpuId) -> &'m P::Word {
        &self.contexts[cpu.index()]
    }

    /// The frame descriptors.
    #[must_use]
    pub const fn frames(&self) -> &FrameMap<'m, P, M> {
        &self.frames
    }

    /// Every CPU.
    pub(crate) fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + Clone + use<P, M> {
        (0..self.cpus() as u16).map(CpuId)
    }

    /// All CPUs' lists of one zone, by CPU.
    pub(crate) fn pcps_of(&self, zone: ZoneId) -> &'m [Pcp<'m, P>] {
        &self.pcps[zone.index() * self.cpus()..][..self.cpus()]
    }

    /// One CPU's lists of one zone, for reading.
    #[must_use]
    #[inline]
    pub fn pcp(&self, zone: ZoneId, cpu: CpuId) -> &'m Pcp<'m, P> {
        &self.pcps[zone.index() * self.cpu_nodes.len() + cpu.index()]
    }

    /// Free base pages on the buddy lists of all zones. A racy sum.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.zones.iter().map(Zone::free_pages).sum()
    }

    /// Base pages on all per-CPU lists. A racy sum.
    #[must_use]
    pub fn pcp_pages(&self) -> u64 {
        self.pcps.iter().map(|pcp| u64::from(pcp.count())).sum()
    }

    /// Sets the rule by which allocations fail from now on; `None` removes it. Returns whether this allocator can
    /// inject faults: it was made with [`Config::fault_injection`].
    #[must_use = "an allocator that was made without fault injection has none"]
    pub fn inject(&self, rule: Option<&FaultRule>) -> bool {
        if self.config.fault_injection {
            self.faults.set(rule);
        }
        self.config.fault_injection
    }

    /// Counts of the rule since it was set. A racy read.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.faults.counts()
    }

    /// Counts an allocation. Returns whether it must fail.
    pub(crate) fn strikes(&self, order: Order) -> bool {
        self.config.fault_injection && self.faults.strikes(order)
    }

    /// Frames reported by [`Cpu::hwpoison`](crate::Cpu::hwpoison), less those that were taken back into use or are
    /// offline.
    #[must_use]
    pub fn hwpoisoned_pages(&self) -> u64 {
        self.hwpoisoned.load(Relaxed)
    }

    /// Adds to the count of bad frames: frames whose memory has failed, or (negative) that went offline or are good
    /// again.
    pub(crate) fn count_hwpoisoned(&self, frames: i64) {
        if frames != 0 {
            self.hwpoisoned.fetch_add(frames.cast_unsigned(), Relaxed);
        }
    }

    /// Memory that boot has left for later.
    #[inline]
    pub(crate) const fn later(&self) -> Option<&Later<'m, P, M>> {
        if cfg!(feature = "boot") { self.later.as_ref() } else { None }
    }

    pub(crate) fn waiter(&self, cpu: Option<CpuId>) -> Waiter<'_, P> {
        Waiter { nodes: self.queue, cpu }
    }

    // ---- sizes -----------------------------------------------------------------------------------------

    /// Watermarks for the present memory, in base pages. Per-CPU lists are sized by them; with [`Config::keep_marks`]
    /// zones keep them. O(zones).
    #[must_use]
    pub fn watermarks(&self, zone: ZoneId) -> watermark::Marks {
        let lowmem: u64 = self
            .zones
            .iter()
            .filter(|z| z.spec().kind != ZoneType::Movable)
            .map(|z| self.expected_pages(z))
            .sum();
        let zone = &self.zones[zone.index()];
        setup::watermarks(&self.config, zone.spec().kind, self.expected_pages(zone), lowmem)
    }

    /// Sets every zone's watermarks and lowmem reserve for the present memory; does nothing without
    /// [`Config::keep_marks`]. Before the first call they are 0, as in Linux' early boot.
    /// [`resize_pcps`](Self::resize_pcps) calls it. O(zones²).
    pub fn resize_watermarks(&self) {
        let _turn = self.begin_change();
        self.set_watermarks();
    }

    /// [`resize_watermarks`](Self::resize_watermarks). The caller has the turn of
    /// [`begin_change`](Self::begin_change): no memory comes or goes between a look at it and the marks that follow.
    fn set_watermarks(&self) {
        if !self.config.keep_marks {
            return;
        }
        for zone in self.zones {
            zone.pressure.set_marks(self.watermarks(zone.id()));
            let (mut pages, mut managed) = ([0; watermark::ZONES], 0);
            for peer in self.zones.iter().filter(|peer| peer.spec().node == zone.spec().node) {
                let expected = self.expected_pages(peer);
                pages[peer.spec().kind as usize] += expected;
                managed += if peer.id() == zone.id() { expected } else { 0 };
            }
            let table = watermark::lowmem_reserve(
                self.config.experiment.marks,
                &pages,
                &self.config.experiment.reserve_ratios,
            );
            // The node's zones of one type share what their type keeps.
            let kind = zone.spec().kind as usize;
            zone.pressure.set_reserves(&table[kind].map(|all| watermark::share(all, managed, pages[kind])));
        }
    }

    /// Sizes the per-CPU lists of every zone that has memory, and the zones' watermarks, for the present memory. Each
    /// CPU applies the size at its next call that is no hit. O(zones × (zones + CPUs)).
    pub fn resize_pcps(&self) {
        let _turn = self.begin_change();
        self.set_sizes();
    }

    /// [`resize_pcps`](Self::resize_pcps). The caller has the turn of [`begin_change`](Self::begin_change).
    pub(crate) fn set_sizes(&self) {
        self.set_watermarks();
        match cfg!(feature = "passes") {
            true => self.size_pcps(|zone| self.watermarks(zone.id()).low),
            false => self.size_pcps_at_boot(),
        }
    }

    /// Like [`resize_pcps`](Self::resize_pcps), but watermarks count as 0: during boot they are not computed yet, and
    /// without `passes` no zone keeps them.
    pub(crate) fn size_pcps_at_boot(&self) {
        self.size_pcps(|_| 0);
    }

    fn size_pcps(&self, low_watermark: impl Fn(&Zone<P>) -> u64) {
        for zone in self.zones.iter().filter(|_| cfg!(feature = "lists")) {
            let managed = self.expected_pages(zone);
            if managed > 0 {
                let low = low_watermark(zone);
                let size = |cpus| sizing(&self.config, managed, low, cpus);
                let (of_all, alone) = (size(zone.cpus), size(1));
                // Each CPU divides it by those that use the zone at the time: see `pcp/counting.rs`.
                let is_divided_later =
                    P::DRAINS_REMOTELY && !self.config.counts_each_call() && alone.is_tuned();
                let high_max = if is_divided_later { alone.high_max } else { of_all.high_max };
                self.resize_pcps_of(zone.id(), Sizing { high_max, ..of_all });
            }
        }
    }

    /// The pages from which sizes are computed: those that the zone manages, in a lazy boot also those that it will
    /// manage. Of memory that grows meanwhile, only what one hold of a section's lock makes ready can count twice.
    fn expected_pages(&self, zone: &Zone<P>) -> u64 {
        let Some(later) = self.later().filter(|later| later.deferred.is_lazy()) else {
            return zone.managed_pages();
        };
        let left = || later.deferred.zones()[zone.id().index()].left();
        let mut before = left();
        loop {
            let (managed, after) = (zone.managed_pages(), left());
            if before == after {
                return managed + after;
            }
            before = after;
        }
    }

    /// Sets the size of all per-CPU lists of a zone. Each CPU applies it at its next call that is no hit. A list holds
    /// no more blocks than the configuration could give it, for which [`Plan::slots`] has room. O(CPUs).
    pub fn resize_pcps_of(&self, zone: ZoneId, size: Sizing) {
        self.pcps_of(zone).iter().for_each(|pcp| pcp.resize(size));
    }

    // ---- pageblocks ------------------------------------------------------------------------------------

    /// Runs `f` with the lock of the section of `pfn` in its zone.
    pub(crate) fn in_section_of<R>(
        &self,
        zone: &Zone<'_, P>,
        pfn: Pfn,
        cpu: Option<CpuId>,
        f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R,
    ) -> R {
        zone.with_section(zone.cut.number_of(pfn), &self.frames, self.waiter(cpu), f).0
    }

    /// Runs `f` under the lock of the zone of `pfn`; `None` if no zone has memory there.
    fn with_zone_of<R>(&self, pfn: Pfn, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> Option<R>) -> Option<R> {
        // The caller may name any frame, also the one with the largest number.
        self.touch(pfn, Pfn(pfn.0.saturating_add(1)));
        let info = self.frames.info(pfn);
        let zone = self.zones.get(info.zone().index());
        let zone = zone.filter(|zone| zone.spec().spans(pfn))?;
        // It may be absent, or another CPU may take it offline at this moment.
        self.in_section_of(zone, pfn, None, |buddy| if self.frames.contains(pfn) { f(buddy) } else { None })
    }

    /// Runs `f`, which isolates a pageblock or ends its isolation, and then shuts or opens the lists: in the same hold,
    /// or in one of the first section's lock if the zone has several sections.
    fn with_isolation_of(
        &self,
        pfn: Pfn,
        f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> Option<u64>,
    ) -> Option<u64> {
        let mut several = None;
        let pages = self.with_zone_of(pfn, |buddy| {
            let pages = f(buddy);
            match buddy.is_of_several() {
                true => several = Some(buddy.zone()),
                false => self.shut_or_open_lists(buddy),
            }
            pages
        });
        if let Some(zone) = several {
            let zone = &self.zones[zone.index()];
            self.in_section_of(zone, zone.spec().start, None, |buddy| self.shut_or_open_lists(buddy));
        }
        pages
    }

    /// Isolates the pageblock of `pfn`: its free pages are not handed out and not counted as free, and pages freed into
    /// it join them. Returns the free pages withdrawn; `None` if there is no such pageblock or it is isolated already,
    /// and without the feature `mobility`. Blocks on per-CPU lists stay there until they drain.
    pub fn isolate_pageblock(&self, pfn: Pfn) -> Option<u64> {
        self.hold_pageblock(pfn, None)
    }

    /// Like [`isolate_pageblock`](Self::isolate_pageblock); with a `holder`, for a call of that CPU that ends the
    /// isolation itself: no other call can, so that what is free in the pageblock stays free in it.
    pub(crate) fn hold_pageblock(&self, pfn: Pfn, holder: Option<CpuId>) -> Option<u64> {
        self.with_isolation_of(pfn, |buddy| buddy.isolate(pfn, holder))
    }

    /// Shuts the lists of all CPUs, so that each free checks its pageblock, or opens them, so that frees hit. Called
    /// after pageblocks of a zone were isolated or no longer are, or frames in use became bad or no longer are. With
    /// the lock of the zone's first section. O(CPUs).
    pub(crate) fn shut_or_open_lists(&self, buddy: &Buddy<'_, 'm, P, M>) {
        pcp::shut_or_open(self.pcps_of(buddy.zone()), buddy.has_special_pageblocks());
    }

    /// Ends the isolation of the pageblock of `pfn`. Returns the free pages that are available again; `None` if it was
    /// not isolated, or if a call in progress has isolated it: [`Cpu::offline`](crate::Cpu::offline) or
    /// [`Cpu::alloc_contig_range`](crate::Cpu::alloc_contig_range).
    pub fn unisolate_pageblock(&self, pfn: Pfn) -> Option<u64> {
        self.let_pageblock_go(pfn, None)
    }

    /// Ends what [`hold_pageblock`](Self::hold_pageblock) has begun. Does nothing to a pageblock that another call has
    /// isolated.
    pub(crate) fn let_pageblock_go(&self, pfn: Pfn, holder: Option<CpuId>) -> Option<u64> {
        self.with_isolation_of(pfn, |buddy| buddy.unisolate(pfn, holder))
    }

    /// Changes the type of the pageblock of `pfn`; its free blocks move to that type's lists. Returns its free pages;
    /// `None` if there is no such pageblock, it is isolated, or `to` is [`Migratetype::Isolate`].
    pub fn set_pageblock_type(&self, pfn: Pfn, to: Migratetype) -> Option<u64> {
        if to == Migratetype::Isolate {
            return None;
        }
        self.with_zone_of(pfn, |buddy| buddy.set_pageblock_type(pfn, None, to))
    }

    /// Gives one pageblock of a zone that is reserved for high orders to requests of type `to`: one that has free
    /// memory, if there is one. With maps else one that is in use, which counts as kept, too. Returns whether there was
    /// one. O(pageblocks).
    pub(crate) fn unreserve(&self, zone: &Zone<P>, to: Migratetype, waiter: Waiter<'_, P>) -> bool {
        let reserved = Migratetype::HighAtomic;
        let give = |buddy: &mut Buddy<'_, 'm, P, M>, pfn| {
            buddy.set_pageblock_type(pfn, Some(reserved), to).is_some()
        };
        // Found and retyped in one hold, so that no other CPU retypes or takes it in between.
        let retype = |buddy: &mut Buddy<'_, 'm, P, M>| {
            let first = buddy.first_with(reserved);
            first.is_some_and(|pfn| give(buddy, pfn))
        };
        if (0..zone.cut.sections()).any(|n| zone.with_section(n, &self.frames, waiter, retype).0) {
            return true;
        }
        let (spec, frames) = (zone.spec(), &self.frames);
        let is_reserved = |&block: &Pfn| {
            let info = frames.info(block);
            info.is_present() && info.zone() == zone.id() && info.migratetype() == reserved
        };
        let in_use = frames.has_maps().then(|| Pfn::pageblocks(spec.start..spec.end()).find(is_reserved));
        in_use.flatten().is_some_and(|pfn| {
            let section = zone.cut.number_of(pfn.max(spec.start));
            zone.with_section(section, frames, waiter, |buddy| give(buddy, pfn)).0
        })
    }

    // ---- CPUs --------------------------------------------------------------------------------------------

    /// All zones, in the order in which a CPU tries them.
    #[must_use]
    pub fn zonelist_of(&self, cpu: CpuId) -> &'m [ZoneId] {
        self.zonelist_of_node(self.cpu_nodes[cpu.index()])
    }

    /// All zones, in the order in which a node tries them.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn zonelist_of_node(&self, node: NodeId) -> &'m [ZoneId] {
        &self.zonelist[node.index() * self.zones.len()..][..self.zones.len()]
    }

    /// Drains the lists of every CPU: of CPUs that are in no call immediately, where the platform
    /// [can](Platform::DRAINS_REMOTELY); the others drain at their next call that is no hit, or when they leave.
    pub fn request_drain(&self) {
        self.drain_others(None, self.zones.iter(), None, false);
    }

    /// Requests every CPU to let its lists shrink if they hold more than it uses, under the rules that [move
    /// `high`](crate::config::PcpRule::moves_high). Each does so at its next call that is no hit. To be called about
    /// once a second. [`Cpu::tick`](crate::Cpu::tick) does it for the calling CPU, immediately. O(CPUs × zones).
    pub fn request_tick(&self) {
        if self.config.experiment.pcp_rule.moves_high() {
            self.pcps.iter().for_each(Pcp::request_tick);
        }
    }

    /// A CPU's lists of a zone, without taking its `turn`; `caller` is the calling CPU, if it has one.
    pub(crate) fn local(&self, zone: ZoneId, owner: CpuId, caller: Option<CpuId>) -> Local<'_, 'm, P, M> {
        Local {
            pcp: self.pcp(zone, owner),
            pcps: self.pcps,
            zone: &self.zones[zone.index()],
            frames: &self.frames,
            waiter: self.waiter(caller),
            config: &self.config,
            direct_map: self.direct_map,
            avoid_fragmentation: false,
            // The presets boost in any case, as Linux does, whose background reclaim always works.
            boosts: !self.config.engine.has_maps(),
            beyond: u64::MAX,
            turn: None,
        }
    }
}
