//! Sorted, disjoint intervals in the caller's memory. Pure.

use core::ops::Range;

/// An interval of bytes or frames, with a tag. The caller provides an array of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span<T> {
    /// First byte or frame.
    pub start: u64,
    /// The byte or frame after the last.
    pub end: u64,
    /// Property of the interval.
    pub tag: T,
}

/// The caller's array has no room for another interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// Intervals, sorted and without overlap; adjacent intervals with the same tag are joined.
#[derive(Debug)]
pub(crate) struct Spans<'b, T> {
    room: &'b mut [Span<T>],
    len: usize,
}

impl<'b, T: Copy + PartialEq> Spans<'b, T> {
    pub(crate) fn new(room: &'b mut [Span<T>]) -> Self {
        Self { room, len: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[Span<T>] {
        &self.room[..self.len]
    }

    pub(crate) const fn room(&self) -> usize {
        self.room.len()
    }

    /// Index of the first interval that ends after `at`. O(log n).
    pub(crate) fn first_behind(&self, at: u64) -> usize {
        self.as_slice().partition_point(|span| span.end <= at)
    }

    /// The intervals that overlap `range`. O(log n).
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> &[Span<T>] {
        let from = self.first_behind(range.start);
        let count = self.as_slice()[from..].partition_point(|span| span.start < range.end);
        &self.as_slice()[from..from + count]
    }

    fn insert(&mut self, at: usize, span: Span<T>) -> Result<(), Full> {
        if self.len == self.room.len() {
            return Err(Full);
        }
        self.room.copy_within(at..self.len, at + 1);
        self.room[at] = span;
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, at: usize, count: usize) {
        self.room.copy_within(at + count..self.len, at);
        self.len -= count;
    }

    /// Joins the interval at `at` with the one before it, if they touch and have the same tag.
    fn join_before(&mut self, at: usize) -> bool {
        let joins = at > 0 && at < self.len && {
            let (before, this) = (self.room[at - 1], self.room[at]);
            before.end == this.start && before.tag == this.tag
        };
        if joins {
            self.room[at - 1].end = self.room[at].end;
            self.remove(at, 1);
        }
        joins
    }

    /// Adds `range` with `tag`. Where it overlaps an interval, `resolve(old, tag)` gives the new tag. Returns the
    /// length of the overlap. If the array has no room, the part of the range before that place was added. O(n); O(1)
    /// at the end.
    pub(crate) fn overlay(
        &mut self,
        range: Range<u64>,
        tag: T,
        resolve: impl Fn(T, T) -> T,
    ) -> Result<u64, Full> {
        let mut at = range.start;
        let mut overlapped = 0;
        while at < range.end {
            let mut i = self.first_behind(at);
            let next = self.as_slice().get(i).copied();
            let end = match next {
                Some(there) if there.start <= at => {
                    let end = there.end.min(range.end);
                    overlapped += end - at;
                    let becomes = resolve(there.tag, tag);
                    if becomes != there.tag {
                        i = self.isolate(i, at..end)?;
                        self.room[i].tag = becomes;
                    }
                    end
                }
                _ => {
                    let end = next.map_or(range.end, |next| next.start.min(range.end));
                    match i.checked_sub(1).map(|before| &mut self.room[before]) {
                        Some(before) if before.end == at && before.tag == tag => before.end = end,
                        _ => self.insert(i, Span { start: at, end, tag })?,
                    }
                    end
                }
            };
            // The later interval first: joining moves all intervals after it.
            self.join_before(i + 1);
            self.join_before(i);
            at = end;
        }
        Ok(overlapped)
    }

    /// Cuts `part` out of the interval `i` that holds it, into an interval of its own, and returns its index.
    fn isolate(&mut self, i: usize, part: Range<u64>) -> Result<usize, Full> {
        let whole = self.room[i];
        let pieces = usize::from(whole.start < part.start) + usize::from(part.end < whole.end);
        if self.len + pieces > self.room.len() {
            return Err(Full);
        }
        let mut i = i;
        if whole.start < part.start {
            self.room[i].end = part.start;
            i += 1;
            self.insert(i, Span { start: part.start, ..whole })?;
        }
        if part.end < whole.end {
            self.room[i].end = part.end;
            self.insert(i + 1, Span { start: part.end, ..whole })?;
        }
        Ok(i)
    }
}

impl Spans<'_, ()> {
    /// Adds `range`. Without room the state is unchanged. O(n).
    pub(crate) fn cover(&mut self, range: Range<u64>) -> Result<(), Full> {
        // All intervals that overlap or touch `range` become one, at the place of the first.
        let from = self.as_slice().partition_point(|span| span.end < range.start);
        let count = self.as_slice()[from..].partition_point(|span| span.start <= range.end);
        if count == 0 {
            return self.insert(from, Span { start: range.start, end: range.end, tag: () });
        }
        let last = self.room[from + count - 1];
        let first = &mut self.room[from];
        first.start = first.start.min(range.start);
        first.end = last.end.max(range.end);
        self.remove(from + 1, count - 1);
        Ok(())
    }

    /// Removes `range`. If there is no room for the second part of an interval that is cut in two, the state is
    /// unchanged. O(n).
    pub(crate) fn uncover(&mut self, range: Range<u64>) -> Result<(), Full> {
        let mut i = self.first_behind(range.start);
        if let Some(&whole) = self.as_slice().get(i)
            && whole.start < range.start
        {
            if whole.end > range.end {
                // Its start is corrected below.
                self.insert(i + 1, whole)?;
            }
            self.room[i].end = range.start;
            i += 1;
        }
        let gone = self.as_slice()[i..].partition_point(|span| span.end <= range.end);
        self.remove(i, gone);
        if let Some(span) = self.room[..self.len].get_mut(i) {
            span.start = span.start.max(range.end);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// Tags of 16 places, by the intervals.
    fn as_places<T: Copy + PartialEq>(spans: &Spans<'_, T>) -> Vec<Option<T>> {
        (0..16).map(|at| spans.overlapping(&(at..at + 1)).first().map(|span| span.tag)).collect()
    }

    fn is_tidy<T: Copy + PartialEq>(spans: &Spans<'_, T>) -> bool {
        spans.as_slice().iter().all(|span| span.start < span.end)
            && spans.as_slice().windows(2).all(|pair| {
                pair[0].end < pair[1].start || (pair[0].end == pair[1].start && pair[0].tag != pair[1].tag)
            })
    }

    /// Every sequence of three entries of a coarse grid, against an array of places.
    #[test]
    fn overlays_agree_with_an_array_of_places() {
        let entries: Vec<(u64, u64, u8)> = (0..=14)
            .step_by(2)
            .flat_map(|start| (start + 2..=16).step_by(4).map(move |end| (start, end)))
            .flat_map(|(start, end)| (1..=2).map(move |tag| (start, end, tag)))
            .collect();
        for &a in &entries {
            for &b in &entries {
                for &c in &entries {
                    let mut room = [Span::default(); 7];
                    let mut spans = Spans::new(&mut room);
                    let mut places = [None; 16];
                    for (start, end, tag) in [a, b, c] {
                        let before = places[start as usize..end as usize].iter().flatten().count();
                        assert_eq!(spans.overlay(start..end, tag, u8::max), Ok(before as u64));
                        for place in &mut places[start as usize..end as usize] {
                            *place = (*place).max(Some(tag));
                        }
                        assert_eq!(as_places(&spans), places, "{a:?} {b:?} {c:?}");
                        assert!(is_tidy(&spans), "{spans:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn covering_and_uncovering_agree_with_an_array_of_places() {
        let all: Vec<_> = (0..16).flat_map(|start| (start + 1..=16).map(move |end| start..end)).collect();
        for a in &all {
            for b in &all {
                for c in all.iter().step_by(3) {
                    let mut room = [Span::default(); 3];
                    let mut spans = Spans::new(&mut room);
                    let mut places = [None; 16];
                    for (range, covers) in [(a, true), (b, true), (c, false)] {
                        let done =
                            if covers { spans.cover(range.clone()) } else { spans.uncover(range.clone()) };
                        assert_eq!(done, Ok(()));
                        places[range.start as usize..range.end as usize].fill(covers.then_some(()));
                        assert_eq!(as_places(&spans), places, "{a:?} {b:?} {c:?}");
                        assert!(is_tidy(&spans), "{spans:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_changes_nothing_where_it_says_so() {
        let mut room = [Span::default(); 1];
        let mut spans = Spans::new(&mut room);
        assert_eq!(spans.cover(4..8), Ok(()));
        assert_eq!(spans.cover(10..12), Err(Full));
        assert_eq!(spans.uncover(5..6), Err(Full));
        assert_eq!(spans.as_slice(), [Span { start: 4, end: 8, tag: () }]);
        assert_eq!(spans.cover(8..12), Ok(()));
        assert_eq!(spans.as_slice(), [Span { start: 4, end: 12, tag: () }]);
    }

    #[test]
    fn what_is_cut_in_three_needs_room_for_all() {
        let span = |start, end, tag| Span { start, end, tag };
        let whole = [span(0, 10, 1)];
        for (range, pieces) in [(3..5, 3), (0..5, 2), (5..10, 2)] {
            for len in 1..=3 {
                let mut room = [Span::default(); 3];
                let mut spans = Spans::new(&mut room[..len]);
                assert_eq!(spans.overlay(0..10, 1, u8::max), Ok(0));
                let entered = spans.overlay(range.clone(), 2, u8::max);
                assert_eq!(entered.is_ok(), pieces <= len, "{range:?} with room for {len}");
                if entered.is_err() {
                    assert_eq!(spans.as_slice(), whole, "nothing of it was entered");
                }
            }
        }
    }

    #[test]
    fn the_end_of_an_interval_is_taken_out_without_room() {
        let mut room = [Span::default(); 1];
        let mut spans = Spans::new(&mut room);
        assert_eq!((spans.cover(4..8), spans.uncover(6..8), spans.uncover(4..5)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(spans.as_slice(), [Span { start: 5, end: 6, tag: () }]);
    }
}
