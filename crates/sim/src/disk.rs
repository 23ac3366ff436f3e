//! A disk with one arm: pages that wait to be written, an arm that moves over them, and a rate at which they pass.
//!
//! Times are virtual, and nothing happens between calls: what the disk has done by some time is worked out when somebody
//! asks. Calls come in the order of their times.
//!
//! * A file's pages get their places when they are first written, 512 KiB at a time, one chunk behind the other: what is
//!   written in sequence lies in sequence.
//! * Writes wait in the order of their places, and are served upwards from where the arm is, then from the lowest again;
//!   neighbours pass together, up to 512 KiB at a time. A disk that has nothing else to do gives neighbours a moment to
//!   come in.
//! * Reads go before writes, and after one the arm waits for the next, as Linux' CFQ does.
//! * A move over `d` pages takes `track + (seek − track) · √(d / third)`, never more than twice the mean seek (Ruemmler
//!   and Wilkes, 1994: short moves are spent accelerating), and half a turn.

use std::collections::{BTreeMap, VecDeque};

use crate::clock::Ps;
use crate::model::Storage;

/// Bytes of a page.
const PAGE: f64 = 4096.0;
/// Pages of a file that get their places together, and the most that pass in one go.
const CHUNK: u64 = 128;
/// How long the first page waits for neighbours.
const PLUG: Ps = Ps(1_000_000_000);
/// How long the arm waits for the next read (CFQ's `slice_idle`).
const AFTER_READ: Ps = Ps(8_000_000_000);
/// The least move, of one track to the next: an estimate.
const TRACK: Ps = Ps(1_000_000_000);
/// A third of the disk, over which the mean move goes: of 500 GB, an estimate.
const THIRD: f64 = 500e9 / 3.0 / PAGE;
/// Requests that wait before a writer has to (`nr_requests`), and of which the disk says that it is congested.
const REQUESTS: u64 = 128;
const CONGESTED: u64 = REQUESTS / 8 * 7;

/// Where a page lies, counted in pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position(u64);

/// A disk.
#[derive(Debug)]
pub struct Disk {
    /// Pages of a file that get their places together, and the most that pass in one go.
    chunk: u64,
    plug: Ps,
    after_read: Ps,
    track: Ps,
    third: f64,
    seek: Ps,
    rotation: Ps,
    page: Ps,
    /// The place behind the one served last.
    arm: u64,
    /// From when on it has nothing to do.
    free_at: Ps,
    /// Until when it waits for another read.
    reading_until: Ps,
    /// Pages to be written, and when they came.
    waiting: BTreeMap<u64, Ps>,
    /// The same in the order in which they came; those that are gone from `waiting` included.
    arrivals: VecDeque<(Ps, u64)>,
    /// How many requests those that wait make: runs of neighbours.
    requests: u64,
    /// Pages written, and when.
    done: VecDeque<(Ps, Position)>,
    chunks: BTreeMap<(u32, u64), u64>,
    next_chunk: u64,
    moves: u64,
}

impl Disk {
    /// An empty disk with its arm at its beginning.
    #[must_use]
    pub fn new(storage: &Storage) -> Self {
        Self::scaled(storage, 1.0)
    }

    /// The same for a machine with this share of its memory: all that takes time but the passing of bytes takes as much less,
    /// and what passes at a time is as much less, so that a second stands for as much more of the whole machine's.
    #[must_use]
    pub fn scaled(storage: &Storage, share: f64) -> Self {
        Self {
            chunk: ((CHUNK as f64 * share).round() as u64).max(1),
            plug: PLUG.scaled(share),
            after_read: AFTER_READ.scaled(share),
            track: TRACK.scaled(share),
            third: THIRD * share,
            seek: Ps::from_ns(storage.seek * share),
            rotation: Ps::from_ns(storage.rotation * share),
            page: Ps::from_ns(PAGE * 1e3 / storage.mbps),
            arm: 0,
            free_at: Ps(0),
            reading_until: Ps(0),
            waiting: BTreeMap::new(),
            arrivals: VecDeque::new(),
            requests: 0,
            done: VecDeque::new(),
            chunks: BTreeMap::new(),
            next_chunk: 0,
            moves: 0,
        }
    }

    /// Where a page of a file lies. It gets its place now if it has none. O(log chunks).
    pub fn place(&mut self, file: u32, index: u64) -> Position {
        let next = &mut self.next_chunk;
        let chunk = *self.chunks.entry((file, index / self.chunk)).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        Position(chunk * self.chunk + index % self.chunk)
    }

