//! No allocator: a stack of blocks for each CPU.

use core::cell::RefCell;

use framewright::{Cpu, FrameUser, Migratetype, Order, Pfn};

use super::{Caller, Compiled};
use crate::bench::Driver;
use crate::engine::{self, Access, touch};
use crate::model::{LINE, Shape};
use crate::platform::Sim;
use crate::world::{Line, Placed, Programs};

/// Each CPU has a stack of its own blocks, from which it pops and to which it pushes. Nothing is shared, merged or
/// checked. What a run takes here no allocator can spare it, but by touching its blocks in a better order.
#[derive(Debug)]
pub struct Floor<'w> {
    stacks: Vec<Stack<'w>>,
    around: Around,
}

/// Work around each call.
#[derive(Clone, Copy, Debug)]
pub enum Around {
    /// A kernel's work. It writes descriptors: where an allocation returns, and where the last reference is dropped.
    Kernel(Driver),
    /// A program's.
    Program(Compiled),
}

/// Most blocks of a stack.
pub const MOST: usize = 1024;

/// A stack in simulated memory: its head, in lines of its own, and its slots. Only where they are is of use.
#[derive(Debug)]
#[repr(C)]
struct Lines {
    head: [u64; 16],
    slots: [u64; MOST],
}

#[derive(Debug)]
struct Stack<'w> {
    blocks: RefCell<Vec<Pfn>>,
    lines: Placed<'w, Lines>,
}

impl<'w> Floor<'w> {
    /// Lines of a world's that each stack takes.
    pub const LINES: usize = size_of::<Lines>().div_ceil(size_of::<Line>());

    /// Stacks of `blocks` blocks for each of the first CPUs, in its node's memory: each node has a zone of this many
    /// pages.
    ///
    /// # Panics
    /// If a stack is to have more than [`MOST`] blocks.
    pub fn new<M: FrameUser>(
        programs: &Programs<'w, M>,
        shape: &Shape,
        [cpus, blocks]: [usize; 2],
        order: Order,
        node_pages: u64,
        around: Around,
    ) -> Self {
        assert!(blocks <= MOST, "{blocks} blocks in a stack of {MOST}");
        let mut next: Vec<u64> = (0..u64::from(shape.nodes)).map(|node| node * node_pages).collect();
        let stacks = (0..cpus).map(|cpu| {
            let node = shape.node_of(cpu as u16);
            let first = next[usize::from(node)];
            next[usize::from(node)] += (blocks as u64) << order.get();
            let lines = programs.place_on(node, "stacks", Lines { head: [0; 16], slots: [0; MOST] });
            // Popped from the end: the lowest first.
            let blocks = (0..blocks as u64).rev().map(|n| Pfn(first + (n << order.get())));
            Stack { blocks: RefCell::new(blocks.collect()), lines }
        });
        Self { stacks: stacks.collect(), around }
    }

    fn stack<M: FrameUser>(&self, cpu: &Cpu<'_, '_, Sim, M>) -> &Stack<'w> {
        &self.stacks[cpu.id().index()]
    }
}

impl Stack<'_> {
    /// Reads how many blocks there are, touches one of them, and writes how many there are then.
    fn touch(&self, slot: usize, access: Access) {
        let head = self.lines.address();
        touch(head, size_of::<[u64; 2]>(), Access::Read);
        touch(head + size_of::<[u64; 16]>() + slot * size_of::<u64>(), size_of::<u64>(), access);
        touch(head, size_of::<u64>(), Access::Write);
    }

    fn pop(&self) -> Option<Pfn> {
        let popped = self.blocks.borrow_mut().pop()?;
        self.touch(self.blocks.borrow().len(), Access::Read);
        Some(popped)
    }

    fn push(&self, pfn: Pfn) {
        self.touch(self.blocks.borrow().len(), Access::Write);
        self.blocks.borrow_mut().push(pfn);
    }
}

impl<M: FrameUser> Caller<M> for Floor<'_> {
    fn alloc(&self, cpu: &Cpu<'_, '_, Sim, M>, _: Order, _: Migratetype) -> Option<Pfn> {
        let stack = self.stack(cpu);
        match &self.around {
            Around::Program(program) => program.call(|| stack.pop()),
            Around::Kernel(kernel) => {
                engine::spend_about(kernel.get);
                let pfn = stack.pop()?;
                touch(kernel.descriptors + pfn.0 as usize * LINE, size_of::<u64>(), Access::Write);
                Some(pfn)
            }
        }
    }

    fn free(&self, cpu: &Cpu<'_, '_, Sim, M>, pfn: Pfn, order: Order) {
        let stack = self.stack(cpu);
        match &self.around {
            Around::Program(program) => program.call(|| stack.push(pfn)),
            Around::Kernel(kernel) => {
                engine::spend_about(kernel.put_of(order));
                for access in [Access::Exchange, Access::Write] {
                    touch(kernel.descriptors + pfn.0 as usize * LINE, size_of::<u64>(), access);
                }
                stack.push(pfn);
            }
        }
    }
}
