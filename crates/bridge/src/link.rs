//! A connection to one broker.

use std::collections::HashSet;
use std::io;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use bytes::BytesMut;
use tenbin_client::ByteStream;
use tenbin_codec::{
    ConnAck, Connect, Decoded, Decoder, Packet, ProtocolVersion, QoS, ReasonCode, TopicName, Will, WriteBuffer,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::error::FailureKind;
use crate::settings::Endpoint;

/// Time for a stream with its layers, and again for CONNACK.
const DIAL_TIME: Duration = Duration::from_secs(10);
/// Growth of the read buffer, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Stream of a connection that has not begun.
pub(crate) type Stream = Box<dyn ByteStream>;

/// An accepted connection.
pub(crate) struct Link {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

pub(crate) struct Reader {
    stream: ReadHalf<Stream>,
    decoder: Decoder,
    input: BytesMut,
}

pub(crate) struct Writer {
    stream: WriteHalf<Stream>,
    is_flushed: bool,
}

/// Opens a stream to a broker, with all layers below MQTT.
pub(crate) async fn open(endpoint: &Endpoint) -> Result<Stream, FailureKind> {
    let opened = timeout(DIAL_TIME, endpoint.transport.open(&endpoint.address)).await;
    opened.map_err(|_| no_answer())?.map_err(FailureKind::Unreachable)
}

/// CONNECT of a bridge, whose session lasts.
pub(crate) fn connect(endpoint: &Endpoint, receive_maximum: u16, state_topic: Option<&TopicName>) -> Connect {
    let mut connect = Connect::new(endpoint.version, endpoint.client_id.clone());
    connect.is_bridge = endpoint.is_marked && !endpoint.version.is_v5();
    connect.clean_start = false;
    connect.keep_alive = endpoint.keep_alive.get();
    if let Some((user, password)) = &endpoint.credentials {
        (connect.user_name, connect.password) = (Some(user.clone()), password.clone());
    }
    connect.will = state_topic.map(|topic| Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: topic.clone(),
        payload: (&b"0"[..]).into(),
        delay_interval: None,
        properties: None,
    });
    if endpoint.version.is_v5() {
        connect.properties.session_expiry_interval = Some(u32::MAX);
        connect.properties.receive_maximum = NonZeroU16::new(receive_maximum);
    }
    connect
}

/// Performs the MQTT handshake.
pub(crate) async fn introduce(stream: Stream, connect: Connect) -> Result<(Link, ConnAck), FailureKind> {
    timeout(DIAL_TIME, shake_hands(stream, connect)).await.map_err(|_| no_answer())?
}

async fn shake_hands(stream: Stream, connect: Connect) -> Result<(Link, ConnAck), FailureKind> {
    let (reader, writer) = tokio::io::split(stream);
    let maximum = connect.properties.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get);
    let mut link = Link {
        reader: Reader { stream: reader, decoder: Decoder::client(connect.version, maximum), input: BytesMut::new() },
        writer: Writer { stream: writer, is_flushed: true },
    };
    let mut out = WriteBuffer::new();
    Packet::Connect(Box::new(connect)).encode(ProtocolVersion::V5, &mut out);
    link.writer.write_all(&mut out).await?;
    loop {
        match link.reader.next()? {
            Some(Packet::ConnAck(connack)) if connack.reason.is_error() => {
                let detail = connack.properties.reason_string.map(|text| text.to_string());
                return Err(FailureKind::Refused { reason: connack.reason, detail });
            }
            Some(Packet::ConnAck(connack)) => return Ok((link, *connack)),
            Some(packet) => return Err(FailureKind::Unexpected(packet.packet_type())),
            None => link.reader.read().await?,
        }
    }
}

impl Reader {
    /// Reads once. Cancel safe.
    pub(crate) async fn read(&mut self) -> Result<(), FailureKind> {
        self.input.reserve(if self.input.capacity() - self.input.len() < READ_BYTES / 16 { READ_BYTES } else { 0 });
        match self.stream.read_buf(&mut self.input).await {
            Ok(0) => Err(FailureKind::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(FailureKind::Io(error)),
        }
    }

    /// The next packet that was read.
    pub(crate) fn next(&mut self) -> Result<Option<Packet>, FailureKind> {
        match self.decoder.decode(&mut self.input)? {
            Decoded::Packet(packet) => Ok(Some(packet)),
            Decoded::NeedMore(_) => Ok(None),
        }
    }
}

impl Writer {
    /// Whether everything has left.
    pub(crate) fn is_idle(&self, out: &WriteBuffer) -> bool {
        out.is_empty() && self.is_flushed
    }

    /// Writes a part of `out`, or flushes the stream if there is nothing to write. Cancel safe.
    pub(crate) async fn write(&mut self, out: &mut WriteBuffer) -> Result<(), FailureKind> {
        let done = if out.is_empty() {
            let flushed = self.stream.flush().await;
            self.is_flushed = true;
            flushed
        } else {
            self.is_flushed = false;
            match self.stream.write_buf(out).await {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                written => written.map(|_| ()),
            }
        };
        done.map_err(FailureKind::Io)
    }

    /// Writes all of `out`.
    pub(crate) async fn write_all(&mut self, out: &mut WriteBuffer) -> Result<(), FailureKind> {
        while !self.is_idle(out) {
            self.write(out).await?;
        }
        Ok(())
    }

    /// Writes all of `out`, and ends the stream.
    pub(crate) async fn finish(&mut self, out: &mut WriteBuffer) -> Result<(), FailureKind> {
        self.write_all(out).await?;
        self.stream.shutdown().await.map_err(FailureKind::Io)
    }
}

/// Leaves out the parts that the broker has refused before with these codes, if the bridge can do without them.
pub(crate) fn leave_out(connect: &mut Connect, refused: &HashSet<ReasonCode>) {
    connect.is_bridge &= !refused.contains(&ReasonCode::UnsupportedProtocolVersion);
    if let Some(will) = &mut connect.will {
        will.retain &= !refused.contains(&ReasonCode::RetainNotSupported);
        if refused.contains(&ReasonCode::QoSNotSupported) {
            will.qos = QoS::AtMostOnce;
        }
    }
}

fn no_answer() -> FailureKind {
    FailureKind::NoAnswer(DIAL_TIME.as_secs())
}
