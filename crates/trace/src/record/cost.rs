//! CPU time that recording takes for each allocated block and for each sample, measured when the recording has ended:
//! equal work is done with the events, or the samplers, on and off, in turn, and the difference counts. The samples of
//! the recording cannot show it: code that writes events also waits for earlier instructions, the sampler does not see
//! code that runs with interrupts off, and no sample shows the time of the sampler itself.

use core::time::Duration;
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
/// Times that the events are switched on and off.
const TURNS: usize = 3;
/// Time between two samples while their cost is measured: short, so that they stand out from other work on the machine,
/// and long enough for the walk to replace what they left in a core's own caches.
const SAMPLE_EACH_NS: u64 = PERIOD_NS / 4;
/// Samples that come during a walk.
const SAMPLES: u64 = 20;
/// Walks with the samplers on and with them off, at least and at most. On a busy guest the standard deviation of a
/// sample's cost was 12 us of 5 walks, 5 us of 40.
const WALKS: [u128; 2] = [5, 40];
/// Time of the run for which there is a walk. Its own samples leave more than twice as much of its CPU time open.
const EACH: Duration = Duration::from_millis(250);
/// Bytes of a cache line.
const LINE: usize = 64;

/// CPU time of this thread in ns.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CPU time of allocating and freeing the pages of a file in memory, by rounds.
fn rounds(file: &mut File) -> io::Result<Vec<i64>> {
    let page = vec![1; rustix::param::page_size()];
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

/// Cost of an allocation with its free and their events, and cost of a sample; `None` where they cannot
/// be measured. Of a longer `run` more exactly. The instance records nothing more afterwards.
pub(super) fn measured(instance: &Instance, cpus: &[u16], run: Duration) -> Option<Cost> {
    Some(Cost { block_ns: of_a_block(instance)?, sample_ns: of_a_sample(cpus, walks(run))? })
}

fn walks(run: Duration) -> u128 {
    (run.as_millis() / EACH.as_millis()).clamp(WALKS[0], WALKS[1])
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

/// Memory as large as a core's second-level cache, and the line of it that was read last.
///
/// A program's own data is in the caches when a sample comes, so that the sampler's code and data miss, and the program
/// then misses the lines that they replaced. A walk through this memory shows both: on an EPYC guest a sample costs it
/// 60 us. It costs 11 us beside a loop without memory, and beside a walk through 32 MiB, which misses in any case, 15
/// us.
struct Walk {
    memory: Vec<u8>,
    line: usize,
}

impl Walk {
    fn new() -> Self {
        let size = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").ok();
        let kib = size.and_then(|size| size.trim().strip_suffix('K')?.parse::<usize>().ok());
        // A power of two, as `read` needs it.
        let bytes = 1 << (kib.unwrap_or(1024).clamp(64, 1 << 16) << 10).ilog2();
        Self { memory: vec![1; bytes], line: 0 }
    }

    /// CPU time of reading `reads` lines, each at a place that depends on the byte before it.
    fn read(&mut self, reads: u64) -> i64 {
        let lines = self.memory.len() / LINE;
        let begin = cpu_ns();
        for _ in 0..reads {
            // Visits every line: a linear congruential generator whose increment is the byte that was read, always 1.
            let byte = usize::from(self.memory[self.line * LINE]);
            self.line = self.line.wrapping_mul(1_664_525).wrapping_add(byte) % lines;
        }
        core::hint::black_box(self.line);
        cpu_ns() - begin
    }
}

/// The median of the differences between a walk with the samplers and the one before, as the machine's speed changes.
fn of_a_sample(cpus: &[u16], walks: u128) -> Option<u64> {
    const TRIAL: u64 = 200_000;
    let mut walk = Walk::new();
    let trial = median((0..5).map(|_| walk.read(TRIAL)).collect()).max(1);
    let reads = SAMPLES * SAMPLE_EACH_NS * TRIAL / trial.unsigned_abs();
    let difference = |_| {
        let without = walk.read(reads);
        let samplers = sampling::start(cpus, SAMPLE_EACH_NS).ok()?;
        let with = walk.read(reads);
        drop(samplers);
        Some(with - without)
    };
    let differences = (0..walks).map(difference).collect::<Option<Vec<i64>>>()?;
    Some(median(differences).max(0).unsigned_abs() / SAMPLES)
}

#[cfg(test)]
mod tests {
    use super::{Duration, walks};

    #[test]
    fn a_short_run_is_not_followed_by_a_long_measurement() {
        let of_seconds = [0, 1, 5, 10, 100].map(|seconds| walks(Duration::from_secs(seconds)));
        assert_eq!(of_seconds, [5, 5, 20, 40, 40]);
    }
}
