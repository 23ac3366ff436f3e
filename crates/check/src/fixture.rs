//! The one way in which tests make an allocator: any zones, any CPUs, any configuration, on any platform.
//!
//! ```
//! use framewright::{Migratetype, Order};
//! use framewright_check::fixture::Spec;
//! use framewright_check::platform::plain::Plain;
//!
//! let world = Spec::one_zone(4096, 2).build::<Plain>();
//! let block = world.on(0, |cpu| cpu.alloc(Order::ZERO, Migratetype::Movable)).unwrap();
//! world.on(1, |cpu| cpu.free(block, Order::ZERO)).unwrap();
//! assert_eq!(world.settled().allocated, 0);
//! ```
//!
//! A world that is dropped checks every invariant of its allocator, so no test can forget to, or leave damage behind
//! that it did not look for. A test that damages its allocator on purpose calls [`World::note_damage`].
#![expect(unsafe_code, reason = "the world owns the memory that its allocator borrows")]

use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use framewright::boot::zones::Division;
use framewright::config::{Config, Engine, Generation, PcpFixed, PcpOrders, RefillCheck};
use framewright::defer::{Deferred, DeferredMemory, DeferredZone, How, ZoneCursor};
use framewright::frame::{DirectMap, Frame, FrameUser, PageMap, Pageblock, Zeroable};
use framewright::pcp::{MoreLists, Pcp};
use framewright::platform::{PinnedCpu, Platform, Word};
use framewright::policy::init::clipped;
use framewright::reclaim::Node;
use framewright::sync::QueueNode;
use framewright::units::{CpuId, MAX_ORDER, NodeId, PAGEBLOCK_PAGES, Pfn, ZoneId, ZoneType};
use framewright::zone::{Section, Zone, ZoneSpec};
use framewright::{Allocator, Cpu, Memory, Plan};

use crate::oracle::Oracle;
use crate::platform::pin::OwnedPin;
use crate::platform::plain::Plain;

/// First frame of the worlds made by [`Spec::one_zone`]. Not 0, so that a frame number is never mistaken for
/// an index.
pub const BASE: Pfn = Pfn(0x1000);

/// Bytes of a page in worlds with a direct map: enough to see a poison pattern, and little to fill.
pub const PAGE_BYTES: usize = 16;

/// The parts of a world. Build it up, then call [`build`](Spec::build).
#[derive(Clone, Debug)]
pub struct Spec {
    zones: Vec<ZoneSpec>,
    /// Ranges of its memory: first frame and pages.
    pub memory: Vec<(Pfn, u64)>,
    cpu_nodes: Vec<NodeId>,
    distances: Option<Vec<u8>>,
    /// Its configuration.
    pub config: Config,
    sized: bool,
    pages: bool,
    bare: bool,
    later: Option<Later>,
}

/// Memory that boot initialises, immediately or later.
#[derive(Clone, Debug)]
struct Later {
    how: How,
    rests: Vec<RestSpec>,
    slots: usize,
}

/// The memory of one zone as boot hands it over.
#[derive(Clone, Debug)]
pub struct RestSpec {
    /// The zone.
    pub spec: ZoneSpec,
    /// Base pages of memory, reserved ones included.
    pub present: u64,
    /// Its free frames.
    pub free: Vec<Range<Pfn>>,
    /// Memory from here on is initialised later.
    pub deferred_from: Pfn,
    /// CPUs that initialise it.
    pub cpus: u64,
}

impl RestSpec {
    /// The zones of a division and what early allocation has left of them; `cpus` CPUs initialise each.
    pub fn of(division: &Division<'_>, free: &[Range<Pfn>], mut cpus: impl FnMut() -> u64) -> Vec<Self> {
        let zones = division.specs.iter().zip(division.parts.iter());
        let rests = zones.map(|(&spec, part)| Self {
            spec,
            present: part.present,
            free: clipped(free, spec.start..spec.end()).collect(),
            deferred_from: part.deferred_from,
            cpus: cpus(),
        });
        rests.collect()
    }
}

/// Configurations, and worlds, that differ from another one in a few settings.
pub trait But: Sized {
    /// With what `change` sets.
    fn but(self, change: impl FnOnce(&mut Config)) -> Self;

    /// With its free memory kept by this engine.
    fn engine(self, engine: Engine) -> Self {
        self.but(|config| config.engine = engine)
    }

