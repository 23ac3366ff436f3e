//! Holders of cache lines: an owner, or sharers; CPUs that wait for a line to change; until when it is on its way.
//!
//! State is kept by offset in the simulated memory, not by host address, so that costs repeat exactly. A line
//! that no CPU touched has no state and takes no memory.
#![expect(unsafe_code, reason = "an entry of zeroes is an untouched line")]

use std::collections::HashMap;
use std::io;

use crate::clock::Ps;
use crate::memory::LazyTable;

/// State of one line. All zero: no CPU has it, it is in memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Line {
    /// Until when it is on its way to a CPU.
    pub(crate) busy: Ps,
    /// The core's count of lines brought into its set, when it was last touched.
    pub(crate) stamp: u32,
    /// Like `stamp`, of the last-level cache.
    pub(crate) l3_stamp: u32,
    /// Index of its set of sharers, 0 if it has none, and flags above.
    crowd: u32,
    /// CPU + 1 that wrote or fetched it last; 0 if no CPU has it.
    owner: u16,
    /// A second sharer + 1.
    second: u16,
}

const SHARED: u32 = 1 << 31;
const DIRTY: u32 = 1 << 30;
const MET: u32 = 1 << 29;
const POLLED: u32 = 1 << 28;
const WAITED: u32 = 1 << 27;
const INDEX: u32 = WAITED - 1;

/// All lines of the simulated memory.
#[derive(Debug)]
pub(crate) struct Lines {
    table: LazyTable<Line>,
    /// Sets of sharers, each of as many words as there are CPUs to 64; the first is no line's.
    sharers: Vec<u64>,
    /// Words of a set.
    words: usize,
    /// CPUs that wait for a line to be written.
    pollers: HashMap<usize, Vec<u16>>,
    /// CPUs whose requests wait for a line that is on its way to another CPU.
    waiting: HashMap<usize, Vec<u16>>,
}

impl Line {
    /// Whether `cpu` alone holds it.
    #[inline]
    pub(crate) fn is_sole(&self, cpu: u16) -> bool {
        self.owner == cpu + 1 && self.crowd & SHARED == 0
    }

    /// Whether no CPU has ever touched it.
    #[inline]
    pub(crate) fn is_untouched(&self) -> bool {
        self.owner == 0 && self.crowd & MET == 0
    }

    /// Whether more than one CPU has ever touched it.
    #[inline]
    pub(crate) fn has_met(&self) -> bool {
        self.crowd & MET != 0
    }

    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.crowd & DIRTY != 0
    }

    #[inline]
    pub(crate) fn set_dirty(&mut self) {
        self.crowd |= DIRTY;
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.crowd & SHARED != 0
    }

    /// Whether a CPU waits for it to be written, and has a copy.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.crowd & POLLED != 0
    }

    /// Whether requests wait for it.
    #[inline]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.crowd & WAITED != 0
    }

    /// Its holder, if that is no [crowd](Lines::crowd).
    #[inline]
    pub(crate) fn few(&self) -> impl Iterator<Item = u16> {
        [self.owner, self.second].into_iter().filter_map(|cpu| cpu.checked_sub(1))
    }

    /// CPU that touched it last, if it is known.
    pub(crate) fn owner(&self) -> Option<u16> {
        self.owner.checked_sub(1)
    }
}

impl Lines {
    /// `lines` lines that `cpus` CPUs may touch.
    pub(crate) fn new(lines: usize, cpus: u16) -> io::Result<Self> {
        let words = usize::from(cpus).div_ceil(64);
        // Index 0 means that there is none.
        Ok(Self {
            // SAFETY: a line is made of integers.
            table: unsafe { LazyTable::new(lines) }?,
            sharers: vec![0; words],
            words,
            pollers: HashMap::new(),
            waiting: HashMap::new(),
        })
    }

    #[inline]
    pub(crate) fn get(&mut self, line: usize) -> &mut Line {
        self.table.get_mut(line)
    }

    /// Whether `cpu` holds a copy of a line in this state.
    #[inline]
    pub(crate) fn holds(&self, entry: &Line, cpu: u16) -> bool {
        entry.owner == cpu + 1
            || entry.second == cpu + 1
            || self.crowd(entry).is_some_and(|set| has(set, cpu))
    }

    /// Everyone who holds a copy of a line in this state, a bit for each CPU; `None` if it is [only a few](Line::few).
    #[inline]
    pub(crate) fn crowd(&self, entry: &Line) -> Option<&[u64]> {
        let index = (entry.crowd & INDEX) as usize;
        if index == 0 || !entry.is_shared() {
            return None;
        }
        Some(&self.sharers[index * self.words..][..self.words])
            .filter(|set| set.iter().any(|&word| word != 0))
    }

    fn make_crowd(&mut self, line: usize) -> &mut [u64] {
        let entry = self.table.get_mut(line);
        let mut index = (entry.crowd & INDEX) as usize;
        if index == 0 {
            index = self.sharers.len() / self.words;
            assert!(index < INDEX as usize, "more contended lines than can be told apart");
            entry.crowd |= index as u32;
            self.sharers.resize((index + 1) * self.words, 0);
        }
        &mut self.sharers[index * self.words..][..self.words]
    }

