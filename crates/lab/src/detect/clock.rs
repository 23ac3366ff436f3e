//! A check that the cores' clock stands still while a machine is measured. A core that has just been idle may take a
//! while to reach its clock; one that is shared with others, or held back, may have another clock a minute later. Then
//! times and cycles of one description do not belong together.

/// A look that shows this much more than the best one before shows a clock that rises.
const RISES: f64 = 1.01;
/// Looks in a row that show no rise, after which the clock has settled.
const STILL: u32 = 4;
/// Clocks that differ by more than this share are not equal.
const SAME: f64 = 0.1;

/// Keeps a CPU busy with looks at its clock, in MHz, until they no longer rise, or until `over`.
pub(super) fn settle(mut look: impl FnMut() -> Option<f64>, mut over: impl FnMut() -> bool) {
    let (mut best, mut still) = (0.0, 0);
    while still < STILL && !over() {
        let Some(now) = look() else { return };
        still = if now > best * RISES { 0 } else { still + 1 };
        best = now.max(best);
    }
}

/// A warning about a clock that was `before` all else was measured and `after` it, in MHz, on a machine that
/// names `nominal`.
pub(super) fn doubts(before: f64, after: f64, nominal: Option<f64>) -> Vec<String> {
    let mut doubts = Vec::new();
    let [low, high] = [before.min(after), before.max(after)];
    if low < high * (1.0 - SAME) {
        doubts.push(format!(
            "the clock was {before:.0} MHz before all else was measured and {after:.0} after it: times and cycles may not belong together; run it again"
        ));
    }
    if let Some(nominal) = nominal.filter(|nominal| high < nominal * (1.0 - SAME)) {
        doubts.push(format!(
            "the clock was {high:.0} MHz, and /proc/cpuinfo names {nominal:.0}: cores are shared with others or held back, and may be faster at another time"
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks that are taken at a clock that goes like this, of at most `most`.
    fn looks(clock: impl Fn(u32) -> Option<f64>, most: u32) -> u32 {
        let taken = core::cell::Cell::new(0);
        let look = || {
            taken.set(taken.get() + 1);
            clock(taken.get() - 1)
        };
        settle(look, || taken.get() >= most);
        taken.get()
    }

    #[test]
    fn a_core_is_kept_busy_until_its_clock_no_longer_rises() {
        assert_eq!(looks(|_| Some(3000.0), 100), 1 + STILL);
        // It rises by steps, each of which takes some looks, and trembles.
        let rises = |n: u32| Some([1200.0, 1210.0, 1900.0, 1890.0, 1905.0, 3000.0][n.min(5) as usize]);
        assert_eq!(looks(rises, 100), 6 + STILL);
        assert_eq!(looks(|n| Some(1000.0 * 1.05_f64.powi(n as i32)), 30), 30, "it ends when time is over");
        assert_eq!(looks(|n| Some(3000.0 - 10.0 * f64::from(n)), 100), 1 + STILL, "what falls has settled");
        assert_eq!(looks(|_| None, 100), 1, "nothing can be seen");
    }

    #[test]
    fn a_clock_that_went_elsewhere_is_said() {
        assert_eq!(doubts(3000.0, 2990.0, Some(2100.0)), [""; 0]);
        assert_eq!(doubts(3000.0, 2750.0, None), [""; 0], "less than a tenth");
        // As it went on a borrowed machine.
        let said = doubts(1951.0, 2993.0, Some(2100.0));
        assert!(
            matches!(&said[..], [sentence] if sentence.contains("1951 MHz before") && sentence.contains("2993 after")),
            "{said:?}"
        );
        assert_eq!(doubts(2993.0, 1951.0, None).len(), 1, "down as well as up");
        let said = doubts(1951.0, 1960.0, Some(2900.0));
        assert!(
            matches!(&said[..], [sentence] if sentence.contains("1960 MHz") && sentence.contains("names 2900")),
            "{said:?}"
        );
        assert_eq!(doubts(1951.0, 1960.0, Some(2100.0)), [""; 0], "what is named is what there is");
    }
}
