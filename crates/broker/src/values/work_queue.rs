//! Rules of a share group that serves as a work queue: rejected messages, time-outs and dead letters.

use std::time::Duration;

use serde::Deserialize;
use tenbin_codec::{TopicFilter, TopicName};

use super::NamePattern;

/// Rules of a share group about messages that its members do not process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkQueue {
    /// What happens to a message that a member rejects.
    pub on_reject: OnReject,
    /// Pause before the second delivery of a rejected message. It doubles with each delivery.
    pub retry_delay: Duration,
    /// Longest pause.
    pub retry_delay_maximum: Duration,
    /// Time that a member has for an acknowledgement; `None` = no limit.
    pub acknowledge_within: Option<Duration>,
    /// Deliveries of a message after which it becomes a dead letter; 0 = no limit.
    pub deliveries_maximum: u32,
    /// Topic of dead letters; `None` = they are dropped and counted.
    pub dead_letter: Option<DeadLetterTopic>,
    /// Whether a message that expires while it waits becomes a dead letter.
    pub expired_to_dead_letter: bool,
}

/// What happens to a message of a share group that a member rejects: PUBACK or PUBREC with a Reason Code of 0x80 or more.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnReject {
    /// It ends, as the standard says `[MQTT-4.8.2-6]`.
    #[default]
    Discard,
    /// It is delivered again after a pause.
    Retry,
    /// It becomes a dead letter at once.
    DeadLetter,
}

/// Template of the topics of dead letters: `%g` stands for the share name, `%t` for the topic of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterTopic(Box<str>);

/// The keys of a work queue as written in a rule.
#[derive(Debug, Default)]
pub(super) struct RawWorkQueue {
    pub(super) on_reject: Option<OnReject>,
    pub(super) retry_delay_ms: Option<u32>,
    pub(super) retry_delay_maximum_ms: Option<u32>,
    pub(super) acknowledge_within_ms: Option<u32>,
    pub(super) deliveries_maximum: Option<u32>,
    pub(super) dead_letter: Option<String>,
    pub(super) expired_to_dead_letter: Option<bool>,
}

impl WorkQueue {
    /// The pause after a message was delivered so many times.
    pub(crate) fn pause(&self, deliveries: u32) -> Duration {
        let doubled = 1_u32.checked_shl(deliveries.saturating_sub(1)).unwrap_or(u32::MAX);
        self.retry_delay.saturating_mul(doubled).min(self.retry_delay_maximum)
    }

    /// Whether a message that was delivered so many times is not delivered again.
    pub(crate) fn is_over(&self, deliveries: u32) -> bool {
        self.deliveries_maximum != 0 && deliveries >= self.deliveries_maximum
    }

    /// Time between two looks for messages without an acknowledgement in time; `None` = there is no limit.
    pub(crate) fn look_interval(&self) -> Option<Duration> {
        self.acknowledge_within.map(|limit| (limit / 8).clamp(LOOK_LEAST, LOOK_MOST))
    }

