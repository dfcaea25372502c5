//! Relays to programs outside of a lab: `external: HOST:PORT`.
//!
//! A relay is a process on a machine of the lab. For each connection that it accepts, it asks the program that runs the
//! verification for one to the outside, and gets the open socket. Both connections are then in one process: a reset of
//! one becomes a reset of the other.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenbin_lab::{receive_descriptor, send_descriptor};
use tokio::net;
use tokio::sync::{Semaphore, oneshot};

use crate::args::RelayArgs;
use crate::plan::Plan;

/// Byte that a relay sends when it listens.
const READY: u8 = b'!';
/// Most time until a relay listens.
const START: Duration = Duration::from_secs(60);
/// Most time for a connection to the outside.
const CONNECT: Duration = Duration::from_secs(10);
/// Most connections to the outside that are being made, each by a thread.
const CONNECTS: usize = 256;
/// Bytes that are under way in each direction of a connection.
const BUFFER: usize = 64 * 1024;

/// Number of a connection, and whether it was made; the socket comes with it.
type Answer = [u8; 5];
/// Connections that wait for one to the outside.
type Waiting = Arc<Mutex<HashMap<[u8; 4], oneshot::Sender<OwnedFd>>>>;

/// Checks that all programs outside of the lab are on this machine or on allowed hosts.
///
/// # Errors
/// One is elsewhere. The text names it.
pub(crate) fn check(plan: &Plan, allowed: &[String]) -> Result<(), String> {
    for (machine, address) in plan.machines.iter().filter_map(|machine| Some((machine, machine.relays.as_ref()?))) {
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if !is_here && !allowed.iter().any(|allowed| allowed == host) {
            return Err(format!("{} is on host {host}; allow that with --allow-hosts {host}", machine.name));
        }
    }
    Ok(())
}

/// Makes the connections to `address` for a relay, which is at the other end of `stream`. Returns when it listens.
///
/// # Errors
/// The relay ended or did not listen in time.
pub(crate) fn serve(stream: UnixStream, address: String) -> Result<(), String> {
    let mut ready = [0];
    let heard = stream.set_read_timeout(Some(START)).and_then(|()| (&stream).read_exact(&mut ready));
    heard
        .and_then(|()| stream.set_read_timeout(None))
        .map_err(|error| format!("the relay does not listen: {error}"))?;
    let stream = Arc::new(stream);
    let answers = Arc::new(Mutex::new(Arc::clone(&stream)));
    let serve = move || {
        let mut number = [0; 4];
        // The stream ends with the relay.
        while (&*stream).read_exact(&mut number).is_ok() {
            let (answers, address) = (Arc::clone(&answers), address.clone());
            // A thread each, so that a slow connection does not delay the others. The relay resets a connection without.
            let thread = thread::Builder::new().name("relay-connect".to_owned());
            let started = thread.spawn({
                let answers = Arc::clone(&answers);
                move || answer(&answers, number, connect(&address))
            });
            if let Err(error) = started {
                answer(&answers, number, Err(error));
            }
        }
    };
    let started = thread::Builder::new().name("relay".to_owned()).spawn(serve);
    started.map(|_| ()).map_err(|error| format!("cannot start a thread: {error}"))
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Hands a connection over. A relay that has ended needs none.
fn answer(answers: &Mutex<Arc<UnixStream>>, number: [u8; 4], outside: io::Result<TcpStream>) {
    let [a, b, c, d] = number;
    let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = match outside {
        Ok(outside) => send_descriptor(&answers, &[a, b, c, d, 1], outside.as_fd()),
        Err(_) => (&**answers).write_all(&[a, b, c, d, 0]),
    };
}

/// The relay itself. Its standard input and output are the stream to the program that runs the verification.
pub(crate) fn run(args: &RelayArgs) -> io::Result<()> {
    // Each connection needs two files. If the limit cannot rise, the relay serves fewer connections.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = net::TcpListener::bind(("0.0.0.0", args.port)).await?;
        relay(listener, stream).await
    })
}

