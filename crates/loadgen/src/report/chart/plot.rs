//! Figures with two axes.

use std::collections::HashMap;
use std::fmt::Write;

use super::scale::Tick;
use super::style::{Ink, Stroke};
use super::svg::{Svg, text_width};
use super::{Key, Sample, Scale, TEXT_SIZE, draw_legend};

/// Marks between two axes. Values beyond an axis are drawn at its end.
#[derive(Debug, Clone)]
pub struct Plot {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Later marks are drawn above earlier ones.
    pub marks: Vec<Mark>,
    /// Named parts of the x axis.
    pub zones: Vec<Zone>,
}

/// An axis, and its title with the unit.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Its title.
    pub title: String,
    /// Its scale.
    pub scale: Scale,
}

/// A shape in one colour, with its name in the legend if it has one.
#[derive(Debug, Clone)]
pub struct Mark {
    /// Its name in the legend.
    pub name: Option<String>,
    /// Its colour.
    pub ink: Ink,
    /// Its form and values.
    pub shape: Shape,
}

/// Shape in axis values. NaN leaves a gap.
#[derive(Debug, Clone)]
pub enum Shape {
    /// Ascending by x.
    Line(Vec<(f64, f64)>, Stroke),
    /// A value from each x to the next; the last x is only an end.
    Steps(Vec<(f64, f64)>, Stroke),
    /// x, lower and upper edge.
    Band(Vec<(f64, f64, f64)>),
    /// A dot for each value.
    Points(Vec<(f64, f64)>),
}

/// Part of the x axis with its own background and name.
#[derive(Debug, Clone)]
pub struct Zone {
    /// Beginning, in values of the axis.
    pub from: f64,
    /// End.
    pub to: f64,
    /// Its name above the axis.
    pub name: String,
}

impl Axis {
    /// An axis whose title says that it is logarithmic if it is.
    pub fn new(title: &str, scale: Scale) -> Self {
        let log = if matches!(scale, Scale::Log { .. }) { " (log scale)" } else { "" };
        Self { title: format!("{title}{log}"), scale }
    }
}

impl Plot {
    pub(super) fn draw(&self, svg: &mut Svg) {
        let keys = self.marks.iter().filter_map(Mark::key).collect::<Vec<_>>();
        let mut top = draw_legend(svg, &keys, svg.bottom());
        svg.text(0.0, top + 14.0, "t m", &self.y.title);
        top += 28.0;

        let height = if svg.width() < 500.0 { 230.0 } else { 290.0 };
        let y_ticks = self.y.scale.ticks((height / 42.0) as usize);
        let widest = y_ticks.iter().map(|tick| text_width(&tick.label, TEXT_SIZE)).fold(0.0, f64::max);
        // Whole pixels: a second of a long run takes less than one, and readers may measure.
        let left = (widest + 8.0).ceil();
        let mut area = Area { left, top, width: svg.width() - left - RIGHT, height, x: self.x.scale, y: self.y.scale };

        let names = area.places_of_names(svg.width(), &self.zones);
        area.top += NAME_ROW * names.iter().flatten().map(|place| place.row + 1).max().unwrap_or(0) as f64;
        area.draw_zones(svg, &self.zones, &names);
        for tick in y_ticks {
            let y = area.top + area.height * (1.0 - tick.position);
            svg.path("g", &format!("M{left:.1},{y:.1}h{:.1}", area.width));
            svg.text(left - 6.0, y + 4.5, "t m e", &tick.label);
        }
        area.draw_x_axis(svg, &self.x.title, false);
        for mark in &self.marks {
            mark.draw(svg, &area);
        }
        // Draw crowds in turns, so that the last one does not hide the others.
        let crowds: Vec<_> = self.marks.iter().filter_map(|mark| mark.crowd(&area)).collect();
        for turn in 0..TURNS {
            for (ink, places) in &crowds {
                svg.path(&format!("p {ink}"), &dots(places.iter().skip(turn).step_by(TURNS)));
            }
        }
    }
}

/// Drawing area and its axes.
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) x: Scale,
    pub(super) y: Scale,
}

/// Place of a zone's name: its middle, and the row above the data.
struct NamePlace {
    middle: f64,
    row: usize,
}

