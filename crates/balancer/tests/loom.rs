//! Models of concurrent use, run through every interleaving (and every value that a relaxed load may return):
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p tenbin-balancer --test loom
//! ```

#![cfg(loom)]

use std::{sync::Arc, time::Duration};

use loom::thread;
use tenbin_balancer::{
    Acknowledged, Availability, Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Policy, Rng, Rules,
};

const NOW: Nanos = Nanos(1_000_000_000);

/// Explores all interleavings with at most `preemptions` forced switches; bugs of this kind need few.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn at(now: Nanos) -> Dispatch {
    Dispatch { at: now, bytes: 100, ..Dispatch::default() }
}

fn load() -> Arc<MemberLoad> {
    Arc::new(MemberLoad::new(Nanos(0)))
}

/// Creates a group of `loads.len()` members, whose values are their ids.
fn group_of(policy: Policy, loads: &[Arc<MemberLoad>]) -> Arc<Group<u64>> {
    let group = Group::new(policy);
    for (id, load) in (0..).zip(loads) {
        group.join(MemberId(id), Arc::clone(load), 1, id, Nanos(0));
    }
    // Compute the group's figures now, so that picks in the models need no scan.
    group.members().explain(&at(NOW));
    Arc::new(group)
}

fn pick(group: &Group<u64>) -> Option<u64> {
    group.members().pick(&at(NOW), &mut Rng::new(5)).map(|member| *member.value())
}

fn sent(load: &MemberLoad) -> u64 {
    load.snapshot().sent_since_report
}

#[test]
fn two_pickers_take_two_turns() {
    for policy in [Policy::RoundRobin, Policy::WeightedRoundRobin, Policy::ThesisScore] {
        model(3, move || {
            let loads = [load(), load()];
            let group = group_of(policy, &loads);
            let other = Arc::clone(&group);
            let picker = thread::spawn(move || pick(&other));
            let mine = pick(&group);
            let theirs = picker.join().expect("a pick does not panic");
            assert!(mine.is_some() && theirs.is_some());
            assert_eq!(sent(&loads[0]) + sent(&loads[1]), 2);
            if policy != Policy::ThesisScore {
                assert_ne!(mine, theirs);
                assert_eq!((sent(&loads[0]), sent(&loads[1])), (1, 1));
            }
        });
    }
}

#[test]
fn three_pickers_count_three_messages() {
    model(2, || {
        let loads = [load(), load()];
        let group = group_of(Policy::RoundRobin, &loads);
        let pickers = [(); 2].map(|()| {
            let group = Arc::clone(&group);
            thread::spawn(move || pick(&group))
        });
        assert!(pick(&group).is_some());
        for picker in pickers {
            assert!(picker.join().expect("a pick does not panic").is_some());
        }
        assert_eq!(sent(&loads[0]) + sent(&loads[1]), 3);
    });
}

#[test]
fn a_report_resets_the_count_and_later_bookings_stay() {
    model(3, || {
        let loads = [load()];
        let group = group_of(Policy::ThesisScore, &loads);
        assert_eq!(pick(&group), Some(0));
        let reporter = {
            let load = Arc::clone(&loads[0]);
            thread::spawn(move || {
                let processing_time = Duration::from_millis(25);
                load.report(&LoadReport { messages_in_queue: 3, processing_time, draining: false }, NOW);
            })
        };
        assert_eq!(pick(&group), Some(0));
        reporter.join().expect("a report does not panic");
        // The report removed the booking before it; the concurrent booking came before or after the report.
        let between = sent(&loads[0]);
        assert!(between <= 1);
        assert_eq!(pick(&group), Some(0));
        let snapshot = loads[0].snapshot();
        assert_eq!(snapshot.sent_since_report, between + 1);
        assert_eq!((snapshot.messages_in_queue, snapshot.processing_time), (3, Duration::from_millis(25)));
        assert_eq!((snapshot.reported_at, snapshot.sent_at), (NOW, NOW));
    });
}