    /// With lists of these orders.
    fn orders(self, orders: PcpOrders) -> Self {
        self.but(|config| config.experiment.pcp_orders = orders)
    }

    /// Without per-CPU lists.
    fn bare(self) -> Self {
        self.orders(PcpOrders::None)
    }

    /// With lists of a fixed size.
    fn fixed(self, batch: u32, high: u32) -> Self {
        self.but(|config| config.experiment.pcp_fixed = Some(PcpFixed { batch, high }))
    }

    /// With lists of at most `slots` blocks.
    fn slots(self, slots: u32) -> Self {
        self.but(|config| config.experiment.pcp_slots = slots)
    }

    /// With this many turns of waiting for the lists of other CPUs.
    fn spins(self, spins: u32) -> Self {
        self.but(|config| config.experiment.remote_drain_spins = spins)
    }

    /// With refills that look at their blocks there.
    fn check(self, check: RefillCheck) -> Self {
        self.but(|config| config.experiment.refill_check = check)
    }

    /// With zones of several sections of `pages` frames each.
    fn sections(self, pages: u64) -> Self {
        self.but(|config| config.experiment.section_pages = pages)
    }

    /// With all four kinds of policies of a generation.
    fn policies(self, generation: Generation) -> Self {
        self.but(|Config { experiment, .. }| {
            (experiment.marks, experiment.fallback) = (generation, generation);
            (experiment.passes, experiment.reclaim) = (generation, generation);
        })
    }
}

impl But for Config {
    fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl But for Spec {
    fn but(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }
}

impl Spec {
    /// `pages` frames from [`BASE`] on in one Normal zone of node 0, and `cpus` CPUs there. The default
    /// configuration, and per-CPU lists sized for the zone.
    pub fn one_zone(pages: u64, cpus: usize) -> Self {
        Self::zones([ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: BASE, pages }], cpus)
    }

    /// Zones that are full of memory, and `cpus` CPUs on node 0.
    pub fn zones(zones: impl Into<Vec<ZoneSpec>>, cpus: usize) -> Self {
        let zones = zones.into();
        Self {
            memory: zones.iter().map(|zone| (zone.start, zone.pages)).collect(),
            zones,
            cpu_nodes: vec![NodeId(0); cpus],
            distances: None,
            config: Config::default(),
            sized: true,
            pages: false,
            bare: false,
            later: None,
        }
    }

    /// Zones whose memory boot initialises, by at most `slots` workers at a time: the world has no memory until
    /// [`begin`](Allocator::begin). `cpus` CPUs on node 0.
    pub fn deferred(how: How, rests: impl Into<Vec<RestSpec>>, slots: usize, cpus: usize) -> Self {
        let rests = rests.into();
        let zones: Vec<_> = rests.iter().map(|rest| rest.spec).collect();
        let free = rests.iter().flat_map(|rest| rest.free.iter());
        Self {
            memory: free.map(|range| (range.start, range.end.0 - range.start.0)).collect(),
            sized: false,
            later: Some(Later { how, rests, slots }),
            ..Self::zones(zones, cpus)
        }
    }

    /// With these zones, in place of those of boot's memory.
    pub fn over(mut self, zones: impl Into<Vec<ZoneSpec>>) -> Self {
        self.zones = zones.into();
        self
    }

    /// With another configuration.
    pub const fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// With memory (first frame, pages) in these places only; the rest of the zones are holes.
    pub fn memory(mut self, ranges: impl Into<Vec<(Pfn, u64)>>) -> Self {
        self.memory = ranges.into();
        self
    }

    /// With CPU `n` on node `nodes[n]`.
    pub fn cpu_nodes(mut self, nodes: impl Into<Vec<NodeId>>) -> Self {
        self.cpu_nodes = nodes.into();
        self
    }

    /// If it `is_away`: with all CPUs on a node without memory, so that all they have is another node's.
    pub fn away(mut self, is_away: bool) -> Self {
        if !is_away {
            return self;
        }
        let end = self.zones.iter().map(|zone| zone.end().0).max().unwrap_or_default();
        let (start, node) = (Pfn(end.next_multiple_of(MAX_ORDER.pages())), NodeId(1));
        self.zones.push(ZoneSpec { node, kind: ZoneType::Normal, start, pages: 1 });
        self.cpu_nodes.fill(node);
        self
    }

    /// With these node distances, row by row.
    pub fn distances(mut self, distances: impl Into<Vec<u8>>) -> Self {
        self.distances = Some(distances.into());
        self
    }

