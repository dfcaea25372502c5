//! A table as a figure, for use as a separate file.

use super::TEXT_SIZE;
use super::svg::{Svg, text_width};

/// Rows of cells. The first column is left-aligned, the others are right-aligned.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    pub(super) fn draw(&self, svg: &mut Svg) {
        let rows = || [&self.head].into_iter().chain(&self.rows);
        let widest = |column: usize| {
            let cells = rows().filter_map(|row| row.get(column));
            cells.map(|cell| text_width(cell, TEXT_SIZE)).fold(0.0, f64::max)
        };
        let widths: Vec<_> = (0..self.head.len()).map(widest).collect();
        let first = widths.first().copied().unwrap_or(0.0).min(svg.width() * 0.4);
        let others = widths.iter().skip(1).sum::<f64>();
        let gap = (svg.width() - first - others) / (widths.len().max(2) - 1) as f64;
        // Right edge of each column.
        let ends = widths.iter().skip(1).scan(first, |end, width| {
            *end += gap + width;
            Some(*end)
        });
        let ends: Vec<_> = std::iter::once(first).chain(ends).collect();
        let mut top = svg.bottom();
        for (index, row) in rows().enumerate() {
            let class = if index == 0 { "t b" } else { "t" };
            for (column, (cell, end)) in row.iter().zip(&ends).enumerate() {
                match column {
                    0 => svg.text_within(first, 0.0, top + 16.0, class, cell),
                    _ => svg.text(*end, top + 16.0, &format!("{class} e"), cell),
                }
            }
            top += ROW;
            svg.path(if index == 0 { "x" } else { "g" }, &format!("M0,{top:.1}h{:.1}", svg.width()));
        }
        svg.end_at(top + 4.0);
    }
}

const ROW: f64 = 24.0;
