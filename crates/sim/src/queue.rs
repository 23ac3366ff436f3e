//! A closed queueing network: what CPUs that share locks reach together, and where they wait.
//!
//! Each of `n` CPUs works on its own for a time Z (*think time*) and then needs each station k, a lock or a node's
//! memory, for a demand D(k). Demands are counts from the real code times service times of a machine.
//!
//! # Bounds
//! For any distributions (Denning and Buzen, "The Operational Analysis of Queueing Network Models", Computing
//! Surveys 10(3), 1978): throughput is at most 1 / D(max) and at most n / (Z + ΣD). The two meet at n* = (Z + ΣD) /
//! D(max): a station is saturated beyond.
//!
//! # Mean value analysis
//! An arriving CPU sees the queue that a network with one CPU less has (Reiser and Lavenberg, "Mean-Value Analysis of
//! Closed Multichain Queuing Networks", Journal of the ACM 27(2), 1980): R(k, n) = D(k) (1 + Q(k, n - 1)), X(n) = n /
//! (Z + ΣR), Q(k, n) = X(n) R(k, n). It is exact for exponential service times. Holds of a lock vary less; of the one
//! under way then less is left than of a whole hold: with a squared coefficient of variation c², R = D (1 + Q - U (1 -
//! c²) / 2), where U is the station's utilisation with one CPU less.

/// A lock, or something else that serves one CPU at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Station {
    /// Its name.
    pub name: String,
    /// Service for each operation, in ns: visits times the time of one, the hand-over included.
    pub demand_ns: f64,
}

/// CPUs that do the same operation again and again.
#[derive(Clone, PartialEq, Debug)]
pub struct Network {
    /// Work of an operation that waits for no station, alone on a core, in ns.
    pub think_ns: f64,
    /// How much longer such work takes while the sibling of the core works, too, as a share; 0 without siblings. A CPU
    /// that waits leaves the core to its sibling.
    pub sibling: f64,
    /// Squared coefficient of variation of service times.
    pub variation: f64,
    /// Centers that all CPUs share.
    pub stations: Vec<Station>,
}

/// Throughput and waits of a number of CPUs.
#[derive(Clone, PartialEq, Debug)]
pub struct Reached {
    /// Operations a ns of all CPUs together.
    pub per_ns: f64,
    /// Time of an operation, in ns.
    pub cycle_ns: f64,
    /// Of each station: the time of an operation that is spent waiting for it, in ns.
    pub wait_ns: Vec<f64>,
}

/// Throughput that no number of CPUs exceeds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bound {
    /// Index of the station that saturates first.
    pub station: usize,
    /// CPUs at which it does.
    pub saturated_at: f64,
    /// Operations a ns that it serves at most.
    pub per_ns: f64,
}

impl Network {
    /// The bound by each station, the lowest throughput first. Stations without a demand have none.
    #[must_use]
    pub fn bounds(&self) -> Vec<Bound> {
        let all = self.think_ns + self.stations.iter().map(|station| station.demand_ns).sum::<f64>();
        let loaded = self.stations.iter().enumerate().filter(|(_, station)| station.demand_ns > 0.0);
        let bound = |(station, at): (usize, &Station)| Bound {
            station,
            saturated_at: all / at.demand_ns,
            per_ns: 1.0 / at.demand_ns,
        };
        let mut bounds: Vec<Bound> = loaded.map(bound).collect();
        bounds.sort_by(|a, b| a.per_ns.total_cmp(&b.per_ns));
        bounds
    }

    /// Think time where this share of a CPU's time is spent waiting.
    fn thinking(&self, waits: f64) -> f64 {
        self.think_ns * (1.0 + self.sibling * (1.0 - waits))
    }

    /// Throughput of `cpus` CPUs: mean value analysis. How long a sibling disturbs depends on how long it waits; that
    /// is found by repetition.
    #[must_use]
    pub fn reached(&self, cpus: u32) -> Reached {
        const TIMES: usize = 60;
        let mut waits = 0.0;
        let mut reached = self.solved(cpus, self.thinking(waits));
        for _ in 0..TIMES {
            let now = reached.wait_ns.iter().sum::<f64>() / reached.cycle_ns;
            waits = f64::midpoint(waits, now);
            reached = self.solved(cpus, self.thinking(waits));
        }
        reached
    }

    fn solved(&self, cpus: u32, think_ns: f64) -> Reached {
        let demands = || self.stations.iter().map(|station| station.demand_ns);
        let mut queues = vec![0.0; self.stations.len()];
        let mut reached = Reached { per_ns: 0.0, cycle_ns: think_ns, wait_ns: queues.clone() };
        for n in 1..=cpus.max(1) {
            let before = reached.per_ns;
            let left = |demand: f64| (before * demand).min(1.0) * (1.0 - self.variation) / 2.0;
            let wait = |(demand, queue): (f64, &f64)| demand * (queue - left(demand)).max(0.0);
            reached.wait_ns = demands().zip(&queues).map(wait).collect();
            reached.cycle_ns = think_ns + demands().zip(&reached.wait_ns).map(|(d, w)| d + w).sum::<f64>();
            reached.per_ns = f64::from(n) / reached.cycle_ns;
            queues = demands().zip(&reached.wait_ns).map(|(d, w)| reached.per_ns * (d + w)).collect();
        }
        reached
    }

