//! Streams that a core's prefetcher follows.

use crate::model::LINE;

/// Lines that a prefetcher runs ahead.
pub(super) const PREFETCH_DEPTH: u64 = 20;
/// Lines within which a prefetcher follows a stream: a page's.
const PREFETCH_PAGE: usize = 4096 / LINE;
/// Lines in a row that make a stream.
const STREAM_STARTS: u8 = 2;
/// Streams that a prefetcher follows together.
const COUNT: usize = 16;

/// Runs of neighbouring lines that a core has missed.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    /// The last line of each.
    last: [usize; COUNT],
    /// Lines of each so far.
    length: [u8; COUNT],
    /// Which of them the next new one takes the place of.
    next: usize,
}

impl Streams {
    /// If a line that was missed continues a stream: how many lines of it that takes.
    pub(super) fn follow(&mut self, line: usize) -> Option<u64> {
        let near = |&last: &usize| {
            let apart = last.abs_diff(line);
            (1..=2).contains(&apart)
                || apart <= PREFETCH_DEPTH as usize && last / PREFETCH_PAGE == line / PREFETCH_PAGE
        };
        if let Some(found) = self.last.iter().position(near) {
            let apart = self.last[found].abs_diff(line) as u64;
            self.last[found] = line;
            let length = &mut self.length[found];
            *length = length.saturating_add(1);
            return (*length > STREAM_STARTS).then_some(apart.max(1));
        }
        (self.last[self.next], self.length[self.next]) = (line, 1);
        self.next = (self.next + 1) % COUNT;
        None
    }
}
