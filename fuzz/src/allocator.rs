//! The allocator under any configuration, memory and history of calls that bytes can spell, judged by the oracle
//! after every call and by `verify` from time to time: whose frames are whose, whether a frame is handed out that a check finds bad,
//! and whether zones keep their marks.
//!
//! The reading of bytes never fails: missing ones are 0. So every mutation is another history.

use core::cell::RefCell;

use framewright::config::{
    Config, Engine, Experiment, Limits, ListOrder, LockKind, LockPlace, PcpFixed, PcpOrders, PcpRule,
    RefillCheck, ZoneReclaimMode, ZonelistCache,
};
use framewright::frame::FrameUser;
use framewright::policy::Generation;
use framewright::policy::pcp::Sizing;
use framewright::reclaim::{Migrate, Migrated};
use framewright::units::{Migratetype, NodeId, Order, PAGEBLOCK_PAGES, Pfn, ZoneId, ZoneType};
use framewright::zone::ZoneSpec;
use framewright::{Plan, Request};
use framewright_check::fixture::{Spec, World};
use framewright_check::marks::Floors;
use framewright_check::oracle::{Block, Oracle};
use framewright_check::platform::pin::OwnedPin;
use framewright_check::platform::plain::Plain;

use crate::check_refusal;

/// Worlds with more frames, or more slots on per-CPU lists, are left alone: they only cost time.
const MAX_FRAMES: usize = 1 << 14;
const MAX_SLOTS: usize = 1 << 18;
/// Calls between two walks of everything.
const CALLS_PER_WALK: usize = 64;

/// Builds what `input` describes and plays the history that follows.
///
/// # Panics
/// The allocator and the oracle disagree, an invariant does not hold, or a page is lost.
pub fn run(input: &[u8]) -> bool {
    let mut bytes = Bytes(input);
    let config = config(&mut bytes);
    let zones = zones(&mut bytes);
    let cpu_nodes: Vec<NodeId> = (0..1 + bytes.below(4)).map(|_| NodeId(bytes.below(2) as u16)).collect();
    match Plan::new(&zones, &cpu_nodes, &config) {
        Err(error) => {
            check_refusal(&error.to_string());
            false
        }
        Ok(plan) if spanned(&plan) > MAX_FRAMES || plan.slots > MAX_SLOTS => false,
        Ok(_) => {
            let memory = memory(&zones, &mut bytes);
            let spec = Spec::zones(zones, 0).cpu_nodes(cpu_nodes).config(config).memory(memory.clone());
            if config.engine == Engine::Compact {
                // No frame has a slot.
                History::new(&spec.build(), &memory).play(&mut bytes);
                return true;
            }
            // Under the lock the count of free CMA pages drifts with each bad block, as Linux' did, which `verify` reports.
            let checks = config.experiment.refill_check == RefillCheck::AfterUnlock;
            let is_bad = |pfn: Pfn| checks && framewright_check::mix(pfn.0).is_multiple_of(128);
            let world = spec.build_with(|pfn| Health(is_bad(pfn)));
            let mut history = History::new(&world, &memory);
            let frames = memory.iter().flat_map(|(start, pages)| (start.0..start.0 + pages).map(Pfn));
            frames.filter(|&pfn| is_bad(pfn)).for_each(|pfn| history.oracle.went_bad(pfn));
            history.play(&mut bytes);
            true
        }
    }
}

/// A frame's slot: whether a check finds the frame bad.
struct Health(bool);

impl FrameUser for Health {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        self.0.then_some("bad")
    }
}

/// Frames from the first that is described to the last; compact engine has no words for them.
fn spanned(plan: &Plan) -> usize {
    plan.frames.max(plan.pageblocks.saturating_mul(PAGEBLOCK_PAGES as usize))
}

/// Bytes that nobody would write by hand do well here: the reader takes any.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    [64, 200, 800, 3200]
        .into_iter()
        .cycle()
        .take(16)
        .map(|length| (0..length).map(|_| byte()).collect())
        .collect()
}

