use super::*;
use crate::nanos::Nanos;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A client and its observed state; times in ms.
struct Client {
    estimate: Estimate,
    seen: Observed,
}

impl Client {
    fn new() -> Self {
        Self { estimate: Estimate::new(0), seen: Observed::default() }
    }

    /// Sends messages one by one, at `at_ms`.
    fn sent(&mut self, at_ms: u64, messages: u64) {
        self.seen.sent += messages;
        self.seen.sent_at = at_ms * MS;
    }

    fn report(&mut self, at_ms: u64, messages: u64, processing_ms: u64) -> Verdict {
        self.seen.now = at_ms * MS;
        self.estimate.reported(&self.seen, messages, processing_ms * MS, false)
    }

    fn acknowledge(&mut self, sent_at_ms: u64, at_ms: u64, outstanding: u64) -> Verdict {
        (self.seen.now, self.seen.outstanding) = (at_ms * MS, outstanding);
        let acknowledged = Acknowledged::one(Nanos(sent_at_ms * MS), 100, Nanos(at_ms * MS));
        self.estimate.acknowledged(&self.seen, &acknowledged)
    }

    /// Acknowledges all messages in one read; none is outstanding afterwards.
    fn acknowledge_together(&mut self, sent_at_ms: &[u64], at_ms: u64) -> Verdict {
        (self.seen.now, self.seen.outstanding) = (at_ms * MS, 0);
        let mut acknowledged = Acknowledged::new(Nanos(at_ms * MS));
        sent_at_ms.iter().for_each(|sent_at_ms| acknowledged.add(Nanos(sent_at_ms * MS), 100));
        self.estimate.acknowledged(&self.seen, &acknowledged)
    }

    fn write(&mut self, at_ms: u64, messages: u64, is_backlogged: bool) -> Verdict {
        self.seen.now = at_ms * MS;
        self.estimate.written(&self.seen, messages, is_backlogged)
    }

    fn lag(&mut self, at_ms: u64, read: u64, span_ms: u64, unread: u64) -> Verdict {
        self.seen.now = at_ms * MS;
        self.estimate.lags(&self.seen, read, span_ms * MS, unread)
    }
}

fn within(least_ms: u64, most_ms: u64) -> Finish {
    Finish::Within { least: least_ms * MS, most: most_ms * MS }
}

fn from_us(least_us: u64, most_us: u64) -> Finish {
    Finish::Within { least: least_us * 1_000, most: most_us * 1_000 }
}

#[test]
fn reports_that_the_clock_agrees_with_end_its_margin() {
    let mut client = Client::new();
    client.report(1_000, 0, 25);
    let margins = (2..12).map(|second| {
        client.sent(second * 1_000 - 900, 4);
        client.seen.finish = (second * 1_000 - 800) * MS;
        client.report(second * 1_000, 0, 25).margin
    });
    let margins: Vec<_> = margins.collect();
    assert_eq!(margins, [8, 5, 4, 3, 2, 2, 2, 1, 1, 1]);
    let mut early = |second: u64| {
        client.sent(second * 1_000 - 900, 100);
        client.seen.finish = (second * 1_000 + 1_600) * MS;
        client.report(second * 1_000, 0, 25).margin
    };
    assert_eq!([12, 13, 14, 15].map(&mut early), [4, 6, 8, 8], "it finishes much earlier than expected");
}

#[test]
fn a_report_gives_speed_and_bounds_the_clock() {
    let mut client = Client::new();
    client.sent(900, 40);
    let verdict = client.report(1_000, 3, 25);
    assert_eq!(verdict.processing_ns, 25 * MS);
    assert_eq!(verdict.flags, flag::REPORTS);
    assert_eq!(verdict.finish, from_us(1_087_500, 1_112_500), "three wait, one may be in service");
    client.seen.delay = 10 * MS;
    assert_eq!(
        client.report(2_000, 0, 25).finish,
        from_us(1_990_000, 2_027_500),
        "as it was when the report was written"
    );
}

