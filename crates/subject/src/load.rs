//! A load on a number of CPUs, and what a round of it shows: on threads here, and on a modelled machine in
//! [`modelled`](crate::modelled).

use framewright::pcp::PcpEvents;
use framewright_host::{ArenaError, Config};
use framewright_workload::bench::{Case, Measurement, Scale, Stage, Workload, perform};
use framewright_workload::replay::{Recorded, copies};

use crate::{Descriptor, Subject};

/// Frames managed where CPUs allocate in bulk, and operations of each CPU in a sample. Descriptors are in a core's
/// second level.
const FRAMES: u64 = 1 << 16;
const OPERATIONS: u64 = 1 << 15;

/// A load on a number of CPUs.
#[derive(Clone, Copy, Debug)]
pub enum Load<'a> {
    /// A workload of `bench`.
    Bench(Case, Scale),
    /// A copy of a recorded run on each of so many CPUs.
    Copies(&'a Recorded, usize),
}

impl Load<'_> {
    /// Order-0 blocks in bulk.
    pub fn bulk(cpus: usize) -> Self {
        let scale = Scale { frames: FRAMES, operations: OPERATIONS, ..Scale::default() };
        Self::Bench(Case { workload: Workload::Bulk, order: 0, cpus }, scale)
    }

    /// CPUs that it runs on.
    pub const fn cpus(&self) -> usize {
        match self {
            Self::Bench(case, _) => case.cpus,
            Self::Copies(_, cpus) => *cpus,
        }
    }

    /// Frames that an allocator needs for it.
    pub fn frames(&self) -> u64 {
        match self {
            Self::Bench(_, scale) => scale.frames,
            // Room for what lists hold back.
            Self::Copies(recorded, cpus) => {
                ((recorded.frames() + FRAMES / 4) * *cpus as u64).next_multiple_of(1 << 10)
            }
        }
    }

    pub(crate) fn perform<S: Stage>(&self, stage: &S, round: u64) -> Measurement {
        match self {
            Self::Bench(case, scale) => perform(stage, case, scale, round),
            Self::Copies(recorded, cpus) => copies(stage, recorded, *cpus),
        }
    }
}

/// Figures of one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Times.
    pub measurement: Measurement,
    /// The zone lock: acquisitions per timed operation, ns waited and ns held for each.
    pub lock: [f64; 3],
}

impl Sample {
    pub(crate) fn new(measurement: Measurement, before: &PcpEvents, after: &PcpEvents) -> Self {
        let locks = (after.lock_acquisitions - before.lock_acquisitions) as f64;
        let [wait, hold] =
            [after.lock_wait_ns - before.lock_wait_ns, after.lock_hold_ns - before.lock_hold_ns];
        let each = locks.max(1.0);
        let lock = [locks / measurement.operations.max(1) as f64, wait as f64 / each, hold as f64 / each];
        Self { measurement, lock }
    }
}

/// Two arenas of one configuration: one as it is, one that times its lock, because the clock slows what it times.
#[derive(Debug)]
pub struct Pair {
    plain: Subject,
    timed: Subject,
}

impl Pair {
    /// Arenas for a load.
    ///
    /// # Errors
    /// As [`Subject::new`].
    pub fn new(config: Config, descriptor: Descriptor, load: &Load<'_>) -> Result<Self, ArenaError> {
        let mut timed = config;
        timed.experiment.lock_timing = true;
        let subject = |config| Subject::new(config, descriptor, load.frames(), load.cpus());
        Ok(Self { plain: subject(config)?, timed: subject(timed)? })
    }

    /// Mean hold of the zone lock, in ns, on the arena that times it.
    pub fn held_ns(&self, load: &Load<'_>, round: u64) -> f64 {
        self.timed(load, round, Measurement::default()).lock[2]
    }

    /// Runs the load on both.
    pub fn sample(&self, load: &Load<'_>, round: u64) -> Sample {
        let measurement = self.plain.perform(load, round);
        self.timed(load, round, measurement)
    }

    fn timed(&self, load: &Load<'_>, round: u64, measurement: Measurement) -> Sample {
        let before = self.timed.totals().pcp;
        let _ = self.timed.perform(load, round);
        Sample::new(measurement, &before, &self.timed.totals().pcp)
    }
}
