//! The write queue: dirty pages wait in it until a writer thread takes them. Neighbouring pages of a file are written
//! in one call.
//!
//! A single page does not wake a writer, so that neighbours can gather. A writer wakes when [`PLUG_PAGES`] pages wait,
//! when a thread waits for a page to be written, or after a nap. Block layers call this plugging.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use framewright::Pfn;
use framewright_pagecache::{Completion, FileId};

/// The most pages that are written in one call: 512 KiB, as a request to a disk was.
const RUN_PAGES: usize = 128;
/// Number of waiting pages that wakes a writer.
const PLUG_PAGES: usize = 32;
/// With more waiting pages than these, storage counts as congested.
const CONGESTED_PAGES: usize = 1024;
/// How long a writer waits for pages before it looks for other work; it waits twice as long each time that it finds
/// none, at most this many times.
const NAP: Duration = Duration::from_millis(2);
const MOST_DOUBLED: u32 = 5;

/// A page to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToWrite {
    pub(crate) file: FileId,
    pub(crate) index: u64,
    pub(crate) pfn: Pfn,
}

/// The queue. Writer threads take from it; every thread that has dirty pages puts into it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Writers wait on it for pages.
    work: Condvar,
    /// Threads wait on it for pages to be written.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<ToWrite>,
    /// Pages that are being written now.
    taken: usize,
    completed: VecDeque<Completion>,
    /// How many writers there are.
    writers: usize,
    /// How often in a row a writer has found nothing to do.
    idle: u32,
    stopping: bool,
}

/// Next step of a writer.
#[derive(Debug)]
pub(crate) enum Next {
    /// Writes these pages of one file, whose indices ascend by one.
    Write(Vec<ToWrite>),
    /// Looks for dirty pages that no thread has queued.
    LookAround,
    /// Ends.
    End,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a page. Returns false, and does not queue it, if there is no writer.
    pub(crate) fn push(&self, page: ToWrite) -> bool {
        let mut state = self.state();
        let taken = state.writers > 0 && !state.stopping;
        if taken {
            state.waiting.push_back(page);
            // A writer that has been idle may be in a long nap.
            let long = core::mem::take(&mut state.idle) > 1;
            if long || state.waiting.len().is_multiple_of(PLUG_PAGES) {
                self.work.notify_one();
            }
        }
        taken
    }

    /// Counts the calling thread as a writer as long as the guard lives, also while it panics. It calls
    /// [`next`](Self::next) until that returns [`Next::End`].
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.state().writers += 1;
        Entered(self)
    }

    /// A writer has found dirty pages that no thread had queued: the next nap is short again.
    pub(crate) fn was_useful(&self) {
        self.state().idle = 0;
    }

    /// Next step of the calling writer. Takes a nap first if no page waits.
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

    /// Takes a waiting page back if the last writer has panicked: no thread would write it.
    pub(crate) fn orphan(&self) -> Option<ToWrite> {
        let mut state = self.state();
        if state.writers > 0 {
            return None;
        }
        let page = state.waiting.pop_front()?;
        state.taken += 1;
        Some(page)
    }

    /// Keeps the results of pages that [`next`](Self::next) or [`orphan`](Self::orphan) gave out, and wakes who waits
    /// for them.
    pub(crate) fn finish(&self, completions: impl IntoIterator<Item = Completion>) {
        let mut state = self.state();
        let before = state.completed.len();
        state.completed.extend(completions);
        state.taken -= state.completed.len() - before;
        self.done.notify_all();
    }

    /// The result of one page that has been written, or has failed; each is returned once.
    pub(crate) fn completed(&self) -> Option<Completion> {
        self.state().completed.pop_front()
    }

    /// Waits a moment for a result, if pages are queued or being written.
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

    /// Writers end when the queue is empty. From now on pages are refused, and the callers write them themselves.
    pub(crate) fn stop(&self) {
        self.state().stopping = true;
        self.work.notify_all();
    }
}

/// A writer, until dropped.
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
            next => panic!("{next:?}"),
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
        assert!(!queue.push(page(3, 300)), "writers are ending");
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
    fn a_result_is_returned_once() {
        let queue = Queue::default();
        let _entered = queue.enter();
        assert!(queue.push(page(1, 7)));
        let run = taken(&queue);
        assert_eq!(queue.completed(), None);
        let done =
            |page: ToWrite| Completion { file: page.file, index: page.index, pfn: page.pfn, result: Ok(()) };
        queue.finish(run.into_iter().map(done));
        assert_eq!(queue.completed(), Some(done(page(1, 7))));
        assert_eq!(queue.completed(), None);
        // No page is queued or being written: returns immediately.
        queue.wait();
    }
}
