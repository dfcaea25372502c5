use std::time::Duration;

use bytes::{Buf, BytesMut};
use tenbin_codec::{
    ConnAck, Connect, Decoded, Decoder, Packet, PacketId, ProtocolVersion, QoS, Subscribe, Subscription,
    SubscriptionOptions, Text, TopicFilter, WriteBuffer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::LoadgenError;

/// A connection after CONNECT, before the load.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) name: String,
    stream: TcpStream,
    version: ProtocolVersion,
    input: BytesMut,
    /// What the broker said of itself.
    connack: ConnAck,
}

/// A connection that another thread takes over.
#[derive(Debug)]
pub(super) struct Handover {
    pub(super) name: String,
    /// Does not block.
    pub(super) stream: std::net::TcpStream,
    /// Read already.
    pub(super) received: BytesMut,
    /// Messages above QoS 0 that the broker takes at a time.
    pub(super) receive_maximum: u16,
}

impl Connection {
    /// Connects with a new session.
    ///
    /// # Errors
    /// The broker cannot be reached, does not answer within 10 s, or refuses.
    pub(super) async fn open(address: &str, version: ProtocolVersion, name: String) -> Result<Self, LoadgenError> {
        within(address, async {
            let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let client_id = Text::try_from(name.as_str()).map_err(|error| error.to_string())?;
            // Keep Alive 0: a subscriber of a long run has nothing to send.
            let connect = Connect { keep_alive: 0, ..Connect::new(version, client_id) };
            let (stream, input, packet) =
                exchange(stream, BytesMut::new(), version, Packet::Connect(Box::new(connect))).await?;
            match packet {
                Packet::ConnAck(connack) if !connack.reason.is_error() => {
                    Ok(Self { name, stream, version, input, connack: *connack })
                }
                Packet::ConnAck(connack) => Err(format!("refused: {}", connack.reason)),
                packet => Err(format!("{} instead of CONNACK", packet.packet_type())),
            }
        })
        .await
    }

    /// Subscribes to `filter`.
    ///
    /// # Errors
    /// The broker does not answer within 10 s, or grants less than `qos`.
    pub(super) async fn subscribe(self, address: &str, filter: &TopicFilter, qos: QoS) -> Result<Self, LoadgenError> {
        within(address, async {
            let subscription = Subscription { filter: filter.clone(), options: SubscriptionOptions::at(qos) };
            let subscribe = Packet::Subscribe(Subscribe {
                packet_id: PacketId::new(1).expect("one is not zero"),
                subscription_identifier: None,
                user_properties: Vec::new(),
                subscriptions: vec![subscription],
            });
            let (stream, input, packet) = exchange(self.stream, self.input, self.version, subscribe).await?;
            match packet {
                Packet::SubAck(suback) => match suback.reasons.first() {
                    Some(reason) if reason.byte() == qos.bits() => Ok(Self { stream, input, ..self }),
                    Some(reason) => Err(format!("subscription to {filter} at QoS {qos}: {reason}")),
                    None => Err("SUBACK without a Reason Code".to_owned()),
                },
                packet => Err(format!("{} instead of SUBACK", packet.packet_type())),
            }
        })
        .await
    }

    /// Whether the broker takes messages at `qos`.
    pub(super) fn takes(&self, qos: QoS) -> bool {
        self.connack.properties.maximum_qos.is_none_or(|maximum| qos <= maximum)
    }

    /// Leaves this thread's runtime.
    pub(super) fn hand_over(self) -> Result<Handover, LoadgenError> {
        let stream = self.stream.into_std().map_err(|error| LoadgenError::lost(&self.name, error))?;
        let receive_maximum = self.connack.properties.receive_maximum.map_or(u16::MAX, |maximum| maximum.get());
        Ok(Handover { name: self.name, stream, received: self.input, receive_maximum })
    }
}

/// Sends `packet` and waits for the next packet to come.
async fn exchange(
    mut stream: TcpStream,
    mut input: BytesMut,
    version: ProtocolVersion,
    packet: Packet,
) -> Result<(TcpStream, BytesMut, Packet), String> {
    let mut out = WriteBuffer::new();
    packet.encode(version, &mut out);
    while out.has_remaining() {
        stream.write_buf(&mut out).await.map_err(|error| error.to_string())?;
    }
    let mut decoder = Decoder::client(version, u32::MAX);
    loop {
        if let Decoded::Packet(packet) = decoder.decode(&mut input).map_err(|error| error.to_string())? {
            return Ok((stream, input, packet));
        }
        if stream.read_buf(&mut input).await.map_err(|error| error.to_string())? == 0 {
            return Err("closed by the broker".to_owned());
        }
    }
}

async fn within<T>(address: &str, work: impl Future<Output = Result<T, String>>) -> Result<T, LoadgenError> {
    match tokio::time::timeout(ANSWER_LIMIT, work).await {
        Ok(result) => result.map_err(|reason| LoadgenError::connect(address, reason)),
        Err(_) => Err(LoadgenError::connect(address, "no answer within 10 s")),
    }
}

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
