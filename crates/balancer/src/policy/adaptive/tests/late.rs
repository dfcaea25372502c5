//! Late binding.

use super::*;
use crate::{
    Service,
    group_view::GroupView,
    policy::adaptive::late,
    rules::{LateBinding, Rules},
};

/// A member that acknowledges after 30 ms and told its concurrency.
fn telling(concurrency: u16) -> Arc<MemberLoad> {
    let load = acknowledging(30);
    load.set_concurrency(concurrency);
    load
}

/// A member that has acknowledged each of some messages after 30 ms.
fn regular() -> Arc<MemberLoad> {
    let load = load();
    for message in 0..8 {
        let sent_ms = NOW_MS - 1000 + 100 * message;
        book(&load, sent_ms, true);
        load.acknowledged(&Acknowledged::one(Nanos(sent_ms * MS), 100, Nanos((sent_ms + 30) * MS)));
    }
    assert_eq!(load.snapshot().lesson.service, Service::Regular);
    load
}

/// Slots to which messages go one after the other at `at_ms`, while `waiting` others wait.
fn late_at(loads: &[Arc<MemberLoad>], rules: &Rules, waiting: u64, messages: usize, at_ms: u64) -> Vec<Option<usize>> {
    let (seats, waiting) = (seats(loads), 16 * waiting / loads.len() as u64);
    let group = GroupView::new();
    group.at(Nanos(at_ms * MS), &seats);
    let has_acks = group.has_acks();
    let message = |_| {
        let message = late::Message { view: &view(), rules, has_acks, waiting, now: at_ms * MS };
        let seen = late::choose(&seats, &message, &mut Rng::new(0))?;
        book(&loads[seen.index], at_ms, true);
        Some(seen.index)
    };
    (0..messages).map(message).collect()
}

fn late(loads: &[Arc<MemberLoad>], waiting: u64, messages: usize) -> Vec<Option<usize>> {
    late_at(loads, &Rules::default(), waiting, messages, NOW_MS)
}

#[test]
fn message_waits_until_a_member_can_begin() {
    let loads = [acknowledging(30), telling(2)];
    assert_eq!(late(&loads, 0, 5), [Some(0), Some(1), Some(1), Some(1), None], "one behind two threads");
    loads[0].acknowledged(&Acknowledged::one(Nanos(NOW_MS * MS), 100, Nanos((NOW_MS + 30) * MS)));
    assert_eq!(late(&loads, 0, 2), [Some(0), None]);
}

#[test]
fn unknown_members_are_tried_while_messages_wait() {
    for concurrency in [0, 1] {
        let given = |waiting| {
            let loads = [telling(concurrency), telling(concurrency)];
            late(&loads, waiting, 100).iter().flatten().count()
        };
        let most = if concurrency == 1 { 16 } else { 32 };
        assert_eq!([0, 1, 2, 4, 99].map(given), [2, 4, 8, 16, most], "{concurrency}");
    }
}

#[test]
fn messages_do_not_wait_for_regular_and_for_quick_members() {
    assert_eq!(late(&[regular()], 0, 3), [Some(0); 3], "it is known when it can begin");
    let quick = load();
    quick.acknowledged(&Acknowledged::one(Nanos((NOW_MS * MS) - 300_000), 100, Nanos(NOW_MS * MS)));
    assert_eq!(late(&[quick], 0, 3), [Some(0); 3], "it takes less than a millisecond");
    let far = acknowledging(30);
    far.set_round_trip(Duration::from_millis(5));
    assert_eq!(late(&[far], 0, 3), [Some(0); 3], "it would idle for the way");
}

