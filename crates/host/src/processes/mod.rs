//! An arena in a file of memory (a memfd) that several processes use at the same time, and that goes on when any of
//! them is killed at any moment.
//!
//! # How
//! The whole allocator is in the file, its tables with it, and every process maps the file at the same address,
//! because the tables point at each other. One robust mutex in the file guards it: the thread that holds it *is* the
//! allocator's one CPU, so its per-CPU lists are a common cache in front of the buddy lists, and its zone lock is never
//! waited for.
//!
//! Beside the tables is one word per frame that says which process owns the block that starts there (`owners`).
//! Every change of it is one store. If a process is killed while it holds the mutex, the next one is told by the system
//! (`EOWNERDEAD`) and makes all other tables again from these words: what a living process owns, or none, stays
//! allocated, everything else is free. O(frames).
//!
//! Each process holds a lock on the file, by a descriptor of its own. The system drops it when the process ends, also
//! when it is killed: so the others learn that it is dead. A process that closes descriptors that are not its code's,
//! as `closefrom(3)` does, counts as dead while it lives, and others get its blocks.
//!
//! # What becomes of a dead process's pages
//! - Blocks that it owned go back: at the next [`reap`](ProcessArena::reap), or before an allocation fails, or when
//!   another process attaches. Their memory holds what it held.
//! - Blocks that it had [disowned](ProcessArena::disown) are no process's. They stay until a process
//!   [adopts](ProcessArena::adopt) them, and [`verify`](ProcessArena::verify) counts them. A process that is killed
//!   between disowning a block and telling another one about it has lost it: no process can know that.
//!
//! # What it costs
//! An uncontended robust mutex around every call, and processes wait for each other. A program that allocates often
//! takes large blocks here and divides them alone.
//!
//! # What it does not do
//! Processes trust each other: one that writes to the tables breaks all. They must run the same build of this library,
//! which is checked. A forked child must attach itself; on what it inherited each call is refused, and dropping that
//! does nothing.
#![expect(unsafe_code, reason = "the allocator lies in memory that other processes map, too")]

mod error;
mod layout;
mod owners;
mod system;
#[cfg(test)]
mod tests;

use core::fmt;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use framewright::config::Engine;
use framewright::frame::MAX_ZONE_PAGES;
use framewright::{Allocator, Config, Cpu, CpuId, Migratetype, NodeId, Order, Pfn, Plan, Request};
use framewright::{ZoneSpec, ZoneType};

use crate::arena::PAGE_BYTES;
use crate::platform::{Host, HostPin};
use crate::robust::Acquired;
use crate::store;

pub use error::ProcessError;
pub use layout::MOST_PROCESSES;
use layout::{Header, Inner, Label, Layout, MAGIC, build};
use owners::{NOBODY, Owned, Owners};
use system::{Life, Memory};

/// Description of an arena of several processes.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
    /// Its size in bytes, rounded up to whole pages. At most 1 TiB.
    pub bytes: u64,
    /// Whether the file is made of pages of 2 MiB from the system's hugetlb pool.
    pub huge_pages: bool,
    /// Name of the file in `/proc/PID/fd` and `/proc/PID/maps`.
    pub name: String,
    /// The allocator's configuration. Its per-CPU lists are those of one CPU.
    pub config: Config,
}

impl ProcessOptions {
    /// Bytes of base pages.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes, huge_pages: false, name: "framewright".into(), config: Config::default() }
    }
}

/// Counts of an arena's base pages by their place, made by [`ProcessArena::verify`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessAccount {
    /// On the buddy lists.
    pub free: u64,
    /// On the common lists in front of them.
    pub on_lists: u64,
    /// Owned by this process.
    pub mine: u64,
    /// Owned by other living processes.
    pub others: u64,
    /// Owned by processes that are dead, and not taken back yet.
    pub of_the_dead: u64,
    /// Disowned, and not adopted.
    pub disowned: u64,
}

/// Blocks of dead processes that came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessReaped {
    /// How many were found.
    pub processes: u32,
    /// Base pages taken back from them.
    pub pages: u64,
}

