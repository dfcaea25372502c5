//! The timer wheel against a plain list of deadlines.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use tenbin_sn::{Alarm, Wheel};

const SLOT: Duration = Duration::from_millis(100);

/// One key's owner.
#[derive(Default)]
struct Owner {
    alarm: Alarm,
    deadline: Option<Instant>,
}

proptest! {
    #[test]
    #[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
    fn every_deadline_rings_within_a_slot(steps in vec((0_u32..8, 0_u64..400_000, 0_u64..150_000), 1..60)) {
        let start = Instant::now();
        let (mut wheel, mut now, mut due) = (Wheel::new(start), start, Vec::new());
        let mut owners: BTreeMap<u32, Owner> = BTreeMap::new();
        for (key, deadline, pause) in steps {
            let owner = owners.entry(key).or_default();
            let deadline = now + Duration::from_millis(deadline);
            owner.deadline = Some(deadline);
            wheel.arm(&mut owner.alarm, key, deadline);

            let end = now + Duration::from_millis(pause);
            while let Some(next) = wheel.next().filter(|&next| next <= end) {
                prop_assert!(next > now, "time goes on");
                now = next;
                wheel.advance(now, &mut due);
                prop_assert!(!due.is_empty(), "a tick without a key");
                for key in due.drain(..) {
                    let owner = owners.get_mut(&key).expect("a known key");
                    if !owner.alarm.rang(now) {
                        continue;
                    }
                    match owner.deadline {
                        Some(deadline) if deadline <= now => {
                            prop_assert!(now < deadline + SLOT + SLOT, "late");
                            owner.deadline = None;
                        }
                        Some(deadline) => wheel.arm(&mut owner.alarm, key, deadline),
                        None => {}
                    }
                }
            }
            now = end;
            wheel.advance(now, &mut due);
            prop_assert!(due.is_empty(), "`next` has announced all keys");
            for owner in owners.values() {
                prop_assert!(owner.deadline.is_none_or(|deadline| deadline + SLOT > now), "missed");
            }
        }
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
fn idle_wheel_never_ticks_and_wakes_all_after_a_pause() {
    let start = Instant::now();
    let (mut wheel, mut due) = (Wheel::new(start), Vec::new());
    assert_eq!(wheel.next(), None);
    let mut alarms = [Alarm::default(); 5];
    for (key, alarm) in alarms.iter_mut().enumerate() {
        wheel.arm(alarm, key, start + Duration::from_secs(key as u64 * 1000));
        wheel.arm(alarm, key, start + Duration::from_secs(key as u64 * 1000 + 1));
    }
    wheel.advance(start + Duration::from_secs(1_000_000), &mut due);
    due.sort_unstable();
    assert_eq!((due, wheel.armed()), (vec![0, 1, 2, 3, 4], 0), "a later time adds no entry");
    assert_eq!(wheel.next(), None);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
fn key_that_is_often_armed_early_rings_no_more_than_that() {
    const WAKES: u32 = 1000;
    let start = Instant::now();
    let (mut wheel, mut alarm, mut due, mut rings) = (Wheel::new(start), Alarm::default(), Vec::new(), 0);
    let far = start + Duration::from_secs(1_000_000);
    wheel.arm(&mut alarm, 0, far);
    for wake in 1..=WAKES {
        // A sleeper wakes each minute, and waits for an answer that comes.
        let now = start + Duration::from_secs(60) * wake;
        wheel.arm(&mut alarm, 0, now + Duration::from_secs(10));
        while let Some(next) = wheel.next().filter(|&next| next < now + Duration::from_secs(60)) {
            wheel.advance(next, &mut due);
            for _ in due.drain(..) {
                rings += 1;
                if alarm.rang(next) {
                    wheel.arm(&mut alarm, 0, far);
                }
            }
        }
    }
    assert!(rings <= 2 * WAKES, "{rings} rings");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
fn cancelled_keys_leave_nothing() {
    let start = Instant::now();
    let (mut wheel, mut due) = (Wheel::new(start), Vec::new());
    let mut kept = [Alarm::default(); 3];
    for (key, alarm) in kept.iter_mut().enumerate() {
        wheel.arm(alarm, key, start + Duration::from_secs(50));
    }
    for key in 3..10_000 {
        let mut alarm = Alarm::default();
        wheel.arm(&mut alarm, key, start + Duration::from_secs(50));
        // An earlier time moves the entry.
        wheel.arm(&mut alarm, key, start + Duration::from_secs(key as u64 % 50 + 1));
        assert_eq!(wheel.armed(), 4);
        wheel.cancel(&mut alarm, key);
        wheel.cancel(&mut alarm, key);
    }
    let mut second = kept[1];
    wheel.cancel(&mut second, 1);
    wheel.advance(start + Duration::from_secs(60), &mut due);
    due.sort_unstable();
    assert_eq!((due, wheel.armed()), (vec![0, 2], 0));
    // Its key was woken, and the entry belongs to another key now.
    let mut alarm = Alarm::default();
    wheel.arm(&mut alarm, 7, start + Duration::from_secs(90));
    wheel.cancel(&mut kept[0], 0);
    wheel.cancel(&mut kept[2], 2);
    assert_eq!(wheel.armed(), 1);
}
