//! What the model is known to be off by, taken off what is near.
//!
//! Measured times are the model's times a discrepancy (Kennedy and O'Hagan 2001). Its logarithm is a Gaussian process: a figure is
//! off by about as much as those near it that have been seen, and by nothing where none is near, but with all of the process' variance.
//!
//! What the process is like ([`Kernel`]) is chosen by the likelihood of the figures that it is given ([`likeliest`]), and by nothing else.

/// How errors go together.
pub trait Kernel: Sized {
    /// Where a figure is.
    type Point;
    /// Each parameter's least value, where a search begins, and its greatest value. All are above 0.
    const RANGES: &'static [[f64; 3]];

    /// The kernel with these parameters, in the order of [`RANGES`](Self::RANGES).
    fn new(parameters: &[f64]) -> Self;

    /// What is expected where nothing has been seen.
    fn mean(&self, _at: &Self::Point) -> f64 {
        0.0
    }

    /// Of two figures, without what is each one's own.
    fn covariance(&self, one: &Self::Point, other: &Self::Point) -> f64;

    /// Variance that each figure has for itself.
    fn noise(&self) -> f64;
}

/// Matérn's covariance with ν = 3/2: 1 at distance 0, as smooth as a function with one derivative.
#[must_use]
pub fn matern(distance: f64, length: f64) -> f64 {
    let x = 3.0_f64.sqrt() * distance.abs() / length;
    (1.0 + x) * (-x).exp()
}

/// An expectation with its standard deviation, of a figure that is yet to be measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// What is expected.
    pub mean: f64,
    /// How far off that is, the figure's own noise included.
    pub deviation: f64,
}

/// A process that has been told some figures.
#[derive(Debug)]
pub struct Process<'p, K: Kernel> {
    kernel: &'p K,
    points: Vec<&'p K::Point>,
    /// The lower triangle L of LLᵀ, row by row, where LLᵀ is the covariance of what was told.
    triangle: Vec<Vec<f64>>,
    /// The inverse of the covariance, times what was told over its mean.
    weights: Vec<f64>,
    likelihood: f64,
}

impl<'p, K: Kernel> Process<'p, K> {
    /// Tells a process what was seen. Takes time by the cube of its number.
    #[must_use]
    pub fn told(kernel: &'p K, seen: &[(&'p K::Point, f64)]) -> Self {
        let points: Vec<&K::Point> = seen.iter().map(|(point, _)| *point).collect();
        let over: Vec<f64> = seen.iter().map(|(point, value)| value - kernel.mean(point)).collect();
        let triangle = triangle(kernel, &points);
        let half = forward(&triangle, &over);
        let squares: f64 = half.iter().map(|it| it * it).sum();
        let determinant: f64 = triangle.iter().filter_map(|row| row.last()).map(|it| 2.0 * it.ln()).sum();
        let weights = backward(&triangle, half);
        Self { kernel, points, triangle, weights, likelihood: -0.5 * (squares + determinant) }
    }

    /// Logarithm of the likelihood of what was told, but for a constant.
    #[must_use]
    pub const fn likelihood(&self) -> f64 {
        self.likelihood
    }

    /// What a figure there will be like.
    #[must_use]
    pub fn at(&self, point: &K::Point) -> Estimate {
        let with: Vec<f64> = self.points.iter().map(|it| self.kernel.covariance(it, point)).collect();
        let mean = with.iter().zip(&self.weights).map(|(with, weight)| with * weight).sum::<f64>();
        let known: f64 = forward(&self.triangle, &with).iter().map(|it| it * it).sum();
        let variance = self.kernel.covariance(point, point) - known;
        Estimate {
            mean: self.kernel.mean(point) + mean,
            deviation: (variance.max(0.0) + self.kernel.noise()).sqrt(),
        }
    }
}

