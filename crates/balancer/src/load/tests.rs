use super::*;
use crate::dispatch::Dispatch;

fn report(messages_in_queue: u64, processing_ms: u64) -> LoadReport {
    LoadReport { messages_in_queue, processing_time: Duration::from_millis(processing_ms), draining: false }
}

#[test]
fn hot_fields_have_a_cache_line_of_their_own() {
    assert_eq!((size_of::<Hot>(), align_of::<Hot>()), (64, 64));
    assert_eq!((size_of::<Reported>(), align_of::<Reported>()), (64, 64));
    assert_eq!(std::mem::offset_of!(MemberLoad, hot), 0);
}

fn dispatch(now: u64) -> Dispatch {
    Dispatch { at: Nanos(now), bytes: 100, ..Dispatch::default() }
}

#[test]
fn completed_messages_are_no_longer_outstanding() {
    let load = MemberLoad::new(Nanos(0));
    (0..5).for_each(|now| load.hot().book(&dispatch(now), 0, 0));
    load.acknowledged(&Acknowledged::new(Nanos(9)));
    assert_eq!(load.learned_speed(), None, "nothing was");
    let mut acknowledged = Acknowledged::one(Nanos(0), 100, Nanos(9));
    acknowledged.add(Nanos(1), 100);
    load.acknowledged(&acknowledged);
    load.written(1, 100, false, Nanos(9));
    let counts = |load: &MemberLoad| {
        let snapshot = load.snapshot();
        (snapshot.outstanding_messages, snapshot.outstanding_bytes, snapshot.sent_since_report)
    };
    assert_eq!(counts(&load), (2, 200, 5));
    load.taken_back(1, 100, Nanos(9));
    assert_eq!(counts(&load), (1, 100, 4));
    load.connected(Nanos(10));
    assert_eq!(counts(&load), (1, 100, 0), "the session still holds it");
    load.written(7, 9_000, false, Nanos(11));
    assert_eq!(counts(&load), (0, 0, 0));
}

#[test]
fn assumed_speed_is_not_learned_without_evidence() {
    let load = MemberLoad::new(Nanos(0));
    assert!(!load.is_speed_known());
    load.assume_speed(Duration::from_millis(40));
    load.report(&report(0, 0), Nanos(1));
    assert_eq!((load.is_speed_known(), load.learned_speed()), (true, None));
    load.report(&report(0, 40), Nanos(2));
    assert_eq!(load.learned_speed(), Some(Duration::from_millis(40)));
}

#[test]
fn cancelled_booking_leaves_nothing_behind() {
    let load = MemberLoad::new(Nanos(0));
    load.assume_speed(Duration::from_nanos(70)); // so that its clock has no margin
    let dispatch = Dispatch { is_acknowledged: true, ..dispatch(100) };
    load.hot().book(&dispatch, 70, 70);
    assert_ne!(load.hot().due(), u64::MAX);
    load.unbooked(100, 70, Nanos(100));
    let snapshot = load.snapshot();
    assert_eq!((load.hot().due(), load.hot().finish(), load.hot().outstanding().messages), (u64::MAX, 100, 0));
    assert_eq!((snapshot.sent, snapshot.taken_back), (0, 0), "it is no message that others got");
}

#[test]
fn refused_messages_cost_their_processing_time() {
    let load = MemberLoad::new(Nanos(0));
    load.assume_speed(Duration::from_nanos(70));
    load.hot().book(&Dispatch { is_acknowledged: true, ..dispatch(100) }, 70, 70);
    load.refused(1, 100, Nanos(101));
    let hot = load.hot();
    assert_eq!((hot.due(), hot.finish(), hot.outstanding().messages, hot.sent()), (u64::MAX, 170, 0, 1));
}

#[test]
fn member_granted_qos_0_is_watched_by_its_reports() {
    let load = MemberLoad::new(Nanos(0));
    let second = |number: u64| number * 1_000_000_000;
    for number in 1..=5 {
        load.hot().book(&Dispatch { is_acknowledged: true, ..dispatch(second(number)) }, 70, 70);
        load.written(1, 100, false, Nanos(second(number)));
        load.report(&report(0, 1), Nanos(second(number) + 10));
    }
    let due = load.hot().due();
    assert!((second(6)..second(7)).contains(&due), "{due}");
    load.hot().book(&Dispatch { is_acknowledged: true, ..dispatch(second(6)) }, 70, 70);
    load.written(1, 100, false, Nanos(second(6)));
    assert_eq!(load.hot().due(), due, "a message more does not end that");
}