/// A process's use of an arena that it shares with others. See [the module](self) for what that means.
///
/// ```
/// use framewright_host::processes::{ProcessArena, ProcessOptions};
/// use framewright_host::{Migratetype, Order};
///
/// let arena = ProcessArena::create(&ProcessOptions::new(8 << 20))?;
/// // A file descriptor, for another process: inherited, or sent over a socket. That one calls `ProcessArena::attach`.
/// let _for_others = arena.file();
/// let pfn = arena.alloc(Order::ZERO, Migratetype::Movable)?;
/// assert!(arena.address(pfn).is_some());
/// arena.free(pfn, Order::ZERO)?;
/// # Ok::<(), framewright_host::ProcessError>(())
/// ```
///
/// Any thread may use it. A frame's number alone is no right to its memory: [`address`](Self::address) gives a pointer,
/// and the caller that uses it sees to it that no other code does.
pub struct ProcessArena {
    memory: Memory,
    file: OwnedFd,
    life: Life,
    layout: Layout,
    pages: u64,
    /// This process's number in the arena, from 1.
    me: u16,
}

impl fmt::Debug for ProcessArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessArena")
            .field("me", &self.me)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> ProcessError {
    move |source| ProcessError::System { what, source }
}

fn zone(pages: u64) -> ZoneSpec {
    ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages }
}

const CPU_NODES: [NodeId; 1] = [NodeId(0)];

/// Addresses to try for a new arena: far from what loaders and the system use; if a tool leaves no such room, lower.
fn addresses() -> impl Iterator<Item = usize> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut seed = u64::from(now.subsec_nanos()) ^ now.as_secs() << 30 ^ u64::from(std::process::id()) << 40;
    (0..32_usize).map(move |n| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = (seed >> 40) as usize;
        // 16 TiB from 32 TiB on, or 8 TiB from 4 TiB on, in steps of 1 GiB.
        if n % 2 == 0 {
            (1 << 45) + ((slot % (1 << 14)) << 30)
        } else {
            (1 << 42) + ((slot % (1 << 13)) << 30)
        }
    })
}

impl ProcessArena {
    /// Makes an arena in a new file, and attaches this process to it. O(pages / 1024).
    ///
    /// # Errors
    /// The option that is wrong, or the means that the system lacks.
    pub fn create(options: &ProcessOptions) -> Result<Self, ProcessError> {
        if options.config.page_kib != 4 {
            return Err(framewright::SetupError::page_kib(options.config.page_kib).into());
        }
        if options.config.engine == Engine::Compact {
            let only = "an arena of one process";
            return Err(framewright::SetupError::CompactNeeds(only).into());
        }
        let pages = options.bytes.div_ceil(PAGE_BYTES as u64);
        if !(1..=MAX_ZONE_PAGES).contains(&pages) {
            return Err(ProcessError::TooLarge);
        }
        let plan = Plan::new(&[zone(pages)], &CPU_NODES, &options.config)?;
        let layout = Layout::new(&plan, pages, options.huge_pages)?;
        let name = CString::new(options.name.as_str())
            .map_err(|_| failed("the arena's name")(io::ErrorKind::InvalidInput.into()))?;
        let file = system::memory_file(&name, layout.bytes, options.huge_pages)
            .map_err(failed("a file of memory for the arena cannot be made"))?;
        let (mut mapped, mut label_address) = (Err(io::ErrorKind::AddrInUse.into()), 0);
        for address in addresses() {
            let tried = Memory::map(file.as_raw_fd(), address, layout.bytes);
            label_address = address;
            // A place that is taken explains nothing if another one failed for a reason of its own.
            let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
            if mapped.is_err() && !tried.as_ref().is_err_and(is_taken) {
                mapped = tried;
            }
            if mapped.is_ok() {
                break;
            }
        }
        let memory = mapped.map_err(failed(if options.huge_pages {
            "the arena cannot be mapped, for which the pool needs huge pages of 2 MiB (`sysctl vm.nr_hugepages`)"
        } else {
            "the arena cannot be mapped"
        }))?;
        let life = Life::new(file.as_raw_fd()).map_err(failed("the arena's file cannot be opened anew"))?;
        let label = Label {
            magic: 0,
            build: build(),
            address: label_address as u64,
            pages,
            huge: options.huge_pages.into(),
            config: options.config,
        };
        let mut arena = Self { memory, file, life, layout, pages, me: 1 };
        let header = arena.header_at();
        // SAFETY: memory of the file's own, zeroed, which no other code has seen.
        unsafe {
            (&raw mut (*header).label).write(label);
            (*header).lock.init(true).map_err(failed("the arena's lock cannot be made"))?;
        }
        {
            let guard = arena.enter()?;
            arena.make_tables(&guard)?;
        }
        // Now it is an arena.
        // SAFETY: as above.
        unsafe { (&raw mut (*header).label.magic).write(MAGIC) };
        arena.me = 0;
        arena.claim()?;
        Ok(arena)
    }

