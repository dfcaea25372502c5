//! Settings of drivers, as a plan of the load generator has them.

use crate::LoadgenError;
use crate::run::{Pace, Plan};

/// Setting of client programs: the line for the shell that starts one.
pub const COMMAND: &str = "command";

/// Environment variable of an agent: names of the variables, with commas between them, that the entry of its clients has
/// itself. Client programs get these as they are.
pub const OWN_VARIABLES: &str = "TENBIN_OWN_VARIABLES";

/// Setting of Kafka: acknowledgements that publishers wait for, `0`, `1` or `all` (the default).
pub const ACKS: &str = "acks";

/// Setting of JetStream and Kafka: copies of the stream or of each partition, 1 by default.
pub const REPLICAS: &str = "replicas";

/// Setting of Kafka: partitions of a topic that does not exist yet, 1 by default.
pub const PARTITIONS: &str = "partitions";

/// Setting of JetStream: seconds after which a message without acknowledgement is sent again, 0 (the default) for the
/// server's default of 30.
pub const ACK_WAIT: &str = "ack_wait";

/// The time of a setting in whole seconds, none by default.
///
/// # Errors
/// The setting is no number.
#[cfg(feature = "nats")]
pub(super) fn seconds(plan: &Plan, name: &str) -> Result<std::time::Duration, LoadgenError> {
    let Some(text) = plan.settings.get(name) else { return Ok(std::time::Duration::ZERO) };
    let seconds = text.parse().map(std::time::Duration::from_secs);
    seconds.map_err(|_| LoadgenError::Arguments(format!("setting {name}: {text:?} is no number of seconds")))
}

/// The number of a setting, 1 by default.
///
/// # Errors
/// The setting is no number of at least 1.
pub(super) fn count(plan: &Plan, name: &str) -> Result<u16, LoadgenError> {
    let Some(text) = plan.settings.get(name) else { return Ok(1) };
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| LoadgenError::Arguments(format!("setting {name}: {text:?} is no number of at least 1")))
}

/// Checks that the plan asks for nothing that only clients of MQTT have.
///
/// # Errors
/// It does. The error names the first such thing.
pub(super) fn check_nothing_of_mqtt(plan: &Plan) -> Result<(), LoadgenError> {
    let connection = &plan.connection;
    let publishers = &plan.publishers;
    let of_mqtt = [
        (plan.idle.is_some(), "idle connections"),
        (plan.cuts.is_some(), "cuts of connections"),
        (connection.tls.is_some(), "TLS"),
        (connection.websocket.is_some(), "WebSocket"),
        (connection.unix.is_some(), "unix sockets"),
        (connection.will.is_some(), "Wills"),
        (publishers.retain, "retained messages"),
        (plan.audiences.iter().any(|audience| audience.work.is_some()), "workers"),
        (matches!(publishers.pace, Pace::Arrivals { .. }), "the arrivals of a scenario"),
    ];
    match of_mqtt.iter().find(|(is_asked_for, _)| *is_asked_for) {
        None => Ok(()),
        Some((_, what)) => {
            Err(LoadgenError::Arguments(format!("no {what} with protocol {}, only with MQTT", plan.protocol)))
        }
    }
}

/// Checks that the plan has only these settings.
///
/// # Errors
/// It has another one, which the error names.
pub(super) fn check_known(plan: &Plan, settings: &[&str]) -> Result<(), LoadgenError> {
    match plan.settings.keys().find(|name| !settings.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(LoadgenError::Arguments(format!("protocol {} has no setting {name:?}", plan.protocol))),
    }
}
