//! No allocator: a stack of blocks for each CPU.

use core::cell::RefCell;
use std::io;

use framewright::Pfn;

use super::{Caller, Calls, Case, JITTER, Rig};
use crate::clock::Ps;
use crate::engine::{self, Access, Region, Report, Simulator, touch};
use crate::memory::{Mapping, Place, Room};
use crate::model::{LINE, Model};

/// What a stack says of itself: where its blocks are and how many there are, in a line and its pair that no other stack has.
type Head = [u64; 16];

/// The blocks of each CPU.
pub(super) struct Stacks {
    simulator: Simulator,
    stacks: Vec<Stack>,
    caller: Caller,
    /// Private work of an allocation and of a free.
    work: [Ps; 2],
}

struct Stack {
    blocks: RefCell<Vec<Pfn>>,
    /// Host addresses of what a program would keep there.
    head: usize,
    slots: usize,
    /// Host address of the descriptor of frame 0, if there are any.
    descriptors: usize,
}

impl Stacks {
    /// Stacks of as many blocks as each CPU is to have, on its node, as the descriptors are.
    pub(super) fn new(model: &Model, case: &Case, seed: u64) -> io::Result<Self> {
        let shape = model.shape;
        let blocks = case.blocks as usize;
        let mut room = Room::default();
        // A frame's number is as its descriptor lies: node by node.
        let mut frames = 0_u64;
        let mut descriptors = None;
        let mut nodes = Vec::new();
        let mut places: Vec<(u16, u64, Place<Head>, Place<u64>)> = Vec::new();
        for node in 0..shape.nodes {
            for cpu in (0..case.cpus).filter(|&cpu| shape.node_of(cpu) == node) {
                // A CPU that gets blocks from another has room for its own beside them.
                places.push((cpu, frames, room.add(1), room.add(2 * blocks)));
                frames += case.blocks << case.order.get();
            }
            room.align_to_page();
            nodes.push((room.bytes(), node));
        }
        let end = room.bytes();
        if case.caller == Caller::Kernel {
            let place: Place<[u8; LINE]> = room.add(frames as usize);
            descriptors = Some(place);
        }
        let mapping = Mapping::new(room.bytes())?;
        let start = mapping.start().addr().get();
        let mut simulator = Simulator::new(model.clone(), mapping, seed)?;
        let mut regions: Vec<Region> =
            nodes.into_iter().map(|(end, node)| Region { end, node, caches: None }).collect();
        let at = descriptors.map_or(end, |place| place.offset());
        if let Some(place) = descriptors {
            simulator.name(place.offset(), place.end(), "frame descriptors");
            for &(cpu, first, ..) in &places {
                let end = at + ((first + (case.blocks << case.order.get())) as usize) * LINE;
                regions.push(Region { end, node: shape.node_of(cpu), caches: None });
            }
        }
        simulator.set_regions(regions);
        let step = case.order.pages();
        let stacks = places.iter().map(|(_, first, head, slots)| {
            simulator.name(head.offset(), slots.end(), "stacks");
            // Popped from the end: the lowest first.
            let blocks = (0..case.blocks).rev().map(|n| Pfn(first + n * step)).collect();
            Stack {
                blocks: RefCell::new(blocks),
                head: start + head.offset(),
                slots: start + slots.offset(),
                descriptors: start + at,
            }
        });
        let mut numbered: Vec<(u16, Stack)> = Vec::new();
        for (stack, (cpu, ..)) in stacks.zip(&places) {
            numbered.push((*cpu, stack));
        }
        numbered.sort_by_key(|(cpu, _)| *cpu);
        let work = match case.caller {
            Caller::Kernel => {
                let more = model.fitted.page_ns * (step - 1) as f64;
                [model.fitted.alloc_ns, model.fitted.free_ns + more]
            }
            Caller::Library => [model.fitted.access_ns; 2],
        };
        Ok(Self {
            simulator,
            stacks: numbered.into_iter().map(|(_, stack)| stack).collect(),
            caller: case.caller,
            work: work.map(Ps::from_ns),
        })
    }
}

impl Rig for Stacks {
    fn run(&mut self, cpus: u16, program: impl Fn(usize, &dyn Calls)) -> Report {
        let Self { simulator, stacks, caller, work } = self;
        let (program, caller, work) = (&program, *caller, *work);
        let programs = stacks.iter().take(usize::from(cpus)).enumerate();
        let programs = programs.map(|(n, stack)| -> Box<dyn FnOnce() + '_> {
            Box::new(move || program(n, &OnCpu { stack, caller, work }))
        });
        simulator.run(programs.collect(), JITTER)
    }

    fn prepare(&mut self, cpu: u16, blocks: u64) -> Vec<Pfn> {
        let on_cpu = OnCpu { stack: &self.stacks[usize::from(cpu)], caller: self.caller, work: self.work };
        (0..blocks).map(|_| on_cpu.alloc()).collect()
    }

    fn forget_caches(&mut self) {
        self.simulator.forget_caches();
    }

    fn locks(&self) -> [u64; 3] {
        [0; 3]
    }

    fn simulator(&self) -> &Simulator {
        &self.simulator
    }
}

struct OnCpu<'s> {
    stack: &'s Stack,
    caller: Caller,
    work: [Ps; 2],
}

impl OnCpu<'_> {
    /// Looks how many blocks there are, and says how many there are then; touches one of them.
    fn moved(&self, slot: usize, access: Access) {
        touch(self.stack.head, size_of::<[u64; 2]>(), Access::Read);
        touch(self.stack.slots + slot * size_of::<u64>(), size_of::<u64>(), access);
        touch(self.stack.head, size_of::<u64>(), Access::Write);
    }

    fn describe(&self, pfn: Pfn, access: Access) {
        if self.caller == Caller::Kernel {
            touch(self.stack.descriptors + pfn.0 as usize * LINE, size_of::<u64>(), access);
        }
    }
}

impl Calls for OnCpu<'_> {
    fn alloc(&self) -> Pfn {
        engine::spend_about(self.work[0]);
        let popped = self.stack.blocks.borrow_mut().pop();
        let pfn = popped.expect("as many blocks as are asked for");
        let slot = self.stack.blocks.borrow().len();
        self.moved(slot, Access::Read);
        self.describe(pfn, Access::Write);
        pfn
    }

    fn free(&self, pfn: Pfn) {
        engine::spend_about(self.work[1]);
        self.describe(pfn, Access::Exchange);
        self.describe(pfn, Access::Write);
        let slot = self.stack.blocks.borrow().len();
        self.moved(slot, Access::Write);
        self.stack.blocks.borrow_mut().push(pfn);
    }
}
