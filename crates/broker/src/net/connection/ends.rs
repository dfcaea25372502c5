//! The table of ends of a connection: all that the broker says, counts and sends at each.

use std::fmt::Display;
use std::io::ErrorKind;

use tenbin_codec::{DecodeError, PacketType, ReasonCode, Text};
use tenbin_session::Violation;

use crate::auth::LoginRefusal;
use crate::hooks::Ending;
use crate::metrics::Metrics;
use crate::net::authentication::Refusal;
use crate::net::core::Core;
use crate::net::end::{End, bound_of};
use crate::outbox::Control;
use crate::registry::Place;
use crate::values::Bound;

impl End {
    /// The row of this end in the table.
    pub(super) fn row<'a>(&'a self, core: &Core) -> Row<'a> {
        let (shared, client) = (&core.open.shared, &core.lease.client);
        match self {
            Self::Disconnect(reason) => Row {
                ending: Ending { reason: Some(*reason), by_client: true },
                fields: Fields { reason: Some(*reason), ..Fields::default() },
                removes_will: *reason == ReasonCode::Success,
                ..Row::by_client(Event::Debug(&"disconnected"))
            },
            Self::Closed(error) if error.kind() == ErrorKind::InvalidData => Row {
                fields: Fields { error: Some(error), ..Fields::default() },
                count: |metrics| metrics.violations.add(1),
                is_read: true,
                ..Row::by_client(Event::Info(&"closing: malformed bytes"))
            },
            Self::Closed(error) => Row {
                fields: Fields { error: Some(error), ..Fields::default() },
                ..Row::by_client(Event::Debug(&"connection lost"))
            },
            Self::Violation(violation) => Row {
                fields: Fields { rule: Some(violation.rule()), ..Fields::default() },
                count: match violation {
                    Violation::Decode(DecodeError::TopicFilter | DecodeError::SharedFilter) => |metrics| {
                        metrics.violations.add(1);
                        metrics.subscriptions_invalid.add(1);
                    },
                    _ => |metrics| metrics.violations.add(1),
                },
                bound: match violation {
                    Violation::Decode(error) => bound_of(*error, Bound::PacketBytes),
                    Violation::ReceiveMaximum(_) => Some(Bound::ReceiveMaximum),
                    Violation::TopicAliasTooHigh(_) => Some(Bound::TopicAliases),
                    _ => None,
                },
                last: Last::Answer(violation),
                ..Row::by_broker(Event::Info(violation), violation.reason())
            },
            // [MQTT-3.1.4-3]
            Self::Control(Control::TakenOver) => Row {
                is_read: false, // the other connection waits for this end
                ..Row::by_broker(Event::Debug(&"session taken over"), ReasonCode::SessionTakenOver)
            },
            Self::Control(Control::ShuttingDown) => Row {
                is_read: false, // the end of the broker waits
                ..Row::by_broker(Event::Nothing, ReasonCode::ServerShuttingDown)
            },
            Self::Control(Control::TooSlow) => Row {
                count: |metrics| metrics.disconnected_slow.add(1),
                ..Row::by_broker(
                    Event::Info(&"disconnected: too slow for its subscriptions"),
                    ReasonCode::QuotaExceeded,
                )
            },
            Self::Control(Control::Moved) => Row {
                fields: Fields { server: shared.routing.slow_receivers.server(client), ..Fields::default() },
                count: match client.place() {
                    Place::AtFollower => |metrics| metrics.slow_returned.add(1),
                    Place::MayMove | Place::Stays => |metrics| metrics.slow_moved.add(1),
                },
                last: Last::Disconnect(ReasonCode::UseAnotherServer, shared.routing.slow_receivers.server(client)),
                ..Row::by_broker(Event::Info(&"the receiver goes to another node"), ReasonCode::UseAnotherServer)
            },
            Self::Control(Control::Kicked(reason)) => Row {
                fields: Fields { reason: Some(*reason), ..Fields::default() },
                last: match reason {
                    ReasonCode::UseAnotherServer | ReasonCode::ServerMoved => {
                        Last::Disconnect(*reason, shared.operations.server_reference.load().as_deref().cloned())
                    }
                    _ => Last::Disconnect(*reason, None),
                },
                ..Row::by_broker(Event::Info(&"disconnected by an operator"), *reason)
            },
            Self::Control(Control::Asked) => Row::of_no_end(),
            Self::Control(Control::RightsChanged) => Row::of_no_end(),
            Self::Refused(refusal) => Row {
                fields: Fields { refusal: Some(refusal), ..Fields::default() },
                last: match refusal.reason {
                    Some(reason) => Last::Disconnect(reason, refusal.server_reference.clone()),
                    None => Last::Nothing,
                },
                ..Row::by_broker(
                    match &refusal.login {
                        Some(login) => Event::Login(login),
                        None => Event::Info(&"refused when it authenticated again"),
                    },
                    refusal.reason.unwrap_or(ReasonCode::NotAuthorized),
                )
            },
            Self::Revoked => Row::by_broker(Event::Info(&"no longer authorized"), ReasonCode::NotAuthorized),
            Self::Expired => Row::by_broker(Event::Info(&"credentials have expired"), ReasonCode::MaximumConnectTime),
            Self::Overdue => Row::by_broker(
                Event::Info(&"disconnected: did not acknowledge a message of a share group in time"),
                ReasonCode::KeepAliveTimeout,
            ),
            Self::Stalled => Row::by_broker(Event::Info(&"packet stands still"), ReasonCode::KeepAliveTimeout),
            Self::NoMemory(bytes, bound) => Row {
                fields: Fields { bytes: Some(*bytes), ..Fields::default() },
                bound: Some(*bound),
                ..Row::by_broker(
                    Event::Info(&"packet exceeds the memory limit of its owner"),
                    ReasonCode::QuotaExceeded,
                )
            },
            Self::Unanswered => Row {
                last: Last::Nothing,
                ..Row::by_broker(
                    Event::Info(&"closing: a message found no room, and MQTT 3.1.1 has no refusal"),
                    ReasonCode::QuotaExceeded,
                )
            },
            Self::AnswerTooLarge(packet) => Row {
                fields: Fields { packet: Some(*packet), ..Fields::default() },
                ..Row::by_broker(
                    Event::Info(&"answer exceeds the client's Maximum Packet Size"),
                    ReasonCode::PacketTooLarge,
                )
            },
            Self::Hook(reason) => Row {
                fields: Fields { reason: Some(*reason), ..Fields::default() },
                ..Row::by_broker(Event::Info(&"ended by a hook"), *reason)
            },
        }
    }
}

