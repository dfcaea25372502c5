//! Detection of the damaged database file, if the database does not name it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::BackendError;
use crate::directory::private;

pub(super) type Sums = BTreeMap<String, u64>;

/// Refuses a database that would recreate a table because its manifest is missing.
///
/// # Errors
/// The error names the file.
pub(super) fn require(directory: &Path) -> Result<(), BackendError> {
    let missing = |path: PathBuf| Err(BackendError::new(format_args!("{} is missing: put it back", path.display())));
    let Ok(keyspaces) = fs::read_dir(directory.join("keyspaces")) else { return Ok(()) };
    for keyspace in keyspaces.flatten() {
        let path = keyspace.path();
        let has_files = fs::read_dir(&path)
            .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"v")));
        let Ok(current) = fs::read(path.join("current")) else {
            if has_files {
                return missing(path.join("current"));
            }
            continue;
        };
        check_version(&path, &current)?;
    }
    let version = directory.join("version");
    if version.exists() { Ok(()) } else { missing(version) }
}

/// Checks the manifest, which lists the tables, against its checksum in `current`: {version 8, XXH3 of that file 16, 0
/// 1}.
///
/// The database does not check it, and damage can make it panic in a destructor, which aborts the process.
fn check_version(keyspace: &Path, current: &[u8]) -> Result<(), BackendError> {
    let path = keyspace.join("current");
    let (Some(version), Some(sum), Some(0), 25) =
        (current.first_chunk(), current.get(8..24), current.get(24), current.len())
    else {
        return Err(BackendError::new(format_args!("{} is damaged", path.display())));
    };
    let version = keyspace.join(format!("v{}", u64::from_le_bytes(*version)));
    match fs::read(&version) {
        Ok(bytes) if xxh3_128(&bytes).to_le_bytes() == sum => Ok(()),
        Ok(_) => Err(BackendError::new(format_args!("{} is damaged, or {} is", version.display(), path.display()))),
        Err(error) => {
            let (version, path) = (version.display(), path.display());
            Err(BackendError::new(format_args!("{version}: {error}: it is missing, or {path} is damaged")))
        }
    }
}

/// Writes checksums of the files that the database never rewrites.
///
/// They only identify the damaged file; the database detects damage by its own checksums.
pub(super) fn keep_sums(directory: &Path, sums: &Sums) -> std::io::Result<()> {
    let (path, new) = (path(directory), directory.with_extension("sums.new"));
    let mut file = private().create(true).truncate(true).write(true).open(&new)?;
    for (name, sum) in sums {
        writeln!(file, "{sum:016x} {name}")?;
    }
    fs::rename(new, path)
}

/// Adds the damaged files to an error, or else the files without a known checksum. Leaves an error that names a file.
pub(super) fn name_damaged(directory: &Path, error: &BackendError) -> BackendError {
    if error.to_string().contains(&format!("{}/", directory.display())) {
        return error.clone(); // it names one
    }
    let known = fs::read_to_string(path(directory)).unwrap_or_default();
    let known: Sums = known.lines().filter_map(entry).collect();
    let now = sums(directory).unwrap_or_default();
    let is_damaged = |(name, sum): &(&String, &u64)| known.get(*name).is_some_and(|known| known != *sum);
    let mut named: Vec<&String> = now.iter().filter(is_damaged).map(|(name, _)| name).collect();
    // The database removes unneeded files, so a missing file is suspect only if no other is damaged.
    if named.is_empty() {
        named = known.keys().filter(|name| !now.contains_key(*name)).collect();
    }
    let is_sure = !named.is_empty();
    if !is_sure {
        named = now.keys().filter(|name| !known.contains_key(*name)).collect();
    }
    let named: Vec<String> = named.iter().map(|name| directory.join(name).display().to_string()).collect();
    match (named.is_empty(), is_sure) {
        (true, _) => error.clone(),
        (false, true) => BackendError::new(format_args!("{error}; damaged: {}", named.join(", "))),
        (false, false) => BackendError::new(format_args!("{error}; damaged is one of {}", named.join(", "))),
    }
}

fn entry(line: &str) -> Option<(String, u64)> {
    let (sum, name) = line.split_once(' ')?;
    Some((name.to_owned(), u64::from_str_radix(sum, 16).ok()?))
}

/// Computes the checksums of all files. The database must not be in use.
pub(super) fn sums(directory: &Path) -> std::io::Result<Sums> {
    let mut sums = Sums::new();
    if directory.join("version").exists() {
        sums.insert("version".to_owned(), xxh3_64(&fs::read(directory.join("version"))?));
    }
    add(directory, Path::new("keyspaces"), &mut sums)?;
    Ok(sums)
}

fn add(directory: &Path, below: &Path, sums: &mut Sums) -> std::io::Result<()> {
    for entry in fs::read_dir(directory.join(below))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            add(directory, &name, sums)?;
        } else {
            sums.insert(name.display().to_string(), xxh3_64(&fs::read(entry.path())?));
        }
    }
    Ok(())
}

/// Path of the checksums.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.with_extension("sums")
}
