//! Part `ready` of `parallel-init`: how soon memory can be allocated, with 64-byte descriptors that are all
//! initialised first, and with compact ones that wait until they are needed.

use std::time::Instant;

use framewright::NodeId;
use framewright_host::{BootMap, BootOptions, DescriptorMemory, Descriptors};
use framewright_report::stats::ratio::FEW_MEASURED;
use framewright_subject::{Descriptor, Subject};

use crate::booting::report::{no_slots, stay_behind};
use crate::study::declare::*;
use crate::study::initialise::{enough_memory, memory, options};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "ready",
        about: "Time until the first allocation, with all 64-byte descriptors initialised before it, and with compact descriptors.",
        kinds: &[Kind::Measured],
        metrics: &quantities! {
            ready_ms "ms" Lower Main "Until the first page can be allocated."
        },
        options: joined!((Opt, Kind); &MEASURED, &[(Opt::Memory, Kind::Measured)]),
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, run)],
};

const TIB: u64 = 1 << 10;
const STRUCT64: &str = "struct64";
const COMPACT: &str = "compact";
/// A sample of all descriptors costs their page faults: no more than a verdict needs.
const SAMPLES: u32 = FEW_MEASURED as u32;

/// Runs the part.
///
/// # Errors
/// No memory for the descriptors.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let threads = cpus_here().min(2);
    let gib = run.memory_gib.min(TIB);
    enough_memory(gib)?;
    let (small, large, huge) = (memory(gib, false)?, memory(TIB, false)?, memory(16 * TIB, false)?);
    let samples = run.samples.min(SAMPLES);
    let progress = progress(plan, part, samples as usize);
    let mut result = ResultPart::new(&plan.name, &part.name, Kind::Measured, "host")
        .baseline(STRUCT64)
        .variant(COMPACT)
        .seed(run.seed);
    let scale = TIB as f64 / gib as f64;
    for round in 0..samples {
        let (cold, mut used) = whole(&small, threads, None)?;
        if round == 0 {
            used.fill(0xff);
        }
        let (warm, _) = whole(&small, threads, Some(used))?;
        let compact = [lazy(&small)?, lazy(&large)?, lazy(&huge)?];
        let mut add = |name: &str, struct64: Option<f64>, compact: f64| {
            let metric = result.figure(name);
            match struct64 {
                Some(struct64) => metric.sample(STRUCT64, struct64).sample(COMPACT, compact),
                None => metric.sample(COMPACT, compact),
            };
        };
        if gib != TIB {
            add(&format!("ready_ms[gib={gib}]"), Some(cold), compact[0]);
        }
        add(&format!("ready_ms[gib={TIB}]"), Some(cold * scale), compact[1]);
        add(&format!("ready_ms[gib={TIB},touched=before]"), Some(warm * scale), compact[1]);
        add(&format!("ready_ms[gib={}]", 16 * TIB), None, compact[2]);
        progress.step("ready");
    }
    result.note(format!(
        "Until the first allocation. {STRUCT64}: all descriptors initialised by {threads} threads, page faults included \
         unless touched before; {COMPACT}: 8 bytes a frame, initialised when needed."
    ));
    if gib != TIB {
        result.note(format!(
            "{STRUCT64} at {TIB} GiB is what {gib} GiB took, times {scale}: its descriptors would take 16 GiB \
             (--memory {TIB} takes them)."
        ));
    }
    Ok(result)
}

/// Milliseconds until everything is initialised and a page allocated, and the descriptors' memory.
fn whole(map: &BootMap, threads: usize, used: Option<DescriptorMemory>) -> Result<(f64, DescriptorMemory)> {
    let setup = Setup::default();
    let options = options(&setup, threads);
    let start = Instant::now();
    let subject = match used {
        Some(used) => Subject::of_map_in(map, &options, used),
        None => Subject::of_map(map, &options, Descriptor::Struct64),
    }
    .map_err(Error::failed)?;
    let booting = subject.begin().ok_or_else(|| Error::failed("the arena has booted before"))?;
    booting.initialise(&[NodeId(0)], setup.split, threads).ok_or_else(no_slots)?;
    booting.finish().map_err(stay_behind)?;
    subject.allocate_first().map_err(Error::failed)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    Ok((ms, subject.into_descriptors()))
}

/// Milliseconds until a page of a lazy arena is allocated.
fn lazy(map: &BootMap) -> Result<f64> {
    let options = BootOptions { descriptors: Descriptors::AsTheyAre, ..options(&Setup::default(), 1) };
    let start = Instant::now();
    let subject = Subject::of_map(map, &options, Descriptor::Compact).map_err(Error::failed)?;
    let booting = subject.begin().ok_or_else(|| Error::failed("the arena has booted before"))?;
    booting.stay_lazy();
    subject.allocate_first().map_err(Error::failed)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