    /// Gives `cpu` a copy beside the others', and makes it the one that touched the line last.
    pub(crate) fn share(&mut self, line: usize, cpu: u16) {
        let entry = self.table.get_mut(line);
        let before = *entry;
        if before.owner == cpu + 1 {
            return;
        }
        (entry.owner, entry.second) = (cpu + 1, before.owner);
        if before.owner == 0 {
            entry.crowd &= !(SHARED | DIRTY);
            return;
        }
        // A transfer writes the line back: memory is up to date.
        entry.crowd = (entry.crowd | SHARED | MET) & !DIRTY;
        let third = before.second != 0 && before.second != cpu + 1;
        if third || before.crowd & INDEX != 0 {
            let sharers = self.make_crowd(line);
            if !before.is_shared() {
                sharers.fill(0);
            }
            for holder in [before.owner, before.second, cpu + 1] {
                if let Some(cpu) = holder.checked_sub(1) {
                    sharers[usize::from(cpu / 64)] |= 1 << (cpu % 64);
                }
            }
        }
    }

    /// Makes `cpu` the only holder.
    pub(crate) fn own(&mut self, line: usize, cpu: u16) {
        let entry = self.table.get_mut(line);
        if entry.owner != 0 && (entry.owner != cpu + 1 || entry.is_shared()) {
            entry.crowd |= MET;
        }
        let index = (entry.crowd & INDEX) as usize;
        if entry.is_shared() && index != 0 {
            self.sharers[index * self.words..][..self.words].fill(0);
        }
        (entry.owner, entry.second) = (cpu + 1, 0);
        entry.crowd = entry.crowd & !SHARED | DIRTY;
    }

    /// Makes a line one that more than one CPU may touch.
    pub(crate) fn meet(&mut self, line: usize) {
        self.table.get_mut(line).crowd |= MET;
    }

    /// Lets `cpu` wait until another CPU writes the line.
    pub(crate) fn poll(&mut self, line: usize, cpu: u16) {
        self.table.get_mut(line).crowd |= MET | POLLED;
        self.pollers.entry(line).or_default().push(cpu);
    }

    /// Takes away those who wait for the line to be written.
    #[inline]
    pub(crate) fn take_pollers(&mut self, line: usize, pollers: &mut Vec<u16>) {
        pollers.clear();
        let entry = self.table.get_mut(line);
        if entry.crowd & POLLED != 0 {
            entry.crowd &= !POLLED;
            if let Some(waiting) = self.pollers.get_mut(&line) {
                core::mem::swap(waiting, pollers);
            }
        }
    }

    /// Lets the request of `cpu` wait for the line. Returns whether it is the first that does.
    pub(crate) fn line_up(&mut self, line: usize, cpu: u16) -> bool {
        self.table.get_mut(line).crowd |= WAITED;
        let waiting = self.waiting.entry(line).or_default();
        waiting.push(cpu);
        waiting.len() == 1
    }

    /// Takes one of the CPUs whose requests wait for the line; `choose` gets their number and returns which. Returns
    /// it, and another one that still waits.
    pub(crate) fn serve(
        &mut self,
        line: usize,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<(u16, Option<u16>)> {
        let waiting = self.waiting.get_mut(&line).filter(|waiting| !waiting.is_empty())?;
        let served = waiting.swap_remove(choose(waiting.len()));
        let next = waiting.first().copied();
        if next.is_none() {
            self.table.get_mut(line).crowd &= !WAITED;
        }
        Some((served, next))
    }

    pub(crate) fn stop_polling(&mut self, line: usize, cpu: u16) {
        if let Some(waiting) = self.pollers.get_mut(&line) {
            waiting.retain(|&polling| polling != cpu);
        }
    }
}

#[inline]
fn has(set: &[u64], cpu: u16) -> bool {
    set.get(usize::from(cpu / 64)).is_some_and(|word| word >> (cpu % 64) & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(lines: &mut Lines, line: usize) -> Vec<u16> {
        let entry = *lines.get(line);
        let mut all: Vec<u16> = match lines.crowd(&entry) {
            Some(set) => (0..set.len() as u16 * 64).filter(|&cpu| has(set, cpu)).collect(),
            None => entry.few().collect(),
        };
        all.sort_unstable();
        all
    }

    #[test]
    fn a_line_has_one_writer_or_many_readers() {
        let mut lines = Lines::new(4, 1000).expect("memory");
        assert_eq!(holders(&mut lines, 1), []);
        lines.share(1, 7);
        assert!(lines.get(1).is_sole(7) && !lines.get(1).has_met(), "the first reader is alone");
        lines.own(1, 7);
        assert!(lines.get(1).is_dirty() && !lines.get(1).has_met());
        for cpu in [3, 900, 64] {
            lines.share(1, cpu);
        }
        assert_eq!(holders(&mut lines, 1), [3, 7, 64, 900]);
        assert!(!lines.get(1).is_dirty() && lines.get(1).has_met());
        lines.own(1, 900);
        assert_eq!(holders(&mut lines, 1), [900]);
        assert!(lines.get(1).is_sole(900));
        lines.share(1, 5);
        assert_eq!(holders(&mut lines, 1), [5, 900], "no holder from before comes back");
        lines.share(1, 6);
        assert_eq!(holders(&mut lines, 1), [5, 6, 900]);
    }

    #[test]
    fn pollers_are_handed_over_once() {
        let mut lines = Lines::new(1, 10).expect("memory");
        for cpu in [4, 2, 9] {
            lines.poll(0, cpu);
        }
        lines.stop_polling(0, 2);
        let mut pollers = Vec::new();
        lines.take_pollers(0, &mut pollers);
        assert_eq!(pollers, [4, 9]);
        lines.take_pollers(0, &mut pollers);
        assert_eq!(pollers, []);
    }
}
