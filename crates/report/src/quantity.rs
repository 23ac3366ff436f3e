//! Quantities: what results report, each with its unit, direction and meaning, written once.
//!
//! Code that measures names a figure ([`Part::figure`]); the table of its workload gives the rest.

use crate::result::{Better, Metric, Part};

/// A quantity that results report.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// Its name, without parameters.
    pub name: &'static str,
    /// Its unit; `1` for counts and ratios.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// Its meaning, in a sentence.
    pub about: &'static str,
    /// How it is reported.
    pub role: Role,
}

/// How a quantity is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// If the part names it, or names nothing.
    Main,
    /// Always: it explains the others.
    Cause,
    /// As `Main`; the metrics of this name are the parts of a whole, and may be added up.
    Share,
}

impl Quantity {
    /// Gives a metric of this quantity its unit, direction and title.
    pub fn describe(&self, metric: &mut Metric) {
        self.unit.clone_into(&mut metric.unit);
        metric.better = self.better;
        self.about.trim_end_matches('.').clone_into(&mut metric.title);
        metric.is_cause = self.role == Role::Cause;
        metric.is_share = self.role == Role::Share;
    }
}

/// Gives every figure of a part that a table knows its unit and direction.
pub fn describe(part: &mut Part, quantities: &[Quantity]) {
    for metric in &mut part.metrics {
        if let Some(quantity) = quantities.iter().find(|quantity| quantity.name == metric.family()) {
            quantity.describe(metric);
        }
    }
}

/// Short titles, where a whole sentence is too long for a row.
const TITLES: &[(&str, &str)] = &[
    ("elapsed_ms", "elapsed time"),
    ("cpu_time_ms", "CPU time"),
    ("user_ms", "CPU time outside the kernel"),
    ("system_ms", "CPU time in the kernel"),
    ("page_faults", "page faults"),
    ("major_faults", "page faults that read from disk"),
    ("memory_wait_ms", "some task waited for memory"),
    ("huge_page_faults", "faults that got a huge page"),
    ("huge_page_fallbacks", "faults that got a small page instead"),
    ("allocation_stalls", "allocations that reclaimed"),
    ("compaction_stalls", "allocations that compacted"),
    ("pages_moved", "pages moved"),
    ("pages_allocated", "pages allocated by the machine"),
    ("in_allocator_percent", "time in the allocator"),
    ("cpu_ns_per_operation", "CPU time of an operation"),
    ("ns_per_operation", "time of an operation"),
    ("alloc_ns", "allocation"),
    ("free_ns", "free"),
    ("alloc_hold_us", "hold of an allocation"),
    ("zone_lock_acquisitions_per_page", "zone-lock acquisitions per page"),
    ("zone_lock_waits", "waits for the zone lock"),
    ("zone_lock_wait_ns", "wait for the zone lock"),
    ("zone_lock_hold_ns", "hold of the zone lock"),
    ("refills", "refills of per-CPU lists"),
    ("drains", "drains of per-CPU lists"),
    ("pages_moved_per_page", "pages refilled and drained per page"),
    ("huge_available_percent", "free memory in huge pages"),
    ("compaction_moved_per_allocated", "pages moved per page allocated"),
    ("syst_seconds", "system time"),
    ("elsp_seconds", "elapsed time"),
    ("user_seconds", "user time"),
    ("duration_elapsed_seconds", "elapsed time"),
    ("step_seconds", "time of a step"),
    ("files_per_second", "files a second"),
    ("faults_per_second", "page faults a second"),
    ("direct_pages_scanned", "pages scanned by allocations"),
    ("deferred_init_ms", "deferred initialisation"),
    ("init_of_memset_percent", "initialisation beside memset"),
    ("ready_ms", "time until memory is ready"),
];

impl Metric {
    /// Title in words, with its parameters but without its unit. Where no table has words, those of its name.
    #[must_use]
    pub fn words(&self) -> String {
        self.words_but("")
    }

    /// In words, without one of its parameters.
    pub fn words_but(&self, without: &str) -> String {
        let parameters = self.parameters().filter(|(name, _)| *name != without);
        let parameters = parameters.map(|(name, value)| match (name, value.parse::<f64>()) {
            ("quantile", Ok(share)) => format!(", {}th percentile", (share * 1e6).round() / 1e4),
            ("repeat", Ok(run)) => format!(", run {run}"),
            (_, Ok(_)) => format!(", {name} {value}"),
            ("machine" | "kind" | "step" | "line" | "at", _) => format!(", {value}"),
            _ => format!(", {name} {value}"),
        });
        self.family_words() + &parameters.collect::<String>()
    }

    /// In words, without parameters.
    pub fn family_words(&self) -> String {
        let family = self.family();
        let short = TITLES.iter().find(|(name, _)| *name == family).map(|(_, title)| (*title).to_owned());
        short.unwrap_or_else(|| match &*self.title {
            "" => {
                let unit = if self.unit == "%" { "percent" } else { &self.unit };
                let bare = family.strip_suffix(unit).map_or(family, |bare| bare.trim_end_matches('_'));
                bare.replace('_', " ")
            }
            title => title.to_owned(),
        })
    }

    /// Its unit, unless that is 1, and its direction, unless it has none.
    pub fn unit_and_direction(&self) -> Vec<&str> {
        let direction = match self.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
            Better::None => "",
        };
        [&*self.unit, direction].into_iter().filter(|text| !text.is_empty() && *text != "1").collect()
    }

    /// In words, with its unit.
    pub fn words_and_unit(&self) -> String {
        let unit = if self.unit == "1" { String::new() } else { format!(", {}", self.unit) };
        self.words() + &unit
    }
}

/// A table of quantities: name, unit, which way is better, role, meaning.
#[macro_export]
macro_rules! quantities {
    ($($name:ident $unit:literal $better:ident $role:ident $about:literal)*) => {
        [$($crate::quantity::Quantity {
            name: stringify!($name),
            unit: $unit,
            better: $crate::result::Better::$better,
            role: $crate::quantity::Role::$role,
            about: $about,
        }),*]
    };
}

pub use quantities;