#[test]
fn report_without_known_speed_keeps_the_clock() {
    let mut client = Client::new();
    client.sent(900, 4);
    let verdict = client.report(1_000, 4, 0);
    assert_eq!((verdict.processing_ns, verdict.finish), (0, Finish::Keep));
}

#[test]
fn a_report_of_nothing_processed_is_no_sample() {
    let mut client = Client::new();
    assert_eq!(client.report(1_000, 0, 0).processing_ns, 0);
    client.sent(1_900, 40);
    assert_eq!(client.report(2_000, 0, 25).processing_ns, 25 * MS);
    assert_eq!(client.report(3_000, 0, 0).processing_ns, 25 * MS);
}

#[test]
fn client_without_processing_time_is_timed_by_its_queue() {
    let mut client = Client::new();
    client.sent(900, 60);
    client.report(1_000, 50, 0);
    client.sent(1_900, 30);
    assert_eq!(client.report(2_000, 55, 0).processing_ns, 40 * MS, "25 in a second, never idle");
    client.sent(2_900, 3);
    assert_eq!(client.report(3_000, 0, 0).processing_ns, 40 * MS, "idle at the end, perhaps for long");
}

#[test]
fn throughput_above_one_thread_shows_parallel_work() {
    let mut client = Client::new();
    client.report(1_000, 0, 0);
    let mut speeds = Vec::new();
    for second in 2..6 {
        client.sent(second * 1_000 - 1, 40);
        speeds.push(client.report(second * 1_000, 0, 100).processing_ns / MS);
    }
    assert_eq!(speeds, [100, 25, 25, 25], "40 a second of 100 ms each, twice in a row");
}

#[test]
fn reports_are_due_when_their_interval_is_known() {
    let mut client = Client::new();
    assert_eq!(client.report(1_000, 0, 0).due, Some(u64::MAX));
    assert_eq!(client.report(3_000, 0, 0).due, Some(u64::MAX));
    client.seen.delay = 5 * MS;
    let due_ms = |client: &mut Client, at_ms| client.report(at_ms, 0, 0).due.expect("it is known") / MS;
    assert_eq!(due_ms(&mut client, 5_000), 9_837, "four deviations, as their spread is unknown as yet");
    let regular = (3..60).map(|number| due_ms(&mut client, 1_000 + number * 2_000)).last();
    assert_eq!(regular, Some(119_000 + 3_060), "1.5 · 2 s, 50 ms and the way there and back");
}

#[test]
fn irregular_reports_are_due_late() {
    let mut client = Client::new();
    let mut at_ms = 1_000;
    let due = (0..20).map(|number| {
        at_ms += if number % 3 == 0 { 6_000 } else { 3_000 };
        client.report(at_ms, 0, 0).due
    });
    let last = due.last().flatten().expect("it is known") / MS;
    assert!((10_000..20_000).contains(&(last - at_ms)), "{} ms, at intervals of 3 or 6 s", last - at_ms);
}

#[test]
fn early_pings_do_not_shorten_report_interval() {
    let mut client = Client::new();
    for at_ms in [1_000, 2_000, 3_000, 3_100, 3_200, 3_300] {
        client.report(at_ms, 0, 0);
    }
    let due = client.report(3_400, 0, 0).due.expect("the fourth and later");
    assert!(due >= (3_400 + 1_550) * MS, "{due}");
}

#[test]
fn early_reports_alone_make_none_due() {
    let mut client = Client::new();
    client.report(1_000, 0, 0);
    for at_ms in [1_100, 1_300, 1_400, 1_800, 2_000] {
        assert_eq!(client.report(at_ms, 0, 0).due, Some(u64::MAX), "at {at_ms} ms");
    }
    // The regular ones come each 5 s.
    assert_eq!(client.report(7_000, 0, 0).due, Some(u64::MAX), "it was wrong about the interval");
    let due = (3..6).map(|number| client.report(number * 5_000 - 3_000, 0, 0).due).last().flatten();
    let due = due.expect("three in a row agree");
    assert!(due > 25_000 * MS && due < u64::MAX, "{due}");
}

