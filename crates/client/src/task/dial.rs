use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tenbin_codec::{ConnAck, Connect, Decoded, Decoder, Packet, WriteBuffer};
use tenbin_session::Violation;
use tokio::net::UnixStream;

use super::stream::Stream;
use crate::byte_stream::ByteStream;
use crate::{ClientErrorKind, Transport};

/// A connection that the broker accepted.
pub(super) struct Dialed {
    pub(super) stream: Stream,
    /// Bytes after CONNACK.
    pub(super) input: BytesMut,
    pub(super) decoder: Decoder,
    pub(super) connack: ConnAck,
}

/// Connects and performs the handshake. Cancel safe: an incomplete connection is closed.
pub(super) async fn dial(broker: &str, transport: &Transport, connect: &Connect) -> Result<Dialed, ClientErrorKind> {
    let done = tokio::time::timeout(DIAL_MAX, shake_hands(broker, transport, connect)).await;
    done.unwrap_or(Err(ClientErrorKind::NoAnswer))
}

async fn shake_hands(broker: &str, transport: &Transport, connect: &Connect) -> Result<Dialed, ClientErrorKind> {
    let unreachable = |error| ClientErrorKind::Unreachable(Arc::new(error));
    let mut stream = Stream::new(open(broker, transport).await.map_err(unreachable)?);

    let mut out = WriteBuffer::new();
    Packet::Connect(Box::new(connect.clone())).encode(connect.version, &mut out);
    stream.write(&mut out).await.map_err(|error| ClientErrorKind::Lost(error.into()))?;

    let mut decoder = Decoder::client(connect.version, u32::MAX);
    let mut input = BytesMut::with_capacity(INPUT_FIRST);
    loop {
        let violation = match decoder.decode(&mut input) {
            Ok(Decoded::Packet(Packet::ConnAck(connack))) if connack.reason.is_error() => {
                let detail = connack.properties.reason_string.map(|text| text.to_string());
                return Err(ClientErrorKind::Refused { reason: connack.reason, detail });
            }
            Ok(Decoded::Packet(Packet::ConnAck(connack))) => {
                return Ok(Dialed { stream, input, decoder, connack: *connack });
            }
            Ok(Decoded::Packet(packet)) => Violation::Unexpected(packet.packet_type()), // [MQTT-3.2.0-1]
            Err(error) => error.into(),
            Ok(Decoded::NeedMore(_)) => {
                input.reserve(INPUT_FIRST);
                stream.read(&mut input).await.map_err(ClientErrorKind::Lost)?;
                continue;
            }
        };
        return Err(ClientErrorKind::Lost(violation.into()));
    }
}

async fn open(broker: &str, transport: &Transport) -> io::Result<Box<dyn ByteStream>> {
    if let Some(path) = broker.strip_prefix("unix:") {
        return Ok(Box::new(UnixStream::connect(path).await?));
    }
    transport.open(broker).await
}

/// Time limit for name resolution, the stream with its layers and CONNACK together.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// Initial buffer for CONNACK, in bytes; it grows if necessary.
const INPUT_FIRST: usize = 1024;
