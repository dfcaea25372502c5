//! Listening sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

use super::port_holder;
use super::unix_socket::{self, NewRights, SocketFile};
use crate::Config;
use crate::config::{ListenAddress, Listener};

/// Error of a listener that cannot be opened; its text is one line.
#[derive(Debug, thiserror::Error)]
#[error("listener {listener}: cannot listen on {address}: {reason}")]
pub struct ListenError {
    listener: Arc<str>,
    address: String,
    #[source]
    reason: io::Error,
}

impl ListenError {
    pub(crate) fn new(listener: &Listener, reason: io::Error) -> Self {
        Self { listener: listener.name(), address: listener.address.to_string(), reason }
    }
}

/// Checks a listener at a unix socket, without opening it.
///
/// # Errors
/// Its directory or its group does not exist.
pub(crate) fn check_unix(listener: &Listener) -> Result<(), ListenError> {
    let ListenAddress::Unix(path) = &listener.address else { return Ok(()) };
    unix_socket::check(path, listener).map_err(|error| ListenError::new(listener, error))
}

/// IP addresses of the names at which listeners listen.
#[derive(Debug, Default)]
pub(crate) struct ResolvedNames(Vec<(ListenAddress, Vec<SocketAddr>)>);

impl ResolvedNames {
    /// Looks up the names of `listeners`, which may take seconds.
    ///
    /// # Errors
    /// A name is unknown.
    pub(crate) fn look_up(listeners: &[Listener]) -> Result<Self, ListenError> {
        let mut names = Self::default();
        names.extend(listeners)?;
        Ok(names)
    }

    /// Looks up the names of further listeners that are not known yet.
    ///
    /// # Errors
    /// A name is unknown.
    pub(crate) fn extend(&mut self, listeners: &[Listener]) -> Result<(), ListenError> {
        for listener in listeners {
            if let ListenAddress::Name { host, port } = &listener.address
                && self.addresses(&listener.address).is_err()
            {
                let found = (&**host, *port).to_socket_addrs().map_err(|reason| ListenError::new(listener, reason))?;
                let mut found: Vec<_> = found.collect();
                found.dedup();
                self.0.push((listener.address.clone(), found));
            }
        }
        Ok(())
    }

    pub(crate) fn addresses(&self, name: &ListenAddress) -> io::Result<Vec<SocketAddr>> {
        let found = self.0.iter().find(|(known, _)| known == name).map(|(_, found)| found.clone());
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name was not looked up"))
    }
}

/// A listening socket. Its [`ListeningSocket::acceptor`]s share the connections that wait to be accepted.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    socket: Socket,
    /// Address with the actual port.
    address: ListenAddress,
    /// Of a unix socket.
    file: Option<Arc<SocketFile>>,
}

