//! Small worlds are enumerated, not sampled.
//!
//! Two ways to go through all of them. [`every`] runs a body once for each combination of the choices it
//! makes: plain code with a generator instead of a random source. [`reach`] explores the states that
//! sequences of actions lead to and extends each state once, however many sequences lead to it, so that it
//! gets to lengths at which the sequences themselves can no longer be counted.

use core::fmt::Debug;
use core::hash::Hash;
use std::collections::HashSet;

/// The choices of one run, made in order. The next run repeats all but the last and takes its successor.
#[derive(Debug, Default)]
pub struct Choices {
    /// Choices so far, each with its alternatives, in order.
    path: Vec<(u32, u32)>,
    /// How many of them this run has used.
    used: usize,
}

impl Choices {
    /// One of 0 to `bound - 1`; each is taken in some run. `bound` must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u32::try_from(bound).expect("a choice among fewer than 2^32 alternatives");
        assert!(bound > 0, "a choice among nothing");
        if self.used == self.path.len() {
            self.path.push((0, bound));
        }
        let (chosen, among) = self.path[self.used];
        assert_eq!(among, bound, "a run must depend on its choices alone, but one differs on repetition");
        self.used += 1;
        chosen as usize
    }

    /// One element of `of`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Turns to the next combination. `false` if there is none left.
    fn advance(&mut self) -> bool {
        self.path.truncate(self.used);
        self.used = 0;
        while let Some((chosen, bound)) = self.path.pop() {
            if chosen + 1 < bound {
                self.path.push((chosen + 1, bound));
                return true;
            }
        }
        false
    }
}

/// Runs `body` once for every combination of the choices that it makes; returns the number of runs.
///
/// If `body` panics, the choices of that run are printed.
pub fn every(mut body: impl FnMut(&mut Choices)) -> u64 {
    let mut choices = Choices::default();
    let mut runs = 0;
    loop {
        let telling = TellOnPanic { what: &mut choices, tell: |c| eprintln!("choices made: {:?}", c.path) };
        body(telling.what);
        drop(telling);
        runs += 1;
        if !choices.advance() {
            return runs;
        }
    }
}

/// Counts of what [`reach`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Different states.
    pub states: u64,
    /// Actions tried, each in a world of its own.
    pub steps: u64,
    /// Longest sequence whose last action was tried.
    pub depth: usize,
    /// Whether the last round still found new states, so that longer sequences could find more.
    pub open: bool,
}

/// Tries every action in every state that sequences of up to `depth` actions lead to.
///
/// `run` builds a new world, performs the actions in order, checks what there is to check, and returns the
/// state together with the actions that are possible in it. Two equal states must behave alike ever after;
/// then this covers all sequences of that length. Breadth first, so that a failure is found at the end of a
/// shortest sequence, which is printed.
pub fn reach<S, A>(depth: usize, mut run: impl FnMut(&[A]) -> (S, Vec<A>)) -> Reached
where
    S: Eq + Hash,
    A: Clone + Debug,
{
    let mut told = |path: &[A]| {
        let telling = TellOnPanic { what: path, tell: |p| eprintln!("after {p:?}") };
        run(telling.what)
    };
    let (start, actions) = told(&[]);
    let mut seen = HashSet::from([start]);
    let mut round = vec![(Vec::new(), actions)];
    let mut reached = Reached { states: 1, steps: 0, depth: 0, open: true };
    while reached.open && reached.depth < depth {
        let mut next = Vec::new();
        for (path, actions) in round {
            for action in actions {
                let mut path: Vec<A> = path.clone();
                path.push(action);
                let (state, actions) = told(&path);
                reached.steps += 1;
                if seen.insert(state) {
                    next.push((path, actions));
                }
            }
        }
        reached.depth += 1;
        reached.states += next.len() as u64;
        reached.open = !next.is_empty();
        round = next;
    }
    reached
}

/// Calls `tell` if it is dropped by a panic.
struct TellOnPanic<T, F: Fn(&T)> {
    what: T,
    tell: F,
}

impl<T, F: Fn(&T)> Drop for TellOnPanic<T, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.tell)(&self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_combination_comes_once() {
        let mut seen = BTreeSet::new();
        // The second choice exists only after some first choices, and its bound depends on them.
        let runs = every(|choices| {
            let first = choices.below(4);
            let second = if first > 0 { choices.below(first) } else { 0 };
            assert!(seen.insert((first, second)), "combination repeated");
        });
        assert_eq!(runs, 1 + 1 + 2 + 3);
        assert_eq!(seen.len(), 7);
    }

    #[test]
    fn a_body_without_choices_runs_once() {
        assert_eq!(every(|_| ()), 1);
    }

    #[test]
    fn reach_finds_every_state_and_stops_when_there_are_no_more() {
        // A counter modulo 7 that goes up by 2 or 3.
        let reached = reach(100, |path: &[u32]| (path.iter().sum::<u32>() % 7, vec![2, 3]));
        assert_eq!(reached.states, 7);
        assert!(!reached.open);
        assert_eq!(reached.steps, 14);
    }

    #[test]
    fn reach_stops_at_the_depth_it_is_given() {
        let reached = reach(3, |path: &[u32]| (path.iter().sum::<u32>(), vec![1, 10]));
        // Sums of at most three of 1 and 10.
        assert_eq!(reached.states, 1 + 2 + 3 + 4);
        assert!(reached.open);
    }
}
