//! CPU time that recording takes for each allocated block, measured when the recording has ended: the same pages are
//! allocated and freed with the events on and off, in turn, and the difference counts. Samples cannot tell: what writes
//! events also waits for what was begun before, and hides from the sampler where interrupts are off.

use std::io::{self, Write as _};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::time::{ClockId, clock_gettime};

use super::tracefs::Instance;
use crate::trace::EventKind;

/// Pages that are allocated and freed in a round, and rounds with the events on and with them off.
const PAGES: u64 = 1024;
const ROUNDS: usize = 15;
/// How often the events are switched.
const TURNS: usize = 3;

/// CPU time of this thread in ns.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CPU time of allocating and freeing the pages of a file in memory, by rounds.
fn rounds(file: &mut std::fs::File) -> io::Result<Vec<i64>> {
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

/// Nanoseconds for an allocation and its free, with every event that they write; `None` where that cannot be measured. The
/// instance records nothing more afterwards.
pub(super) fn of_a_block(instance: &Instance) -> Option<u64> {
    let mut file = std::fs::File::from(memfd_create("framewright-cost", MemfdFlags::CLOEXEC).ok()?);
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
