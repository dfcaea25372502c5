//! A stand-in for the API of Kubernetes: ConfigMaps of all namespaces, over HTTP.
//!
//! It has the parts that the broker's adapter uses: `resourceVersion` and conflicts, tokens, rules of a Role, and faults on demand.
//! The module has no other parts of the tests, so that unit tests can use it too.
#![allow(dead_code, reason = "its users take their own part of it")]

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The API; it ends with the handle.
pub(crate) struct KubernetesApi {
    address: SocketAddr,
    is_tls: bool,
    state: Arc<State>,
}

/// What happens to a request instead of its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Nothing is done, and this status is the answer.
    Status(u16),
    /// It is done, and this status is the answer.
    DoneBut(u16),
    /// The connection closes before it is done.
    Lost,
    /// It is done, and the connection closes.
    AnswerLost,
    /// It is done twice, as by a proxy. The second answer is sent.
    Repeated,
    /// The connection stays silent, and it is done after this time.
    Late(Duration),
    /// Another client changes the ConfigMap's labels first.
    Labelled,
}

/// A rule of a Role about ConfigMaps.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    /// Names of objects; empty = all.
    pub(crate) names: Vec<String>,
}

struct State {
    inner: Mutex<Inner>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Inner {
    token: String,
    rules: Option<Vec<Rule>>,
    maps: BTreeMap<String, Value>,
    version: u64,
    faults: VecDeque<(&'static str, Fault)>,
    is_down: bool,
    /// Method and path of each request.
    requests: Vec<String>,
}

impl KubernetesApi {
    /// Starts the API on a loopback port. It accepts the token `first`.
    pub(crate) fn start(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let inner = Inner { token: "first".to_owned(), ..Inner::default() };
        let state = Arc::new(State { inner: Mutex::new(inner), is_over: AtomicBool::new(false) });
        let (shared, is_tls) = (Arc::clone(&state), tls.is_some());
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
        Self { address, is_tls, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.is_tls { "https" } else { "http" }, self.address)
    }

    /// Writes the files of a service account with this token.
    pub(crate) fn write_account(directory: &Path, token: &str, ca: &str) {
        std::fs::create_dir_all(directory).expect("ours to write");
        for (file, text) in [("token", token), ("namespace", "default"), ("ca.crt", ca)] {
            std::fs::write(directory.join(file), text).expect("ours to write");
        }
    }

    /// Accepts this token alone from now on.
    pub(crate) fn set_token(&self, token: &str) {
        self.lock().token = token.to_owned();
    }

    /// Enforces these rules from now on.
    pub(crate) fn set_rules(&self, rules: Vec<Rule>) {
        self.lock().rules = Some(rules);
    }

    /// Lets the next request of this method meet a fault. Faults of a method are met in order.
    pub(crate) fn fault(&self, method: &'static str, fault: Fault) {
        self.lock().faults.push_back((method, fault));
    }

    /// Whether each request is answered by 503 from now on.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    /// Number of requests of a method.
    pub(crate) fn requests(&self, method: &str) -> usize {
        self.lock().requests.iter().filter(|request| request.starts_with(method)).count()
    }

    /// A ConfigMap of the namespace `default`.
    pub(crate) fn map(&self, name: &str) -> Option<Value> {
        self.lock().maps.get(&format!("default/{name}")).cloned()
    }

    /// Replaces or deletes a ConfigMap, as an operator does.
    pub(crate) fn set_map(&self, name: &str, data: Option<Value>) {
        let mut inner = self.lock();
        let path = format!("default/{name}");
        match data {
            None => drop(inner.maps.remove(&path)),
            Some(data) => {
                let map =
                    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data });
                inner.store(path, map);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock()
    }
}

impl Drop for KubernetesApi {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        if let Ok(stream) = TcpStream::connect(self.address) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, stream: impl Read + Write) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut line, mut token, mut length) = (String::new(), String::new(), 0);
            if stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut words = line.split_whitespace().map(ToOwned::to_owned);
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            loop {
                let mut header = String::new();
                stream.read_line(&mut header)?;
                let Some((name, value)) = header.trim_end().split_once(':') else { break };
                match &name.to_ascii_lowercase()[..] {
                    "content-length" => length = value.trim().parse().map_err(std::io::Error::other)?,
                    "authorization" => token = value.trim().trim_start_matches("Bearer ").to_owned(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body)?;
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let Some((code, answer)) = self.answer(&method, &path, &token, &body) else { return Ok(()) };
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            stream.get_mut().write_all((head + &answer).as_bytes())?;
            stream.get_mut().flush()?;
        }
    }

