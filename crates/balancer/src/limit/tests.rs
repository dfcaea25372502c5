use std::{cmp::Reverse, collections::BinaryHeap};

use super::*;
use crate::rng::Rng;

const MS: f64 = 1e6;

/// A client that always has as many messages as its limit and `waiting` others allow.
#[derive(Clone, Copy)]
struct Client {
    threads: usize,
    /// Whether the work takes 20 ms exactly, or is exponential.
    is_regular: bool,
    /// Way to it and back, in ms, which the broker does not know.
    way_ms: f64,
    /// Acknowledges a message when it has read the next one, and the last one 40 ms later.
    is_slowed: bool,
    /// Keeps the order of receipt.
    is_in_order: bool,
}

const CLIENT: Client = Client { threads: 1, is_regular: false, way_ms: 0.2, is_slowed: false, is_in_order: false };

impl Client {
    /// Returns the learner after `messages`. Between busy times it is left idle.
    fn learn(self, messages: usize, waiting: u64, rng: &mut Rng) -> Learner {
        let mut learner = Learner::default();
        let (mut now, mut done) = (1.0 * MS, 0);
        while done < messages {
            let limit = learner.learnt().limit(0, false, waiting).unwrap_or(64) as usize;
            let busy = self.work(limit.min(messages - done), &mut now, rng);
            for (index, &(sent_at, at)) in busy.iter().enumerate() {
                let outstanding = (busy.len() - index) as u64;
                learner.acknowledged(&Seen { now: at as u64, messages: 1, outstanding, first_sent_at: sent_at as u64 });
            }
            done += busy.len();
            now += 5.0 * MS;
        }
        learner
    }

    /// Sends `messages` at once. Returns when each was sent and acknowledged, by the latter.
    fn work(self, messages: usize, now: &mut f64, rng: &mut Rng) -> Vec<(f64, f64)> {
        let sent_at = *now;
        let mut free: BinaryHeap<_> =
            (0..self.threads).map(|_| Reverse((sent_at + self.way_ms * MS / 2.0) as u64)).collect();
        let mut ends: Vec<f64> = (0..messages)
            .map(|_| {
                let uniform = (rng.below(1_000_000) as f64 + 0.5) / 1e6;
                let service_ms = if self.is_regular { 20.0 } else { -20.0 * uniform.ln() };
                let end = free.pop().unwrap().0 as f64 + service_ms * MS;
                free.push(Reverse(end as u64));
                end + self.way_ms * MS / 2.0
            })
            .collect();
        if self.is_slowed && messages > 1 {
            for index in 0..messages {
                ends[index] = if index + 1 < messages { ends[index + 1] } else { ends[index] + 40.0 * MS };
            }
        }
        if self.is_in_order {
            let mut latest = 0.0;
            for end in &mut ends {
                latest = f64::max(latest, *end);
                *end = latest;
            }
        }
        ends.sort_by(f64::total_cmp);
        *now = *ends.last().unwrap();
        ends.into_iter().map(|end| (sent_at, end)).collect()
    }

    /// Number of 100 clients of this kind of which each [`Service`] is learnt from 400 messages.
    fn learnt(self, service: Service) -> usize {
        let rng = &mut Rng::new(7);
        (0..100).filter(|_| self.learn(400, 40, rng).lesson().service == service).count()
    }
}

#[test]
fn single_and_parallel_clients_are_told_apart() {
    let of =
        |client: Client| [Service::Single, Service::Slowed, Service::Parallel].map(|service| client.learnt(service));
    let [single, slowed, parallel] = of(CLIENT);
    assert!(single + slowed >= 80 && parallel <= 18, "one thread: {single} {slowed} {parallel}");
    for (what, client) in [
        ("eight threads", Client { threads: 8, ..CLIENT }),
        ("eight threads in order", Client { threads: 8, is_in_order: true, ..CLIENT }),
        ("a long way", Client { way_ms: 100.0, ..CLIENT }),
    ] {
        assert!(of(client)[2] >= 90, "{what}: {:?}", of(client));
    }
}

#[test]
fn client_that_acknowledges_late_is_seen() {
    // Eight messages at once are slowed little.
    let client = Client { is_slowed: true, ..CLIENT };
    let [single, slowed] = [Service::Single, Service::Slowed].map(|service| client.learnt(service));
    assert!(slowed >= 40 && single + slowed >= 95, "{single} {slowed}");
}

#[test]
fn regular_work_is_seen() {
    assert_eq!(Client { is_regular: true, ..CLIENT }.learnt(Service::Regular), 100);
}

