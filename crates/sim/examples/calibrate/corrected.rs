//! How near rows come that were left out, when what the model is off by at the others is taken off.
//!
//! Whatever is chosen here, parameters of a process or one of several ways, is chosen without what is asked for.

use std::collections::BTreeMap;

use framewright_sim::calibration::discrepancy::{
    Alike, Estimate, Process, Row, Treated, Unseen, likeliest, unseen,
};
use framewright_sim::calibration::ends::{self, Along, Law, Modelled};

use crate::rows::{Few, Figure, Fits, LISTS, without};
use crate::{in_parallel, sizes};

/// A figure that was asked for: how far off it is, ln(corrected / measured), and whether its 80 % interval has it.
pub(crate) struct Asked {
    pub(crate) group: u8,
    pub(crate) error: f64,
    pub(crate) inside: bool,
    pub(crate) is_few: bool,
}

/// Where the middle four fifths of errors begin and end that have been divided by their deviations.
fn four_fifths(mut errors: Vec<f64>) -> [f64; 2] {
    errors.sort_by(f64::total_cmp);
    [0.1, 0.9].map(|share| errors[((errors.len() - 1) as f64 * share).round() as usize])
}

/// What is not the model's at each row: ln(measured / simulated).
fn told(figures: &[Figure]) -> Vec<(Row, f64)> {
    figures.iter().map(|figure| (figure.row(), -figure.error())).collect()
}

fn refer(told: &[(Row, f64)]) -> Vec<(&Row, f64)> {
    told.iter().map(|(row, value)| (row, *value)).collect()
}

/// Each group's figures, by the process that was told all others' errors under the fit without that group.
fn one_group(fits: &Fits, few: &Few, group: u8) -> Vec<Asked> {
    let all = without(fits, group);
    let (own, others): (Vec<Figure>, Vec<Figure>) = all.iter().cloned().partition(|it| it.group() == group);
    let rows = told(all);
    let is_own = |row: &Row| {
        if group == LISTS {
            row.kind == Treated::User
        } else {
            row.kind != Treated::User && row.order == group
        }
    };
    let Unseen { kernel, estimates } = unseen::<Alike>(&rows, is_own);
    println!("# without {group}: {kernel:.3?}");
    // How far off this process is from each of the other groups, if it has not been told of it: intervals are made of that.
    let mut groups: Vec<u8> = others.iter().map(Figure::group).collect();
    groups.dedup();
    groups.sort_unstable();
    groups.dedup();
    let mut off = Vec::new();
    for other in groups {
        let (its, rest): (Vec<Figure>, Vec<Figure>) =
            others.iter().cloned().partition(|it| it.group() == other);
        let rest = told(&rest);
        let process = Process::told(&kernel, &refer(&rest));
        for figure in its.iter().filter(|figure| few.has(figure)) {
            let Estimate { mean, deviation } = process.at(&figure.row());
            off.push((-figure.error() - mean) / deviation);
        }
    }
    let [low, high] = four_fifths(off);
    let asked = own.iter().zip(estimates).map(|(figure, Estimate { mean, deviation })| {
        let off = -figure.error() - mean;
        Asked {
            group,
            error: -off,
            inside: (low * deviation..=high * deviation).contains(&off),
            is_few: few.has(figure),
        }
    });
    asked.collect()
}

fn line(title: &str, asked: &[&Asked]) {
    let errors: Vec<f64> = asked.iter().map(|it| it.error).collect();
    let inside = asked.iter().filter(|it| it.inside).count();
    let share = 100.0 * inside as f64 / asked.len() as f64;
    println!("{title}: {} figures, {}; 80 % intervals cover {share:.0} %", asked.len(), sizes(&errors));
}

/// Each order left out in turn, and the lists.
pub(crate) fn print_orders(fits: &Fits, few: &Few) {
    let groups: Vec<u8> = fits.iter().map(|(group, _)| *group).collect();
    let asked: Vec<Asked> =
        in_parallel(&groups, |group| one_group(fits, few, *group)).into_iter().flatten().collect();
    let long = |it: &&Asked| matches!(it.group, 0 | 9);
    let of = |wanted: &dyn Fn(&&Asked) -> bool| -> Vec<&Asked> { asked.iter().filter(wanted).collect() };
    for group in groups {
        line(&format!("corrected, {group} left out"), &of(&|it| it.group == group));
    }
    line("corrected, every row", &of(&|_| true));
    line("corrected, rows of the fit", &of(&|it| it.is_few));
    line("corrected, orders all", &of(&|it| it.group != LISTS));
    line("corrected, orders 0 and 9", &of(&|it| long(it)));
    line("corrected, orders others", &of(&|it| !long(it) && it.group != LISTS));
}

/// A curve: cores, what was measured and what is simulated.
#[derive(Clone)]
struct Curve {
    case: u8,
    order: u8,
    is_pair: bool,
    points: Vec<(u16, f64, f64)>,
}

