//! Curves over a numeric axis, a mark for each series, whiskers where a point has a range.

use core::fmt::Write as _;
use core::iter;

use super::{label, title_lines};
use crate::terminal::Terminal;

/// Lines of the plot area.
const HEIGHT: usize = 16;
/// Marks of the series; after the last one the first comes again.
const MARKS: [char; 6] = ['●', '○', '▲', '△', '■', '□'];

/// An axis that spans more than this factor is logarithmic.
pub(crate) const LOGARITHMIC: f64 = 8.0;

/// A named curve.
#[derive(Clone, Debug)]
pub struct Series {
    /// Stands in the legend.
    pub name: String,
    /// In any order.
    pub points: Vec<Point>,
}

/// A point with the range of its value.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Its place on the axis.
    pub x: f64,
    /// Its value.
    pub y: f64,
    /// Lower end of its range.
    pub low: f64,
    /// Upper end of its range.
    pub high: f64,
}

/// From a value to a coordinate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) logarithmic: bool,
    /// Coordinates of both ends.
    pub(crate) ends: [f64; 2],
}

impl Scale {
    /// An axis that is logarithmic where it spans more than a factor. One value alone stands at its beginning.
    pub(crate) fn new(low: f64, high: f64, factor: f64, ends: [f64; 2]) -> Self {
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        Self { low, high, logarithmic: low > 0.0 && high / low > factor, ends }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let place = |value: f64| if self.logarithmic { value.log2() } else { value };
        let share = (place(value) - place(self.low)) / (place(self.high) - place(self.low));
        self.ends[0] + share.clamp(0.0, 1.0) * (self.ends[1] - self.ends[0])
    }

    /// The row or column of a value.
    fn cell(&self, value: f64) -> usize {
        self.at(value).round() as usize
    }
}

/// Curves under a title, as wide as the terminal; the value axis begins at zero, or at the least value if
/// that is below, and reaches `most` at least.
#[must_use]
pub fn curve(title: &str, axis: &str, series: &[Series], most: f64, terminal: &Terminal) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let Some(first) = points().next() else { return title_lines(title, terminal) + "  no points\n" };

    let (mut left, mut right) = (first.x, first.x);
    let (mut bottom, mut top) = (0.0_f64, if most > 0.0 { most } else { f64::MIN });
    for point in points() {
        (left, right) = (left.min(point.x), right.max(point.x));
        (bottom, top) = (bottom.min(point.low.min(point.y)), top.max(point.high.max(point.y)));
    }
    let labels = [label(top), label(f64::midpoint(top, bottom)), label(bottom)];
    let margin = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let width = terminal.columns().saturating_sub(margin + 4).max(16);
    let x = Scale::new(left, right, LOGARITHMIC, [0.0, (width - 1) as f64]);
    let y = Scale::new(bottom, top, f64::INFINITY, [0.0, (HEIGHT - 1) as f64]);

    let mut area = vec![vec![' '; width]; HEIGHT];
    for (index, series) in series.iter().enumerate() {
        draw(&mut area, series, MARKS[index % MARKS.len()], x, y);
    }

    let mut out = title_lines(title, terminal);
    for (row, line) in area.iter().rev().enumerate() {
        let label = match row {
            0 => labels[0].as_str(),
            row if row == HEIGHT / 2 => labels[1].as_str(),
            row if row == HEIGHT - 1 => labels[2].as_str(),
            _ => "",
        };
        let line: String = line.iter().collect();
        let _ = writeln!(out, "  {label:>margin$} │{}", line.trim_end());
    }
    let rule: String = iter::repeat_n('─', width).collect();
    let _ = writeln!(out, "  {:>margin$} └{rule}", "");
    let _ = writeln!(out, "  {:>margin$}  {}", "", ticks(points().map(|point| point.x), x, width));
    let name = if x.logarithmic { format!("{axis} (logarithmic)") } else { axis.to_owned() };
    let _ = writeln!(out, "  {:>margin$}  {name:^width$}", "").map(|()| trim_last_line(&mut out));
    let legend = MARKS.iter().cycle().zip(series).map(|(mark, series)| format!("{mark} {}", series.name));
    let _ = writeln!(out, "  {:>margin$}  {}", "", legend.collect::<Vec<_>>().join("   "));
    terminal.spell(&out)
}

/// Draws one series: dots between its points, whiskers, and the points on top.
fn draw(area: &mut [Vec<char>], series: &Series, mark: char, x: Scale, y: Scale) {
    let mut points = series.points.clone();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let mut dot = |row: usize, column: usize, character: char, over: bool| {
        if over || area[row][column] == ' ' {
            area[row][column] = character;
        }
    };
    for two in points.windows(2) {
        let (from, to) = (x.cell(two[0].x), x.cell(two[1].x));
        let (start, end) = (y.cell(two[0].y) as f64, y.cell(two[1].y) as f64);
        for column in from + 1..to {
            let share = (column - from) as f64 / (to - from) as f64;
            dot((start + (end - start) * share).round() as usize, column, '·', false);
        }
    }
    for point in &points {
        for row in y.cell(point.low)..=y.cell(point.high) {
            dot(row, x.cell(point.x), '│', false);
        }
    }
    for point in &points {
        dot(y.cell(point.y), x.cell(point.x), mark, true);
    }
}

/// Values below the axis, as many as stand apart: the ends before the rest.
fn ticks(values: impl Iterator<Item = f64>, x: Scale, width: usize) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let mut line = vec![' '; width];
    let ends = [values.first().copied(), values.last().copied()];
    for value in ends.into_iter().flatten().chain(values.iter().copied()) {
        let text: Vec<char> = label(value).chars().collect();
        let start = x.cell(value).saturating_sub(text.len() / 2).min(width - text.len());
        let around = start.saturating_sub(1)..(start + text.len() + 1).min(width);
        if line[around].iter().all(|character| *character == ' ') {
            line[start..start + text.len()].copy_from_slice(&text);
        }
    }
    line.iter().collect::<String>().trim_end().to_owned()
}

fn trim_last_line(out: &mut String) {
    out.truncate(out.trim_end().len());
    out.push('\n');
}
