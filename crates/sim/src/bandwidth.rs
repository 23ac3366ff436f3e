//! Memory bandwidth, and the queue in front of it.
//!
//! A node's memory is a server that takes a fixed time per line. CPUs run ahead of one another in virtual time, so
//! requests do not arrive in its order; therefore the server counts what falls into slices of time instead of
//! keeping one queue. Within a slice, the delay is that of a queue with random arrivals; a full slice hands on to the
//! next.

use crate::clock::Ps;

/// Length of a slice.
const SLICE: Ps = Ps(1_000_000);
/// Parts in which what takes longer than a slice is served.
const PART: Ps = Ps(SLICE.0 / 16);
/// Slices remembered: requests further apart than this many do not meet.
const SLICES: usize = 1024;

/// One node's memory.
#[derive(Clone, Debug)]
pub struct Channel {
    slices: Vec<Slice>,
    /// The shortest service so far.
    least: Ps,
    /// Time in which it was busy.
    busy: Ps,
    /// Share of its time that it has been busy recently, up to the slice before `until`.
    of_late: f64,
    until: u64,
}

/// Weight of a slice in the recent load: one that follows the last slice alone would swing about its mean.
const WEIGHT: f64 = 0.1;

/// How a request is served.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Served {
    /// Time until the channel has any room for it.
    pub wait: Ps,
    /// Share of its time that the channel is busy.
    pub busy: f64,
}

/// Counts of a place of the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    /// Which slice.
    number: u64,
    /// Time used up in it.
    used: Ps,
    /// Slices from this one on that have no room for the shortest service.
    full: u64,
}

impl Default for Channel {
    fn default() -> Self {
        Self { slices: vec![Slice::default(); SLICES], least: Ps::NEVER, busy: Ps(0), of_late: 0.0, until: 0 }
    }
}

impl Channel {
    /// How long it was busy so far.
    #[must_use]
    pub const fn busy(&self) -> Ps {
        self.busy
    }

    /// Serves a request at time `at` that keeps the channel busy for `service`: in the first slice from then on that
    /// has room for it.
    ///
    /// O(1) but where requests come in far ahead of the bandwidth.
    pub fn serve(&mut self, at: Ps, service: Ps) -> Served {
        if service > SLICE {
            return self.serve_in_parts(at, service);
        }
        self.busy += service;
        if service < self.least {
            self.least = service;
            self.slices.iter_mut().for_each(|slice| slice.full = 0);
        }
        let first = at.0 / SLICE.0;
        let mut number = first;
        // Every slice on the way so far is full for all.
        let mut full = true;
        while number < first + SLICES as u64 {
            let slice = &mut self.slices[number as usize % SLICES];
            if slice.number != number {
                if slice.number > number {
                    // So long ago that it is forgotten: no other traffic is there.
                    return Served { wait: Ps(0), busy: 0.0 };
                }
                *slice = Slice { number, ..Slice::default() };
            }
            if slice.used + service <= SLICE {
                slice.used += service;
                if full && number > first {
                    self.slices[first as usize % SLICES].full = number - first;
                }
                self.remember(number);
                return Served { wait: Ps(number * SLICE.0).since(at), busy: self.of_late };
            }
            full &= slice.used + self.least > SLICE;
            number += slice.full.max(1);
        }
        Served { wait: Ps(SLICES as u64 * SLICE.0), busy: 1.0 }
    }

    /// Serves a request for which no slice has room: each part when the one before is done.
    fn serve_in_parts(&mut self, at: Ps, service: Ps) -> Served {
        let (mut all, mut served) = (Served { wait: Ps(0), busy: 0.0 }, Ps(0));
        while served < service {
            let part = PART.min(service - served);
            let Served { wait, busy } = self.serve(at + all.wait + served, part);
            all = Served { wait: all.wait + wait, busy };
            served += part;
        }
        all
    }

