//! A table as a figure, for use as a separate file.

use super::TEXT_SIZE;
use super::svg::{Svg, text_width};
use crate::report::model::Table;

/// Draws `table` with its first column left-aligned, the others right-aligned.
pub(super) fn draw(table: &Table, svg: &mut Svg) {
    let head = table.head.iter().map(String::as_str).collect();
    let body = table.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect());
    let rows: Vec<Vec<&str>> = std::iter::once(head).chain(body).collect();
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| text_width(cell, TEXT_SIZE)).fold(0.0, f64::max)
    };
    let widths: Vec<_> = (0..table.head.len()).map(widest).collect();
    let first = widths.first().copied().unwrap_or(0.0).min(svg.width() * 0.4);
    let others = widths.iter().skip(1).sum::<f64>();
    let gap = (svg.width() - first - others) / (widths.len().max(2) - 1) as f64;
    let mut top = svg.bottom();
    for (index, row) in rows.iter().enumerate() {
        let class = if index == 0 { "t b" } else { "t" };
        let mut end = first;
        for (column, cell) in row.iter().enumerate() {
            if column == 0 {
                svg.text_within(first, 0.0, top + 16.0, class, cell);
            } else {
                end += gap + widths[column];
                svg.text(end, top + 16.0, &format!("{class} e"), cell);
            }
        }
        top += ROW;
        svg.path(if index == 0 { "x" } else { "g" }, &format!("M0,{top:.1}h{:.1}", svg.width()));
    }
    svg.end_at(top + 4.0);
}

const ROW: f64 = 24.0;
