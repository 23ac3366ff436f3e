//! Where tasks run: what is done, in the simplest form, by Linux' fair scheduler so that no CPU idles while tasks wait.
//!
//! * A **new** task goes to the nearest CPU without one, a whole core before the sibling of a busy one.
//! * A task that **wakes** goes to the CPU where it last ran, or to another one at the same last-level cache, if that has
//!   none; else it queues where it last ran.
//! * A CPU that runs out of tasks **pulls** one: it reads the queues of its sibling, of its last-level cache, of its node
//!   and so on until some have tasks that wait, and takes the one that has waited longest out of the longest of these.
//!   It does not take what another CPU without a task is about to run.
//! * At each **tick** a CPU calls an idle one for every task that waits in its queue. Those who are called pull.
//!
//! Linux moreover spares tasks that have just run, and looks less often the longer a look takes.

use core::cmp::Reverse;

use crate::clock::Ps;
use crate::engine::{self, Access};
use crate::model::{Distance, Shape};
use crate::sched::{Queue, Scheduler};

/// Time between two looks of a busy CPU at the tasks that wait behind its own (`CONFIG_HZ=250`).
pub(super) const TICK: Ps = Ps(4_000_000_000);

/// What a CPU without a task has found.
pub(super) enum Found {
    /// A task: in its own queue, or in another.
    Task(usize),
    /// A queue that others emptied meanwhile.
    TooLate,
    /// No task waits anywhere.
    Nothing,
}

/// The others of each CPU, from near to far.
pub(super) fn neighbours(shape: &Shape, cpus: u16) -> Vec<Vec<(Distance, usize)>> {
    let of = |cpu: u16| {
        let mut others: Vec<(Distance, usize)> = (1..cpus)
            .map(|n| (usize::from(cpu) + usize::from(n)) % usize::from(cpus))
            .map(|other| (shape.distance(cpu, other as u16), other))
            .collect();
        // Stable: those that are equally near stay in turn.
        others.sort_by_key(|&(distance, _)| distance);
        others
    };
    (0..cpus).map(of).collect()
}

impl Queue {
    /// Whether its CPU has no task, and none to come.
    fn is_unused(&self) -> bool {
        self.idle && self.ready.is_empty()
    }

    /// Tasks that wait while its CPU has another one.
    fn waiting(&self) -> usize {
        self.ready.len().saturating_sub(usize::from(!self.busy))
    }
}

impl Scheduler<'_> {
    /// Adds a task to a queue that was taken.
    pub(super) fn push(&self, cpu: usize, id: usize) {
        self.queues.borrow_mut()[cpu].ready.push_back(id);
        self.ready.set(self.ready.get() + 1);
    }

    /// Takes the first task out of a queue that was taken.
    fn pop(&self, cpu: usize) -> Option<usize> {
        let id = self.queues.borrow_mut()[cpu].ready.pop_front()?;
        self.ready.set(self.ready.get() - 1);
        Some(id)
    }

    /// A task of this CPU whose time has come, if any.
    fn expired(&self, n: usize) -> Option<usize> {
        let timers = &mut self.queues.borrow_mut()[n].timers;
        let &Reverse((at, id)) = timers.peek()?;
        (at <= engine::now()).then(|| {
            timers.pop();
            id
        })
    }

    /// The next task of a CPU that has none, those whose time has come included.
    pub(super) fn next(&self, n: usize) -> Option<usize> {
        while let Some(id) = self.expired(n) {
            self.push(n, id);
        }
        self.pop(n)
    }

    /// Wakes the tasks of a busy CPU whose time has come.
    pub(super) fn expire(&self, n: usize) {
        while let Some(id) = self.expired(n) {
            self.wake(id);
        }
    }

    /// Lets a task that slept go on.
    pub(super) fn wake(&self, id: usize) {
        let near = self.slots.borrow()[id].cpu;
        let last = || self.queues.borrow()[near].is_unused().then_some(near);
        self.place(id, near, || last().or_else(|| self.unused_near(near, Distance::SameL3)));
    }

    /// Queues a task on the CPU that is chosen for having none, or on `otherwise`.
    pub(super) fn place(&self, id: usize, otherwise: usize, choose: impl Fn() -> Option<usize>) {
        let cpu = loop {
            let chosen = choose();
            let cpu = chosen.unwrap_or(otherwise);
            self.take_queue(cpu);
            // Others may have chosen it, too.
            if chosen.is_none() || self.queues.borrow()[cpu].is_unused() {
                break cpu;
            }
        };
        self.push(cpu, id);
    }

    /// The nearest CPU without a task, no farther than that: on an idle core if there is one.
    pub(super) fn unused_near(&self, n: usize, farthest: Distance) -> Option<usize> {
        let queues = self.queues.borrow();
        let near = || {
            let within = self.neighbours[n].iter().take_while(|near| near.0 <= farthest);
            within.map(|near| near.1).filter(|&cpu| queues[cpu].is_unused())
        };
        let alone = |cpu: &usize| match self.neighbours[*cpu].first() {
            Some(&(Distance::Sibling, sibling)) => queues[sibling].is_unused(),
            _ => true,
        };
        near().find(alone).or_else(|| near().next())
    }

    /// Looks for a task in other queues.
    pub(super) fn pull(&self, n: usize) -> Found {
        // A kernel knows from one word, rarely written, that no queue has more than its CPU can do.
        if self.ready.get() == 0 || self.queues.borrow().iter().all(|queue| queue.waiting() == 0) {
            return Found::Nothing;
        }
        for near in self.neighbours[n].chunk_by(|a, b| a.0 == b.0) {
            let (mut most, mut busiest) = (0, None);
            for &(_, cpu) in near {
                engine::touch(self.lines[cpu].address(), size_of::<u64>(), Access::Read);
                let waiting = self.queues.borrow()[cpu].waiting();
                if waiting > most {
                    (most, busiest) = (waiting, Some(cpu));
                }
            }
            if let Some(from) = busiest {
                self.take_queue(n);
                self.take_queue(from);
                let waits = self.queues.borrow()[from].waiting() > 0;
                return waits.then(|| self.pop(from)).flatten().map_or(Found::TooLate, Found::Task);
            }
        }
        Found::TooLate
    }

    /// Calls an idle CPU for each task that waits for this one, if it is time.
    pub(super) fn tick(&self, n: usize) {
        let waiting = {
            let queue = &mut self.queues.borrow_mut()[n];
            if engine::now() < queue.tick {
                return;
            }
            queue.tick = engine::now() + TICK;
            queue.waiting()
        };
        for _ in 0..waiting {
            let idle = {
                let mut queues = self.queues.borrow_mut();
                let mut near = self.neighbours[n].iter().map(|near| near.1);
                let found = near.find(|&cpu| queues[cpu].is_unused() && !queues[cpu].called);
                if let Some(cpu) = found {
                    queues[cpu].called = true;
                }
                found
            };
            let Some(cpu) = idle else { return };
            self.take_queue(cpu);
        }
    }
}