#[test]
fn two_reports_do_not_mix() {
    model(3, || {
        let load = load();
        let reports = [(1, 10), (2, 20)].map(|(messages_in_queue, ms)| {
            (LoadReport { messages_in_queue, processing_time: Duration::from_millis(ms), draining: false }, Nanos(ms))
        });
        let other = {
            let (load, (report, now)) = (Arc::clone(&load), reports[0]);
            thread::spawn(move || load.report(&report, now))
        };
        load.report(&reports[1].0, reports[1].1);
        other.join().expect("a report does not panic");
        let snapshot = load.snapshot();
        assert_eq!(snapshot.processing_time, Duration::from_millis(15));
        assert!([(1, Nanos(10)), (2, Nanos(20))].contains(&(snapshot.messages_in_queue, snapshot.reported_at)));
    });
}

#[test]
fn pick_during_join_and_leave_returns_a_published_member() {
    for policy in Policy::ALL {
        model(3, move || {
            let loads = [load(), load(), load()];
            let group = group_of(policy, &loads[..2]);
            let writer = {
                let (group, load) = (Arc::clone(&group), Arc::clone(&loads[2]));
                thread::spawn(move || {
                    group.join(MemberId(2), load, 1, 2, NOW);
                    assert!(group.leave(MemberId(0)));
                })
            };
            {
                let members = group.members();
                let ids: Vec<_> = members.iter().map(|member| *member.value()).collect();
                assert!([&[0, 1][..], &[0, 1, 2], &[1, 2]].contains(&&ids[..]), "{ids:?}");
                let member = members.pick(&at(NOW), &mut Rng::new(5)).expect("no snapshot is empty");
                assert!(ids.contains(member.value()));
                assert_eq!(sent(&loads[*member.value() as usize]), 1);
            }
            writer.join().expect("a writer does not panic");
            let members = group.members();
            assert!(members.iter().map(|member| *member.value()).eq([1, 2]));
            assert_eq!(loads.iter().map(|load| sent(load)).sum::<u64>(), 1);
        });
    }
}

#[test]
fn writers_do_not_lose_each_others_members() {
    model(3, || {
        let group = group_of(Policy::RoundRobin, &[load()]);
        let writer = {
            let group = Arc::clone(&group);
            thread::spawn(move || group.join(MemberId(1), load(), 1, 1, NOW))
        };
        assert!(group.leave(MemberId(0)));
        group.join(MemberId(2), load(), 1, 2, NOW);
        writer.join().expect("a writer does not panic");
        assert_eq!(group.len(), 2);
        let first = pick(&group);
        assert_ne!(pick(&group), first);
    });
}

#[test]
fn pick_during_report_and_leave_loses_no_message() {
    model(2, || {
        let loads = [load(), load()];
        let group = group_of(Policy::ThesisScore, &loads);
        let changer = {
            let (group, load) = (Arc::clone(&group), Arc::clone(&loads[1]));
            thread::spawn(move || {
                let processing_time = Duration::from_nanos(1);
                load.report(&LoadReport { messages_in_queue: 9_000, processing_time, draining: false }, NOW);
                load.set_availability(Availability::Full);
                assert!(group.leave(MemberId(1)));
            })
        };
        let mut picked = [0, 0];
        picked[pick(&group).expect("a member stays") as usize] += 1;
        changer.join().expect("a writer does not panic");
        assert_eq!(sent(&loads[0]), picked[0], "nothing is lost where nobody reports");
        assert!(sent(&loads[1]) <= picked[1]);
        assert_eq!(pick(&group), Some(0));
    });
}

const STEP: Duration = Duration::from_millis(10);

/// Returns the wait of the group's only member, in steps.
fn wait_steps(group: &Group<u64>, now: Nanos) -> u128 {
    let wait = group.members().explain(&at(now))[0].predicted_wait;
    wait.as_nanos() / STEP.as_nanos()
}

/// Returns the instant `steps` steps after `NOW`.
fn after(steps: u64) -> Nanos {
    Nanos(NOW.0 + steps * STEP.as_nanos() as u64)
}

fn outstanding(load: &MemberLoad) -> u64 {
    load.snapshot().outstanding_messages
}

