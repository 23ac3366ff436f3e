//! The native half of the Python package `framewright`: an arena with its memory, and the studies that the command
//! comes with, as text.
#![deny(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use framewright_host::framewright::units::MAX_ORDER;
use framewright_host::{AllocError, AllocFailure, AttachError, Config, Migratetype, Order};
use framewright_host::{Arena as Host, SharedArena, SharedBlock};
use pyo3::create_exception;
use pyo3::exceptions::{
    PyBufferError, PyException, PyMemoryError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

create_exception!(framewright, WrongFree, PyException, "A block that is not allocated, or was freed before.");

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

/// An arena: memory that the allocator divides into blocks of 1 to 1,024 pages of 4 KiB. The system commits a page when
/// it is first touched, so that an arena of many gigabytes costs nothing where only numbers of frames are wanted.
///
/// As a context manager it is closed at the end: memory goes back to the system when the last `Block` and view of it
/// are gone.
#[pyclass(frozen, module = "framewright")]
struct Arena(Mutex<Option<Opened>>);

struct Opened {
    arena: SharedArena,
    /// Frames that `alloc` has returned, with their orders: a free is checked against these, too.
    live: HashMap<u64, Order>,
}

/// Refuses a call in a child of the process that made the arena.
fn check_process(arena: &SharedArena) -> PyResult<()> {
    if arena.is_forked() { Err(PyRuntimeError::new_err(AttachError::Forked.to_string())) } else { Ok(()) }
}

/// The error of an argument that has another type than `wanted`.
fn wrong_type(name: &str, wanted: &str, given: &Bound<'_, PyAny>) -> PyErr {
    given
        .get_type()
        .name()
        .map_or_else(|error| error, |found| PyTypeError::new_err(format!("{name}: {wanted}, not {found}")))
}

/// The argument `name`, an integer of Python's, which has any size; `None` if it is no number of frames.
fn number(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    match given.extract::<u64>() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => Ok(None),
        Err(error) if error.is_instance_of::<PyTypeError>(given.py()) => {
            Err(wrong_type(name, "an integer", given))
        }
        Err(error) => Err(error),
    }
}

/// The argument `name`, a name.
fn text<'a>(name: &str, given: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    given.extract().map_err(|_| wrong_type(name, "a name", given))
}

/// The presets, by name.
const PRESETS: [(&str, Config); 6] = [
    ("framewright", Config::framewright()),
    ("linux_v3_0", Config::linux_v3_0()),
    ("linux_v5_4", Config::linux_v5_4()),
    ("linux_v6_1", Config::linux_v6_1()),
    ("linux_v6_7", Config::linux_v6_7()),
    ("linux_v6_16", Config::linux_v6_16()),
];

fn order_of(order: &Bound<'_, PyAny>) -> PyResult<Order> {
    let known = number("order", order)?.and_then(|order| u8::try_from(order).ok()).and_then(Order::new);
    known.ok_or_else(|| PyValueError::new_err(format!("order {order}: 0 to {}", MAX_ORDER.get())))
}

fn preset_of(preset: &Bound<'_, PyAny>) -> PyResult<Config> {
    let preset = text("preset", preset)?;
    let found = PRESETS.iter().find(|(name, _)| *name == preset);
    found.map(|(_, config)| *config).ok_or_else(|| {
        let known = PRESETS.map(|(name, _)| name).join(", ");
        PyValueError::new_err(format!("{preset}: no such preset; there are {known}"))
    })
}

fn migratetype_of(name: &Bound<'_, PyAny>) -> PyResult<Migratetype> {
    match text("migratetype", name)? {
        "movable" => Ok(Migratetype::Movable),
        "unmovable" => Ok(Migratetype::Unmovable),
        "reclaimable" => Ok(Migratetype::Reclaimable),
        name => Err(PyValueError::new_err(format!("{name}: movable, unmovable or reclaimable"))),
    }
}