    /// Attaches this process to the arena in a file that [`create`](Self::create) has made, in this process or another.
    ///
    /// # Errors
    /// It is no such file, or of another build; its place in this process's memory is taken; 64 processes use it.
    pub fn attach(file: BorrowedFd<'_>) -> Result<Self, ProcessError> {
        let file = file.try_clone_to_owned().map_err(failed("the arena's file"))?;
        let reader = File::from(file.try_clone().map_err(failed("the arena's file"))?);
        let word = |offset: usize| {
            let mut bytes = [0; 8];
            let at = (offset_of!(Header, label) + offset) as u64;
            reader.read_exact_at(&mut bytes, at).map_err(|_| ProcessError::NotAnArena)?;
            Ok::<_, ProcessError>(u64::from_ne_bytes(bytes))
        };
        if word(offset_of!(Label, magic))? != MAGIC {
            return Err(ProcessError::NotAnArena);
        }
        if word(offset_of!(Label, build))? != build() {
            return Err(ProcessError::OtherBuild);
        }
        let address = word(offset_of!(Label, address))? as usize;
        let pages = word(offset_of!(Label, pages))?;
        let huge = word(offset_of!(Label, huge))? != 0;
        let bytes = reader.metadata().map_err(failed("the arena's file"))?.len();
        let bytes = usize::try_from(bytes).map_err(|_| ProcessError::TooLarge)?;
        let memory =
            Memory::map(file.as_raw_fd(), address, bytes).map_err(|error| match error.raw_os_error() {
                Some(libc::EEXIST) => ProcessError::AddressTaken(address),
                _ => failed("the arena cannot be mapped")(error),
            })?;
        let life = Life::new(file.as_raw_fd()).map_err(failed("the arena's file cannot be opened anew"))?;
        // SAFETY: the file's beginning, written by the same build, and not changed any more.
        let config = unsafe { (*memory.start().cast::<Header>().as_ptr()).label.config };
        let plan = Plan::new(&[zone(pages)], &CPU_NODES, &config)?;
        let layout = Layout::new(&plan, pages, huge)?;
        if layout.bytes != bytes {
            return Err(ProcessError::NotAnArena);
        }
        let mut arena = Self { memory, file, life, layout, pages, me: 0 };
        arena.claim()?;
        Ok(arena)
    }

    /// Takes a place among the processes.
    fn claim(&mut self) -> Result<(), ProcessError> {
        let place = {
            let guard = self.enter()?;
            self.reap_with(&guard)?;
            let place = free_place(guard.header(), &self.life).ok_or(ProcessError::Full)?;
            guard.header().processes[place].store(std::process::id(), Relaxed);
            place
        };
        self.me = place as u16 + 1;
        Ok(())
    }