    /// Forgets the places of a file. They are not used again. O(chunks).
    pub fn forget(&mut self, file: u32) {
        self.chunks.retain(|&(of, _), _| of != file);
    }

    /// Times that the arm has moved.
    #[must_use]
    pub const fn moves(&self) -> u64 {
        self.moves
    }

    /// What it takes to get to a place.
    fn approach(&mut self, to: u64) -> Ps {
        let far = self.arm.abs_diff(to);
        if far == 0 {
            return Ps(0);
        }
        self.moves += 1;
        let share = (far as f64 / self.third).sqrt().min(2.0);
        self.track.min(self.seek) + self.seek.since(self.track).scaled(share) + self.rotation
    }

    /// Serves so many pages from a place on, not before `from`. Returns when that is done.
    fn serve(&mut self, from: Ps, place: u64, pages: u64) -> Ps {
        let approach = self.approach(place);
        self.arm = place + pages;
        self.free_at = from.max(self.free_at) + approach + Ps(self.page.0 * pages);
        self.free_at
    }

    /// When the disk turns to the pages that wait, as far as is known.
    fn next_start(&mut self) -> Option<Ps> {
        while let Some(&(came, place)) = self.arrivals.front()
            && self.waiting.get(&place) != Some(&came)
        {
            self.arrivals.pop_front();
        }
        let (came, _) = *self.arrivals.front()?;
        Some((came + self.plug).max(self.free_at).max(self.reading_until))
    }

    /// Does what can be done by `now`. Amortised O(log waiting) per page.
    fn advance(&mut self, now: Ps) {
        while let Some(start) = self.next_start()
            && start <= now
        {
            let here = |&(_, came): &(&u64, &Ps)| *came <= start;
            let above = self.waiting.range(self.arm..).find(here).or_else(|| self.waiting.iter().find(here));
            let Some((&first, _)) = above else { return };
            let mut pages = 0;
            while pages < self.chunk && self.waiting.get(&(first + pages)).is_some_and(|&came| came <= start)
            {
                self.take(first + pages);
                pages += 1;
            }
            let ended = self.serve(start, first, pages);
            self.done.extend((first..first + pages).map(|place| (ended, Position(place))));
        }
    }

    fn neighbours(&self, place: u64) -> u64 {
        let waits = |place: u64| u64::from(self.waiting.contains_key(&place));
        place.checked_sub(1).map_or(0, waits) + waits(place + 1)
    }

    fn take(&mut self, place: u64) {
        if self.waiting.remove(&place).is_some() {
            self.requests = self.requests + self.neighbours(place) - 1;
        }
    }

    /// Has a page written. It is not waiting yet.
    pub fn write(&mut self, now: Ps, at: Position) {
        self.advance(now);
        if self.waiting.insert(at.0, now).is_none() {
            self.requests = self.requests + 1 - self.neighbours(at.0);
        }
        self.arrivals.push_back((now, at.0));
    }

    /// Has a page read. Returns when it is there.
    pub fn read(&mut self, now: Ps, at: Position) -> Ps {
        self.advance(now);
        let there = self.serve(now, at.0, 1);
        self.reading_until = there + self.after_read;
        there
    }

    /// The next page that is written by `now`.
    pub fn written(&mut self, now: Ps) -> Option<Position> {
        self.advance(now);
        let &(at, page) = self.done.front()?;
        if at > now {
            return None;
        }
        self.done.pop_front();
        Some(page)
    }

    /// No page is written before this time, and it is worth asking then; `None` if none is on its way.
    pub fn next_written(&mut self, now: Ps) -> Option<Ps> {
        self.advance(now);
        let done = self.done.front().map(|&(at, _)| at);
        done.or_else(|| self.next_start().map(|start| start + self.page))
    }

    /// Whether it has more to do than it should (Linux: seven eighths of its queue).
    pub fn is_congested(&mut self, now: Ps) -> bool {
        self.advance(now);
        self.requests > CONGESTED
    }

