//! An arena for threads that do not want to attach: each gets a slot at its first call, and gives it up when it
//! ends.
//!
//! Holds the `unsafe` that lets a thread's attachment live beside the handle that keeps its arena alive.
#![expect(unsafe_code, reason = "an attachment borrows from the arena that is kept alive beside it")]

use core::any::Any;
use core::cell::RefCell;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::rc::Rc;
use std::sync::Arc;

use framewright::frame::FrameUser;
use framewright::{AllocError, Cpu, CpuId, FreeError, Helpers, Migratetype, Order, Pfn, Request};

use crate::arena::Arena;
use crate::block::SharedBlock;
use crate::cpu::Attached;
use crate::platform::Host;

struct Shared<M: FrameUser> {
    arena: Arena<M>,
    /// Handles and blocks alive. Attachments of threads are not counted: they must not keep each other alive.
    handles: AtomicUsize,
}

/// A handle of an arena that any thread may use, to be cloned and sent at will.
///
/// ```
/// use framewright_host::{Arena, Migratetype, Order, SharedArena};
///
/// let arena: SharedArena = Arena::builder().bytes(64 << 20).build_shared()?;
/// let block = arena.alloc_block(Order::ZERO, Migratetype::Movable)?;
/// std::thread::spawn(move || drop(block)).join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What a thread keeps
/// A thread's first call attaches it to a slot of its own, which it keeps until it ends or calls
/// [`detach`](Self::detach). If no slot is free, the call goes through a spare slot, which threads without one
/// take turns with; the next call tries again. Give the arena as many
/// [`cpus`](crate::ArenaBuilder::cpus) as it has threads and nobody waits. (A thread has ended when it is joined;
/// the end of a [`std::thread::scope`] alone waits for its closure only.)
///
/// The arena is gone when the last handle and block are dropped *and* the threads that had used it have ended,
/// detached, or used another shared arena for the first time.
pub struct SharedArena<M: FrameUser = ()>(Arc<Shared<M>>);

impl<M: FrameUser> fmt::Debug for SharedArena<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedArena").field(&self.0.arena).finish()
    }
}

impl<M: FrameUser> Clone for SharedArena<M> {
    fn clone(&self) -> Self {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<M: FrameUser> Drop for SharedArena<M> {
    fn drop(&mut self) {
        // Release: what this handle was used for happens before another thread sees that nobody is left.
        if self.0.handles.fetch_sub(1, Ordering::Release) == 1 {
            self.detach();
        }
    }
}

impl<M: FrameUser> SharedArena<M> {
    /// An arena made with one slot more than threads may attach to.
    pub(crate) fn new(arena: Arena<M>) -> Self {
        Self(Arc::new(Shared { arena, handles: AtomicUsize::new(1) }))
    }

    /// The arena, for snapshots, totals and verification, or to attach to.
    #[must_use]
    pub fn arena(&self) -> &Arena<M> {
        &self.0.arena
    }

    /// Allocates a block of `order` as a raw frame: the caller frees it, on this thread or another.
    ///
    /// # Errors
    /// As [`Attached::alloc`].
    pub fn alloc(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        self.alloc_with(&Request::new(order, migratetype))
    }

    /// Allocates a block as `request` says, as a raw frame. Whoever helps the arena (see [`Arena::set_reclaim`])
    /// helps threads that have a slot of their own.
    ///
    /// # Errors
    /// As [`Attached::alloc`].
    pub fn alloc_with(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        // The spare slot's lock must not be held while a reclaimer runs, which may free through this arena.
        let is_plain = *request == Request::new(request.order, request.migratetype);
        let on = |cpu: &Cpu<'_, '_, Host, M>, helpers: &Helpers<'_>| {
            let hit = if is_plain { cpu.alloc_hit(request.order, request.migratetype) } else { None };
            hit.map_or_else(|| cpu.alloc_with(request, helpers), Ok)
        };
        let alloc = || match ATTACHMENTS.try_with(|table| self.attachment(table)) {
            Ok(Some(attachment)) => on(attachment.cpu.core(), &self.arena().helpers()),
            Ok(None) | Err(_) => self.with_spare(|cpu| on(cpu, &Helpers::NONE)),
        };
        alloc().or_else(|failed| if self.arena().reclaim() { alloc() } else { Err(failed) })
    }

    /// Frees a block that any thread allocated, with its order.
    ///
    /// # Safety
    /// As [`Attached::free`].
    ///
    /// # Errors
    /// As [`Attached::free`].
    pub unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.with_cpu(|cpu| cpu.free(pfn, order))
    }

