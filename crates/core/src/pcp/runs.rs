//! Blocks of lists on their way back to the zone, joined to runs before the zone lock is taken.

use super::joined::joined;
use super::{LISTS, Local, cyclic, kind_of};
use crate::buddy::Run;
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::units::{Order, Pfn};

/// Most runs that go back in one hold of the zone lock: what they touch fits the first-level cache, and nobody waits long.
const ROOM: usize = 128;
/// Bits from which an entry holds the order of a run's blocks, and how many they are. Below is the first frame.
const ORDER: u32 = 44;
const COUNT: u32 = 48;
const _: () = assert!(crate::units::PAGEBLOCK_PAGES < 1 << (u64::BITS - COUNT));

/// Runs that go back in one hold.
struct Runs {
    entries: [u64; ROOM],
    len: usize,
}

impl Runs {
    /// There is room.
    #[inline(always)]
    fn push(&mut self, Run { first, order, count }: Run) {
        self.entries[self.len % ROOM] = first.0 | u64::from(order.get()) << ORDER | count << COUNT;
        self.len += 1;
    }

    #[inline(always)]
    fn all(&self) -> impl Iterator<Item = Run> {
        self.entries[..self.len.min(ROOM)].iter().map(|&entry| Run {
            first: Pfn(entry & ((1 << ORDER) - 1)),
            order: Order::from_bits(entry >> ORDER & 15),
            count: entry >> COUNT,
        })
    }
}

impl<P: Platform, M: FrameUser> Local<'_, '_, P, M> {
    /// With maps, gives back so many blocks of each of these lists, of orders below the pageblock order, from its tail, in as few
    /// holds of the zone lock as have room for all runs. Under it the lists are not looked at: what a hold costs depends on its
    /// runs, not on how many blocks they have. Returns the pages that went back.
    pub(super) fn drain_runs(&self, left: &mut [u32; LISTS], mut lists: u64, first: usize) -> u64 {
        let mut pages = 0;
        while lists != 0 {
            let mut runs = Runs { entries: [0; ROOM], len: 0 };
            let mut taken = [0; LISTS];
            let mut these = 0;
            for n in cyclic(lists, first) {
                taken[n] = self.prepare_runs(n, left[n], &mut runs);
                left[n] -= taken[n];
                these |= u64::from(taken[n] > 0) << n;
                lists &= !(u64::from(left[n] == 0) << n);
            }
            if runs.len > 0 {
                self.in_sections_of(runs.all().map(|run| run.first), |buddy, is_here| {
                    buddy.free_runs(runs.all().filter(|run| is_here(run.first)));
                });
            }
            for n in cyclic(these, first) {
                self.pcp.list(n).drop_tail(taken[n]);
                if self.pcp.counts() {
                    self.pcp.open(n);
                }
                let gone = u64::from(taken[n]) << kind_of(n).0.get();
                self.pcp.count_pages(-(gone as i64));
                pages += gone;
            }
        }
        pages
    }

    /// Joins up to so many blocks of a list, from its tail on, to runs, as many as there is room for, and makes their head words
    /// those of free blocks. Returns the blocks.
    #[inline]
    fn prepare_runs(&self, number: usize, blocks: u32, runs: &mut Runs) -> u32 {
        let (order, _) = kind_of(number);
        let blocks = self.pcp.list(number).tail(blocks, false).map(|pfn| (order, pfn));
        let mut taken = 0;
        for run in joined(blocks, self.zone.cut().most_of_run()).take(ROOM - runs.len) {
            (0..run.count).for_each(|n| self.frames.clear_head(run.first.add(n << order.get())));
            // One line holds all bits of a pageblock.
            core::hint::black_box(self.frames.touch_map(run.first));
            runs.push(run);
            taken += run.count as u32;
        }
        taken
    }
}
