//! Journals and databases that are damaged, or whose confirmation failed.

use super::*;

/// A power cut may leave any choice of the pages that were not synced.
#[test]
fn torn_journal_end_loses_no_confirmed_batch() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut backend = reopen(&path);
    let batch = |from: u32, to: u32| {
        let mut batch = Batch::default();
        let value = |key: u32| vec![key as u8 | 1; if key % 100 == 60 { 20_000 } else { 100 }];
        (from..to).for_each(|key| batch.set(Table::Retained, &key.to_be_bytes(), Some(&value(key))));
        batch
    };
    backend.apply(&batch(0, 50)).and_then(|()| backend.sync()).unwrap();
    let journal = journal_of(&path);
    let before = fs::read(&journal).unwrap();
    backend.apply(&batch(50, 500)).unwrap();
    drop(backend);
    let mut whole = fs::read(&journal).unwrap();
    let begin = before.iter().zip(&whole).position(|(before, after)| before != after).unwrap();
    let end = whole.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    assert!(end - begin > 100_000);
    whole.truncate(end);
    for page in (begin / 4096)..end.div_ceil(4096) {
        for reach in [4096, usize::MAX] {
            let mut torn = whole.clone();
            let from = (page * 4096).max(begin);
            let to = (page * 4096).saturating_add(reach).min(torn.len());
            torn[from..to].fill(0);
            fs::write(&journal, &torn).unwrap();
            let backend = reopen(&path);
            assert_eq!(rows(&backend), 50, "page {page}");
            let cut = backend.cut_off().unwrap_or_default();
            // If nothing of the batch remains, there is nothing to cut off.
            if from > begin || to < torn.len() {
                assert!(cut.contains("a change that was torn: ") && cut.contains(".torn"), "page {page}: {cut}");
                let kept = fs::read(torn_in(&path).pop().unwrap()).unwrap();
                let left = &torn[begin..];
                assert!(left.starts_with(&kept) && left[kept.len()..].iter().all(|&byte| byte == 0), "page {page}");
            }
        }
    }
}

fn reopen(path: &Path) -> FjallBackend {
    FjallBackend::open(path, Opening::First, Sync::Always).unwrap()
}

/// Why the database is not opened.
fn refusal(path: &Path) -> String {
    FjallBackend::open(path, Opening::First, Sync::Always).err().expect("it is refused").to_string()
}

/// Writes confirmed batches, and closes the database. Returns its journal, and the content of that.
fn written(path: &Path, keys: std::ops::Range<u16>, value: &[u8]) -> (PathBuf, Vec<u8>) {
    one_by_one(&mut reopen(path), keys, value, true);
    let journal = journal_of(path);
    let content = fs::read(&journal).unwrap();
    (journal, content)
}

fn one_by_one(backend: &mut FjallBackend, keys: std::ops::Range<u16>, value: &[u8], is_synced: bool) {
    for key in keys {
        let mut batch = Batch::default();
        batch.set(Table::Retained, &key.to_be_bytes(), Some(value));
        backend.apply(&batch).unwrap();
        if is_synced {
            backend.sync().unwrap();
        }
    }
}

#[test]
fn hole_in_confirmed_batches_is_refused_without_changes() {
    for value in [&[1; 20_000][..], &[7; 100]] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (journal, whole) = written(&path, 0..300, value);
        for hole in [0..4096, 8192..12288, 8192..8193] {
            let mut damaged = whole.clone();
            // The byte may be zero already.
            damaged[hole].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1) & 0xF0);
            fs::write(&journal, &damaged).unwrap();
            for _ in 0..2 {
                let refused = refusal(&path);
                assert!(
                    refused.contains(".jnl: confirmed changes are damaged") && refused.contains("byte "),
                    "{refused}"
                );
                assert!(fs::read(&journal).unwrap() == damaged, "it is as it was");
                assert!(torn_in(&path).is_empty());
            }
            // The advice in the error text works.
            let refused = refusal(&path);
            let at = refused.split("byte ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            fs::write(&journal, &damaged[..at.parse().unwrap()]).unwrap();
            let confirmed = confirmed::path(&path);
            assert!(refused.contains(&format!("remove {}", confirmed.display())), "{refused}");
            fs::remove_file(confirmed).unwrap();
            let rows = rows(&reopen(&path));
            assert!(rows < 300, "{rows}");
        }
        fs::write(&journal, &whole).unwrap();
        assert_eq!(rows(&reopen(&path)), 300);
    }
}

#[test]
fn unconfirmed_batches_are_cut_off_from_first_torn_one() {
    for sync in [Sync::Never, Sync::Interval(Duration::from_secs(1))] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut backend = FjallBackend::open(&path, Opening::First, sync).unwrap();
        one_by_one(&mut backend, 0..10, &[7; 100], true);
        let begin = end_of(&fs::read(journal_of(&path)).unwrap());
        one_by_one(&mut backend, 10..300, &[1; 20_000], false);
        drop(backend);
        let journal = journal_of(&path);
        let mut torn = fs::read(&journal).unwrap();
        let end = end_of(&torn);
        torn[begin + 100..begin + 4196].fill(0);
        fs::write(&journal, &torn).unwrap();
        // Independent of the present policy.
        let backend = reopen(&path);
        assert_eq!(rows(&backend), 10);
        let cut = backend.cut_off().unwrap();
        assert!(cut.contains("and those behind them") && cut.contains(&format!("{} bytes", end - begin)), "{cut}");
        drop(backend);
        let kept = torn_in(&path);
        assert!(kept.len() == 1 && fs::read(&kept[0]).unwrap() == torn[begin..end]);
        let mut backend = reopen(&path);
        assert_eq!(backend.cut_off(), None);
        // From here on each batch is confirmed.
        one_by_one(&mut backend, 10..20, &[1; 20_000], true);
        drop(backend);
        let mut damaged = fs::read(&journal).unwrap();
        damaged[begin + 100..begin + 4196].fill(0);
        fs::write(&journal, &damaged).unwrap();
        assert!(FjallBackend::open(&path, Opening::First, sync).is_err());
    }
}

