//! The native half of the Python package `framewright`: an arena to try things on, and the studies that the command
//! comes with, as text.
#![deny(unsafe_code)]

use std::collections::HashMap;

use framewright_host::framewright::units::MAX_ORDER;
use framewright_host::{AllocFailure, Arena as Host, Backing, Config, Migratetype, Order, SharedArena};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(_native, WrongFree, PyException, "A block that is not allocated, or was freed before.");

// Written by `build.rs`.
include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// The studies that the command has, by name, as TOML.
#[pyfunction]
fn studies() -> HashMap<&'static str, &'static str> {
    STUDIES.iter().copied().collect()
}

/// The machines that the command has, by name, as TOML.
#[pyfunction]
fn machines() -> HashMap<&'static str, &'static str> {
    MACHINES.iter().copied().collect()
}

/// An allocator over frames that are described only: to look at what fragments, what merges, what is left.
#[pyclass(frozen, module = "framewright")]
struct Arena {
    arena: SharedArena,
    /// Blocks that Python has: what is freed is checked against these, too.
    live: std::sync::Mutex<HashMap<u64, u8>>,
}

#[pymethods]
impl Arena {
    #[new]
    #[pyo3(signature = (pages, preset = "framewright"))]
    fn new(pages: u64, preset: &str) -> PyResult<Self> {
        let config = match preset {
            "framewright" => Config::framewright(),
            "linux_v3_0" => Config::linux_v3_0(),
            "linux_v5_4" => Config::linux_v5_4(),
            "linux_v6_1" => Config::linux_v6_1(),
            "linux_v6_7" => Config::linux_v6_7(),
            "linux_v6_16" => Config::linux_v6_16(),
            _ => return Err(PyValueError::new_err(format!("{preset}: no such preset"))),
        };
        let builder = Host::builder().pages(pages).backing(Backing::Described).cpus(1).config(config);
        let arena = builder.build_shared().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { arena, live: std::sync::Mutex::default() })
    }

    #[pyo3(signature = (order = 0, migratetype = "movable"))]
    fn alloc(&self, order: i64, migratetype: &str) -> PyResult<u64> {
        let order = u8::try_from(order)
            .ok()
            .and_then(Order::new)
            .ok_or_else(|| PyValueError::new_err(format!("order {order}: 0 to {}", MAX_ORDER.get())))?;
        let migratetype = match migratetype {
            "movable" => Migratetype::Movable,
            "unmovable" => Migratetype::Unmovable,
            "reclaimable" => Migratetype::Reclaimable,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "{migratetype}: movable, unmovable or reclaimable"
                )));
            }
        };
        let pfn = self.arena.alloc(order, migratetype).map_err(|error| match error.why {
            AllocFailure::Forked => PyRuntimeError::new_err(error.to_string()),
            _ => PyMemoryError::new_err(error.to_string()),
        })?;
        self.live().insert(pfn.0, order.get());
        Ok(pfn.0)
    }

    fn free(&self, pfn: u64) -> PyResult<()> {
        let order = self.live().remove(&pfn).and_then(Order::new);
        let order =
            order.ok_or_else(|| WrongFree::new_err(format!("no allocated block starts at frame {pfn}")))?;
        free(&self.arena, pfn, order)
    }

    /// Free blocks on the buddy lists, by order.
    fn free_blocks(&self) -> Vec<u64> {
        self.arena.detach();
        let allocator = self.arena.arena().allocator();
        let zones = allocator.zones().iter().map(|zone| allocator.zone_snapshot(zone).nr_free);
        zones.fold(vec![0; 11], |sum, zone| sum.iter().zip(zone).map(|(a, b)| a + b).collect())
    }

    /// The same as `/proc/buddyinfo` prints it.
    fn buddyinfo(&self) -> String {
        self.arena.arena().allocator().buddyinfo().to_string()
    }

    /// Base pages that are free, on lists or not.
    #[getter]
    fn free_pages(&self) -> u64 {
        let allocator = self.arena.arena().allocator();
        allocator.free_pages() + allocator.pcp_pages()
    }
}

impl Arena {
    fn live(&self) -> std::sync::MutexGuard<'_, HashMap<u64, u8>> {
        self.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[expect(unsafe_code, reason = "a frame is freed by its number")]
fn free(arena: &SharedArena, pfn: u64, order: Order) -> PyResult<()> {
    // SAFETY: the arena describes frames only: no memory is at stake. The block was taken off the table of live ones.
    unsafe { arena.free(framewright_host::Pfn(pfn), order) }
        .map_err(|error| WrongFree::new_err(error.to_string()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Arena>()?;
    module.add("WrongFree", module.py().get_type::<WrongFree>())?;
    module.add_function(wrap_pyfunction!(machines, module)?)?;
    module.add_function(wrap_pyfunction!(studies, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
