//! What is verified of a backup: the records and the state of the store, and the file.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::*;
use crate::mirror::backup::{ABOUT_BYTES_MAX, Files, Moment, Source, write_within};
use crate::mirror::copying::Rate;
use crate::mirror::{BackupError, backup_closed, check_backup, restore};
use crate::state::{BackendError, TableSnapshot, Visit};

/// A directory with a store of some segments that is closed.
fn closed(directory: &Path) {
    let store = Store::open(directory, Sync::Always);
    for sequence in 1..=250 {
        store.append(sequence, 10_000);
        store.set(sequence);
    }
    let end = store.append(251, 10);
    store.spool.wait(end).unwrap();
    assert!(store.state.wait(store.state.last(), Duration::from_secs(60)));
}

/// Flips a bit in the middle of a segment's records. Returns the damage as a start of a broker and `store check` name it.
fn flip(directory: &Path, segment: u32) -> String {
    let path = directory.join("spool").join(log_name(segment));
    let checked = spool::check(&directory.join("spool")).unwrap();
    let of_file = checked.segments.iter().find(|checked| checked.path == path).unwrap();
    let at = (of_file.end / 2) as usize;
    let mut bytes = fs::read(&path).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    match spool::check(&directory.join("spool")).unwrap().verdict.unwrap_err() {
        spool::OpenError::Damaged { path: found, offset, what } => {
            assert!(found == path && (offset as usize) < at && at - (offset as usize) < 20_000, "{offset} {at}");
            format!("spool/{}: offset {offset}: {what}", log_name(segment))
        }
        other => panic!("{other}"),
    }
}

/// Number of the newest segment.
fn newest(directory: &Path) -> u32 {
    let names = fs::read_dir(directory.join("spool")).unwrap();
    names.filter_map(|entry| spool::number_of(&entry.unwrap().file_name().to_string_lossy())).max().unwrap()
}

fn closed_backup(directory: &Path, file: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let locked = LockedDirectory::open_to_read(directory).unwrap();
    let damage = backup_closed(&locked, "about", &mut bytes).unwrap();
    fs::write(file, bytes).unwrap();
    damage
}

#[test]
fn flipped_bit_of_a_record_is_named_and_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    closed(&path("intact"));
    assert_eq!(closed_backup(&path("intact"), &path("file")), None);
    assert_eq!(check_backup(&path("file")).unwrap().damage, None);
    for is_newest in [false, true] {
        let store = path(&format!("store-{is_newest}"));
        closed(&store);
        // The newest segment may be one that was made ahead.
        let damage = flip(&store, if is_newest { newest(&store) - 1 } else { 1 });
        let file = path(&format!("file-{is_newest}"));
        assert_eq!(closed_backup(&store, &file), None);
        assert_eq!(check_backup(&file).unwrap().damage, Some(damage.clone()));
        let refused = restore(&file, &path("none"), false).unwrap_err().to_string();
        assert!(refused.contains(&format!("file-{is_newest}: ")) && refused.contains(&damage), "{refused}");
        assert!(!path("none").exists());
        // The directory has the same damage, and the rest can be inspected.
        let inspected = path(&format!("inspected-{is_newest}"));
        assert_eq!(restore(&file, &inspected, true).unwrap().damage, Some(damage.clone()));
        let found = spool::check(&inspected.join("spool")).unwrap().verdict.unwrap_err().to_string();
        assert!(found.ends_with(&damage), "{found}");
    }
}

#[test]
fn flipped_bit_under_a_running_leader_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let leader = Store::open(&path("leader"), Sync::Always);
    for sequence in 1..=250 {
        leader.append(sequence, 10_000);
    }
    leader.spool.wait(leader.append(251, 10)).unwrap();
    // In the second message.
    let at = 15_000;
    let segment = path("leader/spool").join(log_name(1));
    let mut bytes = fs::read(&segment).unwrap();
    bytes[at] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let mut bytes = Vec::new();
    leader.mirror.backup("", u64::MAX, &mut bytes).unwrap();
    fs::write(path("file"), bytes).unwrap();
    let damage = check_backup(&path("file")).unwrap().damage.unwrap();
    assert!(damage.starts_with("spool/0000000001.log: offset 10"), "{damage}");
}

#[test]
fn damaged_end_of_the_state_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    closed(&path("store"));
    let journals = fs::read_dir(path("store/state")).unwrap().map(|entry| entry.unwrap().path());
    let journal: PathBuf = journals.filter(|path| path.extension().is_some_and(|end| end == "jnl")).max().unwrap();
    let mut bytes = fs::read(&journal).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[last / 2] ^= 1;
    fs::write(&journal, bytes).unwrap();
    let damage = closed_backup(&path("store"), &path("file")).unwrap();
    assert!(damage.contains(".jnl: offset ") && damage.contains("confirmed changes are damaged"), "{damage}");
}

