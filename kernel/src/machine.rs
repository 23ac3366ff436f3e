//! The firmware's description of the machine: memory, nodes, CPUs. Copied once, in fixed room; read by all.
#![expect(unsafe_code, reason = "firmware tables lie at physical addresses")]

use core::cell::UnsafeCell;
use core::{ops, slice, str};

use framewright::NodeId;
use framewright::boot::map::Kind;
use framewright::boot::srat::{self, Affinity};
use framewright_kernel::acpi::{self, Root};
use framewright_kernel::pvh::{self, Range, StartInfo};

use crate::arch;
use crate::log;
use crate::paging::{DIRECT_END, direct};
use crate::percpu::{self, MAX_CPUS};

/// Most nodes. More are refused: a machine half understood is worse than none.
pub(crate) const MAX_NODES: usize = 16;
const MAX_RANGES: usize = 128;
const MAX_COMMAND_LINE: usize = 1024;

/// A list in fixed room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> List<T, N> {
    /// No items; `filler` fills the unused room.
    pub(crate) const fn new(filler: T) -> Self {
        Self { items: [filler; N], len: 0 }
    }

    /// Adds an item.
    ///
    /// # Panics
    /// There are `N` already.
    pub(crate) fn push(&mut self, item: T) {
        assert!(self.len < N, "more than {N} entries");
        self.items[self.len] = item;
        self.len += 1;
    }
}

impl<T, const N: usize> ops::Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl<T, const N: usize> ops::DerefMut for List<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}

/// A CPU that can be started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuInfo {
    /// Its number on the interrupt bus.
    pub(crate) apic: u32,
    pub(crate) node: NodeId,
}

/// Memory near a node, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeMemory {
    /// First byte.
    pub(crate) start: u64,
    /// The first byte after it.
    pub(crate) end: u64,
    pub(crate) node: NodeId,
    /// Whether it may be taken away at run time.
    pub(crate) hotplug: bool,
}

/// The machine. CPUs and nodes are numbered from 0, the boot CPU first.
pub(crate) struct Machine {
    /// The firmware's memory map, as it came.
    pub(crate) ranges: List<Range, MAX_RANGES>,
    /// Which memory is near which node.
    pub(crate) memory: List<NodeMemory, MAX_RANGES>,
    pub(crate) cpus: List<CpuInfo, MAX_CPUS>,
    /// The firmware's number of each node.
    domains: List<u32, MAX_NODES>,
    /// From each node to each; 10 is local.
    pub(crate) distances: [[u8; MAX_NODES]; MAX_NODES],
    command_line: List<u8, MAX_COMMAND_LINE>,
}

struct Once(UnsafeCell<Machine>);

// SAFETY: written by the boot CPU before another one runs, and only read after that.
unsafe impl Sync for Once {}

static MACHINE: Once = Once(UnsafeCell::new(Machine {
    ranges: List::new(Range { start: 0, bytes: 0, kind: Kind::Reserved }),
    memory: List::new(NodeMemory { start: 0, end: 0, node: NodeId(0), hotplug: false }),
    cpus: List::new(CpuInfo { apic: 0, node: NodeId(0) }),
    domains: List::new(0),
    distances: [[0; MAX_NODES]; MAX_NODES],
    command_line: List::new(0),
}));

