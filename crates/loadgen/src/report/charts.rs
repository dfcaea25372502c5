//! Figures and marks that several reports share.

use super::chart::{Axis, Bars, Drawing, Figure, Group, Ink, Mark, Plot, Scale, Shape, Stroke, Zone};
use crate::number::count;
use crate::statistics::CurvePoint;

/// Name of a figure's file, its title and its caption.
pub(crate) struct Label<'a>(pub(crate) &'a str, pub(crate) &'a str, pub(crate) &'a str);

impl Label<'_> {
    /// The figure with this label, with `more` after its caption.
    pub(crate) fn plot(&self, more: &str, plot: Plot) -> Figure {
        Figure::new(self.0, self.1, &format!("{}{more}", self.2), Drawing::Plot(plot))
    }

    pub(crate) fn bars(&self, title: &str, groups: Vec<Group>, legend: Vec<(String, Ink, bool)>) -> Figure {
        let bars = Bars { title: title.to_owned(), groups, legend, reference: None };
        Figure::new(self.0, self.1, self.2, Drawing::Bars(bars))
    }

    /// A line for each row of values by second, with `extra` marks; `None` without a value.
    pub(crate) fn by_second(
        &self,
        frame: Frame,
        y: &str,
        rows: Rows,
        missing: f64,
        extra: Vec<Mark>,
    ) -> Option<Figure> {
        let highest = |row: &Vec<f64>| row.iter().fold(0.0_f64, |a, b| a.max(*b));
        let peaks = || rows.iter().map(|(_, row)| highest(row));
        // Different peaks ask for a logarithmic axis, seconds with and without a message do not.
        let lowest = peaks().filter(|peak| *peak > 0.0).fold(f64::INFINITY, f64::min);
        let scale = Scale::for_latencies(lowest / 10.0, lowest, peaks().fold(0.0, f64::max), LEAST_MS);
        let (mut marks, how) = each_or_range(rows, missing)?;
        marks.extend(extra);
        Some(self.plot(&how, frame.plot(Axis::new(y, scale), marks)))
    }

    /// Latency distributions, each with its name and `most` messages at most; `None` without a value.
    pub(crate) fn distribution(&self, curves: &[(&str, &[CurvePoint])], most: u64) -> Option<Figure> {
        let points = || curves.iter().flat_map(|(_, curve)| curve.iter()).map(|point| point.ms.max(LEAST_MS));
        let (shortest, longest) = (points().reduce(f64::min)?, points().fold(0.0, f64::max));
        let mark = |(place, (name, curve)): (usize, &(&str, &[CurvePoint]))| {
            let points = curve.iter().map(|point| (point.ms, point.share)).collect();
            Mark::line(name, Ink::Colour(place), points, Stroke::of(place))
        };
        let plot = Plot {
            x: Axis::new("latency, ms", Scale::log(shortest, longest)),
            y: Axis::new("messages that took at most so long", Scale::tail(most)),
            marks: curves.iter().filter(|(_, curve)| !curve.is_empty()).enumerate().map(mark).collect(),
            zones: Vec::new(),
        };
        Some(self.plot("", plot))
    }

    /// A dot for each of `all` messages, of which some may coincide; each class with its name.
    pub(crate) fn dots(&self, frame: Frame, y: Scale, classes: Vec<(Option<String>, Dots)>, all: usize) -> Figure {
        let drawn = classes.iter().map(|(_, points)| points.len()).sum();
        let mark = |(place, (name, points))| Mark { name, ink: Ink::Colour(place), shape: Shape::Points(points) };
        let marks = classes.into_iter().enumerate().map(mark).collect();
        self.plot(&thinned_text(drawn, all), frame.plot(Axis::new("latency, ms", y), marks))
    }
}

/// Names, and values by second.
pub(crate) type Rows = Vec<(String, Vec<f64>)>;
pub(crate) type Dots = Vec<(f64, f64)>;

/// The x axis of a run, and its zones.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) x: Axis,
    pub(crate) zones: Vec<Zone>,
}

impl Frame {
    pub(crate) fn new(title: &str, end: f64, zones: Vec<Zone>) -> Self {
        Self { x: Axis::new(title, Scale::Linear { from: 0.0, to: end }), zones }
    }

    pub(crate) fn plot(self, y: Axis, marks: Vec<Mark>) -> Plot {
        Plot { x: self.x, y, marks, zones: self.zones }
    }
}

/// A line for each row of values by second, or range and median if there are too many rows; with a caption.
///
/// Missing values are replaced by `missing`.
fn each_or_range(rows: Rows, missing: f64) -> Option<(Vec<Mark>, String)> {
    let seconds = rows.iter().map(|(_, row)| row.len()).max().filter(|seconds| *seconds > 0)?;
    let value = |row: &[f64], second: usize| row.get(second).copied().unwrap_or(missing);
    if rows.len() <= Ink::COLOURS {
        let marks = rows.into_iter().enumerate().map(|(number, (name, row))| {
            let points = (0..seconds).map(|second| (second as f64 + 0.5, value(&row, second))).collect();
            Mark::line(&name, Ink::Colour(number), points, Stroke::of(number))
        });
        return Some((marks.collect(), String::new()));
    }
    let (mut range, mut median) = (Vec::new(), Vec::new());
    for second in 0..seconds {
        let mut values: Vec<_> =
            rows.iter().map(|(_, row)| value(row, second)).filter(|value| !value.is_nan()).collect();
        values.sort_by(f64::total_cmp);
        let at = second as f64 + 0.5;
        let of = |index: Option<&f64>| index.copied().unwrap_or(f64::NAN);
        range.push((at, of(values.first()), of(values.last())));
        median.push((at, of(values.get(values.len() / 2))));
    }
    let name = Some("from the lowest to the highest".to_owned());
    let all = Mark { name, ink: Ink::Colour(0), shape: Shape::Band(range) };
    let marks = vec![all, Mark::line("the middle one", Ink::Colour(0), median, Stroke::Solid)];
    Some((marks, format!(" Of all {}: the range, and the middle one.", count(rows.len() as u64))))
}

/// Adds an end to the last value, so that it lasts as long as the others.
pub(crate) fn in_steps(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.extend(points.last().map(|(x, y)| (x + 1.0, *y)));
    points
}

/// Caption about reduced points; empty if all are drawn.
fn thinned_text(drawn: usize, all: usize) -> String {
    if drawn >= all {
        return String::new();
    }
    let (drawn, all) = (count(drawn as u64), count(all as u64));
    format!(
        " {drawn} of {all} are drawn: one of those that lie upon each other, the slowest and the fastest of each moment always."
    )
}

/// Shortest drawn latency: one microsecond.
pub(crate) const LEAST_MS: f64 = 1e-3;

/// Maximum number of dots of a figure.
pub(crate) const POINTS_MAX: usize = 20_000;
