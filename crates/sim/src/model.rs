//! Parts of a machine, and their costs.
//!
//! Plain numbers: the caller fills them in, from a machine description. Latencies are in nanoseconds, bandwidths in
//! GB/s (10⁹ bytes), cache sizes in lines of 64 bytes.

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Which logical CPUs share what. CPU `n` is thread `n / cores` of core `n % cores`; cores are numbered
/// node by node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// CPU packages.
    pub sockets: u16,
    /// Memory nodes.
    pub nodes: u16,
    /// Cores of each node.
    pub cores_per_node: u16,
    /// Cores that share a last-level cache.
    pub cores_per_l3: u16,
    /// Logical CPUs of each core: 1 or 2.
    pub threads_per_core: u16,
}

/// How near two CPUs are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Distance {
    /// One CPU and itself.
    Same,
    /// Siblings of one core.
    Sibling,
    /// Two cores at one last-level cache.
    SameL3,
    /// Two last-level caches of one node.
    OtherL3,
    /// Two nodes of one package.
    OtherDie,
    /// Two packages.
    OtherSocket,
}

impl Shape {
    /// Cores of the machine.
    #[must_use]
    pub const fn cores(&self) -> u16 {
        self.nodes * self.cores_per_node
    }

    /// Logical CPUs of the machine.
    #[must_use]
    pub const fn cpus(&self) -> u16 {
        self.cores() * self.threads_per_core
    }

    /// The core of a CPU.
    #[must_use]
    pub const fn core_of(&self, cpu: u16) -> u16 {
        cpu % self.cores()
    }

    /// The memory node of a CPU.
    #[must_use]
    pub const fn node_of(&self, cpu: u16) -> u16 {
        self.core_of(cpu) / self.cores_per_node
    }

    /// The last-level cache of a CPU.
    #[must_use]
    pub const fn l3_of(&self, cpu: u16) -> u16 {
        // A cache does not span nodes, even where the number of cores does not divide.
        let per_node = self.cores_per_node.div_ceil(self.cores_per_l3);
        self.node_of(cpu) * per_node + self.core_of(cpu) % self.cores_per_node / self.cores_per_l3
    }

    /// Number of last-level caches.
    #[must_use]
    pub const fn l3s(&self) -> u16 {
        self.nodes * self.cores_per_node.div_ceil(self.cores_per_l3)
    }

    /// The package of a node. Without as many nodes as packages every package has all of them.
    #[must_use]
    pub const fn socket_of(&self, node: u16) -> u16 {
        match self.nodes.checked_div(self.sockets) {
            None | Some(0) => 0,
            Some(per_socket) => node / per_socket,
        }
    }

    /// Place of a CPU.
    #[must_use]
    pub const fn location(&self, cpu: u16) -> Location {
        let node = self.node_of(cpu);
        Location { cpu, core: self.core_of(cpu), l3: self.l3_of(cpu), node, socket: self.socket_of(node) }
    }

    /// How near two CPUs are.
    #[must_use]
    pub const fn distance(&self, a: u16, b: u16) -> Distance {
        self.location(a).distance(self.location(b))
    }
}

/// Place of a CPU: numbers of what it is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Itself.
    pub cpu: u16,
    /// Its core.
    pub core: u16,
    /// Its last-level cache.
    pub l3: u16,
    /// Its memory node.
    pub node: u16,
    /// Its package.
    pub socket: u16,
}

impl Location {
    /// How near two CPUs are.
    #[inline]
    #[must_use]
    pub const fn distance(self, to: Self) -> Distance {
        if self.cpu == to.cpu {
            Distance::Same
        } else if self.core == to.core {
            Distance::Sibling
        } else if self.l3 == to.l3 {
            Distance::SameL3
        } else if self.node == to.node {
            Distance::OtherL3
        } else if self.socket == to.socket {
            Distance::OtherDie
        } else {
            Distance::OtherSocket
        }
    }
}

/// Times to bring a line from where it is, in ns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latency {
    /// Hit in the second-level cache.
    pub l2: f64,
    /// Hit in the own last-level cache, with no other core holding the line.
    pub l3: f64,
    /// From the sibling.
    pub sibling: f64,
    /// From a core at the same last-level cache: clean, modified.
    pub same_l3: [f64; 2],
    /// From another last-level cache of the node: the line's home on the node, elsewhere.
    pub other_l3: [f64; 2],
    /// From another die of the package.
    pub other_die: f64,
    /// From another package: clean, modified.
    pub other_socket: [f64; 2],
    /// From memory: of the own node, of another.
    pub dram: [f64; 2],
}

