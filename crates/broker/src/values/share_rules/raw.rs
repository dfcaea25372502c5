//! Rules of share groups as written in the configuration.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tenbin_balancer::{LateBinding, Policy};
use tenbin_codec::TopicFilter;

use super::{FairBy, ShareRule};
use crate::values::work_queue::RawWorkQueue;
use crate::values::{NamePattern, OnReject, OrderingKey, WorkQueue, name_pattern, policy_name};

/// A rule as written in the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    #[serde(deserialize_with = "name_pattern::deserialize", default = "any_name")]
    group: NamePattern,
    #[serde(deserialize_with = "topic_filter", default)]
    filter: Option<TopicFilter>,
    #[serde(deserialize_with = "policy", default)]
    policy: Option<Policy>,
    key: Option<OrderingKey>,
    strict: Option<bool>,
    #[serde(deserialize_with = "policy", default)]
    shadow: Option<Policy>,
    #[serde(deserialize_with = "late_binding", default)]
    late_binding: Option<LateBinding>,
    concurrency: Option<NonZeroU16>,
    fair_by: Option<FairBy>,
    hold_beyond_ms: Option<NonZeroU32>,
    #[serde(deserialize_with = "seconds", default)]
    keep_seconds: Option<NonZeroU32>,
    on_reject: Option<OnReject>,
    retry_delay_ms: Option<u32>,
    retry_delay_maximum_ms: Option<u32>,
    acknowledge_within_ms: Option<u32>,
    deliveries_maximum: Option<u32>,
    dead_letter: Option<String>,
    expired_to_dead_letter: Option<bool>,
}

impl TryFrom<RawRule> for ShareRule {
    type Error = String;

    fn try_from(raw: RawRule) -> Result<Self, String> {
        let RawRule {
            group,
            filter,
            mut policy,
            key,
            strict,
            shadow,
            late_binding,
            concurrency,
            fair_by,
            hold_beyond_ms,
            keep_seconds,
            on_reject,
            retry_delay_ms,
            retry_delay_maximum_ms,
            acknowledge_within_ms,
            deliveries_maximum,
            dead_letter,
            expired_to_dead_letter,
        } = raw;
        if key.is_none() && strict.is_some() {
            return Err("strict: needs a key".to_owned());
        }
        if key.is_some() && policy.get_or_insert(Policy::Adaptive).has_affinity() {
            let policy = policy.unwrap_or_default();
            return Err(format!("key: the policy {policy} has an affinity of its own"));
        }
        let is_adaptive = policy.is_none_or(|policy| policy == Policy::Adaptive);
        if late_binding.is_some_and(|late_binding| late_binding != LateBinding::Off) && !is_adaptive {
            return Err("late_binding: needs the policy adaptive".to_owned());
        }
        if concurrency.is_some() && !is_adaptive {
            return Err("concurrency: needs the policy adaptive".to_owned());
        }
        if concurrency.is_some() && late_binding == Some(LateBinding::Off) {
            return Err("concurrency: has no effect with late_binding off".to_owned());
        }
        if key.is_some() && fair_by == Some(FairBy::Publisher) {
            return Err("fair_by: a key may span publishers, so its messages wait in the order of arrival".to_owned());
        }
        if keep_seconds.is_some() {
            if group.has_star() {
                return Err("keep_seconds: needs `group`, the name of one group, without *".to_owned());
            }
            let filter = filter.as_ref().ok_or("keep_seconds: needs `filter`, the whole filter of the group")?;
            if "$share//".len() + group.text().len() + filter.as_bytes().len() > NAME_BYTES_MAX {
                return Err(format!("keep_seconds: `group` and `filter` are longer than {NAME_BYTES_MAX} bytes"));
            }
        }
        let work = RawWorkQueue {
            on_reject,
            retry_delay_ms,
            retry_delay_maximum_ms,
            acknowledge_within_ms,
            deliveries_maximum,
            dead_letter,
            expired_to_dead_letter,
        };
        let work = WorkQueue::of(work, &group, filter.as_ref())?.map(Arc::new);
        let (strict, late_binding) = (strict.unwrap_or(true), late_binding.unwrap_or_default());
        Ok(Self {
            group,
            filter,
            policy,
            key,
            strict,
            shadow,
            late_binding,
            concurrency,
            fair_by,
            hold_beyond_ms,
            keep_seconds,
            work,
        })
    }
}

/// Reads when messages wait: a name, or a truth value as in earlier versions.
fn late_binding<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LateBinding>, D::Error> {
    struct Names;

    impl serde::de::Visitor<'_> for Names {
        type Value = LateBinding;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("learn, told or off")
        }

        fn visit_bool<E: serde::de::Error>(self, is_on: bool) -> Result<LateBinding, E> {
            Ok(if is_on { LateBinding::Learn } else { LateBinding::Off })
        }

        fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<LateBinding, E> {
            LateBinding::from_str(name).map_err(E::custom)
        }
    }

    deserializer.deserialize_any(Names).map(Some)
}

fn any_name() -> NamePattern {
    NamePattern::new("*")
}

fn topic_filter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TopicFilter>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = |reason: &dyn fmt::Display| serde::de::Error::custom(format!("{text:?}: {reason}"));
    let filter = TopicFilter::try_from(&text[..]).map_err(|error| wrong(&error))?;
    if filter.is_shared() {
        return Err(wrong(&"must be the filter after $share/name/"));
    }
    Ok(Some(filter))
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Policy>, D::Error> {
    policy_name::deserialize(deserializer).map(Some)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU32>, D::Error> {
    let seconds = i64::deserialize(deserializer)?;
    let wrong = || serde::de::Error::custom(format!("{seconds} is no number of seconds from 1 to {}", u32::MAX));
    u32::try_from(seconds).ok().and_then(NonZeroU32::new).map(Some).ok_or_else(wrong)
}

/// Longest name of a standing group, in bytes, as the store bounds its keys.
const NAME_BYTES_MAX: usize = 65_000;
