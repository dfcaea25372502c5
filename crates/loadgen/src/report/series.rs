//! Marks and titles that the figures of several pages share.

use super::chart::{Drawing, Figure, Ink, Mark, Plot, Scale, Shape, Stroke};
use super::number;

/// A line for each row of values by second, or range and median if there are too many rows; with a caption.
///
/// Missing values are replaced by `missing`.
pub(super) fn each_or_range(rows: Vec<(String, Vec<f64>)>, missing: f64) -> Option<(Vec<Mark>, String)> {
    let seconds = rows.iter().map(|(_, row)| row.len()).max().filter(|seconds| *seconds > 0)?;
    let value = |row: &[f64], second: usize| row.get(second).copied().unwrap_or(missing);
    if rows.len() <= Ink::COLOURS {
        let marks = rows.into_iter().enumerate().map(|(number, (name, row))| {
            let points = (0..seconds).map(|second| (second as f64 + 0.5, value(&row, second))).collect();
            line(&name, Ink::Colour(number), points, Stroke::of(number))
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
    let all = Mark {
        name: Some("from the lowest to the highest".to_owned()),
        ink: Ink::Colour(0),
        shape: Shape::Band(range),
    };
    let marks = vec![all, line("the middle one", Ink::Colour(0), median, Stroke::Solid)];
    Some((marks, format!(" Of all {}: the range, and the middle one.", number::count(rows.len() as u64))))
}

pub(super) fn plot(name: &str, title: &str, caption: &str, plot: Plot) -> Figure {
    let drawing = Drawing::Plot(plot);
    Figure { name: name.to_owned(), title: title.to_owned(), caption: caption.to_owned(), drawing }
}

pub(super) fn line(name: &str, ink: Ink, points: Vec<(f64, f64)>, stroke: Stroke) -> Mark {
    Mark { name: Some(name.to_owned()), ink, shape: Shape::Line(points, stroke) }
}

pub(super) fn steps(name: &str, ink: Ink, points: Vec<(f64, f64)>, stroke: Stroke) -> Mark {
    Mark { name: Some(name.to_owned()), ink, shape: Shape::Steps(points, stroke) }
}

/// Adds an end to the last value, so that it lasts as long as the others.
pub(super) fn in_steps(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.extend(points.last().map(|(x, y)| (x + 1.0, *y)));
    points
}

/// Caption about reduced points; empty if all are drawn.
pub(super) fn thinned_text(drawn: usize, all: usize) -> String {
    if drawn >= all {
        return String::new();
    }
    let (drawn, all) = (number::count(drawn as u64), number::count(all as u64));
    format!(
        " {drawn} of {all} are drawn: one of those that lie upon each other, the slowest and the fastest of each moment always."
    )
}

pub(super) fn latency_title(what: &str, scale: Scale) -> String {
    if matches!(scale, Scale::Log { .. }) { format!("{what}, ms (log scale)") } else { format!("{what}, ms") }
}

/// Shortest drawn latency: one microsecond.
pub(super) const LEAST_MS: f64 = 1e-3;

/// Maximum number of dots of a figure.
pub(super) const POINTS_MAX: usize = 20_000;
