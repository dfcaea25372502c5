//! A bare HTTP client on a TCP socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::broker::PATIENCE;

pub(crate) struct Http {
    pub(crate) stream: TcpStream,
    /// Received bytes behind the last answer.
    input: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Http {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time");
        Self { stream, input: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("sent");
    }

    /// Sends a request with a body.
    pub(crate) fn send_request(&mut self, line: &str, headers: &str, body: &[u8]) {
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nHost: broker\r\nContent-Length: {length}\r\n{headers}\r\n");
        self.send([head.as_bytes(), body].concat());
    }

    pub(crate) fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.send_request(&format!("POST {path}"), headers, body);
        self.receive()
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: broker\r\n\r\n"));
        self.receive()
    }

    /// The next answer; those before the last one of a request (100 Continue) are answers too.
    pub(crate) fn receive(&mut self) -> Answer {
        let end = loop {
            if let Some(at) = self.input.windows(4).position(|window| window == b"\r\n\r\n") {
                break at;
            }
            assert!(self.read() > 0, "closed before an answer");
        };
        let rest = self.input.split_off(end + 4);
        let head = String::from_utf8(std::mem::replace(&mut self.input, rest)).expect("text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let field = head.to_ascii_lowercase();
        let length = field.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let length = length.map_or(0, |length| length.parse::<usize>().expect("a number"));
        while self.input.len() < length {
            assert!(self.read() > 0, "closed within an answer");
        }
        let rest = self.input.split_off(length);
        Answer { status, head, body: std::mem::replace(&mut self.input, rest) }
    }

    /// Waits until the server has closed the connection.
    pub(crate) fn wait_for_close(&mut self) {
        while self.read() > 0 {}
    }

    /// Bytes that came; 0 at the end of the connection.
    fn read(&mut self) -> usize {
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                count
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Answer {
    /// The error of a refusal, after a check of its form.
    pub(crate) fn error(&self) -> String {
        let line = String::from_utf8_lossy(&self.body);
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "one line: {line}");
        assert!(self.head.contains("application/json"), "{}", self.head);
        let parsed: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        parsed["error"].as_str().expect("an error").to_owned()
    }

    #[track_caller]
    pub(crate) fn expect(&self, status: u16, word: &str) {
        let error = self.error();
        assert!(self.status == status && error.contains(word), "{status} {word}: {} {error}", self.status);
    }
}
