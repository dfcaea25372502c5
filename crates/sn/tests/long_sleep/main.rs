//! Eighteen hours of sleep in virtual time: 1,000 clients with a Will, on one timer wheel.
//!
//! Most clients wake within their Duration and get their messages. In some wakes a client fails after a few
//! datagrams. Every tenth client never wakes again after a while, and its Will must be published. All chance comes
//! from a seed, and no clock is read but for a start.

mod sleeper;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::QoS;
use tenbin_sn::{DropCause, End, Gateway, Output, PredefinedTopics, Settings, Wheel};
use tenbin_sn_codec::v1_2::{Disconnect, Message};

use sleeper::{Figures, Sleeper};

const CLIENTS: usize = 1000;
const HOURS_18: Duration = Duration::from_secs(18 * 3600);
/// Messages of the broker in all, without those of bursts.
const MESSAGES: usize = 60_000;
/// More than the longest sleep of 65,535 s with its tolerance.
const LONGEST_LOSS: Duration = Duration::from_secs(72_100);
/// Width of the wheel's slots.
const SLOT: Duration = Duration::from_millis(100);

/// What happens to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake,
    Publish { topic: u64, qos_1: bool, size: usize },
    Burst,
}

/// Pseudorandom numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

struct World {
    start: Instant,
    now: Instant,
    dice: Dice,
    output: Output,
    sleepers: Vec<Sleeper>,
    /// When a client wakes for the last time; `None` = it stays faithful.
    last_wake: Vec<Option<Instant>>,
    wheel: Wheel<usize>,
    events: BinaryHeap<Reverse<(Instant, usize, Event)>>,
}

impl World {
    #[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
    fn new(seed: u64) -> Self {
        let start = Instant::now();
        let gateway = Arc::new(Gateway::new(Settings::default(), PredefinedTopics::default()));
        let (mut dice, mut output) = (Dice(seed), Output::default());
        let mut wheel = Wheel::new(start);
        let (mut sleepers, mut last_wake) = (Vec::new(), Vec::new());
        for number in 0..CLIENTS {
            // From five minutes to the longest Duration of the protocol, short ones more often.
            let duration = (300.0 * (65_535.0_f64 / 300.0).powf(dice.below(1001) as f64 / 1000.0)).round();
            let mut sleeper = Sleeper::new(&gateway, number, duration as u16, dice.below(2) == 0, start, &mut output);
            arm(&mut wheel, &mut sleeper, number);
            sleepers.push(sleeper);
            let lifetime = Duration::from_secs(dice.below(HOURS_18.as_secs()));
            last_wake.push((number % 10 == 0).then_some(start + lifetime));
        }
        let mut world = Self { start, now: start, dice, output, sleepers, last_wake, wheel, events: BinaryHeap::new() };
        (0..CLIENTS).for_each(|number| world.plan_wake(number));
        for _ in 0..MESSAGES {
            let at = start + Duration::from_millis(world.dice.below(HOURS_18.as_millis() as u64));
            let client = world.dice.below(CLIENTS as u64) as usize;
            let (topic, qos_1) = (world.dice.below(4), world.dice.below(3) == 0);
            let size = world.dice.below(1000) as usize;
            let is_burst = world.dice.below(100) == 0;
            let event = if is_burst { Event::Burst } else { Event::Publish { topic, qos_1, size } };
            world.events.push(Reverse((at, client, event)));
        }
        world
    }

    /// Plans the client's next wake, unless it is lost by then.
    fn plan_wake(&mut self, number: usize) {
        let duration = u64::from(self.sleepers[number].duration);
        let at = self.now + Duration::from_secs(duration / 2 + self.dice.below(duration / 2));
        if self.last_wake[number].is_none_or(|last| at <= last) && at <= self.start + HOURS_18 {
            self.events.push(Reverse((at, number, Event::Wake)));
        }
    }

    /// Lets time pass until `end`, with all events and deadlines on the way.
    fn run_until(&mut self, end: Instant) {
        let mut due = Vec::new();
        loop {
            let event_at = self.events.peek().map(|Reverse((at, ..))| *at);
            let alarm_at = self.wheel.next();
            let Some(next) = event_at.into_iter().chain(alarm_at).min().filter(|&at| at <= end) else { break };
            assert!(next >= self.now, "time goes on");
            self.now = next;
            self.wheel.advance(next, &mut due);
            for number in due.drain(..) {
                let sleeper = &mut self.sleepers[number];
                if !sleeper.alarm.rang(next) {
                    continue;
                }
                sleeper.tick(next, &mut self.output);
                arm(&mut self.wheel, sleeper, number);
            }
            if event_at == Some(next)
                && let Some(Reverse((_, number, event))) = self.events.pop()
            {
                self.happen(number, event);
            }
        }
        self.now = end;
    }

