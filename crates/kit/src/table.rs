//! Tables of text for terminals.

/// Lines of a table, with columns as wide as their widest cells and two spaces between them. The first `left` columns are
/// left-aligned, the others right-aligned. `least` has the least width of the first and of the other columns.
pub fn aligned<T: AsRef<str>>(rows: &[Vec<T>], left: usize, least: [usize; 2]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |row: &Vec<T>, column: usize| row.get(column).map_or(0, |cell| cell.as_ref().chars().count());
    let widest = |column: usize| rows.iter().map(|row| width(row, column)).max().unwrap_or_default();
    let widths: Vec<_> = (0..columns).map(|column| widest(column).max(least[column.min(1)])).collect();
    let line = |row: &Vec<T>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match cell.as_ref() {
            cell if column < left => format!("{cell:<width$}"),
            cell => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