    /// With per-CPU lists left at their boot size.
    pub const fn boot_sized(mut self) -> Self {
        self.sized = false;
        self
    }

    /// With memory behind its frames, [`PAGE_BYTES`] each, as worlds have that poison.
    pub const fn with_pages(mut self) -> Self {
        self.pages = true;
        self
    }

    /// Without memory behind its frames, also if the configuration wants some.
    pub const fn without_pages(mut self) -> Self {
        self.bare = true;
        self
    }

    fn has_pages(&self) -> bool {
        !self.bare && (self.pages || self.config.poison || self.config.init_on_free)
    }

    /// The world, without user data in its frames.
    pub fn build<P: Platform<Pin = OwnedPin>>(&self) -> World<P> {
        self.build_with(|_| ())
    }

    /// The world on the machine as it is. One thread drives all its CPUs: none waits for another to answer.
    pub fn plain(&self) -> World<Plain> {
        self.clone().spins(1).build()
    }

    /// The world, with user data `user(frame)` in every frame.
    pub fn build_with<P: Platform<Pin = OwnedPin>, M: FrameUser>(
        &self,
        mut user: impl FnMut(Pfn) -> M,
    ) -> World<P, M> {
        self.make(&mut user, Allocator::defer)
    }

    /// The world, with user data `user(frame)` in every frame, which boot clears before the frame is used.
    pub fn build_to_clear<P: Platform<Pin = OwnedPin>, M: Zeroable>(
        &self,
        mut user: impl FnMut(Pfn) -> M,
    ) -> World<P, M> {
        self.make(&mut user, Allocator::defer_and_clear)
    }

    fn make<P: Platform<Pin = OwnedPin>, M: FrameUser>(
        &self,
        user: &mut dyn FnMut(Pfn) -> M,
        defer: fn(&mut Allocator<'static, P, M>, &'static Deferred<'static, P>),
    ) -> World<P, M> {
        let plan = Plan::new(&self.zones, &self.cpu_nodes, &self.config).expect("the specification is sound");
        let made = |n: usize| (0..n).map(|_| P::Word::new(0)).collect::<Vec<_>>();
        let frames = plan.pageblocks * PAGEBLOCK_PAGES as usize;
        let parts = Parts {
            frames: Owned::new((0..plan.frames).map(|n| Frame::new(user(plan.base.add(n as u64))))),
            pageblocks: Owned::new((0..plan.pageblocks).map(|_| Pageblock::new())),
            maps: Owned::new((0..plan.maps).map(|_| PageMap::new())),
            slots: Owned::new(made(plan.slots)),
            pcps: Owned::new((0..plan.pcps).map(|_| MaybeUninit::uninit())),
            more_lists: Owned::new((0..plan.more_lists).map(|_| MaybeUninit::uninit())),
            zones: Owned::new((0..plan.zones).map(|_| MaybeUninit::uninit())),
            sections: Owned::new((0..plan.sections).map(|_| MaybeUninit::uninit())),
            section_words: Owned::new(made(plan.section_words)),
            queue: Owned::new((0..plan.queue).map(|_| QueueNode::new())),
            zonelist: Owned::new((0..plan.zonelist).map(|_| ZoneId::default())),
            nodes: Owned::new((0..plan.nodes).map(|_| MaybeUninit::uninit())),
            contexts: Owned::new(made(plan.contexts)),
            cpu_nodes: Owned::new(self.cpu_nodes.iter().copied()),
            pages: Owned::new((0..if self.has_pages() { frames * PAGE_BYTES } else { 0 }).map(|_| 0_u8)),
        };
        let later = self.later.as_ref().map(LaterParts::new);
        // SAFETY: `World` keeps every part until after the allocator is gone (see its `drop`), and lends the
        // allocator for no longer than itself. Each part is borrowed once, mutably or not.
        let mut allocator = unsafe {
            let memory = Memory {
                frames: parts.frames.get(),
                pageblocks: parts.pageblocks.get(),
                maps: parts.maps.get(),
                slots: parts.slots.get(),
                pcps: parts.pcps.get_mut(),
                more_lists: parts.more_lists.get_mut(),
                zones: parts.zones.get_mut(),
                sections: parts.sections.get_mut(),
                section_words: parts.section_words.get(),
                queue: parts.queue.get(),
                zonelist: parts.zonelist.get_mut(),
                nodes: parts.nodes.get_mut(),
                contexts: parts.contexts.get(),
            };
            let map = self
                .has_pages()
                .then(|| DirectMap::new(parts.pages.0.as_ptr().cast(), plan.base, PAGE_BYTES));
            let nodes = parts.cpu_nodes.get();
            let distances = self.distances.as_deref();
            Allocator::with_distances(&self.zones, nodes, distances, self.config, memory, map)
        }
        .expect("the memory is as the plan says");
        if let Some(later) = &later {
            // SAFETY: as above.
            defer(&mut allocator, &unsafe { later.deferred.get() }[0]);
        }
        for &(start, pages) in self.memory.iter().filter(|_| later.is_none()) {
            allocator.add_memory(start, pages).expect("the memory is in the zones");
        }
        if self.sized {
            allocator.resize_pcps();
        }
        let pinned = made(self.cpu_nodes.len()).into();
        World {
            allocator: ManuallyDrop::new(allocator),
            parts,
            later,
            pinned,
            spec: self.clone(),
            damaged: AtomicBool::new(false),
        }
    }

    /// An oracle for the memory of this world.
    pub fn oracle(&self) -> Oracle {
        Oracle::new(self.memory.iter().copied())
    }

    /// The first frame that the descriptors describe.
    pub fn base(&self) -> Pfn {
        self.zones.iter().map(|zone| zone.start).min().unwrap_or_default()
    }

    /// Pages of memory.
    pub fn pages(&self) -> u64 {
        self.memory.iter().map(|(_, pages)| pages).sum()
    }
}

/// An allocator together with the memory of its structures and the pins of its CPUs.
pub struct World<P: Platform<Pin = OwnedPin>, M: FrameUser = ()> {
    allocator: ManuallyDrop<Allocator<'static, P, M>>,
    parts: Parts<P, M>,
    later: Option<LaterParts<P>>,
    /// By CPU: 1 while its pin is out. Words of the platform, so that a checker sees a pin change hands.
    pinned: Box<[P::Word]>,
    spec: Spec,
    /// Whether a test has damaged it on purpose.
    damaged: AtomicBool,
}

// SAFETY: the allocator is `Sync` where its data may be shared; the parts are only touched through it, and in
// `drop`, which has the world to itself.
unsafe impl<P: Platform<Pin = OwnedPin>, M: FrameUser> Sync for World<P, M> {}
// SAFETY: as above; words, descriptors and user data may change threads.
unsafe impl<P: Platform<Pin = OwnedPin>, M: FrameUser> Send for World<P, M> {}

impl<P: Platform<Pin = OwnedPin>, M: FrameUser> World<P, M> {
    /// The allocator.
    pub fn allocator(&self) -> &Allocator<'_, P, M> {
        &self.allocator
    }

