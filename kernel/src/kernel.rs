//! The allocator as kernel code uses it, and what the kernel keeps of each page frame.
#![expect(unsafe_code, reason = "a block's memory is reached by its address")]

use core::cell::UnsafeCell;
use core::mem::size_of;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use framewright::frame::{FrameUser, Zeroable};
use framewright::hotplug::OfflineError;
use framewright::{AllocError, Allocator, Cpu, CpuId, Frame, FreeError, Migratetype, NodeId, Order, Pfn};

use crate::machine::{List, Machine};
use crate::metal::{Metal, Pin};
use crate::paging::{PAGE, direct};
use crate::percpu::{MAX_CPUS, PerCpu, State};
use crate::{apic, arch, clock, percpu};

/// Data that the kernel keeps of a page frame, beside the allocator's own word: as large as Linux' `struct page`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Flags of the frame: [`Page::BAD`].
    pub(crate) flags: u64,
    /// The next block of a scenario's chain.
    pub(crate) next: u64,
    /// A scenario's own mark.
    pub(crate) mark: u64,
    unused: [u64; 4],
}

impl Page {
    /// The memory of the frame is broken.
    pub(crate) const BAD: u64 = 1;
}

impl FrameUser for Page {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        (self.flags & Self::BAD != 0).then_some("the frame is marked bad")
    }
}

// SAFETY: it is numbers.
unsafe impl Zeroable for Page {}

const _: () = assert!(size_of::<Frame<Metal, Page>>() == 64);

pub(crate) type Pages = Allocator<'static, Metal, Page>;

/// Most frames that the command line can say are broken.
pub(crate) const MAX_BAD: usize = 64;

/// The kernel that boot has made.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) machine: &'static Machine,
    /// The page allocator.
    pub(crate) pages: Pages,
    pub(crate) cpu_nodes: &'static [NodeId],
    /// Frames that are broken, and must never be handed out.
    pub(crate) bad: List<Pfn, MAX_BAD>,
}

/// Longest time that CPUs that sleep may take to answer: the emulator's host may be busy.
const ANSWER_MS: u64 = 1000;

/// A CPU's view of the allocator.
pub(crate) type View = Cpu<'static, 'static, Metal, Page>;

/// A CPU's pin and view of the allocator, made once for each start of the CPU.
struct Place {
    pin: Option<Pin>,
    view: Option<View>,
}

struct Views([UnsafeCell<Place>; MAX_CPUS]);

// SAFETY: a place is used by its own CPU, with interrupts off, and written while that CPU does not run.
unsafe impl Sync for Views {}

static VIEWS: Views = Views([const { UnsafeCell::new(Place { pin: None, view: None }) }; MAX_CPUS]);

static KERNEL: AtomicPtr<Kernel> = AtomicPtr::new(ptr::null_mut());

/// Makes `kernel` the one that CPUs find, and lets the boot CPU use it.
pub(crate) fn install(kernel: &'static Kernel) {
    KERNEL.store(ptr::from_ref(kernel).cast_mut(), Ordering::Release);
    kernel.give_view(percpu::current());
}

/// The kernel, for CPUs that come from nowhere. There is one from before the second CPU on.
pub(crate) fn the() -> &'static Kernel {
    let kernel = KERNEL.load(Ordering::Acquire);
    assert!(!kernel.is_null(), "no kernel is installed yet");
    // SAFETY: `install` took a `&'static Kernel`.
    unsafe { &*kernel }
}

impl Kernel {
    /// Lets `cpu` use the allocator: [`with_cpu`](Self::with_cpu) works there from now on.
    pub(crate) fn give_view(&'static self, cpu: &PerCpu) {
        let place = VIEWS.0[cpu.number.index()].get();
        // SAFETY: the CPU does not run, or is this one and has no view yet, so no other code uses its place. Its pin
        // is used through `with_cpu` only, by that CPU, with interrupts off.
        unsafe {
            (*place).pin = Some(Pin::new(cpu.number));
            let pin = (*place).pin.as_ref().expect("it was put there just now");
            let view = (*place).view.insert(self.pages.cpu(pin));
            cpu.set_client(ptr::from_ref(view).cast());
        }
    }

    /// Runs `f` with this CPU's view of the allocator, interrupts off. They are on before and after; and `f` does
    /// not call this again.
    #[inline(always)]
    pub(crate) fn with_cpu<R>(&self, f: impl FnOnce(&View) -> R) -> R {
        self.turn_off();
        let result = self.as_cpu(f);
        arch::interrupts_on();
        result
    }

    /// Turns interrupts off, which are on. Nothing allocates in a handler, so who allocates has them on: it need not
    /// remember how they were.
    #[inline(always)]
    fn turn_off(&self) {
        debug_assert!(arch::interrupts_are_on(), "the allocator is used with interrupts off");
        arch::interrupts_off();
    }