/// What is left of an input.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// Less than `bound`, which is from 1 to 65536.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let wide = if bound > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (wide | usize::from(self.byte())) % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Mostly small, sometimes anything.
    pub(crate) fn number(&mut self) -> u32 {
        match self.byte() {
            255 => u32::from_le_bytes([(); 4].map(|()| self.byte())),
            small => u32::from(small),
        }
    }
}

fn config(bytes: &mut Bytes<'_>) -> Config {
    let (flags, more) = (bytes.byte(), bytes.byte());
    // Instead of reporting, so that older inputs mean what they meant.
    let compact = flags & 32 == 0 && more & 33 == 33;
    Config {
        // No byte of its own, so that older inputs mean what they meant.
        pcp_free_part: [64, 64, 16, 1][usize::from(flags >> 6)],
        engine: match flags & 32 == 0 {
            true if compact => Engine::Compact,
            true => Engine::Framewright,
            false => Engine::Linux,
        },
        lazy_pageblocks: flags & 64 != 0,
        poison: flags & 128 != 0 && !compact,
        init_on_free: more & 7 == 7,
        fault_injection: more & 24 == 24,
        free_reporting: more & 32 != 0,
        page_kib: [4, 4, 16, 64][usize::from(more >> 6)],
        keep_marks: flags & 4 != 0,
        min_free_kib: u64::from(bytes.number()),
        watermark_scale: u64::from(bytes.number()),
        boost_factor: u64::from(bytes.number()),
        zone_reclaim: ZoneReclaimMode(bytes.byte() & 7),
        compaction_proactiveness: [98, 20, 100, 0][usize::from(more >> 6)],
        experiment: Experiment {
            pcp_rule: bytes.pick(&[
                PcpRule::V5_4,
                PcpRule::V6_1,
                PcpRule::V6_7,
                PcpRule::V6_16,
                PcpRule::Auto,
            ]),
            // No byte of its own, so that older inputs mean what they meant.
            section_pages: if flags & 6 == 6 { 0 } else { 1024 },
            pcp_fraction: if flags & 1 == 0 { 0 } else { bytes.number() },
            pcp_fixed: (flags & 2 != 0).then(|| PcpFixed { batch: bytes.number(), high: bytes.number() }),
            pcp_orders: bytes.pick(&[
                PcpOrders::None,
                PcpOrders::Zero,
                PcpOrders::UpToCostly,
                PcpOrders::UpToCostlyAndHuge,
                PcpOrders::UpToHuge,
            ]),
            pcp_slots: if flags & 12 == 12 { bytes.number() } else { 2 << bytes.below(12) },
            pcp_min_refill: bytes.number(),
            lock_place: bytes.pick(&[LockPlace::WithOrder0Lists, LockPlace::OtherEnd, LockPlace::OwnLine]),
            lock_kind: bytes.pick(&[LockKind::Ticket, LockKind::Queued, LockKind::Parking]),
            lock_timing: flags & 16 != 0,
            refill_check: bytes.pick(&[
                RefillCheck::UnderZoneLock,
                RefillCheck::AfterUnlock,
                RefillCheck::Off,
            ]),
            pcp_reset: flags & 64 == 0,
            remote_drain_spins: bytes.number() % 4,
            marks: bytes.pick(&[Generation::V3_0, Generation::V6_1]),
            fallback: bytes.pick(&[Generation::V3_0, Generation::V6_1]),
            passes: bytes.pick(&[Generation::V3_0, Generation::V6_1]),
            reclaim: bytes.pick(&[Generation::V3_0, Generation::V6_1]),
            reserve_ratios: [0; 4].map(|_: u64| u64::from(bytes.number())),
            avoid_fragmentation: flags & 96 == 96,
            zonelist_order: bytes.pick(&[ListOrder::Node, ListOrder::Zone, ListOrder::AsV3_0]),
            zonelist_cache: bytes.pick(&[
                ZonelistCache::Off,
                ZonelistCache::AfterFirstZone,
                ZonelistCache::BeforeFirstZone,
                ZonelistCache::BeforeFirstZoneAndClear,
            ]),
            limits: Limits { without_progress: bytes.number() % 4, rounds: bytes.number() % 8 },
            heads_in_pageblocks: bytes.number() % 2 == 1,
        },
    }
}