    /// Makes the rules of the keys; `None` if there are none of them. `group` and `filter`: those of the rule.
    pub(super) fn of(
        raw: RawWorkQueue,
        group: &NamePattern,
        filter: Option<&TopicFilter>,
    ) -> Result<Option<Self>, String> {
        let RawWorkQueue { acknowledge_within_ms, deliveries_maximum, .. } = raw;
        let on_reject = raw.on_reject.unwrap_or_default();
        for (key, value) in
            [("retry_delay_ms", raw.retry_delay_ms), ("retry_delay_maximum_ms", raw.retry_delay_maximum_ms)]
        {
            if value.is_some() && on_reject != OnReject::Retry {
                return Err(format!("{key}: needs on_reject = \"retry\""));
            }
        }
        let retry_delay = raw.retry_delay_ms.unwrap_or(RETRY_DELAY_MS);
        let retry_delay_maximum = raw.retry_delay_maximum_ms.unwrap_or(RETRY_DELAY_MAXIMUM_MS.max(retry_delay));
        if retry_delay_maximum < retry_delay {
            return Err(format!(
                "retry_delay_maximum_ms: {retry_delay_maximum} is below retry_delay_ms, {retry_delay}"
            ));
        }
        let deliveries_maximum = deliveries_maximum.unwrap_or(0);
        let expired_to_dead_letter = raw.expired_to_dead_letter.unwrap_or(false);
        let makes_letters = match on_reject {
            OnReject::DeadLetter => Some("on_reject = \"dead_letter\""),
            _ if deliveries_maximum > 0 => Some("deliveries_maximum"),
            _ if expired_to_dead_letter => Some("expired_to_dead_letter"),
            _ => None,
        };
        let dead_letter = match (raw.dead_letter, makes_letters) {
            (None, Some(by)) => {
                return Err(format!("{by}: needs dead_letter, the topic of dead letters; \"\" drops and counts them"));
            }
            (Some(_), None) if on_reject != OnReject::Retry => {
                let needed = "on_reject, deliveries_maximum or expired_to_dead_letter";
                return Err(format!("dead_letter: no message becomes a dead letter without {needed}"));
            }
            (None, None) => None,
            (Some(text), _) if text.is_empty() => None,
            (Some(text), _) => Some(DeadLetterTopic::parse(&text)?),
        };
        if expired_to_dead_letter && dead_letter.is_none() {
            return Err("expired_to_dead_letter: needs dead_letter, a topic".to_owned());
        }
        if let Some((topic, filter)) = dead_letter.as_ref().zip(filter)
            && topic.may_match(group, filter)
        {
            let filter = filter.text();
            return Err(format!("dead_letter: the group may get its own dead letters, whose topic may match {filter}"));
        }
        let acknowledge_within = acknowledge_within_ms.filter(|&ms| ms > 0);
        let has_any = on_reject != OnReject::Discard || acknowledge_within.is_some() || makes_letters.is_some();
        Ok(has_any.then(|| Self {
            on_reject,
            retry_delay: Duration::from_millis(retry_delay.into()),
            retry_delay_maximum: Duration::from_millis(retry_delay_maximum.into()),
            acknowledge_within: acknowledge_within.map(|ms| Duration::from_millis(ms.into())),
            deliveries_maximum,
            dead_letter,
            expired_to_dead_letter,
        }))
    }
}

impl DeadLetterTopic {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |reason: &str| Err(format!("dead_letter: {text:?}: {reason}"));
        if text.starts_with("%t") || text.starts_with('$') {
            return wrong("must not begin with %t or $");
        }
        if !text.split('%').skip(1).all(|part| part.starts_with(['g', 't'])) {
            return wrong("% needs g, for the share name, or t, for the topic, behind it");
        }
        match TopicName::try_from(&text.replace('%', "")[..]) {
            Ok(_) => Ok(Self(text.into())),
            Err(error) => wrong(&error.to_string()),
        }
    }

    /// The topic of a dead letter; `None` if it is no Topic Name, or is reserved.
    pub(crate) fn of(&self, group: &str, topic: &str) -> Option<TopicName> {
        let name = self.parts(group, topic);
        TopicName::try_from(&name[..]).ok().filter(|name| !name.as_bytes().starts_with(b"$"))
    }

    /// Replaces both placeholders. A topic may contain `%g`, and a share name `%t`.
    fn parts(&self, group: &str, topic: &str) -> String {
        let mut parts = self.0.split('%');
        let mut name = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            name.push_str(if part.starts_with('g') { group } else { topic });
            name.push_str(part.get(1..).unwrap_or_default());
        }
        name
    }

    /// Whether a group of this name may get its own dead letters through `filter`, as far as the template tells.
    pub(super) fn may_match(&self, group: &NamePattern, filter: &TopicFilter) -> bool {
        let template = match group.has_star() {
            true => self.0.to_string(),
            false => self.0.replace("%g", group.text()),
        };
        let filter: Vec<_> = filter.text().as_str().split('/').collect();
        let mut filter = filter.into_iter();
        for level in template.split('/') {
            let literal = level.split('%').next().unwrap_or_default();
            match filter.next() {
                Some("#") => return true,
                Some("+") => {}
                Some(wanted) if literal == level && wanted == level => {}
                Some(wanted) if literal != level && wanted.starts_with(literal) => {}
                _ => return false,
            }
            if level.contains("%t") {
                return true; // the topic may have any levels
            }
        }
        matches!(filter.next(), None | Some("#"))
    }
}

