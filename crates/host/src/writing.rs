//! Writes that are on their way: pages wait in a queue until a thread that writes takes them, neighbours together.
//!
//! So that there are neighbours, a page does not wake such a thread: enough of them do, or whoever waits for one, or
//! time. Block layers call that plugging.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use framewright::Pfn;
use framewright_pagecache::{Completion, FileId};

/// The most pages that are written in one call: 512 KiB, as a request to a disk was.
const RUN_PAGES: usize = 128;
/// As many pages wake a thread that writes.
const PLUG_PAGES: usize = 32;
/// From so many waiting pages on, storage has more to do than it can.
const CONGESTED_PAGES: usize = 1024;
/// How long a thread waits before it looks around; how often that doubles while it finds nothing to do.
const NAP: Duration = Duration::from_millis(2);
const MOST_DOUBLED: u32 = 5;

/// A page to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToWrite {
    pub(crate) file: FileId,
    pub(crate) index: u64,
    pub(crate) pfn: Pfn,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// For those who write.
    work: Condvar,
    /// For those who wait for them.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<ToWrite>,
    /// Pages that are being written now.
    taken: usize,
    completed: VecDeque<Completion>,
    /// Threads that write.
    writers: usize,
    /// Times in a row that such a thread has found nothing to do.
    idle: u32,
    stopping: bool,
}

/// What a thread that writes does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Writes these pages of one file, each behind the other.
    Write(Vec<ToWrite>),
    /// Looks whether there is something to do that nobody asked for.
    LookAround,
    /// Ends.
    End,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a page to write, if there is somebody who will.
    pub(crate) fn push(&self, page: ToWrite) -> bool {
        let mut state = self.state();
        let taken = state.writers > 0 && !state.stopping;
        if taken {
            state.waiting.push_back(page);
            // Those who have had nothing to do for long sleep for long.
            let long = core::mem::take(&mut state.idle) > 1;
            if long || state.waiting.len().is_multiple_of(PLUG_PAGES) {
                self.work.notify_one();
            }
        }
        taken
    }

    /// A thread that writes has come. It takes [`Next`] by [`next`](Self::next) until that is the end, or until it
    /// panics: it counts as long as the guard lives.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.state().writers += 1;
        Entered(self)
    }

    /// There was something to do that nobody had asked for.
    pub(crate) fn was_useful(&self) {
        self.state().idle = 0;
    }

    /// What such a thread does next. Waits a little if there is nothing.
    pub(crate) fn next(&self) -> Next {
        let mut state = self.state();
        if state.waiting.is_empty() && !state.stopping {
            let nap = NAP * (1 << state.idle.min(MOST_DOUBLED));
            state = self.work.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(first) = state.waiting.pop_front() else {
            if state.stopping {
                return Next::End;
            }
            state.idle = state.idle.saturating_add(1);
            return Next::LookAround;
        };
        let mut run = vec![first];
        while run.len() < RUN_PAGES
            && let Some(next) = state.waiting.front()
            && next.file == first.file
            && next.index == first.index + run.len() as u64
        {
            run.extend(state.waiting.pop_front());
        }
        state.taken += run.len();
        Next::Write(run)
    }

    /// Takes back a page that waits, if the last thread that writes has panicked: nobody else would write it.
    pub(crate) fn orphan(&self) -> Option<ToWrite> {
        let mut state = self.state();
        if state.writers > 0 {
            return None;
        }
        let page = state.waiting.pop_front()?;
        state.taken += 1;
        Some(page)
    }

    /// Pages that were taken are written, or were not.
    pub(crate) fn finish(&self, completions: impl IntoIterator<Item = Completion>) {
        let mut state = self.state();
        let before = state.completed.len();
        state.completed.extend(completions);
        state.taken -= state.completed.len() - before;
        self.done.notify_all();
    }

    /// News of one page.
    pub(crate) fn completed(&self) -> Option<Completion> {
        self.state().completed.pop_front()
    }

    /// Waits for news, if there will be any, for a moment.
    pub(crate) fn wait(&self) {
        let state = self.state();
        if state.completed.is_empty() && state.taken + state.waiting.len() > 0 {
            self.work.notify_one();
            drop(self.done.wait_timeout(state, NAP));
        }
    }

    pub(crate) fn is_congested(&self) -> bool {
        self.state().waiting.len() > CONGESTED_PAGES
    }

    /// Threads that write end when all is written; from now on, whoever has a page to write does so himself.
    pub(crate) fn stop(&self) {
        self.state().stopping = true;
        self.work.notify_all();
    }
}

/// A thread that writes, until dropped.
#[derive(Debug)]
pub(crate) struct Entered<'a>(&'a Queue);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.state().writers -= 1;
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(file: u32, index: u64) -> ToWrite {
        ToWrite { file: FileId(file), index, pfn: Pfn(index) }
    }

    fn taken(queue: &Queue) -> Vec<ToWrite> {
        match queue.next() {
            Next::Write(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn neighbours_are_written_together() {
        let queue = Queue::default();
        assert!(!queue.push(page(1, 0)), "nobody would write it");
        let entered = queue.enter();
        for (file, index) in [(1, 0), (1, 1), (1, 2), (1, 4), (2, 5)] {
            assert!(queue.push(page(file, index)));
        }
        assert_eq!(taken(&queue), [page(1, 0), page(1, 1), page(1, 2)]);
        assert_eq!(taken(&queue), [page(1, 4)]);
        assert_eq!(taken(&queue), [page(2, 5)]);
        assert!(matches!(queue.next(), Next::LookAround));
        (0..300).for_each(|index| assert!(queue.push(page(3, index))));
        assert_eq!(taken(&queue).len(), RUN_PAGES);
        queue.stop();
        assert!(!queue.push(page(3, 300)), "it is late");
        assert_eq!(taken(&queue).len() + taken(&queue).len(), 300 - RUN_PAGES, "what is waiting is written");
        assert!(matches!(queue.next(), Next::End));
        drop(entered);
    }

    #[test]
    fn what_a_writer_that_panicked_left_is_found() {
        let queue = Queue::default();
        let entered = queue.enter();
        assert!(queue.push(page(1, 0)));
        assert_eq!(queue.orphan(), None, "somebody will write it");
        drop(entered);
        assert!(!queue.push(page(1, 1)), "nobody would write it");
        assert_eq!((queue.orphan(), queue.orphan()), (Some(page(1, 0)), None));
    }

    #[test]
    fn news_come_once() {
        let queue = Queue::default();
        let _entered = queue.enter();
        assert!(queue.push(page(1, 7)));
        let run = taken(&queue);
        assert_eq!(queue.completed(), None);
        let done = |it: ToWrite| Completion { file: it.file, index: it.index, pfn: it.pfn, result: Ok(()) };
        queue.finish(run.into_iter().map(done));
        assert_eq!(queue.completed(), Some(done(page(1, 7))));
        assert_eq!(queue.completed(), None);
        // Nothing is on its way: returns.
        queue.wait();
    }
}