/// One to three zones, mostly sound.
fn zones(bytes: &mut Bytes<'_>) -> Vec<ZoneSpec> {
    let mut start = 1024 * bytes.below(8) as u64;
    (0..1 + bytes.below(3))
        .map(|_| {
            let (node, kind) = (NodeId(bytes.below(2) as u16), bytes.pick(&ZoneType::ALL));
            let mut zone = ZoneSpec { node, kind, start: Pfn(start), pages: 1 + bytes.below(4096) as u64 };
            if bytes.byte() > 250 {
                zone.start.0 = u64::from(bytes.number()) << bytes.below(60);
                zone.pages = u64::from(bytes.number()) << bytes.below(60);
            }
            start = zone.start.0.saturating_add(zone.pages).saturating_add(1024 * bytes.below(4) as u64);
            start = (start & !1023).saturating_add(1024);
            zone
        })
        .collect()
}

/// For each zone, all of it or two pieces with holes around them.
fn memory(zones: &[ZoneSpec], bytes: &mut Bytes<'_>) -> Vec<(Pfn, u64)> {
    let mut ranges = Vec::new();
    for zone in zones {
        if bytes.byte() < 128 {
            ranges.push((zone.start, zone.pages));
            continue;
        }
        let mut borders = [(); 4].map(|()| bytes.below(1 << 16) as u64 % (zone.pages + 1));
        borders.sort_unstable();
        let pieces = [(borders[0], borders[1]), (borders[2], borders[3])];
        // Pieces that touch are given to the allocator one by one, too.
        ranges.extend(pieces.iter().filter(|(a, b)| a < b).map(|(a, b)| (zone.start.add(*a), b - a)));
    }
    ranges
}

/// One call, with what it names already looked up: readable when a history is printed.
#[derive(Clone, Copy, Debug)]
enum Call {
    Alloc {
        cpu: usize,
        order: Order,
        migratetype: Migratetype,
        highest: ZoneType,
    },
    Free {
        cpu: usize,
        block: Block,
    },
    Split {
        cpu: usize,
        block: Block,
        to: Order,
    },
    Drain {
        cpu: usize,
    },
    Answer {
        cpu: usize,
    },
    RequestDrain,
    ResizePcps,
    ResizePcpsOf {
        zone: ZoneId,
        size: Sizing,
    },
    Isolate {
        pfn: Pfn,
    },
    Unisolate {
        pfn: Pfn,
    },
    SetPageblockType {
        pfn: Pfn,
        to: Migratetype,
    },
    AddMemoryAgain,
    /// A round of background compaction.
    Round {
        cpu: usize,
        node: NodeId,
    },
}

/// The owner of all live blocks, while some of them move. One in eight does not and says so; one in eight does not when it
/// comes to it.
struct Owner<'h>(RefCell<(&'h mut Oracle, &'h mut Vec<Block>)>);

#[expect(unsafe_code, reason = "whoever moves blocks vouches for owning them")]
// SAFETY: one thread makes all calls, and `live` has the blocks that are allocated.
unsafe impl Migrate for Owner<'_> {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let mut books = self.0.borrow_mut();
        let (oracle, live) = &mut *books;
        let is = |block: &&mut Block| **block == Block { pfn: from, order };
        let own = live.iter_mut().find(is).expect("only blocks that are allocated are moved");
        if from.0 % 8 == 5 {
            return Migrated::Stays;
        }
        oracle.took_back(*own).unwrap_or_else(|breach| panic!("{breach:?}"));
        *own = Block { pfn: to, order };
        oracle.handed_out(*own).unwrap_or_else(|breach| panic!("{breach:?}"));
        Migrated::Moved
    }

    fn can_move(&self, from: Pfn, order: Order, _: Migratetype) -> bool {
        let is_live = self.0.borrow().1.contains(&Block { pfn: from, order });
        is_live && from.0 % 8 != 3
    }
}

