//! Figures as SVG, for files and for pages.
//!
//! This is our own code, for the needs of a page:
//!
//! - Colours are classes, so that a style sheet inverts them for dark screens.
//! - Legends and titles stand outside the data.
//! - The same figure is drawn again for a narrow screen, with letters of the same size.
//! - Thousands of points take one path.
//!
//! `plotters` puts colours and whole pixels into each element, some 80 bytes per point instead of 10, and has one look
//! only.

mod bars;
mod plot;
mod scale;
mod style;
mod svg;
mod table;
mod thin;

pub use bars::{Bar, Bars, Group};
pub use plot::{Axis, Mark, Plot, Shape, Zone};
pub use scale::Scale;
pub(crate) use style::page_rules;
pub use style::{Ink, Stroke};
pub use svg::escape;
pub use thin::Thinned;

use super::model::Table;
use svg::{Svg, text_width};

/// A figure with title, caption and drawing.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Start of its file name.
    pub name: String,
    /// Its title.
    pub title: String,
    /// How to read it, in a sentence or two.
    pub caption: String,
    /// Its content.
    pub drawing: Drawing,
}

/// Content of a figure.
#[derive(Debug, Clone)]
pub enum Drawing {
    /// Marks between two axes.
    Plot(Plot),
    /// Horizontal bars.
    Bars(Bars),
    /// Drawn in its own file; a page shows it as a table.
    Table(Table),
}

/// Widths of figures in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// For a page of the usual width.
    Wide,
    /// For a phone.
    Narrow,
}

/// An entry of a legend.
#[derive(Debug, Clone)]
struct Key {
    name: String,
    ink: Ink,
    sample: Sample,
}

/// Symbol of a legend's entry.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sample {
    Line(Stroke),
    Area,
    Dot,
    Box,
    HollowBox,
}

impl Figure {
    /// A figure of these parts.
    pub fn new(name: &str, title: &str, caption: &str, drawing: Drawing) -> Self {
        Self { name: name.to_owned(), title: title.to_owned(), caption: caption.to_owned(), drawing }
    }

    /// SVG file with title and style.
    pub fn to_file(&self) -> String {
        let mut svg = Svg::new(Width::Wide.pixels(), 28.0);
        svg.text(0.0, 16.0, "t b", &self.title);
        self.draw(&mut svg);
        svg.into_file(&self.title, &self.caption)
    }

    /// SVG element of a page, which has style and title.
    pub fn to_element(&self, width: Width) -> String {
        let mut svg = Svg::new(width.pixels(), 0.0);
        self.draw(&mut svg);
        svg.into_element(&self.title)
    }

    fn draw(&self, svg: &mut Svg) {
        match &self.drawing {
            Drawing::Plot(plot) => plot.draw(svg),
            Drawing::Bars(bars) => bars.draw(svg),
            Drawing::Table(table) => table::draw(table, svg),
        }
    }
}

impl Width {
    fn pixels(self) -> f64 {
        match self {
            Self::Wide => 760.0,
            Self::Narrow => 360.0,
        }
    }
}

/// Draws `keys` from `top` down, in as many rows as needed; returns the bottom.
fn draw_legend(svg: &mut Svg, keys: &[Key], mut top: f64) -> f64 {
    if keys.is_empty() {
        return top;
    }
    let mut x = 0.0;
    for key in keys {
        let width = SAMPLE_WIDTH + 6.0 + text_width(&key.name, TEXT_SIZE) + 18.0;
        if x > 0.0 && x + width - 18.0 > svg.width() {
            (x, top) = (0.0, top + LEGEND_ROW);
        }
        key.draw_sample(svg, x, top + LEGEND_ROW / 2.0);
        svg.text(x + SAMPLE_WIDTH + 6.0, top + LEGEND_ROW / 2.0 + 4.5, "t", &key.name);
        x += width;
    }
    top + LEGEND_ROW + 4.0
}

impl Key {
    fn draw_sample(&self, svg: &mut Svg, x: f64, middle: f64) {
        let ink = self.ink.class();
        match self.sample {
            Sample::Line(stroke) => {
                let path = format!("M{x:.1},{middle:.1}h{SAMPLE_WIDTH}");
                svg.path(&format!("l {ink}{}", stroke.class()), &path);
            }
            Sample::Area => svg.rect(&format!("a {ink}"), x, middle - 5.0, SAMPLE_WIDTH, 10.0),
            Sample::Dot => svg.path(&format!("p s {ink}"), &format!("M{:.1},{middle:.1}h0", x + SAMPLE_WIDTH / 2.0)),
            Sample::Box => svg.rect(&format!("f {ink}"), x + 3.0, middle - 5.0, 12.0, 10.0),
            Sample::HollowBox => svg.rect(&format!("o {ink}"), x + 3.0, middle - 5.0, 12.0, 10.0),
        }
    }
}

const TEXT_SIZE: f64 = 13.0;
const LEGEND_ROW: f64 = 20.0;
const SAMPLE_WIDTH: f64 = 20.0;
