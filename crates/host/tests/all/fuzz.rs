//! Random calls, in many configurations: every block and range that is held keeps what its owner wrote there, and the
//! books are right in the end. A seed repeats a run: `FRAMEWRIGHT_FUZZ_SEED`; `FRAMEWRIGHT_FUZZ_STEPS` makes it longer.
//! `FRAMEWRIGHT_FUZZ_CALLERS` threads make the calls, two if it is not set.

use core::alloc::Layout;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::env;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::thread;

use fastrand::Rng;
use framewright_host::framewright::config::{Engine, Experiment};
use framewright_host::framewright::reclaim::{
    Migrate, Migrated, Reclaim, ReclaimRequest, Reclaimed, Release,
};
use framewright_host::framewright::units::{NodeId, ZoneId};
use framewright_host::{Arena, Block, Config, Cpu, Flags, Migratetype, Order, PAGEBLOCK_ORDER, Pfn, Request};

use crate::common::{TYPES, order};

/// Memory of an arena for each thread that calls.
const BYTES: u64 = 16 << 20;
/// Times that a thread attaches. Blocks in the pool outlive them.
const STRETCHES: u64 = 2;

/// A block with its owner's mark at both ends.
struct Marked<'c>(Block<'c>, u64);

impl<'c> Marked<'c> {
    fn new(mut block: Block<'c>, mark: u64) -> Self {
        let bytes = block.bytes_mut();
        let end = bytes.len() - 8;
        bytes[..8].copy_from_slice(&mark.to_le_bytes());
        bytes[end..].copy_from_slice(&mark.to_le_bytes());
        Self(block, mark)
    }

    fn check(&self) {
        let bytes = self.0.bytes();
        for end in [&bytes[..8], &bytes[bytes.len() - 8..]] {
            assert_eq!(end, self.1.to_le_bytes(), "{:?} has another owner", self.0);
        }
    }
}

/// Frames that were allocated as a range, with their owner's mark at the start of each.
struct Frames(Range<Pfn>, u64);

impl Frames {
    fn words(&self, arena: &Arena) -> impl Iterator<Item = *mut u64> {
        let page = arena.page_bytes();
        let first = arena.address(self.0.start).expect("it has memory").cast::<u8>();
        // SAFETY: the arena's memory is contiguous, and has the range.
        (0..(self.0.end.0 - self.0.start.0) as usize)
            .map(move |n| unsafe { first.add(n * page) }.as_ptr().cast())
    }

    fn new(arena: &Arena, frames: Range<Pfn>, mark: u64) -> Self {
        let marked = Self(frames, mark);
        // SAFETY: the frames are the caller's.
        marked.words(arena).for_each(|word| unsafe { word.write(mark) });
        marked
    }

    fn check(&self, arena: &Arena) {
        // SAFETY: the frames are the caller's, and have a mark.
        let is_ours = |word: *mut u64| unsafe { word.read() } == self.1;
        assert!(self.words(arena).all(is_ours), "{:?} has another owner", self.0);
    }
}

/// Blocks that any thread frees, that compaction moves and reclaim takes, with their marks.
struct Pool {
    /// Address of frame 0.
    base: usize,
    /// Bytes of a page.
    page: usize,
    blocks: Mutex<BTreeMap<Pfn, (Order, u64)>>,
    moved: AtomicU64,
    reclaimed: AtomicU64,
}

impl Pool {
    fn of(arena: &Arena) -> Arc<Self> {
        let Range { start, .. } = arena.frames();
        let page = arena.page_bytes();
        let base = arena.address(start).expect("it has memory").addr().get() - start.0 as usize * page;
        let pool = Arc::new(Self {
            base,
            page,
            blocks: Mutex::default(),
            moved: AtomicU64::new(0),
            reclaimed: AtomicU64::new(0),
        });
        let (weak, reclaim) = (Arc::downgrade(&pool), Arc::downgrade(&pool));
        assert!(arena.set_weak_migrate(weak) && arena.set_weak_reclaim(reclaim));
        pool
    }

    fn bytes(&self, pfn: Pfn) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.base + pfn.0 as usize * self.page)
    }

    /// The first block from `pfn` on that `wants` takes.
    fn take(&self, pfn: Pfn, wants: impl Fn(Pfn) -> bool) -> Option<(Pfn, Order, u64)> {
        let mut blocks = self.blocks.lock().unwrap();
        let found = blocks.range(pfn..).map(|(&pfn, _)| pfn).find(|&pfn| wants(pfn))?;
        let (size, mark) = blocks.remove(&found)?;
        // SAFETY: the block was the pool's, and has its mark at the start and at the end.
        let ends = unsafe {
            let first = self.bytes(found).cast::<u64>();
            [first.read(), first.add((self.page << size.get()) / 8 - 1).read()]
        };
        assert_eq!(ends, [mark; 2], "{found:?} of the pool has another owner");
        Some((found, size, mark))
    }
}

