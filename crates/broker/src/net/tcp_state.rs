//! Kernel state of a TCP connection on Linux, from sock_diag(7).
//!
//! It looks connections up by their addresses, with plain reads and writes; `getsockopt(TCP_INFO)` has no safe wrapper.

use std::net::SocketAddr;
use std::time::Duration;

/// Both addresses of a TCP connection, which identify it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    /// `None`, as `local`, if it is no TCP connection.
    pub(super) peer: Option<SocketAddr>,
    pub(super) local: Option<SocketAddr>,
    /// Inode of a unix socket.
    pub(super) inode: Option<u32>,
}

/// State of the bytes that a socket has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TcpState {
    /// Bytes that the peer's kernel has not acknowledged, including those not sent yet.
    pub(super) unacknowledged: u32,
    /// Bytes not sent yet.
    pub(super) unsent: u32,
    /// The peer's receive window in bytes: room for data that its application has not read.
    pub(super) window: u32,
    /// Shortest round trip of the last minutes; `None` = not measured. The mean would include delayed acknowledgements:
    /// the peer's kernel waits for data to send them with, which a worker has when its work is done.
    pub(super) round_trip: Option<Duration>,
}

impl Ends {
    /// Queries the state. `None`: the connection does not exist any more, or the kernel does not answer.
    pub(super) fn state(&self) -> Option<TcpState> {
        #[cfg(target_os = "linux")]
        if let Some(inode) = self.inode {
            return sock_diag::unread(inode).map(TcpState::of_unread);
        }
        #[cfg(target_os = "linux")]
        return sock_diag::ask(self.local?, self.peer?);
        #[cfg(not(target_os = "linux"))]
        return self.local.and(None);
    }
}

impl TcpState {
    /// State of a unix socket whose peer has not read `unread` bytes. The kernel knows them exactly; they close a window
    /// of fixed size.
    fn of_unread(unread: u32) -> Self {
        let closed = unread.min(UNIX_WINDOW);
        Self { unacknowledged: unread - closed, unsent: 0, window: UNIX_WINDOW - closed, round_trip: None }
    }
}

/// Less than the kernel lets wait for a peer, however small the messages are.
const UNIX_WINDOW: u32 = 32 * 1024;

#[cfg(target_os = "linux")]
mod sock_diag {
    use std::cell::RefCell;
    use std::io::{self, Read, Write};
    use std::net::{IpAddr, SocketAddr};
    use std::sync::Once;
    use std::time::Duration;

    use socket2::{Domain, Protocol, Socket, Type};

    use super::TcpState;

    pub(super) fn ask(local: SocketAddr, peer: SocketAddr) -> Option<TcpState> {
        exchange(|sequence| request(sequence, local, peer), parse)
    }

    /// Bytes that the peer of a unix socket has not read.
    pub(super) fn unread(inode: u32) -> Option<u32> {
        let peer = exchange(|sequence| unix_request(sequence, inode), |answer| unix_attribute(answer, UNIX_DIAG_PEER))?;
        exchange(|sequence| unix_request(sequence, peer), |answer| unix_attribute(answer, UNIX_DIAG_RQLEN))
    }

    fn exchange<const BYTES: usize, T>(
        request: impl FnOnce(u32) -> [u8; BYTES],
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        KERNEL.with_borrow_mut(|kernel| {
            let kernel = match kernel {
                Kernel::Unknown => kernel.insert(Kernel::open()),
                known => known,
            };
            let Kernel::Known(socket, sequence) = kernel else { return None };
            *sequence = sequence.wrapping_add(1);
            socket.write_all(&request(*sequence)).ok()?;
            let mut answer = [0; ANSWER_MAX];
            // Skips answers to earlier queries that failed before they read theirs.
            for _ in 0..STALE_MAX {
                let length = socket.read(&mut answer).ok()?;
                let answer = &answer[..length];
                if u32_at(answer, 8)? == *sequence {
                    return parse(answer);
                }
            }
            None
        })
    }

    /// A thread's netlink socket.
    enum Kernel {
        Unknown,
        Silent,
        /// The socket and the sequence number of the last query.
        Known(Socket, u32),
    }