/// Cholesky's triangle of the covariance of some points with their noise.
fn triangle<K: Kernel>(kernel: &K, points: &[&K::Point]) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(points.len());
    for (n, point) in points.iter().enumerate() {
        let mut row: Vec<f64> = Vec::with_capacity(n + 1);
        for (above, other) in rows.iter().zip(points) {
            let done: f64 = above.iter().zip(&row).map(|(above, own)| above * own).sum();
            let diagonal = above.last().copied().unwrap_or(1.0);
            row.push((kernel.covariance(point, other) - done) / diagonal);
        }
        let done: f64 = row.iter().map(|own| own * own).sum();
        // What rounding leaves of a variance is not below a thousandth of the noise.
        let left = kernel.covariance(point, point) + kernel.noise() - done;
        row.push(left.max(kernel.noise() * 1e-3).sqrt());
        rows.push(row);
    }
    rows
}

/// x of Lx = b.
fn forward(triangle: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut solved: Vec<f64> = Vec::with_capacity(right.len());
    for (row, right) in triangle.iter().zip(right) {
        let done: f64 = row.iter().zip(&solved).map(|(row, solved)| row * solved).sum();
        solved.push((right - done) / row[solved.len()]);
    }
    solved
}

/// x of Lᵀx = b.
fn backward(triangle: &[Vec<f64>], mut right: Vec<f64>) -> Vec<f64> {
    for (n, row) in triangle.iter().enumerate().rev() {
        right[n] /= row[n];
        let solved = right[n];
        for (right, row) in right.iter_mut().zip(&row[..n]) {
            *right -= row * solved;
        }
    }
    right
}

/// The kernel under which what was seen is likeliest, as far as a search along the parameters' logarithms finds it: from three
/// places, by steps that are halved when no parameter's step up or down makes it likelier.
#[must_use]
pub fn likeliest<K: Kernel>(seen: &[(&K::Point, f64)]) -> K {
    let of = |at: &[f64]| {
        let parameters: Vec<f64> = at.iter().map(|it| it.exp()).collect();
        Process::told(&K::new(&parameters), seen).likelihood()
    };
    let bounds: Vec<[f64; 2]> = K::RANGES.iter().map(|[low, _, high]| [low.ln(), high.ln()]).collect();
    let mut best: Option<(f64, Vec<f64>)> = None;
    for toward in [None, Some(0), Some(1)] {
        let start = K::RANGES.iter().zip(&bounds).map(|([_, start, _], bounds)| {
            toward.map_or(start.ln(), |end| f64::midpoint(start.ln(), bounds[end as usize]))
        });
        let found = climb(&of, start.collect(), &bounds);
        if best.as_ref().is_none_or(|best| found.0 > best.0) {
            best = Some(found);
        }
    }
    let at = best.map_or_else(Vec::new, |(_, at)| at);
    K::new(&at.iter().map(|it| it.exp()).collect::<Vec<_>>())
}

/// Steps of a search: from a factor of e to one of 3 %.
const STEPS: [f64; 6] = [1.0, 0.5, 0.25, 0.12, 0.06, 0.03];
/// Rounds of a search by one step at most.
const ROUNDS: usize = 20;

fn climb(of: &impl Fn(&[f64]) -> f64, mut at: Vec<f64>, bounds: &[[f64; 2]]) -> (f64, Vec<f64>) {
    let mut best = of(&at);
    for step in STEPS {
        for _ in 0..ROUNDS {
            let before = best;
            for (n, &[low, high]) in bounds.iter().enumerate() {
                for step in [step, -step] {
                    let here = at[n];
                    at[n] = (here + step).clamp(low, high);
                    let there = of(&at);
                    if there > best {
                        best = there;
                        break;
                    }
                    at[n] = here;
                }
            }
            if best <= before {
                break;
            }
        }
    }
    (best, at)
}

/// What is expected of figures that nobody has seen, and the kernel it was expected under.
#[derive(Debug)]
pub struct Unseen<K> {
    /// The likeliest one for what was seen.
    pub kernel: K,
    /// One for each figure that was asked for, in their order.
    pub estimates: Vec<Estimate>,
}

