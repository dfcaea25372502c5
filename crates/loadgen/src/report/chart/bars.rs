//! Horizontal bars, with names on the left and values on the right, so that labels never overlap.

use super::plot::Area;
use super::scale::FAR;
use super::style::Ink;
use super::svg::{Svg, text_width};
use super::{Axis, Key, Sample, Scale, TEXT_SIZE, draw_legend};
use crate::statistics::{Summary, median};

/// Groups of bars, stacked vertically, on an axis from 0.
///
/// If values differ by more than `FAR`, the axis is logarithmic and each bar a dot at the end of a line: the length
/// of a bar would say nothing.
#[derive(Debug, Clone)]
pub struct Bars {
    /// Title of the axis, with the unit.
    pub title: String,
    /// One below the other.
    pub groups: Vec<Group>,
    /// Name, colour and whether hollow; empty if the groups' names suffice.
    pub legend: Vec<(String, Ink, bool)>,
    /// A reference value, and its name.
    pub reference: Option<(f64, String)>,
}

/// Bars of one subject.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// One below the other.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Its colour.
    pub ink: Ink,
    /// Outlined only: not measured in these runs.
    pub is_hollow: bool,
    /// Its value.
    pub value: f64,
    /// Minimum and maximum of several runs.
    pub spread: Option<(f64, f64)>,
    /// The value as text.
    pub label: String,
}

impl Bars {
    pub(super) fn draw(&self, svg: &mut Svg) {
        let keys = self.legend.iter().map(|(name, ink, is_hollow)| Key {
            name: name.clone(),
            ink: *ink,
            sample: if *is_hollow { Sample::HollowBox } else { Sample::Box },
        });
        let mut top = draw_legend(svg, &keys.collect::<Vec<_>>(), svg.bottom());
        top += if self.reference.is_some() { 22.0 } else { 4.0 };

        let names = self.groups.iter().map(|group| text_width(&group.name, TEXT_SIZE)).fold(0.0, f64::max);
        let name_room = names.min(svg.width() * 0.4);
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let label_room = bars().map(|bar| text_width(&bar.label, TEXT_SIZE)).fold(0.0, f64::max);
        let left = name_room + 10.0;
        let width = svg.width() - left - label_room - 12.0;
        let reference = self.reference.as_ref().map(|(value, _)| *value);
        let longest = bars().map(Bar::end).chain(reference).fold(0.0, f64::max);
        let least = bars().map(|bar| bar.value).filter(|value| *value > 0.0).fold(longest, f64::min);
        let x = if longest > FAR * least { Scale::log(least, longest) } else { Scale::from_zero(longest) };
        let height = self.groups.iter().map(|group| group.bars.len() as f64 * ROW + GAP).sum::<f64>();
        let area = Area { left, top, width, height, x, y: Scale::from_zero(1.0) };
        area.draw_x_axis(svg, &Axis::new(&self.title, x).title, true);
        svg.path("x", &format!("M{left:.1},{top:.1}v{height:.1}"));
        let mut labels = Vec::new();
        for group in &self.groups {
            top += GAP / 2.0;
            let middle = top + group.bars.len() as f64 * ROW / 2.0;
            svg.text_within(name_room, name_room, middle + 4.5, "t e", &group.name);
            for bar in &group.bars {
                bar.draw(svg, &area, top);
                labels.push((area.at_x(bar.end()) + 9.0, top + ROW / 2.0 + 4.5, &bar.label));
                top += ROW;
            }
            top += GAP / 2.0;
        }
        if let Some((value, name)) = &self.reference {
            let x = area.at_x(*value);
            svg.path("w d1", &format!("M{x:.1},{:.1}v{:.1}", area.top - 4.0, height + 4.0));
            svg.text_inside(x, area.top - 8.0, "t m k", name);
        }
        for (x, y, label) in labels {
            svg.text(x, y, "t h", label);
        }
    }
}

impl Bar {
    /// Median and range of several runs; `None` without a value.
    pub fn of_runs(ink: Ink, values: &[f64], label: impl Fn(f64) -> String) -> Option<Self> {
        let (value, range) = (median(values)?, Summary::of(values)?);
        let spread = (values.len() > 1).then_some((range.min, range.max));
        Some(Self { ink, is_hollow: false, value, spread, label: label(value) })
    }

    fn end(&self) -> f64 {
        self.spread.map_or(self.value, |(_, highest)| highest.max(self.value))
    }

    fn draw(&self, svg: &mut Svg, area: &Area, top: f64) {
        let (class, ink) = (if self.is_hollow { "o" } else { "f" }, self.ink.class());
        // Keep small values visible.
        let length = (area.at_x(self.value) - area.left).max(if self.value > 0.0 { 1.5 } else { 0.0 });
        let middle = top + ROW / 2.0;
        if matches!(area.x, Scale::Linear { .. }) {
            svg.rect(&format!("{class} {ink}"), area.left, top + 2.0, length, ROW - 4.0);
        } else if self.value > 0.0 {
            svg.path(&format!("l {ink}"), &format!("M{:.1},{middle:.1}h{length:.1}", area.left));
            svg.rect(&format!("{class} {ink}"), area.left + length - 5.0, middle - 5.0, 10.0, 10.0);
        }
        if let Some((lowest, highest)) = self.spread {
            let (from, to) = (area.at_x(lowest), area.at_x(highest));
            let ends = format!("M{from:.1},{:.1}v6M{to:.1},{:.1}v6", middle - 3.0, middle - 3.0);
            svg.path("w", &format!("M{from:.1},{middle:.1}H{to:.1}{ends}"));
        }
    }
}

const ROW: f64 = 18.0;
const GAP: f64 = 8.0;
