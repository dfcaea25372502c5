use std::{sync::Arc, time::Duration};

use super::{usual::idle, *};
use crate::{
    acknowledged::Acknowledged,
    load::{Availability, MemberLoad},
    nanos::Nanos,
    report::LoadReport,
    speed,
};

const MS: u64 = 1_000_000;
const NOW_MS: u64 = 100_000;

/// A group whose mean is 32 ms: the floor is 2 ms.
const VIEW: View =
    View { mean_ns: 32 * MS, class: 0, has_evidence: true, has_unused: true, is_quiet: false, has_concurrency: false };

fn view() -> View {
    View { class: speed::class(VIEW.mean_ns), ..VIEW }
}

/// Creates a member that connected a moment ago, so that it was not idle for long.
fn load() -> Arc<MemberLoad> {
    Arc::new(MemberLoad::new(Nanos((NOW_MS - 900) * MS)))
}

/// Creates a member that reported a moment ago.
fn reporting(messages_in_queue: u64, processing_ms: u64) -> Arc<MemberLoad> {
    let load = load();
    let processing_time = Duration::from_millis(processing_ms);
    load.report(&LoadReport { messages_in_queue, processing_time, draining: false }, Nanos(NOW_MS * MS));
    load
}

/// Creates a member that acknowledges after `processing_ms`.
fn acknowledging(processing_ms: u64) -> Arc<MemberLoad> {
    let load = load();
    load.acknowledged(&Acknowledged::one(Nanos((NOW_MS - processing_ms) * MS), 100, Nanos(NOW_MS * MS)));
    load
}

fn book(load: &MemberLoad, at_ms: u64, is_acknowledged: bool) {
    let dispatch = Dispatch { at: Nanos(at_ms * MS), bytes: 100, is_acknowledged, ..Dispatch::default() };
    let service_ns = weigh(load.hot(), &view(), dispatch.at.0).service;
    load.hot().book(&dispatch, service_ns, VIEW.mean_ns);
}

/// Returns wait, penalty, lateness and service time in ms.
fn weighed(load: &MemberLoad, at_ms: u64) -> [u64; 4] {
    let Weight { wait, penalty, late, service } = weigh(load.hot(), &view(), at_ms * MS);
    [wait, penalty, late, service].map(|ns| ns / MS)
}

fn seats(loads: &[Arc<MemberLoad>]) -> Seats {
    let turns: Vec<u64> = (0..loads.len() as u64).collect();
    Seats::new(loads.iter().map(Arc::clone).collect(), &turns)
}

fn chosen(loads: &[Arc<MemberLoad>], at_ms: u64, rng: &mut Rng) -> usize {
    let dispatch = Dispatch { at: Nanos(at_ms * MS), ..Dispatch::default() };
    let seen = choose(&seats(loads), &view(), &dispatch, rng);
    seen.expect("there are seats").index
}

#[test]
fn booking_adds_wait_that_passes_with_time() {
    let load = reporting(0, 30);
    assert_eq!(weighed(&load, NOW_MS)[0], 0);
    book(&load, NOW_MS, false);
    book(&load, NOW_MS, false);
    load.written(2, 200, false, Nanos(NOW_MS * MS));
    assert_eq!(weighed(&load, NOW_MS)[0], 75, "two messages and half of one as a margin");
    assert_eq!(weighed(&load, NOW_MS + 25)[0], 50);
    assert_eq!(weighed(&load, NOW_MS + 99)[0], 0);
}

#[test]
fn network_delay_overlaps_with_work() {
    let load = acknowledging(30);
    load.set_round_trip(Duration::from_millis(100));
    book(&load, NOW_MS, true);
    assert_eq!(weighed(&load, NOW_MS)[0], 30, "a message sent now comes when this one comes, and waits for it");
}

#[test]
fn slow_classes_have_penalties_and_unverified_speed_no_bonus() {
    let penalties = |of: fn(u64) -> Arc<MemberLoad>| [8, 32, 64, 256].map(|ms| weighed(&of(ms), NOW_MS)[1]);
    assert_eq!(penalties(acknowledging), [0, 2, 4, 16]);
    assert_eq!(penalties(|ms| reporting(0, ms)), [2, 2, 4, 16]);
    let extremes = [1, speed::MAX_NS].map(|ns| class_penalty(speed::class(ns), &view()));
    assert!(extremes[0] < MS && extremes[1] > 10_000 * MS, "{extremes:?}");
}

#[test]
fn processing_time_is_at_least_a_sixteenth_of_the_mean() {
    assert_eq!(weighed(&reporting(0, 1), NOW_MS)[3], 2);
    assert_eq!(weighed(&reporting(0, 3), NOW_MS)[3], 3);
}

