//! Nodes from which the system takes an arena's memory, and nodes that it has taken it from.
#![expect(unsafe_code, reason = "a system call takes lists of addresses")]

use std::fs;
use std::io;

use framewright::frame::FrameUser;

use crate::arena::{Arena, Pages};
use crate::os::{Mapping, system_page_bytes};

/// Nodes of the machine from which the system takes an arena's own memory, independent of the arena's nodes. Nodes are
/// the machine's numbers, as in `/sys/devices/system/node`. It holds for pages that are touched from then on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// From the node of the CPU that touches a page first, or as the policy of that thread says (`set_mempolicy`,
    /// `numactl`).
    #[default]
    FirstTouch,
    /// From this node as long as it has memory, then from others (`MPOL_PREFERRED`).
    Preferred(usize),
    /// From these nodes alone (`MPOL_BIND`).
    Bind(Vec<usize>),
    /// From these nodes, interleaved page by page (`MPOL_INTERLEAVE`): for what all nodes' threads use alike.
    Interleave(Vec<usize>),
}

impl Placement {
    /// Tells the system. O(1).
    pub(crate) fn apply(&self, mapping: &Mapping) -> Result<(), (usize, io::Error)> {
        let (mode, nodes) = match self {
            Self::FirstTouch => return Ok(()),
            Self::Preferred(node) => (libc::MPOL_PREFERRED, core::slice::from_ref(node)),
            Self::Bind(nodes) => (libc::MPOL_BIND, &**nodes),
            Self::Interleave(nodes) => (libc::MPOL_INTERLEAVE, &**nodes),
        };
        let named = nodes.first().copied().unwrap_or_default();
        mapping.set_policy(0, mapping.bytes(), mode, nodes).map_err(|error| (named, error))
    }
}

/// Memory of an arena that the system has committed, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// In memory.
    pub bytes: u64,
    /// Of these, in huge pages: those that [`Backing::Huge`](crate::Backing::Huge) asks for and may not get, or a
    /// pool's.
    pub huge_bytes: u64,
    /// Of these, on each of the machine's nodes that has any, in ascending order.
    pub on_nodes: Vec<(usize, u64)>,
}

impl<M: FrameUser> Arena<M> {
    /// Bytes of the arena's own memory that are committed: all, in huge pages, and by node of the machine. Nothing of
    /// memory that is the caller's, or of none.
    ///
    /// A snapshot, as the system counts it: what is mapped right beside the arena, and in the same way, may be part of
    /// it for the system, and counts as huge then if it is. O(pages), and a system call for each thousand of them.
    ///
    /// ```
    /// use framewright_host::{Arena, Backing, Migratetype, Order, PAGEBLOCK_ORDER};
    ///
    /// let arena: Arena = Arena::builder().bytes(64 << 20).backing(Backing::Huge).build()?;
    /// assert_eq!(arena.resident().bytes, 0, "only address space is reserved");
    /// let cpu = arena.attach()?;
    /// let mut block = cpu.alloc_block(PAGEBLOCK_ORDER, Migratetype::Movable)?;
    /// block.bytes_mut().fill(1);
    /// let got = arena.resident();
    /// assert!(got.bytes >= 2 << 20);
    /// // Whether that is one huge page is the system's choice, and the report has it.
    /// assert!(got.huge_bytes <= got.bytes);
    /// assert_eq!(got.on_nodes.iter().map(|(_, bytes)| bytes).sum::<u64>(), got.bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resident(&self) -> Resident {
        let Pages::Own(mapping) = &self.pages else { return Resident::default() };
        if self.is_forked() {
            return Resident::default();
        }
        let on_nodes = on_nodes(mapping);
        let bytes = on_nodes.iter().map(|(_, bytes)| bytes).sum();
        let start = mapping.start().as_ptr().addr();
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        Resident { bytes, huge_bytes: huge(&smaps, start, start + mapping.bytes()).min(bytes), on_nodes }
    }
}

