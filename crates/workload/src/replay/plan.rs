//! A trace compiled for a number of threads.

use framewright_trace::trace::{Event, EventKind, Trace};

use super::MAX_ORDER;
use super::live::{Live, Owner, Released};
use crate::target::Mobility;

/// What a thread does at one point of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    /// Index of the trace's event: the order of all operations of all threads.
    pub(super) position: u32,
    /// The lifetime; for [`Action::FreePart`] an index into [`Plan::partials`].
    pub(super) slot: u32,
    pub(super) action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// `moves`: whether the traced kernel can move it.
    Alloc {
        order: u8,
        mobility: Mobility,
        moves: bool,
    },
    Free {
        order: u8,
    },
    FreePart {
        offset: u16,
        part: u8,
    },
}

/// A lifetime that ends in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partial {
    /// The lifetime.
    pub(super) slot: u32,
    /// Order with which the block was allocated.
    pub(super) order: u8,
}

/// Request of a replay where the traced program got a page of a file ([`Event::is_page_cache`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCache {
    /// What the traced kernel asked for: Linux, a movable block.
    #[default]
    AsTraced,
    /// A reclaimable block, which it is. Pages that stay then share pageblocks with one another, and not with those of
    /// programs that end. Compaction moves a reclaimable block only if its owner says that it can, as this one does of
    /// these.
    Reclaimable,
}

impl PageCache {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::AsTraced, Self::Reclaimable];

    /// Mobility of an allocation of the trace.
    #[must_use]
    pub const fn mobility(self, event: &Event) -> Mobility {
        match self {
            Self::Reclaimable if event.is_page_cache() => Mobility::Reclaimable,
            _ => mobility(event.migratetype),
        }
    }
}

/// Counts of a trace that concern a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocations that are replayed.
    pub allocations: u64,
    /// Their frames.
    pub allocated_frames: u64,
    /// Those of them that are pages of files: see [`PageCache`].
    pub page_cache_frames: u64,
    /// Frees of whole blocks, those of unknown frames among them.
    pub frees: u64,
    /// Frees of parts of blocks.
    pub part_frees: u64,
    /// Frees, and parts of frees, of frames that were not allocated in the trace: their blocks are there before
    /// the start.
    pub unknown_frees: u64,
    /// Their frames.
    pub unknown_frames: u64,
    /// Frees and parts that run on another thread than their allocation.
    pub cross_thread_frees: u64,
    /// Frames in use after the last event.
    pub live_frames: u64,
    /// The most frames in use at any point of the trace, those from before the start included. A replay may
    /// need more, as its threads drift.
    pub peak_frames: u64,
}

/// A trace compiled for a number of threads: replay it as often as wanted.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By thread: blocks that must be there before the start.
    pub(super) before: Vec<Vec<Op>>,
    /// By thread, positions ascending.
    pub(super) threads: Vec<Vec<Op>>,
    /// What is still in use after the last event.
    pub(super) after: Vec<Op>,
    pub(super) partials: Vec<Partial>,
    pub(super) lifetimes: usize,
    counts: Counts,
}

impl Plan {
    /// Compiles a trace for `threads` threads, at least one. O(n log n) in the events.
    ///
    /// # Errors
    /// The trace has neither allocations nor frees, an order above 10, or too much of everything: 2^32 events,
    /// 2^31 blocks.
    pub fn compile(trace: &Trace, threads: usize) -> Result<Self, String> {
        Self::compile_with(trace, threads, PageCache::AsTraced)
    }

    /// Like [`compile`](Self::compile), where pages of files are asked for as `page_cache` says.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with(trace: &Trace, threads: usize, page_cache: PageCache) -> Result<Self, String> {
        if u32::try_from(trace.events.len()).is_err() {
            return Err("the trace has more than 2^32 - 1 events: record a shorter one".to_owned());
        }
        let mut compiler = Compiler {
            plan: Self {
                before: vec![Vec::new(); threads.max(1)],
                threads: vec![Vec::new(); threads.max(1)],
                after: Vec::new(),
                partials: Vec::new(),
                lifetimes: 0,
                counts: Counts::default(),
            },
            page_cache,
            live: Live::default(),
            born: Vec::new(),
            partial_of: Vec::new(),
            free: trace.free_kind(),
            balance: Balance::default(),
        };
        for (position, event) in trace.events.iter().enumerate() {
            if event.order > MAX_ORDER {
                return Err(format!(
                    "event {position} has order {}: {MAX_ORDER} is the largest",
                    event.order
                ));
            }
            // An event begins at most one lifetime for each of its frames.
            if compiler.born.len() >= (u32::MAX >> 1) as usize {
                return Err("the trace has more than 2^31 blocks: record a shorter one".to_owned());
            }
            compiler.event(position as u32, event);
        }
        let plan = compiler.finish();
        if plan.threads.iter().all(Vec::is_empty) {
            return Err("the trace has no allocations and no frees to replay: record one with \
                        `framewright record -- COMMAND`"
                .to_owned());
        }
        Ok(plan)
    }

    /// Threads that it is for.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Counts of the trace.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Frames in use relative to the start, where the unknown ones are in use already.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    now: i64,
    most: i64,
}