    /// As [`with_cpu`](Self::with_cpu), for code that has turned interrupts off, and will turn them on.
    #[inline(always)]
    pub(crate) fn as_cpu<R>(&self, f: impl FnOnce(&View) -> R) -> R {
        let view = self.enter();
        // SAFETY: interrupts are off until `f` has returned.
        let result = f(unsafe { &*view });
        self.leave();
        result
    }

    /// This CPU's view of the allocator, for a caller that has turned interrupts off, until it [leaves](Self::leave).
    /// Valid as long as interrupts are off: `give_view` came before, on this CPU or for it.
    #[inline(always)]
    fn enter(&self) -> *const View {
        debug_assert!(!arch::interrupts_are_on(), "the view of a CPU is used with interrupts on");
        if cfg!(debug_assertions) {
            assert!(!percpu::current().in_use.replace(true), "the view of a CPU is used from within its use");
        }
        percpu::client().cast::<View>()
    }

    #[inline(always)]
    fn leave(&self) {
        if cfg!(debug_assertions) {
            percpu::current().in_use.set(false);
        }
    }

    /// Allocates a block. If that fails, CPUs that sleep are woken to give back what their lists hold, and it is
    /// tried once more.
    ///
    /// # Errors
    /// The allocator's reason.
    #[inline(always)]
    pub(crate) fn alloc(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        self.turn_off();
        match self.as_cpu(|cpu| cpu.alloc_hit(order, migratetype)) {
            Some(pfn) => {
                arch::interrupts_on();
                Ok(pfn)
            }
            None => self.alloc_miss(order, migratetype),
        }
    }

    // With interrupts off; they are on when it returns. Out of line, so that a hit needs no room on the stack for a
    // miss' error.
    #[cold]
    #[inline(never)]
    fn alloc_miss(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        let block = self.as_cpu(|cpu| cpu.alloc(order, migratetype));
        arch::interrupts_on();
        block.or_else(|_| {
            self.have_all_answer();
            self.with_cpu(|cpu| cpu.alloc(order, migratetype))
        })
    }

    /// Frees a block.
    ///
    /// # Errors
    /// The reason why the free is refused.
    #[inline(always)]
    pub(crate) fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // No closure: one that several callers share may be left out of line, and then no order is known in it.
        self.turn_off();
        // SAFETY: interrupts are off until the view has been used.
        let freed = unsafe { &*self.enter() }.free(pfn, order);
        self.leave();
        arch::interrupts_on();
        freed
    }

    /// CPUs that run.
    pub(crate) fn online(&self) -> impl Iterator<Item = &'static PerCpu> + use<> {
        let cpus = self.pages.cpus() as u16;
        (0..cpus).filter_map(|cpu| percpu::of(CpuId(cpu))).filter(|cpu| cpu.state() == State::Online)
    }

    /// Has every CPU that sleeps do what others have asked it for, and waits a little until it has.
    fn have_all_answer(&self) {
        let until = clock::ticks() + ANSWER_MS * clock::ticks_per_ms();
        for cpu in self.online() {
            let turn = cpu.turns.load(Ordering::Acquire);
            if turn % 2 == 0 {
                apic::wake(cpu.apic);
                // Awake, done what was asked, and asleep again; or given something better to do.
                while cpu.turns.load(Ordering::Acquire) < turn + 2 && clock::ticks() < until {
                    percpu::relax();
                }
            }
        }
    }

    /// Takes memory offline. CPUs that sleep are woken to give back the blocks of their lists, as in
    /// [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// The obstacle.
    pub(crate) fn offline(&self, range: Range<Pfn>) -> Result<u64, OfflineError> {
        self.with_cpu(|cpu| cpu.offline(range.clone())).or_else(|_| {
            self.pages.request_drain();
            self.have_all_answer();
            self.with_cpu(|cpu| cpu.offline(range))
        })
    }

    /// Runs `f` on the user slot of `frame`, which is in the block of `order` at `pfn` that the caller holds.
    pub(crate) fn slot<R>(&self, pfn: Pfn, order: Order, frame: Pfn, f: impl FnOnce(&mut Page) -> R) -> R {
        assert!(frame.0.wrapping_sub(pfn.0) < order.pages(), "{frame:?} is not in the block at {pfn:?}");
        // SAFETY: the block is the caller's, and `f` reaches one slot once.
        unsafe { self.pages.frames().with_user(frame, f) }.expect("blocks lie in the map")
    }

    /// A page table's page: unmovable, and zeroed.
    ///
    /// # Panics
    /// There is no memory.
    pub(crate) fn page_table(&self) -> Pfn {
        let pfn = self.alloc(Order::ZERO, Migratetype::Unmovable).expect("memory for a page table");
        // SAFETY: allocated just now; a whole page.
        unsafe { arch::zero(memory(pfn), PAGE as usize) };
        pfn
    }
}

/// The memory of a frame.
pub(crate) const fn memory(pfn: Pfn) -> *mut u8 {
    direct(pfn.0 * PAGE)
}
