//! Predictions for one machine, committed before they were measured there: `docs/validation/here.md`. All of it comes
//! from saved files.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::Result;
use crate::scores::{json, median, numbers, short};

pub(crate) const PAGE: &str = "docs/validation/here.md";

/// Arguments of `framewright` that measure what was predicted.
pub(crate) const MEASURE: &str = "study docs/validation/here-study.toml --kind measured --samples 9 --all -o docs/validation/here-measured.json";

const HEAD: &str = "\
# Predicted for one machine, committed, then measured

Written by `cargo xtask scores` from `here-near.json`, `here-far.json` and `here-measured.json`; `cargo xtask here` measures. The loads are in
`here-study.toml`: every CPU allocates and frees order-0 blocks in bulk, at three places of the zone lock, under both kinds of lock, with lists
that move 7 and 63 pages at a time; or it replays a copy of a trace. The machine is a guest with two CPUs, which its hypervisor moves: a line goes
from one to the other in 25 ns or in 122. So the prediction was made for both (`here-near.toml`, `here-far.toml`), and the transfer that is measured before each
round says which of the two counts. *Width* is the factor from the middle of a range to its ends, *error* the factor between prediction and
measurement. The naive laws know more than the prediction: they begin with what was measured of the baseline, on one CPU, or with 7 pages.
";

/// Parts of a saved document: figures by part, name and variant.
type Figures = BTreeMap<(String, String, String), Figure>;

struct Figure {
    value: f64,
    range: Option<[f64; 2]>,
}

fn figures(document: &Value) -> Figures {
    let mut all = Figures::new();
    for part in document["results"].as_array().into_iter().flatten() {
        for metric in part["metrics"].as_array().into_iter().flatten() {
            for (variant, samples) in metric["samples"].as_object().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let range = numbers(&metric["interval"][variant]).try_into().ok();
                if let Some(value) = median(&numbers(samples)) {
                    let key = (text(&part["part"]), text(&metric["name"]), variant.clone());
                    all.insert(key, Figure { value, range });
                }
            }
        }
    }
    all
}

/// Factor between two figures.
fn factor(figure: f64, truth: f64) -> f64 {
    (figure / truth).ln().abs().exp()
}

const LAWS: [&str; 3] = ["no change of place", "as on one CPU", "linear in the batch"];

/// The figure by each naive law, from other figures that were measured.
fn naive(measured: &Figures, (part, name, variant): &(String, String, String)) -> [Option<f64>; 3] {
    let find = |name: String, variant: &str| {
        measured.get(&(part.clone(), name, variant.to_owned())).map(|figure| figure.value)
    };
    let place = (variant != "other_end").then(|| find(name.clone(), "other_end")).flatten();
    let alone = name.contains("cores=2").then(|| find(name.replace("cores=2", "cores=1"), variant)).flatten();
    let is_linear = name.starts_with("zone_lock_hold_ns") && name.contains("batch=63");
    let few = is_linear.then(|| find(name.replace("batch=63", "batch=7"), variant)).flatten();
    [place, alone, few.map(|ns| ns * 9.0)]
}