const RETRY_DELAY_MS: u32 = 1000;
const RETRY_DELAY_MAXIMUM_MS: u32 = 60_000;
/// Bounds of [`WorkQueue::look_interval`].
const LOOK_LEAST: Duration = Duration::from_millis(20);
const LOOK_MOST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(raw: RawWorkQueue) -> Result<Option<WorkQueue>, String> {
        WorkQueue::of(raw, &NamePattern::new("jobs"), TopicFilter::try_from("in/#").ok().as_ref())
    }

    fn retry() -> RawWorkQueue {
        RawWorkQueue { on_reject: Some(OnReject::Retry), ..RawWorkQueue::default() }
    }

    #[test]
    fn pause_doubles_up_to_its_maximum() {
        let rules = rules(RawWorkQueue { retry_delay_maximum_ms: Some(5000), ..retry() }).unwrap().unwrap();
        let pauses = [1, 2, 3, 4, 40, u32::MAX].map(|deliveries| rules.pause(deliveries).as_millis());
        assert_eq!(pauses, [1000, 2000, 4000, 5000, 5000, 5000]);
        assert!(!rules.is_over(u32::MAX), "no limit");
    }

    #[test]
    fn rule_without_keys_of_a_work_queue_has_none() {
        assert_eq!(rules(RawWorkQueue::default()), Ok(None));
        let conformant = RawWorkQueue { on_reject: Some(OnReject::Discard), ..RawWorkQueue::default() };
        assert_eq!(rules(conformant), Ok(None));
    }

    #[test]
    fn keys_without_effect_and_wrong_values_are_refused() {
        let none = RawWorkQueue::default;
        for (raw, words) in [
            (RawWorkQueue { retry_delay_ms: Some(1), ..none() }, "retry_delay_ms: needs on_reject"),
            (RawWorkQueue { retry_delay_maximum_ms: Some(1), ..none() }, "retry_delay_maximum_ms: needs on_reject"),
            (RawWorkQueue { retry_delay_maximum_ms: Some(1), ..retry() }, "1 is below retry_delay_ms, 1000"),
            (RawWorkQueue { deliveries_maximum: Some(1), ..retry() }, "deliveries_maximum: needs dead_letter"),
            (RawWorkQueue { on_reject: Some(OnReject::DeadLetter), ..none() }, "needs dead_letter"),
            (RawWorkQueue { dead_letter: Some("dead".into()), ..none() }, "no message becomes a dead letter"),
            (
                RawWorkQueue { expired_to_dead_letter: Some(true), dead_letter: Some(String::new()), ..retry() },
                "expired_to_dead_letter: needs dead_letter, a topic",
            ),
            (RawWorkQueue { dead_letter: Some("%t/dead".into()), ..retry() }, "must not begin with %t or $"),
            (RawWorkQueue { dead_letter: Some("$dead".into()), ..retry() }, "must not begin with %t or $"),
            (RawWorkQueue { dead_letter: Some("dead/%x".into()), ..retry() }, "% needs g"),
            (RawWorkQueue { dead_letter: Some("dead/%%gt".into()), ..retry() }, "% needs g"),
            (RawWorkQueue { dead_letter: Some("dead/#".into()), ..retry() }, "dead_letter: \"dead/#\""),
            (RawWorkQueue { dead_letter: Some("in/%g".into()), ..retry() }, "its own dead letters"),
        ] {
            let error = rules(raw).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn dead_letter_topic_is_compared_with_the_filter() {
        for (template, filter, expected) in [
            ("dead/%t", "#", true),
            ("dead/%g/%t", "in/#", false),
            ("dead/%g/%t", "+/jobs/#", true),
            ("dead/%g/%t", "+/other/#", false),
            ("dead/%g", "+/jobs", true),
            ("dead/%g", "+/jobs/x", false),
            ("dead-%t", "in/#", false),
            ("dead-%t", "dead-in/#", true),
            ("dead/%g", "dead/jobs/#", true),
        ] {
            let (topic, filter) = (DeadLetterTopic::parse(template).unwrap(), TopicFilter::try_from(filter).unwrap());
            assert_eq!(topic.may_match(&NamePattern::new("jobs"), &filter), expected, "{template} {}", filter.text());
        }
        assert!(DeadLetterTopic::parse("%g/x").unwrap().may_match(&NamePattern::new("a*"), &"b/x".try_into().unwrap()));
    }

    #[test]
    fn placeholders_are_replaced_once() {
        let topic = DeadLetterTopic::parse("dead/%g/%t").unwrap();
        let of =
            |group, name| topic.of(group, name).map(|topic| String::from_utf8_lossy(topic.as_bytes()).into_owned());
        assert_eq!(of("jobs", "in/1").as_deref(), Some("dead/jobs/in/1"));
        assert_eq!(of("%t", "%g").as_deref(), Some("dead/%t/%g"));
        assert_eq!(of("jobs", &"x".repeat(65_535)), None);
        assert_eq!(DeadLetterTopic::parse("%g/x").unwrap().of("$SYS", "t"), None);
    }
}