#[test]
fn overdue_member_falls_behind() {
    let load = acknowledging(30);
    book(&load, NOW_MS, true);
    book(&load, NOW_MS, true);
    // The first acknowledgement was due after 30 ms.
    assert_eq!(weighed(&load, NOW_MS + 30), [30, 2, 0, 30]);
    assert_eq!(weighed(&load, NOW_MS + 50)[2], 20);
    assert_eq!(weighed(&load, NOW_MS + 50)[0], 10 + 40);
    assert_eq!(weighed(&load, NOW_MS + 530)[0], 530, "it had 30 ms left when it fell silent, 500 ms ago");
}

#[test]
fn member_owing_first_acknowledgement_is_late_despite_reports() {
    let load = load();
    book(&load, NOW_MS - 500, true);
    load.report(&LoadReport { processing_time: Duration::from_micros(1), ..LoadReport::default() }, Nanos(NOW_MS * MS));
    assert_eq!(weighed(&load, NOW_MS)[2], 500 - 2 * 32);
    load.acknowledged(&Acknowledged::one(Nanos((NOW_MS - 500) * MS), 100, Nanos(NOW_MS * MS)));
    assert_eq!(weighed(&load, NOW_MS)[2], 0);
}

#[test]
fn unsent_messages_count_as_unfinished() {
    let load = reporting(0, 30);
    (0..3).for_each(|_| book(&load, NOW_MS, false));
    assert_eq!(weighed(&load, NOW_MS + 500)[0], 90);
    load.written(2, 200, true, Nanos((NOW_MS + 500) * MS));
    assert_eq!(weighed(&load, NOW_MS + 500)[0], 30);
    load.written(1, 100, false, Nanos((NOW_MS + 500) * MS));
    assert_eq!(weighed(&load, NOW_MS + 500)[0], 0);
}

#[test]
fn newcomer_is_held_back_for_its_first_messages() {
    let [newcomer, veteran] = [load(), load()];
    newcomer.hot().begin_as_newcomer();
    let penalties = |load: &MemberLoad| -> Vec<u64> {
        let penalty = || {
            let [_, penalty, _, service] = weighed(load, NOW_MS);
            assert_eq!(service, 32);
            book(load, NOW_MS, true);
            penalty
        };
        (0..30).map(|_| penalty()).collect()
    };
    let held_back = penalties(&newcomer);
    assert_eq!((&held_back[..24], &held_back[24..]), (&[16; 24][..], &[2; 6][..]));
    assert_eq!(penalties(&veteran), [2; 30], "it joined when no speed was known");
}

#[test]
fn silent_member_costs_twice_after_many_messages() {
    let service = |load: &MemberLoad, sent: usize| {
        (0..sent).for_each(|_| book(load, NOW_MS, false));
        weighed(load, NOW_MS)[3]
    };
    let [silent, reporting] = [load(), reporting(0, 0)];
    assert_eq!([service(&silent, 255), service(&silent, 1)], [32, 64]);
    assert_eq!(service(&reporting, 300), 32, "it has finished nothing yet");
}

#[test]
fn without_evidence_only_unsent_messages_count() {
    let blind = View { has_evidence: false, ..view() };
    let load = load();
    book(&load, NOW_MS, false);
    load.written(1, 100, false, Nanos(NOW_MS * MS));
    assert_eq!(weigh(load.hot(), &blind, NOW_MS * MS).wait, 0);
    assert!(weigh(load.hot(), &view(), NOW_MS * MS).wait > 0);
}

#[test]
fn lagging_member_is_avoided_without_other_evidence() {
    let blind = View { has_evidence: false, ..view() };
    let [lagging, other] = [load(), load()];
    lagging.lags(4, Duration::from_millis(20), 100, Nanos(NOW_MS * MS));
    let waits = |at_ms: u64| [&lagging, &other].map(|load| weigh(load.hot(), &blind, at_ms * MS).wait / MS);
    assert_eq!([waits(NOW_MS), waits(NOW_MS + 400), waits(NOW_MS + 500)], [[500, 0], [100, 0], [0, 0]]);
    book(&lagging, NOW_MS + 500, false);
    lagging.written(1, 100, false, Nanos((NOW_MS + 500) * MS));
    assert_eq!(waits(NOW_MS + 500), [7, 0], "it is given as much as it reads");
    lagging.caught_up(4, Duration::from_millis(20), Nanos((NOW_MS + 500) * MS));
    assert_eq!(waits(NOW_MS + 500), [0, 0]);
}

#[test]
fn speed_of_lagging_member_does_not_apply_to_others() {
    let [lagging, other] = [load(), load()];
    lagging.lags(0, Duration::from_secs(1), 100, Nanos(NOW_MS * MS));
    (0..10).for_each(|_| book(&other, NOW_MS, false));
    let slow = View {
        mean_ns: 1_000 * MS,
        class: speed::class(1_000 * MS),
        has_evidence: false,
        has_unused: false,
        is_quiet: false,
        has_concurrency: false,
    };
    let waits = [&lagging, &other].map(|load| weigh(load.hot(), &slow, NOW_MS * MS).wait / MS);
    assert_eq!(waits, [1_000, 625]);
}

