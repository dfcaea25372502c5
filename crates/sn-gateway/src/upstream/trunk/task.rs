//! The connection of a trunk to the broker.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use tenbin_codec::{ConnAck, Connect, Decoded, Decoder, Packet, ProtocolVersion, ReasonCode, WriteBuffer};
use tenbin_sn::Login;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::{MissedTickBehavior, timeout};

use super::hub::TrunkError;
use super::{Settings, Trunk};
use crate::upstream::{Stream, tcp};

/// Bytes of the broker's packets besides the payload of a PUBLISH, at most.
const PACKET_BYTES_MAXIMUM: u32 = 1 << 20;
const READ_BYTES: usize = 64 * 1024;

/// End of a trunk.
enum End {
    /// It could not be opened, or broke.
    Broken(String),
    /// The broker refused it, or lacks Subscription Identifiers.
    Refused(ReasonCode, String),
}

/// Ends a trunk, also if its task is dropped with the thread that has opened it.
struct Ending {
    trunk: Arc<Trunk>,
    refusal: Option<ReasonCode>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.trunk.hub().down(self.refusal);
    }
}

/// Opens the trunk and serves it until it breaks.
pub(super) async fn run(trunk: Arc<Trunk>, broker: Arc<tcp::Address>) {
    let mut ending = Ending { trunk: Arc::clone(&trunk), refusal: None };
    ending.refusal = match serve(&trunk, &broker).await {
        End::Broken(error) => {
            tracing::warn!(client_id = %trunk.settings.client_id, error, "trunk to the broker ended: its clients get DISCONNECT");
            None
        }
        End::Refused(reason, error) => {
            tracing::error!(client_id = %trunk.settings.client_id, error, "broker accepts no trunk");
            Some(reason)
        }
    };
}

async fn serve(trunk: &Trunk, broker: &tcp::Address) -> End {
    let settings = &trunk.settings;
    let opening = async {
        let mut stream = broker.connect().await?;
        let mut out = WriteBuffer::new();
        Packet::Connect(Box::new(settings.connect())).encode(ProtocolVersion::V5, &mut out);
        stream.write_all_buf(&mut out).await?;
        Ok::<_, std::io::Error>(stream)
    };
    let stream = match timeout(settings.timeout, opening).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return End::Broken(error.to_string()),
        Err(_) => return End::Broken("broker does not answer".to_owned()),
    };
    let (read, write) = tokio::io::split(stream);
    let mut reader =
        Reader { read, decoder: Decoder::client(ProtocolVersion::V5, PACKET_BYTES_MAXIMUM), bytes: BytesMut::new() };
    let connack = match timeout(settings.timeout, reader.connack()).await {
        Ok(Ok(connack)) => connack,
        Ok(Err(error)) => return End::Broken(error.0),
        Err(_) => return End::Broken("broker sends no CONNACK".to_owned()),
    };
    if connack.reason.is_error() {
        return End::Refused(connack.reason, connack.reason.to_string());
    }
    if connack.properties.subscription_identifier_available == Some(false) {
        let error = "it does not offer Subscription Identifiers, which `aggregate` needs".to_owned();
        return End::Refused(ReasonCode::ImplementationSpecificError, error);
    }
    let keep_alive = connack
        .properties
        .server_keep_alive
        .map_or(settings.keep_alive, |seconds| std::time::Duration::from_secs(seconds.into()));
    trunk.hub().up(connack);
    let pinging = async {
        if keep_alive.is_zero() {
            return std::future::pending().await;
        }
        // A missing answer is noticed at the next ping.
        let mut interval = tokio::time::interval(keep_alive / 2);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval.tick().await;
        loop {
            interval.tick().await;
            if let Err(error) = trunk.hub().tick(Instant::now()) {
                return error;
            }
        }
    };
    let error = tokio::select! {
        error = reader.read_all(trunk) => error,
        error = write_all(trunk, write) => error,
        error = pinging => error,
    };
    End::Broken(error.0)
}

struct Reader {
    read: ReadHalf<Stream>,
    decoder: Decoder,
    bytes: BytesMut,
}

impl Reader {
    async fn connack(&mut self) -> Result<ConnAck, TrunkError> {
        loop {
            match self.decode()? {
                Some(Packet::ConnAck(connack)) => return Ok(*connack),
                Some(_) => return Err(TrunkError("broker sends no CONNACK first".to_owned())),
                None => self.fill().await?,
            }
        }
    }

    async fn read_all(&mut self, trunk: &Trunk) -> TrunkError {
        loop {
            // All packets of a read under one lock.
            let result = {
                let mut hub = trunk.hub();
                loop {
                    match self.decode() {
                        Ok(Some(packet)) => {
                            if let Err(error) = hub.handle_broker(packet) {
                                break Err(error);
                            }
                        }
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(error),
                    }
                }
            };
            if let Err(error) = result {
                return error;
            }
            if let Err(error) = self.fill().await {
                return error;
            }
        }
    }

    fn decode(&mut self) -> Result<Option<Packet>, TrunkError> {
        match self.decoder.decode(&mut self.bytes) {
            Ok(Decoded::Packet(packet)) => Ok(Some(packet)),
            Ok(Decoded::NeedMore(_)) => Ok(None),
            Err(error) => Err(TrunkError(format!("broker sent an illegal packet: {error}"))),
        }
    }

    async fn fill(&mut self) -> Result<(), TrunkError> {
        self.bytes.reserve(READ_BYTES);
        match self.read.read_buf(&mut self.bytes).await {
            Ok(0) => Err(TrunkError("broker closed the connection".to_owned())),
            Ok(_) => Ok(()),
            Err(error) => Err(TrunkError(error.to_string())),
        }
    }
}

async fn write_all(trunk: &Trunk, mut write: WriteHalf<Stream>) -> TrunkError {
    loop {
        let mut out = poll_fn(|cx| trunk.hub().poll_take(cx)).await;
        let bytes = out.len();
        if let Err(error) = write.write_all_buf(&mut out).await {
            return TrunkError(error.to_string());
        }
        trunk.hub().note_written(bytes);
    }
}

impl Settings {
    fn connect(&self) -> Connect {
        let mut connect = Connect::new(ProtocolVersion::V5, self.client_id.clone());
        connect.clean_start = true;
        connect.properties.maximum_packet_size = NonZeroU32::new(PACKET_BYTES_MAXIMUM);
        connect.keep_alive = u16::try_from(self.keep_alive.as_secs()).unwrap_or(u16::MAX);
        if let Some(Login { user, password }) = &self.login {
            (connect.user_name, connect.password) = (Some(user.clone()), password.clone());
        }
        connect
    }
}