impl Machine {
    /// Reads what the loader and the firmware left. Once, by the boot CPU.
    pub(crate) fn read(start_info: u64) -> &'static Self {
        // SAFETY: no other CPU runs, and no other code calls this.
        let machine = unsafe { &mut *MACHINE.0.get() };
        let mut info = [0; pvh::START_INFO_BYTES];
        // SAFETY: the loader put it there, and page 0 is still mapped.
        unsafe { arch::copy_physical(&mut info, start_info) };
        let info = StartInfo::read(&info).expect("the loader gives a PVH start info with a memory map");
        machine.read_command_line(info.command_line);
        machine.read_ranges(&info);
        machine.read_tables(info.rsdp);
        machine.complete();
        machine
    }

    fn read_command_line(&mut self, from: u64) {
        for n in 0..MAX_COMMAND_LINE as u64 {
            let mut byte = [0];
            // SAFETY: the loader put it there, ended by a zero.
            unsafe { arch::copy_physical(&mut byte, from + n) };
            if from == 0 || byte == [0] {
                break;
            }
            if byte.is_ascii() {
                self.command_line.push(byte[0]);
            }
        }
    }

    fn read_ranges(&mut self, info: &StartInfo) {
        for n in 0..u64::from(info.entries) {
            let mut entry = [0; pvh::ENTRY_BYTES];
            // SAFETY: the loader put as many there as it says.
            unsafe { arch::copy_physical(&mut entry, info.memory_map + n * pvh::ENTRY_BYTES as u64) };
            pvh::ranges(&entry).for_each(|range| self.ranges.push(range));
        }
    }

    fn read_tables(&mut self, rsdp: u64) {
        let root = Root::read(physical(rsdp, 36)).expect("the firmware has an ACPI root pointer");
        let find = |name: [u8; 4]| {
            let mut tables = root.tables(table(root.address)).map(table);
            let found = tables.find(|table| table.starts_with(&name))?;
            assert!(acpi::sums_to_zero(found), "the sum of {} is wrong", name.escape_ascii());
            Some(found)
        };
        let srat = find(*b"SRAT");
        let affinities = || {
            let records =
                srat.map(|table| srat::affinities(table).unwrap_or_else(|damage| panic!("SRAT: {damage}")));
            records.into_iter().flatten().map(|read| read.unwrap_or_else(|damage| panic!("SRAT: {damage}")))
        };
        for affinity in affinities() {
            if let Affinity::Memory { start, bytes, domain, hot_pluggable } = affinity
                && bytes > 0
            {
                let node = self.node_of(domain);
                let end = start.saturating_add(bytes);
                self.memory.push(NodeMemory { start, end, node, hotplug: hot_pluggable });
            }
        }
        for apic in acpi::cpus(find(*b"APIC").expect("the firmware lists CPUs")) {
            let domain = affinities().find_map(|affinity| match affinity {
                Affinity::Cpu { id, domain } if id == apic => Some(domain),
                _ => None,
            });
            let node = domain.map_or(NodeId(0), |domain| self.node_of(domain));
            self.cpus.push(CpuInfo { apic, node });
        }
        // Firmware that has no SRAT, or one that says nothing of memory.
        if self.memory.is_empty() {
            let node = self.node_of(0);
            self.memory.push(NodeMemory { start: 0, end: DIRECT_END, node, hotplug: false });
        }
        let slit = find(*b"SLIT");
        for (row, &from) in self.distances.iter_mut().zip(self.domains.iter()) {
            for (distance, &to) in row.iter_mut().zip(self.domains.iter()) {
                let said = slit.and_then(|slit| acpi::distance(slit, from as usize, to as usize));
                *distance = said.unwrap_or(if from == to { 10 } else { 20 });
            }
        }
    }

    /// The node that the firmware calls `domain`. New ones get the next number.
    fn node_of(&mut self, domain: u32) -> NodeId {
        let known = self.domains.iter().position(|&known| known == domain);
        let number = known.unwrap_or_else(|| {
            self.domains.push(domain);
            self.domains.len() - 1
        });
        NodeId(number as u16)
    }

    /// The boot CPU comes first.
    fn complete(&mut self) {
        let boot = percpu::current().apic;
        let at = self.cpus.iter().position(|cpu| cpu.apic == boot).expect("the boot CPU is listed");
        self.cpus[..=at].rotate_right(1);
    }

    /// Number of nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.domains.len()
    }

    /// The distances as one table: a row per node, in `room`.
    pub(crate) fn distance_table<'r>(&self, room: &'r mut [u8; MAX_NODES * MAX_NODES]) -> &'r [u8] {
        let nodes = self.nodes();
        for (row, from) in room.chunks_exact_mut(nodes).zip(&self.distances[..nodes]) {
            row.copy_from_slice(&from[..nodes]);
        }
        &room[..nodes * nodes]
    }

    /// The command line. What is not text is left out.
    pub(crate) fn command_line(&self) -> &str {
        str::from_utf8(&self.command_line).unwrap_or_default()
    }

    /// Prints it as a kernel does.
    pub(crate) fn print(&self) {
        log!("Command line: {}", self.command_line());
        log!("BIOS-provided physical RAM map:");
        for range in self.ranges.iter() {
            let last = range.start.saturating_add(range.bytes).wrapping_sub(1);
            log!("BIOS-e820: [mem {:#018x}-{last:#018x}] {}", range.start, range.kind);
        }
        for near in self.memory.iter() {
            let hotplug = if near.hotplug { " hotplug" } else { "" };
            log!("SRAT: Node {} [mem {:#018x}-{:#018x}]{hotplug}", near.node.0, near.start, near.end - 1);
        }
        for (node, row) in self.distances[..self.nodes()].iter().enumerate() {
            log!("SLIT: Node {node} distances {:?}", &row[..self.nodes()]);
        }
        log!("smpboot: Allowing {} CPUs, on {} nodes", self.cpus.len(), self.nodes());
    }
}

/// Firmware's memory at a physical address.
fn physical(address: u64, bytes: usize) -> &'static [u8] {
    assert!(address != 0 && address + (bytes as u64) < DIRECT_END, "a firmware table at {address:#x}");
    // SAFETY: mapped one to one; firmware tables are in memory that the map reserves, so no code writes there.
    unsafe { slice::from_raw_parts(direct(address), bytes) }
}

/// The table at a physical address.
fn table(address: u64) -> &'static [u8] {
    let (_, bytes) = acpi::header(physical(address, 8)).expect("eight bytes hold a name and a length");
    physical(address, bytes)
}