/// What the broker says, counts and sends at one end.
pub(super) struct Row<'a> {
    pub(super) event: Event<'a>,
    pub(super) fields: Fields<'a>,
    pub(super) count: fn(&Metrics),
    /// The bound that ends the connection.
    pub(super) bound: Option<Bound>,
    /// How hooks see it; without a reason the connection is lost.
    pub(super) ending: Ending,
    /// The last packet to the client.
    pub(super) last: Last<'a>,
    /// Whether the client still reads answers to earlier packets. A client that repeats unanswered packets would
    /// otherwise meet the same limit with the same packets for ever.
    pub(super) is_read: bool,
    /// Whether the Will is not published `[MQTT-3.14.4-3]`.
    pub(super) removes_will: bool,
}

/// The line in the log.
pub(super) enum Event<'a> {
    Nothing,
    Debug(&'a (dyn Display + Sync)),
    Info(&'a (dyn Display + Sync)),
    /// The line of a refused login.
    Login(&'a LoginRefusal),
}

/// Fields of the line, after peer and client.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) refusal: Option<&'a Refusal>,
    pub(super) packet: Option<PacketType>,
    pub(super) bytes: Option<usize>,
    pub(super) rule: Option<&'static str>,
    pub(super) reason: Option<ReasonCode>,
    pub(super) error: Option<&'a std::io::Error>,
    pub(super) server: Option<Text>,
}

/// The last packet to the client.
pub(super) enum Last<'a> {
    Nothing,
    /// With a Server Reference, if there is one.
    Disconnect(ReasonCode, Option<Text>),
    /// The answer to a violation.
    Answer(&'a Violation),
}

impl<'a> Row<'a> {
    /// Why the connection ends, in words.
    pub(super) fn why(&self) -> String {
        let event = match self.event {
            Event::Debug(event) | Event::Info(event) => event.to_string(),
            Event::Nothing | Event::Login(_) => "ended by the broker".to_owned(),
        };
        match (self.fields.reason.filter(|reason| reason.is_error()), self.fields.error) {
            (Some(reason), _) => format!("{event}: {reason}"),
            (None, Some(error)) => format!("{event}: {error}"),
            (None, None) => event,
        }
    }

    /// A request that ends nothing.
    fn of_no_end() -> Self {
        Self { last: Last::Nothing, ..Self::by_broker(Event::Nothing, ReasonCode::NotAuthorized) }
    }

    /// The client has sent DISCONNECT, or the connection is lost: the client gets no packet.
    fn by_client(event: Event<'a>) -> Self {
        Self {
            ending: Ending { reason: None, by_client: false },
            last: Last::Nothing,
            is_read: false,
            ..Self::by_broker(event, ReasonCode::Success)
        }
    }

    /// The broker ends the connection with DISCONNECT.
    fn by_broker(event: Event<'a>, reason: ReasonCode) -> Self {
        Self {
            event,
            fields: Fields::default(),
            count: |_| {},
            bound: None,
            ending: Ending { reason: Some(reason), by_client: false },
            last: Last::Disconnect(reason, None),
            is_read: true,
            removes_will: false,
        }
    }
}