impl Curve {
    fn is(&self, figure: &Figure) -> bool {
        figure.group() != LISTS && (figure.case(), figure.order) == (self.case, self.order)
    }

    fn key(&self) -> u8 {
        self.case * 16 + self.order
    }

    fn ends(&self) -> [(u16, f64, f64); 2] {
        [self.points[0], *self.points.last().expect("a curve has points")]
    }

    fn inner(&self) -> &[(u16, f64, f64)] {
        &self.points[1..self.points.len() - 1]
    }

    fn law(&self) -> Law {
        let [(_, alone, _), (many, together, _)] = self.ends();
        Law::through(alone, many, together)
    }

    fn modelled(&self) -> Modelled {
        let of = self.points.iter().map(|&(n, _, simulated)| (n, simulated));
        Modelled::new(&of.collect::<Vec<_>>()).expect("a curve has two ends")
    }

    /// How far the model's curve is over its law.
    fn over(&self, as_near: bool, n: u16) -> f64 {
        let (n, modelled) = (f64::from(n), self.modelled());
        if as_near { modelled.over_law_as_near(&self.law(), n) } else { modelled.over_law(n) }
    }

    /// Its places, with the logarithm of what was measured over the law.
    fn along(&self, as_near: bool) -> Vec<(Along, f64)> {
        let law = self.law();
        let of = |&(n, measured, _): &(u16, f64, f64)| {
            let cores = f64::from(n);
            let at = if as_near { law.share(cores).ln() } else { cores.ln() };
            let along = Along { case: self.case, curve: self.key(), at, over: self.over(as_near, n) };
            (along, (measured / law.at(cores)).ln())
        };
        self.points.iter().map(of).collect()
    }
}

/// Curves with more than their ends, as one fit has them; of two lengths of a run, the first.
fn curves(figures: &[Figure]) -> Vec<Curve> {
    let mut all: BTreeMap<(u8, u8), BTreeMap<u16, &Figure>> = BTreeMap::new();
    for figure in figures.iter().filter(|figure| figure.group() != LISTS) {
        all.entry((figure.case(), figure.order)).or_default().entry(figure.cores).or_insert(figure);
    }
    let long = all.into_iter().filter(|(_, curve)| curve.len() > 2);
    long.map(|((case, order), curve)| Curve {
        case,
        order,
        is_pair: curve.values().all(|figure| figure.is_pair()),
        points: curve.into_iter().map(|(n, figure)| (n, figure.measured, figure.simulated)).collect(),
    })
    .collect()
}

/// How to say what lies between two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// `max(T1, S n)`.
    Law,
    /// The model, its errors at the ends by a power of the number of cores.
    Power,
    /// The model, its errors by the process of the rows, which is told of the ends.
    Process,
    /// The law, times how far the model is over its own: on as many cores, or as near to the bend.
    Model { as_near: bool },
    /// The same, and a process for what is left.
    OverLaw { as_near: bool },
}

const WAYS: [Way; 7] = [
    Way::Law,
    Way::Power,
    Way::Process,
    Way::Model { as_near: false },
    Way::Model { as_near: true },
    Way::OverLaw { as_near: false },
    Way::OverLaw { as_near: true },
];

/// Of each inner point of a curve: ln(predicted / measured), and the deviation that is expected of it.
fn between(way: Way, asked: &Curve, others: &[&Curve], figures: &[Figure]) -> Vec<(f64, f64)> {
    let law = asked.law();
    let by_law = |n: u16, measured: f64| (law.at(f64::from(n)) / measured).ln();
    let inner = asked.inner().iter();
    match way {
        Way::Law => inner.map(|&(n, measured, _)| (by_law(n, measured), 1.0)).collect(),
        Way::Power => {
            let [first, last] =
                asked.ends().map(|(n, measured, simulated)| (f64::from(n), (simulated / measured).ln()));
            let of = |&(n, measured, simulated): &(u16, f64, f64)| {
                let share = (f64::from(n) / first.0).ln() / (last.0 / first.0).ln();
                ((simulated / measured).ln() - first.1 - (last.1 - first.1) * share, 1.0)
            };
            inner.map(of).collect()
        }
        Way::Model { as_near } => {
            inner.map(|&(n, measured, _)| (by_law(n, measured) + asked.over(as_near, n), 1.0)).collect()
        }
        Way::OverLaw { as_near } => {
            let told: Vec<(Along, f64)> = others.iter().flat_map(|curve| curve.along(as_near)).collect();
            let own = asked.along(as_near);
            let estimates = ends::between(&own, &told);
            let off =
                |(estimate, (_, over)): (Estimate, &(Along, f64))| (estimate.mean - over, estimate.deviation);
            estimates.into_iter().zip(&own[1..]).map(off).collect()
        }
        Way::Process => {
            let [(first, ..), (last, ..)] = asked.ends();
            let unseen: Vec<Figure> = figures.iter().filter(|it| !asked.is(it)).cloned().collect();
            let unseen = told(&unseen);
            let kernel: Alike = likeliest(&refer(&unseen));
            let with: Vec<Figure> = figures
                .iter()
                .filter(|it| !asked.is(it) || it.cores == first || it.cores == last)
                .cloned()
                .collect();
            let with = told(&with);
            let refer = refer(&with);
            let process = Process::told(&kernel, &refer);
            let of = |&(cores, measured, simulated): &(u16, f64, f64)| {
                let kind = Treated::of(asked.order);
                let row = Row { case: asked.case, kind, order: asked.order, cores };
                let Estimate { mean, deviation } = process.at(&row);
                ((simulated / measured).ln() + mean, deviation)
            };
            inner.map(of).collect()
        }
    }
}

