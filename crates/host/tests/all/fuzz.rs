//! Random calls of the interface that needs no `unsafe`, in many configurations: every block that is held keeps what
//! its owner wrote there, and the books are right in the end. A seed repeats a run: `FRAMEWRIGHT_FUZZ_SEED`;
//! `FRAMEWRIGHT_FUZZ_STEPS` makes it longer.

use std::env;
use std::thread;

use fastrand::Rng;
use framewright_host::framewright::config::Engine;
use framewright_host::{Arena, Block, Config, Cpu, Flags, PAGEBLOCK_ORDER, Pfn, Request};

use crate::common::{TYPES, order};

const BYTES: u64 = 32 << 20;
const THREADS: usize = 2;

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

/// Calls of one thread.
struct Caller<'c> {
    cpu: &'c Cpu<'c>,
    rng: Rng,
    held: Vec<Marked<'c>>,
    offline: Vec<Pfn>,
    isolated: Vec<Pfn>,
    frames: u64,
}

impl<'c> Caller<'c> {
    fn frame(&mut self) -> Pfn {
        // Some beyond the end.
        Pfn(self.rng.u64(..self.frames + 2000))
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

    fn step(&mut self) {
        let (cpu, arena) = (self.cpu, self.cpu.arena());
        let size = order(if self.rng.u32(..4) > 0 { self.rng.u8(..3) } else { self.rng.u8(..11) });
        let asked = TYPES[self.rng.usize(..3)];
        let pfn = self.frame();
        match self.rng.u32(..40) {
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
            _ => self.held.iter().for_each(Marked::check),
        }
        if self.held.len() > 300 {
            (0..150).for_each(|_| self.release());
        }
    }
}

#[test]
fn random_safe_calls_leave_every_block_to_its_owner() {
    let number = |name, usual| env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seed, steps) = (number("FRAMEWRIGHT_FUZZ_SEED", 1), number("FRAMEWRIGHT_FUZZ_STEPS", 2000_u64));
    let usual = Config::default();
    let compact = Config { engine: Engine::Compact, lazy_pageblocks: true, ..usual };
    for (name, config) in [
        ("default", Config { free_reporting: true, ..usual }),
        ("compact", Config { free_reporting: true, ..compact }),
        ("linux_v6_7", Config::linux_v6_7()),
        ("linux_v5_4", Config::linux_v5_4()),
        ("init_on_free", Config { init_on_free: true, ..usual }),
        ("poison", Config { poison: true, ..usual }),
        ("marks", usual.with_marks()),
    ] {
        println!("{name}, seed {seed}");
        let arena: Arena = Arena::builder().bytes(BYTES).cpus(THREADS + 1).config(config).build().unwrap();
        thread::scope(|scope| {
            for n in 0..THREADS as u64 {
                let arena = &arena;
                scope.spawn(move || {
                    let cpu = arena.attach().unwrap();
                    let frames = arena.frames().end.0;
                    let rng = Rng::with_seed(seed << 8 | n);
                    let mut caller = Caller {
                        cpu: &cpu,
                        rng,
                        held: Vec::new(),
                        offline: Vec::new(),
                        isolated: Vec::new(),
                        frames,
                    };
                    (0..steps).for_each(|_| caller.step());
                    caller.held.iter().for_each(Marked::check);
                });
            }
        });
        arena.verify().unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
    }
}
