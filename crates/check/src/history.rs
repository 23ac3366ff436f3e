//! Histories: a configuration, memory, and calls of every kind, as bytes spell them. The oracle judges each call: no
//! frame has two owners (promise 1), no bad frame is handed out (2), a wrong free is refused (3), every zone keeps its
//! mark (5), and a request fails only if nothing is left for it (6). `verify` looks from time to time.
//!
//! Tests, the fuzz target `allocator` and the example `soak` play them. The reading of bytes never fails: missing ones
//! are 0. So every mutation of an input is another history.

mod spell;

use core::cell::RefCell;

use framewright::config::{Engine, RefillCheck};
use framewright::cpu::{Hwpoisoned, PlaceError, PlaceFailure};
use framewright::error::{AllocError, AllocFailure};
use framewright::fault::FaultRule;
use framewright::frame::{FrameUser, State};
use framewright::hotplug::OfflineError;
use framewright::policy::pcp::Sizing;
use framewright::reclaim::{Helpers, Migrate, Migrated, Reclaim, ReclaimRequest, Reclaimed, Release};
use framewright::units::*;
use framewright::zone::Zone;
use framewright::{Flags, Plan, Request};

use crate::fixture::{Spec, World};
use crate::marks::Floors;
use crate::oracle::{Block, Breach, Oracle};
use crate::platform::pin::OwnedPin;
use crate::platform::plain::Plain;
use crate::slot::Slot;

pub use spell::{Bytes, Draw};
use spell::{config, memory, zones};

/// Worlds with more frames, or more slots on per-CPU lists, are left alone: they only cost time.
const MAX_FRAMES: usize = 1 << 14;
const MAX_SLOTS: usize = 1 << 18;
/// One frame in this many is bad in short histories: large blocks are soon out of use.
pub const BAD: u64 = 128;
/// Most pages that the owner gives back in one call, and blocks that it looks at.
const RECLAIMED: u64 = 48;
const LOOKS: usize = 256;
/// Calls that are shown of a history that fails.
const SHOWN: usize = 500;

/// Asserts what every refusal must be: one line, with words in it.
fn check_refusal(message: &str) {
    assert!(message.len() > 8 && !message.contains(['\n', '\r']), "no single line of words: {message:?}");
}

/// Plays the history that an input spells, with a look at the whole allocator after every `look_every` calls. Returns
/// whether there was one: not every configuration is sound, and large worlds are left alone.
///
/// # Panics
/// The allocator and the oracle disagree, an invariant does not hold, or a page is lost.
pub fn play(input: &[u8], look_every: u64) -> bool {
    let mut bytes = Bytes(input);
    let config = config(&mut bytes);
    let zones = zones(&mut bytes);
    let cpu_nodes: Vec<NodeId> = (0..1 + bytes.below(4)).map(|_| NodeId(bytes.below(2) as u16)).collect();
    let plan = match Plan::new(&zones, &cpu_nodes, &config) {
        Ok(plan) => plan,
        Err(error) => {
            check_refusal(&error.to_string());
            return false;
        }
    };
    // Without a word for each frame, pageblocks say how much is spanned.
    let spanned = plan.frames.max(plan.pageblocks.saturating_mul(PAGEBLOCK_PAGES as usize));
    if spanned > MAX_FRAMES || plan.slots > MAX_SLOTS {
        return false;
    }
    let memory = memory(&zones, &mut bytes);
    let spec = Spec::zones(zones, 0).cpu_nodes(cpu_nodes).config(config).memory(memory);
    // Once the choice of a descriptor: with it, inputs that are kept mean what they meant.
    bytes.byte();
    play_in(&spec, BAD, &mut bytes, look_every, |bytes, _| !bytes.0.is_empty());
    true
}

/// Plays a history in a world of `spec` for as long as `goes_on` says, which is asked before each call with the number
/// of calls so far. With checks, one frame in `bad` is bad; a check takes the whole block around it out of use. Returns
/// what it did.
pub fn play_in<D: Draw>(
    spec: &Spec,
    bad: u64,
    draw: &mut D,
    look_every: u64,
    goes_on: impl Fn(&D, u64) -> bool,
) -> Counts {
    let config = &spec.config;
    // Under the lock the count of free CMA pages drifts with each bad block, as Linux' did, which `verify` reports.
    let checks = config.experiment.refill_check == RefillCheck::AfterUnlock;
    let is_bad = |pfn: Pfn| checks && crate::mix(pfn.0).is_multiple_of(bad);
    if config.engine == Engine::Compact {
        return History::new(&spec.plain(), |_| false).play(draw, look_every, goes_on);
    }
    let world = spec.build_with(|pfn| Slot::bad(is_bad(pfn)));
    History::new(&world, is_bad).play(draw, look_every, goes_on)
}

