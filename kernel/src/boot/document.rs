//! The results of boot, as a document in the project's result format, with the names that `framewright boot` uses:
//! `framewright compare` reads it.

use core::fmt::{Arguments, Display};

use super::late::Late;
use super::phases::{Ms, Phases};
use super::sizes::Zones;
use crate::kernel::Kernel;
use crate::machine::MAX_NODES;
use crate::serial;

/// Prints a piece of the document.
macro_rules! put {
    ($($text:tt)*) => { serial::raw(format_args!($($text)*)) };
}

/// Prints the document, on a line of its own that begins with a brace.
pub(crate) fn print(kernel: &Kernel, phases: &Phases, late: &Late) {
    put!("{{\"framewright\":\"{}\",\"command\":\"boot\",", env!("CARGO_PKG_VERSION"));
    put!("\"host\":{{\"cpu\":\"emulated\",\"cpus\":{},", kernel.pages.cpus());
    put!("\"kernel\":\"framewright-kernel\"}},\"results\":[");
    let after = Zones::read(kernel);
    zones(kernel, &late.before, &after);
    put!(",");
    lists(kernel, &late.before, &after);
    put!(",");
    times(kernel, phases, late);
    put!("]}}\n");
}

/// Begins a part; metrics follow.
fn part(name: &str, kind: &str, variants: Arguments<'_>, baseline: &str) {
    put!("{{\"study\":\"boot\",\"part\":\"{name}\",\"kind\":\"{kind}\",\"machine\":\"emulated\",\"seed\":0,");
    put!("\"baseline\":\"{baseline}\",\"variants\":[{variants}],\"metrics\":[");
}

/// A metric of one or two variants, a comma before it unless it is the first.
fn metric(first: &mut bool, name: Arguments<'_>, unit: &str, better: &str, samples: &[(&str, &dyn Display)]) {
    let comma = if core::mem::take(first) { "" } else { "," };
    put!("{comma}{{\"name\":\"{name}\",\"unit\":\"{unit}\",\"better\":\"{better}\",\"samples\":{{");
    for (n, (variant, value)) in samples.iter().enumerate() {
        put!("{}\"{variant}\":[{value}]", if n == 0 { "" } else { "," });
    }
    put!("}}}}");
}

fn zones(kernel: &Kernel, before: &Zones, after: &Zones) {
    part("zones", "measured", format_args!("\"before\",\"after\""), "before");
    let mut first = true;
    for (n, zone) in kernel.pages.zones().iter().enumerate() {
        let spec = zone.spec();
        for (name, before, after) in [
            ("spanned_pages", spec.pages, spec.pages),
            ("present_pages", zone.present_pages(), zone.present_pages()),
            ("managed_pages", before.0[n].0, after.0[n].0),
        ] {
            let name = format_args!("{name}[zone={n},node={},type={:?}]", spec.node.0, spec.kind);
            metric(&mut first, name, "pages", "none", &[("before", &before), ("after", &after)]);
        }
    }
    put!("]}}");
}

fn lists(kernel: &Kernel, before: &Zones, after: &Zones) {
    part("lists", "measured", format_args!("\"before\",\"after\""), "before");
    let mut first = true;
    let all = || before.0.iter().chain(after.0.iter()).map(|zone| (zone.1, zone.2));
    for (n, (batch, high)) in all().enumerate() {
        if all().take(n).any(|known| known == (batch, high)) {
            continue;
        }
        let counts = [before, after].map(|zones| zones.lists(kernel, batch, high));
        let name = format_args!("lists[batch={batch},high={high}]");
        metric(&mut first, name, "1", "none", &[("before", &counts[0]), ("after", &counts[1])]);
    }
    put!("]}}");
}

fn times(kernel: &Kernel, phases: &Phases, late: &Late) {
    part("time", "measured", format_args!("\"boot\""), "boot");
    let mut first = true;
    for (phase, ticks) in phases.steps() {
        metric(&mut first, format_args!("phase_ms[phase={phase}]"), "ms", "lower", &[("boot", &Ms(*ticks))]);
        metric(&mut first, format_args!("phase_ticks[phase={phase}]"), "ticks", "lower", &[("boot", ticks)]);
    }
    for node in 0..kernel.machine.nodes().min(MAX_NODES) {
        let (pages, ticks) = late.nodes[node];
        let name = format_args!("deferred_init_ms[node={node}]");
        metric(&mut first, name, "ms", "lower", &[("boot", &Ms(ticks))]);
        let name = format_args!("deferred_init_pages[node={node}]");
        metric(&mut first, name, "pages", "none", &[("boot", &pages)]);
    }
    metric(&mut first, format_args!("growths"), "1", "none", &[("boot", &late.growth.times)]);
    metric(&mut first, format_args!("grown_pages"), "pages", "none", &[("boot", &late.growth.pages)]);
    put!("]}}");
}
