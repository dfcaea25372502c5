//! Results: sections on standard output; in a directory, data files and a page.
//!
//! Other programs make pages from the same pieces: a [`Report`] of [`Section`]s with tables and [`Figure`]s.
//! [`write_page`] turns a report into one file.
//!
//! ```text
//! run ────────┐                      ┌► text
//! scenario ───┼► Report { sections } ┼► html, with an SVG file for each figure (chart)
//! slow ───────┤                      │
//! comparison ─┘   values and rows ───┴► files: JSON, CSV
//! ```

mod chart;
mod charts;
mod comparison;
mod files;
mod html;
mod model;
mod origin;
pub(crate) mod run;
mod run_charts;
mod run_csv;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod sample;
mod scenario;
mod scenario_charts;
mod scenario_json;
mod scenario_trace;
pub(crate) mod slow;
mod text;

pub use chart::{
    Axis, Bar, Bars, Drawing, Figure, Group, Ink, Mark, Plot, Scale, Shape, Stroke, Thinned, Width, Zone, escape,
};
pub(crate) use comparison::{Compared, write as write_comparison};
pub(crate) use files::{create_directory, write_file, write_json};
pub use html::{page, page_alone, write as write_page};
pub use model::{Block, Cell, Report, Section, Table, Tone};
pub use origin::Origin;
pub(crate) use scenario::ScenarioReport;

/// Delay of the publishers (p99) from which on a page warns of it.
const LATE_MS: f64 = 5.0;
