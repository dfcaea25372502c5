//! Settings of a bridge from its table.

use std::future::ready;
use std::net::SocketAddr;
use std::path::Path;

use tenbin_bridge::{Direction, Endpoint, Rule, Settings, Transport};
use tenbin_broker::config::{Bridge, BridgeDirection, BridgeTls, BrokerUrl};
use tenbin_broker::gateways::Entrance;
use tenbin_codec::{ProtocolVersion, Secret, Text, TopicName};
use tenbin_kit::tls::ClientFiles;

use crate::mqtt_tls;

/// User Name and password.
type Credentials = (Text, Option<Secret>);

/// Bytes that a stream in memory holds in each direction.
const CAPACITY: usize = 64 * 1024;
/// Address of a bridge at its broker.
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Settings of a bridge between two brokers elsewhere.
///
/// # Errors
/// A line that names the key and its error.
pub(super) fn standalone(bridge: &Bridge, local: &BrokerUrl) -> Result<Settings, String> {
    let transport = transport(local, &BridgeTls::default()).map_err(|reason| format!("local: {reason}"))?;
    let credentials = (&bridge.local_user, &bridge.local_password_file);
    let credentials = login(credentials.0.as_ref(), credentials.1.as_deref());
    let credentials = credentials.map_err(|reason| format!("local_password_file: {reason}"))?;
    settings(bridge, local.address(), transport, credentials)
}

/// Settings of a bridge from the broker in this process.
///
/// # Errors
/// As of [`standalone`].
pub(crate) fn embedded(bridge: &Bridge, entrance: Entrance) -> Result<Settings, String> {
    let transport = Transport::tcp().opened_by(move || {
        let (ours, brokers) = tokio::io::duplex(CAPACITY);
        entrance.serve(brokers, PEER, None);
        ready(Ok(ours))
    });
    settings(bridge, "in this process".to_owned(), transport, None)
}

/// Checks the settings and files of a bridge from the broker in this process.
///
/// # Errors
/// As of [`standalone`].
pub(crate) fn check(bridge: &Bridge) -> Result<(), String> {
    embedded(bridge, Entrance::default()).map(drop)
}

fn settings(
    bridge: &Bridge,
    local_address: String,
    local_transport: Transport,
    local_credentials: Option<Credentials>,
) -> Result<Settings, String> {
    let credentials = login(bridge.user.as_ref(), bridge.password_file.as_deref());
    let credentials = credentials.map_err(|reason| format!("password_file: {reason}"))?;
    let client_id = bridge.client_id().clone();
    let local_id = Text::try_from(bridge.local_client_id());
    let endpoint = |address, transport, client_id, credentials| Endpoint {
        address,
        transport,
        version: ProtocolVersion::V5,
        is_marked: bridge.try_private,
        client_id,
        credentials,
        keep_alive: bridge.keep_alive_seconds(),
    };
    let remote_transport = transport(&bridge.remote, &bridge.tls)?;
    let remote = endpoint(bridge.remote.address(), remote_transport, client_id.clone(), credentials);
    let local_id = local_id.map_err(|error| format!("name: {error}"))?;
    let local = endpoint(local_address, local_transport, local_id, local_credentials);
    let rules = bridge.topics.iter().map(|topic| {
        let direction = match topic.direction {
            BridgeDirection::In => Direction::In,
            BridgeDirection::Out => Direction::Out,
            BridgeDirection::Both => Direction::Both,
        };
        Rule::new(direction, &topic.filter, &topic.local_prefix, &topic.remote_prefix, topic.qos)
    });
    let state_topic = format!("$SYS/broker/connection/{}/state", client_id.as_str());
    let state_topic = bridge.notifications.then(|| TopicName::try_from(&state_topic[..])).transpose();
    Ok(Settings {
        name: bridge.name.clone(),
        local,
        remote: Endpoint { version: bridge.mqtt, ..remote },
        rules: rules.collect::<Result<_, _>>().map_err(|reason| format!("topics: {reason}"))?,
        receive_maximum: bridge.receive_maximum(),
        state_topic: state_topic.map_err(|error| format!("client_id: {error}"))?,
    })
}

fn login(user: Option<&Text>, password_file: Option<&Path>) -> Result<Option<Credentials>, String> {
    let Some(user) = user else {
        return if password_file.is_some() { Err("needs a user".to_owned()) } else { Ok(None) };
    };
    let password = password_file.map(|path| {
        let text = tenbin_kit::files::read_text(path).map_err(|error| format!("{}: {error}", path.display()))?;
        match text.lines().next().unwrap_or_default() {
            "" => Err(format!("{}: the first line is empty", path.display())),
            password if password.len() > usize::from(u16::MAX) => {
                Err(format!("{}: the first line has more than {} bytes", path.display(), u16::MAX))
            }
            password => Ok(Secret::from(password.to_owned())),
        }
    });
    Ok(Some((user.clone(), password.transpose()?)))
}

fn transport(url: &BrokerUrl, files: &BridgeTls) -> Result<Transport, String> {
    let transport = if url.is_tls { tls(url, files)? } else { Transport::tcp() };
    Ok(match &url.path {
        Some(path) => transport.websocket(path.clone()),
        None => transport,
    })
}

fn tls(url: &BrokerUrl, files: &BridgeTls) -> Result<Transport, String> {
    let BridgeTls { ca, certificate, key } = files.clone();
    let files = ClientFiles { ca, certificate, key };
    mqtt_tls::transport(&url.host, &files, "tls.", &format!("remote: {url}"))
}
