//! From a memory map to zones: node and type of each frame, and the part that boot leaves for later.
//!
//! Linux has one zone of a type per node, and zones of different nodes may be inside one another. Here a zone is a
//! range that shares no max-order block with another zone, and has at most 1 TiB. So a node has several zones of a type
//! if its memory interleaves with another node's, or is larger; zonelists and per-CPU lists treat them like any others.

use core::fmt;
use core::ops::Range;

use crate::boot::early::Early;
use crate::boot::map::{MemoryMap, Piece};
use crate::boot::spans::joined;
use crate::frame::MAX_ZONE_PAGES;
use crate::policy::init;
use crate::units::{MAX_ORDER, NodeId, Pfn, SECTION_PAGES, ZoneType};
use crate::zone::ZoneSpec;

/// Rules by which memory is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// End of DMA; a multiple of 1024. With 4 KiB pages: 16 MiB. 0: no DMA zone.
    pub dma_end: Pfn,
    /// End of DMA32; a multiple of 1024, not below `dma_end`. With 4 KiB pages: 4 GiB.
    pub dma32_end: Pfn,
    /// Whether a node's memory from its first hot-pluggable frame on is a Movable zone, which unmovable blocks must not
    /// use (Linux' `movable_node`). If not, hot-pluggable memory is treated like any other.
    pub movable_node: bool,
    /// Base pages in a section; a multiple of 1024.
    pub section: u64,
    /// Whether most of each node is left for later (see [`policy::init`](crate::policy::init)).
    pub defer: bool,
}

impl Default for Rules {
    /// x86-64 with 4 KiB pages.
    fn default() -> Self {
        Self {
            dma_end: Pfn(0x1000),
            dma32_end: Pfn(0x10_0000),
            movable_node: false,
            section: SECTION_PAGES,
            defer: true,
        }
    }
}

impl Rules {
    const fn sound(&self) -> bool {
        self.dma_end.is_aligned(MAX_ORDER)
            && self.dma32_end.is_aligned(MAX_ORDER)
            && self.dma_end.0 <= self.dma32_end.0
            && self.section != 0
            && self.section.is_multiple_of(MAX_ORDER.pages())
    }

    /// The type of `pfn` by its address, and the end of the addresses of this type.
    fn by_address(&self, pfn: Pfn) -> (ZoneType, Pfn) {
        match () {
            () if pfn < self.dma_end => (ZoneType::Dma, self.dma_end),
            () if pfn < self.dma32_end => (ZoneType::Dma32, self.dma32_end),
            () => (ZoneType::Normal, Pfn(u64::MAX)),
        }
    }

    /// First address of a type.
    const fn floor(&self, kind: ZoneType) -> Pfn {
        match kind {
            ZoneType::Dma => Pfn(0),
            ZoneType::Dma32 => self.dma_end,
            ZoneType::Normal | ZoneType::Movable => self.dma32_end,
        }
    }
}

/// Memory of a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// Base pages of memory, reserved ones included.
    pub present: u64,
    /// First frame that is left for later; the zone's end if none is. The start of a section, or of the zone.
    pub deferred_from: Pfn,
}

/// Memory of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodePart {
    /// The node.
    pub node: NodeId,
    /// Base pages of memory, reserved ones included.
    pub present: u64,
    /// Frame from which on the node's memory is Movable. There may be none from there on.
    pub movable_from: Option<Pfn>,
    /// First frame of the node that is left for later, if there is one.
    pub first_deferred: Option<Pfn>,
}

/// Reason why a map cannot be divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZonesError {
    /// A border or the section is no multiple of 1024 pages, or borders descend.
    BadRules,
    /// The map has no memory for a zone.
    NoMemory,
    /// The caller's array of these, with this number of entries, is full.
    Full(&'static str, usize),
}

impl fmt::Display for ZonesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRules => {
                f.write_str("zone borders ascend, and they and sections are multiples of 1024 pages")
            }
            Self::NoMemory => f.write_str("the map holds no memory"),
            Self::Full(what, room) => write!(f, "there are more {what} than the {room} there is room for"),
        }
    }
}

impl core::error::Error for ZonesError {}