// SAFETY: what is in the table is the pool's, and threads free only what they have taken out of it.
unsafe impl Migrate for Pool {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let mut blocks = self.blocks.lock().unwrap();
        if blocks.get(&from).is_none_or(|&(size, _)| size != order) {
            return Migrated::Stays;
        }
        // SAFETY: both blocks are the pool's now.
        unsafe { self.bytes(to).copy_from_nonoverlapping(self.bytes(from), self.page << order.get()) };
        let block = blocks.remove(&from).unwrap();
        blocks.insert(to, block);
        self.moved.fetch_add(1, Relaxed);
        Migrated::Moved
    }

    fn can_move(&self, from: Pfn, order: Order, _asked: Migratetype) -> bool {
        self.blocks.lock().unwrap().get(&from).is_some_and(|&(size, _)| size == order)
    }
}

impl Reclaim for Pool {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let mut done = Reclaimed::default();
        while done.freed < ask.target.min(64)
            && let Some((pfn, size, _)) = self.take(Pfn(0), |pfn| ask.wants(pfn))
        {
            // SAFETY: it was the pool's.
            unsafe { to.free(pfn, size) }.unwrap();
            done.scanned += size.pages();
            done.freed += size.pages();
            self.reclaimed.fetch_add(1, Relaxed);
        }
        done
    }
}

/// Calls of one thread.
struct Caller<'c> {
    cpu: &'c Cpu<'c>,
    rng: Rng,
    held: Vec<Marked<'c>>,
    ranges: Vec<Frames>,
    pool: &'c Pool,
    offline: Vec<Pfn>,
    isolated: Vec<Pfn>,
    frames: Range<Pfn>,
}

impl<'c> Caller<'c> {
    fn frame(&mut self) -> Pfn {
        // Some before the start, and some beyond the end.
        Pfn(self.rng.u64(self.frames.start.0.saturating_sub(2000)..self.frames.end.0 + 2000))
    }

    fn keep(&mut self, block: Option<Block<'c>>) {
        let mark = self.rng.u64(..);
        self.held.extend(block.map(|block| Marked::new(block, mark)));
    }

    fn release(&mut self) {
        if !self.held.is_empty() {
            let at = self.rng.usize(..self.held.len());
            self.held.swap_remove(at).check();
        }
    }

    fn keep_frames(&mut self, frames: Range<Pfn>) {
        self.ranges.push(Frames::new(self.cpu.arena(), frames, self.rng.u64(..)));
    }

