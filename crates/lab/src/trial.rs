//! A command run on this machine under two settings of its kernel, in turn: what `framewright try` does.
//!
//! | file | what lives there |
//! |---|---|
//! | `knobs` | settings of a kernel by name, and the journal that restores them after a crash |
//! | `rounds` | the command's runs, and their metrics |

mod knobs;
mod rounds;

pub use knobs::{Knob, Knobs, undo};
pub use rounds::{Runs, run};