/// The caller's memory for a [`Division`].
#[derive(Debug)]
pub struct Buffers<'b> {
    /// Zones. An allocator has at most 255.
    pub specs: &'b mut [ZoneSpec],
    /// Parts: as many as zones.
    pub parts: &'b mut [Part],
    /// Nodes with memory.
    pub nodes: &'b mut [NodePart],
}

/// The zones of a map, sorted by address.
#[derive(Clone, Copy, Debug)]
pub struct Division<'b> {
    /// Range, node and type of each zone, for [`Plan::new`](crate::setup::Plan::new).
    pub specs: &'b [ZoneSpec],
    /// Memory of each zone.
    pub parts: &'b [Part],
    /// Nodes that have memory, by number.
    pub nodes: &'b [NodePart],
    /// Base pages in no zone, because they share a max-order block with another zone.
    pub lost: u64,
    /// The rules of the division.
    pub rules: Rules,
}

impl<'b> Division<'b> {
    /// Divides the memory of `map`. O(ranges × nodes).
    ///
    /// # Errors
    /// Invalid rules, a map without memory, or an array that is full.
    pub fn new(map: &MemoryMap<'_>, rules: Rules, room: Buffers<'b>) -> Result<Self, ZonesError> {
        if !rules.sound() {
            return Err(ZonesError::BadRules);
        }
        let Buffers { specs, parts, nodes } = room;
        let node_count = collect_nodes(map, nodes)?;
        let nodes = &mut nodes[..node_count];
        if rules.movable_node {
            find_movable(map, &rules, nodes);
        }
        let mut zones = Zones { specs, parts, len: 0, lost: 0 };
        for piece in map.memory() {
            let movable_from = node_of(nodes, piece.home.node).and_then(|node| node.movable_from);
            zones.add_piece(&rules, piece, movable_from.unwrap_or(Pfn(u64::MAX)))?;
        }
        let Zones { specs, parts, len, lost } = zones;
        if len == 0 {
            return Err(ZonesError::NoMemory);
        }
        let (specs, parts) = (&specs[..len], &mut parts[..len]);
        if rules.defer {
            defer(map, &rules, nodes, specs, parts);
        }
        Ok(Self { specs, parts, nodes, lost, rules })
    }

    /// The memory that early allocation has left to the zones: sorted, cut where zones end. To be asked when it has
    /// ended; the ranges are those for [`late::deferred`](crate::boot::late::deferred). O(zones × ranges).
    pub fn free<'a>(&'a self, early: &'a Early<'_>) -> impl Iterator<Item = Range<Pfn>> + 'a {
        self.specs.iter().flat_map(|spec| {
            // Memory inside the zone but of another node is lost.
            let of_node = early.free().filter(|piece| piece.home.node == spec.node);
            let within =
                of_node.map(|piece| piece.range.start.max(spec.start)..piece.range.end.min(spec.end()));
            joined(within.filter(|range| !range.is_empty()))
        })
    }
}

fn node_of(nodes: &[NodePart], node: NodeId) -> Option<&NodePart> {
    nodes.binary_search_by_key(&node, |part| part.node).ok().map(|n| &nodes[n])
}

/// Fills `nodes` with the nodes that have memory, by number. Returns their number.
fn collect_nodes(map: &MemoryMap<'_>, nodes: &mut [NodePart]) -> Result<usize, ZonesError> {
    let room = nodes.len();
    let mut len = 0;
    for piece in map.memory() {
        let node = piece.home.node;
        match nodes[..len].binary_search_by_key(&node, |part| part.node) {
            Ok(n) => nodes[n].present += piece.pages(),
            Err(_) if len == room => return Err(ZonesError::Full("nodes", room)),
            Err(n) => {
                nodes.copy_within(n..len, n + 1);
                nodes[n] = NodePart { node, present: piece.pages(), ..NodePart::default() };
                len += 1;
            }
        }
    }
    Ok(len)
}

/// Finds the first Movable frame of each node.
fn find_movable(map: &MemoryMap<'_>, rules: &Rules, nodes: &mut [NodePart]) {
    let Some(last) = map.memory().last() else { return };
    // Only the machine's highest type is divided: lower addresses are scarce.
    let floor = rules.floor(rules.by_address(Pfn(last.range.end.0 - 1)).0);
    for part in nodes {
        let mut memory = map.memory().filter(|piece| piece.home.node == part.node);
        let first = memory.find(|piece| piece.home.hot_pluggable);
        part.movable_from = first.map(|piece| up(piece.range.start).max(floor));
    }
}