    impl Kernel {
        fn open() -> Self {
            match open() {
                Ok(socket) => Self::Known(socket, 0),
                Err(error) => {
                    static TOLD: Once = Once::new();
                    TOLD.call_once(|| tracing::info!(%error, "the kernel does not report unread bytes of clients"));
                    Self::Silent
                }
            }
        }

        fn insert(&mut self, kernel: Self) -> &mut Self {
            *self = kernel;
            self
        }
    }

    fn open() -> io::Result<Socket> {
        let socket = Socket::new(Domain::from(AF_NETLINK), Type::DGRAM, Some(Protocol::from(NETLINK_SOCK_DIAG)))?;
        // The kernel answers during the write.
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Encodes a query for one connection: `nlmsghdr`, then `inet_diag_req_v2`.
    ///
    /// ```text
    ///  0        4      6      8          12       16      17        18          19   20       24
    /// +--------+------+------+----------+--------+-------+---------+-----------+----+--------+----
    /// | length | type | flags| sequence | 0      | family| protocol| extensions| 0  | states | id
    /// +--------+------+------+----------+--------+-------+---------+-----------+----+--------+----
    ///  24 id          28         44        60         64      72
    /// ----+-----------+---------+---------+-----------+-------+
    ///     | ports     | local   | peer    | interface | any   |       ports and addresses in the network's order
    /// ----+-----------+---------+---------+-----------+-------+
    /// ```
    fn request(sequence: u32, local: SocketAddr, peer: SocketAddr) -> [u8; REQUEST_BYTES] {
        let mut request = [0; REQUEST_BYTES];
        let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
        put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        put(6, &NLM_F_REQUEST.to_ne_bytes());
        put(8, &sequence.to_ne_bytes());
        put(16, &[if local.is_ipv4() { AF_INET } else { AF_INET6 }, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1)]);
        put(20, &u32::MAX.to_ne_bytes());
        put(24, &local.port().to_be_bytes());
        put(26, &peer.port().to_be_bytes());
        for (at, address) in [(28, local.ip()), (44, peer.ip())] {
            match address {
                IpAddr::V4(address) => put(at, &address.octets()),
                IpAddr::V6(address) => put(at, &address.octets()),
            }
        }
        if let SocketAddr::V6(peer) = peer {
            put(60, &peer.scope_id().to_ne_bytes());
        }
        put(64, &[u8::MAX; 8]);
        request
    }