impl Area {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.at_x(x), self.top + self.height * (1.0 - self.y.position(y)))
    }

    pub(super) fn at_x(&self, x: f64) -> f64 {
        self.left + self.width * self.x.position(x)
    }

    /// Places of the zones' names above the data and inside the figure, in the lowest row with room; `None` without
    /// room, or beside the same name.
    fn places_of_names(&self, figure_width: f64, zones: &[Zone]) -> Vec<Option<NamePlace>> {
        let mut rows = [self.left; NAME_ROWS];
        let mut ends = HashMap::new();
        let place = |zone: &Zone| {
            let half = text_width(&zone.name, TEXT_SIZE) / 2.0;
            let (from, to) = (self.at_x(zone.from), self.at_x(zone.to));
            let middle = ((from + to) / 2.0).min(figure_width - half).max(self.left + half);
            if ends.get(zone.name.as_str()).is_some_and(|end| middle - half < *end) {
                return None;
            }
            ends.insert(zone.name.clone(), middle + half);
            let row = rows.iter().position(|used_to| middle - half >= *used_to)?;
            rows[row] = middle + half + 6.0;
            Some(NamePlace { middle, row })
        };
        zones.iter().map(place).collect()
    }

    fn draw_zones(&self, svg: &mut Svg, zones: &[Zone], names: &[Option<NamePlace>]) {
        for (zone, name) in zones.iter().zip(names) {
            let (from, to) = (self.at_x(zone.from), self.at_x(zone.to));
            svg.rect("z", from, self.top, to - from, self.height);
            if let Some(NamePlace { middle, row }) = name {
                svg.text(*middle, self.top - 5.0 - NAME_ROW * *row as f64, "t m k", &zone.name);
            }
        }
    }

    /// Draws axis, ticks and title below the area; `is_grid` extends the ticks through it.
    pub(super) fn draw_x_axis(&self, svg: &mut Svg, title: &str, is_grid: bool) {
        let (bottom, height) = (self.top + self.height, self.height);
        if !is_grid {
            svg.path("x", &format!("M{:.1},{bottom:.1}h{:.1}", self.left, self.width));
        }
        for tick in self.x_ticks() {
            let x = self.left + self.width * tick.position;
            let (class, line) = if is_grid { ("g", format!("v-{height:.1}")) } else { ("x", "v5".to_owned()) };
            svg.path(class, &format!("M{x:.1},{bottom:.1}{line}"));
            svg.text(x, bottom + 19.0, "t m k", &tick.label);
        }
        svg.text_inside(self.left + self.width / 2.0, bottom + 39.0, "t m k", title);
        svg.end_at(bottom + 46.0);
    }

    /// As many ticks as have room.
    fn x_ticks(&self) -> Vec<Tick> {
        let has_room = |ticks: &Vec<Tick>| {
            ticks.windows(2).all(|pair| {
                let gap = (pair[1].position - pair[0].position) * self.width;
                gap >= (text_width(&pair[0].label, TEXT_SIZE) + text_width(&pair[1].label, TEXT_SIZE)) / 2.0 + 14.0
            })
        };
        (2..=12).rev().map(|about| self.x.ticks(about)).find(has_room).unwrap_or_else(|| self.x.ticks(2))
    }
}

impl Mark {
    /// A line with a name.
    pub fn line(name: &str, ink: Ink, points: Vec<(f64, f64)>, stroke: Stroke) -> Self {
        Self { name: Some(name.to_owned()), ink, shape: Shape::Line(points, stroke) }
    }

    /// A stepped line with a name.
    pub fn steps(name: &str, ink: Ink, points: Vec<(f64, f64)>, stroke: Stroke) -> Self {
        Self { name: Some(name.to_owned()), ink, shape: Shape::Steps(points, stroke) }
    }

    fn key(&self) -> Option<Key> {
        let sample = match &self.shape {
            Shape::Line(_, stroke) | Shape::Steps(_, stroke) => Sample::Line(*stroke),
            Shape::Band(_) => Sample::Area,
            Shape::Points(_) => Sample::Dot,
        };
        Some(Key { name: self.name.clone()?, ink: self.ink, sample })
    }

    fn draw(&self, svg: &mut Svg, area: &Area) {
        let ink = self.ink.class();
        match &self.shape {
            Shape::Line(points, stroke) => {
                svg.path(&format!("l {ink}{}", stroke.class()), &line(area, points));
                svg.path(&format!("p {ink}"), &dots(places(area, lonely(points)).iter()));
            }
            Shape::Steps(points, stroke) => svg.path(&format!("l {ink}{}", stroke.class()), &steps(area, points)),
            Shape::Band(edges) => svg.path(&format!("a {ink}"), &band(area, edges)),
            // Drawn last, above all other marks.
            Shape::Points(_) => {}
        }
    }

    /// Colour class and positions of its points.
    fn crowd(&self, area: &Area) -> Option<(String, Vec<Half>)> {
        let Shape::Points(points) = &self.shape else { return None };
        Some((self.ink.class(), places(area, points.iter().copied())))
    }
}

fn line(area: &Area, points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for run in points.split(|point| point.1.is_nan()).filter(|run| run.len() > 1) {
        let places = run.iter().map(|point| area.at(point.0, point.1)).collect();
        for (index, (x, y)) in per_column(places).into_iter().enumerate() {
            put(&mut path, format_args!("{}{x:.1},{y:.1}", if index == 0 { 'M' } else { 'L' }));
        }
    }
    path
}

/// Points without a neighbour, which do not form a line.
fn lonely(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    let runs = points.split(|point| point.1.is_nan());
    runs.filter(|run| run.len() == 1).map(|run| run[0])
}

fn steps(area: &Area, points: &[(f64, f64)]) -> String {
    let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]).collect::<Vec<_>>();
    line(area, &corners)
}