    /// Status and body of an answer; `None` = the connection closes.
    fn answer(&self, method: &str, path: &str, token: &str, body: &Value) -> Option<(u16, Value)> {
        let mut inner = self.lock();
        inner.requests.push(format!("{method} {path}"));
        let at = inner.faults.iter().position(|(of, _)| *of == method);
        let fault = at.and_then(|at| inner.faults.remove(at)).map(|(_, fault)| fault);
        let failed = |code: u16| Some(status(code, "InternalError", "injected by the test"));
        match fault {
            _ if inner.is_down => failed(503),
            None => Some(inner.perform(method, path, token, body)),
            Some(Fault::Status(code)) => failed(code),
            Some(Fault::DoneBut(code)) => {
                inner.perform(method, path, token, body);
                failed(code)
            }
            Some(Fault::Lost) => None,
            Some(Fault::AnswerLost) => {
                inner.perform(method, path, token, body);
                None
            }
            Some(Fault::Repeated) => {
                inner.perform(method, path, token, body);
                Some(inner.perform(method, path, token, body))
            }
            Some(Fault::Late(time)) => {
                drop(inner);
                std::thread::sleep(time);
                self.lock().perform(method, path, token, body);
                None
            }
            Some(Fault::Labelled) => {
                let paths: Vec<_> = inner.maps.keys().cloned().collect();
                for path in paths {
                    let mut map = inner.maps[&path].clone();
                    map["metadata"]["labels"]["somebody"] = "else".into();
                    inner.store(path, map);
                }
                Some(inner.perform(method, path, token, body))
            }
        }
    }
}

impl Inner {
    fn perform(&mut self, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
        if token != self.token {
            return status(401, "Unauthorized", "Unauthorized");
        }
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let (namespace, name) = match parts[..] {
            ["api", "v1", "namespaces", namespace, "configmaps"] => (namespace, ""),
            ["api", "v1", "namespaces", namespace, "configmaps", name] => (namespace, name),
            _ => return (404, json!("404 page not found")),
        };
        let verb = match (method, name) {
            ("GET", "") => "list",
            ("GET", _) => "get",
            ("POST", "") => "create",
            ("PUT", _) => "update",
            _ => return status(405, "MethodNotAllowed", "the method is not supported"),
        };
        // As in Kubernetes, a rule with names permits no creation: the name is not known to the rules then.
        let permits = |rule: &Rule| {
            rule.verbs.iter().any(|of| of == verb) && (rule.names.is_empty() || rule.names.iter().any(|of| of == name))
        };
        if self.rules.as_ref().is_some_and(|rules| !rules.iter().any(permits)) {
            let message = format!("configmaps {name:?} is forbidden: cannot {verb} resource \"configmaps\"");
            return status(403, "Forbidden", &message);
        }
        let own = body["metadata"]["name"].as_str().unwrap_or_default();
        let key = format!("{namespace}/{}", if verb == "create" { own } else { name });
        let found = self.maps.get(&key).cloned();
        match (verb, found) {
            ("get", Some(map)) => (200, map),
            ("create", None) if !own.is_empty() => (201, self.store(key, body.clone())),
            ("create", Some(_)) => status(409, "AlreadyExists", &format!("configmaps {own:?} already exists")),
            ("update", Some(map)) if own == name => {
                let expected = &body["metadata"]["resourceVersion"];
                if !expected.is_null() && *expected != map["metadata"]["resourceVersion"] {
                    return status(409, "Conflict", "the object has been modified");
                }
                (200, self.store(key, body.clone()))
            }
            ("get" | "update", None) => status(404, "NotFound", &format!("configmaps {name:?} not found")),
            _ => status(422, "Invalid", "the object is invalid"),
        }
    }

    fn store(&mut self, key: String, mut map: Value) -> Value {
        self.version += 1;
        map["metadata"]["resourceVersion"] = self.version.to_string().into();
        map["metadata"]["namespace"] = "default".into();
        self.maps.insert(key, map.clone());
        map
    }
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code }),
    )
}
