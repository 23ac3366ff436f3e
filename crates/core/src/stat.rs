//! Counters and snapshots. The printed forms have the field names and columns of `/proc/buddyinfo`, `/proc/zoneinfo`
//! and `/proc/vmstat`, so that tools for those files read them.

use core::fmt;

use crate::alloc::Allocator;
use crate::buddy::{Buddy, BuddyCounts};
use crate::events::{NodeEvents, ZoneEvents};
use crate::frame::FrameUser;
use crate::pcp::PcpEvents;
use crate::platform::Platform;
use crate::policy::pcp::Sizing;
use crate::policy::watermark::Marks;
use crate::units::{MAX_ORDER, Migratetype, NR_ORDERS, NodeId, Order, PAGEBLOCK_ORDER, Pfn, ZoneType};
use crate::zone::{Zone, ZoneSpec};

/// State of a zone at one moment. Counts are base pages unless a field states another unit.
#[derive(Clone, Copy, Debug)]
pub struct ZoneSnapshot {
    /// Range, node and type of the zone.
    pub spec: ZoneSpec,
    /// Free blocks by order. Isolated blocks are not counted.
    pub nr_free: [u64; NR_ORDERS],
    /// Free pages.
    pub free: u64,
    /// Free pages in CMA pageblocks.
    pub free_cma: u64,
    /// Present pages: the memory in the zone, reserved pages included.
    pub present: u64,
    /// Managed pages: those that boot or hot-plug has given to the buddy lists.
    pub managed: u64,
    /// Watermarks, also if the configuration does not use them.
    pub marks: Marks,
    /// Pageblocks isolated now.
    pub isolated_pageblocks: u64,
    /// Fallbacks and steals since the allocator was made.
    pub counts: BuddyCounts,
}