#[test]
fn lesson_states_its_figures() {
    let learner = Client { threads: 4, ..CLIENT }.learn(4_000, 64, &mut Rng::new(3));
    let Lesson { service, alone, busy, tries, last_try } = learner.lesson();
    assert_eq!(service, Service::Parallel);
    assert!((10..40).contains(&alone.as_millis()), "{alone:?}");
    assert!((2..15).contains(&busy.as_millis()), "{busy:?}");
    assert!(tries > 50 && last_try > Duration::ZERO, "{tries} {last_try:?}");
    assert_eq!(Learner::default().lesson(), Lesson::default());
}

#[test]
fn acknowledgements_that_are_missed_teach_nothing() {
    let mut learner = Learner::default();
    let acknowledged = |learner: &mut Learner, now_ms: u64, outstanding| {
        let now = now_ms * 1_000_000;
        learner.acknowledged(&Seen { now, messages: 1, outstanding, first_sent_at: now - 1_000_000 });
    };
    acknowledged(&mut learner, 10, 5);
    learner.interrupt();
    acknowledged(&mut learner, 500, 2);
    assert_eq!(learner.lesson().tries, 0, "the time without them is not that of a busy client");
    acknowledged(&mut learner, 510, 1);
    assert_eq!(learner.lesson().tries, 0, "one message is no try");
    acknowledged(&mut learner, 600, 2);
    acknowledged(&mut learner, 610, 1);
    assert_eq!((learner.lesson().tries, learner.lesson().last_try), (1, Duration::from_micros(5_500)));
}

#[test]
fn limit_grows_with_the_messages_that_wait() {
    let limit = |learnt: Learnt, told, waiting: u64| learnt.limit(told, false, 16 * waiting).unwrap();
    assert_eq!([0, 1, 4, 1000].map(|waiting| limit(Learnt::UNKNOWN, 0, waiting)), [1, 4, 16, 16]);
    assert_eq!([0, 1, 1000].map(|waiting| limit(Learnt::SINGLE, 0, waiting)), [1, 4, 4]);
    assert_eq!(
        [0, 1, 1000].map(|waiting| limit(Learnt::SINGLE_CLEAR, 9, waiting)),
        [1, 2, 2],
        "evidence before claims"
    );
    assert_eq!([0, 3, 4, 1000].map(|waiting| limit(Learnt::SINGLE_SLOWED, 0, waiting)), [1, 1, 2, 2]);
    assert_eq!([0, 1000].map(|waiting| limit(Learnt::parallel(7.0), 0, waiting)), [24, 48], "8, and those behind them");
    assert_eq!([0, 1000].map(|waiting| limit(Learnt::UNKNOWN, 3, waiting)), [6, 12]);
    assert_eq!([Learnt::SINGLE_ALONE, Learnt::UNKNOWN_ALONE].map(|learnt| limit(learnt, 0, 1000)), [1, 1]);
}

#[test]
fn learnt_fits_into_a_byte() {
    assert_eq!([1.4, 100.0, 1e9].map(|at_once| Learnt::parallel(at_once).at_once()), [1, 100, 249]);
    assert_eq!(Learnt::parallel(0.0).service(), Service::Parallel);
}

#[test]
fn batch_is_forgotten() {
    let mut learner = Learner::default();
    let mut acknowledge = |now: u64, messages| {
        learner.acknowledged(&Seen { now, messages, outstanding: messages, first_sent_at: now - 30_000_000 });
        learner.collects()
    };
    assert!(acknowledge(1_000_000_000, 20));
    let lasted = (1..100u64).take_while(|round| acknowledge(1_000_000_000 * (1 + round), 1)).count();
    assert!((8..40).contains(&lasted), "{lasted}");
}

#[test]
fn rest_of_a_busy_period_is_no_message_alone() {
    let mut learner = Learner::default();
    let second = 1_000_000_000;
    for index in 0..9 {
        let seen =
            Seen { now: second + 20_000_000 * (index + 1), messages: 1, outstanding: 9 - index, first_sent_at: second };
        learner.acknowledged(&seen);
    }
    assert_eq!((learner.lesson().alone, learner.tries), (Duration::ZERO, 1));
}

#[test]
fn busy_period_ends_when_the_last_message_is_written() {
    let mut learner = Learner::default();
    for round in 1..20u64 {
        let sent_at = 60_000_000_000 * round;
        let seen = Seen { now: sent_at + 20_000_000, messages: 1, outstanding: 2, first_sent_at: sent_at };
        learner.acknowledged(&seen);
        learner.ended(); // The other one was of QoS 0.
    }
    assert!(learner.lesson().busy < Duration::from_millis(100), "{:?}", learner.lesson());
}
