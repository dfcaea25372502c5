//! Looks whether a started instance is ready.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Most time for the answer to one CONNECT packet; the next look sends another.
const PATIENCE: Duration = Duration::from_secs(2);

/// CONNECT of MQTT 3.1.1: Clean Session, no Keep Alive, Client Identifier `verify-ready`.
const CONNECT: &[u8] = b"\x10\x18\x00\x04MQTT\x04\x02\x00\x00\x00\x0cverify-ready";
const DISCONNECT: &[u8] = b"\xe0\x00";
/// Most bytes of the answer to `GET /health`.
const MOST_HEALTH: u64 = 1 << 16;
/// First byte of CONNACK.
const CONNACK: u8 = 0x20;

/// Wanted answer of an instance that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It accepts a connection.
    Connection,
    /// It answers a CONNECT packet of MQTT.
    Mqtt,
    /// `GET /health` says that it is healthy, as etcd does.
    Health,
}

impl Answer {
    /// The answer that these options of `await-port` want.
    pub(crate) fn of(mqtt: bool, health: bool) -> Self {
        match (mqtt, health) {
            (true, _) => Self::Mqtt,
            (_, true) => Self::Health,
            _ => Self::Connection,
        }
    }

    /// Its option of `await-port`.
    pub(crate) fn option(self) -> Option<&'static str> {
        match self {
            Self::Connection => None,
            Self::Mqtt => Some("--mqtt"),
            Self::Health => Some("--health"),
        }
    }
}

/// True if `address` accepts a connection and answers as it is `wanted`.
pub(crate) fn answers(address: &str, wanted: Answer) -> bool {
    TcpStream::connect(address).is_ok_and(|stream| match wanted {
        Answer::Connection => true,
        Answer::Mqtt => is_broker(stream).unwrap_or(false),
        Answer::Health => is_healthy(stream).unwrap_or(false),
    })
}

fn is_healthy(mut stream: TcpStream) -> std::io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MOST_HEALTH).read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").is_some_and(|(_, body)| body.contains(r#""health":"true""#)))
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
        assert!(answers(&address, Answer::Connection));
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
        assert!(!answers(&address, Answer::Mqtt), "HTTP");
        assert!(answers(&address, Answer::Mqtt));
        server.join().unwrap();
        assert!(!answers(&address, Answer::Mqtt), "nobody listens");
    }

    #[test]
    fn health_is_the_word_of_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            for body in [r#"{"health":"false","reason":"RAFT NO LEADER"}"#, r#"{"health":"true","reason":""}"#] {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]).unwrap();
                write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}").unwrap();
            }
        });
        assert!(!answers(&address, Answer::Health));
        assert!(answers(&address, Answer::Health));
        server.join().unwrap();
    }
}