/// A world, what is known of it, and the calls that were made. A history that fails is printed.
struct History<'a, M: FrameUser> {
    world: &'a World<Plain, M>,
    memory: &'a [(Pfn, u64)],
    pins: Vec<OwnedPin>,
    oracle: Oracle,
    live: Vec<Block>,
    calls: Vec<Call>,
}

impl<M: FrameUser> Drop for History<'_, M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}", self.world.spec());
            self.calls.iter().for_each(|call| eprintln!("{call:?}"));
        }
    }
}

impl<'a, M: FrameUser> History<'a, M> {
    fn new(world: &'a World<Plain, M>, memory: &'a [(Pfn, u64)]) -> Self {
        let pins = (0..world.allocator().cpus()).map(|cpu| world.pin(cpu)).collect();
        Self { world, memory, pins, oracle: world.spec().oracle(), live: Vec::new(), calls: Vec::new() }
    }

    /// Makes a call for every few bytes; then frees everything and looks for what is lost.
    fn play(mut self, bytes: &mut Bytes<'_>) {
        while !bytes.0.is_empty() {
            let call = self.read(bytes);
            self.make(call);
            if self.calls.len().is_multiple_of(CALLS_PER_WALK) {
                self.world.check(&self.oracle);
            }
        }
        self.world.check(&self.oracle);
        for block in self.live.clone() {
            self.make(Call::Free { cpu: 0, block });
        }
        for cpu in 0..self.pins.len() {
            self.make(Call::Drain { cpu });
        }
        self.world.check(&self.oracle);
        let account = self.world.settled();
        assert_eq!((account.allocated, account.on_pcp), (0, 0), "{account:?}");
    }

    fn read(&self, bytes: &mut Bytes<'_>) -> Call {
        let cpu = bytes.below(self.pins.len());
        let code = bytes.byte();
        match code % 32 {
            12..=20 if !self.live.is_empty() => Call::Free { cpu, block: bytes.pick(&self.live) },
            21 | 22 => Call::Free { cpu, block: self.somewhere(bytes) },
            23 if !self.live.is_empty() => {
                Call::Split { cpu, block: bytes.pick(&self.live), to: order(bytes.below(11)) }
            }
            24 => Call::Drain { cpu },
            25 => Call::Answer { cpu },
            26 => Call::RequestDrain,
            27 => Call::ResizePcps,
            28 => {
                let zone = ZoneId(bytes.below(self.world.allocator().zones().len()) as u8);
                let (batch, high_min) = (bytes.number().max(1), bytes.number());
                let high_max = high_min.saturating_add(bytes.number());
                Call::ResizePcpsOf { zone, size: Sizing { batch, high_min, high_max } }
            }
            29 if bytes.below(2) == 0 => Call::Isolate { pfn: self.somewhere(bytes).pfn },
            29 => Call::Unisolate { pfn: self.somewhere(bytes).pfn },
            30 => {
                Call::SetPageblockType { pfn: self.somewhere(bytes).pfn, to: bytes.pick(&Migratetype::ALL) }
            }
            31 if code < 128 => Call::AddMemoryAgain,
            31 => Call::Round { cpu, node: NodeId(u16::from(code >> 6 & 1)) },
            _ => Call::Alloc {
                cpu,
                order: order(bytes.pick(&[0, 0, 0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 10])),
                migratetype: bytes.pick(&Migratetype::ALL),
                highest: bytes.pick(&ZoneType::ALL),
            },
        }
    }

    /// A block of any order at, beside or beyond the allocator's memory.
    fn somewhere(&self, bytes: &mut Bytes<'_>) -> Block {
        let order = order(bytes.below(11));
        let zones = self.world.allocator().zones();
        let zone = *zones[bytes.below(zones.len())].spec();
        let pfn = match bytes.byte() {
            255 => u64::MAX - u64::from(bytes.byte()),
            254 => u64::from(bytes.number()) << bytes.below(33),
            // At a border of a block, more often than not.
            mask => {
                let offset = bytes.below(1 << 16) as u64 % (zone.pages + 1);
                zone.start.0 + (offset & !(u64::from(mask) >> 2))
            }
        };
        Block { pfn: Pfn(pfn), order }
    }

