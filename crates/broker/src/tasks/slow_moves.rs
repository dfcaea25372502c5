//! Slow receivers on their way to the follower of a cluster, and back.
//!
//! ```text
//!             spilling, with a long backlog                     no backlog for 30 s
//!   leader ─────────────────────────────────► follower ─────────────────────────────────► leader
//!             DISCONNECT 0x9C                  messages by reference   DISCONNECT 0x9C
//! ```
//!
//! A client is asked again after a time that doubles with each request, up to an hour: one that comes back at once, or
//! ignores the reference, loses its connection ever more rarely.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::outbox::{Control, Pace, Sample};
use crate::registry::{Client, Place, SlowReceivers};

/// Receivers that were asked to use another node, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Moves {
    asked: HashMap<u64, Asked>,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Asked {
    client: Arc<Client>,
    at: Instant,
    /// Time before the next request.
    pause: Duration,
    /// Without a backlog at the follower since then.
    calm_since: Option<Instant>,
    /// Number of the next message for its queue, at the last look.
    next: u64,
}

impl Moves {
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Asks a receiver to the follower if it is slow, has a long backlog there, and may be asked.
    pub(super) fn offer(
        &mut self,
        receivers: &SlowReceivers,
        client: &Arc<Client>,
        pace: Pace,
        sample: &Sample,
        now: Instant,
    ) {
        if pace != Pace::Spooling || sample.tail_bytes < BACKLOG_BYTES || client.place() != Place::MayMove {
            return;
        }
        let known = self.asked.get(&client.number);
        let is_early = known.is_some_and(|asked| now.saturating_duration_since(asked.at) < asked.pause);
        if is_early || known.is_none() && self.asked.len() >= ASKED_MAX || receivers.server(client).is_none() {
            return;
        }
        let asked = self.asked.entry(client.number).or_insert_with(|| Asked {
            client: Arc::clone(client),
            at: now,
            pause: PAUSE / 2,
            calm_since: None,
            next: 0,
        });
        asked.ask(now);
        tracing::info!(
            client = ?client.id, disk_messages = sample.tail_messages, disk_bytes = sample.tail_bytes,
            "asking a slow receiver to the follower"
        );
    }

    /// Asks receivers without a backlog back, and forgets those that have gone.
    pub(super) fn look(&mut self, receivers: &SlowReceivers, now: Instant) {
        if self.looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        self.looked_at = Some(now);
        self.asked.retain(|_, asked| asked.look(receivers, now));
        if self.asked.is_empty() {
            self.asked = HashMap::new();
        }
    }
}

impl Asked {
    fn ask(&mut self, now: Instant) {
        (self.at, self.calm_since) = (now, None);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.client.outbox.control(Control::Moved);
    }

    /// Returns whether to keep it.
    fn look(&mut self, receivers: &SlowReceivers, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at);
        let Some((_, sample)) = self.client.outbox.sample() else {
            self.calm_since = None;
            return since < PAUSE_MAX;
        };
        if self.client.place() != Place::AtFollower {
            return since < self.pause.max(FORGOTTEN_AFTER);
        }
        // Everything that waited at the last look has gone, however large it was.
        let is_calm = sample.tail_messages == 0 && sample.head.is_none_or(|head| head >= self.next);
        self.next = sample.next;
        self.calm_since = is_calm.then(|| self.calm_since.unwrap_or(now));
        let is_done = self.calm_since.is_some_and(|since| now.saturating_duration_since(since) >= CALM);
        if is_done && since >= self.pause && receivers.server(&self.client).is_some() {
            self.ask(now);
            tracing::info!(client = ?self.client.id, "asking a receiver back to the leader: it has no backlog");
        }
        true
    }
}

