//! The measurements that the model was fitted to, and how far it is off.

use crate::bench::{Bench, Case, Linux, linux, list_locked};
use crate::model::Model;
use framewright::Order;

/// What was measured: time per block.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Whose time it is.
    pub target: Target,
    /// What was done. Its number of blocks is that of the run that was measured.
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
                .find(|it| it.to_string() == bench)?,
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
/// What a run says.
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
    let mut errors: Vec<f64> = compared.iter().map(|it| it.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let middle = errors.len() / 2;
    match errors.len() {
        0 => 0.0,
        n if n % 2 == 1 => errors[middle],
        _ => f64::midpoint(errors[middle - 1], errors[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_and_a_wrong_line_named() {
        let head = "# note\ntarget,bench,order,cores,blocks_per_core,get_ns,put_ns\n";
        let set = parse(&format!("{head}linux,rand,9,8,2520,,1707.5\n")).expect("a set");
        assert_eq!((set[0].get_ns, set[0].put_ns, set[0].case.cores), (None, Some(1707.5), 8));
        assert_eq!(parse(&format!("{head}linux,rand,11,8,2520,,1707.5\n")), Err(3));
    }

    #[test]
    fn the_median_is_of_sizes() {
        let of = |errors: &[f64]| {
            let one = |error: &f64| Compared { name: String::new(), measured: 1.0, simulated: 1.0 + error };
            (median_error(&errors.iter().map(one).collect::<Vec<_>>()) * 100.0).round()
        };
        assert_eq!([of(&[]), of(&[-0.3]), of(&[0.1, -0.3]), of(&[0.1, -0.5, 0.3])], [0.0, 30.0, 20.0, 30.0]);
    }
}
