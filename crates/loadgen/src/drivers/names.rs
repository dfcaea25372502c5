//! Names and addresses of other protocols for a plan.

use crate::LoadgenError;
use crate::run::{Broker, Doors, Plan};

/// The first level of a topic or filter: the name of the stream of JetStream, and of the topic of Kafka.
///
/// All streams of a plan with the same first level share it.
pub fn first_level(topic: &str) -> &str {
    topic.split_once('/').map_or(topic, |(first, _)| first)
}

/// The subject of a topic or filter of MQTT: `a/+/#` becomes `a.*.>`.
#[cfg(feature = "nats")]
pub(super) fn subject(topic: &str) -> String {
    let level = |level| match level {
        "+" => "*",
        "#" => ">",
        level => level,
    };
    topic.split('/').map(level).collect::<Vec<_>>().join(".")
}

/// `HOST:PORT` of all doors of the system of broker `first`, which is in front.
pub(super) fn doors(plan: &Plan, first: usize) -> Vec<String> {
    let brokers = &plan.brokers;
    let count = if plan.doors == Doors::OneSystem { brokers.len() } else { 1 };
    let door = |number: usize| {
        let Broker { host, port, .. } = &brokers[(first + number) % brokers.len()];
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    };
    (0..count).map(door).collect()
}

/// Checks that the first level of all filters is no wildcard, since it is a name.
///
/// # Errors
/// A first level is one. The error names the filter.
pub(super) fn check_filters(plan: &Plan) -> Result<(), LoadgenError> {
    let is_wildcard = |filter: &str| matches!(first_level(filter), "+" | "#");
    match plan.audiences.iter().find(|audience| is_wildcard(&audience.filter)) {
        None => Ok(()),
        Some(audience) => Err(LoadgenError::Arguments(format!(
            "filter {:?}: protocol {} needs a name as its first level",
            audience.filter, plan.protocol
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "nats")]
    #[test]
    fn filters_become_subjects_with_the_wildcards_of_nats() {
        assert_eq!(["a", "a/b/0", "a/+/c", "a/#"].map(subject), ["a", "a.b.0", "a.*.c", "a.>"]);
    }

    #[test]
    fn the_first_level_ends_at_the_first_slash() {
        assert_eq!(["verify/0/1", "verify", "verify/#"].map(first_level), ["verify"; 3]);
    }
}