    /// Encodes a query for one unix socket: `nlmsghdr`, then `unix_diag_req`.
    ///
    /// ```text
    ///  0        4      6      8          12  16       17         20       24      28     32      40
    /// +--------+------+------+----------+---+--------+----------+--------+-------+------+-------+
    /// | length | type | flags| sequence | 0 | family | 0        | states | inode | show | any   |
    /// +--------+------+------+----------+---+--------+----------+--------+-------+------+-------+
    /// ```
    fn unix_request(sequence: u32, inode: u32) -> [u8; UNIX_REQUEST_BYTES] {
        let mut request = [0; UNIX_REQUEST_BYTES];
        let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(UNIX_REQUEST_BYTES as u32).to_ne_bytes());
        put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        put(6, &NLM_F_REQUEST.to_ne_bytes());
        put(8, &sequence.to_ne_bytes());
        put(16, &[AF_UNIX]);
        put(20, &u32::MAX.to_ne_bytes());
        put(24, &inode.to_ne_bytes());
        put(28, &(UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN).to_ne_bytes());
        put(32, &[u8::MAX; 8]);
        request
    }

    /// First word of an attribute behind `unix_diag_msg`.
    fn unix_attribute(answer: &[u8], wanted: u16) -> Option<u32> {
        if u16_at(answer, 4)? != SOCK_DIAG_BY_FAMILY {
            return None; // an error: no such socket
        }
        attribute(answer.get(32..)?, wanted).and_then(|value| u32_at(value, 0))
    }

    /// Value of the first attribute of type `wanted`.
    fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
        loop {
            let length = u16_at(attributes, 0).map(usize::from).filter(|length| *length >= 4)?;
            if u16_at(attributes, 2)? == wanted {
                return attributes.get(4..length);
            }
            attributes = attributes.get(length.next_multiple_of(4)..)?;
        }
    }

    fn parse(answer: &[u8]) -> Option<TcpState> {
        if u16_at(answer, 4)? != SOCK_DIAG_BY_FAMILY || answer.get(17) != Some(&TCP_ESTABLISHED) {
            return None; // an error: no such connection; or it is closing, and the queue size has another meaning
        }
        let unacknowledged = u32_at(answer, 76)?;
        // Its size depends on the kernel's version; Linux 5.4 and later include the window.
        let info = attribute(answer.get(88..)?, INET_DIAG_INFO)?;
        let round_trip = u32_at(info, 148).filter(|micros| *micros < u32::MAX);
        Some(TcpState {
            unacknowledged,
            unsent: u32_at(info, 144)?,
            window: u32_at(info, 228)?,
            round_trip: round_trip.map(|micros| Duration::from_micros(micros.into())),
        })
    }

    fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
        Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
    }

    fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    }

    thread_local! {
        static KERNEL: RefCell<Kernel> = const { RefCell::new(Kernel::Unknown) };
    }

    // From linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and linux/tcp.h.
    const AF_NETLINK: i32 = 16;
    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    const IPPROTO_TCP: u8 = 6;
    const INET_DIAG_INFO: u16 = 2;
    const TCP_ESTABLISHED: u8 = 1;
    const REQUEST_BYTES: usize = 72;
    // From linux/unix_diag.h.
    const AF_UNIX: u8 = 1;
    const UDIAG_SHOW_PEER: u32 = 0x4;
    const UDIAG_SHOW_RQLEN: u32 = 0x10;
    const UNIX_DIAG_PEER: u16 = 2;
    const UNIX_DIAG_RQLEN: u16 = 4;
    const UNIX_REQUEST_BYTES: usize = 40;
    /// Four times the size of an answer by Linux 6.
    const ANSWER_MAX: usize = 2048;
    const STALE_MAX: usize = 4;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A connection; `Ends` are the ends of its first socket.
    fn connection(address: &str) -> (TcpStream, TcpStream, Ends) {
        let listener = TcpListener::bind(address).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        let ends = Ends { local: stream.local_addr().ok(), peer: Some(from), inode: None };
        (stream, peer, ends)
    }

    #[test]
    fn unread_bytes_stay_in_socket_until_peer_reads() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut stream, mut peer, ends) = connection(address);
            let state = || ends.state().expect("Linux tells this to anybody");
            assert_eq!((state().unacknowledged, state().unsent), (0, 0));
            assert!(state().window > 0);
            assert!(state().round_trip.is_some_and(|time| time > Duration::ZERO), "measured by the handshake");
            stream.set_nonblocking(true).unwrap();
            let mut written = 0;
            while let Ok(bytes) = stream.write(&[0; 1 << 16]) {
                written += bytes;
            }
            let full = state();
            assert!(full.unsent > 0 && full.unacknowledged >= full.unsent, "{full:?}");
            assert!((full.unacknowledged as usize) < written, "the peer's kernel has some");
            peer.read_exact(&mut vec![0; written]).unwrap();
            assert_eq!(state().unsent, 0);
        }
    }

    #[test]
    fn unread_bytes_of_a_unix_socket_are_exact() {
        let (mut stream, mut peer) = UnixStream::pair().unwrap();
        let inode = fs::metadata(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap().ino();
        let ends = Ends { local: None, peer: None, inode: u32::try_from(inode).ok() };
        if ends.state().is_none() {
            return; // a kernel without unix_diag
        }
        let unread = || ends.state().map(|state| state.unacknowledged + UNIX_WINDOW - state.window);
        for (write, read, expected) in [(0, 0, 0), (1_000, 0, 1_000), (50_000, 1, 50_999), (1, 50_000, 1_000)] {
            stream.write_all(&vec![0; write]).unwrap();
            peer.read_exact(&mut vec![0; read]).unwrap();
            assert_eq!(unread(), Some(expected));
        }
    }

    #[test]
    fn closed_connection_has_no_tcp_state() {
        let (stream, peer, ends) = connection("127.0.0.1:0");
        drop((stream, peer));
        assert_eq!(ends.state(), None);
    }
}
