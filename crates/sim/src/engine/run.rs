//! A run: programs on virtual CPUs until all have ended.

use core::cell::RefCell;
use core::cmp::Reverse;
use core::fmt;
use core::mem;
use core::ptr;
use std::collections::binary_heap::PeekMut;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use super::{CURRENT, Cpu, Engine, NEAR_TABLES, NO_LINE, SEEN, Simulator, State, TRANSLATIONS};
use crate::clock::{Ps, mix};
use crate::trace::Doing;

/// Bytes of a coroutine's stack, committed as it is touched.
const STACK: usize = 1 << 18;
/// Stacks that a thread keeps for its next runs: to map and to touch one takes longer than a short program.
const KEPT: usize = 512;

thread_local! {
    /// Stacks of coroutines that have ended.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}
/// How often in a row sleepers may be woken with no other CPU to run and nothing stored, before that counts as a
/// deadlock: more than the pauses of any bounded wait.
const FRUITLESS: u32 = 100_000;

/// How a run went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Time at which each CPU that ran began.
    pub starts: Vec<Ps>,
    /// Time at which each CPU that ran ended.
    pub ends: Vec<Ps>,
}

impl Report {
    /// Mean time that a CPU took.
    #[must_use]
    pub fn mean(&self) -> Ps {
        let spans = self.starts.iter().zip(&self.ends).map(|(start, end)| end.since(*start).0);
        Ps(spans.sum::<u64>() / (self.ends.len() as u64).max(1))
    }

    /// Time from the first CPU's start to the last one's end.
    #[must_use]
    pub fn whole(&self) -> Ps {
        let (first, last) = (self.starts.iter().min(), self.ends.iter().max());
        last.copied().unwrap_or_default().since(first.copied().unwrap_or_default())
    }
}

/// Event counters of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Events {
    /// Depends on every shared event: CPU, time, line and kind, in order.
    pub hash: u64,
    /// Accesses charged.
    pub accesses: u64,
    /// Those of them that others could have a part in.
    pub shared: u64,
    /// Times a CPU had to let another one go first.
    pub switches: u64,
    /// Times a CPU added what it had counted on its own to what all read (see [`Simulator::sum_up`]).
    pub additions: u64,
    /// Branches that went another way than the CPU had expected.
    pub surprises: u64,
}

/// Lets no engine run on this thread any more, also after a panic.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        CURRENT.set(ptr::null_mut());
    }
}

impl Simulator {
    /// Runs one program on each of the first CPUs until all have ended. CPUs start within `jitter` of one another.
    ///
    /// # Panics
    /// If there are more programs than CPUs; on a deadlock; if a program does.
    pub fn run<'a>(&mut self, programs: Vec<Box<dyn FnOnce() + 'a>>, jitter: Ps) -> Report {
        assert!(programs.len() <= self.engine.cpus.len(), "more programs than CPUs");
        assert!(CURRENT.get().is_null(), "a run within a run");
        let engine: *mut Engine = &raw mut *self.engine;
        // SAFETY: there is no other reference to the engine of a machine that is borrowed for the run.
        let starts = unsafe { &mut *engine }.begin(programs.len(), jitter);
        let mut coroutines: Vec<_> = programs
            .into_iter()
            .enumerate()
            .map(|(n, program)| {
                let kept = STACKS.with_borrow_mut(Vec::pop);
                let stack =
                    kept.unwrap_or_else(|| DefaultStack::new(STACK).expect("address space for a stack"));
                let body = move |yielder: &corosensei::Yielder<(), ()>, (): ()| {
                    // SAFETY: the coroutine runs only while `run` resumes it, with no reference to the engine held.
                    unsafe { (&mut *engine).cpus[n].yielder = yielder };
                    program();
                };
                // SAFETY: programs may borrow for `'a`. The coroutines are dropped, and so unwound, before this
                // function returns or panics, which is within `'a`.
                unsafe { Coroutine::<(), (), (), DefaultStack>::with_stack_unchecked(stack, body) }
            })
            .collect();
        // Dropped before the coroutines: what a program unwinds through is not charged.
        let leave = Leave;
        CURRENT.set(engine);
        let mut unfinished = coroutines.len();
        while unfinished > 0 {
            // SAFETY: no coroutine runs, so there is no other reference.
            let cpu = unsafe { &mut *engine }.pick();
            if let CoroutineResult::Return(()) = coroutines[usize::from(cpu)].resume(()) {
                unfinished -= 1;
                // SAFETY: as above.
                unsafe { &mut *engine }.end(cpu);
            }
        }
        drop(leave);
        let programs = coroutines.len();
        STACKS.with_borrow_mut(|kept| {
            let room = KEPT.saturating_sub(kept.len());
            kept.extend(coroutines.into_iter().take(room).map(Coroutine::into_stack));
        });
        let ends: Vec<Ps> =
            self.engine.cpus[..programs].iter().map(|cpu| cpu.clock.max(cpu.drained)).collect();
        if let Some(recorder) = &mut self.engine.recorder {
            for (n, (&start, &end)) in starts.iter().zip(&ends).enumerate() {
                recorder.add(n as u16, start, end, Doing::Run);
            }
        }
        let first = starts.iter().min().copied().unwrap_or_default();
        self.engine.ran += ends.iter().max().copied().unwrap_or_default().since(first);
        Report { starts, ends }
    }

    /// Event counters.
    #[must_use]
    pub fn events(&self) -> Events {
        let Engine { hash, accesses, shared_events, switches, additions, surprises, .. } = *self.engine;
        Events { hash, accesses, shared: shared_events, switches, additions, surprises }
    }
}

