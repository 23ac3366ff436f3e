//! One run of a simulated part for each variant, written as a trace that Perfetto and Chrome open.

use framewright_host::Order;
use framewright_sim::bench::{Bench, Case, linux_recorded};
use framewright_sim::boot::boot;
use framewright_sim::trace::{Recorded, chrome};
use framewright_sim::world::BootMemory;
use framewright_workload::output::Output;

use crate::booting::Bootable;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::simulate::central_model;
use crate::study::run::{Configured, configured};
use crate::study::simulated::allocator;
use crate::study::{Part, Plan};

/// Spans of one run: about 20 MB of JSON.
const SPANS: usize = 150_000;

/// Runs a part once under each of its variants, with every parameter as described, and writes what each virtual CPU did
/// when. Returns the number of spans.
///
/// # Errors
/// A part that is not simulated run by run, or a file that cannot be written.
pub fn write(plan: &Plan, part: &str, machine: &Machine, seed: u64, output: Output) -> Result<usize> {
    let found = plan.parts().iter().find(|known| known.name == part);
    let runs = match found.map(|part| (part, workload(part))) {
        Some((part, "bulk")) => bulk(plan, part, machine, seed)?,
        Some((part, "boot")) => booted(plan, part, machine, seed)?,
        _ => {
            let traced = plan.parts().iter().filter(|part| !workload(part).is_empty());
            let names: Vec<&str> = traced.map(|part| part.name.as_str()).collect();
            let list = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Error::failed(format_args!(
                "{}, part {part}: no run of it can be traced; of this study's parts: {list}",
                plan.name()
            )));
        }
    };
    output.finish(chrome(&runs).as_bytes()).map_err(Error::failed)?;
    Ok(runs.iter().map(|run| run.spans.len()).sum())
}

/// A workload of which single runs can be traced, or nothing.
fn workload(part: &Part) -> &'static str {
    let name = part.workload.get("name").map(ToString::to_string).unwrap_or_default();
    let simulated = part.kinds.contains(&crate::result::Kind::Simulated);
    ["bulk", "boot"].into_iter().find(|known| simulated && *known == name).unwrap_or_default()
}

/// All cores allocate and free a little: enough to fill and drain their lists some times.
fn bulk(plan: &Plan, part: &Part, machine: &Machine, seed: u64) -> Result<Vec<Recorded>> {
    let order = part.workload.get("order").and_then(|order| order.to_string().parse().ok());
    let order = order.and_then(Order::new).unwrap_or(Order::ZERO);
    let blocks = (2048 >> order.get()).max(8);
    let cores = (machine.cores_per_node * machine.nodes) as u16;
    let case = Case { bench: Bench::Bulk, order, cores, blocks, stands_for: blocks };
    let model = central_model(machine)?;
    let varied = part.combinations().into_iter().next().unwrap_or_default();
    let run = |variant: &Configured| {
        let allocator = allocator(machine, &variant.setup);
        let outcome = linux_recorded(&model, &allocator, &case, seed, SPANS).map_err(Error::failed)?;
        Ok(outcome.recorded.map(|run| titled(run, &variant.variant)))
    };
    configured(plan, &varied)?.iter().filter_map(|variant| run(variant).transpose()).collect()
}

/// Boot, from its first worker to its last.
fn booted(plan: &Plan, part: &Part, machine: &Machine, seed: u64) -> Result<Vec<Recorded>> {
    let (map, _) = Bootable::of_machine(machine)?.divide()?;
    let model = central_model(machine)?;
    let varied = part.combinations().into_iter().next().unwrap_or_default();
    let run = |variant: &Configured| {
        let one = variant.setup.split == framewright_host::framewright::policy::init::Split::OneThread;
        let memory = BootMemory {
            zones: &map.zones,
            parts: &map.parts,
            free: &map.free,
            section: map.rules.section,
            split: variant.setup.split,
            workers: if one { 1 } else { (machine.cores_per_node * machine.threads_per_core) as u16 },
        };
        let outcome = boot(&model, &memory, variant.setup.config, seed, SPANS).map_err(Error::failed)?;
        Ok(outcome.recorded.map(|run| titled(run, &variant.variant)))
    };
    configured(plan, &varied)?.iter().filter_map(|variant| run(variant).transpose()).collect()
}

fn titled(mut run: Recorded, variant: &str) -> Recorded {
    run.title = format!("{variant}: {}", run.title);
    run
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::collections::BTreeMap;

    use super::*;

    /// Reads a trace as Chrome's format says; returns how many spans each category has.
    fn read(text: &str) -> BTreeMap<String, usize> {
        let trace: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let mut spans: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
        let mut categories = BTreeMap::new();
        for event in trace["traceEvents"].as_array().expect("events") {
            let number = |key: &str| event[key].as_f64().expect("a number");
            match event["ph"].as_str().expect("a phase") {
                "M" => assert!(event["args"]["name"].is_string(), "{event}"),
                "X" => {
                    let thread = (number("pid") as u64, number("tid") as u64);
                    let end = number("ts") + number("dur");
                    spans.entry(thread).or_default().push((number("ts"), end));
                    *categories.entry(event["cat"].as_str().expect("text").to_owned()).or_insert(0) += 1;
                }
                other => panic!("phase {other}"),
            }
        }
        for spans in spans.values() {
            // Within a picosecond and what reading decimals loses.
            let mut open: Vec<(f64, f64)> = Vec::new();
            for &(start, end) in spans {
                open.retain(|outer| outer.1 > start + 2e-6);
                assert!(open.last().is_none_or(|outer| end <= outer.1 + 2e-6), "{start} {end} in {open:?}");
                open.push((start, end));
            }
        }
        categories
    }

    #[test]
    fn a_trace_is_json_whose_spans_nest() {
        let plan = Plan::find("refill-check").expect("it is built in");
        let mut machine = Machine::find("xeon-gold-5320").expect("it is built in");
        machine.cores_per_node = 3;
        let path = std::env::temp_dir().join(format!("framewright-trace-{}.json", std::process::id()));
        let open = || Output::open(&path).expect("it can be written");
        let spans = write(&plan, "huge", &machine, 1, open()).expect("written");
        let text = fs::read_to_string(&path).expect("a file");
        fs::remove_file(&path).expect("it was there");
        let categories = read(&text);
        assert_eq!(categories.values().sum::<usize>(), spans);
        for category in ["work", "lock wait", "lock hold", "transfer", "memory"] {
            assert!(categories.get(category).is_some_and(|&count| count > 0), "{category}: {categories:?}");
        }
        assert!(text.contains("transfer of zone lock") && text.contains("(simulated)"));
        let error = write(&plan, "nothing", &machine, 1, open()).expect_err("there is none");
        assert!(error.to_string().contains("huge"), "{error}");
    }
}