#[test]
fn a_client_that_drains_ranks_between_full_and_offline() {
    let load = MemberLoad::new(Nanos(0));
    let draining = LoadReport { draining: true, ..report(0, 1) };
    let mut ranks = Vec::new();
    for report in [report(0, 1), draining] {
        load.report(&report, Nanos(1));
        for availability in [Availability::Ready, Availability::Full, Availability::Offline] {
            load.set_availability(availability);
            ranks.push(load.rank());
        }
    }
    assert_eq!(ranks, [0, 1, 3, 2, 2, 3]);
    assert!(load.is_draining());
    load.connected(Nanos(2));
    assert!(!load.is_draining());
}

#[test]
fn suspect_ranks_as_full_until_its_trial() {
    let (load, second) = (MemberLoad::new(Nanos(0)), 1_000_000_000);
    let book = |now: u64| load.hot().book(&Dispatch { is_acknowledged: true, ..dispatch(now) }, 70, 70);
    load.set_availability(Availability::Offline);
    load.refused(10, 1000, Nanos(5));
    load.set_availability(Availability::Ready);
    assert_eq!((load.rank(), load.is_passed_over()), (0, false), "half of twenty");
    load.refused(1, 100, Nanos(second));
    assert_eq!((load.rank(), load.availability(), load.is_passed_over()), (1, Availability::Ready, true));
    let snapshot = load.snapshot();
    assert_eq!((snapshot.rejected_lately, snapshot.is_suspect), (11, true));
    let rank_at = |now: u64| {
        load.consider_trial(now);
        load.rank()
    };
    assert_eq!([second, second * 19 / 10, second * 21 / 10].map(rank_at), [1, 1, 0]);
    book(second * 21 / 10);
    assert_eq!(rank_at(second * 22 / 10), 1, "one message at a time");
    load.refused(1, 100, Nanos(second * 22 / 10));
    assert_eq!([second * 41 / 10, second * 43 / 10].map(rank_at), [1, 0], "twice the pause");
    // One after the other, from the first that it accepts.
    for accepted in 1..=10 {
        assert_eq!(load.rank(), 0, "{accepted}");
        book(second * 5);
        load.acknowledged(&Acknowledged::one(Nanos(second * 5), 100, Nanos(second * 5)));
        assert_eq!(load.snapshot().is_suspect, accepted < 10, "{accepted}");
    }
    load.refused(20, 100, Nanos(second * 6));
    load.set_availability(Availability::Offline);
    assert_eq!((load.rank(), load.availability()), (3, Availability::Offline));
    load.connected(Nanos(second * 7));
    load.set_availability(Availability::Ready);
    assert_eq!((load.rank(), load.snapshot().rejected_lately), (0, 0));
}

/// However fast it refuses them.
#[test]
fn refusals_show_no_speed() {
    let learned = |refuses: bool| {
        let load = MemberLoad::new(Nanos(0));
        for number in 0..40 {
            let now = number * 10_000_000;
            load.hot().book(&Dispatch { is_acknowledged: true, ..dispatch(now) }, 70, 70);
            if refuses {
                load.hot().book(&Dispatch { is_acknowledged: true, ..dispatch(now) }, 70, 70);
                load.refused(1, 100, Nanos(now + 1_000));
            }
            load.acknowledged(&Acknowledged::one(Nanos(now), 100, Nanos(now + 5_000_000)));
        }
        load.learned_speed()
    };
    assert_eq!(learned(true), learned(false));
    assert_eq!(learned(true), Some(Duration::from_millis(5)));
}

#[test]
fn member_is_passed_over_while_its_every_slot_is_overdue() {
    let load = MemberLoad::new(Nanos(0));
    load.set_concurrency(2);
    let slots = load.limit(&Rules::default()).expect("it is not known") as u32;
    load.set_overdue(slots - 1);
    assert_eq!((load.rank(), load.can_begin()), (0, true));
    load.set_overdue(slots);
    assert_eq!((load.rank(), load.can_begin(), load.is_passed_over()), (1, false, true));
    assert_eq!((load.availability(), load.snapshot().overdue), (Availability::Ready, slots));
    load.set_overdue(slots - 1);
    assert_eq!(load.rank(), 0, "a late acknowledgement came");
    load.set_overdue(slots);
    load.acknowledged(&Acknowledged::one(Nanos(0), 100, Nanos(30_000_000)));
    assert_eq!(load.rank(), 0, "it has one more slot");
    load.set_overdue(slots + 1);
    assert_eq!(load.rank(), 1);
    load.connected(Nanos(30_000_001));
    assert_eq!((load.rank(), load.snapshot().overdue), (0, 0));
}

