//! Secondary CPUs: starting them, giving them work, stopping them.
//!
//! A CPU without work sleeps in [`idle`]. Work is a closure that every running CPU is given together; the CPU that gave
//! it takes part and waits for the others.
#![expect(unsafe_code, reason = "a CPU starts with an address as its stack, and work is lent across CPUs")]

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use framewright::{CpuId, Migratetype, Order, Pfn};

use crate::arch::InterruptsOff;
use crate::kernel::{self, Kernel, memory};
use crate::metal::Pin;
use crate::paging::{self, PAGE, STACKS};
use crate::percpu::{self, PerCpu, State};
use crate::{apic, arch, clock, log, trap};

/// Address that the trampoline is copied to; `entry.s` and the memory map (`boot`) know, too.
pub(crate) const TRAMPOLINE: u64 = 0x8000;
/// Order of the block under a kernel stack: 32 KiB.
const STACK_ORDER: Order = Order::new(3).expect("it is below 11");
/// Order of the block that a CPU's own memory takes.
const PERCPU_ORDER: Order = Order::new(4).expect("it is below 11");
/// Longest time that a CPU may take to arrive: the emulator's host may be busy.
const ARRIVAL_MS: u64 = 30_000;
/// A stack and a page below it that is never mapped; a power of two.
const STACK_SPACING: u64 = 64 << 10;

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
    static trampoline_fields: u8;
}

// ---- starting and stopping -----------------------------------------------------------------------------------

/// Starts every CPU that the firmware lists.
pub(crate) fn start_all(kernel: &'static Kernel) {
    for cpu in 1..kernel.pages.cpus() {
        start(kernel, CpuId(cpu as u16));
    }
    log!("smp: brought up {} nodes, {} CPUs", kernel.machine.nodes(), kernel.online().count());
}

/// Starts a CPU that does not run. Its own memory and its stack come from its own node's lists.
///
/// # Panics
/// It does not arrive.
pub(crate) fn start(kernel: &'static Kernel, cpu: CpuId) {
    let info = kernel.machine.cpus[cpu.index()];
    // SAFETY: the CPU does not run, and one CPU starts and stops the others. This pin is not used once it runs.
    let pin = unsafe { Pin::new(cpu) };
    let alloc = |order| {
        let block = kernel.pages.cpu(&pin).alloc(order, Migratetype::Unmovable);
        block.unwrap_or_else(|error| panic!("memory to start {cpu:?}: {error}"))
    };
    if percpu::of(cpu).is_none() {
        let target = memory(alloc(PERCPU_ORDER)).cast();
        // SAFETY: allocated just now, as large as the assertion in `percpu` says, and never freed.
        unsafe { percpu::settle(target, cpu, info.node, info.apic) };
    }
    let stack = map_stack(kernel, cpu, alloc(STACK_ORDER));
    let target = percpu::of(cpu).expect("it was settled");
    kernel.give_view(target);
    prepare_trampoline(target, stack);
    let _off = InterruptsOff::new();
    apic::start_cpu(target.apic, (TRAMPOLINE / PAGE) as u8);
    let until = clock::ticks() + ARRIVAL_MS * clock::ticks_per_ms();
    while target.state() != State::Online {
        assert!(clock::ticks() < until, "{cpu:?} does not arrive");
        percpu::relax();
    }
}

/// Stops a CPU other than the running one: it gives its pages back and sleeps until it is reset.
pub(crate) fn stop(kernel: &Kernel, cpu: CpuId) {
    let target = percpu::of(cpu).expect("it runs");
    assert!(
        target.state() == State::Online && !ptr::eq(target, percpu::current()),
        "{cpu:?} cannot be stopped"
    );
    target.set_state(State::Leaving);
    apic::wake(target.apic);
    while target.state() != State::Off {
        percpu::relax();
    }
    let block = unmap_stack(cpu);
    kernel.free(block, STACK_ORDER).expect("the stack was allocated");
}

const fn stack_start(cpu: CpuId) -> u64 {
    STACKS + cpu.0 as u64 * STACK_SPACING + PAGE
}

/// Maps a block as a CPU's stack, with nothing below it, and returns its end.
fn map_stack(kernel: &Kernel, cpu: CpuId, block: Pfn) -> u64 {
    for n in 0..STACK_ORDER.pages() {
        let address = stack_start(cpu) + n * PAGE;
        // SAFETY: the CPU's own place, which nothing uses while the CPU does not run; the block is ours.
        unsafe { paging::map(address, block.add(n), false, &mut || kernel.page_table()) };
    }
    stack_start(cpu) + STACK_ORDER.pages() * PAGE
}

/// Unmaps a CPU's stack and returns its block.
fn unmap_stack(cpu: CpuId) -> Pfn {
    let mut first = None;
    for n in 0..STACK_ORDER.pages() {
        // SAFETY: the CPU has stopped: only it used the pages, and it forgets them when it is reset.
        let frame = unsafe { paging::unmap(stack_start(cpu) + n * PAGE) };
        first.get_or_insert(frame);
    }
    first.expect("a stack has pages")
}

fn prepare_trampoline(cpu: &'static PerCpu, stack: u64) {
    let fields = [
        arch::page_tables(),
        stack,
        ptr::from_ref(cpu).expose_provenance() as u64,
        arrive as *const () as u64,
    ];
    // SAFETY: the page is set aside (`boot`), the code fits it, and no CPU is on its way: `start` waits.
    unsafe {
        let code = &raw const trampoline;
        let bytes = (&raw const trampoline_end).offset_from_unsigned(code);
        let at = (&raw const trampoline_fields).offset_from_unsigned(code);
        let page = paging::direct(TRAMPOLINE);
        page.copy_from_nonoverlapping(code, bytes);
        page.add(at).cast::<[u64; 4]>().write_unaligned(fields);
    }
}

