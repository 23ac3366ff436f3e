//! The memory of an allocator's own structures: zeroed, and committed as it is touched, so that describing
//! terabytes costs what is used of them.
#![expect(unsafe_code, reason = "typed slices are carved out of zeroed memory")]

use core::mem::{MaybeUninit, align_of, needs_drop, size_of};
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::AtomicU64;

use framewright::frame::{FrameUser, PageMap, Pageblock};
use framewright::pcp::{MoreLists, Pcp};
use framewright::reclaim::Node;
use framewright::sync::QueueNode;
use framewright::zone::Zone;
use framewright::{Frame, Memory, NodeId, Plan, ZoneId};

use crate::error::ArenaError;
use crate::os::Mapping;
use crate::platform::{Host, HostPin};

/// All structures of an allocator. What is borrowed from it is `'static` in name only: the arena that holds
/// both lends the allocator for no longer than itself, and drops it first.
#[derive(Debug)]
pub(crate) struct Store {
    /// Frame and pageblock descriptors: the bulk, and touched at random.
    descriptors: Mapping,
    /// Everything else.
    tables: Mapping,
    /// Bytes of descriptors and maps.
    metadata: usize,
}

/// Memory for the descriptors of frames, which outlives an arena: the next one may have it
/// ([`BootMap::build_in`](crate::BootMap::build_in)).
///
/// So that boots can be compared without the page faults of memory that is touched for the first time, and with
/// what it takes to fill the same bytes.
#[derive(Debug)]
pub struct DescriptorMemory(Mapping);

impl DescriptorMemory {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The bytes, which have no value where the slots of the last arena's frames had padding.
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: mapped, and ours alone since the arena that had it is gone.
        unsafe { slice::from_raw_parts_mut(self.0.start().as_ptr().cast(), self.0.bytes()) }
    }

    /// Fills all of it. O(bytes).
    pub fn fill(&mut self, byte: u8) {
        self.as_uninit_mut().fill(MaybeUninit::new(byte));
    }

    /// Gives the memory back to the system, but not its address: it reads as zeroes, and the next touch of each
    /// page is a page fault again.
    pub fn forget(&mut self) {
        self.0.forget();
    }
}

/// What a [`Store`] is filled with.
pub(crate) struct Parts<M: 'static> {
    pub(crate) memory: Memory<'static, Host, M>,
    pub(crate) cpu_nodes: &'static [NodeId],
    pub(crate) pins: &'static [HostPin],
}

impl Store {
    /// The structures that `plan` asks for, with CPUs on the nodes `cpu_nodes`. `user` makes every frame's
    /// user slot; without it they are zero, and untouched. O(CPUs), and O(frames) with `user`. Frame descriptors go
    /// to `used` if it is large enough, and hold then what it held.
    ///
    /// # Safety
    /// Without `user`, zeroed memory is a valid `M`. With `used`, any bytes are, and every descriptor is cleared
    /// before it is used.
    pub(crate) unsafe fn new<M: FrameUser>(
        plan: &Plan,
        cpu_nodes: &[NodeId],
        user: Option<&mut dyn FnMut(u64) -> M>,
        used: Option<DescriptorMemory>,
    ) -> Result<(Self, Parts<M>), ArenaError> {
        const { assert!(!needs_drop::<M>(), "user slots are given back as plain memory, never dropped") };
        let mut room = Room(0);
        let frames = room.add::<Frame<Host, M>>(plan.frames);
        let pageblocks = room.add::<Pageblock<Host>>(plan.pageblocks);
        let descriptors = match used.filter(|used| used.bytes() >= room.0) {
            Some(DescriptorMemory(mapping)) => {
                let bytes = plan.pageblocks * size_of::<Pageblock<Host>>();
                // SAFETY: `pageblocks` has this room in memory that is ours and unused.
                unsafe { pageblocks.at(mapping.start()).cast::<u8>().write_bytes(0, bytes) };
                mapping
            }
            None => reserve(room, "frame descriptors")?,
        };
        // Four bytes in a thousand of what they describe: advice that is not taken is no reason to fail.
        let _ = descriptors.advise_huge();

        let tables = reserve(Tables::new(plan, cpu_nodes.len()).room, "per-CPU lists")?;
        if let Some(user) = user {
            for n in 0..plan.frames {
                let frame = Frame::new(user(plan.base.0 + n as u64));
                // SAFETY: `frames` has room for `plan.frames` of them in memory that is ours and unused.
                unsafe { frames.at(descriptors.start()).add(n).write(frame) };
            }
        }
        // SAFETY: both are as large as the plan asks, zeroed but for the user slots written above, ours, and stay until
        // the arena, which drops all borrowers first, is gone. Zeroes are valid user slots where none were written.
        let parts = unsafe { parts(plan, cpu_nodes, descriptors.start(), tables.start()) };
        let metadata = plan.frames * size_of::<Frame<Host, M>>()
            + plan.pageblocks * size_of::<Pageblock<Host>>()
            + plan.maps * size_of::<PageMap<Host>>();
        Ok((Self { descriptors, tables, metadata }, parts))
    }

