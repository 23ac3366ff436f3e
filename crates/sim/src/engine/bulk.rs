//! A CPU that moves memory in bulk, and one that finds all it needs at hand.

use super::{CURRENT, Engine, NO_LINE};
use crate::clock::Ps;
use crate::model::LINE;

/// Lets the running CPU write `bytes` bytes of a node's memory in sequence: at its own bandwidth, after what others
/// ask of the node. Outside a run nothing happens.
pub fn stream(node: u16, bytes: u64) {
    let engine = CURRENT.get();
    if !engine.is_null() {
        // SAFETY: as above.
        unsafe { (*engine).write_out(node, bytes) }
    }
}

/// Lets the running CPU do what `work` does, in `time` if that is less and all of it is at hand: at most `accesses`
/// accesses, none of which misses, meets another CPU or comes after a wrong guess. A core executes such work beside
/// what comes before and after. Outside a run nothing is charged.
pub fn overlapped<R>(time: Ps, accesses: u64, work: impl FnOnce() -> R) -> R {
    let engine = CURRENT.get();
    if engine.is_null() {
        return work();
    }
    // SAFETY: as above, and the reference ends before the work begins.
    let before = unsafe { (*engine).so_far() };
    let result = work();
    // SAFETY: as above.
    unsafe { (*engine).end_overlap(before, accesses, time) };
    result
}

/// Lines that are written between two looks at how busy the memory is.
const PIECE: u64 = 64;

impl Engine {
    /// The running CPU's clock, how many accesses it has made, and how many of them were not at hand.
    pub(super) fn so_far(&self) -> (Ps, u64, u64) {
        let cpu = &self.cpus[usize::from(self.current)];
        (cpu.clock, cpu.accesses, cpu.strays)
    }

    /// Sets the clock to what it would be if all since `before` had taken `time`, if all of it was at hand.
    pub(super) fn end_overlap(&mut self, before: (Ps, u64, u64), most: u64, time: Ps) {
        let (start, accesses, strays) = before;
        let cpu = &mut self.cpus[usize::from(self.current)];
        if cpu.strays == strays && cpu.accesses - accesses <= most {
            cpu.clock = cpu.clock.min(start + time);
        }
    }

    fn write_out(&mut self, node: u16, bytes: u64) {
        let me = usize::from(self.current);
        let farther = self.costs.farther(node != self.cpus[me].place.node);
        let mut left = bytes.div_ceil(LINE as u64);
        while left > 0 {
            let lines = left.min(PIECE);
            left -= lines;
            let [core, memory] = self.costs.written(lines);
            let clock = self.cpus[me].clock;
            let served = self.channels[usize::from(node)].serve(clock, memory);
            let core = core.scaled(self.costs.loaded(served.busy) * farther);
            self.cpus[me].clock = clock + core.max(memory) + served.wait;
        }
        self.cpus[me].last_read = NO_LINE;
    }
}