    /// Frees a range, or a part of it at one end.
    fn release_frames(&mut self) {
        if self.ranges.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.ranges.len());
        let frames = &mut self.ranges[at];
        frames.check(self.cpu.arena());
        let Range { start, end } = frames.0;
        let cut = Pfn(self.rng.u64(start.0 + 1..=end.0));
        let freed = match self.rng.bool() {
            true => {
                frames.0.start = cut;
                start..cut
            }
            false => {
                frames.0.end = Pfn(cut.0 - 1);
                frames.0.end..end
            }
        };
        if frames.0.is_empty() {
            self.ranges.swap_remove(at);
        }
        // SAFETY: the frames were this thread's, and it has just given them up.
        unsafe { self.cpu.free_range(freed) }.unwrap();
    }

    /// Blocks by one call for many, to keep or for the pool.
    fn take_many(&mut self, size: Order, asked: Migratetype) {
        let cpu = self.cpu;
        let mut out = [Pfn(0); 40];
        let count = self.rng.usize(..=out.len());
        let got = cpu.alloc_bulk(size, asked, &mut out[..count]);
        let is_for_pool = self.rng.u32(..4) > 0;
        for &pfn in &out[..got] {
            // SAFETY: it was allocated just now.
            self.keep(Some(unsafe { Block::from_raw(cpu, pfn, size) }));
            if is_for_pool {
                self.give_to_pool();
            }
        }
    }

    /// An allocation with any flags but those that repeat it until it succeeds.
    fn request(&mut self, size: Order, asked: Migratetype) {
        let mut request = Request::new(size, asked);
        for flag in [Flags::HIGH, Flags::NO_WAIT, Flags::NO_RETRY, Flags::THIS_NODE, Flags::NO_WRITE]
            .into_iter()
            .chain([Flags::NO_RESERVES, Flags::VICTIM, Flags::NO_WAKE, Flags::ZERO])
        {
            if self.rng.u32(..3) == 0 {
                request = request.with(flag);
            }
        }
        let cpu = self.cpu;
        // SAFETY: it was allocated just now.
        let block = cpu.alloc_with(&request).ok().map(|pfn| unsafe { Block::from_raw(cpu, pfn, size) });
        self.keep(block);
    }

    /// Gives the last block to the pool.
    fn give_to_pool(&mut self) {
        if let Some(Marked(block, mark)) = self.held.pop() {
            let (pfn, size) = block.into_raw();
            self.pool.blocks.lock().unwrap().insert(pfn, (size, mark));
        }
    }

    /// Frames as ranges, in one of three ways.
    fn take_frames(&mut self, pfn: Pfn, asked: Migratetype) {
        let scale = self.rng.u32(..12);
        let pages = 1 + self.rng.u64(..1 << scale);
        match self.rng.u32(..3) {
            0 => {
                let range = pfn..pfn.add(pages);
                if self.cpu.alloc_contig_range(range.clone()).is_ok() {
                    self.keep_frames(range);
                }
            }
            1 => {
                let align = self.pool.page << self.rng.u32(..12);
                let layout = Layout::from_size_align(pages as usize * self.pool.page, align).unwrap();
                if let Ok(range) = self.cpu.alloc_layout(layout, asked) {
                    self.keep_frames(range);
                }
            }
            _ => {
                let mut out = [const { Pfn(0)..Pfn(0) }; 8];
                let runs = self.cpu.alloc_runs(pages, asked, &mut out);
                runs.iter().for_each(|run| self.keep_frames(run.clone()));
            }
        }
    }

    /// Frees a block of the pool, after a look at its mark.
    fn take_from_pool(&mut self) {
        let pfn = self.frame();
        if let Some((pfn, size, _)) = self.pool.take(pfn, |_| true) {
            // SAFETY: it was the pool's.
            unsafe { self.cpu.free(pfn, size) }.unwrap();
        }
    }

    fn step(&mut self) {
        let (cpu, arena) = (self.cpu, self.cpu.arena());
        let size = order(if self.rng.u32(..4) > 0 { self.rng.u8(..3) } else { self.rng.u8(..11) });
        let asked = TYPES[self.rng.usize(..3)];
        let pfn = self.frame();
        match self.rng.u32(..51) {
            0..14 => self.keep(cpu.alloc_block(size, asked).ok()),
            14..22 => self.release(),
            22 => {
                let block = cpu.alloc_block_zeroed(size, asked).ok();
                assert!(block.iter().flat_map(|block| block.bytes()).all(|&byte| byte == 0));
                self.keep(block);
            }
            23 => self.keep(cpu.alloc_block_at(Pfn(pfn.0 >> size.get() << size.get()), size).ok()),
            24 if !self.held.is_empty() => {
                let at = self.rng.usize(..self.held.len());
                let whole = self.held.swap_remove(at);
                whole.check();
                let to = order(self.rng.u8(..=whole.0.order().get()));
                let parts: Vec<_> = whole.0.split(to).take(50).collect();
                parts.into_iter().for_each(|part| self.keep(Some(part)));
            }
            25 => drop(cpu.hwpoison(pfn)),
            26 => drop(cpu.unpoison(pfn)),
            27 => {
                let start = Pfn(pfn.0 >> 9 << 9);
                if cpu.offline(start..start.add(512)).is_ok() {
                    self.offline.push(start);
                }
            }
            28 => drop(self.offline.pop().map(|start| arena.allocator().online(start, 512))),
            29 => self.isolated.extend(arena.allocator().isolate_pageblock(pfn).map(|_| pfn)),
            30 => drop(self.isolated.pop().map(|pfn| arena.allocator().unisolate_pageblock(pfn))),
            31 => drop(arena.allocator().set_pageblock_type(pfn, asked)),
            32 => drop(arena.allocator().add_memory(pfn, self.rng.u64(..600))),
            33 => cpu.drain(),
            34 => [cpu.tick(), cpu.answer(), arena.tick()].iter().for_each(drop),
            35 => drop((arena.reap(), arena.counts(), cpu.trim(PAGEBLOCK_ORDER))),
            36 => drop(cpu.report_free(PAGEBLOCK_ORDER, |_| pfn.0.is_multiple_of(2))),
            37 => drop(cpu.explain(&Request::new(size, asked).with(Flags::NO_WAIT))),
            38 => drop(cpu.alloc_contig_range(pfn..pfn)),
            39 => self.take_many(size, asked),
            40 | 41 => self.take_frames(pfn, asked),
            42 | 43 => self.release_frames(),
            44 => self.give_to_pool(),
            45 | 46 => (0..8).for_each(|_| self.take_from_pool()),
            47 => drop(cpu.compact(ZoneId(0))),
            48 => drop(cpu.compact_proactively(NodeId(0))),
            49 => self.request(size, asked),
            _ => {
                self.held.iter().for_each(Marked::check);
                self.ranges.iter().for_each(|frames| frames.check(arena));
            }
        }
        if self.held.len() > 100 {
            (0..50).for_each(|_| self.release());
        }
        if self.ranges.len() > 20 {
            (0..30).for_each(|_| self.release_frames());
        }
    }
}

