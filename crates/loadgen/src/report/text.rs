//! Sections on a terminal.

use std::io::{self, Write};

use tenbin_kit::table::aligned;

use super::chart::Drawing;
use super::model::{Block, Section, Table};
use crate::LoadgenError;

/// Prints `sections` at once.
pub(crate) fn print(out: &mut dyn Write, sections: &[Section]) -> Result<(), LoadgenError> {
    sections.iter().try_for_each(|section| write(out, section)).and_then(|()| out.flush()).map_err(LoadgenError::Print)
}

fn write(out: &mut dyn Write, section: &Section) -> io::Result<()> {
    if !section.title.is_empty() {
        writeln!(out, "\n{}", section.title)?;
    }
    for block in &section.blocks {
        match block {
            Block::Text(text) => writeln!(out, "  {text}")?,
            Block::List(items) => items.iter().try_for_each(|item| writeln!(out, "{item}"))?,
            Block::Banner(tone, text) => writeln!(out, "{}{text}", tone.mark())?,
            Block::Table(table) => write_table(out, table)?,
            Block::Figure(figure) => {
                if let Drawing::Table(table) = &figure.drawing {
                    write_table(out, table)?;
                }
            }
            Block::Checks(_) | Block::Tiles(_) => {}
        }
    }
    Ok(())
}

/// Prints a table with columns as wide as their cells.
fn write_table(out: &mut dyn Write, table: &Table) -> io::Result<()> {
    let head: Vec<&str> = table.head.iter().map(String::as_str).collect();
    let rows = table.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>());
    let rows: Vec<_> = std::iter::once(head).chain(rows).filter(|row| !row.is_empty()).collect();
    aligned(&rows, table.text_columns, LEAST).iter().try_for_each(|line| writeln!(out, "  {line}"))
}

/// Least width of the first and of the other columns, so that tables below each other agree.
const LEAST: [usize; 2] = [22, 8];

#[cfg(test)]
mod tests {
    use super::super::model::{Cell, Tone};
    use super::*;

    #[test]
    fn numbers_stand_below_each_other() {
        let mut table = Table::new(["ms", "mean", "published"]);
        table.add("a policy with a long name", ["1.0".into(), Cell::aside("1,400.7")]);
        table.add("other", ["12.5"]);
        let banner = Block::Banner(Tone::Warning, "late".to_owned());
        let section = Section::new("latency").with("a line".to_owned()).with(banner).with(table);
        let mut out = Vec::new();
        print(&mut out, &[section]).unwrap();
        let expected = "\nlatency\n  a line\n⚠ late\n  ms                             mean  published\n  \
                        a policy with a long name       1.0    1,400.7\n  other                          12.5\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