/// The entry of a secondary CPU, from `entry.s`, on its stack.
extern "C" fn arrive(cpu: &'static PerCpu) -> ! {
    // SAFETY: the first thing this CPU does.
    unsafe { cpu.load() };
    trap::load();
    apic::start();
    cpu.given.store(WORK.generation.load(Ordering::Acquire), Ordering::Release);
    cpu.set_state(State::Online);
    idle(cpu)
}

/// Waits for work, or for the end. Interrupts are on while it works and while it sleeps only.
fn idle(cpu: &'static PerCpu) -> ! {
    let mut done = cpu.given.load(Ordering::Acquire);
    loop {
        let given = cpu.given.load(Ordering::Acquire);
        if given != done {
            done = given;
            arch::interrupts_on();
            WORK.run(cpu.number);
            arch::interrupts_off();
        } else if cpu.state() == State::Leaving {
            kernel::the().as_cpu(|cpu| cpu.drain());
            cpu.set_state(State::Off);
            arch::halt();
        } else {
            tick(kernel::the());
            kernel::the().as_cpu(|cpu| cpu.answer());
            cpu.turns.fetch_add(1, Ordering::AcqRel);
            arch::sleep();
            cpu.turns.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Nanoseconds between two requests that lists shrink.
const TICK: u64 = 1_000_000_000;

/// Time on the clock at which they are next asked to.
static NEXT_TICK: AtomicU64 = AtomicU64::new(TICK);

/// By whichever CPU waits, about once a second: has the lists of all CPUs shrink where they hold more than is used, as
/// Linux' vmstat worker does. No CPU is woken for it: a CPU that sleeps shrinks its lists when it wakes.
fn tick(kernel: &Kernel) {
    let (now, next) = (clock::now_ns(), NEXT_TICK.load(Ordering::Relaxed));
    let ours = || NEXT_TICK.compare_exchange(next, now + TICK, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if now >= next && ours() {
        kernel.pages.request_tick();
    }
}

// ---- work ----------------------------------------------------------------------------------------------------

/// Work that every CPU is given.
type Job = dyn Fn(CpuId) + Sync;

struct Work {
    /// Number of the piece of work.
    generation: AtomicU64,
    /// CPUs that have not finished it.
    left: AtomicU32,
    /// Borrowed from the CPU that waits until `left` is 0.
    job: UnsafeCell<Option<*const Job>>,
}

// SAFETY: `job` is written while no CPU works, before `given` counts it, and read after that.
unsafe impl Sync for Work {}

static WORK: Work =
    Work { generation: AtomicU64::new(0), left: AtomicU32::new(0), job: UnsafeCell::new(None) };

impl Work {
    fn run(&self, cpu: CpuId) {
        // SAFETY: `given` was read, so the job was written before; its owner waits for us.
        if let Some(job) = unsafe { *self.job.get() } {
            // SAFETY: as above.
            unsafe { (*job)(cpu) };
        }
        self.left.fetch_sub(1, Ordering::Release);
    }
}

/// Runs `theirs` on every other CPU of `cpus` that runs, and `here` here; returns when all are through. One CPU
/// gives work, and not from within work.
pub(crate) fn beside<R>(
    kernel: &Kernel,
    cpus: usize,
    theirs: &(dyn Fn(CpuId) + Sync),
    here: impl FnOnce() -> R,
) -> R {
    let me = percpu::current().number;
    let others = || kernel.online().filter(|cpu| cpu.number != me && cpu.number.index() < cpus);
    let generation = WORK.generation.fetch_add(1, Ordering::Relaxed) + 1;
    // SAFETY: no CPU works, for the CPU that gave the last work has waited for it. The lifetime ends after the wait
    // below; nothing here unwinds.
    unsafe {
        *WORK.job.get() =
            Some(core::mem::transmute::<*const (dyn Fn(CpuId) + Sync + '_), *const Job>(theirs));
    }
    WORK.left.store(others().count() as u32, Ordering::Release);
    for cpu in others() {
        cpu.given.store(generation, Ordering::Release);
        apic::wake(cpu.apic);
    }
    let result = here();
    while WORK.left.load(Ordering::Acquire) != 0 {
        tick(kernel);
        kernel.with_cpu(|cpu| cpu.answer());
        percpu::relax();
    }
    result
}

/// Runs `job` on the first `cpus` CPUs that run, this one among them; returns when all are through.
pub(crate) fn everywhere(kernel: &Kernel, cpus: usize, job: &(dyn Fn(CpuId) + Sync)) {
    beside(kernel, cpus, job, || job(percpu::current().number));
}

/// A barrier of CPUs.
pub(crate) struct Barrier {
    cpus: u32,
    arrived: AtomicU32,
    round: AtomicU32,
}

impl Barrier {
    /// A barrier for `cpus`.
    pub(crate) const fn new(cpus: usize) -> Self {
        Self { cpus: cpus as u32, arrived: AtomicU32::new(0), round: AtomicU32::new(0) }
    }

    /// Waits until all have come. While it waits, this CPU serves the requests of others.
    pub(crate) fn wait(&self, kernel: &Kernel) {
        self.wait_with(|| {
            tick(kernel);
            kernel.with_cpu(|cpu| cpu.answer());
            percpu::relax();
        });
    }

    /// Waits until all have come, and does nothing else, so that all go on together.
    pub(crate) fn wait_awake(&self) {
        self.wait_with(|| ());
    }

    fn wait_with(&self, moment: impl Fn()) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.cpus {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
        }
        while self.round.load(Ordering::Acquire) == round {
            moment();
        }
    }
}