impl Latency {
    /// From a CPU at a distance. `home_remote`: whether the line's memory is on another node than the reader.
    #[must_use]
    pub fn transfer(&self, distance: Distance, dirty: bool, home_remote: bool) -> f64 {
        match distance {
            Distance::Same => 0.0,
            Distance::Sibling => self.sibling,
            Distance::SameL3 => self.same_l3[usize::from(dirty)],
            Distance::OtherL3 => self.other_l3[usize::from(home_remote)],
            Distance::OtherDie => self.other_die,
            Distance::OtherSocket => self.other_socket[usize::from(dirty)],
        }
    }
}

/// How much memory traffic passes, in GB/s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bandwidth {
    /// Of a node's memory, reading.
    pub node_read: f64,
    /// Of a node's memory, reads and writes one to one.
    pub node_mixed: f64,
    /// Of one core alone, from its own node's idle memory: as many lines as it can have on their way together, each for
    /// as long as idle memory takes. When memory takes longer, a core gets that much less.
    pub core: f64,
    /// How much longer a read takes where `node_read` or `node_mixed` were measured than from idle memory, as a ratio.
    pub saturated: f64,
}

/// Sizes of caches, in lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caches {
    /// First level of a core.
    pub l1: u32,
    /// Second level of a core.
    pub l2: u32,
    /// Each last-level cache.
    pub l3: u32,
}

/// Parameters that no table gives: fitted to measurements, once, and then left alone. At most six.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fitted {
    /// Private work of one allocation by the driver and the kernel's entry path, in ns.
    pub alloc_ns: f64,
    /// Private work of one free by the driver and the kernel's entry path, in ns.
    pub free_ns: f64,
    /// Private work around each access of the allocator, the first-level hit included, in ns.
    pub access_ns: f64,
    /// Additional time of an access to a page of which the core does not know where it is: the walk through the page
    /// tables, in ns.
    pub walk_ns: f64,
    /// Share of reads on whose data all that follows depends: these hide nothing.
    pub dependent: f64,
    /// Private work of a free for each page of the block but the first, in ns.
    pub page_ns: f64,
}

/// How many pages a kernel moves at a time in its lists of pages in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Batches {
    /// Pages that a CPU collects before it links them; 0 if there are no such lists.
    pub link: usize,
    /// Pages that it unlinks in one hold of the lock, at most.
    pub unlink: usize,
}

/// Work of the kernel around the allocator. Costs are in ns of private work: all estimates.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Kernel {
    /// A fault on an anonymous page, without its allocation and its clearing.
    pub page_fault: f64,
    /// Unmapping a page, without its free.
    pub page_free: f64,
    /// Its lists of pages in use.
    pub lru: Batches,
}

/// A machine, as far as it costs time.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// Which CPUs share what.
    pub shape: Shape,
    /// Moving lines.
    pub latency: Latency,
    /// Moving many lines.
    pub bandwidth: Bandwidth,
    /// Sizes of caches.
    pub caches: Caches,
    /// One pause instruction, in ns.
    pub pause_ns: f64,
    /// Time of a branch that was guessed wrongly, after what it depended on is known, in ns.
    pub mispredict_ns: f64,
    /// Whether wrong guesses take time. What was fitted to Linux was fitted without: it has them in it.
    pub guesses: bool,
    /// Additional time of an atomic read-modify-write over a load, where the line is in the first level, in ns.
    pub exchange_ns: f64,
    /// Work of two busy siblings together, as a multiple of one.
    pub smt_yield: f64,
    /// Transfers that a CPU waits for when it stores to a line that another CPU polls: at most two, the line's way
    /// there and back.
    pub store_exposed: f64,
    /// Fitted parameters.
    pub fitted: Fitted,
    /// An access in code like an allocator's, compiled into its caller, in ns; `None` if it is not known.
    pub own_access_ns: Option<f64>,
    /// A call of such code that finds all it needs in the first level and goes the expected way, among others that do,
    /// in ns: it waits for one word that the call before has stored, and changes it.
    pub own_hit_ns: f64,
    /// Factor on every transfer between cores: 1, but to see what hand-over costs.
    pub transfers: f64,
    /// Pages that a CPU of a kernel like Linux counts as free or taken before it adds them to what all read (see
    /// [`drift_pages`]).
    pub drift_pages: u32,
    /// Costs of tasks besides; `None` if it is not known, and then there are none.
    pub kernel: Option<Kernel>,
}

