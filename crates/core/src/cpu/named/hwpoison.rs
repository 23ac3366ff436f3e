//! Frames whose memory has failed (Linux: `memory_failure`, hwpoison): out of use, or out of use as soon as they are
//! free.

use core::fmt;

use crate::cpu::Cpu;
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::units::{CpuId, MAX_ORDER, Order, PAGEBLOCK_ORDER, Pfn};

/// Times that a frame is marked again if a free has overwritten the mark.
const ROUNDS: u32 = 8;

/// State of a frame that was reported as bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hwpoisoned {
    /// It was free, and is out of use now.
    Withdrawn,
    /// It is in an allocated block. When the block is freed, the frame goes out of use, and the rest of the block is
    /// free. The caller should inform the block's owner.
    InUse {
        /// The first frame of the block.
        pfn: Pfn,
        /// Order of the block.
        order: Order,
    },
    /// It is on a list of a CPU that was requested to drain. That CPU may hand it out until it drains; no other CPU
    /// does. It goes out of use when it is freed.
    Listed(CpuId),
}

/// Reason why a frame cannot be marked as bad, or taken back into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HwpoisonError {
    /// The frame is no memory of this allocator.
    Foreign,
    /// Boot has left the frame's memory for later, and it is not initialised yet. The caller reports it again when it
    /// is.
    NotReady,
    /// The frame is marked, or out of use, already.
    Already,
    /// The frame is not marked.
    NotPoisoned,
    /// None can be marked: frames have no words ([`Engine::Compact`](crate::config::Engine::Compact)), or the feature
    /// `mobility` is left out.
    NoWords,
}

impl fmt::Display for HwpoisonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "the frame is no memory of this allocator",
            Self::NotReady => "the frame's memory is not initialised yet: report it again when it is",
            Self::Already => "the frame is known to be bad already",
            Self::NotPoisoned => "the frame is not known to be bad",
            Self::NoWords => "compact metadata has no word in which a frame could be marked",
        })
    }
}

