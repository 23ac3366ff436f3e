//! The parts of `zone-reclaim`, simulated: the same programs and the same page cache, on the model of the study's machine
//! with its disk. Memory is a share of the machine's, zone by zone.

use framewright_host::framewright::config::Experiment;
use framewright_host::framewright::{Config, NodeId, Pfn, ZoneSpec, ZoneType};
use framewright_host::pagecache::program::Program;
use framewright_sim::clock::mix;
use framewright_sim::files::{self, Load, Outcome};

use crate::error::{Error, Result};
use crate::machine::{Machine, ZoneKind};
use crate::result::{Better, Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::{central_model, in_parallel, sampled_models};
use crate::study::pressure::{self, Facts, Sample, number};
use crate::study::run::{Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::tasks::add_moved;
use crate::study::{Part, Plan};

/// Base pages of the largest block: zones begin at multiples of it.
const LARGEST: u64 = 1024;
/// The least that a zone has.
const LEAST: u64 = LARGEST;

/// Runs a part: every variant on every model.
///
/// # Errors
/// The machine cannot be simulated, a setting that does not exist, or what a program ran into.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let machine = run.machine;
    if central_model(machine)?.storage.is_none() {
        return Err(Error::failed(format_args!(
            "{}: no disk and files_ns to simulate files with",
            machine.name
        )));
    }
    let mib = f64::from(number(plan, part, "simulated_mib", 192)?) * run.scale;
    let share = mib / (machine.memory_gib() as f64 * 1024.0);
    let zones = scaled(machine, share);
    // As in the study, programs are sized by what the machine is said to have, not by what of it is managed.
    let memory = (mib * f64::from(1 << 20)) as u64;
    let loops = number(plan, part, "simulated_loops", number(plan, part, "loops", 4)?)?;
    let program = pressure::program(plan, part, run, memory, [number(plan, part, "tasks", 1)?, loops])?;
    let distances = distances(machine);
    let load = Load { program: &program, zones: &zones, distances: &distances, share };
    let variants = configured(plan, &Settings::default())?;
    let models = sampled_models(machine, run.costly_models as usize, run.seed)?;
    let work: Vec<_> = models
        .iter()
        .zip(1_u64..)
        .flat_map(|(model, n)| variants.iter().map(move |variant| (model, mix(run.seed ^ n << 32), variant)))
        .collect();
    let progress = progress(plan, part, work.len());
    let outcomes = in_parallel(
        &work,
        |(model, seed, variant)| {
            let config = Config {
                experiment: Experiment { lock_timing: true, ..variant.setup.config.experiment },
                ..variant.setup.config
            };
            files::run(model, config, &load, *seed)
        },
        || progress.step("simulated"),
    );
    let mut result = result_part(plan, part, Kind::Simulated, &machine.name, run.seed);
    let mut hashes = Vec::new();
    for ((.., variant), outcome) in work.iter().zip(outcomes) {
        let outcome = outcome.map_err(Error::failed)?;
        hashes.push(outcome.events.hash);
        add(&mut result, part, &variant.variant, outcome);
    }
    for metric in
        result.metrics.iter_mut().filter(|metric| ["s", "pages", "KiB"].contains(&metric.unit.as_str()))
    {
        metric.samples.values_mut().flatten().for_each(|sample| *sample /= share);
    }
    pressure::add_published(&mut result, part);
    result.note(describe(&program, mib, machine));
    result.note(reproduced(&result, plan.baseline()));
    result.note(
        "A CPU for each task: the machine's own 12 on node 0 would have run more than one in turns. Programs have files \
         only, and no swap is configured; no slabs, no inodes, no journal: their rows are 0.",
    );
    note_models(&mut result, models.len());
    close_simulated(&mut result, hashes);
    Ok(result)
}

fn describe(program: &Program, mib: f64, machine: &Machine) -> String {
    format!(
        "{mib:.0} of the machine's {} MiB, each of its zones smaller alike; seeks, requests, pauses and the second after which the zonelist \
         cache forgets are as much smaller, rates are as they are; {}, on node 0's CPUs. Seconds, pages and KiB are scaled to the whole.",
        machine.memory_gib() * 1024,
        pressure::describe(program)
    )
}

/// What rows of the baseline come within a factor of two of the published ones: without most of them, it is another run that is
/// simulated.
fn reproduced(result: &ResultPart, baseline: &str) -> String {
    let mut near = 0;
    let mut off = Vec::new();
    for metric in &result.metrics {
        let Some(published) = metric.published else { continue };
        let mut samples = metric.of(baseline).to_vec();
        samples.sort_by(f64::total_cmp);
        let Some(&median) = samples.get(samples.len() / 2) else { continue };
        // A count of nothing is met by nothing.
        let is_near = (median + 1.0) / (published.mean + 1.0);
        if (0.5..=2.0).contains(&is_near) {
            near += 1;
        } else {
            off.push(metric.name.as_str());
        }
    }
    if off.is_empty() {
        format!("The baseline is reproduced: all {near} published rows are within a factor of two.")
    } else {
        format!(
            "The baseline is not reproduced: {} of {} published rows are off by more than a factor of two ({}). What is said of a change is of \
             the simulated programs, not of the published run.",
            off.len(),
            near + off.len(),
            off.join(", ")
        )
    }
}

/// The machine's zones with this share of their memory; those left out of which nothing would be left.
fn scaled(machine: &Machine, share: f64) -> Vec<ZoneSpec> {
    let mut start = 0;
    let mut zones = Vec::new();
    for zone in &machine.zones {
        let pages = (zone.managed_pages as f64 * share / LARGEST as f64).round() as u64 * LARGEST;
        if pages < LEAST {
            continue;
        }
        let kind = match zone.kind {
            ZoneKind::Dma => ZoneType::Dma,
            ZoneKind::Dma32 => ZoneType::Dma32,
            ZoneKind::Normal => ZoneType::Normal,
        };
        zones.push(ZoneSpec { node: NodeId(zone.node as u16), kind, start: Pfn(start), pages });
        start += pages;
    }
    zones
}

/// The distances between the machine's nodes, row by row.
fn distances(machine: &Machine) -> Vec<u8> {
    let remote = machine.remote_distance.unwrap_or(20) as u8;
    let nodes = machine.nodes;
    let row = |from: u32| (0..nodes).map(move |to| if from == to { 10 } else { remote });
    (0..nodes).flat_map(row).collect()
}

fn add(result: &mut ResultPart, part: &Part, variant: &str, outcome: Outcome) {
    let pages = outcome.allocation_times.count().max(1) as f64;
    let facts = Facts {
        stretches: outcome.stretches,
        durations_ns: [outcome.user, outcome.system, outcome.elapsed].map(|time| time.0 / 1000),
        allocation_times: outcome.allocation_times,
        cache: outcome.cache,
        nodes: outcome.nodes,
        zones: outcome.zones,
    };
    let mut sample = Sample::new(&facts);
    sample.one("disk_moves", "1", Better::Lower, outcome.moves as f64);
    sample.add(result, part, variant);
    add_moved(result, &|own| own, variant, &outcome.moved, pages);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::shipped;

    #[test]
    fn zones_shrink_alike() {
        let machine = Machine::find("westmere").expect("it is built in");
        let whole = scaled(&machine, 1.0);
        assert_eq!(whole.iter().map(|zone| zone.pages >> 10).collect::<Vec<_>>(), [4, 439, 504, 1512]);
        let small = scaled(&machine, 1.0 / 128.0);
        assert_eq!(
            small.iter().map(|zone| zone.pages >> 10).collect::<Vec<_>>(),
            [3, 4, 12],
            "no DMA zone is left"
        );
        assert_eq!(distances(&machine), [10, 20, 20, 10]);
    }

    #[test]
    fn every_row_of_the_published_tables_is_there_and_files_are_right() {
        let plan = Plan::find("zone-reclaim").expect("it is built in");
        let trace = shipped::trace().expect("it is built in");
        let machine = Machine::find(plan.machine()).expect("it is built in");
        let shortest = Run { scale: 0.5, ..Run::shortest(&machine, &trace) };
        for part in plan.parts() {
            let result = run(&plan, part, &shortest).expect("simulated");
            let found: BTreeSet<&str> = result.metrics.iter().map(|metric| metric.name.as_str()).collect();
            for metric in &part.metrics {
                assert!(found.contains(metric.name.as_str()), "{}: {} in {found:?}", part.name, metric.name);
            }
            for name in [
                "zone_reclaim_scans_per_allocation",
                "allocation_us[at=p99.9]",
                "page_outs_kib",
                "disk_moves",
            ] {
                assert!(found.contains(name), "{}: {name}", part.name);
            }
            assert!(
                result.metrics.iter().all(|metric| metric.published.is_some() || !metric.samples.is_empty())
            );
            assert!(result.event_log_hash.is_some());
        }
    }

    #[test]
    fn a_machine_without_a_disk_is_refused() {
        let plan = Plan::find("zone-reclaim").expect("it is built in");
        let trace = shipped::trace().expect("it is built in");
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let error = run(&plan, &plan.parts()[0], &Run::shortest(&machine, &trace)).expect_err("no disk");
        assert!(error.to_string().contains("no disk and files_ns"), "{error}");
    }
}