#[test]
fn rules_decide_whose_limit_counts() {
    let loads = [acknowledging(30), telling(2)];
    let given = |late_binding, concurrency| {
        let rules = Rules { late_binding, concurrency, ..Rules::default() };
        let given = late_at(&loads, &rules, 0, 40, NOW_MS);
        loads.iter().for_each(|load| {
            let messages = load.snapshot().outstanding_messages as u32;
            load.taken_back(messages, 100 * u64::from(messages), Nanos(NOW_MS * MS));
        });
        [0, 1].map(|index| given.iter().filter(|&&given| given == Some(index)).count())
    };
    assert_eq!(given(LateBinding::Learn, 0), [1, 3]);
    assert_eq!(given(LateBinding::Learn, 2), [3, 3], "the group's figure for members that tell nothing");
    let told = given(LateBinding::Told, 0);
    assert!(told[0] > 1 && told[1] == 3, "{told:?}");
    assert_eq!(given(LateBinding::Off, 0).iter().sum::<usize>(), 40);
}

#[test]
fn member_without_acknowledgements_gets_few_messages() {
    for (receive_maximum, waiting, round_trip_ms) in [(0, 0, 0), (0, 99, 0), (500, 0, 0), (500, 99, 0), (0, 99, 50)] {
        let silent = load();
        silent.set_receive_maximum(receive_maximum);
        silent.set_round_trip(Duration::from_millis(round_trip_ms));
        let loads = [telling(1), silent];
        let given = |at_ms| {
            let given = late_at(&loads, &Rules::default(), waiting, 1000, at_ms);
            given.iter().filter(|&&index| index == Some(1)).count()
        };
        let case = format!("{receive_maximum} {waiting} {round_trip_ms}");
        assert_eq!(given(NOW_MS), if waiting == 0 { 1 } else { 8 }, "{case}");
        for second in 1..3_600 {
            for message in 0..loads[0].snapshot().outstanding_messages {
                // Its work is irregular, so that it has a limit.
                let work_ms = 10 + 50 * (second % 2);
                let at = (NOW_MS + second * 1_000) * MS - 1000 + message;
                loads[0].acknowledged(&Acknowledged::one(Nanos(at - work_ms * MS), 100, Nanos(at)));
            }
            given(NOW_MS + second * 1_000);
        }
        assert!(loads[1].snapshot().outstanding_messages <= 8, "{case}: {:?}", loads[1].snapshot());
    }
}

/// A random few are compared first.
#[test]
fn message_finds_the_free_members_of_a_large_group() {
    for busy in [0, 500, 999] {
        let loads: Vec<_> = (0..1000).map(|_| acknowledging(30)).collect();
        loads.iter().take(busy).for_each(|load| book(load, NOW_MS, true));
        let given: Vec<usize> = late(&loads, 0, 1000 - busy).into_iter().flatten().collect();
        assert!(given.iter().all(|&index| index >= busy), "{busy}: {given:?}");
        let free: std::collections::BTreeSet<_> = given.iter().collect();
        assert_eq!(free.len(), 1000 - busy, "each gets one");
        assert_eq!(late(&loads, 0, 1), [None]);
    }
}

/// It may be the way of the only members: they collect messages.
#[test]
fn members_get_more_by_and_by_if_none_acknowledges() {
    let loads = [load(), load()];
    loads[0].set_receive_maximum(10);
    let seats = seats(&loads);
    let nothing_known = View { has_evidence: false, ..view() };
    let given = |at_ms: u64| {
        let message = |_| {
            let (view, rules) = (&nothing_known, &Rules::default());
            let message = late::Message { view, rules, has_acks: false, waiting: 72, now: at_ms * MS };
            let seen = late::choose(&seats, &message, &mut Rng::new(0))?;
            book(&loads[seen.index], at_ms, true);
            Some(seen.index)
        };
        (0..1000).map_while(message).count()
    };
    let outstanding = || [0, 1].map(|index: usize| loads[index].snapshot().outstanding_messages);
    assert_eq!((given(NOW_MS), outstanding()), (16, [8, 8]));
    let ms = [250, 499, 500, 1_000, 1_500, 3_500];
    assert_eq!(ms.map(|ms| given(NOW_MS + ms)), [0, 0, 10, 0, 16, 32]);
}