/// Events since the allocator was made, summed over zones and CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Events of per-CPU lists.
    pub pcp: PcpEvents,
    /// Fallbacks and steals.
    pub fallbacks: u64,
    /// Steals of whole pageblocks' free blocks.
    pub steals: u64,
    /// Pageblocks retyped by steals.
    pub retyped: u64,
}

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// Snapshot of one zone, read under its lock, without waiting for per-CPU lists. With maps the free blocks are
    /// counted before the lock is taken, so that no CPU waits for the count. That count is racy while CPUs allocate.
    #[must_use]
    pub fn zone_snapshot(&self, zone: &Zone<P>) -> ZoneSnapshot {
        let counted = self.frames.has_maps().then(|| self.count_free_blocks(zone));
        let snapshot = |buddy: &mut Buddy<'_, 'm, P, M>| ZoneSnapshot {
            spec: *zone.spec(),
            nr_free: counted.unwrap_or_else(|| {
                core::array::from_fn(|n| buddy.nr_free(Order::new(n as u8).unwrap_or_default()))
            }),
            free: zone.free_pages(),
            free_cma: zone.free_cma_pages(),
            present: zone.present_pages(),
            managed: zone.managed_pages(),
            marks: Marks::default(),
            isolated_pageblocks: buddy.isolated_pageblocks(),
            counts: buddy.counts(),
        };
        let section = |n| zone.with_section(n, &self.frames, self.waiter(None), snapshot).0;
        let mut all = section(0);
        for section in (1..zone.cut.sections()).map(section) {
            all.isolated_pageblocks += section.isolated_pageblocks;
            all.counts += section.counts;
        }
        ZoneSnapshot { marks: self.watermarks(zone.id()), ..all }
    }

    /// Free blocks of a zone with maps by order, without isolated ones. Reads pageblock after pageblock, without the
    /// zone lock; the result is racy. O(pageblocks).
    pub(crate) fn count_free_blocks(&self, zone: &Zone<P>) -> [u64; NR_ORDERS] {
        let mut found = [0; NR_ORDERS];
        let (frames, spec) = (&self.frames, zone.spec());
        for start in Pfn::pageblocks(spec.start..spec.end()) {
            let info = frames.info(start);
            if !info.is_present() || info.migratetype() == Migratetype::Isolate {
                continue;
            }
            let is_first = start.is_aligned(MAX_ORDER);
            match frames.free_whole(start) {
                Some(_) if frames.is_pair(start) => found[MAX_ORDER.index()] += u64::from(is_first),
                Some(_) => found[PAGEBLOCK_ORDER.index()] += 1,
                None if frames.open_head(start).is_some() => {
                    frames.map(start).into_iter().for_each(|map| map.bits().count_blocks(&mut found));
                }
                None => {}
            }
        }
        let untouched: u64 =
            zone.untouched(spec.start..spec.end()).map(|range| range.end.0 - range.start.0).sum();
        found[MAX_ORDER.index()] += untouched >> MAX_ORDER.get();
        found
    }

    /// Free pageblocks of a zone, without isolated ones. Racy. With maps O(pageblocks / 64) and without the zone lock,
    /// with lists O(1).
    pub(crate) fn free_pageblocks(&self, zone: &Zone<P>) -> u64 {
        if !self.frames.has_maps() {
            let nr_free = self.zone_snapshot(zone).nr_free;
            return nr_free[PAGEBLOCK_ORDER.index()] + 2 * nr_free[MAX_ORDER.index()];
        }
        let spec = zone.spec();
        let untouched: u64 =
            zone.untouched(spec.start..spec.end()).map(|range| range.end.0 - range.start.0).sum();
        zone.free_pageblocks(&self.frames) + (untouched >> PAGEBLOCK_ORDER.get())
    }

    /// Events since the allocator was made. A racy sum while CPUs allocate.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for zone in self.zones {
            for n in 0..zone.cut.sections() {
                let look = |buddy: &mut Buddy<'_, 'm, P, M>| buddy.counts();
                let counts = zone.with_section(n, &self.frames, self.waiter(None), look).0;
                totals.fallbacks += counts.fallbacks;
                totals.steals += counts.steals;
                totals.retyped += counts.retyped;
            }
            totals.pcp += self.pcp_events(zone);
        }
        totals
    }

    /// Number of blocks of `order` that the buddy lists could give now, larger blocks split. Blocks on per-CPU lists
    /// are not counted.
    #[must_use]
    pub fn free_blocks(&self, order: Order) -> u64 {
        let blocks = |zone| {
            let snapshot = self.zone_snapshot(zone);
            order.and_above().map(|at| snapshot.nr_free[at.index()] << (at.get() - order.get())).sum::<u64>()
        };
        self.zones.iter().map(blocks).sum()
    }

    /// Events of all nodes together.
    #[must_use]
    pub fn node_totals(&self) -> NodeEvents {
        (0..self.nodes().len()).fold(NodeEvents::default(), |mut sum, node| {
            sum += self.node_events(NodeId(node as u16));
            sum
        })
    }

    /// Events of one node. O(zones × CPUs).
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn node_events(&self, node: NodeId) -> NodeEvents {
        let mut sum = self.node(node).events.read();
        for zone in self.zones.iter().filter(|zone| zone.spec().node == node) {
            for (cpu, pcp) in self.cpu_ids().zip(self.pcps_of(zone.id())) {
                let PcpEvents { numa_hit, numa_miss, numa_foreign, .. } = pcp.events();
                sum.numa_hit += numa_hit;
                sum.numa_miss += numa_miss;
                sum.numa_foreign += numa_foreign;
                let here = if self.node_of(cpu) == node { &mut sum.numa_local } else { &mut sum.numa_other };
                *here += numa_hit + numa_miss;
            }
        }
        sum
    }

    /// Counters in the form of `/proc/vmstat`: a name and a number per line, counted since the allocator was made.
    /// The type follows each name that Linux counts by zone type. `pgalloc_*` and `pgfree` count pages that leave and
    /// enter the buddy lists, because hits of per-CPU lists are not counted. A racy sum while CPUs allocate.
    pub fn vmstat(&self) -> impl fmt::Display {
        Printed(|f: &mut fmt::Formatter<'_>| {
            writeln!(f, "nr_free_pages {}", self.free_pages())?;
            writeln!(f, "nr_free_cma {}", self.zones.iter().map(Zone::free_cma_pages).sum::<u64>())?;
            let out = |pcp: &PcpEvents| pcp.refilled_pages + pcp.direct_alloc_pages;
            self.write_by_type(f, "pgalloc", |zone| out(&self.pcp_events(zone)))?;
            let back = self.zones.iter().map(|zone| self.pcp_events(zone));
            let back: u64 = back.map(|pcp| pcp.drained_pages + pcp.direct_free_pages).sum();
            writeln!(f, "pgfree {back}")?;
            for (n, (name, _)) in ZoneEvents::default().iter().enumerate() {
                let value = |zone: &Zone<P>| zone.events().iter().nth(n).map_or(0, |(_, value)| value);
                self.write_by_type(f, name, value)?;
            }
            let kswapd_steal: u64 = self.zones.iter().map(|zone| zone.events().pgsteal_kswapd).sum();
            writeln!(f, "kswapd_steal {kswapd_steal}")?;
            self.node_totals().iter().try_for_each(|(name, value)| writeln!(f, "{name} {value}"))
        })
    }

    /// Writes a line for each zone type that the allocator has.
    fn write_by_type(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        value: impl Fn(&Zone<P>) -> u64,
    ) -> fmt::Result {
        for (kind, suffix) in ZoneType::ALL.into_iter().zip(["dma", "dma32", "normal", "movable"]) {
            let mut zones = self.zones.iter().filter(|zone| zone.spec().kind == kind).peekable();
            if zones.peek().is_some() {
                writeln!(f, "{name}_{suffix} {}", zones.map(&value).sum::<u64>())?;
            }
        }
        Ok(())
    }

    /// Events of the lists of all CPUs in a zone.
    fn pcp_events(&self, zone: &Zone<P>) -> PcpEvents {
        self.pcps_of(zone.id()).iter().fold(PcpEvents::default(), |mut sum, pcp| {
            sum += pcp.events();
            sum
        })
    }

    /// Free blocks by zone and order, in the form of `/proc/buddyinfo`.
    pub fn buddyinfo(&self) -> impl fmt::Display {
        Printed(|f: &mut fmt::Formatter<'_>| {
            for zone in self.zones {
                let snapshot = self.zone_snapshot(zone);
                write!(f, "Node {}, zone {:>8} ", snapshot.spec.node.0, snapshot.spec.kind)?;
                for blocks in snapshot.nr_free {
                    write!(f, "{blocks:>6} ")?;
                }
                writeln!(f)?;
            }
            Ok(())
        })
    }

    /// Counters, watermarks and per-CPU lists, in the form of `/proc/zoneinfo`.
    pub fn zoneinfo(&self) -> impl fmt::Display {
        Printed(|f: &mut fmt::Formatter<'_>| {
            for zone in self.zones {
                self.write_zoneinfo(f, zone)?;
            }
            Ok(())
        })
    }

    fn write_zoneinfo(&self, f: &mut fmt::Formatter<'_>, zone: &Zone<P>) -> fmt::Result {
        let snapshot = self.zone_snapshot(zone);
        writeln!(f, "Node {}, zone {:>8}", snapshot.spec.node.0, snapshot.spec.kind)?;
        writeln!(f, "  pages free     {}", snapshot.free)?;
        for (name, value) in [
            ("min", snapshot.marks.min),
            ("low", snapshot.marks.low),
            ("high", snapshot.marks.high),
            ("spanned", snapshot.spec.pages),
            ("present", snapshot.present),
            ("managed", snapshot.managed),
        ] {
            writeln!(f, "        {name:<8} {value}")?;
        }
        writeln!(f, "      nr_free_pages {}", snapshot.free)?;
        writeln!(f, "      nr_free_cma  {}", snapshot.free_cma)?;
        writeln!(f, "  pagesets")?;
        for (cpu, pcp) in self.pcps_of(zone.id()).iter().enumerate() {
            let Sizing { batch, high_min, high_max } = pcp.sizing();
            writeln!(f, "    cpu: {cpu}")?;
            for (name, value) in [
                ("count:", pcp.count()),
                ("high:", pcp.high()),
                ("batch:", batch),
                ("high_min:", high_min),
                ("high_max:", high_max),
            ] {
                writeln!(f, "              {name:<9} {value}")?;
            }
        }
        writeln!(f, "  start_pfn:           {}", snapshot.spec.start.0)
    }
}

/// Text that a closure writes: [`core::fmt::from_fn`], which the oldest supported compiler lacks.
struct Printed<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Printed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}
