//! Tests of a spool with its thread, in a real directory.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use super::{
    SMALL, UNBOOKED,
    model::{self, read_all},
    place,
};
use crate::Sync;
use crate::spool::{Body, Limit, Marked, OpenError, Options, Origin, QueueId, Sequence, Spool, TooLarge, check, dump};

/// A directory that is removed when dropped.
struct Scratch(PathBuf, #[expect(dead_code, reason = "it is dropped last")] TempDir);

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self(directory.path().join("spool"), directory)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        files.sort();
        files
    }
}

fn lines(directory: &Path) -> Vec<String> {
    let mut out = Vec::new();
    dump(directory, &mut out).unwrap();
    String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
}

const ALL: Limit = Limit { messages: 1_000, bytes: 1 << 20 };

#[test]
fn small_log_takes_little_of_the_disk_after_each_start() {
    let scratch = Scratch::new();
    for sequence in 1..=3 {
        let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
        let mut batch = spool.begin();
        model::Call::Message { places: vec![super::untagged(place(1, sequence))], origin: None, body: vec![7; 100] }
            .apply(&mut batch, &mut model::Model::default());
        let end = batch.end();
        drop(batch);
        spool.wait(end).unwrap();
        assert!(spool.used_bytes() <= 5 << 20, "{}", spool.used_bytes());
    }
}

#[test]
fn segments_of_a_log_grow_with_its_first_megabyte() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    let sizes = || scratch.files().iter().map(|file| fs::metadata(file).unwrap().len()).collect::<Vec<_>>();
    let mut written = Vec::new();
    for sequence in 1..=80 {
        let mut batch = spool.begin();
        model::Call::Message { places: vec![super::untagged(place(1, sequence))], origin: None, body: vec![7; 50_000] }
            .apply(&mut batch, &mut model::Model::default());
        let end = batch.end();
        drop(batch);
        spool.wait(end).unwrap();
        written = sizes();
    }
    // 4 MB: the first segment has its small size, and the second the full one.
    assert_eq!(written[..2], [1 << 20, 32 << 20], "{written:?}");
}

#[test]
fn threads_append_and_read_while_segments_come_and_go() {
    let scratch = Scratch::new();
    let intervals = [Duration::ZERO, Duration::from_millis(5), Duration::MAX].map(Sync::Interval);
    for sync in [Sync::Always, Sync::Never].into_iter().chain(intervals) {
        let options = Options { sync, segment_bytes: 16 << 10, ..SMALL };
        let (spool, recovered) = Spool::open(&scratch.0, options).unwrap();
        assert_eq!(recovered.waiting, 0);
        thread::scope(|scope| {
            for queue in 1..=3 {
                let spool = &spool;
                scope.spawn(move || one_queue(spool, queue));
            }
        });
        assert!(spool.queues().is_empty(), "{:?}", spool.queues());
        assert!(spool.stats().written_bytes > 160 << 10, "{:?}", spool.stats());
    }
}

/// Appends messages, reads them back at most ten behind, and acknowledges all.
fn one_queue(spool: &Spool, queue: u64) {
    let body = |sequence: u64| vec![(queue + sequence) as u8; 300];
    for sequence in 1..=300 {
        let mut batch = spool.begin();
        batch.message(&UNBOOKED, &[(place(queue, sequence), "")], None, &[&body(sequence)]).unwrap();
        let ticket = batch.end();
        drop(batch);
        if sequence % 10 == 0 {
            spool.wait(ticket).unwrap();
            let found = read_all(spool, QueueId(queue), ALL);
            assert_eq!(found.len(), 10);
            assert!(found.into_iter().all(|(sequence, found)| found.body.as_deref() == Some(&body(sequence)[..])));
            let count = spool.begin().acknowledge(QueueId(queue), Sequence(sequence - 9)..=Sequence(sequence));
            assert_eq!(count, 10);
        }
    }
}

#[test]
fn backlog_is_read_completely_while_it_is_copied() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, Options { sync: Sync::Never, ..SMALL }).unwrap();
    let body = |sequence: u64| vec![sequence as u8; 300];
    for sequence in 1..=50 {
        spool.begin().message(&UNBOOKED, &[(place(9, sequence), "")], None, &[&body(sequence)]).unwrap();
    }
    thread::scope(|scope| {
        let flow = scope.spawn(|| one_queue(&spool, 1));
        let mut readings = 0;
        while !flow.is_finished() || readings < 20 {
            let found = read_all(&spool, QueueId(9), Limit { messages: 20, bytes: 4_000 });
            assert_eq!(found.len(), 50);
            assert!(found.into_iter().all(|(sequence, found)| found.body.as_deref() == Some(&body(sequence)[..])));
            readings += 1;
        }
    });
    assert!(spool.stats().copied_bytes > 50 * 300, "{:?}", spool.stats());
}

