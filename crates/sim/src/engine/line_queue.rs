//! Requests that wait for a line that is on its way to another CPU, and CPUs that wait for one to change.
//!
//! Which of them is next is chance. A queue in the order of arrival would let exactly one exchange in each round of all
//! CPUs succeed: a CPU that has just failed would come again only after all others. As measured (a list's head on 2 to
//! 26 cores), one of some sqrt(pi n / 2) requests succeeds, which is how long it takes until a CPU comes again that has
//! been there since the last change, when each is as likely as any other: caches that find a line busy turn a request
//! away and look again.
//!
//! A store waits here, too. Its CPU goes on before its turn; when that comes, the CPU resumes with the clock that it
//! had.

use core::cmp::Reverse;

use super::{Access, Engine, NO_LINE, State};
use crate::clock::Ps;

impl Engine {
    /// The running CPU's question has arrived where the line is. `false` if the line is on its way to another CPU: this
    /// one waits.
    pub(super) fn answered(&mut self, line: usize, access: Access) -> bool {
        let clock = self.cpus[usize::from(self.current)].clock;
        let entry = self.lines.get(line);
        let busy = entry.busy;
        if busy > clock && entry.has_met() && (access == Access::Exchange || entry.is_waited_for()) {
            self.line_up(line, busy);
            return false;
        }
        self.transact_now(line, access);
        true
    }

    /// Lets the running CPU wait for a line that is on its way until `busy`.
    pub(super) fn line_up(&mut self, line: usize, busy: Ps) {
        let me = self.current;
        self.cpus[usize::from(me)].waits_for = line;
        self.switches += 1;
        if self.lines.line_up(line, me) {
            self.enqueue_turn(me, busy);
        }
    }

    /// Puts a line's next turn into the queue, before all that happens at the same time.
    fn enqueue_turn(&mut self, cpu: u16, at: Ps) {
        self.ready.push(Reverse((at, 0, cpu)));
        self.next = self.next.min(at);
    }

    /// CPU that runs when `cpu` is due at `at`: if that is a line's next turn, any that waits for the line; none if the
    /// line has gone to a CPU that did not wait.
    pub(super) fn take_turn(&mut self, cpu: u16, at: Ps) -> Option<u16> {
        let line = self.cpus[usize::from(cpu)].waits_for;
        if line == NO_LINE {
            return Some(cpu);
        }
        let busy = self.lines.get(line).busy;
        if busy > at {
            self.enqueue_turn(cpu, busy);
            return None;
        }
        let rng = &mut self.rng;
        let (served, next) = self.lines.serve(line, |waiting| rng.below(waiting as u64) as usize)?;
        self.waits_next = next;
        let chosen = &mut self.cpus[usize::from(served)];
        (chosen.waits_for, chosen.served) = (NO_LINE, true);
        Some(served)
    }

    /// The access for which the running CPU has waited until now.
    pub(super) fn transact_in_turn(&mut self, line: usize, access: Access) {
        if matches!(access, Access::Read | Access::Exchange) {
            self.transact_now(line, access);
        } else {
            self.transact(line, access);
        }
        if let Some(next) = self.waits_next.take() {
            let busy = self.lines.get(line).busy;
            self.enqueue_turn(next, busy);
        }
    }

    /// Wakes those who poll a line that is written at `at`: each looks again within one pause.
    pub(super) fn wake(&mut self, line: usize, at: Ps) {
        let mut pollers = core::mem::take(&mut self.pollers);
        self.lines.take_pollers(line, &mut pollers);
        if !pollers.is_empty() {
            self.fruitless = 0;
        }
        for &cpu in &pollers {
            let phase = Ps(self.rng.below(self.costs.pause.0.max(1)));
            let sleeper = &mut self.cpus[usize::from(cpu)];
            sleeper.state = State::Ready;
            sleeper.woken = true;
            sleeper.clock = sleeper.clock.max(at + phase);
            let clock = sleeper.clock;
            self.enqueue(cpu, clock);
            if self.recorder.is_some() {
                let name = self.name_of(line);
                if let Some(recorder) = &mut self.recorder {
                    recorder.wakes(cpu, clock, name);
                }
            }
        }
        self.pollers = pollers;
    }
}
