//! The memory of an allocator's own structures: zeroed, and committed as it is touched, so that describing
//! terabytes costs what is used of them.
#![expect(unsafe_code, reason = "descriptors, nodes and pins are slices of zeroed memory")]

use core::mem::{MaybeUninit, needs_drop, size_of};
use core::ptr::NonNull;
use core::slice;

use framewright::frame::{FrameUser, PageMap, Pageblock};
use framewright::{Frame, Memory, NodeId, Plan};

use crate::error::ArenaError;
use crate::os::Mapping;
use crate::platform::{Host, HostPin};

/// All structures of an allocator. What is borrowed from it is `'static` in name only: the arena that holds
/// both lends the allocator for no longer than itself, and drops it first.
pub(crate) struct Store {
    /// Frame descriptors: the bulk, and touched at random.
    descriptors: Mapping,
    /// Everything else.
    _tables: Mapping,
    /// Bytes of descriptors and maps.
    pub(crate) metadata: usize,
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

/// Content of a [`Store`].
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
        let (bytes, tables_bytes) = sizes::<M>(plan, cpu_nodes.len());
        let descriptors = match used.filter(|used| used.bytes() >= bytes) {
            Some(DescriptorMemory(mapping)) => mapping,
            None => reserve(bytes, "frame descriptors")?,
        };
        // Four bytes in a thousand of what they describe: advice that is not taken is no reason to fail.
        let _ = descriptors.advise_huge();

        let tables = reserve(tables_bytes, "per-CPU lists")?;
        if let Some(user) = user {
            let frames = descriptors.start().cast::<Frame<Host, M>>();
            for n in 0..plan.frames {
                let frame = Frame::new(user(plan.base.0 + n as u64));
                // SAFETY: there is room for `plan.frames` of them in memory that is ours and unused.
                unsafe { frames.add(n).write(frame) };
            }
        }
        // SAFETY: both are as large as the plan asks, zeroed but for the user slots written above, ours, and stay until
        // the arena, which drops all borrowers first, is gone. Zeroes are valid user slots where none were written.
        let parts = unsafe { parts(plan, cpu_nodes, descriptors.start(), tables.start()) };
        let metadata = plan.frames * size_of::<Frame<Host, M>>()
            + plan.pageblocks * size_of::<Pageblock<Host>>()
            + plan.maps * size_of::<PageMap<Host>>();
        Ok((Self { descriptors, _tables: tables, metadata }, parts))
    }

    /// Memory of the descriptors, which is left when the structures are gone.
    pub(crate) fn into_descriptors(self) -> DescriptorMemory {
        DescriptorMemory(self.descriptors)
    }
}

/// Bytes that an allocator's frame descriptors and its other structures take. What does not fit an address space is
/// refused by the system.
pub(crate) fn sizes<M: FrameUser>(plan: &Plan, cpus: usize) -> (usize, usize) {
    let (_, _, bytes) = behind_tables(plan, cpus);
    (plan.frames.saturating_mul(size_of::<Frame<Host, M>>()), bytes)
}

/// Offsets of the CPUs' nodes and pins behind the allocator's tables, and the bytes of all.
fn behind_tables(plan: &Plan, cpus: usize) -> (usize, usize, usize) {
    let Ok(tables) = plan.tables_layout::<Host>() else { return (0, 0, usize::MAX) };
    let nodes = tables.size().next_multiple_of(64);
    let pins = (nodes + cpus * size_of::<NodeId>()).next_multiple_of(64);
    (nodes, pins, pins + cpus * size_of::<HostPin>())
}

/// The structures that `plan` asks for, in memory that is there already: as long as [`sizes`] says, at multiples of
/// 4096.
///
/// # Safety
/// The memory is zeroed, but for user slots, which are valid. Only what is returned uses it, and it stays for as long
/// as that is used.
pub(crate) unsafe fn parts<M: FrameUser>(
    plan: &Plan,
    cpu_nodes: &[NodeId],
    descriptors: NonNull<u8>,
    tables: NonNull<u8>,
) -> Parts<M> {
    let cpus = cpu_nodes.len();
    let (nodes, pins, _) = behind_tables(plan, cpus);
    // SAFETY: each has room of its own in memory that is ours and unused, aligned to a line. One pin is made per CPU of
    // one allocator, and the thread that holds the CPU's lock may use it. Words of this platform are `AtomicU64`, its
    // cells `UnsafeCell`; zeroed frames are valid if their slots are, by the caller's promise.
    unsafe {
        let (nodes, pins) = (tables.add(nodes).cast::<NodeId>(), tables.add(pins).cast::<HostPin>());
        for (n, &node) in cpu_nodes.iter().enumerate() {
            nodes.add(n).write(node);
            pins.add(n).write(HostPin::new(framewright::CpuId(n as u16)));
        }
        let frames = slice::from_raw_parts(descriptors.cast().as_ptr(), plan.frames);
        Parts {
            memory: Memory::carve_beside(plan, frames, tables),
            cpu_nodes: slice::from_raw_parts(nodes.as_ptr(), cpus),
            pins: slice::from_raw_parts(pins.as_ptr(), cpus),
        }
    }
}

fn reserve(bytes: usize, what: &'static str) -> Result<Mapping, ArenaError> {
    // 2 MiB: so that huge pages fit from the first descriptor on.
    Mapping::lazy(bytes.max(1), 2 << 20).map_err(|source| ArenaError::Reserve { what, bytes, source })
}