#[test]
fn three_plain_pings_end_the_reports() {
    let mut client = Client::new();
    client.sent(900, 40);
    for second in 1..5 {
        client.report(second * 1_000, 0, 25);
    }
    let seen = client.seen;
    let verdicts = [(); 3].map(|()| client.estimate.plain_ping(&seen));
    assert_eq!(verdicts.map(|verdict| verdict.due), [None, None, Some(u64::MAX)]);
    assert_eq!(verdicts.map(|verdict| verdict.flags), [flag::REPORTS, flag::REPORTS, 0]);
    assert_eq!(verdicts[2].processing_ns, 25 * MS, "the speed is kept");
}

#[test]
fn an_acknowledgement_sets_the_clock_exactly() {
    let mut client = Client::new();
    client.sent(100, 1);
    client.sent(110, 2);
    let verdict = client.acknowledge(100, 125, 2);
    assert_eq!(verdict.processing_ns, 25 * MS);
    assert_eq!(verdict.flags, flag::ACKS | flag::ACK_MODE);
    assert_eq!(verdict.finish, Finish::Exactly(175 * MS));
    assert_eq!(verdict.due, Some(150 * MS));
    let verdict = client.acknowledge(110, 150, 1);
    assert_eq!(verdict.processing_ns, 25 * MS, "it began when the one before was finished");
    let verdict = client.acknowledge(110, 175, 0);
    assert_eq!((verdict.finish, verdict.due), (Finish::Exactly(175 * MS), Some(u64::MAX)));
    client.seen.delay = 50 * MS;
    client.sent(300, 1);
    let verdict = client.acknowledge(180, 305, 1);
    assert_eq!(verdict.finish, Finish::Exactly(350 * MS + verdict.processing_ns), "it is still on its way");
}

#[test]
fn acknowledgements_that_come_together_share_the_time() {
    let mut client = Client::new();
    client.sent(100, 10);
    let verdict = client.acknowledge_together(&[100; 10], 350);
    assert_eq!(verdict.processing_ns, 25 * MS, "ten in 250 ms");
    assert_eq!((verdict.finish, verdict.due), (Finish::Exactly(350 * MS), Some(u64::MAX)));
    client.sent(340, 10);
    let verdict = client.acknowledge_together(&[340; 10], 600);
    assert_eq!(verdict.processing_ns, 25 * MS, "begun when those before were finished");
    client.seen.delay = 20 * MS;
    let verdict = client.acknowledge_together(&[800, 700], 790);
    assert_eq!(verdict.processing_ns, 25 * MS, "the first is what the way there and back is taken from");
}

#[test]
fn acknowledgements_that_come_together_count_as_many() {
    let mut client = Client::new();
    client.acknowledge(100, 120, 0);
    let verdict = client.acknowledge_together(&[200; 3], 290);
    assert_eq!(verdict.processing_ns, 27_500_000, "one of 20 ms, three of 30");
}

#[test]
fn report_between_simultaneous_acks_changes_nothing() {
    let (mut parted, mut together) = (Client::new(), Client::new());
    for client in [&mut parted, &mut together] {
        client.acknowledge(100, 130, 0);
    }
    parted.acknowledge_together(&[200; 4], 450);
    parted.seen.outstanding = 6;
    parted.report(450, 6, 25);
    parted.acknowledge_together(&[200; 5], 450);
    parted.acknowledge(200, 450, 0);
    let verdict = together.acknowledge_together(&[200; 10], 450);
    assert_eq!(parted.estimate.processing_ns(), Some(verdict.processing_ns));
    let next = [parted, together].map(|mut client| client.acknowledge(440, 500, 0));
    assert_eq!(next[0].processing_ns, next[1].processing_ns, "the next begins at the same moment");
}

#[test]
fn network_delay_does_not_count_as_processing_time() {
    let mut client = Client::new();
    client.seen.delay = 50 * MS;
    client.sent(1_000, 1);
    let verdict = client.acknowledge(1_000, 1_125, 0);
    assert_eq!(verdict.processing_ns, 25 * MS);
    assert_eq!(verdict.finish, Finish::Exactly(1_075 * MS), "finished half the way ago");
}