fn failed(error: AllocError) -> PyErr {
    match error.why {
        AllocFailure::Forked => PyRuntimeError::new_err(error.to_string()),
        _ => PyMemoryError::new_err(error.to_string()),
    }
}

fn block_is_freed() -> PyErr {
    PyValueError::new_err("the block is freed")
}

impl Arena {
    fn state(&self) -> MutexGuard<'_, Option<Opened>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on the arena, if it is open and of this process.
    fn with<R>(&self, f: impl FnOnce(&mut Opened) -> PyResult<R>) -> PyResult<R> {
        let mut state = self.state();
        let opened = state.as_mut().ok_or_else(|| PyValueError::new_err("the arena is closed"))?;
        check_process(&opened.arena)?;
        f(opened)
    }
}

#[pymethods]
impl Arena {
    #[new]
    #[pyo3(signature = (pages, preset = Config::framewright()))]
    #[pyo3(text_signature = "(pages, preset='framewright')")]
    fn new(pages: &Bound<'_, PyAny>, #[pyo3(from_py_with = preset_of)] preset: Config) -> PyResult<Self> {
        let pages = number("pages", pages)?.filter(|&pages| pages > 0).ok_or_else(|| {
            PyValueError::new_err(format!("{pages} pages: an arena has at least one and fewer than 2^64"))
        })?;
        let made = Host::builder().pages(pages).cpus(1).config(preset).build_shared();
        let arena = made.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(Mutex::new(Some(Opened { arena, live: HashMap::new() }))))
    }

    /// Allocates a block and returns its first frame's number; `free` takes it back.
    #[pyo3(signature = (order = Order::ZERO, migratetype = Migratetype::Movable))]
    #[pyo3(text_signature = "($self, order=0, migratetype='movable')")]
    fn alloc(
        &self,
        #[pyo3(from_py_with = order_of)] order: Order,
        #[pyo3(from_py_with = migratetype_of)] migratetype: Migratetype,
    ) -> PyResult<u64> {
        self.with(|opened| {
            let pfn = opened.arena.alloc(order, migratetype).map_err(failed)?;
            opened.live.insert(pfn.0, order);
            Ok(pfn.0)
        })
    }

    /// Frees what `alloc` has returned.
    fn free(&self, pfn: &Bound<'_, PyAny>) -> PyResult<()> {
        let frame = number("pfn", pfn)?;
        let freed = self.with(|opened| {
            let block = frame.and_then(|frame| opened.live.remove_entry(&frame));
            block.map(|(frame, order)| free(&opened.arena, frame, order)).transpose()
        })?;
        // `pfn` is printed by code of its own, which may use the arena or let threads run that do.
        freed.ok_or_else(|| WrongFree::new_err(format!("no allocated block starts at frame {pfn}")))
    }

    /// Allocates a block with its memory, which holds zeroes.
    #[pyo3(signature = (order = Order::ZERO, migratetype = Migratetype::Movable))]
    #[pyo3(text_signature = "($self, order=0, migratetype='movable')")]
    fn block(
        &self,
        #[pyo3(from_py_with = order_of)] order: Order,
        #[pyo3(from_py_with = migratetype_of)] migratetype: Migratetype,
    ) -> PyResult<Block> {
        self.with(|opened| {
            let block = opened.arena.alloc_block_zeroed(order, migratetype).map_err(failed)?;
            let (pfn, bytes) = (block.pfn().0, block.len());
            let held = Held { block: Some(block), views: 0, arena: opened.arena.clone() };
            Ok(Block { pfn, order: order.get(), bytes, held: Mutex::new(held) })
        })
    }

    /// Closes the arena: every later call raises `ValueError`.
    fn close(&self) {
        *self.state() = None;
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        slf.with(|_| Ok(()))?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        match &*self.state() {
            Some(Opened { arena, .. }) => {
                let counts = arena.counts();
                let free = counts.free + counts.on_lists;
                format!("<framewright.Arena: {} pages, {free} free>", counts.managed)
            }
            None => "<framewright.Arena: closed>".into(),
        }
    }

    /// Free blocks of the zones, by order.
    fn free_blocks(&self) -> PyResult<Vec<u64>> {
        self.with(|opened| {
            opened.arena.detach();
            let allocator = opened.arena.allocator();
            let zones = allocator.zones().iter().map(|zone| allocator.zone_snapshot(zone).nr_free);
            Ok(zones.fold(vec![0; 11], |sum, zone| sum.iter().zip(zone).map(|(a, b)| a + b).collect()))
        })
    }

    /// Free blocks as `/proc/buddyinfo` prints them.
    fn buddyinfo(&self) -> PyResult<String> {
        self.with(|opened| {
            opened.arena.detach();
            Ok(opened.arena.allocator().buddyinfo().to_string())
        })
    }

    /// Base pages that are free, on lists or not.
    #[getter]
    fn free_pages(&self) -> PyResult<u64> {
        self.with(|opened| {
            let counts = opened.arena.counts();
            Ok(counts.free + counts.on_lists)
        })
    }
}

