//! MsgIds that the client chose. They pass through: the packet upstream has the same identifier.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use rustc_hash::FxHasher;
use tenbin_sn_codec::v1_2::{MessageId, QoS};

/// Exchanges that the client began, those under way and the last ones with their answers.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    /// Oldest first. A few entries: a search is cheaper than a table.
    entries: VecDeque<Exchange>,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) id: MessageId,
    /// Content of the client's message.
    fingerprint: u64,
    pub(crate) step: Step,
    begun: Instant,
}

/// Progress of an exchange.
#[derive(Debug)]
pub(crate) enum Step {
    /// QoS 1: the broker has the PUBLISH. Holds its topic field.
    AwaitPubAck(u16),
    /// QoS 2: the broker has the PUBLISH. Holds its topic field.
    AwaitPubRec(u16),
    /// QoS 2: the client has PUBREC.
    AwaitPubRel,
    /// QoS 2: the broker has PUBREL.
    AwaitPubComp,
    /// The broker has the SUBSCRIBE.
    AwaitSubAck(AnsweredTopic),
    /// The broker has the UNSUBSCRIBE.
    AwaitUnsubAck,
    /// The client has the answer, or it was lost.
    Done(Answer),
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
    UnsubAck,
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
    /// The same message was answered a short time ago `[SN-DUPLICATE-2]`.
    Answered(Answer),
    /// Another message is under way with this id.
    InUse,
    /// Too many messages are under way.
    Full,
}

/// Time in which a copy may come without DUP: the network made it. Later, equal messages with an equal MsgId are two.
pub(crate) const COPY_TIME: Duration = Duration::from_secs(2);
/// Answers kept for repeated messages `[SN-DUPLICATE-2]`.
const ANSWERS_KEPT: usize = 16;

impl Exchanges {
    /// Looks a message up. Answers older than `retry_time` count no longer; for a message that is not marked as repeated,
    /// those older than 2 s.
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
            let kept = if is_repeated { retry_time } else { retry_time.min(COPY_TIME) };
            match entry.step {
                Step::Done(answer) if is_same && entry.begun + kept > now => return Begin::Answered(answer),
                Step::Done(_) => drop(self.entries.remove(at)),
                _ if !is_same => return Begin::InUse,
                Step::AwaitPubRel => return Begin::Received,
                _ => return Begin::UnderWay,
            }
        }
        if self.under_way() < limit {
            return Begin::New;
        }
        // A client that never releases a message has forgotten it. If it does later, the broker still knows the id.
        let is_forgotten =
            |entry: &Exchange| matches!(entry.step, Step::AwaitPubRel) && entry.begun + retry_time <= now;
        match self.entries.iter().position(is_forgotten) {
            Some(at) => {
                self.entries.remove(at);
                Begin::New
            }
            None => Begin::Full,
        }
    }

    /// Notes a new message that was passed on.
    pub(crate) fn begin(&mut self, id: MessageId, fingerprint: u64, step: Step, now: Instant) {
        if self.entries.len() - self.under_way() >= ANSWERS_KEPT
            && let Some(oldest) = self.entries.iter().position(Exchange::is_done)
        {
            self.entries.remove(oldest);
        }
        self.entries.push_back(Exchange { id, fingerprint, step, begun: now });
    }

    /// The exchange with this id.
    pub(crate) fn get(&mut self, id: MessageId) -> Option<&mut Exchange> {
        // The latest exchange is nearly always the one.
        self.entries.iter_mut().rev().find(|entry| entry.id == id)
    }

    /// Forgets answers that a new request makes obsolete.
    pub(crate) fn forget_answers(&mut self, is_obsolete: impl Fn(&Answer) -> bool) {
        self.entries.retain(|entry| !matches!(&entry.step, Step::Done(answer) if is_obsolete(answer)));
    }

    /// Forgets an exchange, whose message may come again as a new one.
    pub(crate) fn forget(&mut self, id: MessageId) {
        self.entries.retain(|entry| entry.id != id);
    }

    /// Whether the broker owes no answer, so that the upstream may be replaced.
    pub(crate) fn broker_owes_nothing(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry.step, Step::Done(_) | Step::AwaitPubRel))
    }

    pub(crate) fn under_way(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.is_done()).count()
    }
}

impl Exchange {
    fn is_done(&self) -> bool {
        matches!(self.step, Step::Done(_))
    }

    /// Ends the exchange. The time of the answer counts, not that of the message.
    pub(crate) fn finish(&mut self, answer: Answer, now: Instant) {
        self.step = Step::Done(answer);
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
            exchanges.begin(id(number), 7, Step::AwaitPubAck(1), now);
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
    fn messages_under_way_are_bounded_and_never_forgotten() {
        let now = Instant::now();
        let mut exchanges = Exchanges::default();
        for number in 1..=3 {
            exchanges.begin(id(number), 7, Step::AwaitPubAck(1), now);
        }
        assert_eq!(exchanges.look_up(id(4), 7, true, 3, RETRY, now + 10 * RETRY), Begin::Full);
        assert_eq!(exchanges.look_up(id(1), 7, true, 3, RETRY, now + 10 * RETRY), Begin::UnderWay);
        assert_eq!(exchanges.look_up(id(4), 7, true, 4, RETRY, now), Begin::New);
    }
}
