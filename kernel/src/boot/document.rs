//! What boot did, as a document in the project's result format: `framewright compare` reads it.

use framewright::CpuId;

use super::late::Late;
use super::phases::Phases;
use crate::kernel::Kernel;
use crate::serial;

/// Prints a piece of the document.
macro_rules! put {
    ($($text:tt)*) => { serial::raw(format_args!($($text)*)) };
}

/// Prints the document, on a line of its own that begins with a brace.
pub(crate) fn print(kernel: &Kernel, phases: &Phases, late: &Late) {
    let cpus = kernel.pages.cpus();
    put!("{{\"framewright\":\"{}\",\"command\":\"boot\",", env!("CARGO_PKG_VERSION"));
    put!("\"host\":{{\"cpu\":\"emulated\",\"cpus\":{cpus},\"kernel\":\"framewright-kernel\"}},");
    put!(
        "\"results\":[{{\"study\":\"boot\",\"part\":\"metal\",\"kind\":\"measured\",\"machine\":\"emulated\","
    );
    put!("\"seed\":0,\"baseline\":\"framewright\",\"variants\":[\"framewright\"],\"metrics\":[");
    for (name, ticks) in phases.steps() {
        metric(format_args!("phase_ticks[phase={}]", Snake(name)), "ticks", "lower", *ticks);
        put!(",");
    }
    metric(format_args!("deferred_pages"), "pages", "none", late.pages);
    put!(",");
    metric(format_args!("deferred_ticks"), "ticks", "lower", late.ticks);
    put!(",");
    metric(format_args!("growths"), "1", "none", late.growth.times);
    put!(",");
    metric(format_args!("grown_pages"), "pages", "none", late.growth.pages);
    for zone in kernel.pages.zones() {
        let place = format_args!("zone={},node={}", zone.spec().kind, zone.spec().node.0);
        let sizing = kernel.pages.pcp(zone.id(), CpuId(0)).sizing();
        for (name, unit, value) in [
            ("present_pages", "pages", zone.present_pages()),
            ("managed_pages", "pages", zone.managed_pages()),
            ("pcp_batch", "pages", u64::from(sizing.batch)),
            ("pcp_high_min", "pages", u64::from(sizing.high_min)),
            ("pcp_high_max", "pages", u64::from(sizing.high_max)),
        ] {
            put!(",");
            metric(format_args!("{name}[{place}]"), unit, "none", value);
        }
    }
    put!("]}}]}}\n");
}

fn metric(name: core::fmt::Arguments<'_>, unit: &str, better: &str, value: u64) {
    put!("{{\"name\":\"{name}\",\"unit\":\"{unit}\",\"better\":\"{better}\",");
    put!("\"samples\":{{\"framewright\":[{value}]}}}}");
}

/// A name with underscores for its spaces and hyphens.
struct Snake<'a>(&'a str);

impl core::fmt::Display for Snake<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for c in self.0.chars() {
            let c = if matches!(c, ' ' | '-') { '_' } else { c.to_ascii_lowercase() };
            core::fmt::Write::write_char(f, c)?;
        }
        Ok(())
    }
}