/// Pages that each CPU of Linux counts on its own at most: more with the number of CPUs and with the size of the zone
/// in 128 MiB, by the binary digits of both, and 125 at most (`calculate_normal_threshold` in `mm/vmstat.c`).
#[must_use]
pub fn drift_pages(cpus: u16, zone_gib: f64) -> u32 {
    let digits = |n: u32| u32::BITS - n.leading_zeros();
    (2 * digits(cpus.into()) * (1 + digits((zone_gib * 8.0) as u32))).min(125)
}

impl Model {
    /// A machine on which every access costs the same, wherever its line is: no coherence, no misses, no queue.
    #[must_use]
    pub fn without_coherence(&self) -> Self {
        let latency = Latency {
            l2: 0.0,
            l3: 0.0,
            sibling: 0.0,
            same_l3: [0.0; 2],
            other_l3: [0.0; 2],
            other_die: 0.0,
            other_socket: [0.0; 2],
            dram: [0.0; 2],
        };
        Self { latency, ..self.clone() }.with_infinite_bandwidth()
    }

    /// The machine for programs that the allocator is compiled into: an access takes what one of such code takes, if
    /// that is known, and wrong guesses cost time.
    #[must_use]
    pub fn for_compiled(&self) -> Self {
        let access_ns = self.own_access_ns.unwrap_or(self.fitted.access_ns);
        Self { fitted: Fitted { access_ns, ..self.fitted }, guesses: true, ..self.clone() }
    }

    /// The machine with cores on which private work takes `times` as long, as while other threads work on them; what
    /// is outside of a core takes as long as before.
    #[must_use]
    pub fn with_slower_cores(&self, times: f64) -> Self {
        let fitted = Fitted {
            alloc_ns: self.fitted.alloc_ns * times,
            free_ns: self.fitted.free_ns * times,
            access_ns: self.fitted.access_ns * times,
            page_ns: self.fitted.page_ns * times,
            ..self.fitted
        };
        Self {
            fitted,
            own_access_ns: self.own_access_ns.map(|ns| ns * times),
            own_hit_ns: self.own_hit_ns * times,
            mispredict_ns: self.mispredict_ns * times,
            ..self.clone()
        }
    }

    /// A machine whose memory delivers any amount in no time.
    #[must_use]
    pub fn with_infinite_bandwidth(&self) -> Self {
        let bandwidth = Bandwidth { node_read: 1e12, node_mixed: 1e12, core: 1e12, saturated: 1.0 };
        Self { bandwidth, ..self.clone() }
    }

    /// A machine on which lines move between cores at no cost, while memory costs what it costs: handing the
    /// lock over (H) takes no time.
    #[must_use]
    pub fn without_hand_over(&self) -> Self {
        Self { transfers: 0.0, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cpus_and_memory_let_counts_drift_farther() {
        // What /proc/zoneinfo said on a machine with two CPUs ("vm stats threshold"): managed pages, pages.
        for (managed, pages) in [(3_840, 4), (772_915, 24), (4_096_000, 32)] {
            assert_eq!(drift_pages(2, f64::from(managed) / 262_144.0), pages, "{managed}");
        }
        assert_eq!([drift_pages(1, 0.1), drift_pages(26, 128.0), drift_pages(64, 16.0)], [2, 120, 125]);
    }

    #[test]
    fn distances_follow_the_numbering() {
        // Two packages of 64 cores, four cores to a cache, two threads: 256 CPUs.
        let rome = Shape { sockets: 2, nodes: 2, cores_per_node: 64, cores_per_l3: 4, threads_per_core: 2 };
        assert_eq!((rome.cpus(), rome.l3s()), (256, 32));
        let from_0 = [0, 1, 3, 4, 63, 64, 127, 128, 129, 192].map(|cpu| rome.distance(0, cpu));
        use Distance::{OtherL3, OtherSocket, Same, SameL3, Sibling};
        assert_eq!(
            from_0,
            [Same, SameL3, SameL3, OtherL3, OtherL3, OtherSocket, OtherSocket, Sibling, SameL3, OtherSocket]
        );
        assert_eq!(rome.node_of(192), 1);
        // Four dies in one package.
        let naples = Shape { sockets: 1, nodes: 4, cores_per_node: 8, cores_per_l3: 4, threads_per_core: 1 };
        assert_eq!(naples.distance(0, 8), Distance::OtherDie);
    }
}

#[cfg(test)]
pub(crate) mod testing;