/// What is known when a curve is asked for: all others, or those of other orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    OtherCurves,
    OtherOrders,
}

/// Of one curve: its errors by each way, and by the one that does best on the others, with how many that one's intervals have.
struct Between {
    is_pair: bool,
    ways: Vec<Vec<f64>>,
    chosen: Way,
    inside: usize,
}

fn one_curve(fits: &Fits, key: u8, known: Known) -> Between {
    let figures = without(fits, key % 16);
    let all = curves(figures);
    let asked = all.iter().find(|curve| curve.key() == key).expect("the curve");
    let may =
        |curve: &Curve| curve.key() != key && (known == Known::OtherCurves || curve.order != asked.order);
    let others: Vec<&Curve> = all.iter().filter(|curve| may(curve)).collect();
    let rows: Vec<Figure> = figures
        .iter()
        .filter(|it| !all.iter().any(|curve| !may(curve) && curve.key() != key && curve.is(it)))
        .cloned()
        .collect();
    // Each way's errors on each of the others, without it and without what is asked for.
    let unasked: Vec<Figure> = rows.iter().filter(|it| !asked.is(it)).cloned().collect();
    let elsewhere = |way: Way| -> Vec<(f64, f64)> {
        let of = others.iter().flat_map(|curve| {
            let rest: Vec<&Curve> = others.iter().filter(|it| it.key() != curve.key()).copied().collect();
            between(way, curve, &rest, &unasked)
        });
        of.collect()
    };
    let tried: Vec<(Way, Vec<(f64, f64)>)> = WAYS.into_iter().map(|way| (way, elsewhere(way))).collect();
    let median = |errors: &[(f64, f64)]| {
        let mut sizes: Vec<f64> = errors.iter().map(|(error, _)| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        sizes[sizes.len() / 2]
    };
    let best = tried.iter().min_by(|one, other| median(&one.1).total_cmp(&median(&other.1))).expect("ways");
    let [low, high] = four_fifths(best.1.iter().map(|(error, deviation)| error / deviation).collect());
    let ways: Vec<Vec<(f64, f64)>> = WAYS.map(|way| between(way, asked, &others, &rows)).into();
    let n = WAYS.iter().position(|way| *way == best.0).expect("one of them");
    let inside =
        ways[n].iter().filter(|(error, deviation)| (low..=high).contains(&(error / deviation))).count();
    let ways = ways.into_iter().map(|way| way.into_iter().map(|(error, _)| error).collect()).collect();
    Between { is_pair: asked.is_pair, ways, chosen: best.0, inside }
}

/// What lies between a curve's ends.
pub(crate) fn print_between(fits: &Fits) {
    let keys: Vec<u8> = curves(without(fits, 0)).iter().map(Curve::key).collect();
    for known in [Known::OtherCurves, Known::OtherOrders] {
        let all = in_parallel(&keys, |key| one_curve(fits, *key, known));
        for (key, of) in keys.iter().zip(&all) {
            let by: Vec<String> = of.ways.iter().map(|way| sizes(way)).collect();
            println!(
                "{known:?}: case {}, order {}: {:?} chosen; {}",
                key / 16,
                key % 16,
                of.chosen,
                by.join("; ")
            );
        }
        for (which, pairs) in [("pairs apart", false), ("with pairs", true)] {
            let wanted = || all.iter().filter(|it| pairs || !it.is_pair);
            for (n, way) in WAYS.iter().enumerate() {
                let errors: Vec<f64> = wanted().flat_map(|it| it.ways[n].clone()).collect();
                println!("{known:?}, {which}, {way:?}: {} figures, {}", errors.len(), sizes(&errors));
            }
            let chosen = wanted().flat_map(|it| {
                it.ways[WAYS.iter().position(|way| *way == it.chosen).expect("one of them")].clone()
            });
            let errors: Vec<f64> = chosen.collect();
            let inside: usize = wanted().map(|it| it.inside).sum();
            println!(
                "{known:?}, {which}, as chosen: {} figures, {}; 80 % intervals cover {:.0} %",
                errors.len(),
                sizes(&errors),
                100.0 * inside as f64 / errors.len() as f64
            );
        }
    }
}