#[test]
fn hash_covers_the_entries_of_the_state() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    closed(&path("store"));
    closed_backup(&path("store"), &path("file"));
    let mut bytes = fs::read(path("file")).unwrap();
    let entry = [250_u64.to_be_bytes().as_slice(), &9_u32.to_le_bytes(), &250_u64.to_be_bytes()].concat();
    let at = bytes.windows(entry.len()).position(|window| window == entry).unwrap();
    bytes[at + entry.len() - 1] ^= 1;
    fs::write(path("file"), bytes).unwrap();
    let refused = restore(&path("file"), &path("none"), false).unwrap_err().to_string();
    assert!(refused.ends_with("it is damaged or cut short: its checksum is another one"), "{refused}");
}

/// A file with this begin and the hash of all of it.
fn forged(file: &Path, begin: &[u8]) -> Result<(), BackupError> {
    let hash = xxhash_rust::xxh3::xxh3_128(begin).to_le_bytes();
    fs::write(file, [begin, &hash].concat()).unwrap();
    check_backup(file).map(drop)
}

#[test]
fn other_formats_are_named_in_full() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    for line in
        ["tenbin-backup 1 log 12 state 345", "tenbin-backup 2 log 1 state 1", "tenbin-backup 10 log 1 state 1 more 7"]
    {
        let refused = forged(&file, format!("{line}\nabout\n").as_bytes()).unwrap_err().to_string();
        let wanted = format!(
            "file: its format is {line:?}, and this program, tenbin {}, reads \"tenbin-backup 1 log ",
            env!("CARGO_PKG_VERSION")
        );
        assert!(refused.contains(&wanted), "{refused}");
        assert!(refused.ends_with(": restore it with the version of tenbin that wrote it"), "{refused}");
    }
    // A newer file may end in another way.
    fs::write(&file, "tenbin-backup 2 log 1 state 1\nwhatever").unwrap();
    assert!(check_backup(&file).unwrap_err().to_string().contains("its format is"));
    for line in ["tenbin-backup x log 1 state 1\n", "tenbin-backup 1 log 1 state 1", "tenbin-backup 1 log \x1b[31m1"] {
        let refused = forged(&file, line.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("damaged or cut short") && !refused.contains('\x1b'), "{refused}");
    }
    let esc = forged(&file, b"tenbin-backup 1 log \x1b[31m state 1\nabout\n").unwrap_err().to_string();
    assert!(esc.contains("\\u{1b}[31m") && !esc.contains('\x1b'), "{esc}");
}

#[test]
fn line_about_a_backup_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let first = crate::mirror::backup::first_line();
    let refused =
        forged(&path("file"), format!("{first}{}\n", "x".repeat(1 << 20)).as_bytes()).unwrap_err().to_string();
    assert!(refused.ends_with("its second line has more than 4096 bytes, or is cut short"), "{refused}");
    let leader = Store::open(&path("leader"), Sync::Never);
    let longest = "x".repeat(ABOUT_BYTES_MAX - 1);
    let mut bytes = Vec::new();
    leader.mirror.backup(&longest, u64::MAX, &mut bytes).unwrap();
    fs::write(path("file"), bytes).unwrap();
    assert_eq!(check_backup(&path("file")).unwrap().about, longest);
    assert!(leader.mirror.backup(&(longest + "x"), u64::MAX, &mut Vec::new()).is_err());
}

/// A reader that takes the beginning, and then nothing more. It notes the lengths that it is offered then.
struct Stuck {
    takes: usize,
    offered: Vec<usize>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.takes == 0 {
            self.offered.push(bytes.len());
            thread::sleep(Duration::from_millis(1));
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = bytes.len().min(self.takes);
        self.takes -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Nothing;

impl TableSnapshot for Nothing {
    fn visit(&self, _: &mut Visit<'_>) -> Result<(), BackendError> {
        Ok(())
    }
}

#[test]
fn stuck_reader_ends_a_backup_after_one_wait() {
    let disk = MemoryDisk::default();
    disk.put(&log_name(1), vec![7; 1 << 20]);
    let moment = || Ok(Moment { files: Files::open(&disk)?, snapshot: Box::new(Nothing) });
    let mut stuck = Stuck { takes: 1_000, offered: Vec::new() };
    let (patience, rate) = (Duration::from_millis(20), Rate::new(u64::MAX));
    let error = write_within(patience, &Open, "", &rate, &mut stuck, moment).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "the reader has taken nothing for 20ms");
    // The rest of one piece: it was not told of its own failure, which would be another wait.
    stuck.offered.dedup();
    assert_eq!(stuck.offered.len(), 1, "{:?}", stuck.offered);
}

/// A source that stays open.
struct Open;

impl Source for Open {
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    fn pinned<T>(&self, work: impl FnOnce(&mut Option<crate::mirror::backup::Pinned>) -> T) -> T {
        work(&mut None)
    }

    fn directory(&self) -> Option<PathBuf> {
        None
    }
}
