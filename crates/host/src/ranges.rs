//! Calls of an arena besides those for single blocks of any place: a given block, a given range, many blocks at
//! once; frames whose memory is bad; free memory that a hook is told of.
#![expect(unsafe_code, reason = "the caller that frees or withdraws raw frames vouches for owning them")]

use core::alloc::Layout;
use core::ops::Range;

use framewright::cpu::{
    BulkFreeError, ContigError, HwpoisonError, Hwpoisoned, PlaceError, PlaceFailure, Reported,
};
use framewright::error::{AllocFailure, FreeFailure};
use framewright::frame::FrameUser;
use framewright::{AllocError, FreeError, Migratetype, Order, Pfn, Request};

use crate::annotate::Annotated;
use crate::block::Block;
use crate::cpu::{Cpu, tell_failed};
use crate::event::event;
use crate::shared::SharedArena;

/// Whether a block or a list in use is in the way, which may be one that no thread uses any more.
const fn is_in_use(failed: &PlaceError) -> bool {
    matches!(failed.why, PlaceFailure::Listed { .. } | PlaceFailure::InUse { .. })
}

impl<M: FrameUser> Cpu<'_, M> {
    /// In a child of the process that made the arena, every frame is another allocator's.
    fn place_here(&self, pfn: Pfn, pages: u64) -> Result<(), PlaceError> {
        let elsewhere = PlaceError { why: PlaceFailure::Foreign, pfn, pages };
        if self.arena().is_forked() { Err(elsewhere) } else { Ok(()) }
    }

    fn frame_here(&self) -> Result<(), HwpoisonError> {
        if self.arena().is_forked() { Err(HwpoisonError::Foreign) } else { Ok(()) }
    }

    /// Allocates the block of `order` at `pfn`, and no other, as a raw frame. It counts as unmovable.
    ///
    /// Blocks on this CPU's lists, and on those of CPUs that no thread holds, are given back if they are in the way;
    /// attached threads are asked. O(orders), and what drains take.
    ///
    /// ```
    /// use framewright_host::{Arena, Order, Pfn, PlaceFailure};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// let order = Order::new(3).unwrap();
    /// let block = cpu.alloc_block_at(Pfn(640), order)?;
    /// assert_eq!(block.pfn(), Pfn(640));
    /// // It is in use now, and so is each of its frames.
    /// let refused = cpu.alloc_at(Pfn(645), Order::ZERO).unwrap_err();
    /// assert!(matches!(refused.why, PlaceFailure::InUse { pfn: Pfn(640), .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The block that is in the way.
    pub fn alloc_at(&self, pfn: Pfn, order: Order) -> Result<(), PlaceError> {
        self.place_here(pfn, order.pages())?;
        self.or_with_unused(|| self.core().alloc_at(pfn, order), is_in_use)
            .inspect(|()| self.arena().annotated.open(pfn, order.pages()))
    }

    /// Like [`alloc_at`](Self::alloc_at), as a block that frees itself through this CPU.
    ///
    /// # Errors
    /// The block that is in the way.
    pub fn alloc_block_at(&self, pfn: Pfn, order: Order) -> Result<Block<'_, M>, PlaceError> {
        self.alloc_at(pfn, order)?;
        // SAFETY: allocated just now, with this order, and owned by no other code.
        Ok(unsafe { Block::from_raw(self, pfn, order) })
    }

    /// Fills `out` with raw blocks of `order`. Returns how many there are, at the front: fewer than asked for only if
    /// memory has run out. Each is freed on its own, or by [`free_bulk`](Self::free_bulk).
    ///
    /// ```
    /// use framewright_host::{Arena, Migratetype, Order, Pfn};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// let mut pages = [Pfn(0); 1000];
    /// assert_eq!(cpu.alloc_bulk(Order::ZERO, Migratetype::Movable, &mut pages), 1000);
    /// // SAFETY: they are ours, and not used.
    /// unsafe { cpu.free_bulk(Order::ZERO, &pages) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// O(blocks): a pageblock's worth in each hold of a zone's lock.
    #[must_use = "only so many of the places hold a block"]
    pub fn alloc_bulk(&self, order: Order, migratetype: Migratetype, out: &mut [Pfn]) -> usize {
        if self.arena().is_forked() {
            return 0;
        }
        let mut got = self.core().alloc_bulk(order, migratetype, out);
        if got < out.len() && self.arena().take_unused(self.core()) {
            got += self.core().alloc_bulk(order, migratetype, &mut out[got..]);
        }
        if self.arena().annotated.is_on() {
            out[..got].iter().for_each(|&pfn| self.arena().annotated.open(pfn, order.pages()));
        }
        got
    }

    /// Frees raw blocks of `order`, in few holds of the zones' locks, past this CPU's lists. O(blocks).
    ///
    /// # Safety
    /// Those that are allocated are the caller's, as for [`free`](Self::free).
    ///
    /// # Errors
    /// How many were refused, and why the first one was. All others are freed.
    pub unsafe fn free_bulk(&self, order: Order, blocks: &[Pfn]) -> Result<(), BulkFreeError> {
        if self.arena().is_forked() {
            return Ok(());
        }
        if self.arena().annotated.is_on() {
            blocks.iter().for_each(|&pfn| self.arena().annotate_freed(pfn, order));
        }
        self.core().free_bulk(order, blocks)
    }

    /// Allocates `pages` frames in few runs of contiguous frames, and writes these to the front of `out`, ascending.
    /// Returns them: fewer frames than requested only if `out` has no room for more runs, or if memory has run out. A
    /// run is freed by [`free_range`](Self::free_range), in any parts. As [`framewright::Cpu::alloc_runs`]; O(runs),
    /// and O(runs × log runs) to sort them. Before it returns too few, pages that ended threads and page caches
    /// have left are brought back.
    ///
    /// ```
    /// use framewright_host::{Arena, Migratetype, Pfn};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// let mut out = [const { Pfn(0)..Pfn(0) }; 8];
    /// let runs = cpu.alloc_runs(1000, Migratetype::Movable, &mut out);
    /// assert_eq!(runs.iter().map(|run| run.end.0 - run.start.0).sum::<u64>(), 1000);
    /// for run in runs {
    ///     // SAFETY: it is ours, and not used.
    ///     unsafe { cpu.free_range(run.clone()) }?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "only so many of the places hold a run"]
    pub fn alloc_runs<'o>(
        &self,
        pages: u64,
        migratetype: Migratetype,
        out: &'o mut [Range<Pfn>],
    ) -> &'o [Range<Pfn>] {
        if self.arena().is_forked() {
            return &[];
        }
        let alloc = |out: &mut [Range<Pfn>]| self.core().alloc_runs(pages, migratetype, out).len();
        let mut len = alloc(out);
        let got: u64 = out[..len].iter().map(|run| run.end.0 - run.start.0).sum();
        if got < pages && len < out.len() && self.arena().take_unused(self.core()) {
            for run in &out[..len] {
                // SAFETY: it was allocated just now, and no other code knows of it.
                let freed = unsafe { self.core().free_range(run.clone()) };
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
            len = alloc(out);
        }
        for run in &out[..len] {
            self.arena().annotated.open(run.start, run.end.0 - run.start.0);
        }
        &out[..len]
    }

    /// Allocates the frames that `layout` needs: its size in bytes, rounded up to whole frames, contiguous and with its
    /// alignment, which counts frame numbers: that of the address is the same up to 1,024 base pages, and only if the
    /// memory starts at a multiple of them, as memory of the arena's own does
    /// ([`memory`](crate::ArenaBuilder::memory)). They may be freed in any parts ([`free_range`](Self::free_range)). As
    /// [`framewright::Cpu::alloc_layout`]: up to order 10 one allocation, and O(log pages) if the size is no power of
    /// two; if no block is free, a search for a run. Before it fails, pages that ended threads and page caches have
    /// left are brought back.
    ///
    /// ```
    /// use framewright_host::{Arena, Migratetype};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// let layout = std::alloc::Layout::from_size_align(20_000, 8192)?;
    /// let range = cpu.alloc_layout(layout, Migratetype::Movable)?;
    /// assert_eq!((range.end.0 - range.start.0, range.start.0 % 2), (5, 0));
    /// // SAFETY: it is ours, and not used.
    /// unsafe { cpu.free_range(range) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); also for a layout of 0 bytes.
    pub fn alloc_layout(&self, layout: Layout, migratetype: Migratetype) -> Result<Range<Pfn>, AllocError> {
        self.arena().refuse_fork(&Request::new(Order::ZERO, migratetype))?;
        let alloc = || self.core().alloc_layout(layout, migratetype);
        self.or_with_unused(alloc, |failed| failed.why != AllocFailure::Injected)
            .inspect(|range| self.arena().annotated.open(range.start, range.end.0 - range.start.0))
            .inspect_err(|failed| tell_failed(self.arena(), failed))
    }

    /// Frees frames, whatever blocks they were allocated in: whole blocks as they are; of a block that reaches beyond
    /// the range, the part inside it. O(blocks), and O(parts) of a block that is cut.
    ///
    /// # Safety
    /// All that is allocated of it is the caller's, as for [`free`](Self::free). Of a block that is cut, the owners of
    /// the other parts make no call at the same time.
    ///
    /// # Errors
    /// A frame that is not allocated, or not the arena's. [`FreeError::pfn`] is in the first block that is refused: all
    /// frames before it are free.
    pub unsafe fn free_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        if self.arena().is_forked() {
            return Ok(());
        }
        if !self.arena().annotated.is_on() {
            // SAFETY: our caller's promise.
            return unsafe { self.core().free_range(range) };
        }
        // Block by block, so that nothing is told of the one that is refused, nor of those after it.
        self.arena().parts(range).try_for_each(|(part, is_allocated)| {
            if is_allocated {
                self.arena().annotated.close(part.start, part.end.0 - part.start.0);
            }
            // SAFETY: our caller's promise.
            unsafe { self.core().free_range(part) }
        })
    }

    /// Allocates a given range of frames; the mover of this arena's blocks
    /// ([`Arena::set_migrate`](crate::Arena::set_migrate)) is asked to clear it. The range is allocated as raw blocks,
    /// each as large as its place and the range let it be.
    ///
    /// ```
    /// use framewright_host::{Arena, Pfn};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// cpu.alloc_contig_range(Pfn(700)..Pfn(2100))?;
    /// // SAFETY: it is ours, and not used.
    /// unsafe { cpu.free_contig_range(Pfn(700)..Pfn(2100)) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The block that is in the way. The range is as it was then, but for what was moved.
    pub fn alloc_contig_range(&self, range: Range<Pfn>) -> Result<(), ContigError> {
        let pages = range.end.0.saturating_sub(range.start.0);
        self.place_here(range.start, pages).map_err(|place| ContigError { place, moved: 0 })?;
        let alloc = || self.core().alloc_contig_range(range.clone(), &self.arena().helpers());
        self.or_with_unused(alloc, |failed| is_in_use(&failed.place))
            .inspect(|()| self.arena().annotated.open(range.start, range.end.0 - range.start.0))
    }

    /// Frees what [`alloc_contig_range`](Self::alloc_contig_range) has allocated, if none of it was split or freed.
    ///
    /// # Safety
    /// All that is allocated of it is the caller's, as for [`free`](Self::free).
    ///
    /// # Errors
    /// Why the first block that is not allocated as it was cannot be freed.
    pub unsafe fn free_contig_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        if self.arena().is_forked() {
            return Ok(());
        }
        if range.start >= range.end {
            return Err(FreeError { why: FreeFailure::Foreign, pfn: range.start, order: Order::ZERO });
        }
        let annotated = &self.arena().annotated;
        let tell = |told: fn(&Annotated, Pfn, u64)| {
            for (part, _) in self.arena().parts(range.clone()).filter(|(_, is_allocated)| *is_allocated) {
                told(annotated, part.start, part.end.0 - part.start.0);
            }
        };
        if !annotated.is_on() {
            return self.core().free_contig_range(range);
        }
        tell(Annotated::close);
        // Refused, it is as it was.
        self.core().free_contig_range(range.clone()).inspect_err(|_| tell(Annotated::open))
    }

    /// Takes a frame out of use whose memory is bad: immediately if it is free, else as soon as its block is freed. Its
    /// user goes on using it until then: telling it is the caller's affair. If a thread that stays in a call, as in a
    /// reclaimer, frees or splits the block at this moment, the mark may be lost: see
    /// [`framewright::Cpu::hwpoison`].
    ///
    /// ```
    /// use framewright_host::{Arena, Hwpoisoned, Order, Pfn};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// assert_eq!(cpu.hwpoison(Pfn(77))?, Hwpoisoned::Withdrawn);
    /// assert!(cpu.alloc_at(Pfn(77), Order::ZERO).is_err());
    /// cpu.unpoison(Pfn(77))?;
    /// assert!(cpu.alloc_block_at(Pfn(77), Order::ZERO).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It is none of the arena's frames, or known to be bad already.
    pub fn hwpoison(&self, pfn: Pfn) -> Result<Hwpoisoned, HwpoisonError> {
        self.frame_here()?;
        // No thread would answer for these.
        self.arena().take_unused(self.core());
        let found = self.core().hwpoison(pfn)?;
        event!(self.arena().silent, WARN, pfn = pfn.0, found = format_args!("{found:?}"), "a frame is bad");
        Ok(found)
    }

    /// Takes back [`hwpoison`](Self::hwpoison).
    ///
    /// # Errors
    /// The frame is not known to be bad.
    pub fn unpoison(&self, pfn: Pfn) -> Result<(), HwpoisonError> {
        self.frame_here()?;
        self.core().unpoison(pfn)
    }

    /// Tells `hook` of free blocks of at least `order`, and of a pageblock's size, that it was not told of since a user
    /// last had them. It may do with their memory what it likes until it returns; with
    /// [`Config::free_reporting`](crate::Config::free_reporting) only.
    ///
    /// ```
    /// use framewright_host::{Arena, Config, PAGEBLOCK_ORDER};
    ///
    /// let config = Config { free_reporting: true, ..Config::default() };
    /// let arena: Arena = Arena::builder().bytes(64 << 20).config(config).build()?;
    /// let cpu = arena.attach()?;
    /// let mut told = 0;
    /// cpu.report_free(PAGEBLOCK_ORDER, |blocks| {
    ///     told += blocks.len();
    ///     true
    /// });
    /// assert!(told > 0);
    /// // None of it has been handed out since.
    /// assert_eq!(cpu.report_free(PAGEBLOCK_ORDER, |_| true).blocks, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn report_free(&self, order: Order, mut hook: impl FnMut(&[(Pfn, Order)]) -> bool) -> Reported {
        if self.arena().is_forked() {
            return Reported::default();
        }
        self.core().report_free(order, |blocks| {
            blocks.iter().for_each(|&(pfn, order)| self.arena().annotated.open(pfn, order.pages()));
            let wants_more = hook(blocks);
            blocks.iter().for_each(|&(pfn, order)| self.arena().annotated.close(pfn, order.pages()));
            wants_more
        })
    }
}

