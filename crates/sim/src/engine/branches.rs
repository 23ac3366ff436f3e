//! Predictor of the next access of a core's program.
//!
//! A core guesses how branches go and executes on. Where it has guessed wrongly, what it has done since is thrown away:
//! all that follows waits for the value that the branch depended on, however far away that was, and for the
//! instructions to come in again. Programs here are seen by what they touch, so a branch that goes another way shows as
//! another access than came before. Guesses are made as cores make them (Seznec and Michaud, "A case for (partially)
//! tagged geometric history length branch prediction", 2006): by what came after the longest run of recent accesses
//! that has been met before.

use super::{Access, Engine, LINE, Simulator};

/// Accesses that each table goes by: lengths in a geometric series, as far back as a core's predictors go.
const RUNS: [usize; 4] = [2, 7, 24, 80];
const TABLES: usize = RUNS.len();
/// Entries of a table: ways through an allocator are few.
const ENTRIES: usize = 1 << 10;
/// How sure an entry can be.
const SUREST: u8 = 3;
/// Accesses that are remembered.
const REMEMBERED: usize = 128;
/// Factor that runs are hashed with, and its powers for each table: the weight of an access when it leaves the run.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
const LEAVES: [u64; TABLES] = {
    let mut powers = [1_u64; TABLES];
    let mut table = 0;
    while table < TABLES {
        let mut n = 0;
        while n < RUNS[table] {
            powers[table] = powers[table].wrapping_mul(BASE);
            n += 1;
        }
        table += 1;
    }
    powers
};

/// Access that came after a run of accesses.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Which run.
    tag: u16,
    /// Next access.
    next: u16,
    /// How often it was right recently.
    sure: u8,
}

/// A core's guesses.
#[derive(Debug)]
pub(super) struct Branches {
    /// The last accesses, in a ring.
    last: [u16; REMEMBERED],
    at: usize,
    /// Of each table: its run so far.
    runs: [u64; TABLES],
    tables: [Box<[Entry; ENTRIES]>; TABLES],
}

impl Default for Branches {
    fn default() -> Self {
        // Runs of nothing but the first kind.
        let runs = RUNS.map(|run| (0..run).fold(0_u64, |hash, _| hash.wrapping_mul(BASE).wrapping_add(1)));
        Self {
            last: [0; REMEMBERED],
            at: 0,
            runs,
            tables: core::array::from_fn(|_| Box::new([Entry::default(); ENTRIES])),
        }
    }
}

impl Branches {
    /// Takes note of an access of a kind that has a number. Returns whether another one was expected.
    #[inline]
    pub(super) fn surprised_by(&mut self, site: u16) -> bool {
        let mut at = [(0, 0_u16); TABLES];
        // The longest run that has been met, and the next shorter one.
        let (mut longest, mut shorter) = (None, None);
        for (table, run) in self.runs.iter_mut().enumerate() {
            let hash = (*run ^ *run >> 29).wrapping_mul(BASE);
            let (index, tag) = ((hash >> 54) as usize % ENTRIES, (hash >> 38) as u16);
            at[table] = (index, tag);
            if self.tables[table][index].tag == tag {
                (longest, shorter) = (Some(table), longest);
            }
            let left = self.last[(self.at + REMEMBERED - RUNS[table]) % REMEMBERED];
            *run = run
                .wrapping_mul(BASE)
                .wrapping_add(u64::from(site) + 1)
                .wrapping_sub((u64::from(left) + 1).wrapping_mul(LEAVES[table]));
        }
        self.last[self.at] = site;
        self.at = (self.at + 1) % REMEMBERED;
        let Some(table) = longest else {
            let (index, tag) = at[0];
            self.tables[0][index] = Entry { tag, next: site, sure: 0 };
            return false;
        };
        let fallback = shorter.map(|table: usize| self.tables[table][at[table].0].next);
        let entry = &mut self.tables[table][at[table].0];
        // A run that has been met once says less than a shorter one.
        let expected = if entry.sure == 0 { fallback.unwrap_or(entry.next) } else { entry.next };
        if entry.next == site {
            entry.sure = (entry.sure + 1).min(SUREST);
        } else if entry.sure > 0 {
            entry.sure -= 1;
        } else {
            entry.next = site;
        }
        let surprised = expected != site;
        if surprised && table + 1 < TABLES {
            // A longer run may say more.
            let (index, tag) = at[table + 1];
            let longer = &mut self.tables[table + 1][index];
            if longer.sure == 0 {
                *longer = Entry { tag, next: site, sure: 0 };
            } else {
                longer.sure -= 1;
            }
        }
        surprised
    }
}

impl Simulator {
    /// Gives each word from `start` to `end` a meaning of its own: a program that touches another one of them
    /// does another thing. Elsewhere it may do the same to another element.
    pub fn fix(&mut self, start: usize, end: usize) {
        self.engine.fixed.push((start, end));
    }
}

