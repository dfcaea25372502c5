//! MsgIds that the client chose. They pass through: the packet upstream has the same identifier.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustc_hash::FxHasher;
use tenbin_codec::TopicName;
use tenbin_sn_codec::v1_2::{MessageId, QoS};

/// Exchanges that the client began, those under way and the last ones with their answers.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    /// Oldest first. A few entries: a search is cheaper than a table.
    entries: VecDeque<Exchange>,
    /// MsgIds of PUBLISH.
    published: IdRun,
}

/// Shows whether a sender counts its MsgIds up: two of its messages with one MsgId are then copies.
///
/// Constant MsgIds, and the MsgIds of a pool, come again. A sender of up to [`IdRun::LONG`] MsgIds never has a long run, and
/// a pool of more uses a MsgId again when its last message is forgotten.
#[derive(Debug, Default)]
pub(crate) struct IdRun {
    last: u16,
    /// Steps upwards, one behind the other.
    ascents: u8,
}

impl IdRun {
    /// Steps upwards that show a counter.
    pub(crate) const LONG: usize = 16;
    /// Other messages of the sender take MsgIds from the same counter.
    const STEP_MAXIMUM: i32 = 8;
    /// Messages that a copy comes behind.
    const LATE_MAXIMUM: i32 = 4;

    /// Notes the MsgId of a message that may be a copy.
    pub(crate) fn note(&mut self, id: MessageId) {
        let step = i32::from(id.get()) - i32::from(self.last);
        if (-Self::LATE_MAXIMUM..=0).contains(&step) {
            return; // A late copy, or an id of a small pool: neither lengthens the run.
        }
        self.ascents = if (1..=Self::STEP_MAXIMUM).contains(&step) { self.ascents.saturating_add(1) } else { 0 };
        self.last = id.get();
    }

    pub(crate) fn is_long(&self) -> bool {
        usize::from(self.ascents) >= Self::LONG
    }
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) id: MessageId,
    /// Content of the client's message.
    fingerprint: u64,
    pub(crate) step: ExchangeStep,
    begun: Instant,
}

/// Progress of an exchange.
#[derive(Debug)]
pub(crate) enum ExchangeStep {
    /// QoS 1: the broker has the PUBLISH. Holds its topic field.
    AwaitPubAck(u16),
    /// QoS 2: the broker has the PUBLISH. Holds its topic field.
    AwaitPubRec(u16),
    /// QoS 2: the client has PUBREC.
    AwaitPubRel,
    /// QoS 2: the broker has PUBREL.
    AwaitPubComp,
    /// QoS 2: the client has PUBREC, and the broker gets the PUBLISH only once the client releases it.
    Doubtful(Box<Doubtful>),
    /// QoS 2: the broker has the PUBLISH, which the client has released. Holds its topic field.
    AwaitPubRecOfReleased(u16),
    /// The broker has the SUBSCRIBE.
    AwaitSubAck(AnsweredTopic),
    /// The broker has the UNSUBSCRIBE. Holds the id of its topic.
    AwaitUnsubAck(Option<u16>),
    /// The client has the answer, or it was lost.
    Done(Answer),
}

/// A QoS 2 message that is either a new one, or a copy that the network made of the last one with its MsgId.
///
/// PUBREL shows that it is new: for a copy, the client has nothing to release. PUBREC waits until a PUBREL can no longer
/// belong to the last message.
#[derive(Debug)]
pub(crate) struct Doubtful {
    /// When PUBREC is due; `None` once it is sent.
    pub(crate) answer_at: Option<Instant>,
    /// The topic field.
    pub(crate) field: u16,
    pub(crate) topic: TopicName,
    pub(crate) retain: bool,
    pub(crate) data: Bytes,
}

/// Topic id of a SUBACK.
#[derive(Debug)]
pub(crate) enum AnsweredTopic {
    /// 0 for filters without an id, or a predefined id.
    Fixed(u16),
    /// A normal id, known to the client from SUBACK on.
    Normal(u16),
}

/// Answer that ended an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The topic field.
    PubAck(u16),
    PubComp,
    SubAck {
        qos: QoS,
        topic_id: u16,
    },
}

/// Result of a client's message with a MsgId.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// A new message: pass it on, then [`Exchanges::begin`].
    New,
    /// The same message is under way: no second copy `[SN-DUPLICATE-1]`.
    UnderWay,
    /// The client has PUBREC already, and repeats its PUBLISH.
    Received,
    /// The same message was answered, and the client repeats it `[SN-DUPLICATE-2]`.
    Answered(Answer),
    /// A QoS 2 message equal to the last one with its MsgId, a moment after its end: [`ExchangeStep::Doubtful`]. Holds the time
    /// of its PUBREC.
    Doubtful(Instant),
    /// Another message is under way with this id.
    InUse,
    /// Too many messages are under way.
    Full,
}

