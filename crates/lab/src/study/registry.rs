//! The workloads: those of this crate, each declared in the file that runs it, and those that a program of its own
//! adds. A new one of this crate is such a file and its line in the table.

use std::sync::{PoisonError, RwLock};

use framewright_report::error::{Error, Result, did_you_mean_or};
use framewright_report::result::{Kind, Part as ResultPart};

use super::declare::BuiltIn;
use super::workload::{Declaration, Workload};
use super::{Part, Plan, Run};
use super::{
    bulk, first_touch, hold, initialise, kernbench, library, own_bench, page_fault, parallel_init, pressure,
    ready, replay, scaling, structure, validation,
};

/// The workloads of this crate, in the order in which they are listed.
static BUILT_IN: &[BuiltIn] = &[
    structure::WORKLOAD,
    bulk::WORKLOAD,
    bulk::BAD_BLOCK,
    replay::WORKLOAD,
    initialise::WORKLOAD,
    ready::WORKLOAD,
    pressure::WORKLOAD,
    parallel_init::WORKLOAD,
    first_touch::WORKLOAD,
    first_touch::WARM_UP,
    kernbench::WORKLOAD,
    page_fault::WORKLOAD,
    hold::WORKLOAD,
    validation::CALIBRATION,
    validation::CURVES,
    scaling::WORKLOAD,
    library::WORKLOAD,
    own_bench::WORKLOAD,
];

/// What [`add`] added.
static ADDED: RwLock<Vec<&'static dyn Workload>> = RwLock::new(Vec::new());

/// Adds a workload: from now on, parts of studies can name it. [`cli::main`](crate::cli::main) does it for a program of
/// one's own.
///
/// # Panics
/// There is one of its name.
pub fn add(workload: &'static dyn Workload) {
    let name = workload.declaration().name;
    assert!(all().all(|known| known.declaration().name != name), "there is a workload `{name}` already");
    ADDED.write().unwrap_or_else(PoisonError::into_inner).push(workload);
}

/// All workloads: those of this crate, then those that were added, in their order.
pub fn all() -> impl Iterator<Item = &'static dyn Workload> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).clone();
    BUILT_IN.iter().map(|workload| workload as &dyn Workload).chain(added)
}

/// The workload of a name.
///
/// # Errors
/// There is none; the message suggests one or lists all.
pub fn find(name: &str) -> core::result::Result<&'static dyn Workload, String> {
    all().find(|workload| workload.declaration().name == name).ok_or_else(|| {
        let names = all().map(|workload| workload.declaration().name);
        let list = did_you_mean_or(name, names, "; there are");
        format!("no workload `{name}`{list}")
    })
}

impl Workload for BuiltIn {
    fn declaration(&self) -> &'static Declaration {
        self.declaration
    }

    fn run(&self, kind: Kind, plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
        let runner = self.runners.iter().find(|(known, _)| *known == kind).map(|(_, runner)| runner);
        let name = self.declaration.name;
        runner.ok_or_else(|| Error::failed(format_args!("workload {name} cannot be {kind}")))?(
            plan, part, run,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declaration_is_whole() {
        for workload in BUILT_IN {
            let declared = workload.declaration;
            let runs: Vec<Kind> = workload.runners.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(runs, declared.kinds, "{}", declared.name);
            for quantity in declared.metrics {
                assert!(
                    quantity.about.ends_with('.') && !quantity.unit.is_empty(),
                    "{} {}",
                    declared.name,
                    quantity.name
                );
                assert_eq!(
                    declared.metrics.iter().filter(|known| known.name == quantity.name).count(),
                    1,
                    "{}",
                    quantity.name
                );
            }
            for key in declared.keys {
                assert!(key.about.ends_with('.'), "{} {}", declared.name, key.name);
            }
            assert!(
                declared.options.iter().all(|(_, kind)| declared.kinds.contains(kind)),
                "{}",
                declared.name
            );
            assert!(core::ptr::eq(
                find(declared.name).unwrap_or_else(|what| panic!("{what}")).declaration(),
                declared
            ));
        }
    }

    #[test]
    fn a_name_that_is_none_is_suggested_or_listed() {
        assert_eq!(find("bulks").err().expect("none"), "no workload `bulks`; did you mean `bulk`?");
        assert!(find("zebra").err().expect("none").contains("there are lists, bulk, bad_block"));
        let bulk = find("bulk").unwrap_or_else(|what| panic!("{what}")).declaration();
        assert_eq!(
            bulk.quantity("alloc_nanos").expect_err("none"),
            "workload bulk has no metric `alloc_nanos`; did you mean `alloc_ns`?"
        );
    }
}