    /// The specification that it was built from.
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The pin of `cpu`, of which there is no other.
    #[track_caller]
    pub fn pin(&self, cpu: usize) -> OwnedPin {
        let out = self.pinned[cpu].swap(1, Ordering::Acquire);
        assert!(out == 0, "cpu {cpu} is pinned twice");
        // SAFETY: the flag was clear, so no other pin of this CPU of this allocator exists.
        unsafe { OwnedPin::new(CpuId(cpu as u16)) }
    }

    /// Gives a pin back, so that another thread may take it.
    pub fn unpin(&self, pin: OwnedPin) {
        self.pinned[pin.cpu().index()].store(0, Ordering::Release);
    }

    /// The allocator as the CPU of `pin` sees it.
    pub fn cpu<'a>(&'a self, pin: &'a OwnedPin) -> Cpu<'a, 'a, P, M> {
        self.allocator().cpu(pin)
    }

    /// Pins `cpu`, runs `f` there, and unpins it.
    #[track_caller]
    pub fn on<R>(&self, cpu: usize, f: impl FnOnce(&Cpu<'_, '_, P, M>) -> R) -> R {
        let pin = self.pin(cpu);
        let result = f(&self.cpu(&pin));
        self.unpin(pin);
        result
    }

    /// The allocator's structure at an address; `None` if there is none.
    pub fn place_of(&self, address: usize) -> Option<Place> {
        let parts = &self.parts;
        let places = [
            (Place::Frames, parts.frames.addresses()),
            (Place::Pageblocks, parts.pageblocks.addresses()),
            (Place::Maps, parts.maps.addresses()),
            (Place::Slots, parts.slots.addresses()),
            (Place::Pcps, parts.pcps.addresses()),
            (Place::Pcps, parts.more_lists.addresses()),
            (Place::Zones, parts.zones.addresses()),
            (Place::Zones, parts.sections.addresses()),
            (Place::Zones, parts.section_words.addresses()),
            (Place::Queue, parts.queue.addresses()),
        ];
        places.into_iter().find_map(|(place, at)| at.contains(&address).then_some(place))
    }

    /// The frame whose descriptor is at an address; `None` if there is none.
    pub fn frame_of(&self, address: usize) -> Option<Pfn> {
        let at = self.parts.frames.addresses();
        let n = address.checked_sub(at.start).filter(|_| address < at.end)? / size_of::<Frame<P, M>>();
        Some(self.spec.base().add(n as u64))
    }

    /// The frame descriptors. To corrupt them (see [`crate::corrupt`]).
    pub(crate) fn frames(&self) -> &[Frame<P, M>] {
        // SAFETY: the allocator borrows them shared, too, and they live as long as the world.
        unsafe { self.parts.frames.get() }
    }

    /// The pageblock descriptors, likewise.
    pub(crate) fn pageblocks(&self) -> &[Pageblock<P>] {
        // SAFETY: as above.
        unsafe { self.parts.pageblocks.get() }
    }

    /// The maps of free frames, likewise.
    pub(crate) fn maps(&self) -> &[PageMap<P>] {
        // SAFETY: as above.
        unsafe { self.parts.maps.get() }
    }

    /// The storage of the per-CPU lists, likewise.
    pub(crate) fn slots(&self) -> &[P::Word] {
        // SAFETY: as above.
        unsafe { self.parts.slots.get() }
    }

    /// Writes to the memory of a frame as a program that uses it after its free. Only for worlds with
    /// poisoning, and no other thread may use them during the call.
    pub fn scribble(&self, pfn: Pfn) {
        let offset = (pfn.0 - self.spec.base().0) as usize * PAGE_BYTES;
        assert!(offset < self.parts.pages.0.len(), "{pfn:?} has no memory");
        // SAFETY: within the allocation, which lives as long as the world; no other thread is at work.
        unsafe { self.parts.pages.0.cast::<u8>().add(offset + PAGE_BYTES / 2).write(0x5c) };
    }

    /// The memory of a frame. Only for worlds that have some, and no other thread may use it during the call.
    pub fn page(&self, pfn: Pfn) -> [u8; PAGE_BYTES] {
        let offset = (pfn.0 - self.spec.base().0) as usize * PAGE_BYTES;
        assert!(offset < self.parts.pages.0.len(), "{pfn:?} has no memory");
        // SAFETY: within the allocation, which lives as long as the world; no other thread is at work.
        unsafe { self.parts.pages.0.cast::<[u8; PAGE_BYTES]>().byte_add(offset).read() }
    }

    /// Checks all invariants, and that the allocator and `oracle` agree on what is allocated.
    #[track_caller]
    pub fn check(&self, oracle: &Oracle) {
        let account = self.settled();
        assert_eq!(account.allocated, oracle.pages_owned(), "pages with callers: {account:?}");
        assert_eq!(account.free + account.on_pcp + account.quarantined, oracle.pages_free(), "{account:?}");
    }

    /// Checks all invariants and says where every page is.
    #[track_caller]
    pub fn settled(&self) -> framewright::verify::Account {
        match self.allocator.verify() {
            Ok(account) => account,
            Err(violation) => panic!("{violation}\n{}", self.allocator.buddyinfo()),
        }
    }

    /// Notes that the allocator's structures are not, or may not be, as they should be: a test has damaged them. Then
    /// nothing is checked when the world is dropped.
    pub fn note_damage(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }

    /// The free blocks on every list, first to last, as the descriptors link them.
    pub fn free_lists(&self) -> crate::free_lists::FreeLists {
        crate::free_lists::FreeLists::of(self.allocator())
    }
}

