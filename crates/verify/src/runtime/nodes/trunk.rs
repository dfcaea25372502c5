//! TCP connections between nodes, for the trunks of their labs.
//!
//! The node that connects sends the run's token and its name; then come frames.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use tenbin_loadgen::run::Secret;

use super::token;

/// Most time for the greeting of a connection.
const GREETING: Duration = Duration::from_secs(5);
/// Most time until all nodes have connected.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);
/// Pause between two signs of life of a trunk without frames.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Time without an answer of the other side after which the trunk is lost.
const SILENCE: Duration = Duration::from_secs(5);
/// Connections that may be greeting at a time; further ones are closed.
const STRANGERS: usize = 16;

/// Nodes whose connections are still to come.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    state: Mutex<Vec<String>>,
    changed: Condvar,
}

impl Awaited {
    /// Waits until no node is missing.
    pub(super) fn wait(&self) -> Result<(), String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |missing| !missing.is_empty());
        let missing = waited.unwrap_or_else(PoisonError::into_inner).0;
        match missing.first() {
            None => Ok(()),
            Some(node) => Err(format!("no trunk from {node} within {} s", PATIENCE.as_secs())),
        }
    }

    fn remove(&self, node: &str) -> bool {
        let mut missing = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let place = missing.iter().position(|other| other == node);
        place.map(|place| missing.remove(place)).is_some()
    }

    fn is_empty(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Listens at `address` for connections of `peers`, and gives each to `join` once. Returns the port.
pub(super) fn listen(
    address: IpAddr,
    peers: Vec<String>,
    secret: Secret<String>,
    awaited: &Arc<Awaited>,
    join: impl Fn(&str, TcpStream) -> Result<(), String> + Send + Sync + 'static,
) -> io::Result<u16> {
    let listener = TcpListener::bind((address, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    *awaited.state.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    let (awaited, join, secret) = (Arc::clone(awaited), Arc::new(join), Arc::new(secret));
    thread::Builder::new().name("trunks".to_owned()).spawn(move || {
        let (deadline, strangers) = (Instant::now() + PATIENCE, Arc::new(()));
        while !awaited.is_empty() && Instant::now() < deadline {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(PAUSE);
                continue;
            };
            if Arc::strong_count(&strangers) > STRANGERS {
                continue;
            }
            let (awaited, join, secret) = (Arc::clone(&awaited), Arc::clone(&join), Arc::clone(&secret));
            let one = Arc::clone(&strangers);
            thread::spawn(move || {
                let node = greeted(&stream, &secret);
                drop(one);
                let Ok(node) = node else { return };
                if awaited.remove(&node) {
                    let _ = join(&node, stream);
                    awaited.changed.notify_all();
                }
            });
        }
    })?;
    Ok(port)
}

/// Name of the node that sends the right token.
fn greeted(mut stream: &TcpStream, secret: &Secret<String>) -> io::Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(GREETING))?;
    let mut sent = [0; token::LENGTH];
    stream.read_exact(&mut sent)?;
    if Secret::new(sent) != *secret {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut length = [0];
    stream.read_exact(&mut length)?;
    let mut name = vec![0; usize::from(length[0])];
    stream.read_exact(&mut name)?;
    String::from_utf8(name).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Connects to a node that listens, as `node`.
pub(super) fn connect(address: SocketAddr, node: &str, secret: &Secret<String>) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, GREETING)?;
    let length = u8::try_from(node.len()).map_err(|_| io::Error::other("the node's name is too long"))?;
    let mut greeting = secret.expose().as_bytes().to_vec();
    greeting.push(length);
    greeting.extend_from_slice(node.as_bytes());
    stream.write_all(&greeting)?;
    Ok(stream)
}

/// Calls `lost` when the other side ends the connection, or answers no more. It reads nothing: the switch does.
pub(super) fn watch(stream: TcpStream, lost: impl FnOnce() + Send + 'static) -> io::Result<()> {
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE)?;
    sockopt::set_tcp_user_timeout(&stream, SILENCE.as_millis() as u32)?;
    let wait = move || {
        let mut polled = [PollFd::new(&stream, PollFlags::RDHUP)];
        while matches!(poll(&mut polled, None), Ok(0) | Err(rustix::io::Errno::INTR)) {}
        lost();
    };
    thread::Builder::new().name("trunk".to_owned()).spawn(wait).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn only_awaited_nodes_with_the_token_join() {
        let secret = |digit: &str| Secret::new(digit.repeat(token::LENGTH));
        let awaited = Arc::new(Awaited::default());
        let (joined, joins) = sync_channel(4);
        let join = move |node: &str, stream| joined.send((node.to_owned(), stream)).map_err(|error| error.to_string());
        let local: IpAddr = [127, 0, 0, 1].into();
        let peers = vec!["two".to_owned(), "three".to_owned()];
        let port = listen(local, peers, secret("0"), &awaited, join).unwrap();
        let address = SocketAddr::from((local, port));
        // One that says nothing must not hold the others up.
        let _silent = TcpStream::connect(address).unwrap();
        let is_closed = |mut stream: TcpStream| stream.read(&mut [0]).map_or(true, |bytes| bytes == 0);
        assert!(is_closed(connect(address, "two", &secret("1")).unwrap()), "a wrong token");
        assert!(is_closed(connect(address, "four", &secret("0")).unwrap()), "a node of no one");
        let own = ["two", "three"].map(|node| connect(address, node, &secret("0")).unwrap());
        awaited.wait().unwrap();
        let names = [joins.recv().unwrap(), joins.recv().unwrap()];
        let mut names = names.map(|(name, _)| name);
        names.sort();
        assert_eq!(names, ["three", "two"]);
        drop(own);
    }

    #[test]
    fn end_of_a_connection_is_seen_without_reading() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let (ended, end) = sync_channel(1);
        let kept = peer.try_clone().unwrap();
        watch(peer, move || ended.send(()).unwrap()).unwrap();
        assert!(sockopt::socket_keepalive(&kept).unwrap() && sockopt::tcp_user_timeout(&kept).unwrap() == 5000);
        drop(kept);
        own.write_all(b"frames").unwrap();
        assert!(end.recv_timeout(Duration::from_millis(50)).is_err(), "bytes are no end");
        drop(own);
        end.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
