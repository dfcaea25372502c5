//! First starts that were killed, and databases that lost their files later.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::{DirectoryError, MessageFiles, StoreId};

/// The steps in which the database makes its files, as an earlier version of this program left them when it was killed.
#[test]
fn beginning_of_a_database_is_made_anew() {
    let (journal, version) = (("0.jnl", Some(1 << 20)), ("version", Some(4)));
    let meta = ("keyspaces/0/tables/0", Some(100));
    let steps: [&[(&str, Option<usize>)]; 9] = [
        &[],
        &[("lock", Some(0))],
        &[("lock", Some(0)), ("keyspaces/", None)],
        &[("lock", Some(0)), ("keyspaces/", None), ("0.jnl", Some(0))],
        &[("lock", Some(0)), ("keyspaces/", None), ("0.jnl", Some(1 << 20))],
        &[("lock", Some(0)), ("keyspaces/", None), journal, ("version", Some(0))],
        &[("lock", Some(0)), ("keyspaces/0/tables/", None), journal, version, ("keyspaces/0/v0", Some(0))],
        &[("lock", Some(0)), meta, journal, version, ("keyspaces/1/tables/", None), ("keyspaces/1/v0", Some(9))],
        &[meta, journal, version, ("keyspaces/0/current", Some(0))],
    ];
    for step in steps {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        fs::create_dir(&path).unwrap();
        for (name, length) in step {
            match length {
                Some(length) => {
                    fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
                    fs::write(path.join(name), vec![0; *length]).unwrap();
                }
                None => fs::create_dir_all(path.join(name)).unwrap(),
            }
        }
        // An earlier attempt was killed too.
        fs::create_dir_all(directory.path().join("state.new/state/keyspaces")).unwrap();
        assert!(looked_at(directory.path()).unwrap_err().contains("nothing is stored yet"));
        let id = open(directory.path()).unwrap_or_else(|error| panic!("{step:?}: {error}")).id();
        assert_eq!(open(directory.path()).unwrap().id(), id, "the second start finds it");
        assert!(!directory.path().join("state.new").exists());
        looked_at(directory.path()).unwrap();
    }
}

#[test]
fn entries_of_other_programs_are_refused_and_stay() {
    let names = [
        "state/app/history",
        "state/notes",
        "state/keyspaces/notes",
        "state/keyspaces/0/tables/notes",
        "state/keyspaces/0/tables/0/notes",
        "state/lock",
        "state/version",
        "state.new/notes",
        "state.new/state/notes",
    ];
    for (name, is_link) in names.map(|name| (name, false)).into_iter().chain([("state/notes", true)]) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(name);
        if is_link {
            fs::create_dir(directory.path().join("elsewhere")).unwrap();
            std::os::unix::fs::symlink("elsewhere", directory.path().join("state")).unwrap();
        }
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "of another program").unwrap();
        if name.starts_with("state/") {
            fs::create_dir_all(directory.path().join("state/keyspaces/0/tables")).unwrap();
            let _ = fs::write(directory.path().join("state/0.jnl"), "");
        }
        for refused in [open(directory.path()).map(drop).unwrap_err(), looked_at(directory.path()).unwrap_err()] {
            let (root, _) = name.split_once('/').unwrap();
            let text = file.ancestors().any(|path| refused.contains(&format!("{path:?} is no file of this broker")));
            assert!(
                text && refused.contains(&format!("out of {}", directory.path().join(root).display())),
                "{refused}"
            );
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "of another program");
        assert_eq!(directory.path().join("state").exists(), !name.starts_with("state.new"));
    }
}

#[test]
fn state_on_a_mounted_file_system_leaves_its_lost_and_found() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("elsewhere/lost+found/inode");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, "recovered").unwrap();
    std::os::unix::fs::symlink("elsewhere", directory.path().join("state")).unwrap();
    let id = open(directory.path()).unwrap().id();
    assert_eq!(open(directory.path()).unwrap().id(), id);
    assert_eq!(fs::read_to_string(kept).unwrap(), "recovered");
}

#[test]
fn database_that_lost_its_version_is_refused() {
    // With data, with messages alone, and with both.
    for (has_data, has_messages) in [(true, false), (false, true), (true, true)] {
        let directory = tempfile::tempdir().unwrap();
        let state = open(directory.path()).unwrap();
        if has_messages {
            MessageFiles::of(directory.path()).unwrap().name(directory.path(), state.id()).unwrap();
        }
        drop(state);
        let path = directory.path().join("state");
        if !has_data {
            fs::write(path.join("0.jnl"), "").unwrap();
            fs::remove_dir_all(path.join("keyspaces")).unwrap();
            fs::create_dir(path.join("keyspaces")).unwrap();
            fs::remove_file(directory.path().join("state.confirmed")).unwrap();
        }
        fs::remove_file(path.join("version")).unwrap();
        for _ in 0..2 {
            let refused = open(directory.path()).unwrap_err();
            assert!(refused.contains("version is missing: put it back"), "{refused}");
        }
    }
}

#[test]
fn files_are_private_in_a_directory_that_others_may_read() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let state = open(directory.path()).unwrap();
    MessageFiles::of(directory.path()).unwrap().name(directory.path(), state.id()).unwrap();
    let spool = crate::spool::Spool::open(&directory.path().join("spool"), Default::default()).unwrap();
    drop((state, spool));
    for entry in fs::read_dir(directory.path()).unwrap().chain(fs::read_dir(directory.path().join("spool")).unwrap()) {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, 0, "{}", entry.path().display());
    }
}

fn looked_at(directory: &Path) -> Result<StoreId, String> {
    let locked = match LockedDirectory::open_to_read(directory) {
        // No broker was ever started.
        Err(DirectoryError::Io(..)) => LockedDirectory::open(directory).unwrap(),
        locked => locked.unwrap(),
    };
    match Snapshot::open(&locked).map_err(|error| error.to_string())?.id {
        identity::StateIdentity::Named(id) => Ok(id),
        other => panic!("{other:?}"),
    }
}