    /// Allocates a block of `order` that frees itself on whichever thread drops it.
    ///
    /// # Errors
    /// As [`Attached::alloc`].
    pub fn alloc_block(&self, order: Order, migratetype: Migratetype) -> Result<SharedBlock<M>, AllocError> {
        let pfn = self.alloc(order, migratetype)?;
        // SAFETY: allocated just now, with this order, and owned by nobody else.
        Ok(unsafe { SharedBlock::from_raw(self.clone(), pfn, order) })
    }

    /// Gives up the slot that this thread has, if it has one, with all pages on its lists. The thread's next call
    /// attaches it anew.
    pub fn detach(&self) {
        // At the end of a thread the table may be gone already, and the attachment with it.
        let _ = ATTACHMENTS.try_with(|table| {
            let removed = table.borrow_mut().remove(self.key());
            // Outside the borrow: what is dropped here may drop other handles.
            drop(removed);
        });
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Runs `f` with this thread's slot, or with the spare slot if it gets none of its own. `f` does not call
    /// back into this arena.
    fn with_cpu<R>(&self, f: impl FnOnce(&Cpu<'_, '_, Host, M>) -> R) -> R {
        match ATTACHMENTS.try_with(|table| self.attachment(table)) {
            Ok(Some(attachment)) => f(attachment.cpu.core()),
            // No slot is free, or the thread is ending and has given its own up.
            Ok(None) | Err(_) => self.with_spare(f),
        }
    }

    /// This thread's slot, after trying to get one.
    fn attachment(&self, table: &RefCell<Attachments>) -> Option<Rc<Attachment<M>>> {
        if let Some(attachment) = table.borrow().get(self.key()) {
            return Some(attachment);
        }
        let attachment = Rc::new(Attachment::new(self)?);
        let mut table = table.borrow_mut();
        let unused = table.take_unused();
        table.0.push((self.key(), attachment.clone()));
        drop(table);
        drop(unused);
        Some(attachment)
    }

    #[cold]
    fn with_spare<R>(&self, f: impl FnOnce(&Cpu<'_, '_, Host, M>) -> R) -> R {
        let arena = self.arena();
        let spare = arena.slots();
        let turn = SpareTurn { arena, slot: spare };
        arena.owners().acquire(spare);
        // SAFETY: the slot's lock is held until `turn` is dropped, after `f` has returned. Its pages stay on its
        // lists for the next one; if memory runs short, they are reaped as those of any slot nobody holds.
        let result = f(&unsafe { arena.cpu(CpuId(spare as u16)) });
        drop(turn);
        result
    }
}

/// Releases the spare slot, also when a panic passes.
struct SpareTurn<'a, M: FrameUser> {
    arena: &'a Arena<M>,
    slot: usize,
}

impl<M: FrameUser> Drop for SpareTurn<'_, M> {
    fn drop(&mut self) {
        self.arena.owners().release(self.slot);
    }
}

thread_local!(
    /// This thread's slots, one per shared arena it has used.
    static ATTACHMENTS: RefCell<Attachments> = const { RefCell::new(Attachments(Vec::new())) }
);

/// A thread's attachments, by the address of what they keep alive.
struct Attachments(Vec<(usize, Rc<dyn AnyAttachment>)>);

/// A thread's slot in a shared arena of some type.
trait AnyAttachment: Any {
    /// Whether no handle and no block of the arena is left.
    fn is_unused(&self) -> bool;
}