#[test]
fn damaged_last_change_that_was_confirmed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    for first in [0, 10] {
        let (journal, whole) = written(&path, first..first + 3, &[7; 100]);
        let end = end_of(&whole);
        for cut in [1, 50, 200, end] {
            fs::write(&journal, &whole[..end - cut]).unwrap();
            let refused = refusal(&path);
            assert!(refused.contains("0.jnl: confirmed changes are damaged, or missing"), "{refused}");
            assert_eq!(fs::read(&journal).unwrap().len(), end - cut, "it is as it was");
        }
        fs::write(&journal, &whole).unwrap();
    }
}

#[test]
fn database_without_a_current_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    drop(reopen(&path));
    let current = path.join("keyspaces/1/current");
    fs::remove_file(&current).unwrap();
    let refused = refusal(&path);
    assert!(refused.contains("keyspaces/1/current is missing"), "{refused}");
    assert!(!current.exists());
}

/// The database panics on some damage of a version file.
#[test]
fn flipped_byte_in_version_file_is_refused_by_file_name() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    let folder = directory.path().join("state/keyspaces/1");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let version = files.into_iter().find(|path| path.file_name().unwrap().as_encoded_bytes()[0] == b'v').unwrap();
    let whole = fs::read(&version).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&version, &damaged).unwrap();
        match open(directory.path()) {
            Ok(state) => assert_eq!(scan(&state, Table::Meta).len(), 2, "{at}"),
            Err(refused) => {
                assert!(refused.contains(&version.display().to_string()) && !refused.contains('\n'), "{at}: {refused}");
            }
        }
        fs::write(&version, &whole).unwrap();
    }
}

#[test]
fn partly_written_last_change_is_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let (journal, whole) = written(&path, 0..3, &[7; 100]);
    let end = end_of(&whole);
    for cut in 1..100 {
        fs::write(&journal, &whole[..end - cut]).unwrap();
        // As after a power cut before the confirmed length was recorded.
        fs::remove_file(confirmed::path(&path)).unwrap();
        let backend = reopen(&path);
        assert_eq!(rows(&backend), 2, "{cut}");
        assert!(backend.cut_off().is_some_and(|cut| !cut.contains('\n')));
    }
}

#[test]
fn journal_swapped_with_the_confirmed_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let (journal, _) = written(&path, 0..3, &[7; 100]);
    let (confirmed, aside) = (confirmed::path(&path), directory.path().join("aside"));
    for (from, to) in [(&journal, &aside), (&confirmed, &journal), (&aside, &confirmed)] {
        fs::rename(from, to).unwrap();
    }
    let refused = refusal(&path);
    assert!(refused.contains("state.confirmed"), "{refused}");
}

/// Returns the end of the last batch.
fn end_of(journal: &[u8]) -> usize {
    journal.iter().rposition(|&byte| byte != 0).unwrap() + 1
}

fn torn_in(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "torn")).collect()
}

#[test]
fn journal_restarts_after_failed_sync_without_loss() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let put = |backend: &mut FjallBackend, keys: std::ops::Range<u8>| {
        let mut batch = Batch::default();
        keys.for_each(|key| batch.set(Table::Retained, &[key], Some(&[1; 20_000])));
        backend.apply(&batch).and_then(|()| backend.sync()).unwrap();
    };
    let mut backend = reopen(&path);
    put(&mut backend, 0..30);
    drop(backend);
    let mut backend = FjallBackend::open(&path, Opening::AfterFailedSync, Sync::Always).unwrap();
    let journal = fs::read(journal_of(&path)).unwrap();
    assert!(journal.iter().all(|&byte| byte == 0), "{} bytes", journal.len());
    assert_eq!(rows(&backend), 30);
    put(&mut backend, 20..40);
    drop(backend);
    for opening in [Opening::AfterFailedWrite, Opening::First] {
        assert_eq!(rows(&FjallBackend::open(&path, opening, Sync::Always).unwrap()), 40);
    }
}

fn rows(backend: &FjallBackend) -> usize {
    let mut count = 0;
    backend.scan(Table::Retained, &mut |_, _| count += 1).unwrap();
    count
}

fn journal_of(path: &Path) -> PathBuf {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|end| end == "jnl")).unwrap()
}

#[test]
fn removal_of_confirmed_length_is_safe_before_journal_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut backend = reopen(&path);
    let mut batch = Batch::default();
    batch.set(Table::Retained, b"key", Some(b"value"));
    backend.apply(&batch).and_then(|()| backend.sync()).unwrap();
    drop(backend);
    let (seen, state) = (Arc::new(AtomicUsize::new(0)), path.clone());
    let is_safe = Arc::clone(&seen);
    let look = move || {
        let is_there = confirmed::path(&state).exists();
        let journal = journal::newest_end(&state).unwrap().map_or(0, |(_, _, end)| end);
        is_safe.fetch_add(usize::from(!is_there && journal > 0), Ordering::Relaxed);
    };
    crate::directory::BEFORE_SYNC.set(Some(Box::new(look)));
    drop(FjallBackend::open(&path, Opening::AfterFailedSync, Sync::Always).unwrap());
    crate::directory::BEFORE_SYNC.take();
    assert!(seen.load(Ordering::Relaxed) > 0, "a power cut brings the length back, with a shorter journal");
}
