//! The lists of pages in use that a kernel keeps for each node, oldest last, and the lock around them.
//!
//! A page that is faulted goes into a batch of its CPU's. A full batch takes the lock once and links all its pages; so
//! does one that is not, before its CPU gives pages back. Pages that are given back are unlinked in batches, too, and
//! with the lock held each loses its last reference, as in Linux.
//!
//! Lock, head and descriptors are charged as lines. The links themselves are kept beside the simulated memory: which
//! descriptors they touch is all that counts.

use core::cell::{Cell, RefCell};
use core::fmt;

use framewright::config::{LockKind, LockPlace};
use framewright::sync::{Locked, QueueNode, Slot, Waiter};
use framewright::{CpuId, Frame, FrameUser, Pfn};

use crate::clock::Ps;
use crate::engine::{self, Access};
use crate::model::Batches;
use crate::platform::Sim;
use crate::world::{Line, Machine, Placed, StructPage};

/// Bytes of a frame descriptor.
const DESCRIPTOR: usize = size_of::<Frame<Sim, StructPage>>();

/// Data that the lock guards, but for the links in descriptors.
pub struct Head {
    /// The page that came last + 1; 0 if there is none.
    first: Slot<Sim, u64>,
    /// Pages on the list. Those from before a run are not counted.
    pages: Slot<Sim, i64>,
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head").finish_non_exhaustive()
    }
}

/// A node's list and its lock, in lines of their own.
pub type List = Locked<Sim, Head, ()>;

fn list(kind: LockKind) -> List {
    let head = Head { first: Slot::new(0), pages: Slot::new(0) };
    List::new(LockPlace::OwnLine, kind, head, ())
}

/// All lists, and the places where CPUs wait.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    /// One for each node.
    pub lists: &'a [Placed<'a, List>],
    /// One for each CPU.
    pub queue: &'a [QueueNode<Sim>],
}

/// Cache lines of a world that each list takes.
pub const LINES: usize = size_of::<List>().div_ceil(size_of::<Line>());

/// Puts an empty list for each node into the machine's memory.
///
/// # Panics
/// As [`Machine::place`].
pub fn place<'w, M: FrameUser>(machine: &mut Machine<'w, M>, kind: LockKind) -> Vec<Placed<'w, List>> {
    let nodes = machine.simulator().model().shape.nodes;
    (0..nodes).map(|node| machine.place_on(node, &format!("lru lock node {node}"), list(kind))).collect()
}

/// How much a lock was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockUse {
    /// Acquisitions.
    pub locks: u64,
    /// Time until they had it.
    pub wait: Ps,
    /// Time for which they held it.
    pub hold: Ps,
}

/// Place of a page, if a kernel keeps lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On its node's list.
    Linked,
    /// On none: it is the kernel's own, or free.
    Nowhere,
    /// In the batch of a CPU.
    Batch(u16),
}

/// State of a page. All zero: it was on the list before the run began, its neighbours unknown.
#[derive(Clone, Copy, Default, Debug)]
struct Page {
    /// 0, 1, and 2 + CPU, in the order of [`Place`].
    place: u32,
    /// The pages before and after it + 1; 0 if there is none.
    links: [u32; 2],
}

impl Page {
    fn place(self) -> Place {
        match self.place {
            0 => Place::Linked,
            1 => Place::Nowhere,
            batch => Place::Batch((batch - 2) as u16),
        }
    }

    fn at(place: Place) -> Self {
        let place = match place {
            Place::Linked => 0,
            Place::Nowhere => 1,
            Place::Batch(cpu) => 2 + u32::from(cpu),
        };
        Self { place, links: [0; 2] }
    }
}

/// The pages of a run and where they are.
#[derive(Debug)]
pub(crate) struct Lru {
    batches: Batches,
    /// Address of the first descriptor.
    descriptors: usize,
    frames_per_node: u64,
    pages: RefCell<Vec<Page>>,
    /// Each CPU's batch.
    pending: RefCell<Vec<Vec<Pfn>>>,
    used: Cell<LockUse>,
}

impl Lru {
    /// For pages on `nodes` nodes.
    pub(crate) fn new(
        batches: Batches,
        descriptors: usize,
        frames_per_node: u64,
        nodes: u16,
        cpus: u16,
    ) -> Self {
        let frames = if batches.link == 0 { 0 } else { frames_per_node as usize * usize::from(nodes) };
        Self {
            batches,
            descriptors,
            frames_per_node,
            pages: RefCell::new(vec![Page::default(); frames]),
            pending: RefCell::new(vec![Vec::new(); usize::from(cpus)]),
            used: Cell::default(),
        }
    }

