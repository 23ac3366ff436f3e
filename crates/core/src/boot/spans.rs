//! Sorted, disjoint intervals in the caller's memory. Pure.

use core::ops::Range;

use crate::units::Pfn;

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

/// The caller's array has room for this number of intervals, and no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full(pub(crate) usize);

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

    /// Index of the first interval that ends after `at`. O(log n).
    fn first_behind(&self, at: u64) -> usize {
        self.as_slice().partition_point(|span| span.end <= at)
    }

    /// The intervals that overlap `range`. O(log n).
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> &[Span<T>] {
        let from = self.first_behind(range.start);
        let count = self.as_slice()[from..].partition_point(|span| span.start < range.end);
        &self.as_slice()[from..from + count]
    }

    /// Gives all of `range` the tag, whatever was there. Without room the state is unchanged. O(n).
    pub(crate) fn set(&mut self, range: Range<u64>, tag: T) -> Result<(), Full> {
        // The intervals that overlap or touch the range.
        let from = self.as_slice().partition_point(|span| span.end < range.start);
        let to = from + self.as_slice()[from..].partition_point(|span| span.start <= range.end);
        let touched = &self.as_slice()[from..to];
        let before = touched.first().map(|&span| Span { end: span.end.min(range.start), ..span });
        let after = touched.last().map(|&span| Span { start: span.start.max(range.end), ..span });
        let painted = Span { start: range.start, end: range.end, tag };
        let mut parts = [before, Some(painted), after].map(|part| part.filter(|span| span.start < span.end));
        for n in [1, 2] {
            if let [Some(first), Some(next)] = [parts[n - 1], parts[n]]
                && first.end == next.start
                && first.tag == next.tag
            {
                (parts[n - 1], parts[n]) = (None, Some(Span { start: first.start, ..next }));
            }
        }
        let parts = parts.into_iter().flatten();
        let count = parts.clone().count();
        let len = self.len + count - (to - from);
        if len > self.room.len() {
            return Err(Full(self.room.len()));
        }
        self.room.copy_within(to..self.len, from + count);
        self.room[from..].iter_mut().zip(parts).for_each(|(place, part)| *place = part);
        self.len = len;
        Ok(())
    }

    /// Adds `range` with `tag`. Where it overlaps an interval, `resolve(old, tag)` gives the new tag. Returns the
    /// length of the overlap. If the array has no room, the part of the range before that place was added. O(n) for
    /// each interval that it overlaps.
    pub(crate) fn overlay(
        &mut self,
        range: Range<u64>,
        tag: T,
        resolve: impl Fn(T, T) -> T,
    ) -> Result<u64, Full> {
        let (mut at, mut overlapped) = (range.start, 0);
        while at < range.end {
            let next = self.as_slice().get(self.first_behind(at)).copied();
            let (end, becomes) = match next {
                Some(there) if there.start <= at => {
                    let end = there.end.min(range.end);
                    overlapped += end - at;
                    (end, resolve(there.tag, tag))
                }
                next => (next.map_or(range.end, |next| next.start.min(range.end)), tag),
            };
            self.set(at..end, becomes)?;
            at = end;
        }
        Ok(overlapped)
    }
}

/// The ranges of a sorted sequence, adjacent ones joined.
pub(crate) fn joined(ranges: impl Iterator<Item = Range<Pfn>>) -> impl Iterator<Item = Range<Pfn>> {
    let mut ranges = ranges.peekable();
    core::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
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
    fn the_last_tag_of_a_place_is_the_one_set_last() {
        let all: Vec<_> = (0..16).flat_map(|start| (start + 1..=16).map(move |end| start..end)).collect();
        for a in &all {
            for b in &all {
                for c in all.iter().step_by(3) {
                    let mut room = [Span::default(); 5];
                    let mut spans = Spans::new(&mut room);
                    let mut places = [None; 16];
                    for (range, tag) in [(a, 1), (b, 1), (c, 2)] {
                        assert_eq!(spans.set(range.clone(), tag), Ok(()));
                        places[range.start as usize..range.end as usize].fill(Some(tag));
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
        assert_eq!(spans.set(4..8, 1), Ok(()));
        assert_eq!(spans.set(10..12, 1), Err(Full(1)));
        assert_eq!(spans.set(5..6, 2), Err(Full(1)));
        assert_eq!(spans.as_slice(), [Span { start: 4, end: 8, tag: 1 }]);
        assert_eq!(spans.set(8..12, 1), Ok(()));
        assert_eq!(spans.as_slice(), [Span { start: 4, end: 12, tag: 1 }]);
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
}