/// One call, with what it names already looked up: readable when a history is shown.
#[derive(Clone, Copy, Debug)]
enum Call {
    Alloc(Order, Migratetype, ZoneType, Flags),
    AllocAt(Block),
    AllocBulk(Order, Migratetype, usize),
    Contig(Pfn, u64),
    Free(Block),
    /// Live blocks of an order, at most this many.
    FreeBulk(Order, usize),
    Split(Block, Order),
    Drain,
    Answer,
    RequestDrain,
    ResizePcps,
    ResizePcpsOf(ZoneId, Sizing),
    Isolate(Pfn),
    Unisolate(Pfn),
    Retype(Pfn, Migratetype),
    AddMemoryAgain,
    Offline(Pfn),
    /// Some of the memory that went offline, by its place among all that did.
    Online(usize),
    Hwpoison(Pfn),
    Unpoison(Pfn),
    Report(Order),
    /// A round of background compaction.
    Round(NodeId),
    Inject(Option<FaultRule>),
}

/// Work that a history has done.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Blocks handed out.
    pub allocated: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Right frees.
    pub freed: u64,
    /// Wrong frees that were refused.
    pub refused: u64,
}

/// Owners of blocks. Moves any of it that it is asked to, but for one block in eight that refuses before, and one
/// in eight that does not move when it comes to it.
struct Books {
    oracle: Oracle,
    live: Vec<Block>,
    /// Place of the block that was chosen last.
    chosen: usize,
}

impl Books {
    fn choose(&mut self, draw: &mut impl Draw) -> Block {
        self.chosen = draw.below(self.live.len().min(1 << 16));
        self.live[self.chosen]
    }

    fn own(&mut self, block: Block) {
        self.oracle.handed_out(block).unwrap_or_else(|breach| panic!("{breach:?}"));
        self.live.push(block);
    }

    fn disown(&mut self, block: Block) {
        self.oracle.took_back(block).unwrap_or_else(|breach| panic!("{breach:?}"));
        let is_chosen = self.live.get(self.chosen) == Some(&block);
        let found =
            if is_chosen { Some(self.chosen) } else { self.live.iter().position(|live| *live == block) };
        self.live.swap_remove(found.expect("the oracle has it, too"));
    }
}

/// The owner of all blocks, while some of them move.
struct Owner(RefCell<Books>);

#[expect(unsafe_code, reason = "a mover vouches for what it moves")]
// SAFETY: one thread makes all calls, and the books have the blocks that are allocated.
unsafe impl Migrate for Owner {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        if from.0 % 8 == 5 {
            return Migrated::Stays;
        }
        let mut books = self.0.borrow_mut();
        books.disown(Block { pfn: from, order });
        books.own(Block { pfn: to, order });
        Migrated::Moved
    }

    fn can_move(&self, from: Pfn, order: Order, _: Migratetype) -> bool {
        let block = self.0.borrow().oracle.owner_of(from);
        block == Some(Block { pfn: from, order }) && from.0 % 8 != 3
    }
}

#[expect(unsafe_code, reason = "a reclaimer vouches for owning what it frees")]
impl Reclaim for Owner {
    /// Gives the blocks of the zone back that it got last.
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let mut books = self.0.borrow_mut();
        let target = ask.target.min(RECLAIMED);
        let mut done = Reclaimed::default();
        let last: Vec<Block> = books.live.iter().rev().take(LOOKS).copied().collect();
        for block in last.into_iter().filter(|block| ask.wants(block.pfn)) {
            if done.freed >= target {
                break;
            }
            // SAFETY: one thread makes all calls, and the books have the block.
            let freed = unsafe { to.free(block.pfn, block.order) };
            freed.unwrap_or_else(|error| panic!("{block:?} is allocated, yet {error}"));
            books.disown(block);
            done.freed += block.order.pages();
        }
        done.scanned = done.freed;
        done
    }
}