impl<P: Platform<Pin = OwnedPin>, M: FrameUser> fmt::Debug for World<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl<P: Platform<Pin = OwnedPin>, M: FrameUser> Drop for World<P, M> {
    fn drop(&mut self) {
        if !*self.damaged.get_mut() && !std::thread::panicking() {
            self.settled();
        }
        // SAFETY: no thread can have a borrow of the allocator. `new` initialised every list set, zone and node, and
        // no thread uses them any more; the parts themselves go after this, as fields.
        unsafe {
            ManuallyDrop::drop(&mut self.allocator);
            self.parts.pcps.get_mut().iter_mut().for_each(|pcp| pcp.assume_init_drop());
            self.parts.more_lists.get_mut().iter_mut().for_each(|lists| lists.assume_init_drop());
            self.parts.zones.get_mut().iter_mut().for_each(|zone| zone.assume_init_drop());
            self.parts.sections.get_mut().iter_mut().for_each(|section| section.assume_init_drop());
            if let Some(later) = &self.later {
                later.rests.get_mut().iter_mut().for_each(|rest| rest.assume_init_drop());
            }
            self.parts.nodes.get_mut().iter_mut().for_each(|node| node.assume_init_drop());
        }
    }
}

/// One of the structures that an allocator borrows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Frame descriptors.
    Frames,
    /// Pageblock descriptors.
    Pageblocks,
    /// Maps of free frames.
    Maps,
    /// Storage of the per-CPU lists.
    Slots,
    /// Per-CPU list sets.
    Pcps,
    /// Zones, with locks and buddy lists.
    Zones,
    /// Lock queue nodes.
    Queue,
}

