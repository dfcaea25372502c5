//! Undos of changes outside of the lab: the journal of a run, and the command `restore`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use tenbin_lab::Helper;
use tenbin_lab::journal::{self, Journal, Undo};

use crate::command::Error;
use crate::results::RunVerdict;

/// Opens the journal of a run, whose working files are in `work`: they are removed even if this program is killed. None
/// without the program `tenbin`, which the second guard needs.
pub(crate) fn journal(tenbin: Option<&Path>, results: &Path, work: &Path) -> Result<Option<Journal>, String> {
    let Some(tenbin) = tenbin else { return Ok(None) };
    let helper = Helper::new(tenbin.display().to_string(), &["verify", "guard"]);
    let open = || -> Result<Journal, tenbin_lab::Error> {
        let journal = Journal::open(&helper, results)?;
        journal.record(Undo::Remove { path: work.to_owned() })?;
        Ok(journal)
    };
    open().map(Some).map_err(|error| error.to_string())
}

/// Undoes the rest of a run; the verdict names failures.
pub(crate) fn close(journal: Option<&Journal>, mut run: RunVerdict) -> RunVerdict {
    for failure in journal.iter().flat_map(|journal| journal.undo_all()) {
        run.not_undone.push(format!("{:?}: {}", failure.undo, failure.error));
    }
    run
}

/// The command `restore`: undoes the leftovers below a directory of results, or below `results`.
pub(crate) fn restore(run: Option<&str>, out: &mut dyn Write) -> Result<u8, Error> {
    let root = run.map_or_else(|| env::current_dir().unwrap_or_default().join("results"), PathBuf::from);
    let mut code = 0;
    let mut open = vec![root];
    while let Some(directory) = open.pop() {
        if journal::left_over(&directory).is_ok_and(|left| left > 0) {
            match journal::restore(&directory) {
                Ok(failures) => {
                    for failure in &failures {
                        code = 3;
                        writeln!(out, "{}: not undone: {:?}: {}", directory.display(), failure.undo, failure.error)?;
                    }
                    if failures.is_empty() {
                        writeln!(out, "{}: undone", directory.display())?;
                    }
                }
                Err(error) => {
                    code = 3;
                    writeln!(out, "{}: {error}", directory.display())?;
                }
            }
        }
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        open.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()));
    }
    Ok(code)
}
