//! CPU time that recording takes for each allocated block and for each sample, measured when the recording has ended:
//! the same work is done with the events, or the samplers, on and off, in turn, and the difference counts. Samples
//! cannot tell: code that writes events also waits for what was begun before, it hides from the sampler where
//! interrupts are off, and no sample shows what the sampler itself takes.

use std::fs::File;
use std::io::{self, Write as _};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::time::{ClockId, clock_gettime};

use super::sampling::{self, PERIOD_NS};
use super::tracefs::Instance;
use crate::kernel_time::Cost;
use crate::trace::EventKind;

/// Pages that are allocated and freed in a round, and rounds with the events on and with them off.
const PAGES: u64 = 1024;
const ROUNDS: usize = 15;
/// How often the events are switched.
const TURNS: usize = 3;
/// Samples that come during a round of counting, and such rounds with the samplers on and with them off.
const SAMPLES: u64 = 4;
const COUNTING_ROUNDS: usize = 12;

/// CPU time of this thread in ns.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CPU time of allocating and freeing the pages of a file in memory, by rounds.
fn rounds(file: &mut File) -> io::Result<Vec<i64>> {
    let page = [1; 4096];
    (0..ROUNDS)
        .map(|_| {
            let begin = cpu_ns();
            for _ in 0..PAGES {
                file.write_all(&page)?;
            }
            ftruncate(&*file, 0)?;
            io::Seek::rewind(file)?;
            Ok(cpu_ns() - begin)
        })
        .collect()
}

fn median(mut times: Vec<i64>) -> i64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// What an allocation with its free costs, with every event that they write, and what a sample costs; `None` where that
/// cannot be measured. The instance records nothing more afterwards.
pub(super) fn measured(instance: &Instance, cpus: &[u16]) -> Option<Cost> {
    Some(Cost { block_ns: of_a_block(instance)?, sample_ns: of_a_sample(cpus)? })
}

fn of_a_block(instance: &Instance) -> Option<u64> {
    let mut file = File::from(memfd_create("framewright-cost", MemfdFlags::CLOEXEC).ok()?);
    let _ = rounds(&mut file).ok()?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        for (value, times) in [("1", &mut with), ("0", &mut without)] {
            // Those of blocks alone: the group has others.
            for kind in EventKind::ALL {
                instance.set(&format!("events/kmem/{}/enable", kind.name()), value).ok()?;
            }
            instance.set("tracing_on", value).ok()?;
            times.extend(rounds(&mut file).ok()?);
        }
        // Empties the buffers.
        instance.set("trace", "").ok()?;
    }
    u64::try_from((median(with) - median(without)) / PAGES as i64).ok()
}

/// CPU time of counting up to `end`: work without memory.
fn count(end: u64) -> i64 {
    let begin = cpu_ns();
    for n in 0..end {
        core::hint::black_box(n);
    }
    cpu_ns() - begin
}

/// The least time of a round counts: other work on the machine only adds to it.
fn of_a_sample(cpus: &[u16]) -> Option<u64> {
    const TRIAL: u64 = 1_000_000;
    let each = (0..5).map(|_| count(TRIAL)).min()?.max(1);
    let end = SAMPLES * PERIOD_NS * TRIAL / each.unsigned_abs();
    let (mut with, mut without) = (i64::MAX, i64::MAX);
    for _ in 0..COUNTING_ROUNDS {
        without = without.min(count(end));
        let samplers = sampling::start(cpus).ok()?;
        with = with.min(count(end));
        drop(samplers);
    }
    Some((with - without).max(0).unsigned_abs() / SAMPLES)
}