/// Memory that an allocator borrows.
struct Parts<P: Platform, M: 'static> {
    frames: Owned<Frame<P, M>>,
    pageblocks: Owned<Pageblock<P>>,
    maps: Owned<PageMap<P>>,
    slots: Owned<P::Word>,
    pcps: Owned<MaybeUninit<Pcp<'static, P>>>,
    more_lists: Owned<MaybeUninit<MoreLists<'static, P>>>,
    zones: Owned<MaybeUninit<Zone<'static, P>>>,
    sections: Owned<MaybeUninit<Section<P>>>,
    section_words: Owned<P::Word>,
    queue: Owned<QueueNode<P>>,
    zonelist: Owned<ZoneId>,
    nodes: Owned<MaybeUninit<Node<P>>>,
    contexts: Owned<P::Word>,
    cpu_nodes: Owned<NodeId>,
    pages: Owned<u8>,
}

/// A deferral, and the memory that it borrows.
struct LaterParts<P: Platform> {
    deferred: Owned<Deferred<'static, P>>,
    rests: Owned<MaybeUninit<ZoneCursor<'static, P>>>,
    // Borrowed by the two above.
    _slots: Owned<P::Word>,
    _free: Vec<Owned<Range<Pfn>>>,
}

impl<P: Platform> LaterParts<P> {
    fn new(later: &Later) -> Self {
        let rests = Owned::new(later.rests.iter().map(|_| MaybeUninit::uninit()));
        let slots = Owned::new((0..later.slots).map(|_| P::Word::new(0)));
        let free: Vec<_> = later.rests.iter().map(|rest| Owned::new(rest.free.iter().cloned())).collect();
        // SAFETY: they live as long as the deferral, and each is borrowed once, mutably or not.
        let deferred = unsafe {
            let memory = DeferredMemory { zones: rests.get_mut(), slots: slots.get() };
            Deferred::new(later.how, memory, |zone| {
                let RestSpec { spec, present, deferred_from, cpus, .. } = later.rests[zone.index()];
                DeferredZone { spec, present, free: free[zone.index()].get(), deferred_from, cpus }
            })
        };
        Self { deferred: Owned::new([deferred]), rests, _slots: slots, _free: free }
    }
}

/// A boxed slice that may be borrowed while it is moved around, which `Box` itself must not be.
struct Owned<T>(NonNull<[T]>, PhantomData<T>);

impl<T> Owned<T> {
    fn new(values: impl IntoIterator<Item = T>) -> Self {
        let slice: Box<[T]> = values.into_iter().collect();
        Self(NonNull::from(Box::leak(slice)), PhantomData)
    }

    fn addresses(&self) -> core::ops::Range<usize> {
        let start = self.0.cast::<u8>().addr().get();
        start..start + self.0.len() * size_of::<T>()
    }

    /// # Safety
    /// It is not borrowed mutably, and it outlives the borrow.
    unsafe fn get<'a>(&self) -> &'a [T] {
        // SAFETY: it was a box; the rest is the caller's promise.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// It is not borrowed, and it outlives the borrow.
    unsafe fn get_mut<'a>(&self) -> &'a mut [T] {
        // SAFETY: it was a box; the rest is the caller's promise.
        unsafe { &mut *self.0.as_ptr() }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: it was a box, and is freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
