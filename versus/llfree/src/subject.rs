//! LLFree (<https://github.com/luhsra/llfree-rs>): a bit for each frame, a counter for each huge frame and one for each
//! tree of four of them; each CPU reserves trees of its own for unmovable, for movable and for huge frames, and
//! everything is a compare-and-swap. It is configured as its `Classing::movable` suggests, without log messages and
//! checks for overflow.

use std::sync::{Mutex, PoisonError};

use framewright_workload::target::{Counter, Mobility, Target, TargetCpu};
use llfree::{Alloc, Classing, FrameId, HUGE_ORDER, Init, LLFree, MetaData, Request};

/// LLFree over frame numbers: no page is touched. Its metadata is not given back when it is dropped, as its own helper
/// has it.
pub(crate) struct Subject<F> {
    allocator: LLFree<'static>,
    /// The request for an order, a CPU, and whether the frames are movable.
    request: F,
    metadata_bytes: usize,
    /// Frees of what was allocated that it refused. Their frames are lost.
    refused: Mutex<u64>,
}

pub(crate) fn subject(
    frames: u64,
    cpus: usize,
) -> Result<Subject<impl Fn(usize, usize, bool) -> Request + Send + Sync>, String> {
    let frames = usize::try_from(frames).map_err(|_| format!("{frames} frames are too many"))?;
    let (classing, request) = Classing::movable(cpus);
    let size = LLFree::metadata_size(&classing, frames);
    let allocator = LLFree::new(frames, Init::FreeAll, &classing, MetaData::alloc(&size))
        .map_err(|error| format!("{error:?}"))?;
    Ok(Subject { allocator, request, metadata_bytes: size.trees + size.lower, refused: Mutex::new(0) })
}

impl<F: Fn(usize, usize, bool) -> Request + Sync> Target for Subject<F> {
    type Cpu<'a>
        = Access<'a, F>
    where
        Self: 'a;

    fn attach(&self, cpu: usize) -> Access<'_, F> {
        Access { subject: self, cpu }
    }

    fn frames(&self) -> Option<u64> {
        Some(self.allocator.frames() as u64)
    }

    fn free_blocks(&self, order: u8) -> Option<u64> {
        let stats = self.allocator.stats();
        match usize::from(order) {
            0 => Some(stats.free_frames as u64),
            HUGE_ORDER => Some(stats.free_huge as u64),
            _ => None,
        }
    }

    fn metadata_bytes_per_frame(&self) -> Option<f64> {
        Some(self.metadata_bytes as f64 / self.allocator.frames() as f64)
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter {
            name: "refused_frees",
            value: *self.refused.lock().unwrap_or_else(PoisonError::into_inner),
        }]
    }
}

/// One thread's access.
pub(crate) struct Access<'a, F> {
    subject: &'a Subject<F>,
    cpu: usize,
}

impl<F: Fn(usize, usize, bool) -> Request + Sync> TargetCpu for Access<'_, F> {
    #[inline]
    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u64> {
        let movable = mobility == Mobility::Movable;
        let request = (self.subject.request)(usize::from(order), self.cpu, movable);
        self.subject.allocator.get(None, request).ok().map(|(frame, _)| frame.0 as u64)
    }

    /// The class only says which reservation is looked at first.
    #[inline]
    fn free(&mut self, frame: u64, order: u8) {
        let request = (self.subject.request)(usize::from(order), self.cpu, true);
        if self.subject.allocator.put(FrameId(frame as usize), request).is_err() {
            *self.subject.refused.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }
}