#[test]
fn speed_from_reports_carries_over_to_ack_mode() {
    let mut client = Client::new();
    client.report(1_000, 0, 0);
    for second in 2..4 {
        client.sent(second * 1_000 - 1, 40);
        client.report(second * 1_000, 0, 100);
    }
    client.sent(3_010, 1);
    let verdict = client.acknowledge(3_010, 3_035, 0);
    assert_eq!(verdict.processing_ns, 25 * MS, "four at a time, as found before");
    assert_eq!(client.report(4_000, 0, 90).finish, Finish::Keep, "reports do not count any more");
}

/// Creates a client that acknowledges `latency_ms` after each send and works 25 ms on each message.
fn acknowledging(latency_ms: u64) -> Client {
    let mut client = Client::new();
    for at_ms in (100..900).step_by(100) {
        client.sent(at_ms, 1);
        client.acknowledge(at_ms, at_ms + latency_ms, 0);
    }
    client
}

#[test]
fn early_acknowledgements_are_detected() {
    let mut client = acknowledging(1);
    let verdict = client.report(1_000, 0, 25);
    assert_eq!(verdict.flags, flag::REPORTS | flag::ACKS | flag::EARLY, "25 ms of work, acknowledged after 1");
    assert_eq!(verdict.processing_ns, 25 * MS, "what the acknowledgements seemed to show is forgotten");
    assert_eq!(client.acknowledge(1_000, 1_001, 0).finish, Finish::Keep);

    let mut client = acknowledging(10);
    assert_eq!(client.report(1_000, 0, 25).flags & flag::EARLY, 0, "a little short: a first doubt");
    for at_ms in (1_100..1_900).step_by(100) {
        client.acknowledge(at_ms, at_ms + 10, 0);
    }
    assert_eq!(client.report(2_000, 0, 25).flags & flag::EARLY, flag::EARLY, "and a second");

    let mut client = acknowledging(25);
    client.seen.outstanding = 3;
    assert_eq!(client.report(1_000, 4, 25).flags & flag::EARLY, 0, "three wait, one is on its way back");
    assert_eq!(client.report(2_000, 5, 25).flags & flag::EARLY, flag::EARLY, "five wait of three");

    let mut client = acknowledging(25);
    client.acknowledge(975, 1_000, 7);
    client.seen.outstanding = 3;
    assert_eq!(client.report(1_000, 8, 25).flags & flag::EARLY, 0, "counted before it acknowledged");
    assert_eq!(client.report(2_000, 8, 25).flags & flag::EARLY, flag::EARLY, "it has acknowledged nothing since");
}

#[test]
fn acknowledgements_after_the_work_are_verified() {
    let mut client = acknowledging(26);
    let verified = flag::REPORTS | flag::ACKS | flag::VERIFIED | flag::ACK_MODE;
    assert_eq!(client.report(1_000, 0, 25).flags, verified);
    let mut far = Client::new();
    far.seen.delay = 50 * MS;
    for at_ms in (100..900).step_by(100) {
        far.acknowledge(at_ms, at_ms + 101, 0);
    }
    assert_eq!(far.report(1_000, 0, 25).flags & flag::EARLY, flag::EARLY, "the way is no work");
}

#[test]
fn earliness_is_not_judged_with_unacknowledged_messages() {
    let mut client = acknowledging(25);
    client.write(950, 30, false);
    for second in 1..=2 {
        let flags = client.report(second * 1_000, 20, 25).flags;
        assert_eq!(flags & (flag::EARLY | flag::VERIFIED), 0, "report {second}: the queue counts them too");
    }
    assert_eq!(client.report(3_000, 20, 25).flags & flag::EARLY, flag::EARLY);
}

