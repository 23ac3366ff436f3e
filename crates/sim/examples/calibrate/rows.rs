//! Every row as each fit has it, and the file that keeps them: they take half an hour of one core and more, what is made of them a minute.

use std::collections::BTreeSet;

use framewright_sim::calibration::discrepancy::{Row, Treated};
use framewright_sim::calibration::{Compared, Measured, Target};

/// The lists are left out together.
pub(crate) const LISTS: u8 = 99;

/// One figure, measured and simulated.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Figure {
    /// `linux_bulk_get`.
    pub(crate) name: String,
    pub(crate) order: u8,
    pub(crate) cores: u16,
    pub(crate) blocks: u64,
    pub(crate) measured: f64,
    pub(crate) simulated: f64,
}

impl Figure {
    /// From a name such as `linux_bulk_get_error[order=9,cores=8,blocks=2520]`.
    pub(crate) fn of(compared: &Compared) -> Option<Self> {
        let (name, rest) = compared.name.split_once("_error[")?;
        let mut values = rest.trim_end_matches(']').split(',').map(|it| it.split_once('=').map(|it| it.1));
        let mut next = || values.next().flatten();
        Some(Self {
            name: name.to_owned(),
            order: next()?.parse().ok()?,
            cores: next()?.parse().ok()?,
            blocks: next()?.parse().ok()?,
            measured: compared.measured,
            simulated: compared.simulated,
        })
    }

    /// ln(simulated / measured).
    pub(crate) fn error(&self) -> f64 {
        (self.simulated / self.measured).ln()
    }

    /// Which figures are left out together with it.
    pub(crate) fn group(&self) -> u8 {
        if self.name.starts_with("list") { LISTS } else { self.order }
    }

    /// Whether a block is taken and given back at once.
    pub(crate) fn is_pair(&self) -> bool {
        self.name.contains("repeat")
    }

    /// Which benchmark and operation it is, as a number.
    pub(crate) fn case(&self) -> u8 {
        let known = ["bulk_get", "bulk_put", "rand_get", "rand_put", "repeat_get"];
        known.iter().position(|it| self.name.ends_with(it)).expect("a known figure") as u8
    }

    /// Where it is.
    pub(crate) fn row(&self) -> Row {
        let kind = if self.group() == LISTS { Treated::User } else { Treated::of(self.order) };
        Row { case: self.case(), kind, order: self.order, cores: self.cores }
    }
}

/// All rows as each fit has them, by the group that it was made without.
pub(crate) type Fits = Vec<(u8, Vec<Figure>)>;

/// The rows of one fit.
pub(crate) fn without(fits: &Fits, group: u8) -> &[Figure] {
    let fit = fits.iter().find(|(without, _)| *without == group);
    &fit.expect("a fit without each group").1
}

/// Rows that the fit takes.
pub(crate) struct Few(BTreeSet<(String, u8, u16, u64)>);

impl Few {
    pub(crate) fn of(chosen: &[Measured]) -> Self {
        let key = |row: &Measured| {
            let target = if row.target == Target::List { "list" } else { "linux" };
            let case = row.case;
            (format!("{target}_{}", case.bench), case.order.get(), case.cores, case.blocks)
        };
        Self(chosen.iter().map(key).collect())
    }

    pub(crate) fn has(&self, figure: &Figure) -> bool {
        let bench = figure.name.rsplit_once('_').map_or("", |(bench, _)| bench);
        self.0.contains(&(bench.to_owned(), figure.order, figure.cores, figure.blocks))
    }
}

const HEAD: &str = "without,figure,order,cores,blocks,measured_ns,simulated_ns";

/// As CSV.
pub(crate) fn write(fits: &Fits) -> String {
    let rows = fits.iter().flat_map(|(group, figures)| figures.iter().map(move |figure| (group, figure)));
    let lines = rows.map(|(group, figure)| {
        let Figure { name, order, cores, blocks, measured, simulated } = figure;
        format!("{group},{name},{order},{cores},{blocks},{measured},{simulated}\n")
    });
    core::iter::once(format!("{HEAD}\n")).chain(lines).collect()
}

/// What [`write`] wrote.
pub(crate) fn read(text: &str) -> Option<Fits> {
    let mut fits = Fits::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let &[group, name, order, cores, blocks, measured, simulated] = fields.as_slice() else {
            return None;
        };
        let group = group.parse().ok()?;
        let figure = Figure {
            name: name.to_owned(),
            order: order.parse().ok()?,
            cores: cores.parse().ok()?,
            blocks: blocks.parse().ok()?,
            measured: measured.parse().ok()?,
            simulated: simulated.parse().ok()?,
        };
        match fits.last_mut().filter(|(last, _)| *last == group) {
            Some((_, figures)) => figures.push(figure),
            None => fits.push((group, vec![figure])),
        }
    }
    Some(fits)
}
