//! Files of `configs/NAME/` beside a template, which the instance or client NAME gets.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::library;
use crate::plan::ConfigFile;
use crate::template::Member;

/// Files beside the template `file` for `members`, in the order of members and names. A ready verification has none.
///
/// Instances of a system get its files too; a file for one instance replaces the system's of the same name.
///
/// # Errors
/// A directory cannot be read, or a name is not UTF-8; with its path.
pub(crate) fn find(file: &Path, members: &[Member]) -> Result<Vec<ConfigFile>, (PathBuf, io::Error)> {
    let Some(root) = directory(file) else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for member in members {
        let mut found = BTreeMap::new();
        for name in [&member.entry, &member.name] {
            collect(&root.join(name), "", &mut found)?;
        }
        let file = |(name, source)| ConfigFile { member: member.name.clone(), name, source };
        all.extend(found.into_iter().map(file));
    }
    Ok(all)
}

/// Directories in `configs/` whose names none of `members` has.
pub(crate) fn without_member(file: &Path, members: &[Member]) -> Vec<String> {
    let is_known = |name: &str| members.iter().any(|member| member.entry == name || member.name == name);
    let entries = directory(file).and_then(|directory| fs::read_dir(directory).ok()).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.path().is_dir());
    let names = directories.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| !is_known(name)).collect();
    names.sort();
    names
}

/// The directory `configs` beside `file`; `None` for a ready verification, which has nothing beside it.
fn directory(file: &Path) -> Option<PathBuf> {
    library::at(file).is_none().then(|| file.parent().unwrap_or(Path::new("")).join("configs"))
}

/// Adds the files below `directory`, whose names begin with `prefix`.
pub(crate) fn collect(
    directory: &Path,
    prefix: &str,
    found: &mut BTreeMap<String, PathBuf>,
) -> Result<(), (PathBuf, io::Error)> {
    if !directory.is_dir() {
        return Ok(());
    }
    let failed = |error| (directory.to_owned(), error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| (path.clone(), io::Error::other("its name is not UTF-8")))?;
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            collect(&path, &format!("{name}/"), found)?;
        } else {
            found.insert(name, path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::MemberPart;

    #[test]
    fn instances_get_files_of_their_system_and_their_own() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["broker/a.conf", "broker/keys/b.pem", "broker-2/a.conf", "sub/c", "borker/d"] {
            let path = directory.path().join("configs").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let member = |name: &str, entry: &str| Member {
            name: name.to_owned(),
            entry: entry.to_owned(),
            node: None,
            part: MemberPart::Instance,
        };
        let members = [member("broker-1", "broker"), member("broker-2", "broker"), member("pub", "pub")];
        let file = directory.path().join("t.yaml");
        let found = find(&file, &members).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|file| format!("{} {} {}", file.member, file.name, fs::read_to_string(&file.source).unwrap()))
            .collect();
        assert_eq!(
            shown,
            [
                "broker-1 a.conf broker/a.conf",
                "broker-1 keys/b.pem broker/keys/b.pem",
                "broker-2 a.conf broker-2/a.conf",
                "broker-2 keys/b.pem broker/keys/b.pem",
            ]
        );
        assert_eq!(without_member(&file, &members), ["borker", "sub"]);
        assert!(find(Path::new("/no/such/t.yaml"), &members).unwrap().is_empty());
    }

    #[test]
    fn ready_verifications_have_no_files_beside_them() {
        assert_eq!(directory(Path::new("kill-qos1")), None);
        assert_eq!(directory(Path::new("own.yaml")), Some(PathBuf::from("configs")));
    }
}
