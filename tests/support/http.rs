use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// An answer of an HTTP server.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| &value[..])
    }
}

/// Sends these bytes over a new connection, and reads the answer; `None` if the server closes without one.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> Option<HttpAnswer> {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request);
    read_answer(&mut BufReader::new(stream))
}

/// Reads one answer; `None` if the stream ends before it.
pub(crate) fn read_answer(stream: &mut BufReader<TcpStream>) -> Option<HttpAnswer> {
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
        Some(line.trim_end().to_owned())
    };
    let status = line()?.split(' ').nth(1)?.parse().ok()?;
    let mut headers = Vec::new();
    while let Some((name, value)) = line()?.split_once(": ") {
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let mut answer = HttpAnswer { status, headers, body: String::new() };
    if let Some(length) = answer.header("content-length") {
        let mut body = vec![0; length.parse().expect("a length")];
        stream.read_exact(&mut body).expect("the whole body");
        answer.body = String::from_utf8(body).expect("text");
    }
    Some(answer)
}