/// Figures that are `asked` for, from all others. Values of those that are asked for are not looked at.
#[must_use]
pub fn unseen<K: Kernel>(figures: &[(K::Point, f64)], asked: impl Fn(&K::Point) -> bool) -> Unseen<K> {
    let (asked, seen): (Vec<_>, Vec<_>) =
        figures.iter().map(|(point, value)| (point, *value)).partition(|(point, _)| asked(point));
    let kernel: K = likeliest(&seen);
    let process = Process::told(&kernel, &seen);
    let estimates = asked.iter().map(|(point, _)| process.at(point)).collect();
    Unseen { kernel, estimates }
}

/// Where a figure of the calibration set is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// What was timed: figures of one benchmark and operation have the same number.
    pub case: u8,
    /// How the allocator treats the order.
    pub kind: Treated,
    /// The order.
    pub order: u8,
    /// Cores.
    pub cores: u16,
}

/// Orders that take the same way through the allocator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Treated {
    /// Pages: with per-CPU lists, and without a look at the counts of free blocks.
    Page,
    /// Orders 1 to 3: with per-CPU lists.
    Listed,
    /// Orders 4 to 8 and 10: each call goes to the zone.
    Zone,
    /// Order 9: per-CPU lists of huge pages.
    Huge,
    /// No order of the allocator: lists in user space.
    User,
}

impl Treated {
    /// How Linux 6.0 treats an order.
    #[must_use]
    pub const fn of(order: u8) -> Self {
        match order {
            0 => Self::Page,
            1..=3 => Self::Listed,
            9 => Self::Huge,
            _ => Self::Zone,
        }
    }
}

/// Errors of figures of the calibration set: those of orders that are treated alike go together, the more the nearer their orders
/// and numbers of cores are, and those of one benchmark and operation more than those of two.
#[derive(Clone, PartialEq, Debug)]
pub struct Alike {
    /// Standard deviation.
    pub size: f64,
    /// Orders over which errors go together.
    pub orders: f64,
    /// Logarithm of numbers of cores over which they do.
    pub cores: f64,
    /// Share that other benchmarks and operations have in common.
    pub shared: f64,
    /// Standard deviation of what is a figure's own.
    pub own: f64,
}

impl Kernel for Alike {
    type Point = Row;
    const RANGES: &'static [[f64; 3]] =
        &[[0.005, 0.1, 1.0], [0.5, 3.0, 20.0], [0.2, 1.5, 10.0], [0.01, 0.3, 0.999], [0.002, 0.02, 0.3]];

    fn new(parameters: &[f64]) -> Self {
        let &[size, orders, cores, shared, own] = parameters else { panic!("five parameters") };
        Self { size, orders, cores, shared, own }
    }

    fn covariance(&self, one: &Row, other: &Row) -> f64 {
        if one.kind != other.kind {
            return 0.0;
        }
        let case = if one.case == other.case { 1.0 } else { self.shared };
        let orders = f64::from(one.order.abs_diff(other.order));
        let cores = (f64::from(one.cores) / f64::from(other.cores)).ln();
        self.size * self.size * case * matern(orders, self.orders) * matern(cores, self.cores)
    }

