//! Looks whether a started instance is ready.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Most time for the answer to one CONNECT packet; the next look sends another.
const PATIENCE: Duration = Duration::from_secs(2);

/// CONNECT of MQTT 3.1.1: Clean Session, no Keep Alive, Client Identifier `verify-ready`.
const CONNECT: &[u8] = b"\x10\x18\x00\x04MQTT\x04\x02\x00\x00\x00\x0cverify-ready";
const DISCONNECT: &[u8] = b"\xe0\x00";
/// First byte of CONNACK.
const CONNACK: u8 = 0x20;

/// True if `address` accepts a connection, and with `mqtt` also answers a CONNECT packet.
pub(crate) fn answers(address: &str, mqtt: bool) -> bool {
    TcpStream::connect(address).is_ok_and(|stream| !mqtt || is_broker(stream).unwrap_or(false))
}

fn is_broker(mut stream: TcpStream) -> std::io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(CONNECT)?;
    let mut first = [0; 4];
    stream.read_exact(&mut first)?;
    stream.write_all(DISCONNECT)?;
    Ok(first[0] == CONNACK)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn mqtt_is_ready_when_connect_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert!(answers(&address, false));
        let server = thread::spawn(move || {
            // The first connection is the one above; the second gets an answer of another protocol.
            for answer in [None, Some(b"HTTP"), Some(b"\x20\x02\x00\x00")] {
                let (mut stream, _) = listener.accept().unwrap();
                if let Some(answer) = answer {
                    let mut packet = [0; CONNECT.len()];
                    stream.read_exact(&mut packet).unwrap();
                    assert_eq!(usize::from(packet[1]), CONNECT.len() - 2, "remaining length");
                    stream.write_all(answer).unwrap();
                }
            }
        });
        assert!(!answers(&address, true), "HTTP");
        assert!(answers(&address, true));
        server.join().unwrap();
        assert!(!answers(&address, true), "nobody listens");
    }
}