    fn happen(&mut self, number: usize, event: Event) {
        let (now, output) = (self.now, &mut self.output);
        let sleeper = &mut self.sleepers[number];
        match event {
            Event::Wake => {
                assert_eq!(sleeper.end, None, "{} woke in time", sleeper.name);
                // In one of 20 wakes the client fails.
                let attention = (self.dice.below(20) == 0).then(|| self.dice.below(4) as usize);
                sleeper.wake(attention, now, output);
            }
            Event::Publish { topic, qos_1, size } => {
                let qos = if qos_1 { QoS::AtLeastOnce } else { QoS::AtMostOnce };
                sleeper.publish(&format!("plant/{topic}"), qos, size, now, output);
            }
            Event::Burst => {
                let size = if number.is_multiple_of(2) { 10 } else { 600 };
                (0..100).for_each(|_| sleeper.publish("plant/burst", QoS::AtMostOnce, size, now, output));
            }
        }
        arm(&mut self.wheel, sleeper, number);
        if event == Event::Wake {
            self.plan_wake(number);
        }
    }
}

fn arm(wheel: &mut Wheel<usize>, sleeper: &mut Sleeper, number: usize) {
    if let Some(deadline) = sleeper.peer.poll_timeout() {
        wheel.arm(&mut sleeper.alarm, number, deadline);
    }
}

/// Runs the whole night. Returns the figures of all clients together, and the times of all ends.
fn night(seed: u64) -> (Figures, Vec<Duration>) {
    let mut world = World::new(seed);
    world.run_until(world.start + HOURS_18);
    let dropped_asleep = world.output.drops.get(DropCause::BufferFull);

    // The faithful clients wake once more, get all that waits, and leave.
    for number in 0..CLIENTS {
        if world.last_wake[number].is_none() {
            let sleeper = &mut world.sleepers[number];
            assert_eq!(sleeper.end, None, "{} never overslept", sleeper.name);
            sleeper.wake(None, world.now, &mut world.output);
            assert_eq!(sleeper.figures.sent[1], sleeper.figures.received[1], "QoS 1 is complete");
            assert_eq!(sleeper.peer.waiting(), (0, 0));
            sleeper.say(&Message::Disconnect(Disconnect { duration: None }), world.now, &mut world.output);
            assert!(!sleeper.will_is_published(), "{} left", sleeper.name);
        }
    }
    for (sleeper, last_wake) in world.sleepers.iter_mut().zip(&world.last_wake) {
        if last_wake.is_some() {
            sleeper.figures.waiting = sleeper.peer.waiting().0 as u64;
        }
    }
    world.run_until(world.start + HOURS_18 + LONGEST_LOSS);

    let (mut sum, mut ends) = (Figures::default(), Vec::new());
    for (sleeper, last_wake) in world.sleepers.iter().zip(&world.last_wake) {
        let (end, at) = sleeper.end.expect("every client has left or was lost");
        if last_wake.is_some() {
            let lost_at = sleeper.lost_at();
            assert_eq!(end, End::Overslept, "{}", sleeper.name);
            assert!(lost_at <= at && at <= lost_at + SLOT, "{}: {:?} late", sleeper.name, at - lost_at);
            assert!(sleeper.will_is_published(), "{}", sleeper.name);
        }
        sum.add(&sleeper.figures);
        ends.push(at - world.start);
    }
    assert!(dropped_asleep > 0, "bursts exceed the buffer");
    let Figures { sent, received, unheard, waiting, .. } = sum;
    // The rest waits for lost clients, each with at most one message at QoS 1.
    let kept = sent[0] - received[0] - unheard - dropped_asleep;
    let at_most_one_each = waiting.saturating_sub(CLIENTS as u64 / 10)..=waiting;
    assert!(
        at_most_one_each.contains(&kept),
        "each QoS 0 message was received, dropped or waits: {sum:?}, {dropped_asleep} dropped"
    );
    for cause in [DropCause::Unexpected, DropCause::TopicTableFull, DropCause::TooLarge, DropCause::Unproven] {
        assert_eq!(world.output.drops.get(cause), 0, "{cause}");
    }
    (sum, ends)
}

#[test]
fn thousand_clients_sleep_for_eighteen_hours() {
    let (sum, ends) = night(18);
    let lost = ends.iter().filter(|&&at| at != HOURS_18).count();
    assert_eq!(lost, CLIENTS / 10);
    assert!(sum.wakes > 40_000 && sum.pingresps > 35_000 && sum.copies > 100, "{sum:?}");
    assert!(sum.most_messages == 64 && sum.most_bytes > 15 * 1024, "the buffers were full: {sum:?}");
    assert_eq!((sum, ends), night(18), "the night is the same for the same seed");
}
