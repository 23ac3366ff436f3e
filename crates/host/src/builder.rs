//! Describing an arena, and making it.
#![expect(unsafe_code, reason = "the caller's memory comes as an address")]

use core::ops::Range;
use core::ptr::NonNull;
use std::thread;

use framewright::config::Engine;
use framewright::frame::{DirectMap, FrameUser, MAX_ZONE_PAGES, Zeroable};
use framewright::units::MAX_ORDER;
use framewright::{Allocator, Config, NodeId, Order, Pfn, Plan, SetupError, ZoneSpec, ZoneType};

use crate::arena::{Arena, Pages};
use crate::error::ArenaError;
use crate::event::event;
use crate::numa::Placement;
use crate::os::{Mapping, machine_nodes, system_page_bytes};
use crate::robust::OwnerLocks;
use crate::shared::SharedArena;
use crate::store::Store;

/// The largest block: memory is aligned to it, so that every block is aligned to its size.
const LARGEST_BLOCK_PAGES: u64 = framewright::units::MAX_ORDER.pages();
const HUGE_PAGE: usize = 2 << 20;
const GIANT_PAGE: usize = 1 << 30;

/// Memory behind an arena's frames. All of it is zero at first; what a freed block held stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backing {
    /// Pages of the system's size, committed when first touched.
    #[default]
    Base,
    /// Pages of the system's size, with advice to use huge pages (`MADV_HUGEPAGE`): the system may, and commits 2 MiB
    /// at a touch.
    Huge,
    /// Pages of 2 MiB from the system's pool (`MAP_HUGETLB`), all set aside when the arena is made.
    ///
    /// The pool promises a number of pages of the machine, not of each node: with
    /// [`machine_nodes`](ArenaBuilder::machine_nodes) they are also committed when the arena is made, so that a node
    /// that has too few is an error then, and not a fault (`SIGBUS`) later.
    HugeTlb,
    /// Pages of 1 GiB from the system's pool, set aside like those of 2 MiB. The size is rounded up to them.
    GiantTlb,
    /// None: frames are described and handed out as numbers. For simulated sizes, for memory that is mapped
    /// elsewhere, and for measuring the allocator alone.
    Described,
}

/// Describes an arena. [`build`](Self::build) makes it.
#[derive(Debug)]
#[must_use = "nothing is made until `build`"]
pub struct ArenaBuilder {
    pages: u64,
    /// The size, if it was given in bytes.
    bytes: Option<u64>,
    page_bytes: Option<usize>,
    base: Pfn,
    memory: Source,
    cpus: usize,
    nodes: usize,
    shares: Option<Vec<u64>>,
    distances: Option<Vec<u8>>,
    background: bool,
    /// The machine's node of each of ours.
    bound: Option<Vec<usize>>,
    placement: Placement,
    silent: bool,
    /// Frames that are not there.
    holes: Vec<Range<Pfn>>,
    prefaulted: bool,
    locked: bool,
    guarded: bool,
    /// A child of the process has a copy of the memory, not zeroes.
    copied_by_fork: bool,
    config: Config,
    engine: Option<Engine>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Backing(Backing),
    Caller { start: NonNull<u8>, bytes: usize },
}

impl Arena {
    /// An arena to be described.
    pub fn builder() -> ArenaBuilder {
        ArenaBuilder::new()
    }
}

impl ArenaBuilder {
    pub(crate) fn new() -> Self {
        let parallelism = thread::available_parallelism().map_or(1, usize::from);
        Self {
            pages: 0,
            bytes: None,
            page_bytes: None,
            base: Pfn(0),
            memory: Source::Backing(Backing::default()),
            cpus: (2 * parallelism).max(4),
            nodes: 1,
            shares: None,
            distances: None,
            background: false,
            bound: None,
            placement: Placement::FirstTouch,
            silent: false,
            holes: Vec::new(),
            prefaulted: false,
            locked: false,
            guarded: false,
            copied_by_fork: false,
            config: Config::default(),
            engine: None,
        }
    }

