//! What lies between a curve's two ends when both have been measured.
//!
//! The law of a lock is `max(T1, S n)`: what a call takes alone, and what each core adds once the lock is never free. It goes through
//! both ends, and is right where a curve is far from its bend. How far a curve is from its law near the bend, the model says.

use crate::calibration::discrepancy::{Estimate, Kernel, Process, likeliest, matern};

/// `max(T1, S n)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Law {
    /// Of one core, in ns.
    pub alone: f64,
    /// What each core adds, in ns.
    pub each: f64,
}

impl Law {
    /// The law through what one core takes and what `many` cores take.
    #[must_use]
    pub fn through(alone: f64, many: u16, together: f64) -> Self {
        Self { alone, each: together / f64::from(many) }
    }

    /// What a call takes on `cores` cores, in ns.
    #[must_use]
    pub fn at(&self, cores: f64) -> f64 {
        self.alone.max(self.each * cores)
    }

    /// How near cores are to never finding the lock free: 1 at the law's bend.
    #[must_use]
    pub fn share(&self, cores: f64) -> f64 {
        cores * self.each / self.alone
    }
}

/// A curve as the model has it, with its law.
#[derive(Clone, PartialEq, Debug)]
pub struct Modelled {
    law: Law,
    /// Logarithms of numbers of cores and of the time over the law's, from one core up.
    over: Vec<[f64; 2]>,
}

impl Modelled {
    /// A curve: cores, from 1 up, and their times. `None` without two.
    #[must_use]
    pub fn new(curve: &[(u16, f64)]) -> Option<Self> {
        let (&(_, alone), &(many, together)) = (curve.first()?, curve.last()?);
        let law = Law::through(alone, many, together);
        let over = curve.iter().map(|&(n, time)| {
            let n = f64::from(n);
            [n.ln(), (time / law.at(n)).ln()]
        });
        (curve.len() > 1).then(|| Self { law, over: over.collect() })
    }

    /// By how much the curve is over its law, as a logarithm, on as many cores. Beyond its ends, not at all.
    #[must_use]
    pub fn over_law(&self, cores: f64) -> f64 {
        let at = cores.ln();
        let pair = self.over.windows(2).find(|pair| (pair[0][0]..=pair[1][0]).contains(&at));
        pair.map_or(0.0, |pair| {
            let [[from, low], [to, high]] = [pair[0], pair[1]];
            low + (high - low) * (at - from) / (to - from)
        })
    }

    /// The same as near to the bend as `cores` cores are under another law.
    #[must_use]
    pub fn over_law_as_near(&self, law: &Law, cores: f64) -> f64 {
        self.over_law(law.share(cores) / self.law.share(1.0))
    }
}

/// A place on a curve.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Along {
    /// Figures of one benchmark and operation have the same number.
    pub case: u8,
    /// Of one curve.
    pub curve: u8,
    /// Where on it: a logarithm of cores, or of their share of the bend.
    pub at: f64,
    /// How far the model's curve is over its law there.
    pub over: f64,
}

/// Logarithms of times over the law through a curve's ends: a multiple of the model's, and what curves have for themselves or with
/// those of the same benchmark and operation.
#[derive(Clone, PartialEq, Debug)]
pub struct OverLaw {
    /// Standard deviation of what is a curve's own.
    pub curve: f64,
    /// Of what curves of one benchmark and operation have together.
    pub case: f64,
    /// Over which distance it goes together.
    pub length: f64,
    /// Standard deviation of what is a figure's own.
    pub own: f64,
    /// How much of the model's distance from its law is expected.
    pub model: f64,
}

impl Kernel for OverLaw {
    type Point = Along;
    const RANGES: &'static [[f64; 3]] =
        &[[0.001, 0.03, 0.5], [0.001, 0.01, 0.5], [0.1, 1.0, 10.0], [0.0005, 0.005, 0.1], [0.01, 0.7, 2.0]];

    fn new(parameters: &[f64]) -> Self {
        let &[curve, case, length, own, model] = parameters else { panic!("five parameters") };
        Self { curve, case, length, own, model }
    }

    fn mean(&self, at: &Along) -> f64 {
        self.model * at.over
    }

