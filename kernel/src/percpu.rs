//! Data of each CPU: its number and node, its segments, its stacks for interrupts; found through `gs`.
#![expect(unsafe_code, reason = "segment registers and the memory behind `gs` are set by hand")]

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::hint;
use core::mem::{offset_of, size_of};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use framewright::{CpuId, NodeId};

use crate::{apic, arch};

/// Most CPUs: as many as 8-bit APIC numbers name.
pub(crate) const MAX_CPUS: usize = 255;

/// Moments of waiting for one pause, and for one nap.
const WAITS_PER_PAUSE: u32 = 32;
const WAITS_PER_NAP: u32 = 1024;

const GS_BASE: u32 = 0xc000_0101;
const TASK_SEGMENT: u16 = 0x20;

/// Interrupt stacks, by their number in a gate. An exception's report needs room to format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InterruptStack {
    /// It is being woken.
    Wake = 1,
    /// Vectors of exceptions.
    Fault = 2,
    /// Exceptions on top of exceptions, and what cannot be held off.
    Abort = 3,
}

const STACK_BYTES: [usize; 3] = [4 << 10, 20 << 10, 20 << 10];

/// The task segment: where the interrupt stacks are.
#[repr(C, packed(4))]
struct TaskSegment {
    reserved: u32,
    privileged: [u64; 3],
    reserved2: u64,
    stacks: [u64; 7],
    reserved3: u64,
    io_map: u32,
}

/// State of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum State {
    /// Not started, or stopped.
    Off = 0,
    /// Running.
    Online = 1,
    /// Asked to stop.
    Leaving = 2,
}

/// One CPU's own memory.
#[repr(C, align(4096))]
pub(crate) struct PerCpu {
    /// Address of this value: the first word, so that `gs:0` leads to the rest.
    this: *const Self,
    /// Room that `kernel` keeps for this CPU: the second word. Written before the CPU runs.
    client: Cell<*const ()>,
    pub(crate) number: CpuId,
    pub(crate) node: NodeId,
    /// Its number on the interrupt bus.
    pub(crate) apic: u32,
    state: AtomicU32,
    /// The last piece of work it was given. Written by who gives it.
    pub(crate) given: AtomicU64,
    /// Number of times that it fell asleep or woke: even while it sleeps. Written by itself.
    pub(crate) turns: AtomicU64,
    /// Whether its view of the allocator is in use: kept with debug assertions only.
    pub(crate) in_use: Cell<bool>,
    /// Times it has waited a moment. Written and read by itself.
    waits: Cell<u32>,
    segments: UnsafeCell<[u64; 6]>,
    task: UnsafeCell<TaskSegment>,
    stacks: UnsafeCell<[u8; STACK_BYTES[0] + STACK_BYTES[1] + STACK_BYTES[2]]>,
}

impl fmt::Debug for PerCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpu").field("number", &self.number).finish_non_exhaustive()
    }
}

// SAFETY: shared fields are atomic or never change; the others are touched by their own CPU only.
unsafe impl Sync for PerCpu {}

const _: () = {
    assert!(offset_of!(PerCpu, this) == 0 && offset_of!(PerCpu, client) == 8);
    assert!(size_of::<PerCpu>() <= 64 << 10, "it is allocated as a block of order 4");
    assert!(size_of::<TaskSegment>() == 104);
};

impl PerCpu {
    /// A CPU that has not been settled.
    const fn empty() -> Self {
        Self {
            this: ptr::null(),
            client: Cell::new(ptr::null()),
            number: CpuId(0),
            node: NodeId(0),
            apic: 0,
            state: AtomicU32::new(State::Off as u32),
            given: AtomicU64::new(0),
            turns: AtomicU64::new(1),
            in_use: Cell::new(false),
            waits: Cell::new(0),
            segments: UnsafeCell::new([0; 6]),
            task: UnsafeCell::new(TaskSegment {
                reserved: 0,
                privileged: [0; 3],
                reserved2: 0,
                stacks: [0; 7],
                reserved3: 0,
                io_map: 0,
            }),
            stacks: UnsafeCell::new([0; STACK_BYTES[0] + STACK_BYTES[1] + STACK_BYTES[2]]),
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Online,
            2 => State::Leaving,
            _ => State::Off,
        }
    }

    /// Sets its state, or the state that it shall have.
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Sets what [`client`] finds.
    ///
    /// # Safety
    /// The CPU is the running one, or does not run.
    pub(crate) unsafe fn set_client(&self, client: *const ()) {
        self.client.set(client);
    }

