//! A trace's allocations and frees as a list that a kernel module can replay.

use std::collections::HashMap;

use framewright_trace::trace::{EventKind, Trace};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    /// Whether the slot's block is freed; else one is allocated into it.
    pub is_free: bool,
    /// CPU that does it, below [`Ops::cpus`].
    pub cpu: u8,
    /// The block is 2^order pages.
    pub order: u8,
    /// Slot of the block until its free, below [`Ops::slots`].
    pub slot: u32,
}

/// Operations in the order in which they happen, all on movable memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ops {
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

/// As [`MOST_PAGES`], of operations that are made up.
const MOST_MADE_UP: u64 = 120_000;

/// Numbers that are the same on every machine.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

impl Ops {
    /// CPUs that a list can name.
    pub(crate) const MOST_CPUS: u8 = 1 << CPU_BITS;

    /// The first `most` operations of a trace, its CPUs shared out to `cpus`. All blocks become movable: the module's
    /// zone holds nothing else. Left out are frees of blocks that the trace did not allocate, frees in parts, and
    /// blocks for which the machine would have no room.
    pub(crate) fn of_trace(trace: &Trace, cpus: u8, most: usize) -> Self {
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

    /// `most` operations that no program makes, to see rules that recorded traces do not reach: bursts of 10 to 4,000
    /// allocations or frees of single pages, of orders 1 to 3, of huge blocks and of mixtures, freed last first or in
    /// any order. The same list each time. With several CPUs each burst is on one of them.
    pub(crate) fn made_up(cpus: u8, most: usize) -> Self {
        const BURSTS: [u64; 5] = [10, 50, 200, 1_000, 4_000];
        const MIXTURES: [&[u8]; 6] = [
            &[0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 3],
            &[1, 2, 3],
            &[0, 0, 0, 3, 3],
            &[0; 200],
            &[0, 1, 0, 2, 0, 3],
        ];
        let mut random = Xorshift(7);
        let mut ops = Self { cpus, slots: 0, list: Vec::new() };
        let mut live: Vec<(u8, u32)> = Vec::new();
        let mut pages = 0;
        while ops.list.len() < most {
            let allocates = random.below(2) == 0;
            let (burst, mixture) = (BURSTS[random.below(5) as usize], random.below(6) as usize);
            let cpu = random.below(cpus.into()) as u8;
            for _ in 0..burst.min((most - ops.list.len()) as u64) {
                if allocates && pages < MOST_MADE_UP {
                    let among = MIXTURES[mixture];
                    let order = match random.below(among.len() as u64) {
                        // A huge block now and then.
                        7 if mixture == 4 => 9,
                        n => among[n as usize],
                    };
                    pages += 1 << order;
                    live.push((order, ops.slots));
                    ops.list.push(Op { is_free: false, cpu, order, slot: ops.slots });
                    ops.slots += 1;
                } else if !allocates && !live.is_empty() {
                    let last = live.len() - 1;
                    let place =
                        if random.below(10) < 3 { random.below(live.len() as u64) as usize } else { last };
                    let (order, slot) = live.remove(place);
                    pages -= 1_u64 << order;
                    ops.list.push(Op { is_free: true, cpu, order, slot });
                }
            }
        }
        ops
    }

    /// The list's file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
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
    use framewright_trace::trace::Event;

    use super::*;

    #[test]
    fn made_up_operations_free_what_was_allocated() {
        let ops = Ops::made_up(2, 30_000);
        assert_eq!(ops, Ops::made_up(2, 30_000));
        assert_eq!(ops.list.len(), 30_000);
        let mut live = HashMap::new();
        let mut most = 0;
        for op in &ops.list {
            match op.is_free {
                true => assert_eq!(live.remove(&op.slot), Some(op.order)),
                false => assert_eq!(live.insert(op.slot, op.order), None),
            }
            most = most.max(live.values().map(|&order| 1_u64 << order).sum::<u64>());
        }
        assert!(most < MOST_PAGES, "{most}");
        for order in [0, 1, 2, 3, 9] {
            let frees = ops.list.iter().filter(|op| op.is_free && op.order == order).count();
            assert!(frees > 10, "{frees} frees of order {order}");
        }
        assert!([0, 1].iter().all(|&cpu| ops.list.iter().filter(|op| op.cpu == cpu).count() > 5_000));
    }

    #[test]
    fn a_list_has_what_can_be_replayed_and_nothing_else() {
        let event = |kind, pfn, order, cpu| Event { kind, pfn, order, cpu, ..Event::default() };
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