#[test]
fn round_trips_are_kept_in_steps() {
    let load = MemberLoad::new(Nanos(0));
    let cases = [(0, 0), (32_767, 0), (32_768, 32_768), (1_000_000, 983_040), (u64::MAX, 2_147_450_880)];
    for (given_ns, kept_ns) in cases {
        load.set_round_trip(Duration::from_nanos(given_ns));
        assert_eq!(load.snapshot().round_trip, Duration::from_nanos(kept_ns));
    }
}

#[test]
fn table_3_events() {
    let load = MemberLoad::new(Nanos(5));
    let fresh = LoadSnapshot {
        concurrency: 0,
        outstanding_maximum: Some(1),
        lesson: Lesson::default(),
        rejected_lately: 0,
        is_suspect: false,
        overdue: 0,
        messages_in_queue: 0,
        sent_since_report: 0,
        processing_time: Duration::ZERO,
        reported_at: Nanos(5),
        sent_at: Nanos(5),
        sent: 0,
        outstanding_messages: 0,
        outstanding_bytes: 0,
        effective_processing_time: Duration::ZERO,
        late_reports: 0,
        taken_back: 0,
        is_draining: false,
        round_trip: Duration::ZERO,
    };
    assert_eq!(load.snapshot(), fresh);

    load.hot().book(&dispatch(7), 0, 0);
    load.hot().book(&dispatch(8), 0, 0);
    assert_eq!(
        load.snapshot(),
        LoadSnapshot {
            sent_since_report: 2,
            sent_at: Nanos(8),
            sent: 2,
            outstanding_messages: 2,
            outstanding_bytes: 200,
            ..fresh
        }
    );

    load.report(&report(3, 25), Nanos(9));
    let reported = LoadSnapshot {
        messages_in_queue: 3,
        sent_since_report: 0,
        processing_time: Duration::from_millis(25),
        reported_at: Nanos(9),
        sent_at: Nanos(8),
        sent: 2,
        outstanding_messages: 2,
        outstanding_bytes: 200,
        effective_processing_time: Duration::from_millis(25),
        ..fresh
    };
    assert_eq!(load.snapshot(), reported);

    load.set_availability(Availability::Full);
    load.connected(Nanos(11));
    let connected = LoadSnapshot {
        reported_at: Nanos(11),
        sent_at: Nanos(11),
        messages_in_queue: 0,
        processing_time: Duration::ZERO,
        sent: 0,
        effective_processing_time: Duration::ZERO,
        ..reported
    };
    assert_eq!(load.snapshot(), connected);
    assert_eq!(load.availability(), Availability::Full);
    load.report(&report(0, 40), Nanos(12));
    assert_eq!(load.snapshot().processing_time, Duration::from_millis(40), "the list was emptied too");
}

#[test]
fn t_p_is_the_mean_of_the_last_five_reports_zeros_included() {
    let load = MemberLoad::new(Nanos(0));
    let expected = [(0, 0), (0, 0), (30, 10), (30, 15), (40, 20), (50, 30), (100, 50), (30, 50), (30, 50), (0, 42)];
    for (reported_ms, mean_ms) in expected {
        load.report(&report(0, reported_ms), Nanos(1));
        assert_eq!(load.snapshot().processing_time, Duration::from_millis(mean_ms));
    }
}

#[test]
fn a_report_beyond_the_limits_counts_as_the_limits() {
    let load = MemberLoad::new(Nanos(0));
    load.report(&LoadReport { messages_in_queue: u64::MAX, processing_time: Duration::MAX, draining: false }, Nanos(1));
    assert_eq!(load.snapshot().messages_in_queue, LoadReport::MESSAGES_IN_QUEUE_MAX);
    assert_eq!(load.snapshot().processing_time, LoadReport::PROCESSING_TIME_MAX);
}

#[test]
fn availability_is_what_was_set() {
    let load = MemberLoad::new(Nanos(0));
    assert_eq!(load.availability(), Availability::Ready);
    for availability in [Availability::Full, Availability::Offline, Availability::Ready] {
        load.set_availability(availability);
        assert_eq!(load.availability(), availability);
    }
}

#[test]
fn client_without_reports_keeps_no_evidence() {
    let (quiet, pinging) = (MemberLoad::new(Nanos(7)), MemberLoad::new(Nanos(7)));
    let before = pinging.snapshot();
    (8..20).for_each(|now| pinging.plain_ping(Nanos(now)));
    pinging.unbooked(0, 0, Nanos(20));
    assert!(lock(&pinging.reported.known).0.is_none());
    assert_eq!((pinging.snapshot(), pinging.learned_speed()), (before, None));
    for load in [&quiet, &pinging] {
        load.report(&report(3, 5), Nanos(30));
    }
    assert_eq!(pinging.snapshot(), quiet.snapshot());
    pinging.connected(Nanos(40));
    assert!(lock(&pinging.reported.known).0.is_none());
}