fn band(area: &Area, edges: &[(f64, f64, f64)]) -> String {
    let mut path = String::new();
    for run in edges.split(|edge| edge.1.is_nan() || edge.2.is_nan()).filter(|run| run.len() > 1) {
        let upper = per_column(run.iter().map(|edge| area.at(edge.0, edge.2)).collect());
        let lower = per_column(run.iter().map(|edge| area.at(edge.0, edge.1)).collect());
        for (index, (x, y)) in upper.into_iter().chain(lower.into_iter().rev()).enumerate() {
            put(&mut path, format_args!("{}{x:.1},{y:.1}", if index == 0 { 'M' } else { 'L' }));
        }
        path.push('Z');
    }
    path
}

/// A position in half pixels.
type Half = (i64, i64);

/// Positions of points, where indistinguishable ones are merged.
fn places(area: &Area, points: impl Iterator<Item = (f64, f64)>) -> Vec<Half> {
    let places = points.filter(|point| !point.1.is_nan()).map(|point| area.at(point.0, point.1));
    let mut halves: Vec<_> = places.map(|(x, y)| ((x * 2.0).round() as i64, (y * 2.0).round() as i64)).collect();
    halves.sort_unstable();
    halves.dedup();
    halves
}

fn dots<'a>(places: impl Iterator<Item = &'a Half>) -> String {
    let mut path = String::new();
    for (x, y) in places {
        put(&mut path, format_args!("M{},{}h0", *x as f64 / 2.0, *y as f64 / 2.0));
    }
    path
}

/// Reduces each pixel column to its first, highest, lowest and last point.
fn per_column(places: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let column = |place: &(f64, f64)| place.0.round() as i64;
    let mut kept = Vec::with_capacity(places.len());
    for run in places.chunk_by(|a, b| column(a) == column(b)) {
        if run.len() <= 4 {
            kept.extend_from_slice(run);
            continue;
        }
        let by_height = |a: &usize, b: &usize| run[*a].1.total_cmp(&run[*b].1);
        let last = run.len() - 1;
        let highest = (0..=last).min_by(by_height).unwrap_or(0);
        let lowest = (0..=last).max_by(by_height).unwrap_or(0);
        let mut indices = [0, highest, lowest, last];
        indices.sort_unstable();
        kept.extend(indices.into_iter().map(|index| run[index]));
    }
    kept
}

fn put(path: &mut String, part: std::fmt::Arguments<'_>) {
    path.write_fmt(part).expect("a String takes everything");
}

/// Height of a row with names of zones, and the most rows.
const NAME_ROW: f64 = 15.0;
const NAME_ROWS: usize = 3;

/// Number of turns for drawing points.
const TURNS: usize = 8;

/// Room for half of the last label of the x axis.
const RIGHT: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> Area {
        let (x, y) = (Scale::Linear { from: 0.0, to: 10.0 }, Scale::Linear { from: 0.0, to: 100.0 });
        Area { left: 0.0, top: 0.0, width: 100.0, height: 100.0, x, y }
    }

    #[test]
    fn a_line_has_gaps_and_single_points_are_dots() {
        let points = [(0.0, 0.0), (1.0, 100.0), (2.0, f64::NAN), (3.0, 50.0), (4.0, f64::NAN)];
        assert_eq!(line(&area(), &points), "M0.0,100.0L10.0,0.0");
        assert_eq!(dots(places(&area(), lonely(&points)).iter()), "M30,50h0");
        assert_eq!(steps(&area(), &[(0.0, 10.0), (1.0, 20.0), (2.0, 0.0)]), "M0.0,90.0L10.0,90.0L10.0,80.0L20.0,80.0");
    }

    #[test]
    fn a_crowded_line_keeps_its_extremes() {
        let points: Vec<_> =
            (0..100_000).map(|n| (f64::from(n) / 10_000.0, if n == 77_777 { 100.0 } else { 1.0 })).collect();
        let path = line(&area(), &points);
        assert!(path.len() < 10_000 && path.contains(",0.0"), "{}", path.len());
    }

    #[test]
    fn dots_in_one_place_are_one() {
        let points = [(5.0, 50.0), (5.001, 50.001), (0.0, 0.0), (1.0, f64::NAN)];
        assert_eq!(dots(places(&area(), points.into_iter()).iter()), "M0,100h0M50,50h0");
    }

    #[test]
    fn names_of_zones_do_not_overlap() {
        let zone = |from: f64, name: &str| Zone { from, to: from + 0.1, name: name.to_owned() };
        let area = Area { width: 300.0, ..area() };
        let zones = ["kill", "partition", "kill", "slow link", "kill"];
        let zones: Vec<_> = (0..).zip(zones).map(|(at, name)| zone(2.0 + 0.3 * f64::from(at), name)).collect();
        let rows: Vec<_> =
            area.places_of_names(320.0, &zones).iter().map(|place| place.as_ref().map(|p| p.row)).collect();
        assert_eq!(rows, [Some(0), Some(1), None, Some(2), Some(0)], "the second kill is beside the first");
    }

    #[test]
    fn labels_of_the_x_axis_keep_their_distance() {
        let x = Scale::Linear { from: 0.0, to: 86_400.0 };
        for width in [300.0, 760.0] {
            let area = Area { width, x, ..area() };
            let ticks = area.x_ticks();
            assert!(ticks.len() >= 3, "{width}");
        }
    }
}