/// Accepts connections of a [`ListeningSocket`].
#[derive(Debug)]
pub(crate) enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl ListeningSocket {
    /// Opens the sockets of a listener.
    ///
    /// Accepted sockets inherit the settings for the detection of dead peers.
    ///
    /// # Errors
    /// A port is in use or needs privileges.
    pub(crate) fn open_all(
        listener: &Listener,
        names: &ResolvedNames,
        config: &Config,
    ) -> Result<Vec<Self>, ListenError> {
        let error = |address: String, reason| ListenError { listener: listener.name(), address, reason };
        if let ListenAddress::Unix(path) = &listener.address {
            let open = Self::open_unix(path, listener).map_err(|reason| ListenError::new(listener, reason))?;
            return Ok(vec![open]);
        }
        let (candidates, wanted) =
            candidates(&listener.address, names).map_err(|reason| ListenError::new(listener, reason))?;
        let (mut open, mut absent) = (Vec::<Self>::new(), None);
        for mut address in candidates {
            // Port 0: the same free port everywhere.
            address.set_port(open.first().and_then(Self::ip).map_or(address.port(), |first| first.port()));
            match Self::bind(address, config) {
                Ok(socket) => open.push(socket),
                Err(reason) if is_absent(&reason) => absent = Some(error(address.to_string(), reason)),
                Err(reason) if reason.kind() == io::ErrorKind::AddrInUse => {
                    let reason = io::Error::new(reason.kind(), format!("{reason}: {}", port_holder::hint(address)));
                    return Err(error(address.to_string(), reason));
                }
                Err(reason) => return Err(error(address.to_string(), reason)),
            }
            if open.len() == wanted {
                return Ok(open);
            }
        }
        match absent {
            Some(error) if open.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!("{error}; its other addresses are open");
                Ok(open)
            }
            None => Ok(open),
        }
    }

    /// Opens a socket of a listener again, at an address that it had.
    ///
    /// # Errors
    /// Another process has the address.
    pub(crate) fn open_at(address: &ListenAddress, listener: &Listener, config: &Config) -> Result<Self, ListenError> {
        let listener = Listener { address: address.clone(), ..listener.clone() };
        let mut open = Self::open_all(&listener, &ResolvedNames::default(), config)?;
        open.pop().ok_or_else(|| ListenError::new(&listener, io::ErrorKind::AddrNotAvailable.into()))
    }

    fn open_unix(path: &Path, listener: &Listener) -> io::Result<Self> {
        let (socket, file) = unix_socket::bind(path, listener)?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket, address: listener.address.clone(), file: Some(Arc::new(file)) })
    }

    fn bind(address: SocketAddr, config: &Config) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        if let Some(keepalive) = config.tcp_keepalive() {
            socket.set_tcp_keepalive(&keepalive)?;
        }
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(config.tcp_user_timeout())?;
        if address.ip() == Ipv6Addr::UNSPECIFIED {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let address = socket.local_addr()?.as_socket().unwrap_or(address);
        Ok(Self { socket, address: address.into(), file: None })
    }

    /// Another descriptor of the same socket.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, address: self.address.clone(), file: self.file.clone() })
    }

    /// Gives the file of a unix socket the rights of `listener`; `None` for other sockets.
    pub(crate) fn permit(&self, listener: &Listener) -> Result<Option<NewRights>, ListenError> {
        let permitted = self.file.as_ref().map(|file| file.permit(listener)).transpose();
        permitted.map_err(|reason| ListenError::new(listener, reason))
    }

    /// Registers the socket with the current runtime, to accept connections there.
    pub(crate) fn acceptor(&self) -> io::Result<Acceptor> {
        let socket = self.socket.try_clone()?;
        match self.address {
            ListenAddress::Unix(_) => UnixListener::from_std(socket.into()).map(Acceptor::Unix),
            _ => TcpListener::from_std(socket.into()).map(Acceptor::Tcp),
        }
    }

    pub(crate) fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// IP address; `None` for a unix socket.
    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        match self.address {
            ListenAddress::Ip(address) => Some(address),
            _ => None,
        }
    }
}

/// Addresses to bind, and how many of them are enough.
fn candidates(address: &ListenAddress, names: &ResolvedNames) -> io::Result<(Vec<SocketAddr>, usize)> {
    match address {
        ListenAddress::Ip(address) => Ok((vec![*address], 1)),
        // The first one is of both protocols, where the machine has IPv6.
        &ListenAddress::Port(port) => {
            Ok((vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()], 1))
        }
        name @ ListenAddress::Name { .. } => Ok((names.addresses(name)?, usize::MAX)),
        ListenAddress::Unix(_) => Ok((Vec::new(), 0)),
    }
}