    /// Makes the running CPU this one: segments, interrupt stacks, `gs`.
    ///
    /// # Safety
    /// Once per start of the CPU, by that CPU, before it takes an interrupt.
    pub(crate) unsafe fn load(&self) {
        let mut top = self.stacks.get() as u64;
        let mut stacks = [0; 7];
        for (stack, bytes) in stacks.iter_mut().zip(STACK_BYTES) {
            top += bytes as u64;
            *stack = top & !15;
        }
        let task = self.task.get() as u64;
        let limit = size_of::<TaskSegment>() as u64 - 1;
        let low = limit | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56;
        let code = 0x00af_9a00_0000_ffff;
        let data = 0x00cf_9200_0000_ffff;
        // SAFETY: this CPU's own memory, which nothing uses yet; the segments describe flat memory as before,
        // with the same numbers, so that what is loaded stays valid.
        unsafe {
            (*self.task.get()).stacks = stacks;
            // Behind the end: no port is open to anyone but the kernel.
            (*self.task.get()).io_map = (limit as u32 + 1) << 16;
            *self.segments.get() = [0, code, data, 0, low, task >> 32];
            let table =
                TablePointer { limit: size_of::<[u64; 6]>() as u16 - 1, base: self.segments.get() as u64 };
            asm!("lgdt [{}]", "ltr {:x}", in(reg) &raw const table, in(reg) TASK_SEGMENT, options(nostack));
            arch::write_msr(GS_BASE, self.this as u64);
        }
    }
}

/// Operand of `lgdt` and `lidt`.
#[repr(C, packed)]
pub(crate) struct TablePointer {
    /// The last byte's number.
    pub(crate) limit: u16,
    /// Address of the table.
    pub(crate) base: u64,
}

struct Table([AtomicPtr<PerCpu>; MAX_CPUS]);

static TABLE: Table = Table([const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS]);

struct BootCpu(UnsafeCell<PerCpu>);

// SAFETY: it is written once, before any other CPU runs.
unsafe impl Sync for BootCpu {}

static BOOT_CPU: BootCpu = BootCpu(UnsafeCell::new(PerCpu::empty()));

/// Makes the running CPU the boot CPU. Its node is learned later, and needed by none of its own code.
pub(crate) fn start_boot_cpu() {
    // SAFETY: first thing at boot, once, with interrupts off.
    unsafe {
        let cpu = BOOT_CPU.0.get();
        settle(cpu, CpuId(0), NodeId(0), own_apic());
        (*cpu).load();
        (*cpu).set_state(State::Online);
    }
}

/// This CPU's number on the interrupt bus, from its APIC.
fn own_apic() -> u32 {
    let leaf = core::arch::x86_64::__cpuid(1);
    leaf.ebx >> 24
}

/// Puts CPU `number` into memory and into the table.
///
/// # Safety
/// `place` is the caller's and stays, is writable, and aligned as a page. The CPU does not run.
pub(crate) unsafe fn settle(place: *mut PerCpu, number: CpuId, node: NodeId, apic: u32) {
    // SAFETY: by the caller's promise.
    unsafe {
        // In place, for it is larger than a stack; all zeroes but its turns is an empty one.
        arch::zero(place.cast(), size_of::<PerCpu>());
        (*place).this = place;
        (*place).number = number;
        (*place).node = node;
        (*place).apic = apic;
        (*place).turns = AtomicU64::new(1);
    }
    TABLE.0[number.index()].store(place, Ordering::Release);
}

/// Another CPU, if it was ever started.
pub(crate) fn of(cpu: CpuId) -> Option<&'static PerCpu> {
    // SAFETY: the table's entries stay valid.
    unsafe { TABLE.0.get(cpu.index())?.load(Ordering::Acquire).as_ref() }
}

/// The running CPU.
#[inline]
pub(crate) fn current() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: `load` has set `gs` before any code on this CPU reads it, and the value that it leads to stays.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) this, options(pure, nomem, nostack, preserves_flags));
        &*this
    }
}

/// Waits a moment. Most are spent spinning: for each pause the emulator leaves its loop and takes a lock that all its
/// CPUs share. Some are spent asleep: there may be more CPUs than the emulator has processors, and the one that is
/// waited for must get one.
pub(crate) fn relax() {
    let waits = &current().waits;
    waits.set(waits.get().wrapping_add(1));
    match waits.get() {
        n if n.is_multiple_of(WAITS_PER_NAP) => apic::nap(),
        n if n.is_multiple_of(WAITS_PER_PAUSE) => hint::spin_loop(),
        _ => {}
    }
}

/// Room that `kernel` keeps for the running CPU; null before that is made.
#[inline(always)]
pub(crate) fn client() -> *const () {
    let client;
    // SAFETY: as in `current`. It may change between two calls, at boot only: so not `pure`.
    unsafe { asm!("mov {}, gs:[8]", out(reg) client, options(nomem, nostack, preserves_flags)) };
    client
}