    fn noise(&self) -> f64 {
        self.own * self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Rng;

    const CASES: u8 = 3;

    /// Rows of Linux as they were measured: long curves of orders 0 and 9, eight cores of all others.
    fn rows() -> Vec<Row> {
        let cores = |order: u8| if matches!(order, 0 | 9) { (1..=26).step_by(5).collect() } else { vec![8] };
        let of = |(case, order): (u8, u8)| {
            cores(order).into_iter().map(move |cores| Row { case, kind: Treated::of(order), order, cores })
        };
        (0..CASES).flat_map(|case| (0..=10).map(move |order| (case, order))).flat_map(of).collect()
    }

    /// From -1 to 1.
    fn noise(rng: &mut Rng) -> f64 {
        rng.below(20_001) as f64 / 10_000.0 - 1.0
    }

    /// A world in which an order that goes to the zone is off by a tenth and a little more with each order, and other ones by nothing that can be known.
    fn world(seed: u64) -> Vec<(Row, f64)> {
        let mut rng = Rng::new(seed);
        let off = |row: &Row| match row.kind {
            Treated::Zone => 0.1 + 0.02 * f64::from(row.order) + 0.03 * f64::from(row.case),
            _ => 0.0,
        };
        rows().into_iter().map(|row| (row, off(&row) + 0.005 * noise(&mut rng))).collect()
    }

    #[test]
    fn a_known_discrepancy_is_found_where_it_was_not_seen() {
        for order in [5, 6, 7] {
            let world = world(u64::from(order));
            let asked = |row: &Row| row.order == order;
            let found: Unseen<Alike> = unseen(&world, asked);
            let own: Vec<f64> = world.iter().filter(|(row, _)| asked(row)).map(|(_, off)| *off).collect();
            assert_eq!(found.estimates.len(), usize::from(CASES));
            for (estimate, off) in found.estimates.iter().zip(own) {
                assert!((estimate.mean - off).abs() < 0.03, "{order}: {estimate:?}, {off}");
                assert!(estimate.deviation < 0.1, "{order}: {estimate:?}");
            }
        }
    }

    #[test]
    fn far_from_all_that_was_seen_nothing_is_taken_off() {
        let found: Unseen<Alike> = unseen(&world(1), |row: &Row| row.order == 9);
        for estimate in &found.estimates {
            let prior = found.kernel.size.hypot(found.kernel.own);
            assert!(estimate.mean == 0.0 && (estimate.deviation - prior).abs() < 1e-12, "{estimate:?}");
        }
        let kernel = Alike { size: 0.1, orders: 1.0, cores: 1.0, shared: 0.5, own: 0.01 };
        let at = |order: u8, cores: u16| Row { case: 0, kind: Treated::Zone, order, cores };
        let near = at(4, 8);
        let process = Process::told(&kernel, &[(&near, 0.3)]);
        assert!((process.at(&at(4, 8)).mean - 0.297).abs() < 1e-3);
        assert!(process.at(&at(10, 8)).mean < 0.001 && process.at(&at(4, 30_000)).mean < 0.001);
    }

    #[test]
    fn what_is_asked_for_changes_nothing() {
        let asked = |row: &Row| row.order == 6;
        let one = world(3);
        let mut rng = Rng::new(9);
        let other: Vec<(Row, f64)> =
            one.iter().map(|(row, off)| (*row, if asked(row) { noise(&mut rng) } else { *off })).collect();
        assert_ne!(one, other);
        let [one, other] = [one, other].map(|world| unseen::<Alike>(&world, asked));
        assert_eq!((one.kernel, one.estimates), (other.kernel, other.estimates));
    }

    #[test]
    fn what_is_told_is_as_likely_as_by_hand() {
        // Two figures: a covariance of two by two, whose determinant and inverse are known.
        let kernel = Alike { size: 0.2, orders: 2.0, cores: 1.0, shared: 0.5, own: 0.1 };
        let [a, b] =
            [(5, 8), (6, 8)].map(|(order, cores)| Row { case: 0, kind: Treated::Zone, order, cores });
        let (same, apart) = (0.05, 0.04 * matern(1.0, 2.0));
        let determinant = same * same - apart * apart;
        let [x, y] = [0.1, -0.3];
        let squares = (same * (x * x + y * y) - 2.0 * apart * x * y) / determinant;
        let process = Process::told(&kernel, &[(&a, x), (&b, y)]);
        assert!((process.likelihood() + 0.5 * (squares + f64::ln(determinant))).abs() < 1e-9);
        let mean = 0.04 * (same * x - apart * y) / determinant + apart * (same * y - apart * x) / determinant;
        let Estimate { mean: found, .. } = process.at(&a);
        assert!((found - mean).abs() < 1e-9, "{found} {mean}");
    }

    #[test]
    fn figures_that_are_one_and_the_same_can_be_told() {
        let kernel = Alike { size: 0.3, orders: 2.0, cores: 1.0, shared: 0.99, own: 0.002 };
        let row = Row { case: 0, kind: Treated::Page, order: 0, cores: 8 };
        let process = Process::told(&kernel, &[(&row, 0.1), (&row, 0.1), (&row, 0.1)]);
        let Estimate { mean, deviation } = process.at(&row);
        assert!((mean - 0.1).abs() < 1e-3 && deviation < 0.01, "{mean} {deviation}");
    }
}