/// A block and its memory: a writable buffer, for `memoryview`, `numpy.frombuffer` and whatever reads or writes
/// buffers. Freed by `free`, at the end of a `with`, or with its last reference; not while a view of it is in use.
///
/// In a forked child, calls raise `RuntimeError`; a view that was made before the fork reads as zeroes there.
#[pyclass(frozen, module = "framewright")]
struct Block {
    #[pyo3(get)]
    pfn: u64,
    #[pyo3(get)]
    order: u8,
    bytes: usize,
    held: Mutex<Held>,
}

struct Held {
    block: Option<SharedBlock>,
    /// Views of the memory that are in use.
    views: usize,
    arena: SharedArena,
}

impl Block {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
#[expect(unsafe_code, reason = "a buffer is filled in by address")]
impl Block {
    /// Frees the block. Freeing it again is allowed, and does nothing.
    fn free(&self) -> PyResult<()> {
        let mut held = self.held();
        check_process(&held.arena)?;
        if held.views > 0 {
            return Err(PyBufferError::new_err(format!(
                "frame {}: {} views of the block are in use; release them first",
                self.pfn, held.views
            )));
        }
        held.block = None;
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        check_process(&slf.held().arena)?;
        let is_freed = slf.held().block.is_none();
        if is_freed { Err(block_is_freed()) } else { Ok(slf) }
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.free()
    }

    fn __repr__(&self) -> String {
        let state = if self.held().block.is_some() { "" } else { ", freed" };
        format!("<framewright.Block: frame {}, {} bytes{state}>", self.pfn, self.bytes)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut held = slf.get().held();
        check_process(&held.arena)?;
        let block = held.block.as_ref().ok_or_else(block_is_freed)?;
        let memory = block.as_ptr().ok_or_else(|| PyValueError::new_err("the arena has no memory"))?;
        let (start, bytes) = (memory.as_ptr().cast(), memory.len() as ffi::Py_ssize_t);
        // SAFETY: `view` is Python's to be filled in. The memory stays while `views` counts this one; who writes to it
        // when is for Python's threads to agree on, as for every writable buffer.
        if unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes, 0, flags) } != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        held.views += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.held().views -= 1;
    }
}

#[expect(unsafe_code, reason = "a frame is freed by its number")]
fn free(arena: &SharedArena, pfn: u64, order: Order) -> PyResult<()> {
    // SAFETY: the block was taken off the table of live ones: no `Block` owns it, and Python has no view of it.
    unsafe { arena.free(framewright_host::Pfn(pfn), order) }
        .map_err(|error| WrongFree::new_err(error.to_string()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Arena>()?;
    module.add_class::<Block>()?;
    module.add("WrongFree", module.py().get_type::<WrongFree>())?;
    module.add_function(wrap_pyfunction!(machines, module)?)?;
    module.add_function(wrap_pyfunction!(studies, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