impl Engine {
    /// Compares the access that the running CPU expected with the one that it makes.
    #[inline]
    pub(super) fn guess(&mut self, offset: usize, access: Access) {
        let cpu = &mut self.cpus[usize::from(self.current)];
        cpu.accesses += 1;
        let Some(branches) = &mut cpu.branches else { return };
        let word = if self.fixed.iter().any(|&(start, end)| (start..end).contains(&offset)) {
            offset / size_of::<u64>() + 1
        } else {
            0
        };
        let site = (word as u16) << 2 | access as u16;
        let surprised = branches.surprised_by(site);
        // How often it looks before others let it go on cannot be guessed, and it loses nothing by it.
        cpu.polls &= access == Access::Read;
        let waited = core::mem::replace(&mut cpu.waited, access == Access::Exchange) || cpu.polls;
        let is_same = access == Access::Write && cpu.last_read == offset / LINE;
        if surprised && !waited && !is_same {
            cpu.clock = cpu.clock.max(cpu.read) + self.costs.mispredicted;
            cpu.strays += 1;
            self.surprises += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::clock::{Ps, Rng};
    use crate::engine::{now, overlapped, touch};
    use crate::memory::{Mapping, Room};
    use crate::model::Model;
    use crate::model::testing::round;

    /// The share of accesses that surprise, of the second half of `accesses`.
    fn surprises(next: impl Fn(usize, &mut Rng) -> u16) -> f64 {
        const ALL: usize = 20_000;
        let (mut branches, mut rng) = (Branches::default(), Rng::new(1));
        let counted = (0..ALL).filter(|&n| branches.surprised_by(next(n, &mut rng)) && n >= ALL / 2).count();
        counted as f64 / (ALL / 2) as f64
    }

    #[test]
    fn what_repeats_is_expected_and_a_coin_is_right_half_the_time() {
        // A loop of seven and a way of another length around it.
        let repeated = surprises(|n, _| [1, 2, 3, 4, 4, 4, 5, 1, 2, 3, 6][n % 11]);
        assert!(repeated == 0.0, "{repeated}");
        // Every fourth access is one of two.
        let coin = surprises(|n, rng| if n % 4 == 3 { 10 + rng.below(2) as u16 } else { n as u16 % 4 });
        assert!((0.10..0.15).contains(&coin), "half of a quarter: {coin}");
        // One of two that comes nine times of ten.
        let biased =
            surprises(|n, rng| if n % 4 == 3 { 10 + u16::from(rng.below(10) == 0) } else { n as u16 % 4 });
        assert!(
            (0.02..0.06).contains(&biased),
            "a tenth of a quarter, and what a predictor of runs adds: {biased}"
        );
    }

    /// ns for each of `reads` reads of cold lines, after each of which the program goes one of two ways.
    fn reads(mispredict_ns: f64, way: impl Fn(u64, &mut Rng) -> bool) -> f64 {
        const READS: u64 = 4000;
        const APART: usize = 4096 + 64;
        let mut room = Room::default();
        let words = room.add::<[u64; 64]>(1);
        let memory = room.add::<[u8; APART]>(READS as usize);
        let mapping = Mapping::new(room.bytes()).expect("memory");
        let [words_at, start] = [words.offset(), memory.offset()].map(|at| mapping.start().addr().get() + at);
        let mut model = Model { mispredict_ns, ..round(1) };
        // Half of a read overlaps with what follows.
        model.fitted.dependent = 0.5;
        let mut simulator = Simulator::new(model, mapping, 1).expect("memory");
        simulator.fix(words.offset(), words.end());
        let took = Cell::new(Ps(0));
        simulator.run(
            vec![Box::new(|| {
                let mut rng = Rng::new(1);
                let begin = now();
                for n in 0..READS {
                    touch(start + n as usize * APART, 8, Access::Read);
                    let word = if way(n, &mut rng) { 1 } else { 2 };
                    touch(words_at + 8 * word, 8, Access::Write);
                }
                took.set(now().since(begin));
            })],
            Ps(0),
        );
        took.get().as_ns() / READS as f64
    }

    #[test]
    fn what_follows_a_wrong_guess_waits_for_what_was_read() {
        let (known, coin) = (reads(0.0, |n, _| n % 2 == 0), reads(0.0, |_, rng| rng.below(2) == 0));
        // A read takes 100 ns, of which 30 are hidden; half of the guesses after it are wrong.
        assert!((known - 72.0).abs() < 2.0, "{known}");
        assert!((coin - known - 15.0).abs() < 2.0, "{known} {coin}");
        let (known, coin) = (reads(20.0, |n, _| n % 2 == 0), reads(20.0, |_, rng| rng.below(2) == 0));
        assert!(
            (coin - known - 25.0).abs() < 3.0,
            "and for the instructions of the other way: {known} {coin}"
        );
    }

    #[test]
    fn calls_that_find_all_at_hand_overlap_and_others_do_not() {
        let mut room = Room::default();
        let memory = room.add::<[u64; 1024]>(1);
        let mapping = Mapping::new(room.bytes()).expect("memory");
        let start = mapping.start().addr().get() + memory.offset();
        let mut simulator = Simulator::new(round(1), mapping, 1).expect("memory");
        let call = |accesses: usize| {
            let before = now();
            overlapped(Ps(2000), 4, || (0..accesses).for_each(|n| touch(start + n * 64, 8, Access::Read)));
            now().since(before).as_ns()
        };
        let took = Cell::new([0.0; 3]);
        simulator.run(vec![Box::new(|| took.set([call(4), call(4), call(5)]))], Ps(0));
        let [cold, hit, long] = took.get();
        assert!(cold > 100.0 && hit == 2.0 && long > 4.0, "{cold} {hit} {long}");
    }
}