struct Attachment<M: FrameUser> {
    // Before what it borrows from, so that it is dropped first.
    cpu: Attached<'static, M>,
    shared: Arc<Shared<M>>,
}

impl<M: FrameUser> Attachment<M> {
    /// Attaches this thread, if a slot is free.
    fn new(handle: &SharedArena<M>) -> Option<Self> {
        let shared = Arc::clone(&handle.0);
        // SAFETY: the arena stays where it is while an `Arc` of it exists, and this one outlives the borrow:
        // both are private and dropped together, the borrow first.
        let arena: &'static Arena<M> = unsafe { &*core::ptr::from_ref(&shared.arena) };
        Some(Self { cpu: arena.attach().ok()?, shared })
    }
}

impl<M: FrameUser> AnyAttachment for Attachment<M> {
    fn is_unused(&self) -> bool {
        // Acquire: pairs with the release of the last handle.
        self.shared.handles.load(Ordering::Acquire) == 0
    }
}

impl Attachments {
    fn get<M: FrameUser>(&self, key: usize) -> Option<Rc<Attachment<M>>> {
        let (_, attachment) = self.0.iter().find(|(of, _)| *of == key)?;
        let attachment: Rc<dyn Any> = attachment.clone();
        attachment.downcast().ok()
    }

    fn remove(&mut self, key: usize) -> Option<Rc<dyn AnyAttachment>> {
        let n = self.0.iter().position(|(of, _)| *of == key)?;
        Some(self.0.swap_remove(n).1)
    }

    /// Takes out what keeps arenas alive that nobody else uses.
    fn take_unused(&mut self) -> Vec<(usize, Rc<dyn AnyAttachment>)> {
        self.0.extract_if(.., |(_, attachment)| attachment.is_unused()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Weak};
    use std::thread;

    use super::*;

    fn arena() -> (SharedArena, Weak<Shared<()>>) {
        let arena = Arena::builder().bytes(4 << 20).build_shared().unwrap();
        let weak = Arc::downgrade(&arena.0);
        (arena, weak)
    }

    fn block(arena: &SharedArena) -> SharedBlock {
        arena.alloc_block(Order::ZERO, Migratetype::Movable).unwrap()
    }

    #[test]
    fn the_last_handle_takes_the_arena_with_it() {
        let (arena, weak) = arena();
        drop(block(&arena));
        let second = arena.clone();
        drop(arena);
        assert!(weak.upgrade().is_some());
        drop(second);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn a_block_keeps_its_arena() {
        let (arena, weak) = arena();
        let block = block(&arena);
        drop(arena);
        assert!(weak.upgrade().is_some());
        assert!(block.bytes().iter().all(|&byte| byte == 0));
        drop(block);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn a_block_given_up_gives_up_its_handle() {
        let (arena, weak) = arena();
        let _ = block(&arena).into_raw();
        drop(arena);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn a_thread_that_goes_on_keeps_the_arena_until_it_uses_another() {
        let (arena, weak) = arena();
        let (used, dropped) = (Barrier::new(2), Barrier::new(2));
        let mine = arena.clone();
        thread::scope(|scope| {
            let (used, dropped, weak) = (&used, &dropped, &weak);
            scope.spawn(move || {
                drop(block(&mine));
                drop(mine);
                used.wait();
                dropped.wait();
                assert!(weak.upgrade().is_some(), "this thread's slot is still attached");
                let (other, _) = super::tests::arena();
                drop(block(&other));
                assert!(weak.upgrade().is_none());
            });
            used.wait();
            drop(arena);
            dropped.wait();
        });
    }

    #[test]
    fn a_thread_that_ends_lets_go() {
        let (arena, weak) = arena();
        thread::scope(|scope| {
            let arena = &arena;
            scope.spawn(move || drop(block(arena))).join().unwrap();
        });
        drop(arena);
        assert!(weak.upgrade().is_none());
    }
}