    fn make(&mut self, call: Call) {
        self.calls.push(call);
        let allocator = self.world.allocator();
        let cpu = |cpu: usize| self.world.cpu(&self.pins[cpu]);
        match call {
            Call::Alloc { cpu: on, order, migratetype, highest } => {
                let request = Request::new(order, migratetype).up_to(highest);
                let floors = Floors::before(allocator, &request);
                let got = match highest {
                    ZoneType::Movable => cpu(on).alloc(order, migratetype),
                    highest => cpu(on).alloc_in(order, migratetype, highest),
                };
                floors.check(allocator, &request).unwrap_or_else(|breach| panic!("{breach:?}"));
                match got {
                    Ok(pfn) => self.own(Block { pfn, order }),
                    Err(error) => check_refusal(&error.to_string()),
                }
            }
            Call::Free { cpu: on, block } => match self.oracle.judge(block) {
                None => {
                    let freed = cpu(on).free(block.pfn, block.order);
                    freed.unwrap_or_else(|error| panic!("{block:?} is allocated, yet {error}"));
                    self.disown(block);
                }
                Some(because) => match cpu(on).free(block.pfn, block.order) {
                    Ok(()) => panic!("{block:?} was taken back although {because:?}"),
                    Err(error) => check_refusal(&error.to_string()),
                },
            },
            Call::Split { cpu: on, block, to } => {
                // SAFETY: one thread makes all calls, and the oracle says that the block is allocated.
                #[expect(unsafe_code, reason = "whoever splits a block vouches for owning it")]
                let split = unsafe { cpu(on).split(block.pfn, block.order, to) };
                if to > block.order {
                    check_refusal(&split.expect_err("a block was split into larger ones").to_string());
                    return;
                }
                split.unwrap_or_else(|error| panic!("{block:?} is allocated, yet {error}"));
                self.disown(block);
                for n in 0..1 << (block.order.get() - to.get()) {
                    self.own(Block { pfn: block.pfn.add(n << to.get()), order: to });
                }
            }
            Call::Drain { cpu: on } => cpu(on).drain(),
            Call::Answer { cpu: on } => cpu(on).answer(),
            Call::RequestDrain => allocator.request_drain(),
            Call::ResizePcps => allocator.resize_pcps(),
            Call::ResizePcpsOf { zone, size } => allocator.resize_pcps_of(zone, size),
            Call::Isolate { pfn } => drop(allocator.isolate_pageblock(pfn)),
            Call::Unisolate { pfn } => drop(allocator.unisolate_pageblock(pfn)),
            Call::SetPageblockType { pfn, to } => drop(allocator.set_pageblock_type(pfn, to)),
            // What compaction moves blocks to is not checked.
            Call::Round { .. } if self.oracle.bad().len() > 0 => {}
            Call::Round { cpu: on, node } => {
                let owner = Owner(RefCell::new((&mut self.oracle, &mut self.live)));
                let _ = cpu(on).compact_proactively(node, &owner);
            }
            Call::AddMemoryAgain => {
                if let Some(&(start, pages)) = self.memory.first() {
                    let again = allocator.add_memory(start, pages);
                    check_refusal(&again.expect_err("memory that is in use was added").to_string());
                }
            }
        }
    }

    fn own(&mut self, block: Block) {
        self.oracle.handed_out(block).unwrap_or_else(|breach| panic!("{breach:?}"));
        self.live.push(block);
    }

    fn disown(&mut self, block: Block) {
        self.oracle.took_back(block).unwrap_or_else(|breach| panic!("{breach:?}"));
        self.live.retain(|live| *live != block);
    }
}

fn order(order: usize) -> Order {
    Order::new(order as u8).expect("from 0 to 10")
}