    /// What is left when the structures are gone: the memory of the descriptors.
    pub(crate) fn into_descriptors(self) -> DescriptorMemory {
        DescriptorMemory(self.descriptors)
    }

    /// Bytes of what is kept for frames and pageblocks.
    pub(crate) const fn metadata_bytes(&self) -> usize {
        self.metadata
    }

    /// Bytes of address space, committed or not.
    pub(crate) const fn bytes(&self) -> usize {
        self.descriptors.bytes() + self.tables.bytes()
    }
}

/// Where everything but descriptors lies in its memory.
struct Tables {
    maps: Place<PageMap<Host>>,
    slots: Place<AtomicU64>,
    pcps: Place<Pcp<'static, Host>>,
    more_lists: Place<MoreLists<'static, Host>>,
    zones: Place<Zone<Host>>,
    queue: Place<QueueNode<Host>>,
    zonelist: Place<ZoneId>,
    memory_nodes: Place<Node<Host>>,
    contexts: Place<AtomicU64>,
    nodes: Place<NodeId>,
    pins: Place<HostPin>,
    room: Room,
}

impl Tables {
    fn new(plan: &Plan, cpus: usize) -> Self {
        let mut room = Room(0);
        Self {
            maps: room.add(plan.maps),
            slots: room.add(plan.slots),
            pcps: room.add(plan.pcps),
            more_lists: room.add(plan.more_lists),
            zones: room.add(plan.zones),
            queue: room.add(plan.queue),
            zonelist: room.add(plan.zonelist),
            memory_nodes: room.add(plan.nodes),
            contexts: room.add(plan.contexts),
            nodes: room.add(cpus),
            pins: room.add(cpus),
            room,
        }
    }
}

/// Bytes that an allocator's descriptors and its other structures take.
pub(crate) fn sizes<M: FrameUser>(plan: &Plan, cpus: usize) -> (usize, usize) {
    let mut room = Room(0);
    room.add::<Frame<Host, M>>(plan.frames);
    room.add::<Pageblock<Host>>(plan.pageblocks);
    (room.0, Tables::new(plan, cpus).room.0)
}