impl<M: FrameUser> SharedArena<M> {
    /// Allocates `pages` frames in few runs, and returns these. As [`Cpu::alloc_runs`].
    #[must_use = "only so many of the places hold a run"]
    pub fn alloc_runs<'o>(
        &self,
        pages: u64,
        migratetype: Migratetype,
        out: &'o mut [Range<Pfn>],
    ) -> &'o [Range<Pfn>] {
        self.on_any_cpu(|cpu| cpu.alloc_runs(pages, migratetype, out))
    }

    /// Allocates the frames that `layout` needs. As [`Cpu::alloc_layout`].
    ///
    /// # Errors
    /// As [`Cpu::alloc_layout`].
    pub fn alloc_layout(&self, layout: Layout, migratetype: Migratetype) -> Result<Range<Pfn>, AllocError> {
        self.on_any_cpu(|cpu| cpu.alloc_layout(layout, migratetype))
    }

    /// Frees frames, whatever blocks they were allocated in. As [`Cpu::free_range`].
    ///
    /// # Safety
    /// As [`Cpu::free_range`].
    ///
    /// # Errors
    /// As [`Cpu::free_range`].
    pub unsafe fn free_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        // SAFETY: our caller's promise.
        self.on_any_cpu(|cpu| unsafe { cpu.free_range(range) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::arena::Arena;

    const PAGES: usize = 4096;

    /// Leaves pages to the arena while every CPU is held, as the end of a page cache does: no call frees them yet.
    fn leave(arena: &Arena, pages: Vec<Pfn>) {
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let owners = &arena.owners;
                let free = (0..owners.len()).filter(|&slot| owners.try_acquire(slot).is_some());
                let held: Vec<_> = free.map(|slot| owners.guard(slot)).collect();
                barrier.wait();
                barrier.wait();
                drop(held);
            });
            barrier.wait();
            scope.spawn(|| arena.free_left(pages)).join().expect("it only keeps them");
            barrier.wait();
        });
    }

    fn arena() -> Arena {
        Arena::builder().pages(PAGES as u64).cpus(2).build().expect("16 MiB")
    }

    #[test]
    fn each_call_takes_back_what_page_caches_left() {
        type Call = fn(&Cpu<'_>, Pfn) -> bool;
        let calls: [(&str, Call); 7] = [
            ("alloc", |cpu, _| cpu.alloc(Order::ZERO, Migratetype::Movable).is_ok()),
            ("alloc_bulk", |cpu, _| {
                cpu.alloc_bulk(Order::ZERO, Migratetype::Movable, &mut [Pfn(0); 10]) == 10
            }),
            ("alloc_runs", |cpu, _| {
                let mut out = [const { Pfn(0)..Pfn(0) }; 10];
                let runs = cpu.alloc_runs(10, Migratetype::Movable, &mut out);
                runs.iter().map(|run| run.end.0 - run.start.0).sum::<u64>() == 10
            }),
            ("alloc_layout", |cpu, _| {
                let layout = Layout::from_size_align(5 * 4096, 4096).expect("a layout");
                cpu.alloc_layout(layout, Migratetype::Movable).is_ok()
            }),
            ("alloc_at", |cpu, first| cpu.alloc_at(first, Order::ZERO).is_ok()),
            ("alloc_contig_range", |cpu, first| cpu.alloc_contig_range(first..first.add(7)).is_ok()),
            ("offline", |cpu, first| cpu.offline(first..first.add(512)) == Ok(512)),
        ];
        for (name, call) in calls {
            let arena = arena();
            let cpu = arena.attach().expect("a slot");
            let mut all = vec![Pfn(0); PAGES];
            assert_eq!(cpu.alloc_bulk(Order::ZERO, Migratetype::Movable, &mut all), PAGES);
            leave(&arena, all);
            assert!(call(&cpu, arena.frames().start), "{name}");
        }
        let arena = SharedArena::new(arena());
        let mut all = vec![Pfn(0); PAGES];
        assert_eq!(arena.alloc_bulk(Order::ZERO, Migratetype::Movable, &mut all), PAGES);
        leave(&arena, all);
        assert!(arena.alloc(Order::ZERO, Migratetype::Movable).is_ok(), "of a shared arena");
    }
}
