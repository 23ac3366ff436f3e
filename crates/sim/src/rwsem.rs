//! The kernel's reader/writer semaphores with optimistic spinning, as writers meet them (Linux v3.16 on).
//!
//! A writer first adds to the count. If somebody was there, it takes that back, queues behind others that spin (each on a
//! line of its own), and takes the count when the owner has let go; it then writes down that it owns it. Letting go clears
//! the owner and subtracts from the count. Count, owner and the end of the queue lie in one line, so whoever arrives takes that
//! line away from the owner.
//!
//! Nobody sleeps here: a spinner of Linux' sleeps when the owner has lost its CPU, and tasks lose no CPU inside the kernel here.
//! Readers are not modelled; those of the root of a tree of `anon_vma` are reclaim and migration, which do not happen.

use core::cell::Cell;
use core::fmt;

use framewright::config::{LockKind, LockPlace};
use framewright::sync::{Locked, QueueNode, Slot, Waiter};
use framewright::{CpuId, FrameUser};

use crate::engine::{self, Access};
use crate::lru::LockUse;
use crate::platform::Sim;
use crate::world::{Line, Machine, Placed};

/// What lies in the line of the lock.
pub struct Head {
    /// Readers and writers.
    count: Slot<Sim, u64>,
    /// The CPU that has it + 1.
    owner: Slot<Sim, u64>,
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head").finish_non_exhaustive()
    }
}

type Lock = Locked<Sim, Head, ()>;

/// Lines of a world's that a semaphore takes (see [`Beside`](crate::world::Beside)).
pub const LINES: usize = size_of::<Lock>().div_ceil(size_of::<Line>());

/// A semaphore, and how much it was used.
#[derive(Debug)]
pub struct Semaphore<'w> {
    lock: Placed<'w, Lock>,
    used: Cell<LockUse>,
}

impl<'w> Semaphore<'w> {
    /// Puts one into the machine's memory.
    ///
    /// # Panics
    /// As [`Machine::place`].
    pub fn place<M: FrameUser>(machine: &mut Machine<'w, M>, name: &str) -> Self {
        let head = Head { count: Slot::new(0), owner: Slot::new(0) };
        let lock = Lock::new(LockPlace::WithOrder0Lists, LockKind::Queued, head, ());
        Self { lock: machine.place(name, lock), used: Cell::default() }
    }

    /// How much it was used.
    #[must_use]
    pub const fn used(&self) -> LockUse {
        self.used.get()
    }

    /// Works as its only owner. Takes as long as the owners before take, and the moves of its line.
    pub fn write(&self, queue: &[QueueNode<Sim>], cpu: CpuId, work: impl FnOnce()) {
        let count = |how| engine::touch(self.lock.address(), size_of::<u64>(), how);
        let asked = engine::now();
        count(Access::Exchange);
        self.lock.with(Waiter { nodes: queue, cpu: Some(cpu) }, |head, (), _| {
            let got = engine::now();
            count(Access::Exchange);
            head.owner.set(u64::from(cpu.0) + 1);
            work();
            head.owner.set(0);
            head.count.set(head.count.get() + 1);
            count(Access::Exchange);
            let LockUse { locks, wait, hold } = self.used.get();
            self.used.set(LockUse {
                locks: locks + 1,
                wait: wait + got.since(asked),
                hold: hold + engine::now().since(got),
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use framewright::Config;

    use super::*;
    use crate::clock::Ps;
    use crate::kernbench::zones;
    use crate::model::testing::round;
    use crate::world::{StructPage, World};

    #[test]
    fn writers_follow_one_another() {
        let run = |cpus: u16| {
            let model = round(4);
            let zones = zones(1, 1 << 12);
            let config = Config::linux_v6_1();
            let mut world =
                World::<StructPage>::with_lines(&model, &zones, config, None, 1, LINES).expect("a world");
            let (_, mut machine) = world.split();
            let semaphore = Semaphore::place(&mut machine, "a semaphore");
            let inside = Cell::new(0);
            let queue = machine.queue();
            machine.run(cpus, Ps(0), |_, cpu| {
                for _ in 0..50 {
                    semaphore.write(queue, cpu.id(), || {
                        inside.set(inside.get() + 1);
                        engine::spend(Ps(100_000));
                        engine::touch(semaphore.lock.address() + 64, 8, Access::Exchange);
                        assert_eq!(inside.get(), 1, "one at a time");
                        inside.set(0);
                    });
                }
            });
            semaphore.used()
        };
        let (alone, four) = (run(1), run(4));
        assert_eq!((alone.locks, four.locks), (50, 200));
        let each = |time: Ps, of: LockUse| time.as_ns() / of.locks as f64;
        assert!(each(alone.hold, alone) >= 100.0, "{alone:?}");
        assert!(each(four.hold, four) > each(alone.hold, alone), "others take the line away: {four:?}");
        assert!(each(four.wait, four) > 2.0 * each(four.hold, four), "three are before each: {four:?}");
    }
}
