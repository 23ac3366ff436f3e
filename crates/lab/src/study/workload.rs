//! What a workload is: its name, the keys that a part may give it, the metrics that it gives back, and how it runs.
//!
//! This declaration is the only one: the checks of a study's file, the units of its results and the tables of the guide
//! are all made from it.

use framewright_report::error::{Result, did_you_mean_or};
use framewright_report::result::{Kind, Part as ResultPart};

use crate::machine::Machine;
pub use crate::settings::Takes;
use crate::settings::{Settings, Value};
use crate::study::{Part, Plan, Run};
pub use framewright_report::quantity::{Quantity, Role};

/// A workload that parts of studies can name.
pub trait Workload: Sync {
    /// What it is.
    fn declaration(&self) -> &'static Declaration;

    /// Runs a part in one of the ways that the declaration lists.
    ///
    /// # Errors
    /// What it ran into.
    fn run(&self, kind: Kind, plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart>;
}

/// Declaration of a workload.
#[derive(Debug)]
pub struct Declaration {
    /// The name in `workload = { name = "…" }`.
    pub name: &'static str,
    /// Description, in a sentence.
    pub about: &'static str,
    /// The ways in which it can run.
    pub kinds: &'static [Kind],
    /// Keys that a part may set.
    pub keys: &'static [Key],
    /// Its metrics.
    pub metrics: &'static [Quantity],
    /// The options of `study` that change how it runs, with the kind for which they do.
    pub options: &'static [(Opt, Kind)],
    /// Tables that a machine's description needs for it to be simulated there.
    pub needs: &'static [Need],
    /// Whether it needs published figures of its study's own machine, which say nothing of another.
    pub is_bound: bool,
    /// Values that its parts may give a setting in `vary`: 0 if it does not look at [`Part::combinations`], 1 if it
    /// looks at the first.
    ///
    /// [`Part::combinations`]: super::Part::combinations
    pub varies: usize,
}

/// A key that a part may set.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub takes: Takes,
    /// Its default; none if it must be set.
    pub default: Option<&'static str>,
    /// Its meaning, in a sentence.
    pub about: &'static str,
}

/// Facts of a machine that a simulation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Its caches.
    Model,
    /// The costs of its kernel.
    Kernel,
    /// Memory that is initialised late.
    Late,
}

impl Need {
    /// The part of a machine's description that is missing for it.
    pub fn missing(self, machine: &Machine) -> Option<&'static str> {
        match self {
            Self::Model if machine.cache_kib.is_none() => Some("cache_kib"),
            Self::Kernel if machine.kernel_ns.is_none() => Some("kernel_ns"),
            Self::Late if machine.zones.iter().all(|zone| zone.early_managed_pages == zone.managed_pages) => {
                Some("zone with fewer early_managed_pages than managed_pages")
            }
            _ => None,
        }
    }
}

/// An option of `study` that not every part heeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opt {
    /// `--machine`
    Machine,
    /// `--samples`
    Samples,
    /// `--quick`
    Quick,
    /// `--scale`
    Scale,
    /// `--memory`
    Memory,
    /// `--trace`
    Trace,
}

impl Opt {
    /// As it is written.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Machine => "--machine",
            Self::Samples => "--samples",
            Self::Quick => "--quick",
            Self::Scale => "--scale",
            Self::Memory => "--memory",
            Self::Trace => "--trace",
        }
    }
}

impl Declaration {
    /// A declaration of nothing, for what one leaves out.
    pub const NONE: Self = Self {
        name: "",
        about: "",
        kinds: &[],
        keys: &[],
        metrics: &[],
        options: &[],
        needs: &[],
        is_bound: false,
        varies: 0,
    };

    /// Whether an option changes how it runs.
    pub fn heeds(&self, option: Opt, kind: Kind) -> bool {
        self.options.contains(&(option, kind))
    }

    /// The quantity of a metric's name, whose parameters may follow in brackets.
    ///
    /// # Errors
    /// There is none; the message suggests one or lists all.
    pub fn quantity(&self, name: &str) -> core::result::Result<&'static Quantity, String> {
        let family = name.split('[').next().unwrap_or_default();
        self.metrics.iter().find(|quantity| quantity.name == family).ok_or_else(|| {
            let names = self.metrics.iter().map(|quantity| quantity.name);
            let list = did_you_mean_or(family, names, "; it has");
            format!("workload {} has no metric `{family}`{list}", self.name)
        })
    }

    /// Checks one key of a part's workload.
    ///
    /// # Errors
    /// It is unknown, or its value is not what it takes.
    pub fn check_key(&self, name: &str, value: &Value) -> core::result::Result<(), String> {
        if name == "name" {
            return Ok(());
        }
        let key = self.keys.iter().find(|key| key.name == name).ok_or_else(|| {
            let list = if self.keys.is_empty() {
                "; it has none".to_owned()
            } else {
                did_you_mean_or(name, self.keys.iter().map(|key| key.name), "; it has")
            };
            format!("workload {} has no key `{name}`{list}", self.name)
        })?;
        if key.takes.accepts(value) { Ok(()) } else { Err(format!("expected {}", key.takes)) }
    }

    /// The first key that must be set and is not.
    pub fn missing(&self, set: &Settings) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.default.is_none() && set.get(key.name).is_none())
    }
}