    /// The size; rounded up to whole pages. Only address space is reserved, so it may exceed the machine's
    /// memory. A limit of 255 · 2^28 pages, 255 TiB with pages of 4 KiB, and of the address space if it is not
    /// [`Backing::Described`].
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Bytes in a base page: 4, 8, 16, 32 or 64 KiB. Default: what the configuration says ([`Config::page_kib`]),
    /// [`PAGE_BYTES`](crate::PAGE_BYTES) if it says nothing else. Blocks are as many times larger: a block of order 9
    /// of 64 KiB pages has 32 MiB. A [`FileCache`](crate::FileCache) wants pages of 4 KiB.
    pub fn page_bytes(mut self, bytes: usize) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// The size in base pages.
    pub fn pages(mut self, pages: u64) -> Self {
        (self.pages, self.bytes) = (pages, None);
        self
    }

    /// The number of the first frame, a multiple of 1024. Default: 0.
    pub fn base(mut self, base: Pfn) -> Self {
        self.base = base;
        self
    }

    /// The memory behind the frames. Default: [`Backing::Base`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.memory = Source::Backing(backing);
        self
    }

    /// Manages the caller's memory, which determines the size: `bytes` from `start` on, whole pages. A block's
    /// address is a multiple of its size if `start` is a multiple of 1024 base pages.
    ///
    /// # Safety
    /// The memory can be read and written and is initialised, as memory fresh from the system is (what
    /// [`std::alloc::alloc`] returns is not), and no other code touches it, from now on until the arena is gone.
    pub unsafe fn memory(mut self, start: NonNull<u8>, bytes: usize) -> Self {
        self.memory = Source::Caller { start, bytes };
        self
    }

    /// CPUs: how many threads can be attached at the same time. Default: twice the machine's parallelism, at least 4.
    /// Each costs per-CPU lists of its own.
    pub fn cpus(mut self, cpus: usize) -> Self {
        self.cpus = cpus;
        self
    }

    /// Splits the frames into `nodes` nodes of equal size; CPU `n` is on node `n mod nodes`. Default: 1.
    ///
    /// The nodes are virtual: the memory is not bound to the machine's (see [`machine_nodes`](Self::machine_nodes)).
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        (self.shares, self.bound) = (None, None);
        self
    }

    /// Splits the frames into nodes of these shares, such as `[1, 5]`, to the next 1024 base pages. Otherwise as
    /// [`nodes`](Self::nodes).
    pub fn node_shares(mut self, shares: impl Into<Vec<u64>>) -> Self {
        let shares = shares.into();
        self = self.nodes(shares.len());
        self.shares = Some(shares);
        self
    }

    /// The distances between the nodes, row by row: 10 on the diagonal, no less elsewhere. They order the
    /// zonelists, and zone reclaim goes by them. Default: all nodes are equally far.
    pub fn distances(mut self, distances: impl Into<Vec<u8>>) -> Self {
        self.distances = Some(distances.into());
        self
    }

    /// One node for each of the machine's that has memory: with their distances, and with the arena's own
    /// memory bound to them (`MPOL_BIND`). One node, bound to nothing, where the system does not say.
    ///
    /// CPU `n` is on node `n mod nodes`, and threads are not moved: a thread that wants memory that is near
    /// attaches to such a CPU.
    pub fn machine_nodes(mut self) -> Self {
        (self.shares, self.placement) = (None, Placement::FirstTouch);
        (self.nodes, self.distances, self.bound) = match machine_nodes() {
            Some(machine) => (machine.ids.len(), Some(machine.distances), Some(machine.ids)),
            None => (1, None, None),
        };
        self
    }

    /// Nodes that the system takes the arena's own memory from. Default: from the node of the CPU that touches a page
    /// first. The arena itself does not know; [`machine_nodes`](Self::machine_nodes) makes nodes of its own of the
    /// machine's, and does without. [`Arena::resident`] returns what was got.
    ///
    /// ```
    /// use framewright_host::{Arena, Placement};
    ///
    /// let arena: Arena = Arena::builder().bytes(4 << 20).placement(Placement::Preferred(0)).prefault().build()?;
    /// println!("{:?}", arena.resident().on_nodes);
    /// # Ok::<(), framewright_host::ArenaError>(())
    /// ```
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self.bound = None;
        self
    }

    /// Frames that are not there: they are never handed out, and count nowhere. Their place in the arena's memory is
    /// left alone. For memory with gaps, and for what the caller keeps for itself.
    ///
    /// ```
    /// use framewright_host::{Arena, Order, Pfn};
    ///
    /// let arena: Arena = Arena::builder().pages(4096).holes([Pfn(0)..Pfn(16), Pfn(1000)..Pfn(3000)]).build()?;
    /// assert_eq!(arena.counts().managed, 4096 - 16 - 2000);
    /// assert!(arena.attach()?.alloc_at(Pfn(1000), Order::ZERO).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holes(mut self, holes: impl Into<Vec<Range<Pfn>>>) -> Self {
        self.holes = holes.into();
        self
    }

    /// Has the system commit all of the arena's own memory when the arena is made: no allocation touches a page for the
    /// first time. As much as the arena is large must be free.
    pub fn prefault(mut self) -> Self {
        self.prefaulted = true;
        self
    }

    /// Has the system keep the arena's own memory from being swapped out (`mlock`), and so commit it when the arena is
    /// made. Such an arena gives nothing back to the system ([`Cpu::trim`](crate::Cpu::trim)).
    pub fn lock_memory(mut self) -> Self {
        self.locked = true;
        self
    }

    /// With a page before the arena's own memory and one after it that no thread can touch: what runs over either end
    /// is a fault. Not with [`Backing::HugeTlb`] and [`Backing::GiantTlb`].
    pub fn guard_pages(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// Tells no listener of what the arena does (feature `tracing`): for an arena that is the memory of the global
    /// allocator. A listener may allocate with a lock held that it would take again.
    pub fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    /// A child of this process gets a copy of the memory, as of any other memory of a program.
    #[cfg(feature = "global_allocator")]
    pub(crate) fn copied_by_fork(mut self) -> Self {
        self.copied_by_fork = true;
        self
    }

    /// With a CPU for each node's background thread, which reclaims and compacts (see [`Arena::run_background`]).
    pub fn background(mut self) -> Self {
        self.background = true;
        self
    }

    /// The allocator's configuration. Default: [`Config::framewright`].
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Way in which the arena keeps free memory and frames, in place of the configuration's. With [`Engine::Compact`]
    /// 0.28 bytes instead of 8.2, and memory is initialised when it is needed ([`Config::lazy_pageblocks`]): an arena
    /// of a terabyte is made in well under a millisecond. Each allocation and each free costs an atomic operation more,
    /// and what needs a word for each frame is refused. Default: what the configuration says.
    ///
    /// | a wrong free | `Framewright` | `Compact` |
    /// |---|---|---|
    /// | of another order, or inside a block | refused | refused |
    /// | of a block that is free, in the arena or on a CPU's list | refused | refused |
    /// | of a frame that was never allocated, or is not the arena's | refused | refused |
    /// | of the same block on two CPUs at the same instant | refused, unless one of them is the CPU that it came from | refused |
    /// | of a block that has a new owner by then | accepted | accepted |
    ///
    /// ```
    /// use framewright_host::{Arena, Backing, Engine, Migratetype, Order};
    ///
    /// let arena: Arena =
    ///     Arena::builder().bytes(1 << 40).backing(Backing::Described).engine(Engine::Compact).build()?;
    /// assert!(arena.metadata_bytes() as f64 <= 0.3 * (1_u64 << 28) as f64);
    /// let cpu = arena.attach()?;
    /// let page = cpu.alloc_block(Order::ZERO, Migratetype::Movable)?;
    /// # drop(page);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Makes the arena, with user slots that are all zero. O(pages / 1024); the descriptors of frames are not
    /// touched.
    ///
    /// # Errors
    /// The fault of the description, or the means that the system lacks, and what to do about it.
    pub fn build<M: Zeroable>(self) -> Result<Arena<M>, ArenaError> {
        // SAFETY: zeroes are a valid `M`.
        unsafe { self.make(None, 0) }
    }

    /// Makes the arena, with a user slot for each frame, in ascending order. The descriptors of frames up to
    /// the next multiple of 1024 have one, too. O(pages).
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_with<M: FrameUser>(self, mut user: impl FnMut(Pfn) -> M) -> Result<Arena<M>, ArenaError> {
        // SAFETY: every slot is made by `user`.
        unsafe { self.make(Some(&mut |pfn| user(Pfn(pfn))), 0) }
    }

    /// Makes an arena that threads share without attaching (see [`SharedArena`]). It has one CPU more than
    /// [`cpus`](Self::cpus) says, which those threads take turns with that get no CPU of their own.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_shared<M: Zeroable>(self) -> Result<SharedArena<M>, ArenaError> {
        // SAFETY: zeroes are a valid `M`.
        unsafe { self.make(None, 1) }.map(SharedArena::new)
    }

    /// # Safety
    /// Without `user`, zeroed memory is a valid `M`.
    unsafe fn make<M: FrameUser>(
        mut self,
        user: Option<&mut dyn FnMut(u64) -> M>,
        spare_slots: usize,
    ) -> Result<Arena<M>, ArenaError> {
        self.settle_sizes()?;
        let page = self.page();
        if self.cpus == 0 {
            return Err(SetupError::CpuCount(0).into());
        }
        let slots = self.cpus.saturating_add(spare_slots);
        let zones = self.zones()?;
        // Behind all others: node n's is the n-th of them.
        let background = slots;
        let slots = slots.saturating_add(if self.background { self.nodes } else { 0 });
        if slots > usize::from(u16::MAX) {
            return Err(SetupError::CpuCount(slots).into());
        }
        let cpu_nodes: Vec<NodeId> = (0..slots)
            .map(|cpu| cpu.checked_sub(background).unwrap_or(cpu % self.nodes))
            .map(|node| NodeId(node as u16))
            .collect();
        let plan = Plan::new(&zones, &cpu_nodes, &self.config)?;

        let pages = self.reserve()?;
        self.prepare(&pages, &zones)?;
        let frames = self.base..self.base.add(self.pages);
        let direct_map = match &pages {
            Pages::None if self.config.poison || self.config.init_on_free => {
                return Err(ArenaError::PoisonWithoutMemory);
            }
            Pages::None => None,
            Pages::Own(mapping) => Some(mapping.start()),
            Pages::Caller(start) => Some(*start),
        }
        // SAFETY: exactly `frames` are there and are managed; the arena keeps the memory, or the caller of
        // `memory` does; and it hands blocks to their owners alone.
        .map(|start| unsafe { DirectMap::new(start.as_ptr(), frames.start, page) });

        let trims = self.trims();
        // SAFETY: by our caller's promise on `user`.
        let (store, parts) = unsafe { Store::new(&plan, &cpu_nodes, user, None) }?;
        let allocator = Allocator::with_distances(
            &zones,
            parts.cpu_nodes,
            self.distances.as_deref(),
            self.config,
            parts.memory,
            direct_map,
        )?;
        for zone in &zones {
            for range in self.present(zone.start..zone.start.add(zone.pages)) {
                allocator.add_memory(range.start, range.end.0 - range.start.0)?;
            }
        }
        allocator.resize_pcps();
        let owners = OwnerLocks::new(slots)?;
        // SAFETY: all parts borrow from this store, no thread has used them but to add memory, and `pages` is
        // where `frames` are.
        let mut arena =
            unsafe { Arena::new(allocator, parts.pins, store, pages, frames, owners, self.cpus, background) };
        arena.bound = self.bound;
        arena.trims = trims;
        arena.silent = self.silent;
        if !self.config.poison && !self.config.init_on_free {
            arena.annotate();
        }
        event!(
            self.silent,
            DEBUG,
            pages = self.pages,
            page_bytes = page,
            nodes = self.nodes,
            slots = self.cpus,
            "arena made"
        );
        Ok(arena)
    }

    /// Brings sizes that were given in bytes, or by the caller's memory, into pages.
    fn settle_sizes(&mut self) -> Result<(), ArenaError> {
        if let Some(engine) = self.engine {
            self.config.engine = engine;
            self.config.lazy_pageblocks |= engine == Engine::Compact;
        }
        if let Some(bytes) = self.page_bytes {
            if !(4 << 10..=64 << 10).contains(&bytes) || !bytes.is_power_of_two() {
                return Err(ArenaError::PageBytes(bytes));
            }
            self.config.page_kib = (bytes >> 10) as u32;
        }
        if !(4..=64).contains(&self.config.page_kib) || !self.config.page_kib.is_power_of_two() {
            return Err(SetupError::page_kib(self.config.page_kib).into());
        }
        let page = self.page();
        if let Some(bytes) = self.bytes {
            self.pages = bytes.div_ceil(page as u64);
        }
        if let Source::Caller { start, bytes } = self.memory {
            let address = start.as_ptr() as usize;
            if !address.is_multiple_of(page) || !bytes.is_multiple_of(page) || bytes == 0 {
                return Err(ArenaError::Misaligned { address, bytes, page });
            }
            self.pages = (bytes / page) as u64;
        }
        if self.pages == 0 {
            return Err(ArenaError::Empty);
        }
        if !self.base.0.is_multiple_of(LARGEST_BLOCK_PAGES) {
            return Err(ArenaError::Base(self.base.0));
        }
        let end = self
            .pages
            .checked_next_multiple_of(LARGEST_BLOCK_PAGES)
            .and_then(|all| self.base.0.checked_add(all));
        if end.is_none() || self.pages > u64::from(u8::MAX) * MAX_ZONE_PAGES {
            return Err(ArenaError::TooLarge { base: self.base, pages: self.pages });
        }
        if let Some(hole) = self.holes.iter().find(|hole| hole.start > hole.end) {
            return Err(ArenaError::Hole(hole.clone()));
        }
        self.holes.retain(|hole| hole.start < hole.end);
        self.holes.sort_unstable_by_key(|hole| hole.start);
        if self.present(self.base..self.base.add(self.pages)).is_empty() {
            return Err(ArenaError::Empty);
        }
        Ok(())
    }

    /// Preparation of the arena's own memory before its use: bound to nodes, kept from children, populated, locked.
    fn prepare(&self, pages: &Pages, zones: &[ZoneSpec]) -> Result<(), ArenaError> {
        let Pages::Own(mapping) = pages else { return Ok(()) };
        let page = self.page();
        if let Some(bound) = &self.bound {
            for zone in zones {
                let start = (zone.start.0 - self.base.0) as usize * page;
                let node = bound[usize::from(zone.node.0)];
                // To the mapping's end, where later zones are bound anew: zones may end inside a huge page.
                mapping
                    .bind(start, mapping.bytes() - start, node)
                    .map_err(|source| ArenaError::Bind { node, source })?;
            }
        }
        let placed = self.placement.apply(mapping);
        placed.map_err(|(node, source)| ArenaError::Bind { node, source })?;
        if !self.copied_by_fork {
            let kept = mapping.keep_from_children();
            kept.map_err(|source| ArenaError::Reserve { what: "pages", bytes: mapping.bytes(), source })?;
        }
        let from_pool = matches!(self.memory, Source::Backing(Backing::HugeTlb | Backing::GiantTlb))
            && self.bound.is_some();
        if self.prefaulted || from_pool {
            mapping.populate().map_err(ArenaError::Populate)?;
        }
        if self.locked {
            mapping.lock().map_err(|source| ArenaError::Lock { bytes: mapping.bytes(), source })?;
        }
        Ok(())
    }

    /// The least order of free blocks that can go back to the system, if any can.
    fn trims(&self) -> Option<Order> {
        // What goes back are whole pages of the system, or of the pool.
        let whole = |bytes: usize| Order::for_pages(bytes.div_ceil(self.page()) as u64);
        match self.memory {
            // A free would write to the memory, and commit it again.
            _ if self.locked || self.config.poison || self.config.init_on_free => None,
            Source::Caller { .. } | Source::Backing(Backing::Described) => None,
            Source::Backing(Backing::Base | Backing::Huge) => whole(system_page_bytes()),
            Source::Backing(Backing::HugeTlb) => whole(HUGE_PAGE),
            Source::Backing(Backing::GiantTlb) => None,
        }
    }

    /// Bytes in a base page.
    const fn page(&self) -> usize {
        (self.config.page_kib as usize) << 10
    }

    /// Parts of a range that are there.
    fn present(&self, range: Range<Pfn>) -> Vec<Range<Pfn>> {
        let mut left = Vec::new();
        let mut at = range.start;
        for hole in self.holes.iter().filter(|hole| hole.end > range.start && hole.start < range.end) {
            if hole.start > at {
                left.push(at..hole.start);
            }
            at = at.max(hole.end);
        }
        if at < range.end {
            left.push(at..range.end);
        }
        left
    }

    /// The nodes' shares of the frames, each in as many zones as there must be.
    fn zones(&self) -> Result<Vec<ZoneSpec>, ArenaError> {
        let end = self.base.0 + self.pages;
        let nodes = self.nodes as u64;
        let blocks = self.pages.div_ceil(LARGEST_BLOCK_PAGES);
        let most = blocks.min(framewright::units::MAX_NODES as u64);
        if nodes == 0 || nodes > most {
            return Err(ArenaError::Nodes { nodes: self.nodes, most });
        }
        let shares = self.shares.clone().unwrap_or_else(|| vec![1; self.nodes]);
        let sum = |shares: &[u64]| shares.iter().map(|&share| u128::from(share)).sum::<u128>();
        let all = sum(&shares);
        let mut zones = Vec::new();
        for node in 0..nodes {
            let border = |n: u64| {
                // Below 2^26 blocks, and shares below 2^70 in all.
                let blocks = u128::from(blocks) * sum(&shares[..n as usize]) / all.max(1);
                end.min(self.base.0 + blocks as u64 * LARGEST_BLOCK_PAGES)
            };
            let (mut start, end) = (border(node), border(node + 1));
            if start == end {
                return Err(ArenaError::Nodes { nodes: self.nodes, most });
            }
            while start < end {
                let pages = (end - start).min(MAX_ZONE_PAGES);
                let node = NodeId(node as u16);
                zones.push(ZoneSpec { node, kind: ZoneType::Normal, start: Pfn(start), pages });
                start += pages;
            }
        }
        Ok(zones)
    }

    fn reserve(&self) -> Result<Pages, ArenaError> {
        let backing = match self.memory {
            Source::Caller { start, .. } => return Ok(Pages::Caller(start)),
            Source::Backing(Backing::Described) => return Ok(Pages::None),
            Source::Backing(backing) => backing,
        };
        let bytes = (self.pages as usize).saturating_mul(self.page());
        let align = self.page() << MAX_ORDER.get();
        let failed = |source| ArenaError::Reserve { what: "pages", bytes, source };
        let mapping = match backing {
            Backing::HugeTlb | Backing::GiantTlb => {
                let page_bytes = if backing == Backing::HugeTlb { HUGE_PAGE } else { GIANT_PAGE };
                let bytes = bytes.checked_next_multiple_of(page_bytes).unwrap_or(usize::MAX);
                let wanted = bytes / page_bytes;
                Mapping::hugetlb(bytes, align, page_bytes).map_err(|source| ArenaError::HugePages {
                    wanted,
                    page_bytes,
                    source,
                })?
            }
            _ if self.guarded => Mapping::guarded(bytes, align).map_err(failed)?,
            _ => Mapping::lazy(bytes, align).map_err(failed)?,
        };
        if backing == Backing::Huge {
            mapping.advise_huge().map_err(ArenaError::HugeAdvice)?;
        }
        Ok(Pages::Own(mapping))
    }
}