#[test]
fn two_bookings_move_the_clock_twice() {
    model(2, || {
        let loads = [load()];
        loads[0].assume_speed(STEP);
        let group = group_of(Policy::Adaptive, &loads);
        let other = Arc::clone(&group);
        let picker = thread::spawn(move || pick(&other));
        assert_eq!(pick(&group), Some(0));
        assert_eq!(picker.join().expect("a pick does not panic"), Some(0));
        assert_eq!((wait_steps(&group, NOW), outstanding(&loads[0]), sent(&loads[0])), (2, 2, 2));
    });
}

#[test]
fn booking_during_report_keeps_the_clock_in_bounds() {
    model(2, || {
        let loads = [load()];
        loads[0].assume_speed(STEP);
        let group = group_of(Policy::Adaptive, &loads);
        let other = Arc::clone(&group);
        let picker = thread::spawn(move || pick(&other));
        loads[0].report(&LoadReport { messages_in_queue: 1, processing_time: STEP, draining: false }, NOW);
        assert_eq!(picker.join().expect("a pick does not panic"), Some(0));
        assert_eq!(outstanding(&loads[0]), 1);
        // The report means one or two; the booking came before it, or adds one.
        let steps = wait_steps(&group, NOW);
        assert!((1..=3).contains(&steps), "{steps}");
        assert_eq!(pick(&group), Some(0));
        assert_eq!(wait_steps(&group, NOW), steps + 1);
    });
}

#[test]
fn booking_during_acknowledgement_is_counted() {
    model(2, || {
        let loads = [load()];
        loads[0].assume_speed(STEP);
        let group = group_of(Policy::Adaptive, &loads);
        assert_eq!(pick(&group), Some(0));
        let other = Arc::clone(&group);
        let picker = thread::spawn(move || pick(&other));
        loads[0].acknowledged(&Acknowledged::one(Nanos(NOW.0 - STEP.as_nanos() as u64), 100, NOW));
        assert_eq!(picker.join().expect("a pick does not panic"), Some(0));
        assert_eq!((outstanding(&loads[0]), sent(&loads[0])), (1, 2));
        // At worst, F lacks the concurrent booking, or still has the completed message.
        assert!(wait_steps(&group, NOW) <= 2);
        assert_eq!(pick(&group), Some(0));
        loads[0].acknowledged(&Acknowledged::one(NOW, 100, after(1)));
        assert_eq!((wait_steps(&group, after(1)), outstanding(&loads[0])), (1, 1));
        loads[0].acknowledged(&Acknowledged::one(NOW, 100, after(2)));
        assert_eq!((wait_steps(&group, after(2)), outstanding(&loads[0])), (0, 0));
    });
}

/// Two of the three writers of one byte: the client's queue and its acknowledgements.
#[test]
fn findings_and_availability_do_not_undo_each_other() {
    model(3, || {
        let load = load();
        load.refused(10, 1000, NOW);
        let queue = {
            let load = Arc::clone(&load);
            thread::spawn(move || {
                load.set_availability(Availability::Full);
                load.set_availability(Availability::Ready);
            })
        };
        load.refused(1, 100, after(1));
        load.set_overdue(1);
        queue.join().expect("it does not panic");
        let snapshot = load.snapshot();
        assert_eq!((snapshot.is_suspect, snapshot.rejected_lately, snapshot.overdue), (true, 11, 1));
        assert_eq!(load.availability(), Availability::Ready);
        assert!(load.is_passed_over());
    });
}

/// The third writer: a scan of the client's group, which begins a trial.
#[test]
fn findings_and_scans_do_not_undo_each_other() {
    model(3, || {
        let load = load();
        load.refused(11, 1000, NOW);
        let scan = {
            let group = Group::new(Policy::RoundRobin);
            group.join(MemberId(0), Arc::clone(&load), 1, 0_u64, Nanos(0));
            // Two seconds later the trial is due.
            thread::spawn(move || group.members().pick(&at(after(200)), &mut Rng::new(5)).is_some())
        };
        load.set_availability(Availability::Full);
        load.set_overdue(8);
        assert!(scan.join().expect("it does not panic"));
        assert_eq!(load.availability(), Availability::Full);
        let snapshot = load.snapshot();
        assert_eq!((snapshot.is_suspect, snapshot.overdue), (true, 8));
        assert!(load.is_passed_over(), "stuck, whatever the trial");
        load.set_overdue(0);
        assert!(!load.is_passed_over(), "its trial has begun");
    });
}

