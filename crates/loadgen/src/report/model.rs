//! The report: builders make it, writers render it.

use super::chart::Figure;
use super::origin::Origin;
use crate::number::count;

/// A report, in the order of reading.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its subject.
    pub title: String,
    /// The result in one sentence.
    pub headline: String,
    /// Where it comes from.
    pub origin: Origin,
    /// The first section has no title: verdict and main figures.
    pub sections: Vec<Section>,
}

/// A section of a report.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// Its title; empty for none.
    pub title: String,
    /// Its content, in the order of reading.
    pub blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Debug, Clone)]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// A list.
    List(Vec<String>),
    /// A highlighted sentence with a mark for its tone.
    Banner(Tone, String),
    /// Assertions, and whether each holds.
    Checks(Vec<(bool, String)>),
    /// Names and figures in large letters; pages only.
    Tiles(Vec<(String, Cell)>),
    /// A table.
    Table(Table),
    /// Pages only, except tables.
    Figure(Figure),
}

/// A table. The first `text_columns` columns are text, the others numbers.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Empty in a table of names and values.
    pub head: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<Cell>>,
    /// Number of columns with text.
    pub text_columns: usize,
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Its text.
    pub text: String,
    /// Its meaning.
    pub tone: Tone,
}

/// Meaning of a figure for its reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    /// No judgement.
    #[default]
    Plain,
    /// It is as it should be.
    Good,
    /// It is a fault.
    Bad,
    /// The figures may mislead.
    Warning,
    /// Not measured in these runs.
    Aside,
}

impl Section {
    /// An empty section.
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), blocks: Vec::new() }
    }

    /// Adds a block.
    pub fn with(mut self, block: impl Into<Block>) -> Self {
        self.blocks.push(block.into());
        self
    }

    /// Adds as many blocks as there are: for an `Option` or an iterator.
    pub fn with_all(mut self, blocks: impl IntoIterator<Item = impl Into<Block>>) -> Self {
        self.blocks.extend(blocks.into_iter().map(Into::into));
        self
    }
}

impl Table {
    /// A table with these column titles and no rows; the first column is text.
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { head: head.map(str::to_owned).to_vec(), rows: Vec::new(), text_columns: 1 }
    }

    /// A table of names and values without a head.
    pub fn facts(rows: impl IntoIterator<Item = (String, String)>) -> Self {
        let rows = rows.into_iter().map(|(name, value)| vec![name.into(), value.into()]).collect();
        Self { head: Vec::new(), rows, text_columns: 2 }
    }

    /// Adds a row.
    pub fn add(&mut self, name: impl Into<Cell>, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        let cells = cells.into_iter().map(Into::into);
        self.rows.push(std::iter::once(name.into()).chain(cells).collect());
    }

    /// Rows as columns, if there are few rows that are wider than a page.
    pub fn turned_if_wide(&self) -> Self {
        if self.head.len() <= WIDE || self.rows.len() > FEW {
            return self.clone();
        }
        let mut columns = self.head.iter().enumerate().map(|(column, name)| {
            let cells = self.rows.iter().map(|row| row.get(column).cloned().unwrap_or_else(|| "".into()));
            std::iter::once(Cell::from(name.clone())).chain(cells).collect::<Vec<_>>()
        });
        let head = columns.next().into_iter().flatten().map(|cell| cell.text).collect();
        Self { head, rows: columns.collect(), text_columns: 1 }
    }
}

impl Cell {
    /// A cell that was not measured in these runs.
    pub fn aside(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Aside }
    }

    /// The number of faults of a kind.
    pub fn faults(number: u64) -> Self {
        Self { text: count(number), tone: if number > 0 { Tone::Bad } else { Tone::Plain } }
    }
}

impl Tone {
    /// Beginning of a highlighted sentence.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Plain | Self::Aside => "",
            Self::Good => "✓ ",
            Self::Bad => "✗ ",
            Self::Warning => "⚠ ",
        }
    }

    /// Good for no faults, else bad.
    pub fn of_faults(number: u64) -> Self {
        if number == 0 { Self::Good } else { Self::Bad }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

impl From<Table> for Block {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl From<Figure> for Block {
    fn from(figure: Figure) -> Self {
        Self::Figure(figure)
    }
}

impl From<String> for Block {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Columns beyond which a table is wider than a page, and rows up to which they may become columns.
const WIDE: usize = 8;
const FEW: usize = 4;