/// Time in which the network may still deliver a copy of a message, which has no DUP.
pub(crate) const COPY_TIME: Duration = Duration::from_secs(2);
/// Time in which a PUBREL may come that belongs to the message before: a copy, or a repetition because PUBCOMP was lost.
pub(crate) const RELEASE_TIME: Duration = Duration::from_millis(500);
/// Answers kept for repeated messages `[SN-DUPLICATE-2]`.
const ANSWERS_KEPT: usize = IdRun::LONG;

impl Exchanges {
    /// Looks a message up. Once it is answered, only a message that is marked as repeated is a copy: a device may send
    /// the same content under the same MsgId again and again. Answers older than `retry_time` count no longer.
    pub(crate) fn look_up(
        &mut self,
        id: MessageId,
        fingerprint: u64,
        is_repeated: bool,
        limit: usize,
        retry_time: Duration,
        now: Instant,
    ) -> Begin {
        while self.entries.front().is_some_and(|oldest| oldest.is_done() && oldest.begun + retry_time <= now) {
            self.entries.pop_front();
        }
        if let Some(at) = self.entries.iter().position(|entry| entry.id == id) {
            let entry = &self.entries[at];
            let is_same = entry.fingerprint == fingerprint;
            match entry.step {
                ExchangeStep::Done(answer) if is_same && is_repeated && entry.begun + retry_time > now => {
                    return Begin::Answered(answer);
                }
                // A copy at QoS 1 may be published, and one at QoS 2 must not. [SN-DUPLICATE-3]
                ExchangeStep::Done(Answer::PubComp) if is_same && entry.begun + COPY_TIME > now => {
                    if self.published.is_long() {
                        return Begin::Answered(Answer::PubComp);
                    }
                    let answer_at = entry.begun + RELEASE_TIME;
                    self.entries.remove(at);
                    return Begin::Doubtful(answer_at);
                }
                ExchangeStep::Done(_) => drop(self.entries.remove(at)),
                ExchangeStep::Doubtful(_) if !is_same => drop(self.entries.remove(at)),
                _ if !is_same => return Begin::InUse,
                ExchangeStep::AwaitPubRel => return Begin::Received,
                ExchangeStep::Doubtful(ref message) if message.answer_at.is_none() => return Begin::Received,
                _ => return Begin::UnderWay,
            }
        }
        if self.under_way() < limit {
            return Begin::New;
        }
        // A client that never releases a message has forgotten it. If it does later, the broker still knows the id.
        let is_forgotten =
            |entry: &Exchange| matches!(entry.step, ExchangeStep::AwaitPubRel) && entry.begun + retry_time <= now;
        match self.entries.iter().position(is_forgotten) {
            Some(at) => {
                self.entries.remove(at);
                Begin::New
            }
            None => Begin::Full,
        }
    }

    /// Notes a new message that was passed on.
    pub(crate) fn begin(&mut self, id: MessageId, fingerprint: u64, step: ExchangeStep, now: Instant) {
        if self.entries.len() - self.under_way() >= ANSWERS_KEPT {
            // A doubtful message may be a new one, and goes last.
            let done = self.entries.iter().position(Exchange::is_done);
            if let Some(oldest) = done.or_else(|| self.entries.iter().position(|entry| !entry.is_open())) {
                self.entries.remove(oldest);
            }
        }
        if matches!(step, ExchangeStep::AwaitPubAck(_) | ExchangeStep::AwaitPubRec(_) | ExchangeStep::Doubtful(_)) {
            self.published.note(id);
        }
        self.entries.push_back(Exchange { id, fingerprint, step, begun: now });
    }

    /// The exchange with this id.
    pub(crate) fn get(&mut self, id: MessageId) -> Option<&mut Exchange> {
        // The latest exchange is nearly always the one.
        self.entries.iter_mut().rev().find(|entry| entry.id == id)
    }

    /// Whether a PUBREL belongs to a message that is released already. Others may follow.
    pub(crate) fn is_released_again(&mut self, id: MessageId, now: Instant) -> bool {
        match self.get(id) {
            Some(Exchange { step: ExchangeStep::Done(Answer::PubComp), begun, .. }) => *begun = now,
            Some(Exchange { step: ExchangeStep::Doubtful(message), .. }) if message.answer_at.is_some() => {
                message.answer_at = Some(now + RELEASE_TIME);
            }
            _ => return false,
        }
        true
    }