/// Computes the group's figures, so that picks in a model need no scan; another model covers the scan.
fn take_stock(group: &Group<u64>) {
    group.members().explain(&at(NOW));
}

#[test]
fn two_pickers_of_one_publisher_stick_to_one_member() {
    model(2, || {
        let group = group_of(Policy::Sticky, &[load(), load()]);
        // Two seeds that draw different members.
        let pick = |group: &Group<u64>, seed| {
            let dispatch = Dispatch { publisher: 7, ..at(NOW) };
            group.members().pick(&dispatch, &mut Rng::new(seed)).map(|member| *member.value())
        };
        take_stock(&group);
        let other = Arc::clone(&group);
        let picker = thread::spawn(move || pick(&other, 1));
        let mine = pick(&group, 4);
        let theirs = picker.join().expect("a pick does not panic");
        assert!(mine.is_some());
        assert_eq!(mine, theirs);
        assert_eq!(pick(&group, 2), mine);
    });
}

/// Creates a group of two members that keeps the order of keys, and a message with a key.
fn ordered() -> (Arc<Group<u64>>, [Arc<MemberLoad>; 2], Dispatch) {
    let loads = [load(), load()];
    let group = group_of(Policy::RoundRobin, &loads);
    group.set_rules(Rules {
        policy: Policy::RoundRobin,
        is_ordered: true,
        may_break_order: true,
        shadow: None,
        ..Rules::default()
    });
    take_stock(&group);
    (group, loads, Dispatch { is_acknowledged: true, key: Some(7), ..at(NOW) })
}

fn pick_for(group: &Group<u64>, dispatch: &Dispatch) -> usize {
    *group.members().pick(dispatch, &mut Rng::new(5)).expect("two members").value() as usize
}

#[test]
fn two_pickers_of_one_key_follow_each_other() {
    model(2, || {
        let (group, loads, dispatch) = ordered();
        let other = Arc::clone(&group);
        let picker = thread::spawn(move || pick_for(&other, &dispatch));
        let mine = pick_for(&group, &dispatch);
        assert_eq!(picker.join().expect("a pick does not panic"), mine);
        assert_eq!(pick_for(&group, &dispatch), mine);
        let outstanding = loads.map(|load| load.snapshot().outstanding_messages);
        assert_eq!((outstanding[mine], outstanding[1 - mine]), (3, 0), "what was taken back is gone");
    });
}

#[test]
fn completion_during_pick_frees_only_its_own_key() {
    model(2, || {
        let (group, loads, dispatch) = ordered();
        let done = move |group: &Group<u64>, loads: &[Arc<MemberLoad>; 2], member: usize| {
            loads[member].acknowledged(&Acknowledged::one(NOW, 100, NOW));
            group.members().key_done(7, MemberId(member as u64));
        };
        let first = pick_for(&group, &dispatch);
        let acknowledging = {
            let (group, loads) = (Arc::clone(&group), loads.clone());
            thread::spawn(move || done(&group, &loads, first))
        };
        // Before or after the acknowledgement.
        let second = pick_for(&group, &dispatch);
        acknowledging.join().expect("an acknowledgement does not panic");
        assert_eq!(pick_for(&group, &dispatch), second);
        (0..2).for_each(|_| done(&group, &loads, second));
        assert_eq!(pick_for(&group, &dispatch), 1 - second, "all done with: the oldest turn");
    });
}

#[test]
fn free_keys_during_pick_keeps_messages_together() {
    model(2, || {
        let (group, loads, dispatch) = ordered();
        let first = pick_for(&group, &dispatch);
        loads[first].report(&LoadReport { draining: true, ..LoadReport::default() }, NOW);
        let picker = {
            let group = Arc::clone(&group);
            thread::spawn(move || pick_for(&group, &dispatch))
        };
        let freed = group.members().free_keys(MemberId(first as u64), [(7, true)], NOW);
        let second = picker.join().expect("a pick does not panic");
        assert_eq!(freed.contains(7), second != first, "either both go to the other or both stay");
        assert_eq!(pick_for(&group, &dispatch), second, "what was taken back follows");
    });
}