#[test]
fn large_group_takes_turns_if_few_members_are_ready() {
    let loads: Vec<_> = (0..100).map(|_| load()).collect();
    loads[3..].iter().for_each(|load| load.set_availability(Availability::Offline));
    let (seats, blind) = (seats(&loads), View { has_evidence: false, ..view() });
    let (mut rng, mut counts) = (Rng::new(5), [0; 3]);
    for _ in 0..3_000 {
        let dispatch = Dispatch { at: Nanos(NOW_MS * MS), ..Dispatch::default() };
        let seen = choose(&seats, &blind, &dispatch, &mut rng).expect("there are seats");
        end_turn(&seats, seen);
        counts[seen.index] += 1;
    }
    assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
}

#[test]
fn pickers_of_an_unknown_large_group_choose_different_seats() {
    let loads: Vec<_> = (0..100).map(|_| load()).collect();
    let (seats, unknown) = (seats(&loads), crate::group_view::GroupView::new().latest());
    let (mut rng, dispatch) = (Rng::new(5), Dispatch::default());
    let turns = seats.peek_turn();
    let mut chosen: Vec<_> = (0..100)
        .map(|_| {
            // No message is booked between a choice and the next one.
            let previewed = preview(&seats, &unknown, &dispatch, &mut rng).expect("there are seats");
            let seen = choose(&seats, &unknown, &dispatch, &mut rng).expect("there are seats");
            assert_eq!(previewed, seen);
            end_turn(&seats, seen);
            seen.index
        })
        .collect();
    assert_eq!(seats.peek_turn(), turns + 100);
    chosen.sort_unstable();
    assert_eq!(chosen, (0..100).collect::<Vec<_>>());
}

#[test]
fn least_wait_is_chosen_and_ties_by_turn() {
    let loads = [reporting(3, 30), reporting(1, 30), reporting(1, 30), reporting(2, 30)];
    assert_eq!(chosen(&loads, NOW_MS, &mut Rng::new(1)), 1);
    assert_eq!(chosen(&loads, NOW_MS + 500, &mut Rng::new(1)), 0, "all are idle");
    loads[0].set_availability(Availability::Full);
    assert_eq!(chosen(&loads, NOW_MS + 500, &mut Rng::new(1)), 1);
    loads.iter().for_each(|load| load.set_availability(Availability::Offline));
    loads[3].set_availability(Availability::Full);
    assert_eq!(chosen(&loads, NOW_MS + 500, &mut Rng::new(1)), 3);
}

#[test]
fn a_slow_member_is_tried_again_after_a_pause() {
    let loads = [acknowledging(30), acknowledging(256)];
    let after = |load: &MemberLoad, ms: u64| weighed(load, NOW_MS + ms)[1];
    book(&loads[1], NOW_MS, true);
    loads[1].acknowledged(&Acknowledged::one(Nanos(NOW_MS * MS), 100, Nanos((NOW_MS + 256) * MS)));
    book(&loads[0], NOW_MS, true);
    loads[0].acknowledged(&Acknowledged::one(Nanos(NOW_MS * MS), 100, Nanos((NOW_MS + 30) * MS)));
    assert_eq!((after(&loads[1], 4_900), after(&loads[1], 5_100)), (16, 0));
    assert_eq!(after(&loads[0], 5_100), 2, "who is not slow has no need of it");
    assert_eq!(chosen(&loads, NOW_MS + 4_900, &mut Rng::new(1)), 0);
    assert_eq!(chosen(&loads, NOW_MS + 5_100, &mut Rng::new(1)), 1);
    book(&loads[1], NOW_MS + 5_100, true);
    assert_eq!(after(&loads[1], 5_200), 16, "one message at a time");
}

#[test]
fn large_group_chooses_a_good_member_from_a_sample() {
    let loads: Vec<_> = (0..1_000).map(|index| reporting(index % 100, 30)).collect();
    let mut rng = Rng::new(9);
    let queues: Vec<usize> = (0..1_000).map(|_| chosen(&loads, NOW_MS, &mut rng) % 100).collect();
    let mean = queues.iter().sum::<usize>() as f64 / 1_000.0;
    assert!((4.0..8.0).contains(&mean), "the best of 16 is at 100/17: {mean}");
    // If none of the few is ready, all members are compared.
    loads.iter().for_each(|load| load.set_availability(Availability::Full));
    loads[777].set_availability(Availability::Ready);
    assert!((0..100).all(|_| chosen(&loads, NOW_MS, &mut rng) == 777));
}