/// Whether the machine lacks the address, or its protocol.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 4096;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::net::TcpStream;

    use super::*;

    fn open(address: &str, config: &Config) -> Result<Vec<ListeningSocket>, String> {
        let listener = Listener::anonymous(address.parse::<ListenAddress>().unwrap());
        let names = ResolvedNames::look_up(std::slice::from_ref(&listener));
        let open = names.and_then(|names| ListeningSocket::open_all(&listener, &names, config));
        open.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn accepted_sockets_inherit_dead_peer_detection() {
        let own = "[connections]\ntcp_keepalive_idle_seconds = 7\ntcp_keepalive_interval_seconds = 5\n\
                   tcp_keepalive_probes = 2\ntcp_user_timeout_seconds = 30";
        let off = "[connections]\ntcp_keepalive_idle_seconds = 0";
        let expected = [("", Some((60, 10, 3)), None), (own, Some((7, 5, 2)), Some(30)), (off, None, None)];
        for (text, keepalive, user_timeout) in expected {
            let config = Config::parse(text).unwrap();
            let listener = open("127.0.0.1:0", &config).unwrap().remove(0);
            let _client = TcpStream::connect(listener.ip().unwrap()).await.unwrap();
            let Acceptor::Tcp(acceptor) = listener.acceptor().unwrap() else { panic!("{listener:?}") };
            let (accepted, _) = acceptor.accept().await.unwrap();
            let socket = SockRef::from(&accepted);
            assert_eq!(socket.keepalive().unwrap(), keepalive.is_some(), "{text}");
            if let Some((idle, interval, probes)) = keepalive {
                assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(idle), "{text}");
                assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(interval), "{text}");
                assert_eq!(socket.tcp_keepalive_retries().unwrap(), probes, "{text}");
            }
            assert_eq!(socket.tcp_user_timeout().unwrap(), user_timeout.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn name_is_every_address_that_the_machine_has() {
        let open = open("localhost:0", &Config::default()).unwrap();
        let expected: Vec<_> = ("localhost", open[0].ip().unwrap().port())
            .to_socket_addrs()
            .unwrap()
            .filter(|address| std::net::TcpListener::bind((address.ip(), 0)).is_ok())
            .collect();
        assert!(open.iter().all(|socket| expected.contains(&socket.ip().unwrap())), "{open:?}");
        assert!(expected.iter().all(|address| open.iter().any(|socket| socket.ip() == Some(*address))), "{open:?}");
    }

    #[tokio::test]
    async fn bare_port_is_every_address_of_the_machine() {
        let open = open(":0", &Config::default()).unwrap();
        let [socket] = &open[..] else { panic!("one socket: {open:?}") };
        let address = socket.ip().unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).await.unwrap();
        if address.is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, address.port())).await.unwrap();
        }
    }

    #[test]
    fn errors_name_listener_and_address() {
        let taken = open("127.0.0.1:0", &Config::default()).unwrap();
        let address = taken[0].address().to_string();
        let port = address.rsplit(':').next().unwrap();
        for (wanted, words) in [
            (&*address, ["listener 127.0.0.1:", &address, "in use"]),
            (&format!(":{port}"), ["listener :", port, "in use"]),
            ("192.0.2.1:0", ["listener 192.0.2.1:0", "cannot listen on 192.0.2.1:0", "assign"]),
            ("no.such.host.invalid:1", ["listener no.such", "cannot listen on no.such.host.invalid:1", "lookup"]),
        ] {
            let error = open(wanted, &Config::default()).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[tokio::test]
    async fn unix_socket_replaces_a_stale_file_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let address = format!("unix:{}", path.display());
        let config = Config::default();
        std::fs::write(&path, "").unwrap();
        assert!(open(&address, &config).unwrap_err().contains("no socket"));
        std::fs::remove_file(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves its file
        let first = open(&address, &config).unwrap();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions()) & 0o777,
            0o660
        );
        let error = open(&address, &config).unwrap_err();
        assert!(error.contains(&address) && error.contains("in use"), "{error}");
        tokio::net::UnixStream::connect(&path).await.unwrap();
        drop(first);
        assert!(!path.exists());
        let long = format!("unix:{}", "x".repeat(200));
        assert!(open(&long, &config).unwrap_err().contains("xxx"));
    }
}
