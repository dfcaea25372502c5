//! Horizontal bars, with names on the left and values on the right, so that labels never overlap.

use super::style::Ink;
use super::svg::{Svg, text_width};
use super::{Key, Sample, Scale, TEXT_SIZE, draw_legend};

/// Groups of bars, stacked vertically, on an axis from 0.
#[derive(Debug, Clone)]
pub(crate) struct Bars {
    /// Title of the axis, with the unit.
    pub(crate) title: String,
    pub(crate) groups: Vec<Group>,
    /// Name, colour and whether hollow; empty if the groups' names suffice.
    pub(crate) legend: Vec<(String, Ink, bool)>,
    /// A reference value, and its name.
    pub(crate) reference: Option<(f64, String)>,
}

/// Bars of one subject.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Debug, Clone)]
pub(crate) struct Bar {
    pub(crate) ink: Ink,
    /// Outlined only: not measured in these runs.
    pub(crate) is_hollow: bool,
    pub(crate) value: f64,
    /// Minimum and maximum of several runs.
    pub(crate) spread: Option<(f64, f64)>,
    /// The value as text.
    pub(crate) label: String,
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
        let width = svg.width() - left - label_room - 10.0;
        let reference = self.reference.as_ref().map(|(value, _)| *value);
        let longest = bars().map(Bar::end).chain(reference).fold(0.0, f64::max);
        let across = Across { left, width, scale: Scale::from_zero(longest) };

        let rows = self.groups.iter().map(|group| group.bars.len() as f64 * ROW + GAP).sum::<f64>();
        across.draw_axis(svg, top, rows, &self.title);
        let mut labels = Vec::new();
        for group in &self.groups {
            top += GAP / 2.0;
            let middle = top + group.bars.len() as f64 * ROW / 2.0;
            svg.text_within(name_room, name_room, middle + 4.5, "t e", &group.name);
            for bar in &group.bars {
                bar.draw(svg, &across, top);
                labels.push((across.at(bar.end()) + 6.0, top + ROW / 2.0 + 4.5, &bar.label));
                top += ROW;
            }
            top += GAP / 2.0;
        }
        if let Some((value, name)) = &self.reference {
            across.draw_reference(svg, (top - rows, rows), *value, name);
        }
        for (x, y, label) in labels {
            svg.text(x, y, "t h", label);
        }
    }
}

/// The horizontal axis.
struct Across {
    left: f64,
    width: f64,
    scale: Scale,
}

impl Across {
    fn at(&self, value: f64) -> f64 {
        self.left + self.width * self.scale.position(value)
    }

    fn draw_axis(&self, svg: &mut Svg, top: f64, height: f64, title: &str) {
        let bottom = top + height;
        let ticks = (2..=8).rev().map(|about| self.scale.ticks(about)).find(|ticks| {
            let widest = ticks.iter().map(|tick| text_width(&tick.label, TEXT_SIZE)).fold(0.0, f64::max);
            ticks.windows(2).all(|pair| (pair[1].position - pair[0].position) * self.width >= widest + 12.0)
        });
        for tick in ticks.unwrap_or_else(|| self.scale.ticks(2)) {
            let x = self.left + self.width * tick.position;
            svg.path("g", &format!("M{x:.1},{top:.1}v{height:.1}"));
            svg.text(x, bottom + 17.0, "t m k", &tick.label);
        }
        svg.path("x", &format!("M{:.1},{top:.1}v{height:.1}", self.left));
        // Centred below its axis, but within the figure.
        let half = text_width(title, TEXT_SIZE) / 2.0;
        let middle = (self.left + self.width / 2.0).min(svg.width() - half).max(half);
        svg.text(middle, bottom + 36.0, "t m k", title);
        svg.end_at(bottom + 43.0);
    }

    fn draw_reference(&self, svg: &mut Svg, (top, height): (f64, f64), value: f64, name: &str) {
        let x = self.at(value);
        svg.path("w d1", &format!("M{x:.1},{:.1}v{:.1}", top - 4.0, height + 4.0));
        let half = text_width(name, TEXT_SIZE) / 2.0;
        svg.text(x.min(svg.width() - half).max(half), top - 8.0, "t m k", name);
    }
}

impl Bar {
    fn end(&self) -> f64 {
        self.spread.map_or(self.value, |(_, highest)| highest.max(self.value))
    }

    fn draw(&self, svg: &mut Svg, across: &Across, top: f64) {
        let (class, ink) = (if self.is_hollow { "o" } else { "f" }, self.ink.class());
        // Keep small values visible.
        let length = (across.at(self.value) - across.left).max(if self.value > 0.0 { 1.5 } else { 0.0 });
        svg.rect(&format!("{class} {ink}"), across.left, top + 2.0, length, ROW - 4.0);
        if let Some((lowest, highest)) = self.spread {
            let (from, to, middle) = (across.at(lowest), across.at(highest), top + ROW / 2.0);
            let ends = format!("M{from:.1},{:.1}v6M{to:.1},{:.1}v6", middle - 3.0, middle - 3.0);
            svg.path("w", &format!("M{from:.1},{middle:.1}H{to:.1}{ends}"));
        }
    }
}

const ROW: f64 = 18.0;
const GAP: f64 = 8.0;
