//! Parts that allocate and free in bulk: every thread takes as many blocks as fit, then frees them, while the
//! zone lock is contended.

use framewright_subject::bad_block::free_cma_drift;
use framewright_subject::load::Load;
use framewright_workload::bench::{Case, Scale, Workload};

use crate::configure::Descriptor;
use crate::study::declare::*;
use crate::study::library::{add, pair, parameters};
use crate::study::simulated;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "bulk",
        about: "Every thread allocates blocks until its share of memory is used, then frees them all.",
        kinds: &[Kind::Measured, Kind::Simulated],
        keys: &[
            ORDER,
            key(
                "threads",
                Takes::Whole(1, 1024),
                Some("1, 2, 4, … and all CPUs"),
                "Threads, where it is measured.",
            ),
        ],
        metrics: joined!(Quantity; &TIMES, &ZONE_LOCK, &TRAFFIC),
        options: joined!((Opt, Kind); &MEASURED, &SIMULATED, &[(Opt::Trace, Kind::Simulated)]),
        needs: &[Need::Model],
        varies: usize::MAX,
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, run), (Kind::Simulated, simulated::bulk)],
};

pub(crate) const BAD_BLOCK: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "bad_block",
        about: "Plants a bad page in a CMA pageblock, lets a refill find it, and checks the counter of free CMA pages.",
        kinds: &[Kind::Measured],
        metrics: &quantities! {
            free_cma_drift_pages "pages" Lower Main "Error of the counter of free CMA memory."
        },
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, |plan, part, _| bad_block(plan, part))],
};

/// Frames managed. With 64-byte descriptors half of them are 64 MiB: far more than a core's own caches.
const FRAMES: u64 = 1 << 21;
/// Frames for a first look, unless the blocks of a thread need more.
const QUICK: u64 = 1 << 18;
/// Blocks that each thread takes and frees in one sample, at least.
const BLOCKS: u64 = 1 << 11;
/// The share of all frames that each thread takes in one sample, as a power of a half; for a first look.
const SHARE: [u32; 2] = [4, 5];

/// Runs a bulk part: every varied setting, 1 and as many threads as the part or the machine has.
///
/// Latency and lock times come from separate passes, because the clock that times the lock would slow what it
/// times.
///
/// # Errors
/// A setting that does not exist, or no memory for the descriptors.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let order = order(part).get();
    let frames = if run.quick { QUICK.max(BLOCKS << order) } else { FRAMES };
    let available = cpus_here();
    let threads = match WORKLOAD.value(part, "threads") {
        0 => (0..).map(|n| 1 << n).take_while(|&n| n <= available).collect(),
        threads => vec![threads],
    };
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    let combinations = part.combinations();
    let steps = combinations.len() * threads.len() * plan.variants().count() * run.samples as usize;
    let progress = progress(plan, part, steps);
    for varied in &combinations {
        let variants = configured(plan, varied)?;
        for &cores in &threads {
            let case = Case { workload: Workload::Bulk, order, cpus: cores };
            let load = Load::Bench(case, scale(&case, frames, run));
            let pairs = variants
                .iter()
                .map(|variant| Ok((&variant.variant, pair(&variant.setup, &load)?)))
                .collect::<Result<Vec<_>>>()?;
            for (round, (variant, pair)) in in_turn(run.samples, &pairs) {
                let sample = pair.sample(&load, round);
                add(&sample, &mut result, variant, &parameters(varied, cores), [1.0, 0.0]);
                progress.step(&format!("{variant} on {cores} threads"));
            }
        }
    }
    result.metrics.retain(|known| metric(part, known.family()).is_some());
    if available < 2 {
        result.note("This machine has one CPU: nothing contends for the zone lock.");
    }
    result.note(format!(
        "{} MiB of memory, of which only descriptors exist; wait and hold are per acquisition of the zone lock, timed in runs of their own.",
        frames >> 8
    ));
    Ok(result)
}

/// How much a sample does.
fn scale(case: &Case, frames: u64, run: &Run<'_>) -> Scale {
    let operations = BLOCKS.max((frames >> SHARE[usize::from(run.quick)]) >> case.order);
    Scale { frames, operations, seed: run.seed, ..Scale::default() }
}

/// Part `bad_block`: plants a bad page in a CMA pageblock, lets a refill find it, and compares the counter of
/// free CMA pages with the CMA pages that are really free.
///
/// # Errors
/// A setting that does not exist, or a refill that did not come from CMA.
pub(crate) fn bad_block(plan: &Plan, part: &Part) -> Result<ResultPart> {
    let mut result = result_part(plan, part, Kind::Measured, "host", 0);
    for Configured { variant, setup } in configured(plan, &Settings::default())? {
        if setup.descriptor != Descriptor::Struct64 {
            return Err(Error::failed("bad_block needs descriptor_bytes = 64"));
        }
        let drift = free_cma_drift(setup.config).map_err(Error::failed)?;
        result.figure("free_cma_drift_pages").sample(&variant, drift).exact();
    }
    result.note("0 is right; with the check off, the bad page is handed out instead.");
    Ok(result)
}