impl Balance {
    fn add(&mut self, frames: i64) {
        self.now += frames;
        self.most = self.most.max(self.now);
    }
}

/// Where an operation belongs.
#[derive(Clone, Copy, Debug)]
struct At {
    position: u32,
    thread: usize,
}

struct Compiler {
    plan: Plan,
    page_cache: PageCache,
    live: Live,
    /// By lifetime: the thread that allocates.
    born: Vec<usize>,
    /// By lifetime: its index among the partials, once it has one.
    partial_of: Vec<Option<u32>>,
    /// The kind of event that is a free.
    free: EventKind,
    balance: Balance,
}

impl Compiler {
    fn event(&mut self, position: u32, event: &Event) {
        let at = At { position, thread: usize::from(event.cpu) % self.plan.threads.len() };
        // A frame that is no multiple of its block's size is of no block: left out.
        if !event.pfn.is_multiple_of(1 << event.order) {
            return;
        }
        match event.kind {
            EventKind::PageAlloc => self.alloc(at, event),
            kind if kind == self.free => {
                for released in self.live.release(event.pfn, event.order) {
                    self.ended(at, released);
                }
            }
            // What the traced kernel moved to its lists and back.
            _ => {}
        }
    }

    fn alloc(&mut self, at: At, event: &Event) {
        // What is in use there was freed unseen; the frames between are simply free.
        for released in self.live.release(event.pfn, event.order) {
            if !matches!(released, Released::Unknown(..)) {
                self.ended(at, released);
            }
        }
        let slot = self.lifetime(at.thread);
        self.live.insert(event.pfn, event.order, slot);
        let mobility = self.page_cache.mobility(event);
        let moves = self::mobility(event.migratetype) == Mobility::Movable && event.migratetype.is_some();
        self.push(at, slot, Action::Alloc { order: event.order, mobility, moves });
        self.plan.counts.allocations += 1;
        self.plan.counts.allocated_frames += 1 << event.order;
        self.plan.counts.page_cache_frames += if event.is_page_cache() { 1 << event.order } else { 0 };
        self.balance.add(1 << event.order);
    }

    /// Plans the free of what was released.
    fn ended(&mut self, at: At, released: Released) {
        let (slot, action) = match released {
            Released::Whole(owner) => (owner.slot, Action::Free { order: owner.order }),
            Released::Part(owner, pfn, part) => self.part(owner, pfn, part),
            Released::Unknown(_, order) => {
                let slot = self.lifetime(at.thread);
                // No event tells its mobility.
                let action = Action::Alloc { order, mobility: Mobility::Movable, moves: false };
                self.plan.before[at.thread].push(Op { position: 0, slot, action });
                self.plan.counts.unknown_frees += 1;
                self.plan.counts.unknown_frames += 1 << order;
                (slot, Action::Free { order })
            }
        };
        let (lifetime, frames) = match action {
            Action::FreePart { part, .. } => {
                self.plan.counts.part_frees += 1;
                (self.plan.partials[slot as usize].slot, 1 << part)
            }
            Action::Free { order } | Action::Alloc { order, .. } => {
                self.plan.counts.frees += 1;
                (slot, 1 << order)
            }
        };
        self.plan.counts.cross_thread_frees += u64::from(self.born[lifetime as usize] != at.thread);
        self.balance.add(-frames);
        self.push(at, slot, action);
    }

    fn part(&mut self, owner: Owner, pfn: u64, part: u8) -> (u32, Action) {
        let partials = &mut self.plan.partials;
        let index = *self.partial_of[owner.slot as usize].get_or_insert_with(|| {
            partials.push(Partial { slot: owner.slot, order: owner.order });
            // No more than there are events.
            (partials.len() - 1) as u32
        });
        // Below 2^10: a block has no more frames.
        (index, Action::FreePart { offset: (pfn - owner.start) as u16, part })
    }

    fn lifetime(&mut self, thread: usize) -> u32 {
        self.born.push(thread);
        self.partial_of.push(None);
        // Below 2^32: compiling stops at half of it, and an event begins at most 2^10.
        (self.born.len() - 1) as u32
    }

    fn push(&mut self, at: At, slot: u32, action: Action) {
        self.plan.threads[at.thread].push(Op { position: at.position, slot, action });
    }

    fn finish(mut self) -> Plan {
        let counts = &mut self.plan.counts;
        counts.live_frames = self.live.frames();
        counts.peak_frames = counts.unknown_frames + self.balance.most.unsigned_abs();
        for released in self.live.release_all() {
            let (slot, action) = match released {
                Released::Whole(owner) => (owner.slot, Action::Free { order: owner.order }),
                Released::Part(owner, pfn, part) => self.part(owner, pfn, part),
                // Only what is in use is on the books.
                Released::Unknown(..) => continue,
            };
            self.plan.after.push(Op { position: u32::MAX, slot, action });
        }
        self.plan.lifetimes = self.born.len();
        self.plan
    }
}

/// Linux numbers unmovable 0, movable 1, reclaimable 2; what is above is lent or reserved movable memory.
const fn mobility(migratetype: Option<u8>) -> Mobility {
    match migratetype {
        Some(0) => Mobility::Unmovable,
        Some(2) => Mobility::Reclaimable,
        _ => Mobility::Movable,
    }
}