#[test]
fn random_calls_leave_every_block_to_its_owner() {
    let number = |name, usual| env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seed, steps) = (number("FRAMEWRIGHT_FUZZ_SEED", 1), number("FRAMEWRIGHT_FUZZ_STEPS", 2000_u64));
    let callers = number("FRAMEWRIGHT_FUZZ_CALLERS", 2);
    let bytes = BYTES * callers;
    let usual = Config::default();
    let compact = Config { engine: Engine::Compact, lazy_pageblocks: true, ..usual };
    // Sections of 4 MiB.
    let sections = Experiment { section_pages: 1024, ..usual.experiment };
    let cut = |config| Config { experiment: sections, free_reporting: true, ..config };
    let mut done = [0; 2];
    for (name, config) in [
        ("sections", cut(usual)),
        ("untouched sections", cut(Config { lazy_pageblocks: true, ..usual })),
        ("compact sections", cut(compact)),
        ("two nodes", cut(usual)),
        ("uneven nodes", cut(usual)),
        ("uneven nodes with marks", cut(usual.with_marks())),
        ("holes", cut(Config { lazy_pageblocks: true, ..usual })),
        ("pages of 16 KiB", cut(usual)),
        ("default", Config { free_reporting: true, ..usual }),
        ("compact", Config { free_reporting: true, ..compact }),
        ("linux_v6_7", Config::linux_v6_7()),
        ("linux_v5_4", Config::linux_v5_4()),
        ("init_on_free", Config { init_on_free: true, ..usual }),
        ("poison", Config { poison: true, ..usual }),
        ("marks", usual.with_marks()),
    ] {
        println!("{name}, seed {seed}");
        let builder = Arena::builder().bytes(bytes).cpus(callers as usize + 2).config(config).background();
        let builder = match name {
            "two nodes" => builder.nodes(2).base(Pfn(1 << 20)),
            "uneven nodes" | "uneven nodes with marks" => builder.node_shares([1, 5, 2]),
            "holes" => builder.base(Pfn(1024)).holes([Pfn(1024)..Pfn(1031), Pfn(3000)..Pfn(5500)]),
            "pages of 16 KiB" => builder.page_bytes(16 << 10).bytes(4 * bytes),
            _ => builder,
        };
        let arena: Arena = builder.build().unwrap();
        let pool = Pool::of(&arena);
        let call = |n: u64| {
            let mut rng = Rng::with_seed(seed << 8 | n);
            for _ in 0..STRETCHES {
                let cpu = arena.attach().unwrap();
                let mut caller = Caller {
                    cpu: &cpu,
                    rng: rng.fork(),
                    held: Vec::new(),
                    ranges: Vec::new(),
                    pool: &pool,
                    offline: Vec::new(),
                    isolated: Vec::new(),
                    frames: arena.frames(),
                };
                (0..steps / STRETCHES).for_each(|_| caller.step());
                caller.held.iter().for_each(Marked::check);
                while !caller.ranges.is_empty() {
                    caller.release_frames();
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| arena.run_background(NodeId(0)).unwrap());
            let spawned: Vec<_> = (0..callers)
                .map(|n| {
                    scope.spawn({
                        let call = &call;
                        move || call(n)
                    })
                })
                .collect();
            let ended: Vec<_> = spawned.into_iter().map(|caller| caller.join()).collect();
            arena.stop_background();
            for ended in ended {
                ended.unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
        arena.verify().unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
        done[0] += pool.moved.load(Relaxed);
        done[1] += pool.reclaimed.load(Relaxed);
    }
    assert!(done.iter().all(|&blocks| blocks > 0), "blocks that moved, and that were reclaimed: {done:?}");
}