#[test]
fn extremes_do_not_overflow() {
    let load = acknowledging(30);
    for at in [0, 1, NOW_MAX_NS, u64::MAX] {
        let dispatch = Dispatch { at: Nanos(at), bytes: u32::MAX, is_acknowledged: true, ..Dispatch::default() };
        for _ in 0..3 {
            load.hot().book(&dispatch, u64::MAX / 2, u64::MAX / 2);
            for now in [0, 1, NOW_MAX_NS, u64::MAX] {
                weigh(load.hot(), &view(), now);
            }
        }
    }
}

/// Creates a member of any kind: fast or slow, known or unknown, late, with unsent messages, full, draining.
fn anybody(rng: &mut Rng) -> Arc<MemberLoad> {
    let mut chance = |one_in: usize| rng.below(one_in) == 0;
    let load = Arc::new(MemberLoad::new(Nanos((NOW_MS - if chance(6) { 9_000 } else { 900 }) * MS)));
    if chance(2) {
        load.set_round_trip(Duration::from_millis(1 + chance(3) as u64 * 70));
    }
    if chance(2) {
        let sent_at = NOW_MS - [8, 30, 45, 200][usize::from(chance(2)) + 2 * usize::from(chance(2))];
        load.acknowledged(&Acknowledged::one(Nanos(sent_at * MS), 100, Nanos((NOW_MS - 5) * MS)));
    }
    if chance(2) {
        let processing_time =
            Duration::from_millis([0, 7, 31, 60][usize::from(chance(2)) + 2 * usize::from(chance(2))]);
        let messages_in_queue = u64::from(chance(2)) + u64::from(chance(3));
        let report = LoadReport { messages_in_queue, processing_time, draining: chance(20) };
        load.report(&report, Nanos((NOW_MS - 3) * MS));
    }
    let (messages, is_acknowledged) = (u32::from(chance(2)) + u32::from(chance(2)), chance(2));
    (0..messages).for_each(|_| book(&load, NOW_MS - if chance(2) { 90 } else { 1 }, is_acknowledged));
    if chance(2) {
        load.written(messages, 0, false, Nanos(NOW_MS * MS));
    }
    if chance(8) {
        load.set_availability(Availability::Full);
    }
    if chance(4) {
        load.set_concurrency(1 + 4 * u16::from(chance(2)));
    }
    load
}

#[test]
fn usual_scan_agrees_with_full_scan() {
    let mut rng = Rng::new(3);
    let mut confirmed = 0;
    for round in 0..20_000 {
        let seats = seats(&(0..2 + rng.below(20)).map(|_| anybody(&mut rng)).collect::<Vec<_>>());
        let (has_evidence, has_unused, is_quiet) = (round % 4 > 0, round % 3 > 0, round % 5 == 0);
        let has_concurrency = round % 7 == 0;
        let view = View { has_evidence, has_unused, is_quiet, has_concurrency, ..view() };
        let scan = Scan { view: &view, now: NOW_MS * MS };
        assert_eq!(scan.best_of_all(&seats), scan.weigh_all(&seats));
        if !scan.has_usual_keys() {
            continue;
        }
        let usual = Usual::new(&view, scan.now);
        for load in seats.loads() {
            let key = match (is_quiet, has_unused) {
                (true, _) => usual.key::<{ idle::ANY }>(load.hot()),
                (_, true) => usual.key::<{ idle::UNUSED }>(load.hot()),
                _ => usual.key::<{ idle::NONE }>(load.hot()),
            };
            assert!(key <= scan.key(load.hot()), "{:?}", load.snapshot());
        }
        confirmed += u32::from(scan.confirmed(seats.loads(), usual.least_of_all(&seats)).is_some());
        let sample: [usize; SAMPLE] = std::array::from_fn(|_| rng.below(seats.loads().len()));
        if let Some(seen) = scan.confirmed(seats.loads(), usual.least_of_some(seats.loads(), &sample)) {
            assert_eq!(Some(seen), scan.weigh_some(seats.loads(), &sample));
        }
    }
    assert!((4_000..15_000).contains(&confirmed), "both ways are seen: {confirmed}");
}

#[test]
fn usual_scan_suffices_for_usual_members() {
    let member =
        |index: u64| if index.is_multiple_of(2) { acknowledging(30 + index) } else { reporting(index % 4, 30) };
    let loads: Vec<_> = (0..30).map(member).collect();
    let (seats, view) = (seats(&loads), view());
    for at_ms in [NOW_MS, NOW_MS + 10, NOW_MS + 500] {
        let scan = Scan { view: &view, now: at_ms * MS };
        let least = Usual::new(&view, scan.now).least_of_all(&seats);
        assert!(scan.confirmed(seats.loads(), least).is_some(), "{at_ms}");
    }
}

mod late;