impl Cpu {
    /// Gives it what it remembers lines by, if it has never run: on a machine of hundreds of CPUs few may ever.
    fn awake(&mut self) {
        if self.seen.is_empty() {
            self.seen = vec![[0; 2]; SEEN];
            self.translated = vec![0; TRANSLATIONS];
            self.tables = vec![0; NEAR_TABLES];
        }
    }
}

impl Engine {
    /// Queues the first CPUs at their start times: all together, after everything that happened before.
    fn begin(&mut self, cpus: usize, jitter: Ps) -> Vec<Ps> {
        let origin = self.cpus.iter().map(|cpu| cpu.clock.max(cpu.drained)).max().unwrap_or_default();
        self.ready.clear();
        self.gave_way = None;
        self.next = Ps::NEVER;
        for cpu in &mut self.cpus {
            cpu.clock = origin;
            cpu.drained = origin;
            cpu.last_read = NO_LINE;
            cpu.state = State::Done;
        }
        (0..cpus)
            .map(|n| {
                let start = origin + Ps(self.rng.below(jitter.0 + 1));
                self.cpus[n].clock = start;
                self.cpus[n].awake();
                self.cpus[n].state = State::Ready;
                self.enqueue(n as u16, start);
                start
            })
            .collect()
    }

    /// Takes the CPU that is due next out of the queue and makes it the running one.
    fn pick(&mut self) -> u16 {
        loop {
            let due = match (self.gave_way.take(), self.ready.peek_mut()) {
                // A CPU that was earlier than the running CPU goes first, and leaves its place in the queue to it.
                (Some(later), Some(mut first)) => Some(mem::replace(&mut *first, later)),
                (later, None) => later,
                (None, Some(first)) => Some(PeekMut::pop(first)),
            };
            if let Some(Reverse((at, _, cpu))) = due {
                self.next = self.ready.peek().map_or(Ps::NEVER, |next| next.0.0);
                if let Some(cpu) = self.take_turn(cpu, at) {
                    self.current = cpu;
                    return cpu;
                }
                continue;
            }
            self.rouse();
            assert!(self.fruitless < FRUITLESS, "deadlock: every CPU polls a line that no CPU writes");
        }
    }

    fn end(&mut self, cpu: u16) {
        self.cpus[usize::from(cpu)].state = State::Done;
        self.fruitless = 0;
    }

    /// No CPU is left to write what the sleepers poll: they look again, as a bounded wait would.
    fn rouse(&mut self) {
        self.fruitless += 1;
        for n in 0..self.cpus.len() {
            if let State::Polling(line) = self.cpus[n].state {
                self.lines.stop_polling(line, n as u16);
                self.cpus[n].state = State::Ready;
                let clock = self.cpus[n].clock;
                self.enqueue(n as u16, clock);
            }
        }
    }

    /// Adds a shared event to the log's hash.
    #[inline]
    pub(super) fn log(&mut self, line: usize, kind: u64, at: Ps) {
        self.shared_events += 1;
        let event = (line as u64) << 20 ^ u64::from(self.current) << 4 ^ kind;
        self.hash = mix(self.hash ^ event.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.0);
    }
}

impl fmt::Display for Events {
    /// `1f…: 12 accesses, 3 shared, 1 switches`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hash, accesses, shared, switches, .. } = self;
        write!(f, "{hash:016x}: {accesses} accesses, {shared} shared, {switches} switches")
    }
}

impl Engine {
    /// Puts the running CPU into the queue: others are due before `at`.
    pub(super) fn give_way(&mut self, at: Ps) {
        let tie = self.rng.next();
        self.gave_way = Some(Reverse((at, tie, self.current)));
        self.switches += 1;
    }

    pub(super) fn enqueue(&mut self, cpu: u16, at: Ps) {
        let tie = self.rng.next();
        self.ready.push(Reverse((at, tie, cpu)));
        self.next = self.next.min(at);
    }

    /// A pause. Returns whether the CPU now sleeps until the line it polls is written.
    pub(super) fn pause(&mut self) -> bool {
        let me = self.current;
        let pause = self.costs.pause;
        // A tenth more or less: two CPUs in exact lockstep would show what no machine does.
        let jitter = Ps(self.rng.below(pause.0 / 5 + 1));
        let cpu = &mut self.cpus[usize::from(me)];
        let sleeps = cpu.clock;
        cpu.polls = true;
        cpu.clock += Ps(pause.0 - pause.0 / 10) + jitter;
        let line = cpu.last_read;
        if line == NO_LINE {
            return false;
        }
        // Nothing has run since the read, so nothing has been written since.
        cpu.state = State::Polling(line);
        self.lines.poll(line, me);
        if let Some(recorder) = &mut self.recorder {
            recorder.sleeps(me, sleeps);
        }
        true
    }
}