/// A world, what is known of it, and the last calls that were made. A history that fails is shown.
struct History<'a, M: FrameUser, F> {
    world: &'a World<Plain, M>,
    pins: Vec<OwnedPin>,
    /// Whether a check finds a frame bad.
    is_bad: F,
    owner: Owner,
    offline: Vec<(Pfn, u64)>,
    /// The block freed last.
    last: Option<Block>,
    /// Allocations are more likely than frees, until one fails; then frees are, until nothing is allocated.
    filling: bool,
    calls: Vec<Call>,
    counts: Counts,
}

impl<M: FrameUser, F> Drop for History<'_, M, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}", self.world.spec());
            let shown = self.calls.len().saturating_sub(SHOWN);
            self.calls[shown..].iter().for_each(|call| eprintln!("{call:?}"));
        }
    }
}

impl<'a, M: FrameUser, F: Fn(Pfn) -> bool> History<'a, M, F> {
    fn new(world: &'a World<Plain, M>, is_bad: F) -> Self {
        let pins = (0..world.allocator().cpus()).map(|cpu| world.pin(cpu)).collect();
        let mut oracle = world.spec().oracle();
        for &(start, pages) in &world.spec().memory {
            let frames = (start.0..start.0 + pages).map(Pfn);
            frames.filter(|&pfn| is_bad(pfn)).for_each(|pfn| oracle.went_bad(pfn));
        }
        let owner = Owner(RefCell::new(Books { oracle, live: Vec::new(), chosen: 0 }));
        let (offline, calls) = (Vec::new(), Vec::new());
        let counts = Counts::default();
        Self { world, pins, is_bad, owner, offline, last: None, filling: true, calls, counts }
    }

    fn play<D: Draw>(mut self, draw: &mut D, look_every: u64, goes_on: impl Fn(&D, u64) -> bool) -> Counts {
        let mut made = 0;
        while goes_on(draw, made) {
            let cpu = draw.below(self.pins.len());
            let call = self.read(draw, look_every > 1 << 16);
            self.make(cpu, call);
            made += 1;
            if made.is_multiple_of(look_every) {
                self.world.check(&self.owner.0.borrow().oracle);
            }
        }
        self.end();
        self.counts
    }

    /// A call. In long histories, all but allocations and frees are rare.
    fn read(&self, draw: &mut impl Draw, is_long: bool) -> Call {
        let mut books = self.owner.0.borrow_mut();
        let (code, some) = (draw.byte(), !books.live.is_empty());
        let rare = is_long && (5..24).contains(&(code % 64)) && draw.byte() > 0;
        let order =
            Order::new(draw.pick(&[0, 0, 0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 10])).expect("up to 10");
        match if rare { 24 + draw.byte() % 40 } else { code % 64 } {
            0..5 => Call::Free(self.wrong(draw, &books.live)),
            5 => Call::AllocAt(self.somewhere(draw)),
            6 => Call::AllocBulk(order, draw.pick(&Migratetype::ALL), draw.below(700) >> order.get()),
            7 if some => Call::FreeBulk(books.choose(draw).order, draw.below(700)),
            8 => Call::Contig(self.somewhere(draw).pfn, 1 + draw.below(1500) as u64),
            9 if some => Call::Split(books.choose(draw), order),
            10 | 11 => Call::Drain,
            12 => Call::Answer,
            13 => Call::RequestDrain,
            14 => Call::ResizePcps,
            15 => {
                let zone = ZoneId(draw.below(self.world.allocator().zones().len()) as u8);
                let (batch, high_min) = (draw.number().max(1), draw.number());
                let high_max = high_min.saturating_add(draw.number());
                Call::ResizePcpsOf(zone, Sizing { batch, high_min, high_max })
            }
            16 => Call::Isolate(self.somewhere(draw).pfn),
            17 => Call::Unisolate(self.somewhere(draw).pfn),
            18 => Call::Retype(self.somewhere(draw).pfn, draw.pick(&Migratetype::ALL)),
            19 if code < 128 => Call::AddMemoryAgain,
            19 => Call::Report(order),
            20 => Call::Offline(self.somewhere(draw).pfn),
            21 if !self.offline.is_empty() => Call::Online(draw.below(self.offline.len())),
            22 if code < 128 => Call::Round(NodeId(draw.below(2) as u16)),
            22 => Call::Inject(
                (draw.byte() > 99).then(|| FaultRule::share(draw.byte() % 100, draw.number().into())),
            ),
            23 if code < 128 => Call::Hwpoison(self.somewhere(draw).pfn),
            23 if books.oracle.bad().len() > 0 => {
                let n = draw.below(books.oracle.bad().len());
                Call::Unpoison(books.oracle.bad().nth(n).expect("there are more"))
            }
            rest if some && rest < if self.filling { 41 } else { 48 } => Call::Free(books.choose(draw)),
            _ => {
                let flags = [
                    Flags::NONE,
                    Flags::NONE,
                    Flags::NONE,
                    Flags::HIGH,
                    Flags::NO_WAIT,
                    Flags::ATOMIC,
                    Flags::VICTIM,
                ];
                let highest = [ZoneType::Movable, ZoneType::Movable, ZoneType::Dma32, ZoneType::Normal];
                let types = [Migratetype::Movable, Migratetype::Unmovable, Migratetype::Reclaimable];
                let asked = if code < 8 { draw.pick(&Migratetype::ALL) } else { draw.pick(&types) };
                Call::Alloc(order, asked, draw.pick(&highest), draw.pick(&flags))
            }
        }
    }

