//! Threads that are attached and do something else for a while: their lists are within reach of others in need.

use framewright::frame::FrameUser;

use crate::cpu::Cpu;
use crate::robust::Acquired;

/// A CPU whose lock its holder has given up for a while. Taken back when dropped, also when a panic passes.
struct Back<'b, 'a, M: FrameUser>(&'b Cpu<'a, M>);

impl<M: FrameUser> Drop for Back<'_, '_, M> {
    fn drop(&mut self) {
        let (arena, slot) = (self.0.arena(), self.0.id().index());
        // A child has neither CPUs nor locks.
        if arena.is_forked() {
            return;
        }
        let acquired = arena.owners.acquire(slot);
        arena.idle_cpus.set(slot, false);
        if acquired == Acquired::OwnerDied {
            // A thread ended in the middle of bringing the pages back.
            self.0.drain();
        }
    }
}

impl<M: FrameUser> Cpu<'_, M> {
    /// Runs `f`, which waits for something or works elsewhere, and leaves the pages on this CPU's lists within reach of
    /// others: an allocation that would fail, [`drain_all`](crate::Arena::drain_all), [`reap`](crate::Arena::reap) and
    /// [`verify`](crate::Arena::verify) get at them as at those of a CPU that no thread holds. No other thread can
    /// attach to the CPU. If no thread is in need, the pages are still there afterwards.
    ///
    /// Two system calls at most, if another thread is at the lists when `f` returns. A thread that is ended by the
    /// system within `f` leaves the CPU idle: its pages can be had, but no thread gets the CPU any more.
    ///
    /// ```
    /// use framewright_host::{Arena, Migratetype, Order};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).cpus(2).build()?;
    /// let mut cpu = arena.attach()?;
    /// drop(cpu.alloc_block(Order::ZERO, Migratetype::Movable)?);
    /// assert!(arena.allocator().pcp_pages() > 0, "it keeps some pages for its next calls");
    /// cpu.idle(|| assert_eq!(arena.drain_all(core::time::Duration::ZERO), []));
    /// assert_eq!(arena.allocator().pcp_pages(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn idle<R>(&mut self, f: impl FnOnce() -> R) -> R {
        let (arena, slot) = (self.arena(), self.id().index());
        if arena.is_forked() {
            return f();
        }
        arena.idle_cpus.set(slot, true);
        // Requests that came before: from now on no thread waits for this thread to answer them.
        self.answer();
        drop(arena.owners.guard(slot));
        let _back = Back(self);
        f()
    }
}