#[test]
fn suspect_acknowledgements_count_once_verified() {
    let mut client = acknowledging(26);
    client.seen.is_suspect = true;
    let verdict = client.acknowledge(900, 926, 0);
    assert_eq!((verdict.flags & flag::ACK_MODE, verdict.processing_ns, verdict.due), (0, 0, Some(u64::MAX)));
    let verdict = client.report(1_000, 0, 25);
    assert_eq!(verdict.flags & (flag::VERIFIED | flag::ACK_MODE), flag::VERIFIED | flag::ACK_MODE);
    assert!(matches!(client.acknowledge(1_000, 1_026, 0).finish, Finish::Exactly(_)));
}

#[test]
fn reports_do_not_replace_missing_acknowledgements() {
    let mut client = Client::new();
    (client.seen.is_asked, client.seen.outstanding) = (true, 3);
    for second in 1..6 {
        assert_eq!(client.report(second * 1_000, 0, 1).due, None);
    }
    client.seen.outstanding = 0;
    let seen = client.seen;
    assert_eq!(client.estimate.taken_back(&seen).due, Some(u64::MAX));
}

#[test]
fn suspect_client_owes_nothing_after_first_acknowledgement() {
    let mut client = Client::new();
    (client.seen.is_asked, client.seen.is_suspect) = (true, true);
    let verdict = client.acknowledge(100, 126, 3);
    assert_eq!((verdict.flags & flag::ACK_MODE, verdict.due), (0, Some(u64::MAX)));
    assert_eq!(client.acknowledge(100, 152, 2).due, None, "reports have the word from now on");
}

#[test]
fn the_drain_of_a_full_socket_shows_the_speed() {
    let mut client = Client::new();
    client.seen.outstanding = 50;
    assert_eq!(client.write(1_000, 100, true).processing_ns, 0, "how long those took nobody knows");
    assert_eq!(client.write(1_040, 2, true).processing_ns, 0, "too few");
    let verdict = client.write(1_200, 8, true);
    assert_eq!(verdict.processing_ns, 20 * MS);
    assert_eq!(verdict.finish, Finish::Exactly(2_200 * MS), "fifty of them");
    assert_eq!(client.write(1_300, 50, false).processing_ns, 20 * MS, "it keeps up now");
}

#[test]
fn reports_override_socket_throughput() {
    let mut client = Client::new();
    client.sent(900, 40);
    client.report(1_000, 10, 5);
    client.write(1_000, 0, true);
    assert_eq!(client.write(1_400, 20, true).processing_ns, 5 * MS);
}

#[test]
fn a_speed_from_before_counts_as_one_message() {
    let mut client = Client::new();
    assert_eq!(client.estimate.assume(0).processing_ns, 0);
    assert_eq!(client.estimate.assume(20 * MS).processing_ns, 20 * MS);
    client.sent(100, 1);
    assert_eq!(client.acknowledge(100, 130, 0).processing_ns, 25 * MS);
}

#[test]
fn outdated_slow_speed_is_corrected_by_few_messages() {
    let speed_after = |gap_ms: u64| {
        let mut client = Client::new();
        (0..20).for_each(|round| _ = client.acknowledge(1_000 + 100 * round, 1_100 + 100 * round, 0));
        let sent_at_ms = 3_000 + gap_ms;
        client.acknowledge(sent_at_ms, sent_at_ms + 20, 0).processing_ns / MS
    };
    assert_eq!((speed_after(1_500), speed_after(2_000)), (95, 60), "16 times as long as a message takes");
}

#[test]
fn delayed_acknowledgement_does_not_count_as_idle_time() {
    let mut client = Client::new();
    (0..20).for_each(|round| _ = client.acknowledge(1_000 + 5 * round, 1_005 + 5 * round, 0));
    let verdict = client.acknowledge(1_102, 3_102, 0);
    assert!(verdict.processing_ns < 6 * MS, "{} ns", verdict.processing_ns);
}