/// The structures that `plan` asks for, in memory that is there already: as long as [`sizes`] says, at multiples of 4096.
///
/// # Safety
/// The memory is zeroed, but for user slots, which are valid. No other thread uses it, and it stays for as long as what is
/// returned is used.
pub(crate) unsafe fn parts<M: FrameUser>(
    plan: &Plan,
    cpu_nodes: &[NodeId],
    descriptors: NonNull<u8>,
    tables: NonNull<u8>,
) -> Parts<M> {
    let mut room = Room(0);
    let frames = room.add::<Frame<Host, M>>(plan.frames);
    let pageblocks = room.add::<Pageblock<Host>>(plan.pageblocks);
    let tables_of = Tables::new(plan, cpu_nodes.len());
    let Tables { maps, slots, pcps, more_lists, zones, queue, zonelist, memory_nodes, .. } = tables_of;
    let Tables { contexts, nodes, pins, .. } = tables_of;
    for (n, &node) in cpu_nodes.iter().enumerate() {
        // SAFETY: room for one node and one pin per CPU in memory that is ours and unused. One pin is
        // made per CPU of one allocator, and the thread that holds the CPU's lock may use it.
        unsafe {
            nodes.at(tables).add(n).write(node);
            pins.at(tables).add(n).write(HostPin::new(framewright::CpuId(n as u16)));
        }
    }
    // SAFETY: each slice has been given room of its own, aligned for its type, and is as long as that
    // room. On this platform zeroes are what `new` makes of words, pageblocks, maps and queue nodes, and of
    // frames if their slots are valid, by the caller's promise. A `ZoneId` is a number. `MaybeUninit` asks for nothing.
    unsafe {
        Parts {
            memory: Memory {
                frames: frames.of(descriptors),
                pageblocks: pageblocks.of(descriptors),
                maps: maps.of(tables),
                slots: slots.of(tables),
                pcps: pcps.uninit(tables),
                more_lists: more_lists.uninit(tables),
                zones: zones.uninit(tables),
                queue: queue.of(tables),
                zonelist: zonelist.mut_of(tables),
                nodes: memory_nodes.uninit(tables),
                contexts: contexts.of(tables),
            },
            cpu_nodes: nodes.of(tables),
            pins: pins.of(tables),
        }
    }
}

fn reserve(room: Room, what: &'static str) -> Result<Mapping, ArenaError> {
    // 2 MiB: so that huge pages fit from the first descriptor on.
    Mapping::lazy(room.0.max(1), 2 << 20).map_err(|source| ArenaError::Reserve {
        what,
        bytes: room.0,
        source,
    })
}

/// Bytes handed out so far of a mapping to be. Saturates: what does not fit is refused by the system.
struct Room(usize);

/// Where a slice lies in a mapping.
struct Place<T> {
    offset: usize,
    len: usize,
    of: core::marker::PhantomData<T>,
}

impl Room {
    /// Room for `len` elements, aligned for them and to a cache line.
    fn add<T>(&mut self, len: usize) -> Place<T> {
        let align = align_of::<T>().max(64);
        let offset = self.0.checked_next_multiple_of(align).unwrap_or(usize::MAX);
        self.0 = offset.saturating_add(size_of::<T>().saturating_mul(len));
        Place { offset, len, of: core::marker::PhantomData }
    }
}

impl<T> Place<T> {
    /// Where it lies in memory that begins at `start` and is as large as the room.
    fn at(&self, start: NonNull<u8>) -> NonNull<T> {
        // SAFETY: `add` made the room that this memory was reserved for.
        unsafe { start.add(self.offset).cast() }
    }

    /// # Safety
    /// The memory holds `len` valid elements that no thread writes to except through them, for as long as the
    /// slice is used.
    unsafe fn of(&self, start: NonNull<u8>) -> &'static [T] {
        // SAFETY: by the caller's promise; aligned by `add`, the mapping being aligned to more.
        unsafe { slice::from_raw_parts(self.at(start).as_ptr(), self.len) }
    }

    /// # Safety
    /// As [`of`](Self::of), and no other thread reaches the memory at all.
    unsafe fn mut_of(&self, start: NonNull<u8>) -> &'static mut [T] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.at(start).as_ptr(), self.len) }
    }

    /// # Safety
    /// No other thread reaches the memory for as long as the slice is used.
    unsafe fn uninit(&self, start: NonNull<u8>) -> &'static mut [MaybeUninit<T>] {
        // SAFETY: as above, and any bytes are a valid `MaybeUninit`.
        unsafe { slice::from_raw_parts_mut(self.at(start).as_ptr().cast(), self.len) }
    }
}
