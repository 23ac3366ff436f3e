//! An allocator in memory of its own, whose CPUs are numbers: a call of a CPU holds that CPU's lock. For the peers'
//! tests, whose threads have no CPUs.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;

use framewright::platform::{Metal, PinnedTo};
use framewright::{
    Allocator, Config, Cpu, CpuId, Memory, NodeId, Order, Pfn, Plan, SetupError, ZoneSpec, ZoneType,
};

pub const CPUS: usize = 8;
static NODES: [NodeId; CPUS] = [NodeId(0); CPUS];

pub struct World {
    /// Dropped before its memory.
    allocator: Option<Allocator<'static, Metal>>,
    room: (NonNull<u8>, Layout),
    locks: [Mutex<()>; CPUS],
}

// SAFETY: an allocator's words are atomics, and its cells are behind its locks; each CPU's calls are behind its lock.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    /// A zone that spans these frames, without memory.
    pub fn new(span: Range<u64>) -> Result<Self, SetupError> {
        let start = Pfn(span.start - span.start % 1024);
        let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start, pages: span.end - start.0 };
        let config = Config::default();
        let plan = Plan::new(&[zone], &NODES, &config)?;
        let layout = plan.layout::<Metal, ()>()?;
        // SAFETY: the layout is not empty.
        let room = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("the host has memory");
        // SAFETY: zeroed, of the plan's layout, and given back after the allocator is gone.
        let memory = unsafe { Memory::carve(&plan, room) };
        let allocator = Some(Allocator::new(&[zone], &NODES, config, memory, None)?);
        Ok(Self { allocator, room: (room, layout), locks: [const { Mutex::new(()) }; CPUS] })
    }

    pub fn allocator(&self) -> &Allocator<'static, Metal> {
        self.allocator.as_ref().expect("it goes when the world does")
    }

    pub fn add(&self, frames: Range<u64>) -> Result<(), SetupError> {
        self.allocator().add_memory(Pfn(frames.start), frames.end - frames.start)?;
        self.allocator().resize_pcps();
        Ok(())
    }

    pub fn on<R>(&self, cpu: usize, f: impl FnOnce(&Cpu<'_, '_, Metal>) -> R) -> R {
        let _held = self.locks[cpu % CPUS].lock().expect("no test panics inside a call");
        // SAFETY: this thread has the CPU's lock.
        let pin = unsafe { PinnedTo::new(CpuId((cpu % CPUS) as u16)) };
        f(&self.allocator().cpu(&pin))
    }

    /// Gives the lists of every CPU back: a CPU whose thread has ended does not answer.
    pub fn drain(&self) {
        (0..CPUS).for_each(|cpu| self.on(cpu, |cpu| cpu.drain()));
    }

    /// Allocates by `f` on a CPU; once more after a drain.
    pub fn get<R, E>(&self, cpu: usize, f: impl Fn(&Cpu<'_, '_, Metal>) -> Result<R, E>) -> Result<R, E> {
        self.on(cpu, &f).or_else(|_| {
            self.drain();
            self.on(cpu, &f)
        })
    }

    /// A block at its natural alignment.
    pub fn block(&self, cpu: usize, pages: u64, align: u64) -> Option<u64> {
        let bytes = |pages: u64| usize::try_from(pages).ok()?.checked_mul(4096);
        let layout = Layout::from_size_align(bytes(pages)?, bytes(align)?).ok()?;
        let range = self.get(cpu, |cpu| cpu.alloc_layout(layout, framewright::Migratetype::Movable)).ok()?;
        Some(range.start.0)
    }

    pub fn free(&self, cpu: usize, start: u64, pages: u64) -> bool {
        // SAFETY: no memory is behind these frames.
        self.on(cpu, |cpu| unsafe { cpu.free_range(Pfn(start)..Pfn(start + pages)) }.is_ok())
    }

    /// Frames that no caller has.
    pub fn free_frames(&self) -> u64 {
        self.allocator().free_pages() + self.allocator().pcp_pages()
    }

    pub fn frames(&self) -> u64 {
        self.allocator().zones()[0].managed_pages()
    }

    /// Blocks of an order that could be had, after a drain.
    pub fn free_blocks(&self, order: Order) -> u64 {
        self.drain();
        self.allocator().free_blocks(order)
    }

    pub fn verify(&self) {
        let _all: Vec<_> = self.locks.iter().map(|lock| lock.lock()).collect();
        self.allocator().verify().expect("sound");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.allocator = None;
        // SAFETY: from `new`, and nothing reaches it any more.
        unsafe { dealloc(self.room.0.as_ptr(), self.room.1) };
    }
}