    /// Whether whoever has a page to write has to wait until its queue is shorter.
    pub fn is_full(&mut self, now: Ps) -> bool {
        self.advance(now);
        self.requests >= REQUESTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000_000;

    /// A mean seek of 9 ms, half a turn of 4, 1 ms for 25 pages: 40.96 µs a page.
    fn disk() -> Disk {
        let (call, page, fault) = (0.0, 0.0, 0.0);
        Disk::new(&Storage { seek: 9e6, rotation: 4e6, mbps: 100.0, call, page, fault })
    }

    fn all_written(disk: &mut Disk, by: Ps) -> Vec<Position> {
        core::iter::from_fn(|| disk.written(by)).collect()
    }

    #[test]
    fn a_file_that_is_written_alone_lies_in_sequence() {
        let mut disk = disk();
        let places: Vec<u64> = (0..300).map(|index| disk.place(1, index).0).collect();
        assert!(places.is_sorted() && places[299] - places[0] == 299);
        let other = disk.place(2, 0).0;
        assert_eq!(other % CHUNK, 0);
        assert!(disk.place(1, 300).0 < other && disk.place(1, 384).0 > other, "by chunks");
        disk.forget(1);
        assert!(disk.place(1, 0).0 > other, "elsewhere");
    }

    #[test]
    fn a_share_of_a_disk_takes_that_share_of_time() {
        let written = |share: f64, pages: u64| {
            let (call, page, fault) = (0.0, 0.0, 0.0);
            let storage = Storage { seek: 9e6, rotation: 4e6, mbps: 100.0, call, page, fault };
            let mut disk = Disk::scaled(&storage, share);
            // Every other chunk: the arm moves each time.
            for n in 0..64 {
                for index in 0..pages {
                    let at = disk.place(2 * n, index);
                    disk.write(Ps(0), at);
                }
                let _ = disk.place(2 * n + 1, 0);
            }
            all_written(&mut disk, Ps(100_000 * MS));
            disk.free_at.as_ns()
        };
        let (whole, share) = (written(1.0, 128), written(1.0 / 64.0, 2));
        assert!((whole / share / 64.0 - 1.0).abs() < 0.02, "{whole} {share}");
    }

    #[test]
    fn neighbours_pass_together_and_without_a_move() {
        let mut disk = disk();
        for index in 0..256 {
            let at = disk.place(0, index);
            disk.write(Ps(0), at);
        }
        assert_eq!(disk.requests, 1);
        assert_eq!(disk.written(PLUG), None);
        let half = PLUG + Ps(disk.page.0 * CHUNK);
        assert_eq!(disk.next_written(PLUG), Some(half));
        let all = half + Ps(disk.page.0 * CHUNK);
        assert_eq!([half, all].map(|by| all_written(&mut disk, by).len()), [128, 128]);
        assert_eq!((disk.moves(), disk.requests), (0, 0), "the arm was there");
    }

    #[test]
    fn the_arm_goes_up_and_begins_again() {
        let mut disk = disk();
        for place in [500, 100, 300, 700] {
            disk.write(Ps(0), Position(place));
        }
        disk.arm = 400;
        assert_eq!(disk.requests, 4);
        let order = all_written(&mut disk, Ps(1000 * MS));
        assert_eq!(order, [500, 700, 100, 300].map(Position));
        assert_eq!(disk.moves(), 4);
    }

    #[test]
    fn moves_take_longer_the_farther_they_go() {
        let mut disk = disk();
        let mut to = |from: u64, to: u64| {
            disk.arm = from;
            disk.approach(to).0 as f64 / MS as f64
        };
        assert_eq!(to(5, 5), 0.0);
        let third = THIRD as u64;
        assert!((to(0, third) - 13.0).abs() < 0.01, "the mean seek and half a turn");
        assert!((to(third, third - third / 4) - 9.0).abs() < 0.01, "1 + 8 / 2 + 4");
        assert!(to(0, 1) < 5.1);
    }

    #[test]
    fn reads_go_first_and_are_waited_for() {
        let mut disk = disk();
        disk.write(Ps(0), Position(1000));
        let there = disk.read(Ps(0), Position(0));
        assert_eq!(there, disk.page);
        // The next one in sequence, though a write waits.
        let again = disk.read(there + Ps(MS), Position(1));
        assert_eq!(again, there + Ps(MS) + disk.page);
        assert_eq!(disk.written(again + AFTER_READ), None);
        assert_eq!(disk.next_written(again + AFTER_READ), disk.done.front().map(|done| done.0));
        assert_eq!(disk.written(Ps(1000 * MS)), Some(Position(1000)));
    }

    #[test]
    fn a_long_queue_is_congested_and_then_full() {
        let mut disk = disk();
        for n in 0..REQUESTS {
            assert_eq!((disk.is_congested(Ps(0)), disk.is_full(Ps(0))), (n > CONGESTED, false));
            disk.write(Ps(0), Position(n * 2));
        }
        assert!(disk.is_full(Ps(0)));
        // One that joins two makes one request of three.
        disk.write(Ps(0), Position(1));
        assert_eq!(disk.requests, REQUESTS - 1);
        assert!(!disk.is_congested(Ps(100_000 * MS)));
        assert_eq!(all_written(&mut disk, Ps(100_000 * MS)).len() as u64, REQUESTS + 1);
    }
}
