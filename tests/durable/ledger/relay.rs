use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tenbin_codec::{
    Ack, Decoded, Decoder, PACKET_SIZE_MAX, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode,
};

use crate::support::encode;

/// Misbehaviour of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Acknowledges a message of QoS 1 that the broker never gets.
    Loses,
    /// Sends a message of QoS 0 twice.
    Doubles,
}

/// Relay between clients and a broker that misbehaves once in [`EACH`] messages.
pub(crate) struct Relay {
    address: SocketAddr,
    messages: Arc<AtomicUsize>,
}

impl Relay {
    pub(crate) fn start(broker: SocketAddr, lie: Lie) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let messages = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&messages);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(broker) else { continue };
                let (Ok(client_reads), Ok(server_writes)) = (client.try_clone(), server.try_clone()) else { continue };
                let messages = Arc::clone(&counted);
                std::thread::spawn(move || {
                    let _ = relay_client(client_reads, &server_writes, lie, &messages);
                    let _ = server_writes.shutdown(Shutdown::Write);
                });
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut &server, &mut &client);
                    let _ = client.shutdown(Shutdown::Both);
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, messages }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of lies so far.
    pub(crate) fn lies(&self) -> usize {
        self.messages.load(Ordering::Relaxed) / EACH
    }
}

/// Relays packets from a client to the broker.
fn relay_client(client: TcpStream, server: &TcpStream, lie: Lie, messages: &AtomicUsize) -> std::io::Result<()> {
    let (mut input, mut chunk) = (BytesMut::new(), [0; 4096]);
    let mut decoder: Option<(Decoder, ProtocolVersion)> = None;
    loop {
        let read = (&client).read(&mut chunk)?;
        if read == 0 {
            return Ok(());
        }
        input.extend_from_slice(&chunk[..read]);
        let (decoder, version) = match &mut decoder {
            Some(decoder) => decoder,
            // CONNECT: two to five bytes of fixed header, six bytes of the name, then the level.
            none => {
                let Some(at) = input.windows(6).position(|name| name == b"\0\x04MQTT") else { continue };
                let Some(level) = input.get(at + 6) else { continue };
                let version = if *level == 5 { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
                none.insert((Decoder::server(PACKET_SIZE_MAX), version))
            }
        };
        while let Ok(Decoded::Packet(packet)) = decoder.decode(&mut input) {
            let bytes = encode(&packet, *version);
            let lies = is_meant(&packet, lie) && messages.fetch_add(1, Ordering::Relaxed) % EACH == EACH - 1;
            match (lies, lie, packet) {
                (true, Lie::Loses, Packet::Publish(Publish { packet_id: Some(id), .. })) => {
                    forge(&client, id, *version)?
                }
                (lies, ..) => {
                    for _ in 0..=usize::from(lies) {
                        (&*server).write_all(&bytes)?;
                    }
                }
            }
        }
    }
}

fn forge(mut client: &TcpStream, id: PacketId, version: ProtocolVersion) -> std::io::Result<()> {
    client.write_all(&encode(&Packet::PubAck(Ack::new(id, ReasonCode::Success)), version))
}

fn is_meant(packet: &Packet, lie: Lie) -> bool {
    let Packet::Publish(publish) = packet else { return false };
    let is_load = publish.topic.as_bytes().starts_with(b"load/");
    match lie {
        Lie::Loses => is_load && publish.qos == QoS::AtLeastOnce,
        Lie::Doubles => is_load && publish.qos == QoS::AtMostOnce,
    }
}

/// Messages of the affected QoS for each lie.
const EACH: usize = 100;