    /// A block of any order at, beside or beyond the allocator's memory.
    fn somewhere(&self, draw: &mut impl Draw) -> Block {
        let order = Order::new(draw.below(11) as u8).expect("up to 10");
        let zones = self.world.allocator().zones();
        let zone = *zones[draw.below(zones.len())].spec();
        let pfn = match draw.byte() {
            255 => u64::MAX - u64::from(draw.byte()),
            254 => u64::from(draw.number()) << draw.below(33),
            // At a border of a block, more often than not.
            mask => {
                let offset = draw.below(1 << 16) as u64 % (zone.pages + 1);
                zone.start.0 + (offset & !(u64::from(mask) >> 2))
            }
        };
        Block { pfn: Pfn(pfn), order }
    }

    /// A block that is probably not to be freed: any place, another order, inside a live block, or freed last.
    fn wrong(&self, draw: &mut impl Draw, live: &[Block]) -> Block {
        let any = self.somewhere(draw);
        let near = if live.is_empty() { any } else { draw.pick(&live[..live.len().min(1 << 16)]) };
        match draw.byte() % 4 {
            0 => any,
            1 => Block { order: any.order, ..near },
            2 => {
                // A made-up frame may be the last that a number can name.
                let inside = draw.below(1024) as u64 % near.order.pages();
                Block { pfn: Pfn(near.pfn.0.wrapping_add(inside)), order: any.order }
            }
            _ => self.last.unwrap_or(any),
        }
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each call that the allocator has")]
    fn make(&mut self, cpu: usize, call: Call) {
        if self.calls.len() == 2 * SHOWN {
            self.calls.drain(..SHOWN);
        }
        self.calls.push(call);
        let allocator = self.world.allocator();
        let on = self.world.cpu(&self.pins[cpu]);
        match call {
            Call::Alloc(order, asked, highest, flags) => {
                let request = Request::new(order, asked).up_to(highest).with(flags);
                let floors = Floors::before(allocator, &request);
                let got = match (flags, highest) {
                    (Flags::NONE, ZoneType::Movable) => on.alloc(order, asked),
                    (Flags::NONE, highest) => on.alloc_in(order, asked, highest),
                    (Flags::HIGH, _) => on.alloc_with(&request, &Helpers::NONE.with_reclaim(&self.owner)),
                    _ => on.alloc_with(&request, &Helpers::NONE),
                };
                self.must_keep(&floors, &request);
                match got {
                    Ok(pfn) => {
                        let zone = &allocator.zones()[allocator.frames().info(pfn).zone().index()];
                        assert!(zone.spec().kind <= highest, "{pfn} is beyond {highest}");
                        self.got(Block { pfn, order });
                    }
                    Err(error) => self.must_be_exhausted(cpu, &request, &error),
                }
            }
            Call::AllocAt(Block { pfn, order }) => match on.alloc_at(pfn, order) {
                Ok(()) => self.got(Block { pfn, order }),
                Err(error) => self.must_be_obstructed(cpu, Block { pfn, order }, &error),
            },
            Call::AllocBulk(order, asked, count) => {
                let request = Request::new(order, asked);
                let (floors, mut out) = (Floors::before(allocator, &request), vec![Pfn(0); count]);
                let got = on.alloc_bulk(order, asked, &mut out);
                self.must_keep(&floors, &request);
                out[..got].iter().for_each(|&pfn| self.got(Block { pfn, order }));
            }
            Call::Contig(start, pages) => {
                // A range is taken as unmovable pages are: zones below Normal keep nothing back from it for movable
                // ones. CMA pages count, as a range may have them.
                let request = Request::new(Order::ZERO, Migratetype::Movable).up_to(ZoneType::Normal);
                let floors = Floors::before(allocator, &request);
                let helpers = Helpers::NONE.with_migrate(&self.owner);
                let got = on.alloc_contig_range(start..Pfn(start.0.saturating_add(pages)), &helpers);
                self.must_keep(&floors, &request);
                match got {
                    Ok(()) => Block::tiles(start..start.add(pages)).for_each(|block| self.got(block)),
                    Err(error) => check_refusal(&error.to_string()),
                }
            }
            Call::Free(block) => {
                let because = self.owner.0.borrow().oracle.judge(block);
                match (on.free(block.pfn, block.order), because) {
                    (Ok(()), None) => self.gave(block),
                    (Err(error), None) => panic!("{block:?} is allocated, yet {error}"),
                    (Ok(()), Some(because)) => panic!("{block:?} was taken back although {because:?}"),
                    (Err(error), Some(_)) => {
                        check_refusal(&error.to_string());
                        self.counts.refused += 1;
                    }
                }
            }
            Call::FreeBulk(order, most) => {
                let live = self.owner.0.borrow().live.clone();
                let blocks = live.into_iter().filter(|block| block.order == order).take(most);
                let blocks: Vec<Pfn> = blocks.map(|block| block.pfn).collect();
                on.free_bulk(order, &blocks).expect("all are allocated");
                blocks.into_iter().for_each(|pfn| self.gave(Block { pfn, order }));
            }
            Call::Split(block, to) => {
                // SAFETY: one thread makes all calls, and the oracle says that the block is allocated.
                #[expect(unsafe_code, reason = "who splits a block vouches for owning it")]
                let split = unsafe { on.split(block.pfn, block.order, to) };
                if to > block.order {
                    return check_refusal(&split.expect_err("split into larger ones").to_string());
                }
                split.unwrap_or_else(|error| panic!("{block:?} is allocated, yet {error}"));
                let books = self.owner.0.get_mut();
                books.disown(block);
                let parts = (0..1 << (block.order.get() - to.get())).map(|n| block.pfn.add(n << to.get()));
                books.live.extend(parts.clone().map(|pfn| Block { pfn, order: to }));
                books.oracle.kept(parts.map(|pfn| Block { pfn, order: to }));
            }
            Call::Drain => on.drain(),
            Call::Answer => on.answer(),
            Call::RequestDrain => allocator.request_drain(),
            Call::ResizePcps => allocator.resize_pcps(),
            Call::ResizePcpsOf(zone, size) => allocator.resize_pcps_of(zone, size),
            Call::Isolate(pfn) => drop(allocator.isolate_pageblock(pfn)),
            Call::Unisolate(pfn) => drop(allocator.unisolate_pageblock(pfn)),
            Call::Retype(pfn, to) => drop(allocator.set_pageblock_type(pfn, to)),
            Call::AddMemoryAgain => {
                if let Some(&(start, pages)) =
                    self.world.spec().memory.first().filter(|_| self.offline.is_empty())
                {
                    let again = allocator.add_memory(start, pages);
                    check_refusal(&again.expect_err("memory that is in use was added").to_string());
                }
            }
            Call::Offline(pfn) => self.offline(cpu, pfn.block_start(PAGEBLOCK_ORDER)),
            Call::Online(n) => {
                let (start, pages) = self.offline.swap_remove(n);
                allocator.online(start, pages).expect("it went offline");
                self.owner.0.get_mut().oracle.came_online(start, pages);
            }
            Call::Hwpoison(pfn) => match on.hwpoison(pfn) {
                // A frame on the list of a CPU that does not know may still be handed out from there.
                Ok(Hwpoisoned::Listed(_)) => {}
                Ok(Hwpoisoned::Withdrawn | Hwpoisoned::InUse { .. }) => {
                    self.owner.0.get_mut().oracle.went_bad(pfn)
                }
                Err(error) => check_refusal(&error.to_string()),
            },
            Call::Unpoison(pfn) => match on.unpoison(pfn) {
                Ok(()) if !(self.is_bad)(pfn) => self.owner.0.get_mut().oracle.became_good(pfn),
                Ok(()) => {}
                Err(error) => check_refusal(&error.to_string()),
            },
            Call::Report(order) => {
                on.report_free(order, |blocks| {
                    let books = self.owner.0.borrow();
                    let owner = blocks
                        .iter()
                        .find_map(|&(pfn, order)| books.oracle.owner_within(Block { pfn, order }));
                    assert_eq!(owner, None, "a block in use was reported as free");
                    blocks.len() % 2 == 0
                });
            }
            Call::Round(node) => drop(on.compact_proactively(node, &self.owner)),
            Call::Inject(rule) => {
                let can = allocator.inject(rule.as_ref());
                assert_eq!(can, allocator.config().fault_injection);
            }
        }
    }

    fn got(&mut self, block: Block) {
        self.owner.0.get_mut().own(block);
        self.counts.allocated += 1;
    }

    fn gave(&mut self, block: Block) {
        let books = self.owner.0.get_mut();
        books.disown(block);
        self.filling |= books.live.is_empty();
        self.last = Some(block);
        self.counts.freed += 1;
    }

    fn must_keep(&self, floors: &Floors, request: &Request<'_>) {
        floors.check(self.world.allocator(), request).unwrap_or_else(|breach: Breach| panic!("{breach:?}"));
    }

    /// A given block is refused only if the reason that is named is there.
    fn must_be_obstructed(&self, cpu: usize, block: Block, error: &PlaceError) {
        check_refusal(&error.to_string());
        let (allocator, oracle) = (self.world.allocator(), &self.owner.0.borrow().oracle);
        let last = Pfn(block.pfn.0.wrapping_add(block.order.pages() - 1));
        let is_obstructed = match error.why {
            PlaceFailure::Misaligned => !block.pfn.is_aligned(block.order),
            PlaceFailure::Foreign => {
                let holds = |zone: &Zone<'_, Plain>| zone.spec().spans(block.pfn) && zone.spec().spans(last);
                !oracle.manages(block) || !allocator.zones().iter().any(holds)
            }
            PlaceFailure::InUse { state, .. } => {
                let is_bad = matches!(state, State::Quarantined { .. });
                is_bad || !oracle.manages(block) || oracle.owner_within(block).is_some()
            }
            PlaceFailure::Listed { cpu: lister, .. } => lister.index() != cpu,
            PlaceFailure::Isolated(pfn) => allocator.frames().info(pfn).migratetype() == Migratetype::Isolate,
            PlaceFailure::Bad => oracle.bad().any(|bad| block.pfn <= bad && bad <= last),
            PlaceFailure::BelowMark => false,
            PlaceFailure::Injected => allocator.config().fault_injection,
        };
        assert!(is_obstructed, "{error}");
    }

    /// A request is refused for want of memory only if no zone has a block for it; if no zone keeps anything back, a
    /// movable page only if none has a page, nor a list of the CPU that asks.
    fn must_be_exhausted(&mut self, cpu: usize, request: &Request<'_>, error: &AllocError) {
        check_refusal(&error.to_string());
        self.filling = false;
        self.counts.failed += 1;
        let (allocator, config) = (self.world.allocator(), self.world.allocator().config());
        if error.why == AllocFailure::NoMemory && config.engine != Engine::Linux {
            assert!(error.largest < Some(request.order), "{error}");
        }
        let for_all = request.order == Order::ZERO
            && request.migratetype == Migratetype::Movable
            && request.highest == ZoneType::Movable;
        if for_all && !config.keep_marks && !config.fault_injection && config.engine != Engine::Linux {
            let listed = |zone: ZoneId| u64::from(allocator.pcp(zone, CpuId(cpu as u16)).count());
            let left: Vec<_> =
                allocator.zones().iter().map(|zone| (zone.free_pages(), listed(zone.id()))).collect();
            assert!(
                left.iter().all(|&left| left == (0, 0)),
                "{error}; free in zones, and on own lists: {left:?}"
            );
        }
    }

    /// Takes the pageblock at `start` offline, or as much of it as its zone has.
    fn offline(&mut self, cpu: usize, start: Pfn) {
        let allocator = self.world.allocator();
        let Some(zone) = allocator.zones().iter().find(|zone| zone.spec().spans(start)) else { return };
        let end = zone.spec().end().min(start.add(PAGEBLOCK_PAGES));
        match self.world.cpu(&self.pins[cpu]).offline(start..end) {
            Ok(pages) => {
                assert_eq!(pages, end.0 - start.0, "all of it was memory");
                let oracle = &mut self.owner.0.get_mut().oracle;
                oracle.went_offline(start, pages).expect("none of it has an owner");
                if allocator.config().engine == Engine::Linux {
                    // Linux, block by block, forgets which memory has failed.
                    let gone = oracle.bad().filter(|&pfn| start <= pfn && pfn < end && !(self.is_bad)(pfn));
                    let gone: Vec<Pfn> = gone.collect();
                    gone.into_iter().for_each(|pfn| oracle.became_good(pfn));
                }
                self.offline.push((start, pages));
            }
            Err(error) => {
                check_refusal(&error.to_string());
                self.must_be_held(cpu, start, end.0 - start.0, &error);
            }
        }
    }

    /// Memory stays online only if a caller has some of it or it is none, a bad block reaches into it, a pageblock of
    /// its zone is isolated, or another CPU's lists hold blocks.
    fn must_be_held(&mut self, cpu: usize, start: Pfn, pages: u64, error: &OfflineError) {
        let allocator = self.world.allocator();
        let lists = (0..self.pins.len()).filter(|&other_cpu| other_cpu != cpu);
        let held = |zone: &Zone<'_, Plain>| {
            let counts = lists.clone().map(|cpu| allocator.pcp(zone.id(), CpuId(cpu as u16)).count());
            zone.spec().spans(start)
                && (counts.sum::<u32>() > 0 || allocator.zone_snapshot(zone).isolated_pageblocks > 0)
        };
        let oracle = &mut self.owner.0.get_mut().oracle;
        let bad = error.holders.iter().flatten().any(|held| matches!(held.state, State::Quarantined { .. }));
        if !bad && !allocator.zones().iter().any(held) && oracle.went_offline(start, pages).is_ok() {
            panic!("{pages} pages from {start:?} are free, yet {error}");
        }
    }

