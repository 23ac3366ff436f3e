//! Set-up of an allocator: checks of its description, and the memory that its structures need.

mod carve;

use core::mem::MaybeUninit;
use core::ops::Range;

use crate::buddy;
use crate::config::{Config, Engine, Experiment};
use crate::error::SetupError;
use crate::frame::{Frame, MAX_ZONE_PAGES, PageMap, Pageblock, fill};
use crate::pcp::{self, MoreLists, Most, Pcp};
use crate::platform::Platform;
use crate::policy::Generation;
use crate::policy::pcp::{
    BATCH_CAP, BATCH_CAP_V3_0, MAX_SCALE, PcpRule, Sizing, accepts_fraction, share_of_free, sharing_cpus,
    size,
};
use crate::policy::watermark::{self, Marks};
use crate::reclaim::Node;
use crate::sync::QueueNode;
use crate::units::{MAX_NODES, MAX_ORDER, NodeId, PAGEBLOCK_PAGES, Pfn, ZoneId, ZoneType};
use crate::zone::{Cut, Section, Zone, ZoneSpec};

/// Memory that an allocator's own structures need: lengths of the slices in [`Memory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// First frame with a descriptor.
    pub base: Pfn,
    /// Frame descriptors; none with [`Engine::Compact`].
    pub frames: usize,
    /// Pageblock descriptors.
    pub pageblocks: usize,
    /// Maps of free frames: one per pageblock with [`Engine::Framewright`], two with [`Engine::Compact`], and after
    /// them those of free pageblocks, six bits for each; else none.
    pub maps: usize,
    /// Slots of all per-CPU lists.
    pub slots: usize,
    /// Per-CPU list sets: one per zone and CPU.
    pub pcps: usize,
    /// Additional lists of those sets, for orders that have no lists in Linux: one per set if
    /// [`pcp_orders`](crate::config::Experiment::pcp_orders) names them, else none.
    pub more_lists: usize,
    /// Zones.
    pub zones: usize,
    /// Lock queue nodes: one per CPU.
    pub queue: usize,
    /// Sections of zones besides the first of each.
    pub sections: usize,
    /// Words in which sections publish which bins they have.
    pub section_words: usize,
    /// Zonelist entries: one per node and zone.
    pub zonelist: usize,
    /// Nodes: up to the highest that has a zone or a CPU.
    pub nodes: usize,
    /// Per-CPU context words: whether the CPU is in reclaim. One per CPU.
    pub contexts: usize,
}

impl Plan {
    /// Plans an allocator over `zones` with CPUs on the nodes `cpu_nodes`. O(zones²).
    ///
    /// # Errors
    /// Zones that are misaligned, empty, too large or overlapping, or that span more frames than an address has values;
    /// none, or more than 255; no CPU, or more than 65,535; more than 64 nodes; a configuration out of range.
    pub fn new(zones: &[ZoneSpec], cpu_nodes: &[NodeId], config: &Config) -> Result<Self, SetupError> {
        check_config(config)?;
        check_zones(zones)?;
        let most = if cfg!(feature = "smp") { usize::from(u16::MAX) } else { 1 };
        if cpu_nodes.is_empty() || cpu_nodes.len() > most {
            return Err(SetupError::CpuCount(cpu_nodes.len()));
        }
        let nodes = node_count(zones, cpu_nodes);
        if nodes > if cfg!(feature = "smp") { MAX_NODES } else { 1 } {
            return Err(SetupError::NodeCount(nodes));
        }
        let base = zones.iter().map(|zone| zone.start).min().unwrap_or_default();
        let end = zones.iter().map(|zone| zone.end().0).max().unwrap_or_default();
        let frames = usize::try_from((end - base.0).next_multiple_of(MAX_ORDER.pages()));
        let frames = frames.map_err(|_| SetupError::TooLarge)?;
        let pageblocks = frames / PAGEBLOCK_PAGES as usize;
        let slots = |zone: &ZoneSpec| pcp::slots_per_pcp(config, most_on_list(zone, config, cpu_nodes));
        let slots_per_cpu: usize = zones.iter().map(slots).sum();
        let cuts = || zones.iter().map(|zone| cut_of(zone, config, cpu_nodes));
        let whole_maps = || cuts().map(whole_maps).sum::<usize>();
        Ok(Self {
            base,
            frames: if config.engine.has_words() { frames } else { 0 },
            pageblocks,
            maps: match config.engine {
                Engine::Linux => 0,
                Engine::Framewright => pageblocks + whole_maps(),
                Engine::Compact => 2 * pageblocks + whole_maps(),
            },
            slots: slots_per_cpu * cpu_nodes.len(),
            pcps: zones.len() * cpu_nodes.len(),
            more_lists: if pcp::has_more(config) { zones.len() * cpu_nodes.len() } else { 0 },
            zones: zones.len(),
            queue: cpu_nodes.len(),
            sections: cuts().map(|cut| cut.sections() - 1).sum(),
            section_words: cuts().map(section_words).sum(),
            zonelist: zones.len() * nodes,
            nodes,
            contexts: cpu_nodes.len(),
        })
    }
}