    /// The network in which `cpus` reach an operation every `cycle_ns` each, and of it spend `wait_ns` waiting for each
    /// station: demands and think time that a measured throughput and measured waits imply. `sibling` and `variation`
    /// are as in [`Network`].
    #[must_use]
    pub fn implied(cpus: u32, cycle_ns: f64, waits: &[(&str, f64)], sibling: f64, variation: f64) -> Self {
        let work = cycle_ns - waits.iter().map(|(_, wait)| wait).sum::<f64>();
        let share = 1.0 - work / cycle_ns;
        let most = (cycle_ns / f64::from(cpus.max(1))).min(work);
        let station = |&(name, _): &(&str, f64)| Station { name: name.to_owned(), demand_ns: most / 2.0 };
        let stations = waits.iter().map(station).collect();
        let mut network = Self { think_ns: work, sibling, variation, stations };
        // What a station's wait says of its demand, with the others' as they are; again until none changes.
        for _ in 0..40 {
            for (k, &(_, wait)) in waits.iter().enumerate() {
                let [mut low, mut high] = [0.0, most];
                for _ in 0..40 {
                    network.stations[k].demand_ns = f64::midpoint(low, high);
                    let demands: f64 = network.stations.iter().map(|station| station.demand_ns).sum();
                    let found = network.solved(cpus, (work - demands).max(0.0)).wait_ns[k];
                    *(if found > wait { &mut high } else { &mut low }) = network.stations[k].demand_ns;
                }
            }
        }
        let demands: f64 = network.stations.iter().map(|station| station.demand_ns).sum();
        network.think_ns = (work - demands).max(0.0) / (1.0 + sibling * (1.0 - share));
        network
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(think_ns: f64, demands: &[f64]) -> Network {
        let station = |&demand_ns: &f64| Station { name: String::new(), demand_ns };
        Network { think_ns, sibling: 0.0, variation: 1.0, stations: demands.iter().map(station).collect() }
    }

    #[test]
    fn one_station_is_the_machine_repair_model() {
        // M/M/1//n: the probability of an idle station is 1 / Σ n!/(n-k)! (D/Z)^k; throughput is its complement over D.
        let (think, demand, cpus) = (100.0, 20.0, 8);
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 0..cpus {
            term *= f64::from(cpus - k) * demand / think;
            sum += term;
        }
        let exact = (1.0 - 1.0 / sum) / demand;
        let reached = network(think, &[demand]).reached(cpus);
        assert!((reached.per_ns / exact - 1.0).abs() < 1e-9, "{} {exact}", reached.per_ns);
        assert!((reached.per_ns * reached.cycle_ns - f64::from(cpus)).abs() < 1e-9, "Little's law");
    }

    #[test]
    fn no_number_of_cpus_exceeds_the_bounds_and_many_reach_them() {
        let network = network(1000.0, &[20.0, 50.0, 0.0]);
        let bounds = network.bounds();
        assert_eq!([bounds[0].station, bounds[1].station, bounds.len()], [1, 0, 2]);
        assert!((bounds[0].saturated_at - 21.4).abs() < 1e-9 && (bounds[1].saturated_at - 53.5).abs() < 1e-9);
        for cpus in [1, 8, 21, 64, 256] {
            let reached = network.reached(cpus).per_ns;
            assert!(
                reached <= bounds[0].per_ns * (1.0 + 1e-9)
                    && reached <= f64::from(cpus) / 1070.0 * (1.0 + 1e-9)
            );
        }
        assert!(network.reached(256).per_ns > 0.99 * bounds[0].per_ns);
    }

    #[test]
    fn holds_that_vary_less_make_shorter_queues() {
        let wait = |variation| Network { variation, ..network(100.0, &[20.0]) }.reached(4).wait_ns[0];
        assert!(wait(0.0) < 0.8 * wait(1.0), "{} {}", wait(0.0), wait(1.0));
    }

    #[test]
    fn demands_are_found_again_from_what_was_reached() {
        for (variation, cpus) in [(1.0, 64), (0.5, 8), (0.25, 16)] {
            let truth = Network { sibling: 0.5, variation, ..network(2000.0, &[150.0, 120.0]) };
            let reached = truth.reached(cpus);
            let waits = [("a", reached.wait_ns[0]), ("b", reached.wait_ns[1])];
            let found = Network::implied(cpus, reached.cycle_ns, &waits, 0.5, variation);
            for (found, truth) in found.stations.iter().zip(&truth.stations) {
                assert!((found.demand_ns / truth.demand_ns - 1.0).abs() < 0.02, "{found:?} {truth:?}");
            }
            assert!((found.think_ns / truth.think_ns - 1.0).abs() < 0.02, "{} {}", found.think_ns, variation);
        }
    }

    #[test]
    fn siblings_of_cpus_that_wait_work_faster() {
        let at = |sibling| Network { sibling, ..network(1000.0, &[100.0]) }.reached(64).per_ns;
        assert!(at(0.6) > 0.99 * at(0.0), "where the lock is the bound, work beside it does not count");
        let few = |sibling| Network { sibling, ..network(1000.0, &[1.0]) }.reached(2).per_ns;
        assert!((few(0.0) / few(0.6) - 1.6).abs() < 0.01);
    }
}
