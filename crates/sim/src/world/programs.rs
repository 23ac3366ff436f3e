//! Programs that were written for real threads, on virtual CPUs: each owns its CPU of the allocator, and they meet.
#![expect(unsafe_code, reason = "each program has the pin of its CPU")]

use core::cell::RefCell;
use core::fmt;
use core::sync::atomic::Ordering;
use std::rc::Rc;

use framewright::{Allocator, Cpu, CpuId, FrameUser, Word as _};

use super::{Machine, Placed, World};
use crate::clock::Ps;
use crate::engine;
use crate::platform::{Sim, SimPin, SimWord};

/// Programs start within this of one another; what they measure begins when they have met.
const JITTER: Ps = Ps(2_000_000);

/// An allocator on a machine, for programs that own their CPU.
pub struct Programs<'w, M: FrameUser = ()> {
    allocator: &'w Allocator<'w, Sim, M>,
    machine: RefCell<Machine<'w, M>>,
}

impl<M: FrameUser> fmt::Debug for Programs<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").finish_non_exhaustive()
    }
}

/// One virtual CPU of the allocator.
#[derive(Debug)]
pub struct OwnCpu<'w, M: FrameUser = ()> {
    allocator: &'w Allocator<'w, Sim, M>,
    pin: SimPin,
}

impl<'w, M: FrameUser> OwnCpu<'w, M> {
    /// The allocator's access of this CPU.
    #[must_use]
    pub fn cpu(&self) -> Cpu<'_, 'w, Sim, M> {
        self.allocator.cpu(&self.pin)
    }
}

/// Place where all programs of a run wait for one another. A copy is the same place.
#[derive(Clone, Debug)]
pub struct Meet<'w>(Rc<Words<'w>>);

#[derive(Debug)]
struct Words<'w> {
    cpus: u64,
    arrived: Placed<'w, SimWord>,
    passed: Placed<'w, SimWord>,
}

impl Meet<'_> {
    /// Of the world's lines beside its allocator's, those that each run takes.
    pub const LINES: usize = 2;

    /// Returns when all programs have called it as often.
    pub fn wait(&self) {
        let Words { cpus, arrived, passed } = &*self.0;
        let round = passed.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == *cpus {
            arrived.store(0, Ordering::Relaxed);
            passed.store(round + 1, Ordering::Release);
            return;
        }
        while passed.load(Ordering::Acquire) == round {
            pause();
        }
    }
}

/// Lets the running CPU pause before it looks again at the word that it looked at last.
pub fn pause() {
    engine::relax();
}

impl<'w, M: FrameUser> Programs<'w, M> {
    /// On a world's machine. The world has lines for all that is placed, and [`Meet::LINES`] for each run.
    pub fn new(world: &'w mut World<M>) -> Self {
        let (allocator, machine) = world.split();
        Self { allocator, machine: RefCell::new(machine) }
    }

    /// The allocator.
    pub const fn allocator(&self) -> &'w Allocator<'w, Sim, M> {
        self.allocator
    }

    /// As [`Machine::place`].
    ///
    /// # Panics
    /// As [`Machine::place`], and while programs run.
    pub fn place<T>(&self, name: &str, value: T) -> Placed<'w, T> {
        self.machine.borrow_mut().place(name, value)
    }

    /// As [`Machine::place_on`].
    ///
    /// # Panics
    /// As [`Machine::place_on`], and while programs run.
    pub fn place_on<T>(&self, node: u16, name: &str, value: T) -> Placed<'w, T> {
        self.machine.borrow_mut().place_on(node, name, value)
    }

    /// Runs `program` on each of the first CPUs until all have ended; returns what each returned.
    ///
    /// # Panics
    /// As [`World::run`].
    pub fn run<R>(&self, cpus: u16, program: impl Fn(usize, Meet<'w>, OwnCpu<'w, M>) -> R) -> Vec<R> {
        let word = || self.place("meeting", SimWord::new(0));
        let meet = Meet(Rc::new(Words { cpus: u64::from(cpus), arrived: word(), passed: word() }));
        let results: Vec<RefCell<Option<R>>> = (0..cpus).map(|_| RefCell::new(None)).collect();
        self.machine.borrow_mut().run(cpus, JITTER, |index, _| {
            // SAFETY: one pin per CPU and run is used: the one that the run itself has made is not. The machine is
            // borrowed for the run, so that no other run goes on.
            let pin = unsafe { SimPin::new(CpuId(index as u16)) };
            let result = program(index, meet.clone(), OwnCpu { allocator: self.allocator, pin });
            *results[index].borrow_mut() = Some(result);
        });
        results.into_iter().filter_map(RefCell::into_inner).collect()
    }
}