#[test]
fn appended_messages_survive_reopening() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    let origin = Origin { queue: QueueId(5), identifier: 12 };
    let mut batch = spool.begin();
    batch.message(&UNBOOKED, &[(place(1, 10), ""), (place(2, 3), "")], Some(origin), &[b"one ", b"message"]).unwrap();
    batch.message(&UNBOOKED, &[(place(1, 11), "")], None, &[&vec![7; 40 << 20]]).unwrap();
    let ticket = batch.end();
    drop(batch);
    spool.wait(ticket).unwrap();
    assert!(matches!(Spool::open(&scratch.0, Options::default()), Err(OpenError::InUse(_))));
    drop(spool);

    let (spool, recovered) = Spool::open(&scratch.0, Options::default()).unwrap();
    assert!(recovered.was_closed && recovered.queues == 3 && recovered.waiting == 3, "{recovered:?}");
    assert_eq!(spool.queue(QueueId(5)).unwrap().held, [12]);
    let found = read_all(&spool, QueueId(1), ALL);
    assert_eq!(found[&10].body.as_deref(), Some(&b"one message"[..]));
    assert_eq!(found[&11].body.as_ref().map(|body| body.len()), Some(40 << 20));
    let bytes = |queue| spool.queue(QueueId(queue)).unwrap().bytes;
    assert_eq!((bytes(1), bytes(2), bytes(5)), (11 + (40 << 20), 11, 0));
    spool.begin().acknowledge(QueueId(1), Sequence(11)..=Sequence(11));
    assert_eq!(bytes(1), 11);
    assert_eq!(spool.retain_queues(|queue| queue == QueueId(2)), 2);
    drop(spool);
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    assert_eq!(spool.queues(), [QueueId(2)]);
}

#[test]
fn consecutive_acknowledgements_share_one_record() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    let mut batch = spool.begin();
    (1..=10).for_each(|sequence| batch.message(&UNBOOKED, &[(place(1, sequence), "")], None, &[b"x"]).unwrap());
    for sequence in [1, 2, 3, 5, 6] {
        assert_eq!(batch.acknowledge(QueueId(1), Sequence(sequence)..=Sequence(sequence)), 1);
    }
    assert_eq!(batch.acknowledge(QueueId(1), Sequence(2)..=Sequence(3)), 0);
    drop(batch);
    drop(spool);
    let lines = lines(&scratch.0);
    let acknowledgements: Vec<_> = lines.iter().filter_map(|line| line.split_once("acknowledge ")).collect();
    let acknowledgements: Vec<_> = acknowledgements.into_iter().map(|(_, what)| what).collect();
    assert_eq!(acknowledgements, ["1/1 to 3", "1/5 to 6"]);
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    assert_eq!(read_all(&spool, QueueId(1), ALL).into_keys().collect::<Vec<_>>(), [4, 7, 8, 9, 10]);
}

#[test]
fn consecutive_marks_share_one_record_and_last_one_counts() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    let (sent, taken) = (1 << 16, 1 << 17);
    let mut batch = spool.begin();
    (1..=3_000).for_each(|sequence| batch.message(&UNBOOKED, &[(place(1, sequence), "")], None, &[b"x"]).unwrap());
    for sequence in 1..=3_000 {
        assert!(batch.mark(place(1, sequence), sent + sequence as u32, Body::Kept));
    }
    assert!(!batch.mark(place(1, 3_001), 1, Body::Kept) && !batch.mark(place(2, 1), 1, Body::Done));
    assert!(batch.mark(place(1, 2), taken + 2, Body::Done) && batch.mark(place(1, 3), taken + 3, Body::Done));
    // A repeated mark, a mark that would restore a body, and the greatest mark.
    assert!(batch.mark(place(1, 3), taken + 3, Body::Done) && batch.mark(place(1, 7), sent + 7, Body::Kept));
    assert!(batch.mark(place(1, 2), u32::MAX, Body::Kept));
    assert!(batch.mark(place(1, 9), 0, Body::Kept));
    assert_eq!(batch.acknowledge(QueueId(1), Sequence(5)..=Sequence(6)), 2);
    assert_eq!(batch.move_message(place(1, 2), place(2, 2), None), Ok(false));
    assert_eq!(batch.move_message(place(1, 8), place(2, 8), None), Ok(true));
    drop(batch);
    let expected: Vec<_> = [(1, sent + 1, true), (2, u32::MAX, false), (3, taken + 3, false), (4, sent + 4, true)]
        .into_iter()
        .chain([7].into_iter().chain(10..=3_000).map(|sequence: u64| (sequence, sent + sequence as u32, true)))
        .map(|(sequence, mark, has_body)| Marked { sequence: Sequence(sequence), mark, has_body })
        .collect();
    assert_eq!(spool.marks(QueueId(1)), expected);
    drop(spool);
    let lines = lines(&scratch.0);
    let marks: Vec<_> = lines.iter().filter_map(|line| line.split_once("mark ")).map(|(_, what)| what).collect();
    assert_eq!(
        marks,
        [
            "1/1 to 1024 with 65537 and up",
            "1/1025 to 2048 with 66561 and up",
            "1/2049 to 3000 with 67585 and up",
            "1/2 to 3 with 131074 and up, without bodies",
            "1/2 to 2 with 4294967295 and up, without bodies",
            "1/9 to 9 with 0 and up",
        ]
    );
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    assert_eq!(spool.marks(QueueId(1)), expected);
    assert_eq!((spool.marks(QueueId(2)), spool.queue(QueueId(2)).unwrap().waiting), (vec![], 1));
}

