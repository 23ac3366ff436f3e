//! Curves over a numeric axis, as SVG: a mark of its own shape for each series, a band for its range.

use core::fmt::Write as _;

use maud::{Markup, html};

use super::bars::COLOURS;
use crate::plot::{LOGARITHMIC, Point, Scale, Series, label};

/// The drawing's own units; the page scales it.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;
/// A value axis that spans more than this factor is logarithmic.
const LOGARITHMIC_Y: f64 = 30.0;
/// With more points than this, they cannot be reached one by one: the table has them.
const MOST_STOPS: usize = 40;

fn x_axis(series: &[Series]) -> Scale {
    let (low, high) = bounds(series.iter().flat_map(|series| &series.points).map(|point| point.x));
    Scale::new(low, high, LOGARITHMIC, [LEFT, WIDTH - RIGHT])
}

fn y_axis(series: &[Series]) -> Scale {
    let points = || series.iter().flat_map(|series| &series.points);
    let (low, high) = bounds(points().flat_map(|point| [point.low, point.y, point.high]));
    let low = if high / low > LOGARITHMIC_Y { low } else { low.min(0.0) };
    Scale::new(low, high, LOGARITHMIC_Y, [HEIGHT - BOTTOM, TOP])
}

/// Round values along the axis.
fn ticks(axis: &Scale) -> Vec<f64> {
    if axis.logarithmic {
        let (first, last) = (axis.low.log2().ceil() as i32, axis.high.log2().floor() as i32);
        let step = ((last - first) / 5).max(1);
        return (first..=last).step_by(step as usize).map(|power| 2_f64.powi(power)).collect();
    }
    let rough = (axis.high - axis.low) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (axis.low / step).ceil() as i64;
    (first..)
        .map(|n| n as f64 * step)
        .take_while(|value| *value <= axis.high * (1.0 + 1e-9))
        .take(12)
        .collect()
}

/// Least and greatest value.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    });
    ends.unwrap_or((0.0, 1.0))
}

/// The plot and its legend.
pub(super) fn curve(title: &str, axis: &str, unit: &str, series: &[Series]) -> Markup {
    let (x, y) = (x_axis(series), y_axis(series));
    let stops = series.iter().map(|series| series.points.len()).sum::<usize>() <= MOST_STOPS;
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="group" aria-label={ (title) " over " (axis) } {
            g.grid {
                @for value in ticks(&y) {
                    line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(at(y.at(value))) y2=(at(y.at(value))) {}
                    text x=(LEFT - 6.0) y=(at(y.at(value) + 4.0)) text-anchor="end" { (label(value)) }
                }
                @for value in ticks(&x) {
                    line x1=(at(x.at(value))) x2=(at(x.at(value))) y1=(HEIGHT - BOTTOM) y2=(HEIGHT - BOTTOM + 4.0) {}
                    text x=(at(x.at(value))) y=(HEIGHT - BOTTOM + 18.0) text-anchor="middle" { (label(value)) }
                }
                text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 4.0) text-anchor="middle" { (axis) }
            }
            @for (n, series) in series.iter().enumerate() {
                g class={ "series c" (n % COLOURS) } {
                    @if series.points.iter().any(|point| point.high > point.low) { path.band d=(band(&series.points, &x, &y)) {} }
                    path.line d=(line(series.points.iter().map(|point| (x.at(point.x), y.at(point.y))))) {}
                    @for point in &series.points { (mark(n, series, point, (&x, &y), unit, stops)) }
                }
            }
        }
        ul.legend {
            @for (n, series) in series.iter().enumerate() {
                li {
                    svg.key viewBox="-7 -7 14 14" aria-hidden="true" { g class={ "series c" (n % COLOURS) } { path.mark d=(shape(n)) {} } }
                    (series.name)
                }
            }
        }
    }
}

/// A coordinate with one decimal.
fn at(value: f64) -> String {
    format!("{value:.1}")
}

fn line(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (n, (x, y)) in points.enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if n == 0 { 'M' } else { 'L' });
    }
    path
}

fn band(points: &[Point], x: &Scale, y: &Scale) -> String {
    let up = points.iter().map(|point| (x.at(point.x), y.at(point.high)));
    let back = points.iter().rev().map(|point| (x.at(point.x), y.at(point.low)));
    line(up.chain(back)) + "Z"
}

/// A point that says its value when it is pointed at, or reached by keyboard.
fn mark(
    n: usize,
    series: &Series,
    point: &Point,
    (x, y): (&Scale, &Scale),
    unit: &str,
    stops: bool,
) -> Markup {
    let unit = if unit == "1" { String::new() } else { format!(" {unit}") };
    let said = format!("{}, {}: {}{unit}", series.name, label(point.x), label(point.y));
    let said = if point.high > point.low {
        format!("{said} ({} to {})", label(point.low), label(point.high))
    } else {
        said
    };
    let (left, top) = (x.at(point.x), y.at(point.y));
    let anchor = if left > WIDTH / 2.0 { "end" } else { "start" };
    let aside = if left > WIDTH / 2.0 { -9.0 } else { 9.0 };
    html! {
        g.point tabindex=[stops.then_some("0")] role="img" aria-label=(said) transform={ "translate(" (at(left)) " " (at(top)) ")" } {
            circle.target r="9" {}
            path.mark d=(shape(n)) {}
            text.tip x=(aside) y=(if top < HEIGHT / 3.0 { 16.0 } else { -8.0 }) text-anchor=(anchor) { (said) }
        }
    }
}

/// The outline of a series' marks: circle, square, triangle, diamond, down, cross.
fn shape(n: usize) -> &'static str {
    match n % COLOURS {
        0 => "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
        1 => "M-3.5-3.5h7v7h-7Z",
        2 => "M0-4.5L4.5 3.5h-9Z",
        3 => "M0-5L5 0L0 5L-5 0Z",
        4 => "M0 4.5L4.5-3.5h-9Z",
        _ => "M-4.5-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3Z",
    }
}