    /// When the first PUBREC of a doubtful message is due.
    pub(crate) fn answer_at(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.step.answer_at()).min()
    }

    /// Returns a doubtful message whose PUBREC is due, and counts it as answered.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<MessageId> {
        let due = self.entries.iter_mut().find(|entry| entry.step.answer_at().is_some_and(|at| at <= now))?;
        if let ExchangeStep::Doubtful(message) = &mut due.step {
            message.answer_at = None;
        }
        Some(due.id)
    }

    /// Forgets the answers to SUBSCRIBE: a copy that comes behind an UNSUBSCRIBE is a new one.
    pub(crate) fn forget_subacks(&mut self) {
        self.entries.retain(|entry| !matches!(entry.step, ExchangeStep::Done(Answer::SubAck { .. })));
    }

    /// Forgets an exchange, whose message may come again as a new one.
    pub(crate) fn forget(&mut self, id: MessageId) {
        self.entries.retain(|entry| entry.id != id);
    }

    /// Whether the broker owes no answer, so that the upstream may be replaced.
    pub(crate) fn broker_owes_nothing(&self) -> bool {
        self.entries.iter().all(|entry| !entry.is_open() || matches!(entry.step, ExchangeStep::AwaitPubRel))
    }

    /// Whether the broker owes the answer to a SUBSCRIBE.
    pub(crate) fn await_suback(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.step, ExchangeStep::AwaitSubAck(_)))
    }

    /// Exchanges that the broker has begun, and not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_open()).count()
    }
}

impl ExchangeStep {
    fn answer_at(&self) -> Option<Instant> {
        match self {
            Self::Doubtful(message) => message.answer_at,
            _ => None,
        }
    }
}

impl Exchange {
    fn is_done(&self) -> bool {
        matches!(self.step, ExchangeStep::Done(_))
    }

    fn is_open(&self) -> bool {
        !matches!(self.step, ExchangeStep::Done(_) | ExchangeStep::Doubtful(_))
    }

    /// Ends the exchange. The time of the answer counts, not the time of the message.
    pub(crate) fn finish(&mut self, answer: Answer, now: Instant) {
        self.step = ExchangeStep::Done(answer);
        self.begun = now;
    }
}

/// Hash of a message's content without DUP, by which a repeated message differs from a new one with the same id.
pub(crate) fn fingerprint(content: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_secs(50);

    fn id(id: u16) -> MessageId {
        MessageId::new(id).expect("not 0")
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any start will do")]
    fn answers_are_kept_for_the_last_16_messages_and_a_time() {
        let now = Instant::now();
        let mut exchanges = Exchanges::default();
        let look = |exchanges: &mut Exchanges, number: u16, now| exchanges.look_up(id(number), 7, true, 2, RETRY, now);
        for number in 1..=20 {
            assert_eq!(look(&mut exchanges, number, now), Begin::New);
            exchanges.begin(id(number), 7, ExchangeStep::AwaitPubAck(1), now);
            assert_eq!(look(&mut exchanges, number, now), Begin::UnderWay);
            assert_eq!(exchanges.look_up(id(number), 8, true, 2, RETRY, now), Begin::InUse);
            exchanges.get(id(number)).expect("begun").finish(Answer::PubAck(number), now);
        }
        assert_eq!(look(&mut exchanges, 4, now), Begin::New);
        assert_eq!(look(&mut exchanges, 5, now), Begin::Answered(Answer::PubAck(5)));
        assert_eq!(
            look(&mut exchanges, 20, now + RETRY - Duration::from_millis(1)),
            Begin::Answered(Answer::PubAck(20))
        );
        assert_eq!(look(&mut exchanges, 20, now + RETRY), Begin::New);
        assert!(exchanges.entries.is_empty(), "old answers are forgotten");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any start will do")]
    fn answers_make_room_before_doubtful_messages() {
        let now = Instant::now();
        let mut exchanges = Exchanges::default();
        let topic = TopicName::try_from("a").expect("a name");
        let doubtful = Doubtful { answer_at: None, field: 1, topic, retain: false, data: Bytes::new() };
        exchanges.begin(id(1), 7, ExchangeStep::Doubtful(Box::new(doubtful)), now);
        for number in 2..=40 {
            exchanges.begin(id(number), 7, ExchangeStep::AwaitPubAck(1), now);
            exchanges.get(id(number)).expect("begun").finish(Answer::PubAck(number), now);
        }
        assert!(exchanges.get(id(1)).is_some_and(|entry| matches!(entry.step, ExchangeStep::Doubtful(_))));
        assert!(exchanges.entries.len() <= ANSWERS_KEPT + 1);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any start will do")]
    fn messages_under_way_are_bounded_and_never_forgotten() {
        let now = Instant::now();
        let mut exchanges = Exchanges::default();
        for number in 1..=3 {
            exchanges.begin(id(number), 7, ExchangeStep::AwaitPubAck(1), now);
        }
        assert_eq!(exchanges.look_up(id(4), 7, true, 3, RETRY, now + 10 * RETRY), Begin::Full);
        assert_eq!(exchanges.look_up(id(1), 7, true, 3, RETRY, now + 10 * RETRY), Begin::UnderWay);
        assert_eq!(exchanges.look_up(id(4), 7, true, 4, RETRY, now), Begin::New);
    }
}