impl core::error::Error for HwpoisonError {}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Takes a frame with bad memory out of use: immediately if it is free, else when its block is freed, and then this
    /// frame alone. From then on it counts as quarantined. Frees into its pageblock take the slow path while it is in
    /// use.
    ///
    /// All CPUs are requested to drain their lists of the zone, and waited for as by a failing allocation; after that
    /// no CPU is in the middle of a call that has not seen the mark. If a CPU does not answer in that time, and
    /// allocates, frees or splits the block at this very moment, the mark may be lost: the frame is handed out again,
    /// as if it had not been reported, but counts as reported.
    ///
    /// O(CPUs), plus the drains.
    ///
    /// # Errors
    /// The reason. The state is unchanged.
    pub fn hwpoison(&self, pfn: Pfn) -> Result<Hwpoisoned, HwpoisonError> {
        let later = self.allocator.later();
        // Before the zone is looked for: a worker may be done with the memory in between.
        let is_left = later.is_some_and(|later| later.deferred.has_free(pfn..Pfn(pfn.0.saturating_add(1))));
        let absent = if is_left { HwpoisonError::NotReady } else { HwpoisonError::Foreign };
        let zone = self.zone_of(pfn, 1).ok_or(absent)?;
        if self.frames.is_compact() || !cfg!(feature = "mobility") {
            return Err(HwpoisonError::NoWords);
        }
        let _turn = self.allocator.begin_change();
        let local = self.local(zone.id());
        let frames = &self.allocator.frames;
        let withdraw = |again: bool| {
            local.under_lock(pfn, |buddy| {
                // Another CPU may have taken it offline since.
                if self.is_absent(pfn) {
                    return Err(HwpoisonError::Foreign);
                }
                if frames.is_withdrawn(pfn) || (frames.is_marked(pfn) && !again) {
                    return if again { Ok(true) } else { Err(HwpoisonError::Already) };
                }
                if frames.is_marked(pfn) {
                    return Ok(false);
                }
                let taken = buddy.take_range(pfn, 1);
                if taken.is_ok() {
                    frames.withdraw(pfn);
                    buddy.forget_marks(pfn, 1);
                } else {
                    let (head, state) = frames.find(pfn);
                    // What `take_range` found: absent memory counts as reserved.
                    if matches!(taken, Err((_, State::Reserved))) {
                        return Err(HwpoisonError::Foreign);
                    }
                    if matches!(state, State::Quarantined { .. }) {
                        return Err(HwpoisonError::Already);
                    }
                    buddy.expect_marks(pfn);
                    // Of a block of the largest order, a free or split looks at the first pageblock. A block that is on
                    // its way between the zone and a caller may be one.
                    let first = if state == State::Body { pfn.block_start(MAX_ORDER) } else { head };
                    if first < pfn.block_start(PAGEBLOCK_ORDER) && frames.info(first).is_present() {
                        buddy.expect_marks(first);
                    }
                    frames.set_mark(pfn, true);
                }
                self.allocator.count_hwpoisoned(i64::from(!again));
                Ok(taken.is_ok())
            })
        };
        let mut is_out = withdraw(false)?;
        // A hit does not read the mark of a pageblock.
        local.in_section(0, |buddy| self.allocator.shut_or_open_lists(buddy));
        for _ in 0..ROUNDS {
            if is_out {
                return Ok(Hwpoisoned::Withdrawn);
            }
            self.drain_all_of(zone);
            if frames.is_marked(pfn) && !frames.is_withdrawn(pfn) {
                break;
            }
            // A free or a drain came in between: it has taken the frame out of use, or overwritten the mark.
            is_out = withdraw(true).unwrap_or(true);
        }
        let (head, state) = frames.find(pfn);
        if let Some(cpu) = self.listed_on(head, state) {
            return Ok(Hwpoisoned::Listed(cpu));
        }
        match state {
            State::Taken { order, .. } => Ok(Hwpoisoned::InUse { pfn: head, order }),
            _ if frames.is_withdrawn(pfn) => Ok(Hwpoisoned::Withdrawn),
            // The frame is between a list and a user.
            _ => Ok(Hwpoisoned::InUse { pfn: head, order: Order::ZERO }),
        }
    }

    /// Reverses [`hwpoison`](Self::hwpoison): a frame that is out of use is free again, and filled as freed ones are; a
    /// frame in use is like any other.
    ///
    /// # Errors
    /// The reason. The state is unchanged.
    pub fn unpoison(&self, pfn: Pfn) -> Result<(), HwpoisonError> {
        let zone = self.zone_of(pfn, 1).ok_or(HwpoisonError::Foreign)?;
        let frames = &self.allocator.frames;
        let _turn = self.allocator.begin_change();
        self.local(zone.id()).under_lock(pfn, |buddy| {
            if frames.is_withdrawn(pfn) {
                self.fill_freed(pfn, Order::ZERO);
                frames.set_state(pfn, Order::ZERO, State::Body);
                buddy.free(pfn, Order::ZERO, crate::buddy::Placement::Tail);
                self.allocator.count_hwpoisoned(-1);
                return Ok(());
            }
            if self.is_absent(pfn) {
                return Err(HwpoisonError::Foreign);
            }
            if !frames.set_mark(pfn, false) {
                return Err(HwpoisonError::NotPoisoned);
            }
            let (head, state) = frames.find(pfn);
            buddy.forget_marks(head, state.pages());
            self.allocator.count_hwpoisoned(-1);
            Ok(())
        })?;
        self.local(zone.id()).in_section(0, |buddy| self.allocator.shut_or_open_lists(buddy));
        Ok(())
    }

    /// With maps, whether a frame is no memory of the allocator: one that went offline keeps its mark, also if other
    /// frames of its pageblock are back. Without maps `false`: it keeps none, and the presets' loads stay as when their
    /// figures were taken.
    fn is_absent(&self, pfn: Pfn) -> bool {
        let frames = &self.allocator.frames;
        frames.has_maps() && (!frames.contains(pfn) || frames.find(pfn).1 == State::Reserved)
    }
}