#[test]
fn member_that_collects_messages_gets_them_by_and_by() {
    let given = |collecting: &Arc<MemberLoad>, at_ms| {
        late_at(std::slice::from_ref(collecting), &Rules::default(), 99, 1000, at_ms).iter().flatten().count()
    };
    let collecting = acknowledging(30);
    assert_eq!(given(&collecting, NOW_MS), 16);
    let later = [1_000, 1_100, 3_200, 7_300].map(|ms| given(&collecting, NOW_MS + ms));
    assert_eq!(later, [0, 16, 32, 64]);
    // Who tells the number of its messages waits for no more.
    let telling = telling(3);
    assert_eq!(given(&telling, NOW_MS), 12);
    assert_eq!([2, 4, 8].map(|seconds| given(&telling, NOW_MS + seconds * 1_000)), [0, 0, 0]);
}

/// A thread of it hangs for ever, or it forgot the acknowledgement.
#[test]
fn member_that_holds_an_acknowledgement_back_works_on() {
    let load = acknowledging(30);
    let loads = [Arc::clone(&load)];
    let mut held = Vec::new();
    let (mut given, mut at_ms) = (0, NOW_MS);
    for _ in 0..200 {
        at_ms += 100;
        let slots = late_at(&loads, &Rules::default(), 0, 3, at_ms);
        let count = slots.iter().flatten().count();
        given += count;
        for message in 0..count {
            if held.is_empty() && message == 0 {
                held.push(at_ms);
            } else {
                load.acknowledged(&Acknowledged::one(Nanos(at_ms * MS), 100, Nanos((at_ms + 30) * MS)));
            }
        }
    }
    assert!(given >= 150, "{given}");
    assert!(load.snapshot().outstanding_messages <= 3, "{:?}", load.snapshot());
}

#[test]
fn member_that_hangs_does_not_get_what_others_have_no_room_for() {
    let loads = [acknowledging(30), acknowledging(30)];
    let mut hanging = 0;
    for message in 0..300 {
        let at_ms = NOW_MS + 30 * message;
        for index in late_at(&loads, &Rules::default(), 3, 2, at_ms).into_iter().flatten() {
            hanging += index;
        }
        let messages = loads[0].snapshot().outstanding_messages;
        if messages > 0 {
            loads[0].acknowledged(&Acknowledged::one(Nanos((at_ms - 30) * MS), 100, Nanos((at_ms + 20) * MS)));
        }
    }
    assert!(hanging <= 90, "{hanging} of 600, of which the other member can do half");
}

#[test]
fn messages_beyond_the_receive_maximum_wait_with_the_group() {
    let loads = [regular(), telling(2)];
    loads[0].set_receive_maximum(3);
    let given = late(&loads, 0, 10);
    assert_eq!([0, 1].map(|index| given.iter().filter(|&&given| given == Some(index)).count()), [3, 3], "{given:?}");
    loads[0].set_receive_maximum(MemberLoad::RECEIVE_MAXIMUM_MOST + 1);
    assert_eq!(late(&loads[..1], 0, 2), [Some(0); 2], "a buffer's size");
    loads[0].set_receive_maximum(1);
    assert_eq!(late(&loads[..1], 0, 1), [None], "it has more than that");
}

#[test]
fn unavailable_members_get_no_more_than_their_first_quota() {
    let loads = [telling(1), telling(1)];
    loads.iter().for_each(|load| load.set_availability(Availability::Offline));
    assert_eq!(late(&loads, 0, 4), [Some(0), Some(1), None, None]);
    loads[1].set_availability(Availability::Ready);
    assert_eq!(late(&loads, 0, 1), [None]);
    loads[1].acknowledged(&Acknowledged::one(Nanos(NOW_MS * MS), 100, Nanos((NOW_MS + 30) * MS)));
    assert_eq!(late(&loads, 0, 2), [Some(1), None]);
}