    /// Everything goes back: no page is lost, and memory is in blocks as large as it was.
    fn end(&mut self) {
        let allocator = self.world.allocator();
        self.world.check(&self.owner.0.borrow().oracle);
        let _ = allocator.inject(None);
        while !self.offline.is_empty() {
            self.make(0, Call::Online(0));
        }
        while let Some(&block) = self.owner.0.get_mut().live.last() {
            self.make(0, Call::Free(block));
        }
        for cpu in 0..self.pins.len() {
            self.make(cpu, Call::Drain);
        }
        let bad: Vec<Pfn> = self.owner.0.borrow().oracle.bad().collect();
        bad.into_iter().for_each(|pfn| self.make(0, Call::Unpoison(pfn)));
        for zone in allocator.zones() {
            let (mut at, end) = (zone.spec().start.block_start(PAGEBLOCK_ORDER), zone.spec().end());
            while at < end {
                allocator.unisolate_pageblock(at);
                allocator.set_pageblock_type(at, Migratetype::Movable);
                at = at.add(PAGEBLOCK_PAGES);
            }
        }
        let books = self.owner.0.borrow();
        self.world.check(&books.oracle);
        let account = self.world.settled();
        assert_eq!((account.allocated, account.on_pcp), (0, 0), "{account:?}");
        if account.quarantined == 0 {
            let fresh = self.world.spec().plain();
            let blocks = [MAX_ORDER, PAGEBLOCK_ORDER, Order::ZERO];
            let counts = |order| (allocator.free_blocks(order), fresh.allocator().free_blocks(order));
            blocks
                .map(counts)
                .iter()
                .for_each(|(now, before)| assert_eq!(now, before, "{}", allocator.buddyinfo()));
        }
    }
}
