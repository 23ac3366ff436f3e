//! How much memory traffic passes, and what queues.
//!
//! A node's memory is a server that takes a fixed time per line. CPUs run ahead of one another in virtual time, so
//! requests do not arrive in its order; therefore the server counts what falls into slices of time instead of
//! keeping one queue. Within a slice, the delay is that of a queue with random arrivals; a full slice hands on to the
//! next.

use crate::clock::Ps;

/// Length of a slice.
const SLICE: Ps = Ps(1_000_000);
/// Slices remembered: requests further apart than this many do not meet.
const SLICES: usize = 1024;

/// One node's memory.
#[derive(Clone, Debug)]
pub struct Channel {
    /// Which slice each place counts, and the time used up in it.
    slices: Vec<(u64, Ps)>,
}

impl Default for Channel {
    fn default() -> Self {
        Self { slices: vec![(0, Ps(0)); SLICES] }
    }
}

impl Channel {
    /// Serves a request at time `at` that keeps the channel busy for `service`. Returns the delay beyond that.
    ///
    /// With utilisation u of the slice so far the delay is `service · u / (2 · (1 - u))` (Pollaczek and
    /// Khinchine, constant service), until the slice is full.
    pub fn serve(&mut self, at: Ps, service: Ps) -> Ps {
        let first = at.0 / SLICE.0;
        for number in first..first + SLICES as u64 {
            let (counts, used) = &mut self.slices[number as usize % SLICES];
            if *counts != number {
                if *counts > number {
                    // So long ago that it is forgotten: nobody else is there.
                    return Ps(0);
                }
                (*counts, *used) = (number, Ps(0));
            }
            if *used + service <= SLICE {
                *used += service;
                let busy = used.0 as f64 / SLICE.0 as f64;
                let queue = service.scaled(busy / (2.0 * (1.0 - busy).max(1e-3)));
                return Ps(number * SLICE.0).since(at) + queue.min(SLICE);
            }
        }
        Ps(SLICES as u64 * SLICE.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_channel_delays_nobody_and_a_full_one_hands_on() {
        let mut channel = Channel::default();
        assert_eq!(channel.serve(Ps(0), Ps(400)), Ps(0));
        let mut last = Ps(0);
        for _ in 1..2500 {
            let delay = channel.serve(Ps(0), Ps(400));
            assert!(delay >= last, "{delay:?} after {last:?}");
            last = delay;
        }
        // 2500 requests of 400 ps fill a microsecond.
        assert!(channel.serve(Ps(0), Ps(400)) >= SLICE);
        assert_eq!(channel.serve(Ps(5_000_000), Ps(400)), Ps(0), "other times are not disturbed");
    }

    #[test]
    fn throughput_never_exceeds_the_bandwidth() {
        let mut channel = Channel::default();
        let end =
            (0..100_000_u64).map(|n| (Ps(n) + channel.serve(Ps(n), Ps(400))).0).max().unwrap_or_default();
        assert!(end >= 100_000 * 400 - SLICE.0, "{end}");
    }
}
