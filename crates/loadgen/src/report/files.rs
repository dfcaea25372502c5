//! Files of a report in its directory.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::LoadgenError;

pub(crate) fn create_directory(path: &Path) -> Result<(), LoadgenError> {
    std::fs::create_dir_all(path).map_err(|source| LoadgenError::Write { path: path.to_owned(), source })
}

/// Writes a file whose content `write` makes.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), LoadgenError> {
    let file = std::fs::File::create(path).map(io::BufWriter::new);
    file.and_then(|mut file| {
        write(&mut file)?;
        file.flush()
    })
    .map_err(|source| LoadgenError::Write { path: path.to_owned(), source })
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), LoadgenError> {
    write_file(path, |file| {
        serde_json::to_writer_pretty(&mut *file, value)?;
        writeln!(file)
    })
}

/// Writes a CSV file: a header and a line for each of `rows`.
pub(crate) fn write_csv(path: &Path, head: &str, rows: impl Iterator<Item = String>) -> Result<(), LoadgenError> {
    write_file(path, |file| {
        writeln!(file, "{head}")?;
        rows.into_iter().try_for_each(|row| writeln!(file, "{row}"))
    })
}

/// `text` as a field of a CSV file.
pub(crate) fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// `name` as part of a file name; other characters than letters, digits, `_` and `-` are replaced.
pub(crate) fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stays_inside_its_directory() {
        assert_eq!(file_name("round_robin"), "round_robin");
        assert_eq!(file_name("../a b"), "___a_b");
    }
}