/// The next max-order border at or above `pfn`.
const fn up(pfn: Pfn) -> Pfn {
    Pfn(pfn.0.next_multiple_of(MAX_ORDER.pages()))
}

/// Zones while they are built.
struct Zones<'b> {
    specs: &'b mut [ZoneSpec],
    parts: &'b mut [Part],
    len: usize,
    lost: u64,
}

impl Zones<'_> {
    /// Adds a piece of memory above all that was added before, cut at the borders of zone types.
    fn add_piece(&mut self, rules: &Rules, piece: Piece, movable_from: Pfn) -> Result<(), ZonesError> {
        let Range { start: mut at, end } = piece.range;
        while at < end {
            let (kind, border) = match rules.by_address(at) {
                _ if at >= movable_from => (ZoneType::Movable, end),
                (kind, border) => (kind, border.min(movable_from)),
            };
            self.add(piece.home.node, kind, at..border.min(end))?;
            at = border.min(end);
        }
        Ok(())
    }

    /// Adds memory above all that was added before.
    fn add(&mut self, node: NodeId, kind: ZoneType, range: Range<Pfn>) -> Result<(), ZonesError> {
        let mut at = range.start;
        while at < range.end {
            let last = self.specs[..self.len].last_mut();
            let fits = last.filter(|spec| {
                spec.node == node && spec.kind == kind && at.0 - spec.start.0 < MAX_ZONE_PAGES
            });
            let Some(spec) = fits else {
                at = self.begin(node, kind, at..range.end)?;
                continue;
            };
            let end = range.end.min(spec.start.add(MAX_ZONE_PAGES));
            spec.pages = end.0 - spec.start.0;
            let part = &mut self.parts[self.len - 1];
            part.present += end.0 - at.0;
            part.deferred_from = end;
            at = end;
        }
        Ok(())
    }

    /// Begins a zone for `range`. Returns the first frame that it can have. If it can have none, returns the range's
    /// end and begins no zone.
    fn begin(&mut self, node: NodeId, kind: ZoneType, range: Range<Pfn>) -> Result<Pfn, ZonesError> {
        let taken = self.specs[..self.len].last().map_or(Pfn(0), ZoneSpec::end);
        let mut start = range.start.block_start(MAX_ORDER);
        if start < taken {
            start = up(range.start).min(range.end);
            self.lost += start.0 - range.start.0;
            if start == range.end {
                return Ok(start);
            }
        }
        let room = self.specs.len().min(self.parts.len());
        if self.len == room {
            return Err(ZonesError::Full("zones", room));
        }
        self.specs[self.len] = ZoneSpec { node, kind, start, pages: 0 };
        self.parts[self.len] = Part { present: 0, deferred_from: start };
        self.len += 1;
        Ok(start.max(range.start))
    }
}

/// Leaves most of each node's highest type for later. The zones of one type and node count as one.
fn defer(map: &MemoryMap<'_>, rules: &Rules, nodes: &mut [NodePart], specs: &[ZoneSpec], parts: &mut [Part]) {
    for node in nodes {
        // The lowest zone of the highest type: of equals the last one, from above.
        let of_node = specs.iter().rev().filter(|spec| spec.node == node.node);
        let Some(&ZoneSpec { kind, start: floor, .. }) = of_node.max_by_key(|spec| spec.kind) else {
            continue;
        };
        let memory = map.memory().filter(|piece| piece.home.node == node.node);
        let ranges = memory.map(|piece| piece.range.start.max(floor)..piece.range.end);
        node.first_deferred = init::first_deferred(ranges.filter(|range| !range.is_empty()), rules.section);
        let Some(first) = node.first_deferred else { continue };
        for (spec, part) in specs.iter().zip(&mut *parts) {
            if (spec.node, spec.kind) == (node.node, kind) {
                part.deferred_from = first.clamp(spec.start, spec.end());
            }
        }
    }
}

#[cfg(test)]
mod tests;
