//! The measurements that the model was fitted to, how far it is off, and the fit itself.
//!
//! # The fit
//! Errors are logarithms of simulated over measured. Near a set of parameters they are taken to be linear in the
//! parameters' logarithms ([`Slopes`]); a step goes to where the weighted sum of their squares is least, with a
//! parameter's distance from its round value counted as one error more. A fit to all orders but one goes along the same
//! slopes ([`Slopes::step_without`]), and what is left out is then run with the parameters that it leads to: a figure's
//! own slope is a difference of two runs in which CPUs meet at other moments, and what is extrapolated along it says
//! more of that than of the model.

use crate::bench::{Bench, Case, Linux, linux, list_locked};
use crate::model::{Fitted, Model};
use framewright::Order;

/// Measured time per block.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// CPUs whose time it is.
    pub target: Target,
    /// Benchmark. Its number of blocks is that of the run that was measured.
    pub case: Case,
    /// Mean ns of an allocation, or of a pair.
    pub get_ns: Option<f64>,
    /// Mean ns of a free.
    pub put_ns: Option<f64>,
}

/// Which allocator was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The buddy allocator of Linux 6.0.
    Linux,
    /// A list behind a test-and-set lock.
    List,
}

/// One figure: measured, and as the model has it.
#[derive(Clone, PartialEq, Debug)]
pub struct Compared {
    /// `linux_bulk_get_error[order=9,cores=8,blocks=2520]`.
    pub name: String,
    /// As measured, in ns.
    pub measured: f64,
    /// As simulated, in ns.
    pub simulated: f64,
}

impl Compared {
    /// Signed error as a share of what was measured.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.simulated / self.measured - 1.0
    }
}

/// Reads a calibration set: CSV with a head line, `#` for comments.
///
/// # Errors
/// The number of the first line that cannot be read.
pub fn parse(text: &str) -> Result<Vec<Measured>, usize> {
    let mut set = Vec::new();
    let lines = text.lines().zip(1_usize..).filter(|(line, _)| !line.starts_with('#'));
    for (line, number) in lines.skip(1) {
        set.push(row(line).ok_or(number)?);
    }
    Ok(set)
}

fn row(line: &str) -> Option<Measured> {
    let fields: Vec<&str> = line.split(',').collect();
    let &[target, bench, order, cores, blocks, get, put] = fields.as_slice() else { return None };
    let time = |field: &str| match field {
        "" => Some(None),
        field => field.parse().ok().map(Some),
    };
    let blocks = blocks.parse().ok()?;
    Some(Measured {
        target: match target {
            "linux" => Target::Linux,
            "list" => Target::List,
            _ => return None,
        },
        case: Case {
            bench: [Bench::Bulk, Bench::Rand, Bench::Repeat]
                .into_iter()
                .find(|known| known.to_string() == bench)?,
            order: Order::new(order.parse().ok()?)?,
            cores: cores.parse().ok()?,
            blocks,
            stands_for: blocks,
        },
        get_ns: time(get)?,
        put_ns: time(put)?,
    })
}

/// Runs everything that was measured.
///
/// # Errors
/// Figure of a run.
pub fn compare(
    model: &Model,
    allocator: &Linux,
    set: &[Measured],
    seed: u64,
) -> Result<Vec<Compared>, crate::world::WorldError> {
    let mut compared = Vec::new();
    for measured in set {
        let case = measured.case.shortened();
        let (name, outcome) = match measured.target {
            Target::Linux => ("linux", linux(model, allocator, &case, seed)?),
            Target::List => {
                ("list", list_locked(model, &case, seed).map_err(crate::world::WorldError::Memory)?)
            }
        };
        for (operation, measured, simulated) in
            [("get", measured.get_ns, outcome.get_ns), ("put", measured.put_ns, outcome.put_ns)]
        {
            if let (Some(measured), Some(simulated)) = (measured, simulated) {
                let Case { bench, order, cores, stands_for, .. } = case;
                let order = order.get();
                let name = format!(
                    "{name}_{bench}_{operation}_error[order={order},cores={cores},blocks={stands_for}]"
                );
                compared.push(Compared { name, measured, simulated });
            }
        }
    }
    Ok(compared)
}