/// Division of a zone's free store into sections.
pub(crate) fn cut_of(zone: &ZoneSpec, config: &Config, cpu_nodes: &[NodeId]) -> Cut {
    Cut::new(zone, config, cpus_of(zone, cpu_nodes))
}

/// CPUs that share the pages of a zone.
fn cpus_of(zone: &ZoneSpec, cpu_nodes: &[NodeId]) -> u32 {
    let on_node = cpu_nodes.iter().filter(|&&node| node == zone.node).count();
    sharing_cpus(on_node as u32, cpu_nodes.len() as u32)
}

/// Maps of free pageblocks that a zone has. O(sections).
fn whole_maps(cut: Cut) -> usize {
    (0..cut.sections()).map(|n| maps_of_section(cut, n)).sum()
}

/// Maps of free pageblocks that a section has.
fn maps_of_section(cut: Cut, n: usize) -> usize {
    let Range { start, end } = cut.range(n);
    buddy::maps_of_bitmaps(end.0 - start.0)
}

/// Words that the sections of a zone publish, if there are several.
fn section_words(cut: Cut) -> usize {
    if cut.is_cut() { cut.sections() * buddy::WORDS } else { 0 }
}

fn node_count(zones: &[ZoneSpec], cpu_nodes: &[NodeId]) -> usize {
    let last = zones.iter().map(|zone| zone.node).chain(cpu_nodes.iter().copied()).max();
    last.map_or(0, |node| usize::from(node.0) + 1)
}

fn check_config(config: &Config) -> Result<(), SetupError> {
    if !cfg!(feature = "passes") && (config.keep_marks || config.fault_injection) {
        return Err(SetupError::NeedsFeature("passes"));
    }
    if !config.page_kib.is_power_of_two() || !(4..=64).contains(&config.page_kib) {
        return Err(SetupError::page_kib(config.page_kib));
    }
    let Experiment { pcp_rule, pcp_fraction, pcp_fixed, pcp_slots, .. } = config.experiment;
    let fraction = accepts_fraction(pcp_rule, pcp_fraction);
    let slots = pcp_slots.is_power_of_two() && (2..=1 << 20).contains(&pcp_slots);
    let batch = pcp_fixed.map_or(1, |fixed| fixed.batch);
    let (part, proactiveness) = (config.pcp_free_part, u32::from(config.compaction_proactiveness));
    for (name, value, is_allowed, allowed) in [
        ("pcp_fraction", pcp_fraction, fraction, "0, or at least 8"),
        ("the batch of pcp_fixed", batch, batch != 0, "at least 1"),
        ("pcp_free_part", part, part != 0, "at least 1"),
        ("compaction_proactiveness", proactiveness, proactiveness <= 100, "0 to 100"),
        ("pcp_slots", pcp_slots, slots, "a power of two from 2 to 1048576"),
    ] {
        if !is_allowed {
            return Err(SetupError::Setting { name, value, allowed });
        }
    }
    if !config.engine.has_words() && config.poison {
        return Err(SetupError::CompactNeeds("poison off"));
    }
    Ok(())
}

fn check_zones(zones: &[ZoneSpec]) -> Result<(), SetupError> {
    if zones.is_empty() || zones.len() > usize::from(u8::MAX) {
        return Err(SetupError::ZoneCount(zones.len()));
    }
    let id = |n: usize| ZoneId(n as u8);
    for (n, zone) in zones.iter().enumerate() {
        let in_range = (1..=MAX_ZONE_PAGES).contains(&zone.pages) && zone.start.0 < 1 << 52;
        if !in_range || !zone.start.is_aligned(MAX_ORDER) {
            return Err(SetupError::BadZone(id(n)));
        }
        let ends = |zone: &ZoneSpec| zone.end().0.next_multiple_of(PAGEBLOCK_PAGES);
        for (m, earlier) in zones[..n].iter().enumerate() {
            if zone.start.0 < ends(earlier) && earlier.start.0 < ends(zone) {
                return Err(SetupError::ZonesOverlap(id(m), id(n)));
            }
        }
    }
    Ok(())
}