    /// The file, to be passed to other processes.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// This process's number in the arena, from 1. A later process may get the number of a dead one.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.me
    }

    /// Base pages of the arena: frames from 0 on.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Address of a frame's first byte, in every process. `None` if the arena has no such frame.
    #[must_use]
    pub fn address(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        if pfn.0 >= self.pages() {
            return None;
        }
        // SAFETY: the pages are in the mapping from there on.
        Some(unsafe { self.memory.start().add(self.layout.pages + pfn.0 as usize * PAGE_BYTES) })
    }

    /// Allocates a block, which is this process's. Takes dead processes' blocks back before it fails. O(1) plus the
    /// refill of the common lists.
    ///
    /// # Errors
    /// No memory.
    pub fn alloc(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, ProcessError> {
        let guard = self.enter()?;
        let request = Request::new(order, migratetype);
        let alloc = || guard.with_cpu(|cpu| cpu.alloc_with(&request, &framewright::Helpers::NONE));
        let pfn = match alloc() {
            Ok(pfn) => pfn,
            Err(error) if self.reap_with(&guard)?.pages == 0 => return Err(ProcessError::Alloc(error)),
            Err(_) => alloc().map_err(ProcessError::Alloc)?,
        };
        self.owners().set(pfn, Some(Owned { order, owner: self.me, earlier: false }));
        Ok(pfn)
    }

    /// Frees a block of this process's.
    ///
    /// # Errors
    /// There is no such block, or it is not this process's. Nothing has changed then.
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), ProcessError> {
        let guard = self.enter()?;
        let owned = self.owned_by(pfn, order, self.me)?;
        // The owner first: a kill in between leaves a free block, not one of a dead process.
        self.owners().set(pfn, None);
        self.give_back(&guard, pfn, owned)
    }

    /// Gives up a block of this process's: it outlives this process, and the process that [adopts](Self::adopt) it has
    /// it. The way to hand a block to another process: disown it, tell the other one its number; that one adopts it.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn disown(&self, pfn: Pfn, order: Order) -> Result<(), ProcessError> {
        let _guard = self.enter()?;
        let owned = self.owned_by(pfn, order, self.me)?;
        self.owners().set(pfn, Some(Owned { owner: NOBODY, ..owned }));
        Ok(())
    }

    /// Makes a block that no process owns this process's.
    ///
    /// # Errors
    /// There is no such block, or a process owns it.
    pub fn adopt(&self, pfn: Pfn, order: Order) -> Result<(), ProcessError> {
        let _guard = self.enter()?;
        let owned = self.owned_by(pfn, order, NOBODY)?;
        self.owners().set(pfn, Some(Owned { owner: self.me, ..owned }));
        Ok(())
    }

    /// Takes the blocks of dead processes back. O(frames) if there is a dead process, else O(processes).
    ///
    /// # Errors
    /// The arena is broken, or this process is a forked child.
    pub fn reap(&self) -> Result<ProcessReaped, ProcessError> {
        let guard = self.enter()?;
        self.reap_with(&guard)
    }

    /// The blocks that are no process's, in ascending order: for a process that sees after what others have left.
    /// O(frames).
    ///
    /// # Errors
    /// As [`reap`](Self::reap).
    pub fn disowned(&self) -> Result<Vec<(Pfn, Order)>, ProcessError> {
        let _guard = self.enter()?;
        let blocks = self.owners().blocks().filter(|(_, owned)| owned.owner == NOBODY);
        Ok(blocks.map(|(pfn, owned)| (pfn, owned.order)).collect())
    }

    /// How often the tables have been made again, how many processes were found dead, and how many base pages were
    /// taken back from them, since the arena was made. Zeroes in a forked child.
    #[must_use]
    pub fn history(&self) -> (u64, u64, u64) {
        if self.memory.is_forked() {
            return (0, 0, 0);
        }
        let header = self.header();
        (header.rebuilds.load(Relaxed), header.deaths.load(Relaxed), header.taken_back.load(Relaxed))
    }

    /// Checks every invariant of the allocator, and that it and the table of owners agree on every block. O(frames).
    /// Others wait for it.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn verify(&self) -> Result<ProcessAccount, ProcessError> {
        let guard = self.enter()?;
        let allocator = guard.allocator();
        let counted = allocator.verify().map_err(ProcessError::Violation)?;
        let mut account =
            ProcessAccount { free: counted.free, on_lists: counted.on_pcp, ..Default::default() };
        let (mut taken, mut earlier) = (0, 0);
        for (pfn, owned) in self.owners().blocks() {
            let pages = owned.order.pages();
            *match owned.owner {
                NOBODY => &mut account.disowned,
                owner if owner == self.me => &mut account.mine,
                owner if self.is_alive(owner) => &mut account.others,
                _ => &mut account.of_the_dead,
            } += pages;
            if owned.earlier {
                earlier += pages;
            } else {
                taken += pages;
                if allocator.frames().find(pfn).0 != pfn {
                    let found = (pfn.0, allocator.frames().find(pfn).0.0);
                    return Err(ProcessError::Owners { what: "where an owned block starts", found });
                }
            }
        }
        if taken != counted.allocated {
            let found = (taken, counted.allocated);
            return Err(ProcessError::Owners { what: "base pages allocated", found });
        }
        let all = counted.free + counted.on_pcp + counted.allocated + counted.quarantined + earlier;
        if all != self.pages() {
            return Err(ProcessError::Owners { what: "base pages in all", found: (self.pages(), all) });
        }
        Ok(account)
    }

    // ---- for the lock's holder -----------------------------------------------------------------------------------

    fn enter(&self) -> Result<Guard<'_>, ProcessError> {
        if self.memory.is_forked() {
            return Err(ProcessError::Forked);
        }
        let lock = &self.header().lock;
        let acquired = lock.lock().map_err(|_| ProcessError::Broken)?;
        let guard = Guard(self);
        if acquired == Acquired::OwnerDied {
            // If this fails, the lock is released without having been mended: no process gets it again.
            guard.header().rebuilds.fetch_add(1, Relaxed);
            self.make_tables(&guard)?;
            lock.mended();
        }
        Ok(guard)
    }

    /// Makes all tables but the owners' again from theirs: frees what dead processes own, keeps what living ones and
    /// none does.
    fn make_tables(&self, guard: &Guard<'_>) -> Result<(), ProcessError> {
        let owners = self.owners();
        self.bury(guard, |_| Ok(0))?;
        let mut free = Vec::new();
        let mut at = Pfn(0);
        for (pfn, owned) in owners.blocks() {
            owners.set(pfn, Some(Owned { earlier: true, ..owned }));
            free.push((at, pfn));
            at = pfn.add(owned.order.pages());
        }
        free.push((at, Pfn(self.pages())));

        let config = self.header().label.config;
        let zones = [zone(self.pages())];
        let plan = Plan::new(&zones, &CPU_NODES, &config)?;
        let allocator: Inner = {
            let part = |offset| {
                // SAFETY: inside the mapping, by its layout.
                unsafe { self.memory.start().add(offset) }
            };
            // SAFETY: parts of the file that only the lock's holder uses, as large as the plan says; no thread has a
            // reference into them now. They stay for as long as the mapping, which outlives every use of the allocator.
            let parts = unsafe {
                // Up to the frames, where a page of the file begins: of a part of a page of 2 MiB, Linux before 5.19
                // clears nothing.
                let (start, bytes) = (self.layout.descriptors, self.layout.pages - self.layout.descriptors);
                system::clear(self.file.as_raw_fd(), start, part(start), bytes);
                store::parts::<()>(&plan, &CPU_NODES, part(self.layout.descriptors), part(self.layout.tables))
            };
            Allocator::new(&zones, parts.cpu_nodes, config, parts.memory, None)?
        };
        for (start, end) in free.into_iter().filter(|(start, end)| start < end) {
            allocator.add_memory(start, end.0 - start.0)?;
        }
        allocator.resize_pcps();
        let header = self.header_at();
        // SAFETY: only the lock's holder reaches it, and no thread has a reference to the one before.
        unsafe { (&raw mut (*header).allocator).cast::<Inner>().write(allocator) };
        Ok(())
    }

    /// Finds dead processes. Each of their blocks is taken off the table and handed to `take`, which returns the pages.
    fn bury(
        &self,
        guard: &Guard<'_>,
        mut take: impl FnMut((Pfn, Owned)) -> Result<u64, ProcessError>,
    ) -> Result<ProcessReaped, ProcessError> {
        let header = guard.header();
        let known = |n: usize| header.processes[n].load(Relaxed) != 0 && n + 1 != usize::from(self.me);
        let dead: Vec<usize> = (0..MOST_PROCESSES).filter(|&n| known(n) && self.life.take(n)).collect();
        let mut reaped = ProcessReaped { processes: dead.len() as u32, pages: 0 };
        if dead.is_empty() {
            return Ok(reaped);
        }
        for (pfn, owned) in self.owners().blocks() {
            if dead.contains(&(usize::from(owned.owner).wrapping_sub(1))) {
                self.owners().set(pfn, None);
                take((pfn, owned))?;
                reaped.pages += owned.order.pages();
            }
        }
        for n in dead {
            header.processes[n].store(0, Relaxed);
            self.life.give(n);
        }
        header.deaths.fetch_add(reaped.processes.into(), Relaxed);
        header.taken_back.fetch_add(reaped.pages, Relaxed);
        Ok(reaped)
    }

    fn reap_with(&self, guard: &Guard<'_>) -> Result<ProcessReaped, ProcessError> {
        self.bury(guard, |(pfn, owned)| self.give_back(guard, pfn, owned).map(|()| 0))
    }

    /// Gives a block that is off the table of owners back to the allocator.
    fn give_back(&self, guard: &Guard<'_>, pfn: Pfn, owned: Owned) -> Result<(), ProcessError> {
        if owned.earlier {
            guard.allocator().add_memory(pfn, owned.order.pages())?;
            return Ok(());
        }
        guard.with_cpu(|cpu| cpu.free(pfn, owned.order)).map_err(ProcessError::Free)
    }

    /// The block of `order` at `pfn`, if it is `owner`'s.
    fn owned_by(&self, pfn: Pfn, order: Order, owner: u16) -> Result<Owned, ProcessError> {
        match self.owners().get(pfn) {
            Some(owned) if owned.order == order && owned.owner == owner => Ok(owned),
            Some(owned) if owned.order == order => {
                let owner = (owned.owner != NOBODY).then_some(owned.owner);
                Err(ProcessError::NotOwner { pfn, owner })
            }
            _ => Err(ProcessError::NoSuchBlock { pfn, order }),
        }
    }

    fn is_alive(&self, owner: u16) -> bool {
        if owner == self.me {
            return true;
        }
        let place = usize::from(owner) - 1;
        let dead = self.life.take(place);
        if dead {
            self.life.give(place);
        }
        !dead
    }

    const fn header_at(&self) -> *mut Header {
        self.memory.start().cast().as_ptr()
    }

    fn header(&self) -> &Header {
        // SAFETY: the file's beginning, valid since `create`. What changes in it are atomic words, the mutex,
        // and the allocator, which `MaybeUninit` keeps from being looked at here.
        unsafe { &*self.header_at() }
    }

    fn owners(&self) -> Owners<'_> {
        // SAFETY: one word for each page is there, zeroed at first, and all are reached atomically.
        Owners(unsafe {
            let start = self.memory.start().add(self.layout.owners).cast::<AtomicU32>();
            slice::from_raw_parts(start.as_ptr(), self.pages() as usize)
        })
    }
}

