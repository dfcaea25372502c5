//! Undos of changes outside of the lab: the journal of a run, and the command `restore`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use tenbin_lab::journal::{self, Journal, Undo};

use crate::error::Error;
use crate::line::Programs;
use crate::results::RunVerdict;

/// Opens the journal of a run, whose working files will be in `work`: they are removed even if this program is killed. None
/// without this program's path, which the second guard needs.
pub(crate) fn journal(programs: Option<&Programs>, results: &Path, work: &Path) -> Result<Option<Journal>, String> {
    let Some(helper) = programs.map(Programs::helper) else { return Ok(None) };
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

/// The command `restore`: undoes the leftovers of a directory of results, or of all below `results`.
///
/// Journals are in the directory of results and in the directories of its variants. Deeper directories belong to
/// instances, so journals there are not trusted.
pub(crate) fn restore(run: Option<&str>, out: &mut dyn Write) -> Result<u8, Error> {
    let results = match run {
        Some(run) => vec![PathBuf::from(run)],
        None => directories(&env::current_dir().unwrap_or_default().join("results")),
    };
    let mut code = 0;
    for directory in results.into_iter().flat_map(|results| [vec![results.clone()], directories(&results)].concat()) {
        let restored = match journal::left_over(&directory) {
            Ok(0) => continue,
            Ok(_) => journal::restore(&directory),
            Err(error) => Err(error),
        };
        match restored {
            Ok(failures) if failures.is_empty() => writeln!(out, "{}: undone", directory.display())?,
            Ok(failures) => {
                code = 3;
                for failure in &failures {
                    writeln!(out, "{}: not undone: {:?}: {}", directory.display(), failure.undo, failure.error)?;
                }
            }
            Err(error) => {
                code = 3;
                writeln!(out, "{}: {error}", directory.display())?;
            }
        }
    }
    Ok(code)
}

/// Directories in a directory.
fn directories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn journals_that_others_may_have_written_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let results = directory.path().join("out");
        // A journal whose only undo makes a file with the given name.
        let plant = |at: &str, name: &str| {
            let at = results.join(at);
            fs::create_dir_all(&at).unwrap();
            let mark = directory.path().join(name).display().to_string();
            let line = format!(r#"{{"Undo":{{"id":1,"undo":{{"Run":{{"line":["touch","{mark}"]}}}}}}}}"#);
            fs::write(at.join("undo.jsonl"), line + "\n").unwrap();
            at
        };
        plant("default", "own");
        let shared = plant("default/files/broker", "shared");
        plant("default/files/broker/deeper", "deeper");
        fs::create_dir(results.join("linked")).unwrap();
        symlink(shared.join("undo.jsonl"), results.join("linked/undo.jsonl")).unwrap();
        fs::set_permissions(plant("open", "open"), fs::Permissions::from_mode(0o777)).unwrap();
        let file = plant("writable", "writable").join("undo.jsonl");
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
        let file = plant("named-twice", "named-twice").join("undo.jsonl");
        fs::hard_link(&file, directory.path().join("other-name")).unwrap();
        // Only the superuser can give a directory away.
        let foreign = plant("foreign", "foreign");
        let is_given = std::os::unix::fs::chown(&foreign, Some(12_345), None).is_ok();
        if !is_given {
            fs::remove_dir_all(&foreign).unwrap();
        }
        let mut said = Vec::new();
        assert_eq!(restore(results.to_str(), &mut said).unwrap(), 3);
        let said = String::from_utf8(said).unwrap();
        let mut lines = said.lines().collect::<Vec<_>>();
        lines.sort_unstable();
        let refused = ["foreign", "linked", "named-twice", "open", "writable"];
        let refused = &refused[usize::from(!is_given)..];
        assert_eq!(lines.len(), 1 + refused.len(), "{said}");
        assert!(lines[0].ends_with("default: undone"), "{said}");
        assert!(lines[1..].iter().zip(refused).all(|(line, name)| line.contains(name)), "{said}");
        let made = ["shared", "deeper"].iter().chain(refused).find(|name| directory.path().join(name).exists());
        assert!(directory.path().join("own").exists() && made.is_none(), "{made:?}");
    }
}