/// The page, from the saved files.
pub(crate) fn page(root: &Path) -> Result<String> {
    let [near, far] = [json(root, "here-near")?, json(root, "here-far")?].map(|file| figures(&file));
    let mut page = HEAD.to_owned();
    let measured = match json(root, "here-measured") {
        Ok(file) => figures(&file),
        Err(_) => {
            page += "\nNot measured yet.\n\n| figure | place | near | range | far | range |\n|---|---|--:|---|--:|---|\n";
            for (key, figure) in &near {
                let away = far.get(key).map(cells).unwrap_or_default();
                let _ = writeln!(page, "| {} `{}` | {} | {} | {away} |", key.0, key.1, key.2, cells(figure));
            }
            return Ok(page);
        }
    };
    let transfers: Vec<f64> =
        measured.iter().filter(|(key, _)| key.1 == "transfer_ns").map(|(_, figure)| figure.value).collect();
    let transfer = median(&transfers).ok_or("no transfer was measured")?;
    let is_near = factor(transfer, 25.0) < factor(transfer, 122.0);
    let (name, predicted) = if is_near { ("near", near) } else { ("far", far) };
    let _ = writeln!(
        page,
        "\nA transfer took {transfer:.0} ns (medians of the parts: {}), so `here-{name}.json` counts.",
        transfers.iter().map(|ns| format!("{ns:.0}")).collect::<Vec<_>>().join(", ")
    );
    let mut entries = String::new();
    let (mut inside, mut widths, mut errors) = (0, Vec::new(), Vec::new());
    let mut laws: [Vec<[f64; 2]>; 3] = [const { Vec::new() }; 3];
    for (key, prediction) in &predicted {
        let (Some(truth), Some([low, high])) = (measured.get(key), prediction.range) else { continue };
        let error = factor(prediction.value, truth.value);
        let is_inside = (low..=high).contains(&truth.value);
        inside += usize::from(is_inside);
        widths.push((high / low).sqrt());
        errors.push(error);
        let naive = naive(&measured, key);
        let mut said = Vec::new();
        for ((law, name), all) in naive.into_iter().zip(LAWS).zip(&mut laws) {
            if let Some(value) = law {
                all.push([error, factor(value, truth.value)]);
                said.push(format!("{name} {:.2}", factor(value, truth.value)));
            }
        }
        let _ = writeln!(
            entries,
            "| {} `{}` | {} | {} | {} | {} | {error:.2} | {} |",
            key.0,
            key.1,
            key.2,
            cells(prediction),
            short(truth.value),
            if is_inside { "yes" } else { "no" },
            said.join(", ")
        );
    }
    let middle = |all: &[f64]| median(all).unwrap_or(f64::NAN);
    let _ = writeln!(
        page,
        "\n{inside} of {} figures are inside, {:.0} %; the median width is ×/÷ {:.2}, the median error {:.2}.\n\n\
         | law | figures | its median error | of the prediction there |\n|---|--:|--:|--:|",
        widths.len(),
        100.0 * inside as f64 / widths.len().max(1) as f64,
        middle(&widths),
        middle(&errors)
    );
    for (name, all) in LAWS.into_iter().zip(&laws) {
        let [ours, law] = [0, 1].map(|n| middle(&all.iter().map(|pair| pair[n]).collect::<Vec<_>>()));
        let _ = writeln!(page, "| {name} | {} | {law:.2} | {ours:.2} |", all.len());
    }
    page += &places(&predicted, &measured);
    page += "\n## Entries\n\n| figure | place | predicted | range | measured | inside | error | errors of naive laws |\n|---|---|--:|---|--:|---|--:|---|\n";
    Ok(page + &entries)
}

/// Ratios of the lock's hold beside the order-0 lists to that away from them, on two CPUs.
fn places(predicted: &Figures, measured: &Figures) -> String {
    let mut table = String::from(
        "\n| held beside the lists / away, two CPUs | predicted | measured | off |\n|---|--:|--:|--:|\n",
    );
    for (part, name, variant) in predicted.keys() {
        if !name.starts_with("zone_lock_hold_ns[batch") || !name.contains("cores=2") || variant != "other_end"
        {
            continue;
        }
        let ratio = |all: &Figures| {
            let held = |place: &str| Some(all.get(&(part.clone(), name.clone(), place.to_owned()))?.value);
            Some(2.0 * held("with_order0_lists")? / (held("other_end")? + held("own_line")?))
        };
        if let (Some(ours), Some(truth)) = (ratio(predicted), ratio(measured)) {
            let _ = writeln!(
                table,
                "| `{name}` | {ours:.2} | {truth:.2} | {:+.0} % |",
                100.0 * (ours / truth - 1.0)
            );
        }
    }
    table
}

fn cells(figure: &Figure) -> String {
    let range = figure.range.map(|[low, high]| format!("{} to {}", short(low), short(high)));
    format!("{} | {}", short(figure.value), range.unwrap_or_default())
}