#[test]
fn tag_stays_with_its_entry_and_too_long_tag_is_refused() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    let mut batch = spool.begin();
    batch.message(&UNBOOKED, &[(place(1, 1), &b"ab"[..]), (place(2, 1), &[])], None, &[b"x"]).unwrap();
    batch.message(&UNBOOKED, &[(place(1, 2), [7; 255])], None, &[b"y"]).unwrap();
    assert_eq!(batch.message(&UNBOOKED, &[(place(1, 3), [7; 256])], None, &[b"y"]), Err(TooLarge::Tag));
    assert_eq!(batch.move_message(place(1, 1), place(3, 1), Some(&[7; 256])), Err(TooLarge::Tag));
    assert_eq!(batch.move_message(place(1, 1), place(3, 1), None), Ok(true));
    assert_eq!(batch.move_message(place(2, 1), place(3, 2), Some(b"c")), Ok(true));
    assert_eq!(batch.move_message(place(1, 2), place(3, 3), Some(b"")), Ok(true));
    drop(batch);
    let tags =
        |spool: &Spool| read_all(spool, QueueId(3), ALL).into_values().map(|found| found.tag).collect::<Vec<_>>();
    let expected: [std::rc::Rc<[u8]>; 3] = [b"ab"[..].into(), b"c"[..].into(), [].into()];
    assert_eq!(tags(&spool), expected);
    assert_eq!(spool.queues(), [QueueId(3)]);
    drop(spool);
    let (spool, _) = Spool::open(&scratch.0, Options::default()).unwrap();
    assert_eq!(tags(&spool), expected);
    drop(spool);
    let lines = lines(&scratch.0);
    for line in [
        "message of 1 bytes for 1/1 tagged 6162 2/1",
        "move 1/1 to 3/1",
        "move 2/1 to 3/2 tagged 63",
        "move 1/2 to 3/3 without a tag",
    ] {
        assert!(lines.iter().any(|found| found.ends_with(line)), "{line} {lines:#?}");
    }
}

#[test]
fn check_and_dump_name_damage_without_changes() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, SMALL).unwrap();
    for sequence in 1..=40 {
        spool.begin().message(&UNBOOKED, &[(place(1, sequence), "")], None, &[&[9; 200]]).unwrap();
    }
    drop(spool);
    let whole = check(&scratch.0).unwrap();
    assert_eq!(whole.verdict.unwrap().recovered().waiting, 40);
    assert!(whole.segments.iter().all(|segment| segment.version == Some(1)));
    assert!(whole.segments.iter().all(|segment| segment.problem.is_none() && segment.behind.is_none()));
    assert_eq!(lines(&scratch.0).iter().filter(|line| line.contains("message of 200 bytes for 1/")).count(), 40);

    let first = scratch.files()[0].clone();
    let mut content = fs::read(&first).unwrap();
    content[1_000] ^= 1;
    fs::write(&first, &content).unwrap();
    let damaged = check(&scratch.0).unwrap();
    let OpenError::Damaged { path, offset, .. } = damaged.verdict.unwrap_err() else { panic!("not damaged") };
    assert_eq!((&path, offset), (&first, damaged.segments[0].end));
    assert!((700..=1_000).contains(&offset), "{offset}");
    let (bytes, records) = damaged.segments[0].behind.unwrap();
    assert!((232..=300).contains(&bytes) && records > 5, "{bytes} {records}");
    let lines = lines(&scratch.0);
    assert!(
        lines.iter().any(|line| line.starts_with(&format!("0000000001.log {offset} no records up to "))),
        "{lines:#?}"
    );
    assert_eq!(lines.iter().filter(|line| line.contains("message of 200 bytes for 1/")).count(), 39);
    assert!(Spool::open(&scratch.0, SMALL).is_err());
    assert_eq!(fs::read(&first).unwrap(), content);
}

#[test]
fn unhurried_batch_is_written_soon_or_with_hurried_one() {
    let scratch = Scratch::new();
    let (spool, _) = Spool::open(&scratch.0, SMALL).unwrap();
    let append = |sequence: u64, is_waited_for: bool| {
        let mut batch = spool.begin();
        if !is_waited_for {
            batch.without_hurry();
        }
        batch.message(&UNBOOKED, &[(place(1, sequence), "")], None, &[b"body"]).unwrap();
        batch.end()
    };
    for round in 0..3 {
        let end = append(round * 3, false);
        while spool.durable() < end {
            thread::sleep(Duration::from_millis(1));
        }
        // The second batch follows the first in the log.
        let (lazy, hurried) = (append(round * 3 + 1, false), append(round * 3 + 2, true));
        assert!(lazy < hurried);
        spool.wait(hurried).unwrap();
        let end = append(round * 3 + 3, false);
        spool.wait(end).unwrap();
        assert!(spool.stats().pending_bytes == 0);
    }
}