/// Least backlog for which a receiver is moved.
const BACKLOG_BYTES: u64 = 1 << 20;
/// How long a receiver has to keep up before it is asked back.
const CALM: Duration = Duration::from_secs(30);
/// Time between two requests to a receiver; it doubles up to the longest one.
const PAUSE: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// How long a receiver at the leader is remembered at least.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7200);
const LOOK: Duration = Duration::from_millis(500);
/// Receivers that are remembered at most.
const ASKED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use bytes::BytesMut;
    use tenbin_codec::{PublishTemplate, QoS, TopicName};
    use tenbin_session::Delivery;

    use super::*;
    use crate::auth::Principal;
    use crate::outbox::{Batch, Taken};
    use crate::registry::ClientAddresses;

    /// A receiver of a leader with a follower, and the seconds that have passed.
    struct Stage {
        moves: Moves,
        receivers: SlowReceivers,
        client: Arc<Client>,
        start: Instant,
    }

    impl Stage {
        /// The receiver is connected at the leader.
        fn new() -> Self {
            let receivers = SlowReceivers::default();
            let addresses = |address: &str| [("inside".to_owned(), address.to_owned())].into();
            receivers
                .move_between(Some(ClientAddresses { leader: addresses("a:1883"), follower: addresses("b:1883") }));
            let client = Arc::new(Client::for_tests(&Principal::for_tests("inside"), 1));
            client.outbox.attach(u32::MAX, None);
            client.set_place(Place::MayMove);
            Self { moves: Moves::default(), receivers, client, start: Instant::now() }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        /// The receiver connects again.
        fn connect(&self, place: Place) {
            self.client.outbox.detach_all();
            self.client.outbox.attach(u32::MAX, None);
            self.client.set_place(place);
        }

        /// Whether the receiver is asked, and the server that it is told then.
        fn asked_to(&self) -> Option<String> {
            let mut context = Context::from_waker(Waker::noop());
            match self.client.outbox.poll_take(&mut context, 0, 0, &mut Batch::default()) {
                Poll::Ready(Taken::Control(Control::Moved)) => {
                    Some(self.receivers.server(&self.client).expect("another node").as_str().to_owned())
                }
                _ => None,
            }
        }

        /// The receiver has this backlog on disk, and is slow.
        fn is_slow(&mut self, second: u64, tail_bytes: u64) -> Option<String> {
            let (now, sample) = (self.at(second), Sample { tail_messages: 9, tail_bytes, ..Sample::default() });
            self.moves.offer(&self.receivers, &self.client, Pace::Spooling, &sample, now);
            self.asked_to()
        }

        fn look(&mut self, second: u64) -> Option<String> {
            let now = self.at(second);
            self.moves.look(&self.receivers, now);
            self.asked_to()
        }
    }

    /// The first second of these in which the receiver is asked, and the server that it is told.
    fn first(seconds: std::ops::Range<u64>, mut asked: impl FnMut(u64) -> Option<String>) -> Option<(u64, String)> {
        seconds.into_iter().find_map(|second| Some((second, asked(second)?)))
    }

    #[tokio::test]
    async fn moved_receiver_is_asked_back_once_it_has_kept_up() {
        let mut stage = Stage::new();
        assert_eq!(stage.is_slow(0, BACKLOG_BYTES - 1), None);
        assert_eq!(stage.is_slow(0, BACKLOG_BYTES).as_deref(), Some("b:1883"));
        stage.connect(Place::AtFollower);
        // It keeps up from second 1 on.
        assert_eq!(first(1..100, |second| stage.look(second)), Some((31, "a:1883".to_owned())));
        stage.connect(Place::MayMove);
        assert!(!stage.moves.is_empty());
        // The time between two requests has doubled.
        assert_eq!(first(31..200, |second| stage.is_slow(second, BACKLOG_BYTES)), Some((91, "b:1883".to_owned())));
        stage.connect(Place::AtFollower);
        assert_eq!(first(92..400, |second| stage.look(second)), Some((211, "a:1883".to_owned())));
    }

    #[tokio::test]
    async fn backlog_begins_the_calm_time_anew() {
        let mut stage = Stage::new();
        assert!(stage.is_slow(0, BACKLOG_BYTES).is_some());
        stage.connect(Place::AtFollower);
        assert_eq!(first(1..25, |second| stage.look(second)), None);
        push_large(&stage);
        assert_eq!(first(25..70, |second| stage.look(second)), None);
        stage.client.outbox.take_now(1, usize::MAX, &mut Batch::default());
        assert_eq!(first(70..200, |second| stage.look(second)), Some((100, "a:1883".to_owned())));
    }

    fn push_large(stage: &Stage) {
        let topic = TopicName::try_from("t").unwrap();
        let template = PublishTemplate::new(&topic, None, &vec![0; 256 << 10].into(), &mut BytesMut::new());
        let mut message = vec![Delivery::new(template, QoS::AtLeastOnce, false)];
        stage.client.outbox.push(&mut message, &mut Vec::new(), stage.start);
    }

    #[tokio::test]
    async fn receiver_of_large_messages_keeps_up_if_each_one_goes() {
        let mut stage = Stage::new();
        assert!(stage.is_slow(0, BACKLOG_BYTES).is_some());
        stage.connect(Place::AtFollower);
        let asked = first(1..200, |second| {
            push_large(&stage);
            let asked = stage.look(second);
            stage.client.outbox.take_now(1, usize::MAX, &mut Batch::default());
            asked
        });
        assert_eq!(asked, Some((31, "a:1883".to_owned())));
    }
}
