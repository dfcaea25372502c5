use std::sync::Arc;

use super::{Origin, Peer, ProtocolVersion, ReasonCode, Text, UserProperty};

/// A connected client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Client {
    pub(crate) id: Text,
    pub(crate) user: Option<Text>,
    pub(crate) peer: Peer,
    pub(crate) listener: Arc<str>,
    pub(crate) version: ProtocolVersion,
}

impl Client {
    /// Client Identifier.
    pub fn id(&self) -> &Text {
        &self.id
    }

    /// User; `None` = anonymous.
    pub fn user(&self) -> Option<&Text> {
        self.user.as_ref()
    }

    /// Address of the client.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Name of the client's listener.
    pub fn listener(&self) -> &str {
        &self.listener
    }

    /// Protocol version of the connection.
    pub fn version(&self) -> ProtocolVersion {
        self.version
    }
}

/// A client that wants to connect. It has proved nothing yet.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connecting<'a> {
    /// Client Identifier; assigned by the broker if the client sent none.
    pub client_id: &'a Text,
    /// User Name.
    pub user_name: Option<&'a Text>,
    /// Where the connection comes from.
    pub origin: &'a Origin,
    /// Name of the client's listener.
    pub listener: &'a str,
    /// Protocol version.
    pub version: ProtocolVersion,
    /// Whether the client wants a new session.
    pub clean_start: bool,
    /// User Properties of CONNECT.
    pub user_properties: &'a [UserProperty],
}

impl<'a> Connecting<'a> {
    pub(crate) fn new(
        client_id: &'a Text,
        connect: &'a tenbin_codec::Connect,
        origin: &'a Origin,
        listener: &'a str,
    ) -> Self {
        Self {
            client_id,
            user_name: connect.user_name.as_ref(),
            origin,
            listener,
            version: connect.version,
            clean_start: connect.clean_start,
            user_properties: &connect.properties.user_properties,
        }
    }
}

/// Parts of a CONNACK that a hook may change. MQTT 3.1.1 has none of them.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Granted {
    /// User Properties.
    pub user_properties: Vec<UserProperty>,
    /// Text for people.
    pub reason_string: Option<Text>,
    /// Basis of response topics.
    pub response_information: Option<Text>,
    /// Whether the client continues an earlier session. Changes have no effect.
    pub session_present: bool,
}

/// How a connection has ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ending {
    /// Reason Code of DISCONNECT, sent by the client or, as far as the version has it, by the broker. `None`: the
    /// connection is lost.
    pub reason: Option<ReasonCode>,
    /// Whether the client has sent DISCONNECT.
    pub by_client: bool,
}