impl Drop for ProcessArena {
    /// Gives back every block that this process owns, and its place. O(frames).
    fn drop(&mut self) {
        let Ok(guard) = self.enter() else { return };
        if self.me == 0 {
            return;
        }
        for (pfn, owned) in self.owners().blocks() {
            if owned.owner == self.me {
                self.owners().set(pfn, None);
                let given = self.give_back(&guard, pfn, owned);
                debug_assert!(given.is_ok(), "{given:?}");
            }
        }
        let place = usize::from(self.me) - 1;
        guard.header().processes[place].store(0, Relaxed);
        self.life.give(place);
    }
}

/// Takes a place that is no process's. One whose process has died since the last look for the dead is not free: its
/// blocks would be the newcomer's.
fn free_place(header: &Header, life: &Life) -> Option<usize> {
    (0..MOST_PROCESSES).find(|&n| header.processes[n].load(Relaxed) == 0 && life.take(n))
}

/// The lock, held.
struct Guard<'a>(&'a ProcessArena);

impl<'a> Guard<'a> {
    fn header(&self) -> &'a Header {
        self.0.header()
    }

    fn allocator(&self) -> &Inner {
        // SAFETY: written by `make_tables`, and whole: a holder of the lock that died has been mended after.
        unsafe { self.header().allocator.assume_init_ref() }
    }

    /// Runs `f` as the allocator's one CPU.
    fn with_cpu<R>(&self, f: impl FnOnce(&Cpu<'_, '_, Host>) -> R) -> R {
        // SAFETY: the thread that holds the lock is that CPU, and takes no second pin while `f` runs.
        let pin = unsafe { HostPin::new(CpuId(0)) };
        f(&self.allocator().cpu(&pin))
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.header().lock.unlock();
    }
}