/// Most base pages that one list of a CPU can have in a zone, however much of its memory is there.
pub(crate) fn most_on_list(zone: &ZoneSpec, config: &Config, cpu_nodes: &[NodeId]) -> Most {
    if !cfg!(feature = "lists") {
        return Most { below: [0; 2], huge: [0; 2] };
    }
    if config.counts_each_call() {
        // A single CPU shares with no other, and no low watermark exceeds an eighth of the zone. The pages at `high`,
        // and one largest refill or free in addition.
        let Sizing { high_max, batch, .. } = sizing(config, zone.pages, zone.pages / 8, 1);
        let pages = u64::from(high_max) + (u64::from(batch) << MAX_SCALE);
        return Most { below: [pages; 2], huge: [pages; 2] };
    }
    let low = match cfg!(feature = "passes") {
        true => watermarks(config, zone.kind, zone.pages, zone.pages).low,
        false => 0,
    };
    let largest = [cpus_of(zone, cpu_nodes), 1].map(|cpus| {
        let largest = sizing(config, zone.pages, low, cpus);
        let of_free = share_of_free(zone.pages, cpus, config.pcp_free_part);
        (if largest.is_tuned() { largest.within(of_free) } else { largest }, largest)
    });
    Most {
        below: largest.map(|(below, _)| below.high_max.into()),
        huge: largest.map(|(_, huge)| huge.high_max.into()),
    }
}

/// Watermarks of a zone with `managed` pages; `lowmem` are those of all zones that are not Movable.
pub(crate) fn watermarks(config: &Config, kind: ZoneType, managed: u64, lowmem: u64) -> Marks {
    let generation = config.experiment.marks;
    let page_kib = u64::from(config.page_kib);
    let min_free = match config.min_free_kib {
        0 => watermark::min_free_kib(generation, lowmem * page_kib),
        chosen => chosen,
    };
    let share = watermark::share(watermark::pages_min(min_free, page_kib), managed, lowmem);
    Marks::new(generation, managed, share, config.watermark_scale, kind == ZoneType::Movable)
}

pub(crate) fn sizing(config: &Config, managed: u64, low_watermark: u64, cpus: u32) -> Sizing {
    match config.experiment.pcp_fixed {
        Some(fixed) => Sizing { batch: fixed.batch, high_min: fixed.high, high_max: fixed.high },
        None => {
            let of_4_kib = match (config.experiment.marks, config.experiment.pcp_rule) {
                (Generation::V3_0, PcpRule::V5_4) => BATCH_CAP_V3_0,
                _ => BATCH_CAP,
            };
            // The same number of bytes for every size of base page.
            let cap = of_4_kib * 4 / u64::from(config.page_kib);
            size(
                config.experiment.pcp_rule,
                managed,
                low_watermark,
                cpus,
                config.experiment.pcp_fraction,
                cap,
            )
        }
    }
}

/// Memory of an allocator's own structures. The caller provides it, with the lengths in [`Plan`], and gets it back when
/// the allocator is dropped. Descriptors, slots and nodes must be as their `new` makes them.
#[derive(Debug)]
pub struct Memory<'m, P: Platform, M> {
    /// [`Plan::frames`] descriptors.
    pub frames: &'m [Frame<P, M>],
    /// [`Plan::pageblocks`] descriptors.
    pub pageblocks: &'m [Pageblock<P>],
    /// [`Plan::maps`] maps.
    pub maps: &'m [PageMap<P>],
    /// [`Plan::slots`] words.
    pub slots: &'m [P::Word],
    /// Room for [`Plan::pcps`] list sets.
    pub pcps: &'m mut [MaybeUninit<Pcp<'m, P>>],
    /// Room for [`Plan::more_lists`] list sets.
    pub more_lists: &'m mut [MaybeUninit<MoreLists<'m, P>>],
    /// Room for [`Plan::zones`] zones.
    pub zones: &'m mut [MaybeUninit<Zone<'m, P>>],
    /// Room for [`Plan::sections`] sections.
    pub sections: &'m mut [MaybeUninit<Section<P>>],
    /// [`Plan::section_words`] words.
    pub section_words: &'m [P::Word],
    /// [`Plan::queue`] nodes.
    pub queue: &'m [QueueNode<P>],
    /// [`Plan::zonelist`] entries.
    pub zonelist: &'m mut [ZoneId],
    /// Room for [`Plan::nodes`] nodes.
    pub nodes: &'m mut [MaybeUninit<Node<P>>],
    /// [`Plan::contexts`] words.
    pub contexts: &'m [P::Word],
}

/// Memory of zones, of their sections except the first ones, and of the sections' published words.
pub(crate) type ZoneMemory<'m, P> =
    (&'m mut [MaybeUninit<Zone<'m, P>>], &'m mut [MaybeUninit<Section<P>>], &'m [<P as Platform>::Word]);