    /// Lets all slices before this one count.
    fn remember(&mut self, number: u64) {
        let first = self.until.max(number.saturating_sub(SLICES as u64 / 8));
        for past in first..number {
            let slice = self.slices[past as usize % SLICES];
            let used = if slice.number == past { slice.used.0 as f64 / SLICE.0 as f64 } else { 0.0 };
            self.of_late += WEIGHT * (used - self.of_late);
        }
        self.until = self.until.max(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Rng;

    /// Serves a request without the ring's shortcuts, slice by slice.
    fn serve_slowly(slices: &mut [(u64, Ps)], at: Ps, service: Ps) -> Ps {
        let first = at.0 / SLICE.0;
        for number in first..first + SLICES as u64 {
            let (counts, used) = &mut slices[number as usize % SLICES];
            if *counts != number {
                if *counts > number {
                    return Ps(0);
                }
                (*counts, *used) = (number, Ps(0));
            }
            if *used + service <= SLICE {
                *used += service;
                return Ps(number * SLICE.0).since(at);
            }
        }
        Ps(SLICES as u64 * SLICE.0)
    }

    #[test]
    fn skipping_full_slices_changes_nothing() {
        for load in [500, 1100, 2000] {
            let (mut channel, mut slices) = (Channel::default(), vec![(0, Ps(0)); SLICES]);
            let mut rng = Rng::new(load);
            for n in 0..200_000_u64 {
                // A CPU is up to 20 slices behind or ahead of another one.
                let at = Ps(n * 1_000_000 / load + rng.below(20 * SLICE.0));
                let service = Ps(if rng.below(3) == 0 { 1500 } else { 900 });
                assert_eq!(
                    channel.serve(at, service).wait,
                    serve_slowly(&mut slices, at, service),
                    "{load} {n}"
                );
            }
        }
    }

    #[test]
    fn an_idle_channel_delays_no_request_and_a_full_one_hands_on() {
        let mut channel = Channel::default();
        assert_eq!(channel.serve(Ps(0), Ps(400)), Served { wait: Ps(0), busy: 0.0 });
        let mut last = Ps(0);
        for _ in 1..2500 {
            let delay = channel.serve(Ps(0), Ps(400)).wait;
            assert!(delay >= last, "{delay:?} after {last:?}");
            last = delay;
        }
        // 2500 requests of 400 ps fill a microsecond.
        assert!(channel.serve(Ps(0), Ps(400)).wait >= SLICE);
        assert_eq!(channel.serve(Ps(5_000_000), Ps(400)).wait, Ps(0), "other times are not disturbed");
        assert_eq!(channel.busy(), Ps(2502 * 400));
    }

    #[test]
    fn how_busy_it_is_follows_what_is_asked_of_it() {
        let mut channel = Channel::default();
        let busy = |channel: &mut Channel, from: u64| {
            (from..from + 100_000).map(|n| channel.serve(Ps(n * 1000), Ps(600)).busy).last()
        };
        let share = busy(&mut channel, 0).unwrap_or_default();
        assert!((0.59..0.61).contains(&share), "{share}");
        let later = channel.serve(Ps(1_000_000_000), Ps(600)).busy;
        assert!(later < 0.01, "nothing was asked since: {later}");
    }

    /// 128 lines of memory with less than 15 GB/s: each such request waited for a thousand slices.
    #[test]
    fn what_takes_longer_than_a_slice_passes_at_the_bandwidth() {
        const SERVICE: Ps = Ps(2_300_000);
        const REQUESTS: u64 = 1000;
        for cpus in [1, 2, 5] {
            let (mut channel, mut clocks) = (Channel::default(), vec![Ps(0); cpus]);
            for _ in 0..REQUESTS {
                for clock in &mut clocks {
                    *clock += channel.serve(*clock, SERVICE).wait + SERVICE;
                }
            }
            let least = SERVICE.0 * REQUESTS * cpus as u64;
            let end = clocks.into_iter().max().unwrap_or_default().0;
            assert_eq!(channel.busy(), Ps(least));
            assert!((least - least / 50..=least + least / 10).contains(&end), "{cpus}: {end} of {least}");
        }
    }

    #[test]
    fn throughput_never_exceeds_the_bandwidth() {
        let mut channel = Channel::default();
        let end = (0..100_000_u64)
            .map(|n| (Ps(n) + channel.serve(Ps(n), Ps(400)).wait).0)
            .max()
            .unwrap_or_default();
        assert!(end >= 100_000 * 400 - SLICE.0, "{end}");
    }
}