/// Relays all connections of `listener`.
async fn relay(listener: net::TcpListener, stream: UnixStream) -> io::Result<()> {
    let waiting = Waiting::default();
    let connects = Arc::new(Semaphore::new(CONNECTS));
    let (answers, given) = (stream.try_clone()?, Arc::clone(&waiting));
    thread::Builder::new().name("relay-answers".to_owned()).spawn(move || take_answers(&answers, &given))?;
    (&stream).write_all(&[READY])?;
    for number in 0_u32.. {
        let number = number.to_be_bytes();
        let (inside, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // A client that has gone, or no free descriptor: another client may succeed.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        // Further connections wait in the kernel.
        let permit = Arc::clone(&connects).acquire_owned().await.map_err(io::Error::other)?;
        let (outside, made) = oneshot::channel();
        waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, outside);
        (&stream).write_all(&number)?;
        tokio::spawn(async move {
            // Without a connection to the outside, the one inside is reset, too.
            let made = made.await;
            drop(permit);
            let _ = match made {
                Ok(outside) => join(inside, outside).await,
                Err(_) => inside.set_zero_linger(),
            };
        });
    }
    Ok(())
}

/// Passes on the connections to the outside, until the stream ends.
fn take_answers(stream: &UnixStream, waiting: &Waiting) {
    let mut answer = Answer::default();
    // Each answer has 5 bytes and is one write, so that a read takes one answer with its socket.
    while let Ok((5, socket)) = receive_descriptor(stream, &mut answer) {
        let [a, b, c, d, _] = answer;
        let taker = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&[a, b, c, d]);
        if let (Some(taker), Some(socket)) = (taker, socket) {
            let _ = taker.send(socket);
        }
    }
}

/// Passes bytes between two connections, in both directions, to the end of both.
async fn join(mut inside: net::TcpStream, outside: OwnedFd) -> io::Result<()> {
    let outside = TcpStream::from(outside);
    outside.set_nonblocking(true)?;
    let mut outside = net::TcpStream::from_std(outside)?;
    inside.set_nodelay(true)?;
    outside.set_nodelay(true)?;
    let passed = tokio::io::copy_bidirectional_with_sizes(&mut inside, &mut outside, BUFFER, BUFFER).await;
    if passed.is_err() {
        inside.set_zero_linger()?;
        outside.set_zero_linger()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A relay to a listener outside, and its address inside.
    fn start(outside: &str) -> String {
        let (own, its) = UnixStream::pair().unwrap();
        let inside = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = inside.local_addr().unwrap().to_string();
        inside.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { relay(net::TcpListener::from_std(inside).unwrap(), its).await })
        });
        serve(own, outside.to_owned()).unwrap();
        address
    }

    fn reset(stream: TcpStream) {
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    }

    fn is_reset(mut stream: &TcpStream) -> bool {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let read = stream.read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    }

    #[test]
    fn relay_passes_bytes_ends_and_resets_on() {
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = start(&outside.local_addr().unwrap().to_string());
        let connect = || {
            let client = TcpStream::connect(&address).unwrap();
            (client, outside.accept().unwrap().0)
        };
        // More bytes than all buffers hold, in both directions; then one end after the other.
        let (mut client, mut server) = connect();
        let bytes: Vec<u8> = (0..1 << 20).map(|number| (number % 251) as u8).collect();
        let echo = thread::spawn(move || {
            let mut all = Vec::new();
            server.read_to_end(&mut all).unwrap();
            server.write_all(&all).unwrap();
        });
        client.write_all(&bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        echo.join().unwrap();
        assert!(answer == bytes);

        let (client, server) = connect();
        reset(server);
        assert!(is_reset(&client), "reset from outside");
        let (client, server) = connect();
        reset(client);
        assert!(is_reset(&server), "reset from inside");
        drop(outside);
        assert!(is_reset(&TcpStream::connect(&address).unwrap()), "nobody listens outside");
    }

    #[test]
    fn external_hosts_are_this_machine_or_allowed_ones() {
        let check = |address: &str, allowed: &str| {
            let text = format!("systems: {{ b: {{ kind: mqtt, external: '{address}' }}, p: {{ publishes_to: b }} }}");
            let templates = crate::template::Template::read("t.yaml", &text).unwrap();
            check(&Plan::new(&templates[0], None).unwrap(), &[allowed.to_owned()])
        };
        for address in ["127.0.0.1:1", "127.1.2.3:1", "localhost:1", "[::1]:1", "example.com:1"] {
            assert_eq!(check(address, "example.com"), Ok(()), "{address}");
        }
        let error = check("192.0.2.1:1", "192.0.2.2").unwrap_err();
        assert_eq!(error, "b is on host 192.0.2.1; allow that with --allow-hosts 192.0.2.1");
    }
}
