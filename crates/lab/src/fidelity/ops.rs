//! A trace's allocations and frees as a list that a kernel module can replay.

use std::collections::HashMap;

use framewright_workload::trace::{EventKind, Trace};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Whether the slot's block is freed; else one is allocated into it.
    pub is_free: bool,
    /// CPU that does it, below [`Ops::cpus`].
    pub cpu: u8,
    /// The block is 2^order pages.
    pub order: u8,
    /// Where the block is kept meanwhile, below [`Ops::slots`].
    pub slot: u32,
}

/// Operations in the order in which they happen, all on movable memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ops {
    /// CPUs that take part.
    pub cpus: u8,
    /// Blocks that are ever allocated.
    pub slots: u32,
    /// The operations.
    pub list: Vec<Op>,
}

/// As the module reads them: a header of four words, then a word for each operation, lowest byte first.
const MAGIC: u32 = u32::from_le_bytes(*b"FWOP");
const SLOT_BITS: u32 = 23;
const CPU_BITS: u32 = 4;
const FREE: u32 = 1 << 31;

/// Pages that a list may hold at a time: what the machine that replays it has.
const MOST_PAGES: u64 = 180_000;

impl Ops {
    /// CPUs that a list can name.
    pub const MOST_CPUS: u8 = 1 << CPU_BITS;

    /// The first `most` operations of a trace, its CPUs shared out to `cpus`. All blocks become movable: the module's
    /// zone holds nothing else. Left out are frees of blocks that the trace did not allocate, frees in parts, and
    /// blocks for which the machine would have no room.
    #[must_use]
    pub fn of_trace(trace: &Trace, cpus: u8, most: usize) -> Self {
        let mut ops = Self { cpus, slots: 0, list: Vec::new() };
        let mut live: HashMap<u64, (u8, u32)> = HashMap::new();
        let mut pages = 0;
        for event in &trace.events {
            if ops.list.len() >= most || ops.slots >> SLOT_BITS > 0 {
                break;
            }
            let cpu = (event.cpu % u16::from(cpus)) as u8;
            let size = 1_u64 << event.order;
            match event.kind {
                EventKind::PageAlloc if pages + size <= MOST_PAGES => {
                    let slot = ops.slots;
                    ops.slots += 1;
                    pages += size;
                    live.insert(event.pfn, (event.order, slot));
                    ops.list.push(Op { is_free: false, cpu, order: event.order, slot });
                }
                // Another block is there now, or none that is known.
                EventKind::PageAlloc => drop(live.remove(&event.pfn)),
                EventKind::PageFree => {
                    if let Some((order, slot)) =
                        live.remove(&event.pfn).filter(|&(order, _)| order == event.order)
                    {
                        pages -= size;
                        ops.list.push(Op { is_free: true, cpu, order, slot });
                    }
                }
                _ => {}
            }
        }
        ops
    }

    /// The list's file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = [MAGIC, self.list.len() as u32, self.slots, u32::from(self.cpus)];
        let word = |op: &Op| {
            let free = if op.is_free { FREE } else { 0 };
            free | u32::from(op.order) << (SLOT_BITS + CPU_BITS) | u32::from(op.cpu) << SLOT_BITS | op.slot
        };
        head.into_iter().chain(self.list.iter().map(word)).flat_map(u32::to_le_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright_workload::trace::Event;

    #[test]
    fn a_list_has_what_can_be_replayed_and_nothing_else() {
        let event = |kind, pfn, order, cpu| Event {
            time_ns: 0,
            pfn,
            gfp: 0,
            pid: 1,
            comm: 0,
            cpu,
            order,
            migratetype: Some(0),
            kind,
        };
        let events = vec![
            event(EventKind::PageFree, 9, 0, 0),
            event(EventKind::PageAlloc, 8, 3, 0),
            event(EventKind::PageAllocZoneLocked, 8, 3, 0),
            event(EventKind::PageAlloc, 32, 0, 3),
            event(EventKind::PageFree, 8, 0, 0),
            event(EventKind::PageFree, 32, 0, 2),
            event(EventKind::PageAlloc, 0, 10, 0),
        ];
        let trace = Trace { events, ..Trace::default() };
        let ops = Ops::of_trace(&trace, 2, 4);
        let op = |is_free, cpu, order, slot| Op { is_free, cpu, order, slot };
        assert_eq!(
            ops.list,
            [op(false, 0, 3, 0), op(false, 1, 0, 1), op(true, 0, 0, 1), op(false, 0, 10, 2)],
            "the block of order 3 is freed in parts"
        );
        assert_eq!(ops.slots, 3);
        let bytes = ops.to_bytes();
        assert_eq!(&bytes[..20], b"FWOP\x04\0\0\0\x03\0\0\0\x02\0\0\0\0\0\0\x18");
        assert_eq!(bytes[24..28], (FREE | 1).to_le_bytes());
        assert_eq!(Ops::of_trace(&trace, 2, 1).list.len(), 1);
    }
}