    /// Pages at most that are given back together.
    pub(crate) fn given_back_at_once(&self) -> usize {
        if self.batches.link == 0 { 1 } else { self.batches.unlink.max(1) }
    }

    /// How much the locks were used, all nodes together.
    pub(crate) fn used(&self) -> LockUse {
        self.used.get()
    }

    /// A page was allocated: it is on no list until it is [added](Self::add).
    pub(crate) fn got(&self, pfn: Pfn) {
        self.set(pfn, Page::at(Place::Nowhere));
    }

    /// Puts a page into the CPU's batch, and links that when it is full. A page that is `large` does not wait for
    /// others.
    pub(crate) fn add(&self, lists: Lists<'_>, cpu: CpuId, pfn: Pfn, large: bool) {
        if self.batches.link == 0 {
            return;
        }
        self.set(pfn, Page::at(Place::Batch(cpu.0)));
        let full = {
            let batch = &mut self.pending.borrow_mut()[cpu.index()];
            batch.push(pfn);
            batch.len() >= self.batches.link || large
        };
        if full {
            self.link_batch(lists, cpu);
        }
    }

    /// Links what is in the CPU's batch.
    pub(crate) fn link_batch(&self, lists: Lists<'_>, cpu: CpuId) {
        let batch = match self.pending.borrow_mut().get_mut(cpu.index()) {
            Some(batch) if !batch.is_empty() => core::mem::take(batch),
            _ => return,
        };
        for pages in batch.chunk_by(|&a, &b| self.node(a) == self.node(b)) {
            self.locked(lists, cpu, self.node(pages[0]), |head| {
                for &pfn in pages {
                    self.link(head, cpu, pfn);
                }
            });
        }
    }

    /// Takes pages out of page tables, as is done before they are given back: each counts one mapping less. So their
    /// descriptors come into the caches before any lock is taken.
    pub(crate) fn unmapped(&self, pages: &[Pfn]) {
        for &pfn in pages {
            engine::touch(self.descriptor(pfn), size_of::<u64>(), Access::Exchange);
        }
    }

    /// Drops the last reference to each page, and unlinks those that are on a list: one hold of the lock for pages of a
    /// node that follow one another.
    pub(crate) fn give_back(&self, lists: Lists<'_>, cpu: CpuId, pages: &[Pfn]) {
        let drop_reference = |pfn| engine::touch(self.descriptor(pfn), size_of::<u64>(), Access::Exchange);
        if self.batches.link == 0 {
            pages.iter().for_each(|&pfn| drop_reference(pfn));
            return;
        }
        let kind = |pfn| (self.get(pfn).place() == Place::Linked).then(|| self.node(pfn));
        for pages in pages.chunk_by(|&a, &b| kind(a) == kind(b)) {
            let Some(node) = kind(pages[0]) else {
                // Immediately: one that is in another CPU's batch must not be linked any more.
                pages.iter().for_each(|&pfn| self.set(pfn, Page::at(Place::Nowhere)));
                pages.iter().for_each(|&pfn| drop_reference(pfn));
                continue;
            };
            self.locked(lists, cpu, node, |head| {
                for &pfn in pages {
                    drop_reference(pfn);
                    self.unlink(head, pfn);
                }
            });
        }
    }

    fn node(&self, pfn: Pfn) -> usize {
        (pfn.0 / self.frames_per_node) as usize
    }

    fn descriptor(&self, pfn: Pfn) -> usize {
        self.descriptors + pfn.0 as usize * DESCRIPTOR
    }

    fn get(&self, pfn: Pfn) -> Page {
        self.pages.borrow().get(pfn.0 as usize).copied().unwrap_or_default()
    }

    fn set(&self, pfn: Pfn, page: Page) {
        if let Some(place) = self.pages.borrow_mut().get_mut(pfn.0 as usize) {
            *place = page;
        }
    }

    /// Writes to a page's descriptor: flags and links are in one line.
    fn write(&self, pfn: Pfn) {
        engine::touch(self.descriptor(pfn), size_of::<u64>(), Access::Write);
    }

    fn locked(&self, lists: Lists<'_>, cpu: CpuId, node: usize, work: impl FnOnce(&mut Head)) {
        let asked = engine::now();
        let waiter = Waiter { nodes: lists.queue, cpu: Some(cpu) };
        lists.lists[node].with(waiter, |head, (), _| {
            let got = engine::now();
            work(head);
            let LockUse { locks, wait, hold } = self.used.get();
            self.used.set(LockUse {
                locks: locks + 1,
                wait: wait + got.since(asked),
                hold: hold + engine::now().since(got),
            });
        });
    }

