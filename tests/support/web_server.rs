use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A small HTTP server of one test; it ends with the handle.
pub(crate) struct WebServer {
    address: SocketAddr,
    state: Arc<State>,
}

/// A request that the server got.
#[derive(Debug, Clone)]
pub(crate) struct WebRequest {
    pub(crate) path: String,
    /// Names are in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// The server's answer to a request.
#[derive(Debug, Clone)]
pub(crate) struct WebAnswer {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) body: String,
    /// The server waits before it answers.
    pub(crate) delay: Duration,
}

type Answers = Arc<dyn Fn(&WebRequest) -> WebAnswer + Send + Sync>;

struct State {
    answers: Mutex<Answers>,
    requests: Mutex<Vec<WebRequest>>,
    is_over: AtomicBool,
}

impl WebServer {
    pub(crate) fn start(answers: impl Fn(&WebRequest) -> WebAnswer + Send + Sync + 'static) -> Self {
        Self::start_with(None, Arc::new(answers))
    }

    /// A server that speaks TLS.
    pub(crate) fn start_tls(
        config: Arc<ServerConfig>,
        answers: impl Fn(&WebRequest) -> WebAnswer + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(Some(config), Arc::new(answers))
    }

    fn start_with(tls: Option<Arc<ServerConfig>>, answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let (answers, requests) = (Mutex::new(answers), Mutex::default());
        let state = Arc::new(State { answers, requests, is_over: AtomicBool::new(false) });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, tls) = (Arc::clone(&shared), tls.clone());
                // Errors mean that the client has gone.
                std::thread::spawn(move || match tls {
                    Some(tls) => {
                        let tls = ServerConnection::new(tls).expect("a legal configuration");
                        let _ = shared.serve(StreamOwned::new(tls, stream));
                    }
                    None => _ = shared.serve(stream),
                });
            }
        });
        Self { address, state }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers further requests so.
    pub(crate) fn answer(&self, answers: impl Fn(&WebRequest) -> WebAnswer + Send + Sync + 'static) {
        *self.state.answers.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(answers);
    }

    pub(crate) fn requests(&self) -> Vec<WebRequest> {
        self.state.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        if let Ok(stream) = TcpStream::connect(self.address) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn serve(&self, stream: impl Read + Write) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read(&mut stream)? {
            let answers = Arc::clone(&*self.answers.lock().unwrap_or_else(PoisonError::into_inner));
            self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
            let WebAnswer { status, etag, body, delay } = answers(&request);
            std::thread::sleep(delay);
            let etag = etag.map(|etag| format!("ETag: {etag}\r\n")).unwrap_or_default();
            let head = format!("HTTP/1.1 {status} x\r\n{etag}Content-Length: {}\r\n\r\n", body.len());
            stream.get_mut().write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
            stream.get_mut().flush()?;
        }
        Ok(())
    }
}

/// Reads a request with its content; `None` at the end of the connection.
fn read(stream: &mut impl BufRead) -> std::io::Result<Option<WebRequest>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some(WebRequest { path, headers, body: String::from_utf8_lossy(&body).into_owned() }))
}

impl WebRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

impl WebAnswer {
    pub(crate) fn new(status: u16, body: impl Into<String>) -> Self {
        Self { status, etag: None, body: body.into(), delay: Duration::ZERO }
    }
}