/// Bytes in memory by the machine's nodes.
fn on_nodes(mapping: &Mapping) -> Vec<(usize, u64)> {
    const AT_ONCE: usize = 1024;
    let page = system_page_bytes();
    let mut all: Vec<(usize, u64)> = Vec::new();
    let mut offset = 0;
    while offset < mapping.bytes() {
        let count = ((mapping.bytes() - offset) / page).min(AT_ONCE);
        // Nothing is there, mostly: asked in one go.
        if count == 0 {
            break;
        }
        if mapping.resident(offset, count * page) > 0 {
            let places: Vec<*const u8> = (0..count)
                .map(|n| mapping.start().as_ptr().cast_const().wrapping_add(offset + n * page))
                .collect();
            let mut nodes = vec![-1_i32; count];
            // SAFETY: the lists have `count` entries; without a list of nodes to go to, no page moves.
            let failed = unsafe {
                libc::syscall(
                    libc::SYS_move_pages,
                    0,
                    count,
                    places.as_ptr(),
                    core::ptr::null::<i32>(),
                    nodes.as_mut_ptr(),
                    0,
                )
            };
            // A system without nodes has all of it on one.
            if failed != 0 {
                let resident = mapping.resident(offset, count * page);
                nodes.fill(-1);
                nodes[..resident].fill(0);
            }
            for node in nodes.iter().filter_map(|&node| usize::try_from(node).ok()) {
                match all.iter_mut().find(|(known, _)| *known == node) {
                    Some((_, bytes)) => *bytes += page as u64,
                    None => all.push((node, page as u64)),
                }
            }
        }
        offset += count * page;
    }
    all.sort_unstable();
    all
}

/// Bytes in huge pages between two addresses, as `/proc/PID/smaps` says.
fn huge(smaps: &str, start: usize, end: usize) -> u64 {
    let (mut sum, mut within) = (0, 0);
    for line in smaps.lines() {
        let Some((name, rest)) = line.split_once(char::is_whitespace) else { continue };
        if let Some((from, to)) = name.split_once('-') {
            let parsed = usize::from_str_radix(from, 16).ok().zip(usize::from_str_radix(to, 16).ok());
            within = parsed.map_or(0, |(from, to)| to.min(end).saturating_sub(from.max(start)) as u64);
        } else if within > 0 && ["AnonHugePages:", "Private_Hugetlb:", "Shared_Hugetlb:"].contains(&name) {
            let kib = rest.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
            sum += (kib.unwrap_or(0) << 10).min(within);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_read_where_the_arena_lies() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Rss:                4096 kB
AnonHugePages:      2048 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
Private_Hugetlb:       0 kB
7f0000c00000-7f0000e00000 rw-p 00000000 00:0f 77                         /anon_hugepage (deleted)
Private_Hugetlb:    2048 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        assert_eq!(huge(smaps, 0x7f00_0000_0000, 0x7f00_0080_0000), 6 << 20);
        assert_eq!(huge(smaps, 0x7f00_0040_0000, 0x7f00_0060_0000), 2 << 20, "no more than lies there");
        assert_eq!(huge(smaps, 0x7f00_00c0_0000, 0x7f00_00e0_0000), 2 << 20);
        assert_eq!(huge(smaps, 0x1000, 0x2000), 0);
        assert_eq!(huge("", 0, usize::MAX), 0);
    }

    #[test]
    fn the_system_is_told_where_memory_comes_from() {
        let node = crate::os::machine_nodes().map_or(0, |machine| machine.ids[0]);
        let placed = [
            Placement::Preferred(node),
            Placement::Bind(vec![node]),
            Placement::Interleave(vec![node]),
            Placement::FirstTouch,
        ];
        for placement in placed {
            let arena: Arena = Arena::builder()
                .bytes(4 << 20)
                .placement(placement.clone())
                .prefault()
                .build()
                .unwrap_or_else(|error| panic!("{placement:?}: {error}"));
            let Pages::Own(mapping) = &arena.pages else { panic!("its own memory") };
            let wanted = match placement {
                Placement::FirstTouch => libc::MPOL_DEFAULT,
                Placement::Preferred(_) => libc::MPOL_PREFERRED,
                Placement::Bind(_) => libc::MPOL_BIND,
                Placement::Interleave(_) => libc::MPOL_INTERLEAVE,
            };
            assert_eq!(crate::os::tests::policy(mapping).unwrap(), wanted, "{placement:?}");
            let got = arena.resident();
            assert_eq!(got.bytes, 4 << 20);
            if placement != Placement::FirstTouch {
                assert_eq!(got.on_nodes, [(node, 4 << 20)], "{placement:?}");
            }
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        for placement in
            [Placement::Bind(vec![1000]), Placement::Preferred(5000), Placement::Interleave(vec![])]
        {
            let failed = Arena::builder().bytes(4 << 20).placement(placement).build::<()>();
            let text = failed.expect_err("no such node").to_string();
            assert!(text.starts_with("memory cannot be bound to the machine's node"), "{text}");
        }
    }
}