/// The zones, each with its sections.
pub(crate) fn make_zones<'m, P: Platform>(
    zones: &[ZoneSpec],
    cpu_nodes: &[NodeId],
    config: &Config,
    (memory, mut sections, mut words): ZoneMemory<'m, P>,
) -> &'m [Zone<'m, P>] {
    let mut whole = 0;
    fill(memory, |n| {
        let cpus = cpus_of(&zones[n], cpu_nodes);
        let cut = cut_of(&zones[n], config, cpu_nodes);
        let mut section = |n| {
            let section = Section::new(config, whole, n, cut.range(n));
            whole += maps_of_section(cut, n);
            section
        };
        let first = section(0);
        let (more, rest) = core::mem::take(&mut sections).split_at_mut(cut.sections() - 1);
        sections = rest;
        let more = fill(more, |n| section(n + 1));
        let (shown, rest) = words.split_at(section_words(cut));
        words = rest;
        Zone::new(ZoneId(n as u8), zones[n], config, cpus, cut, (first, more, shown))
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const ZONE: ZoneSpec =
        ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(1 << 20), pages: 4096 };

    /// The figures of `docs/porting.md`: what the slots of lists take for each GiB, and for each CPU under a preset.
    #[test]
    fn slots_of_lists_take_little_of_the_memory() {
        let bytes = |gib: u64, cpus: usize, config| {
            let zone = ZoneSpec { pages: gib << 18, ..ZONE };
            let plan = Plan::new(&[zone], &std::vec![NodeId(0); cpus], &config).expect("a plan");
            (plan.slots * 8) as u64
        };
        for (gib, cpus) in [(1, 1), (1, 8), (1, 16), (8, 128), (64, 16), (64, 1024), (1000, 4)] {
            let slots = bytes(gib, cpus, Config::framewright());
            assert!(slots <= gib * (450 << 10), "{gib} GiB, {cpus} CPUs: {slots}");
            let slots = bytes(gib, cpus, Config::linux_v6_16());
            assert!(slots <= cpus as u64 * (4 << 20), "{gib} GiB, {cpus} CPUs: {slots}");
        }
    }

    /// A map for each pageblock, or two; and of each section one for each of six types.
    #[test]
    fn maps_are_as_many_as_pageblocks_and_sections_need() {
        let maps = |engine, section_pages| {
            let experiment = Experiment { section_pages, ..Experiment::framewright() };
            let config = Config { engine, experiment, ..Config::framewright() };
            Plan::new(&[ZONE], &[NodeId(0)], &config)
                .map(|plan| (plan.maps, plan.sections, plan.section_words))
        };
        assert_eq!(maps(Engine::Linux, 0), Ok((0, 0, 0)));
        assert_eq!(maps(Engine::Framewright, 0), Ok((8 + 6, 0, 0)));
        assert_eq!(maps(Engine::Compact, 0), Ok((16 + 6, 0, 0)));
        assert_eq!(maps(Engine::Framewright, 2048), Ok((8 + 12, 1, 14)));
        // A map has bits for 512 pageblocks.
        let large = ZoneSpec { pages: 1 << 24, ..ZONE };
        let plan = Plan::new(&[large], &[NodeId(0)], &Config::framewright());
        assert_eq!(plan.map(|plan| plan.maps), Ok((1 << 15) + 6 * 64));
    }

    #[test]
    fn zones_are_255_at_most_and_each_within_its_bounds() {
        let plan =
            |zones: &[ZoneSpec]| Plan::new(zones, &[NodeId(0)], &Config::linux_v6_7()).map(|plan| plan.zones);
        let zones: Vec<_> = (0..256)
            .map(|n| ZoneSpec { start: Pfn(n * MAX_ORDER.pages()), pages: MAX_ORDER.pages(), ..ZONE })
            .collect();
        assert_eq!((plan(&zones[..255]), plan(&zones)), (Ok(255), Err(SetupError::ZoneCount(256))));
        for (start, pages, is_sound) in [
            (1 << 20, 0, false),
            (1 << 20, 1, true),
            (1 << 20, MAX_ZONE_PAGES, true),
            (1 << 20, MAX_ZONE_PAGES + 1, false),
            ((1 << 20) + 512, 1, false),
            ((1 << 52) - 1024, 1, true),
            (1 << 52, 1, false),
        ] {
            let expected = if is_sound { Ok(1) } else { Err(SetupError::BadZone(ZoneId(0))) };
            assert_eq!(
                plan(&[ZoneSpec { start: Pfn(start), pages, ..ZONE }]),
                expected,
                "{pages} from {start:#x} on"
            );
        }
    }

    #[test]
    fn a_base_page_has_4_to_64_kib_and_a_power_of_two() {
        let is_allowed = |&page_kib: &u32| {
            let made = Plan::new(&[ZONE], &[NodeId(0)], &Config { page_kib, ..Config::framewright() });
            assert!(made.is_ok() || made == Err(SetupError::page_kib(page_kib)), "{page_kib}");
            made.is_ok()
        };
        assert!((0..200).filter(is_allowed).eq([4, 8, 16, 32, 64]));
    }
}
