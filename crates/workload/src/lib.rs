//! Work for page allocators: replays of traces, generated workloads, and the trait [`Target`](target::Target) that
//! any allocator can implement. Knows no allocator.
//!
//! | module | what it holds |
//! |---|---|
//! | [`random`] | seeded random numbers |
//! | [`target`] | `Target` and `TargetCpu`: what an allocator must offer to be driven |
//! | [`replay`] | a trace driven through a target on real threads |
//! | [`mod@bench`] | generated workloads driven through a target |
//! | [`probe`] | what the parts of this machine cost |
//! | [`oracle`] | a target around any other that checks it |
//! | [`conformance`] | what every target must do, as a check |
//!
//! # Example
//! An allocator of one's own behind [`Target`](target::Target), checked against what every target must do.
//! ```
//! use std::sync::Mutex;
//!
//! use framewright_workload::conformance;
//! use framewright_workload::target::{Mobility, Target, TargetCpu};
//!
//! /// A map of free frames behind one lock. The first run that is long enough and aligned is taken.
//! struct FirstFit(Mutex<Vec<bool>>);
//!
//! impl Target for FirstFit {
//!     type Cpu<'a> = &'a Self;
//!
//!     fn attach(&self, _cpu: usize) -> &Self {
//!         self
//!     }
//!     fn frames(&self) -> Option<u64> {
//!         Some(self.0.lock().unwrap().len() as u64)
//!     }
//!     fn free_blocks(&self, order: u8) -> Option<u64> {
//!         let free = self.0.lock().unwrap();
//!         Some(free.chunks_exact(1 << order).filter(|block| block.iter().all(|&free| free)).count() as u64)
//!     }
//! }
//!
//! impl TargetCpu for &FirstFit {
//!     fn alloc(&mut self, order: u8, _: Mobility) -> Option<u64> {
//!         let mut free = self.0.lock().unwrap();
//!         let mut blocks = free.chunks_exact_mut(1 << order);
//!         let at = blocks.position(|block| block.iter().all(|&free| free))?;
//!         free[at << order..][..1 << order].fill(false);
//!         Some((at << order) as u64)
//!     }
//!     fn free(&mut self, frame: u64, order: u8) {
//!         self.0.lock().unwrap()[frame as usize..][..1 << order].fill(true);
//!     }
//! }
//!
//! conformance::check(|frames, _cpus| FirstFit(Mutex::new(vec![true; frames as usize])), 1 << 10)?;
//! # Ok::<(), String>(())
//! ```
#![deny(unsafe_code)]

pub mod bench;
pub mod conformance;
pub mod oracle;
pub mod probe;
pub mod random;
pub mod replay;
pub mod target;

#[cfg(test)]
mod testing;
