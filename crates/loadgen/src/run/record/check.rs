//! Validation of a plan. Each error is one line that names the faulty setting.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;

use tenbin_codec::TopicFilter;

use crate::LoadgenError;
use crate::run::{Audience, Idle, OnLost, Pace, Plan, Spread, Stamp, Work, WorkerKind};

/// Checks everything except topics and filters of single streams and receivers.
pub(super) fn check(plan: &Plan) -> Result<(), LoadgenError> {
    want(!plan.brokers.is_empty(), "a run needs a broker")?;
    want(u16::try_from(plan.brokers.len()).is_ok(), "65535 brokers at most")?;
    unique("broker", plan.brokers.iter().map(|broker| &broker.name))?;
    want(plan.threads > 0, "threads: at least 1")?;
    want(!plan.schedule.time_limit.is_zero(), "the time limit: more than 0 s")?;
    check_publishers(plan)?;
    unique("audience", plan.audiences.iter().map(|audience| &audience.name))?;
    for audience in &plan.audiences {
        check_audience(plan, audience)?;
    }
    check_groups(plan)?;
    if let Some(Idle { rate: Some(rate), .. }) = plan.idle {
        want(
            rate > 0.0 && rate.is_finite(),
            format_args!("idle connections: {rate} new ones a second, want more than 0"),
        )?;
    }
    want(plan.cuts.is_none_or(|cuts| !cuts.every.is_zero()), "cuts: more than 0 s from one to the next")?;
    if let OnLost::Reconnect { first, most } = plan.on_lost {
        want(
            !first.is_zero() && first <= most,
            "reconnect: a first pause above 0 s, and no longer than the longest one",
        )?;
    }
    if let Some(will) = &plan.connection.will {
        check_qos("the Will", will.qos)?;
        topic_name(&will.topic)?;
    }
    Ok(())
}

/// Builds the error for a rejected plan.
pub(super) fn refused(what: impl fmt::Display) -> LoadgenError {
    LoadgenError::Arguments(what.to_string())
}

/// Parses `text` as a topic name.
pub(super) fn topic_name(text: &str) -> Result<tenbin_codec::TopicName, LoadgenError> {
    tenbin_codec::TopicName::try_from(text).map_err(|error| refused(format_args!("topic {text:?}: {error}")))
}

/// Parses `text` as the Topic Filter of the audience `name`.
pub(super) fn topic_filter(name: &str, text: &str) -> Result<TopicFilter, LoadgenError> {
    TopicFilter::try_from(text).map_err(|error| refused(format_args!("audience {name}: filter {text:?}: {error}")))
}

fn check_publishers(plan: &Plan) -> Result<(), LoadgenError> {
    let publishers = &plan.publishers;
    check_qos("publishers", publishers.qos)?;
    check_spread(plan, "publishers", publishers.spread)?;
    want(publishers.topics > 0, "publishers: at least 1 topic")?;
    want(publishers.topics == 1 || publishers.topic.contains("{topic}"), "several topics need {topic} in their name")?;
    want(!publishers.topic.contains("{subscriber}"), "{subscriber} stands for nothing in a publisher's topic")?;
    want(publishers.count.checked_mul(publishers.topics).is_some(), "publishers × topics: 4294967295 at most")?;
    let payload = publishers.payload as usize;
    want(
        (Stamp::TIME_LEN..=PAYLOAD_MAX).contains(&payload),
        format_args!("payload: {payload} bytes, want 8 to {PAYLOAD_MAX}"),
    )?;
    want(publishers.in_flight > 0, "publishers: at least 1 message in flight")?;
    match publishers.pace {
        Pace::Arrivals { .. } => want(publishers.messages.is_some(), "arrival times need a number of messages"),
        Pace::Open { interval } => want(!interval.is_zero(), "an interval of 0 is no schedule"),
        Pace::Closed { window } => want(window > 0, "a window of 0 lets nothing out"),
        Pace::Unlimited => Ok(()),
    }
}

fn check_audience(plan: &Plan, audience: &Audience) -> Result<(), LoadgenError> {
    let name = &audience.name;
    check_qos(format_args!("audience {name}"), audience.qos)?;
    check_spread(plan, format_args!("audience {name}"), audience.spread)?;
    for placeholder in ["{publisher}", "{topic}"] {
        let is_there = audience.filter.contains(placeholder);
        want(
            !is_there,
            format_args!("audience {name}: {placeholder} stands for nothing in a filter, use + or {{subscriber}}"),
        )?;
    }
    want(
        !audience.filter.starts_with("$share/"),
        format_args!("audience {name}: give the share group in the field `share`, not in the filter"),
    )?;
    if let Some(group) = &audience.share {
        let each = audience.filter.contains("{subscriber}");
        want(!each, format_args!("audience {name}: a share group has one filter, without {{subscriber}}"))?;
        let is_legal = !group.is_empty() && !group.contains(['/', '+', '#']);
        want(is_legal, format_args!("audience {name}: no share group can be called {group:?} [MQTT-4.8.2-2]"))?;
        topic_filter(name, &format!("$share/{group}/{}", audience.filter))?;
    }
    audience.work.as_ref().map_or(Ok(()), |work| check_work(plan, name, work))
}

/// Rejects two audiences in one share group: the broker would deliver each message to only one of them.
fn check_groups(plan: &Plan) -> Result<(), LoadgenError> {
    let mut groups: HashMap<_, &str> = HashMap::new();
    for audience in &plan.audiences {
        let Some(group) = &audience.share else { continue };
        if let Some(other) = groups.insert((group, &audience.filter), &audience.name) {
            return Err(refused(format_args!("audiences {other} and {} are one share group", audience.name)));
        }
    }
    Ok(())
}

fn check_work(plan: &Plan, name: &str, work: &Work) -> Result<(), LoadgenError> {
    want(!work.workers.is_empty(), format_args!("audience {name}: workers need a service time"))?;
    if let Some((key, message)) = work.workers.iter().find_map(WorkerKind::fault) {
        return Err(refused(format_args!("audience {name}: {key}: {message}")));
    }
    let is_plain = work.program.is_empty() || plan.publishers.count * plan.publishers.topics == 1;
    want(is_plain, format_args!("audience {name}: worker programs need one publisher with one topic"))?;
    let waits = work.reports.is_none_or(|reports| !reports.interval.is_zero());
    want(waits, format_args!("audience {name}: more than 0 s from one load report to the next"))
}

fn check_qos(whose: impl fmt::Display, qos: u8) -> Result<(), LoadgenError> {
    want(qos <= 2, format_args!("{whose}: QoS {qos}, want 0, 1 or 2"))
}

fn check_spread(plan: &Plan, whose: impl fmt::Display, spread: Spread) -> Result<(), LoadgenError> {
    let Spread::Broker(number) = spread else { return Ok(()) };
    want(usize::from(number) < plan.brokers.len(), format_args!("{whose}: there is no broker {number}, the first is 0"))
}

fn unique<T: Eq + Hash + fmt::Display>(what: &str, names: impl Iterator<Item = T>) -> Result<(), LoadgenError> {
    let mut seen = HashSet::new();
    for name in names {
        let text = format!("two {what}s are called {name}");
        want(seen.insert(name), text)?;
    }
    Ok(())
}

fn want(is_so: bool, otherwise: impl fmt::Display) -> Result<(), LoadgenError> {
    if is_so { Ok(()) } else { Err(refused(otherwise)) }
}

/// Largest payload of a PUBLISH that also carries the longest topic (MQTT 5.0 §1.5.5), in bytes.
const PAYLOAD_MAX: usize = 268_435_455 - 65_535 - 16;