/// It has no message after each refusal, and others are at work.
#[test]
fn member_that_refuses_gets_no_more_than_its_share() {
    let loads = [acknowledging(30), acknowledging(30), load()];
    let refused: u32 = (0..200)
        .map(|ms| {
            let slots = late_at(&loads, &Rules::default(), 100, 10, NOW_MS + ms);
            let refused = slots.iter().flatten().filter(|&&slot| slot == 2).count() as u32;
            loads[2].refused(refused, 100 * u64::from(refused), Nanos((NOW_MS + ms) * MS));
            refused
        })
        .sum();
    assert!(refused <= 40, "{refused} of 2,000: as many as it could work on, and its first ones");
}

/// Nothing is known of the others' speed yet.
#[test]
fn member_that_refuses_at_first_does_not_get_all() {
    let loads = [load(), load(), load()];
    let refused: usize = (0..900)
        .map(|ms| {
            let slots = late_at(&loads, &Rules::default(), 100, 10, NOW_MS + ms);
            let refused = slots.iter().flatten().filter(|&&slot| slot == 2).count();
            loads[2].refused(refused as u32, 100 * refused as u64, Nanos((NOW_MS + ms) * MS));
            refused
        })
        .sum();
    assert!(refused <= 8, "{refused}");
    // No other member could take them.
    let alone = [load()];
    for ms in 0..9 {
        assert_eq!(late(&alone, 0, 1), [Some(0)], "{ms}");
        alone[0].refused(1, 100, Nanos((NOW_MS + ms) * MS));
    }
}

#[test]
fn message_waits_for_no_member_with_every_slot_overdue() {
    let loads = [regular(), acknowledging(30), load()];
    for load in &loads {
        assert!(load.can_begin());
        load.set_overdue(8);
    }
    assert_eq!(late(&loads, 400, 2), [None, None]);
    loads[1].set_overdue(0);
    assert_eq!(late(&loads, 0, 2), [Some(1), None]);
}

/// A suspect gets what waits only if the others are away.
#[test]
fn message_waits_for_others_rather_than_for_a_suspect() {
    let loads = [acknowledging(30), acknowledging(30)];
    loads[1].refused(11, 1100, Nanos(NOW_MS * MS));
    assert_eq!(late(&loads, 0, 2), [Some(0), None]);
    loads[0].set_availability(Availability::Offline);
    assert_eq!(late(&loads, 0, 1), [Some(1)]);
}

/// Its two threads could not begin with them.
#[test]
fn untrue_concurrency_brings_few_messages() {
    let liar = telling(1000);
    let loads = [Arc::clone(&liar), acknowledging(30)];
    assert!(late(&loads, 400, 400).iter().flatten().filter(|&&slot| slot == 0).count() <= 48);
    let liar = telling(1000);
    for round in 0..40 {
        let sent_ms = NOW_MS + 1000 * round;
        let together = 1 + round % 2 * 3;
        (0..together).for_each(|_| book(&liar, sent_ms, true));
        for message in 0..together {
            let work_ms = [20, 50, 90][(round % 3) as usize];
            let at_ms = sent_ms + work_ms * (1 + message / 2) + message % 2;
            liar.acknowledged(&Acknowledged::one(Nanos(sent_ms * MS), 100, Nanos(at_ms * MS)));
        }
    }
    let learnt = liar.snapshot();
    assert_eq!(learnt.lesson.service, Service::Parallel, "{learnt:?}");
    assert!(learnt.outstanding_maximum.is_some_and(|most| most <= 8), "{learnt:?}");
}

#[test]
fn member_that_is_late_gets_no_more_than_a_few() {
    for hangs in [regular(), acknowledging(30)] {
        let loads = [hangs, acknowledging(30)];
        for message in 0..600 {
            let at_ms = NOW_MS + 30 * message;
            late_at(&loads, &Rules::default(), 3, 2, at_ms);
            for _ in 0..loads[1].snapshot().outstanding_messages {
                let at = Nanos((at_ms + 20) * MS);
                loads[1].acknowledged(&Acknowledged::one(Nanos((at_ms - 10 * (message % 3)) * MS), 100, at));
            }
        }
        let late = loads[0].snapshot();
        assert!(late.outstanding_messages <= 8, "{late:?}");
    }
}
