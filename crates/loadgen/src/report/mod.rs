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

pub(crate) mod chart;
pub(crate) mod charts;
pub(crate) mod files;
pub(crate) mod html;
pub(crate) mod model;
pub(crate) mod origin;
pub(crate) mod text;

pub use chart::{
    Axis, Bar, Bars, Drawing, Figure, Group, Ink, Mark, Plot, Scale, Shape, Stroke, Thinned, Width, Zone, escape,
};
pub(crate) use files::{create_directory, write_file, write_json};
pub use html::{page, page_alone, write as write_page};
pub use model::{Block, Cell, Report, Section, Table, Tone};
pub use origin::Origin;

/// Delay of the publishers (p99) from which on a page warns of it.
pub(crate) const LATE_MS: f64 = 5.0;