#[test]
fn lag_sets_speed_and_wait_from_reading_rate() {
    let mut client = Client::new();
    let verdict = client.lag(1_000, 4, 20, 100);
    assert_eq!((verdict.processing_ns, verdict.flags), (5 * MS, flag::LAGS));
    assert_eq!(verdict.finish, within(1_500, 1_505));
    let verdict = client.lag(1_500, 36, 180, 1_000);
    assert_eq!((verdict.processing_ns, verdict.finish), (5 * MS, within(2_500, 2_505)), "believed for a second");
    let verdict = client.estimate.caught_up(4, 20 * MS);
    assert_eq!((verdict.flags, verdict.processing_ns, verdict.finish), (0, 5 * MS, Finish::Keep));
    assert_eq!(client.lag(3_500, 0, 480, 1_000).processing_ns, 480 * MS);
    let verdict = client.estimate.caught_up(1_000, 20 * MS);
    assert_eq!((verdict.flags, verdict.processing_ns), (0, MS / 2), "it was held up for half a second");
    assert_eq!(client.estimate.caught_up(1, SECOND).processing_ns, MS / 2, "it was given no more to read");
}

#[test]
fn client_that_reads_nothing_is_slow_for_at_least_that_time() {
    let mut client = Client::new();
    assert_eq!(client.lag(1_000, 0, 20, 100).processing_ns, 20 * MS);
    assert_eq!(client.lag(2_000, 0, 1_000, 100).processing_ns, SECOND, "1.02 s, of which more is not believed");
    assert_eq!(client.lag(2_100, 1_000, 100, 1_000).processing_ns, 1_120_000, "and no longer when it reads");
}

#[test]
fn lag_is_ignored_if_short_or_with_better_evidence() {
    let mut client = Client::new();
    assert_eq!(
        client.lag(1_000, 1_000, 20, 1_000),
        Verdict { processing_ns: 0, flags: 0, margin: MARGIN_MOST, finish: Finish::Keep, due: None }
    );
    assert_eq!(client.lag(1_020, 4, 20, 1_000).flags, flag::LAGS, "what was before is no excuse");
    let reported = client.report(2_000, 3, 25);
    let verdict = client.lag(2_020, 4, 20, 1_000);
    assert_eq!(verdict.flags, flag::REPORTS);
    assert_eq!(verdict.processing_ns, reported.processing_ns, "nor does it change what reports say");
    let mut client = Client::new();
    client.lag(1_000, 0, 100, 1_000);
    let verdict = client.lag(1_500, 20, 500, 1);
    assert_eq!((verdict.flags, verdict.processing_ns), (0, 30 * MS), "600 ms in all: each look counts once");
    let mut client = Client::new();
    client.acknowledge(1_000, 1_020, 0);
    let verdict = client.lag(1_040, 4, 40, 1_000);
    assert_eq!((verdict.flags & flag::LAGS, verdict.processing_ns), (0, 20 * MS));
}

#[test]
fn extremes_do_not_overflow() {
    let mut client = Client::new();
    client.seen = Observed {
        now: u64::MAX,
        finish: 0,
        delay: SECOND,
        sent: u64::MAX,
        sent_at: u64::MAX,
        outstanding: u64::MAX >> 40,
        concurrency: u16::MAX.into(),
        is_suspect: false,
        is_asked: true,
    };
    let seen = client.seen;
    for (read, span_ns, unread) in [(0, u64::MAX, u64::MAX), (0, u64::MAX, u64::MAX), (u64::MAX, 0, u64::MAX)] {
        client.estimate.lags(&seen, read, span_ns, unread);
    }
    for (messages, processing_ns) in [(1 << 31, speed::MAX_NS), (1 << 31, 0), (0, 1), (1 << 31, speed::MAX_NS)] {
        client.estimate.reported(&seen, messages, processing_ns, false);
        client.estimate.written(&seen, u32::MAX.into(), true);
    }
    for sent_at in [0, u64::MAX] {
        let acknowledged = Acknowledged::one(Nanos(sent_at), 100, Nanos(seen.now));
        let verdict = client.estimate.acknowledged(&seen, &acknowledged);
        assert!((1..=speed::MAX_NS).contains(&verdict.processing_ns));
    }
}