    fn covariance(&self, one: &Along, other: &Along) -> f64 {
        let of = |same: bool, size: f64| if same { size * size } else { 0.0 };
        let sizes = of(one.curve == other.curve, self.curve) + of(one.case == other.case, self.case);
        sizes * matern(one.at - other.at, self.length)
    }

    fn noise(&self) -> f64 {
        self.own * self.own
    }
}

/// What lies between a curve's ends, from other curves: one estimate of the logarithm over its law for each place but the first and the last.
/// Of the curve's own values only the two ends' are looked at.
#[must_use]
pub fn between(curve: &[(Along, f64)], others: &[(Along, f64)]) -> Vec<Estimate> {
    let [first, inner @ .., last] = curve else { return Vec::new() };
    let mut seen: Vec<(&Along, f64)> = others.iter().map(|(at, over)| (at, *over)).collect();
    let kernel: OverLaw = likeliest(&seen);
    seen.extend([first, last].map(|(at, over)| (at, *over)));
    let process = Process::told(&kernel, &seen);
    inner.iter().map(|(at, _)| process.at(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: [u16; 9] = [1, 2, 3, 4, 6, 8, 12, 18, 26];

    /// A lock's waiters on n cores, exactly: so much work of one's own, so much under the lock, both of random length.
    fn curve(own: f64, held: f64) -> Vec<(u16, f64)> {
        let (mut waiting, mut curve) = (0.0, Vec::new());
        for n in 1..=26_u16 {
            let at_the_lock = held * (1.0 + waiting);
            let time = own + at_the_lock;
            waiting = f64::from(n) * at_the_lock / time;
            if CORES.contains(&n) {
                curve.push((n, time));
            }
        }
        curve
    }

    /// A measured curve and the model's, as places and logarithms over the measured one's law.
    fn along(number: u8, measured: &[(u16, f64)], simulated: &[(u16, f64)]) -> Vec<(Along, f64)> {
        let (alone, together) = (measured[0].1, measured[measured.len() - 1].1);
        let law = Law::through(alone, 26, together);
        let modelled = Modelled::new(simulated).expect("two ends");
        let of = |&(n, time): &(u16, f64)| {
            let n = f64::from(n);
            let over = modelled.over_law_as_near(&law, n);
            let along = Along { case: number, curve: number, at: law.share(n).ln(), over };
            (along, (time / law.at(n)).ln())
        };
        measured.iter().map(of).collect()
    }

    #[test]
    fn the_law_goes_through_both_ends_and_the_model_says_how_far_it_is_off_between() {
        let truth = curve(300.0, 50.0);
        let law = Law::through(truth[0].1, 26, truth[8].1);
        assert!((law.at(1.0) - truth[0].1).abs() < 1e-9 && (law.at(26.0) - truth[8].1).abs() < 1e-9);
        // A model that is a third too dear throughout has the same way off its law; one with another bend has it elsewhere.
        let dear: Vec<(u16, f64)> = truth.iter().map(|(n, time)| (*n, time * 1.33)).collect();
        let other = curve(225.0, 50.0);
        for (model, allowed) in [(&dear, 1e-9), (&other, 0.05)] {
            for (at, over) in along(0, &truth, model) {
                assert!((at.over - over).abs() < allowed, "{at:?} {over}");
            }
        }
        // Where it matters, the law is far off: there is something to be said.
        assert!(along(0, &truth, &dear).iter().any(|(_, over)| *over > 0.1));
    }

    #[test]
    fn a_curve_is_found_between_its_ends_and_nothing_but_its_ends_is_looked_at() {
        let held = [20.0, 35.0, 50.0, 80.0];
        let curves: Vec<Vec<(Along, f64)>> = held
            .iter()
            .zip(0..)
            .map(|(&held, n)| along(n, &curve(300.0, held), &curve(250.0, held * 0.9)))
            .collect();
        let others: Vec<(Along, f64)> = curves[1..].concat();
        let found = between(&curves[0], &others);
        assert_eq!(found.len(), CORES.len() - 2);
        for (estimate, (at, over)) in found.iter().zip(&curves[0][1..]) {
            assert!((estimate.mean - over).abs() < 0.05, "{at:?} {over} {estimate:?}");
        }
        let mut wrong = curves[0].clone();
        wrong[1..CORES.len() - 1].iter_mut().for_each(|(_, over)| *over = 5.0);
        assert_eq!(between(&wrong, &others), found);
    }
}
