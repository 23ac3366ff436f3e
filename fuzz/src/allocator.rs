//! The allocator under any configuration, memory and history of calls that bytes can spell: see
//! [`framewright_check::history`].

use framewright_check::history;

/// Builds what `input` describes and plays the history that follows.
///
/// # Panics
/// The allocator and the oracle disagree, an invariant does not hold, or a page is lost.
pub fn run(input: &[u8]) -> bool {
    history::play(input, 64)
}

/// Random bytes: the reader takes any.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    let lengths = [64, 200, 800, 3200].into_iter().cycle().take(16);
    lengths.map(|length| core::iter::repeat_with(|| random.u8(..)).take(length).collect()).collect()
}