/// Median of the errors' sizes.
#[must_use]
pub fn median_error(compared: &[Compared]) -> f64 {
    let mut errors: Vec<f64> = compared.iter().map(|figure| figure.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let last = errors.len().saturating_sub(1);
    if errors.is_empty() { 0.0 } else { f64::midpoint(errors[last / 2], errors[last.div_ceil(2)]) }
}

/// Number of fitted parameters.
pub const PARAMETERS: usize = 6;

impl Fitted {
    /// Names of the parameters, in the order of [`values`](Self::values).
    pub const NAMES: [&'static str; PARAMETERS] =
        ["alloc_ns", "free_ns", "access_ns", "walk_ns", "dependent", "page_ns"];

    /// The parameters.
    #[must_use]
    pub const fn values(&self) -> [f64; PARAMETERS] {
        [self.alloc_ns, self.free_ns, self.access_ns, self.walk_ns, self.dependent, self.page_ns]
    }

    /// These parameters with other values.
    #[must_use]
    pub const fn from_values(values: [f64; PARAMETERS]) -> Self {
        let [alloc_ns, free_ns, access_ns, walk_ns, dependent, page_ns] = values;
        Self { alloc_ns, free_ns, access_ns, walk_ns, dependent, page_ns }
    }

    /// Values with which every fit begins, and which a parameter keeps on which no figure depends: round values. That
    /// of a page is a cycle of 2.2 GHz.
    pub const ROUND: Self = Self::from_values([50.0, 15.0, 1.6, 60.0, 0.4, 0.45]);

    /// The parameters with these changes of their logarithms.
    #[must_use]
    pub fn stepped(&self, step: [f64; PARAMETERS]) -> Self {
        let mut values = self.values();
        values.iter_mut().zip(step).for_each(|(value, step)| *value *= step.exp());
        Self::from_values(values)
    }
}

/// Errors of a set of figures, and how they change with the parameters.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Slopes {
    /// Of each figure: to which group it belongs. Figures that are left out together share one.
    pub group: Vec<u8>,
    /// Of each figure: how much it counts.
    pub weight: Vec<f64>,
    /// Of each figure: ln(simulated / measured).
    pub error: Vec<f64>,
    /// Of each figure: the change of its error for each unit of a parameter's logarithm.
    pub slope: Vec<[f64; PARAMETERS]>,
    /// Logarithms of the parameters over those that no figure speaks for ([`Fitted::ROUND`]).
    pub from_round: [f64; PARAMETERS],
}

/// Weight of an error of a figure beside the same change of a parameter, in squares: figures are expected to be
/// off by an eighth, parameters by a quarter of their round values, as all estimates of this project are.
const PRIOR: f64 = (0.125 / 0.25) * (0.125 / 0.25);

impl Slopes {
    /// The change of each parameter's logarithm that makes the sum of squares least, as far as errors are linear.
    #[must_use]
    pub fn step(&self) -> [f64; PARAMETERS] {
        self.step_for(|_| true)
    }

    /// Like [`Slopes::step`], for the figures of all groups but one.
    #[must_use]
    pub fn step_without(&self, group: u8) -> [f64; PARAMETERS] {
        self.step_for(|known| known != group)
    }

    fn step_for(&self, counts: impl Fn(u8) -> bool) -> [f64; PARAMETERS] {
        let mut normal = [[0.0; PARAMETERS]; PARAMETERS];
        let mut right = [0.0; PARAMETERS];
        for n in (0..self.error.len()).filter(|&n| counts(self.group[n])) {
            for (k, row) in normal.iter_mut().enumerate() {
                for (l, cell) in row.iter_mut().enumerate() {
                    *cell += self.weight[n] * self.slope[n][k] * self.slope[n][l];
                }
                right[k] -= self.weight[n] * self.slope[n][k] * self.error[n];
            }
        }
        for (k, row) in normal.iter_mut().enumerate() {
            row[k] += PRIOR;
            right[k] -= PRIOR * self.from_round[k];
        }
        solved(normal, right)
    }
}

/// The solution of a system of equations whose matrix is positive definite.
fn solved(mut matrix: [[f64; PARAMETERS]; PARAMETERS], mut right: [f64; PARAMETERS]) -> [f64; PARAMETERS] {
    for n in 0..PARAMETERS {
        for below in n + 1..PARAMETERS {
            let factor = matrix[below][n] / matrix[n][n];
            let row = matrix[n];
            for (cell, above) in matrix[below].iter_mut().zip(row) {
                *cell -= factor * above;
            }
            right[below] -= factor * right[n];
        }
    }
    for n in (0..PARAMETERS).rev() {
        for right_of in n + 1..PARAMETERS {
            right[n] -= matrix[n][right_of] * right[right_of];
        }
        right[n] /= matrix[n][n];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures that follow six parameters exactly.
    fn slopes(off: [f64; PARAMETERS]) -> Slopes {
        let mut slopes = Slopes::default();
        for n in 0..60_u8 {
            let slope: [f64; PARAMETERS] =
                core::array::from_fn(|k| f64::from((u32::from(n) * 7 + k as u32 * 13) % 11) - 5.0);
            let error: f64 = slope.iter().zip(off).map(|(slope, off)| slope * off).sum();
            slopes.group.push(n % 5);
            slopes.weight.push(10.0);
            slopes.error.push(error);
            slopes.slope.push(slope);
        }
        slopes
    }

    #[test]
    fn a_step_finds_the_parameters() {
        let off = [0.1, -0.2, 0.05, 0.0, 0.3, -0.1];
        let step = slopes(off).step();
        for (step, off) in step.into_iter().zip(off) {
            assert!((step + off).abs() < 0.01, "{step} {off}");
        }
    }

    #[test]
    fn what_is_left_out_does_not_help_itself() {
        let mut slopes = slopes([0.0; PARAMETERS]);
        for n in 0..slopes.error.len() {
            if slopes.group[n] == 1 {
                // These would have every parameter elsewhere, and count for more than all others.
                slopes.error[n] = slopes.slope[n].iter().sum::<f64>() * 0.5;
                slopes.weight[n] *= 1000.0;
            }
        }
        let step = slopes.step_without(1);
        assert!(step.iter().all(|step| step.abs() < 0.01), "{step:?}");
        assert!(slopes.step().iter().all(|step| (step + 0.5).abs() < 0.01));
    }

    #[test]
    fn what_no_figure_depends_on_goes_back_to_its_round_value() {
        let mut slopes = slopes([0.1; PARAMETERS]);
        slopes.slope.iter_mut().for_each(|slope| slope[5] = 0.0);
        slopes.from_round = [0.5; PARAMETERS];
        let step = slopes.step();
        assert!((step[5] + 0.5).abs() < 1e-9, "{step:?}");
        let at = Fitted::ROUND.stepped(slopes.from_round).stepped(step);
        assert!((at.page_ns / Fitted::ROUND.page_ns - 1.0).abs() < 1e-9 && at.alloc_ns > 50.0, "{at:?}");
    }

    #[test]
    fn parameters_keep_their_order() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(Fitted::from_values(values).values(), values);
        assert_eq!(Fitted::from_values(values).dependent, 5.0);
    }

    #[test]
    fn a_set_is_read_and_a_wrong_line_named() {
        let head = "# note\ntarget,bench,order,cores,blocks_per_core,get_ns,put_ns\n";
        let set = parse(&format!("{head}linux,rand,9,8,2520,,1707.5\n")).expect("a set");
        assert_eq!((set[0].get_ns, set[0].put_ns, set[0].case.cores), (None, Some(1707.5), 8));
        assert_eq!(parse(&format!("{head}linux,rand,11,8,2520,,1707.5\n")), Err(3));
    }

    #[test]
    fn the_median_is_of_sizes() {
        let median = |errors: &[f64]| {
            let compared =
                |error: &f64| Compared { name: String::new(), measured: 1.0, simulated: 1.0 + error };
            (median_error(&errors.iter().map(compared).collect::<Vec<_>>()) * 100.0).round()
        };
        assert_eq!(
            [median(&[]), median(&[-0.3]), median(&[0.1, -0.3]), median(&[0.1, -0.5, 0.3])],
            [0.0, 30.0, 20.0, 30.0]
        );
    }
}