    /// Makes a page of the CPU's batch the first of a list that is locked.
    fn link(&self, head: &mut Head, cpu: CpuId, pfn: Pfn) {
        let second = head.first.get() as u32;
        if self.get(pfn).place() != Place::Batch(cpu.0) {
            // It was freed since.
            return;
        }
        let first = pfn.0 as u32 + 1;
        self.set(pfn, Page { links: [0, second], ..Page::at(Place::Linked) });
        self.write(pfn);
        self.set_link(second, 0, first);
        head.first.set(u64::from(first));
        head.pages.set(head.pages.get() + 1);
    }

    /// Takes a page out of a list that is locked.
    fn unlink(&self, head: &mut Head, pfn: Pfn) {
        let [before, behind] = self.get(pfn).links;
        self.write(pfn);
        self.set_link(before, 1, behind);
        self.set_link(behind, 0, before);
        if head.first.get() == pfn.0 + 1 {
            head.first.set(u64::from(behind));
        }
        head.pages.set(head.pages.get() - 1);
        self.set(pfn, Page::at(Place::Nowhere));
    }

    /// Writes one of a neighbour's links, if there is a neighbour.
    fn set_link(&self, neighbour: u32, which: usize, to: u32) {
        let Some(pfn) = neighbour.checked_sub(1).map(|n| Pfn(u64::from(n))) else { return };
        if let Some(page) = self.pages.borrow_mut().get_mut(pfn.0 as usize) {
            page.links[which] = to;
        }
        self.write(pfn);
    }
}

#[cfg(test)]
mod tests {
    use framewright::Config;

    use super::*;
    use crate::model::testing::round;
    use crate::world::{World, zones};

    const FRAMES: u64 = 1 << 12;

    /// The list from its first page on, as both kinds of links and the head have it.
    fn listed(lru: &Lru, lists: Lists<'_>) -> Vec<Pfn> {
        let waiter = Waiter { nodes: lists.queue, cpu: None };
        let (mut at, count) = lists.lists[0].with(waiter, |head, (), _| (head.first.get(), head.pages.get()));
        let (mut all, mut before) = (Vec::new(), 0);
        while at != 0 {
            let links = lru.get(Pfn(at - 1)).links;
            assert_eq!(links[0], before);
            all.push(Pfn(at - 1));
            (before, at) = (at as u32, u64::from(links[1]));
        }
        assert_eq!(count, all.len() as i64);
        all
    }

    #[test]
    fn pages_are_linked_and_unlinked_in_batches() {
        let model = round(2);
        let config = Config::linux_v6_1();
        let zones = zones(1, FRAMES);
        let mut world =
            World::<StructPage>::with_lines(&model, &zones, config, None, 1, LINES).expect("a world");
        let batches = Batches { link: 15, unlink: 32 };
        let lru = Lru::new(batches, world.descriptor_address(0), FRAMES, 1, 2);
        let (_, mut machine) = world.split();
        let placed = place(&mut machine, config.experiment.lock_kind);
        let lists = Lists { lists: &placed, queue: machine.queue() };
        machine.run(1, Ps(0), |_, cpu| {
            let me = cpu.id();
            let pages: Vec<Pfn> = (0..40).map(Pfn).collect();
            for &pfn in &pages {
                lru.got(pfn);
                lru.add(lists, me, pfn, false);
            }
            assert_eq!(lru.used().locks, 2, "ten wait for five more");
            let backwards =
                |range: core::ops::Range<usize>| pages[range].iter().rev().copied().collect::<Vec<_>>();
            assert_eq!(listed(&lru, lists), backwards(0..30));
            // From the front, the middle and the end of the list, and out of a batch.
            lru.give_back(lists, me, &pages[28..33]);
            lru.give_back(lists, me, &pages[10..12]);
            lru.give_back(lists, me, &pages[0..5]);
            assert_eq!(lru.used().locks, 5);
            assert_eq!(listed(&lru, lists), [backwards(12..28), backwards(5..10)].concat());
            lru.link_batch(lists, me);
            assert_eq!(listed(&lru, lists)[..7], backwards(33..40));
            // A large page does not wait for others; a page that was never linked takes no lock.
            lru.add(lists, me, pages[0], true);
            lru.give_back(lists, me, &pages[30..31]);
            assert_eq!((lru.used().locks, listed(&lru, lists)[0]), (7, pages[0]));
            assert!(lru.used().hold > Ps(0) && lru.used().wait > Ps(0), "{:?}", lru.used());
        });
        let traffic = machine.simulator().moved().lines;
        assert!(traffic.iter().any(|line| line.name == "lru lock node 0" && line.fetches > 0), "{traffic:?}");
    }
}
