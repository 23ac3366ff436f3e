//! One run of a simulated part for each variant, written as a trace that Perfetto and Chrome open.

use std::collections::BTreeMap;

use framewright_sim::bench::{Bench, Case, linux_recorded};
use framewright_sim::boot::boot;
use framewright_sim::trace::{Doing, Recorded, Span, chrome};
use framewright_trace::output::Output;

use crate::booting::Bootable;
use crate::simulate::central_model;
use crate::study::declare::*;
use crate::study::parallel_init::memory;

/// Spans of one run that are recorded: about 20 MB of JSON, less when waits are joined.
const SPANS: usize = 150_000;
/// Waits for lines of one name that are no further apart are shown as one.
const APART: Ps = Ps(100_000);

/// Runs a part once under each of its variants, with every parameter as described, and writes what each virtual CPU did
/// when. Returns the number of spans.
///
/// # Errors
/// A part that is not simulated run by run, or a file that cannot be written.
pub fn write(plan: &Plan, part: &str, machine: &Machine, seed: u64, output: Output) -> Result<usize> {
    let found = plan.parts.iter().find(|known| known.name == part);
    let runs = match found.map(|part| (part, workload(part))) {
        Some((part, "bulk")) => bulk(plan, part, machine, seed)?,
        Some((part, "boot")) => booted(plan, part, machine, seed)?,
        _ => {
            let runnable = |plan: &Plan| -> Vec<String> {
                let traced = plan.parts.iter().filter(|part| !workload(part).is_empty());
                traced.map(|part| part.name.clone()).collect()
            };
            let parts = runnable(plan);
            let list = if parts.is_empty() {
                let all = Plan::all()?;
                let others = all.iter().flat_map(|plan| {
                    runnable(plan).into_iter().map(|part| format!("{} --part {part}", plan.name))
                });
                others.collect::<Vec<_>>().join(", ")
            } else {
                parts.join(", ")
            };
            return Err(Error::usage(format_args!(
                "{}, part {part}: no timeline can be written of it, but of {list}",
                plan.name
            )));
        }
    };
    let runs: Vec<Recorded> = runs.into_iter().map(joined).collect();
    output.finish(chrome(&runs).as_bytes()).map_err(Error::failed)?;
    Ok(runs.iter().map(|run| run.spans.len()).sum())
}

/// A workload of which single runs can be traced, or nothing.
fn workload(part: &Part) -> &'static str {
    let name = part.workload.get("name").map(ToString::to_string).unwrap_or_default();
    let simulated = part.kinds.contains(&framewright_report::result::Kind::Simulated);
    ["bulk", "boot"].into_iter().find(|known| simulated && *known == name).unwrap_or_default()
}

/// All cores allocate and free a little: enough to fill and drain their lists some times.
fn bulk(plan: &Plan, part: &Part, machine: &Machine, seed: u64) -> Result<Vec<Recorded>> {
    let order = order(part);
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
        let split = variant.setup.split;
        let is_one = split == framewright::policy::init::Split::OneThread;
        let workers = if is_one { 1 } else { (machine.cores_per_node * machine.threads_per_core) as u16 };
        let memory = memory(&map, split, workers);
        let outcome = boot(&model, &memory, variant.setup.config, seed, SPANS).map_err(Error::failed)?;
        Ok(outcome.recorded.map(|run| titled(run, &variant.variant)))
    };
    configured(plan, &varied)?.iter().filter_map(|variant| run(variant).transpose()).collect()
}

/// Waits for memory or for lines of the same name that follow one another closely, as one span: a walk over descriptors
/// is one thing to look at. Nothing is joined across the beginning or end of a hold of the zone lock, a wait for it, or
/// anything else, so that spans still nest.
fn joined(mut run: Recorded) -> Recorded {
    run.spans.sort_by_key(|span| (span.cpu, span.start, core::cmp::Reverse(span.end)));
    let is_wait = |doing: Doing| matches!(doing, Doing::Transfer(_) | Doing::Memory(_));
    // By CPU: where spans of other kinds begin and end.
    let mut edges: BTreeMap<u16, Vec<Ps>> = BTreeMap::new();
    for span in run.spans.iter().filter(|span| !is_wait(span.doing)) {
        edges.entry(span.cpu).or_default().extend([span.start, span.end]);
    }
    edges.values_mut().for_each(|edges| edges.sort_unstable());
    let crosses = |cpu: u16, from: Ps, to: Ps| {
        edges.get(&cpu).is_some_and(|edges| {
            let next = edges.partition_point(|edge| *edge < from);
            edges.get(next).is_some_and(|edge| *edge <= to)
        })
    };
    let mut joined: Vec<Span> = Vec::new();
    // By CPU: where its last wait is among them.
    let mut last: BTreeMap<u16, usize> = BTreeMap::new();
    for span in run.spans {
        if is_wait(span.doing) {
            if let Some(before) = last.get(&span.cpu).map(|&at| &mut joined[at])
                && before.doing == span.doing
                && span.start.since(before.end) <= APART
                && !crosses(span.cpu, before.end, span.start)
            {
                before.end = before.end.max(span.end);
                continue;
            }
            last.insert(span.cpu, joined.len());
        }
        joined.push(span);
    }
    Recorded { spans: joined, ..run }
}

fn titled(mut run: Recorded, variant: &str) -> Recorded {
    run.title = format!("{variant}: {}", run.title);
    run
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn waits_are_joined_but_not_across_a_hold() {
        let span = |start, end, doing| Span { cpu: 1, start: Ps(start), end: Ps(end), doing };
        let (memory, second) = (Doing::Memory(Some(0)), Doing::Memory(Some(1)));
        let spans = vec![
            span(100, 200, memory),
            span(250, 300, memory),
            span(300, 310, second),
            span(320, 330, memory),
            span(340, 400, memory),
            // It begins between two waits.
            span(335, 1_000_000, Doing::LockHold),
            span(410, 420, memory),
            span(900_000, 900_001, memory),
            Span { cpu: 2, ..span(340, 400, memory) },
            span(0, 2_000_000, Doing::Run),
        ];
        let run = joined(Recorded { title: String::new(), spans, names: Vec::new() });
        let waits: Vec<(u16, u64, u64)> = run
            .spans
            .iter()
            .filter(|span| span.doing == memory)
            .map(|span| (span.cpu, span.start.0, span.end.0))
            .collect();
        let expected = [(1, 100, 300), (1, 320, 330), (1, 340, 420), (1, 900_000, 900_001), (2, 340, 400)];
        assert_eq!(waits, expected);
    }

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
                phase => panic!("phase {phase}"),
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
        // What follows one another closely is one span, so that something else can be seen.
        assert!(categories["memory"] * 2 < spans, "{categories:?}");
        let plan = Plan::find("pcp-reset").expect("it is built in");
        let error = write(&plan, "replay", &machine, 1, open()).expect_err("it is measured");
        assert!(error.to_string().contains("refill-check --part huge"), "{error}");
    }
}
