//! PROXY protocol, versions 1 and 2: a proxy tells whose connection it passes on.
//!
//! ```text
//!  v1:  PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n        or TCP6, or UNKNOWN; at most 107 bytes
//!
//!  v2:   0          12                 13                  14        16
//!      +-----------+------------------+-------------------+--------+-----------+------
//!      | signature | version, command | family, transport | length | addresses | TLVs     length counts from byte 16
//!      +-----------+------------------+-------------------+--------+-----------+------
//! ```
//!
//! The reader takes no byte beyond the header: TLS or MQTT follows at once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// A proxy's header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProxyHeader {
    /// The client's address; `None` = the connection is the proxy's own, or from no network address.
    pub(super) peer: Option<SocketAddr>,
    /// Name of the server that the client asked for.
    pub(super) server_name: Option<String>,
    /// Common Name of the client's certificate, which the proxy has verified.
    pub(super) common_name: Option<String>,
    /// Name of the listener at which a node of the cluster has accepted the client. Only relays may tell it.
    pub(super) listener: Option<String>,
    /// Whether that node puts payloads of its copy into packets that have references in their place. Likewise.
    pub(super) takes_references: bool,
}

/// Error in a proxy's header, or of its connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    #[error("{0}")]
    Connection(#[from] io::Error),
    #[error("{0}")]
    Malformed(&'static str),
}

use ProxyError::Malformed;

impl From<ProxyError> for io::Error {
    fn from(error: ProxyError) -> Self {
        match error {
            ProxyError::Connection(error) => error,
            malformed @ Malformed(_) => Self::new(io::ErrorKind::InvalidData, malformed),
        }
    }
}

/// Header of version 2 with which a relay passes the connection of `client` on. The client has connected to `server`, an
/// address of `listener` at the relay. `takes_references`: the relay takes messages by reference, which the leader may
/// begin with [`EXTERNAL_GREETING`](tenbin_codec::EXTERNAL_GREETING).
pub fn write_v2(client: SocketAddr, server: SocketAddr, listener: &str, takes_references: bool) -> Vec<u8> {
    let (family, mut rest) = match (client.ip(), server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => (TCP4, [client.octets(), server.octets()].concat()),
        (client, server) => (TCP6, [v6_octets(client), v6_octets(server)].concat()),
    };
    rest.extend([client.port(), server.port()].iter().flat_map(|port| port.to_be_bytes()));
    // No listener has a longer name: the reader refuses the header.
    let name = &listener.as_bytes()[..listener.len().min(V2_BYTES_MAX)];
    rest.push(LISTENER);
    rest.extend((name.len() as u16).to_be_bytes());
    rest.extend(name);
    if takes_references {
        rest.extend([REFERENCES, 0, 0]);
    }
    let mut header = [V2_SIGNATURE, &[PROXY, family]].concat();
    header.extend((rest.len() as u16).to_be_bytes());
    header.extend(rest);
    header
}

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Whether a header may begin with this byte. TLS, MQTT and the methods of a WebSocket upgrade begin with others.
pub(super) fn begins_header(byte: u8) -> bool {
    byte == V1_BEGIN[0] || byte == V2_SIGNATURE[0]
}

/// Reads a header from the beginning of a connection. Cancelling loses bytes.
///
/// # Errors
/// It is malformed or too long, or the connection ends.
pub(super) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ProxyHeader, ProxyError> {
    let mut first = [0; SHORTEST];
    // The first byte by itself: a client without header may send no more, and need not wait for the timeout.
    stream.read_exact(&mut first[..1]).await?;
    if !begins_header(first[0]) {
        return Err(Malformed("no PROXY header"));
    }
    stream.read_exact(&mut first[1..]).await?;
    if first.starts_with(V2_SIGNATURE) {
        return read_v2(stream, &first[V2_SIGNATURE.len()..]).await;
    }
    if first.starts_with(V1_BEGIN) { read_v1(stream, &first).await } else { Err(Malformed("no PROXY header")) }
}

async fn read_v1<S: AsyncRead + Unpin>(stream: &mut S, first: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let mut line = first.to_vec();
    while !line.ends_with(b"\r\n") {
        // Behind anything but \r, at least two bytes are to come.
        let missing = if line.ends_with(b"\r") { 1 } else { 2 };
        let read = line.len();
        if read + missing > V1_BYTES_MAX {
            return Err(Malformed("line of PROXY header too long"));
        }
        line.resize(read + missing, 0);
        stream.read_exact(&mut line[read..]).await?;
    }
    v1(&line)
}

fn v1(line: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let line = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.ok_or(Malformed("PROXY header is not text"))?.split(' ').skip(1);
    let mut word = || words.next().ok_or(Malformed("PROXY header lacks a part"));
    let peer = match word()? {
        "UNKNOWN" => return Ok(ProxyHeader::default()),
        "TCP4" => {
            let [source, _] = [v1_address::<Ipv4Addr>(word()?)?, v1_address::<Ipv4Addr>(word()?)?];
            SocketAddr::new(source, v1_port(word()?, word()?)?)
        }
        "TCP6" => {
            let [source, _] = [v1_address::<Ipv6Addr>(word()?)?, v1_address::<Ipv6Addr>(word()?)?];
            SocketAddr::new(source, v1_port(word()?, word()?)?)
        }
        _ => return Err(Malformed("PROXY header has an unknown protocol")),
    };
    if word().is_ok() {
        return Err(Malformed("PROXY header has too many parts"));
    }
    Ok(ProxyHeader { peer: Some(peer), ..ProxyHeader::default() })
}

fn v1_address<A: std::str::FromStr + Into<IpAddr>>(word: &str) -> Result<IpAddr, ProxyError> {
    word.parse::<A>().map(Into::into).map_err(|_| Malformed("PROXY header has a wrong address"))
}

/// The first of two ports.
fn v1_port(source: &str, destination: &str) -> Result<u16, ProxyError> {
    let port = |word: &str| word.parse().ok().filter(|_| word.bytes().all(|byte| byte.is_ascii_digit()));
    let ports = port(source).zip(port(destination));
    ports.map(|(source, _)| source).ok_or(Malformed("PROXY header has a wrong port"))
}

/// `read`: bytes behind the signature.
async fn read_v2<S: AsyncRead + Unpin>(stream: &mut S, read: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let &[command, family, length] = read else { return Err(Malformed("PROXY header is cut")) };
    let length = usize::from(u16::from_be_bytes([length, stream.read_u8().await?]));
    if length > V2_BYTES_MAX {
        return Err(Malformed("PROXY header longer than 4 KiB"));
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    v2(command, family, &rest)
}

fn v2(command: u8, family: u8, rest: &[u8]) -> Result<ProxyHeader, ProxyError> {
    match command {
        // The proxy's own connection, such as a health check. The rest has no meaning.
        LOCAL => return Ok(ProxyHeader::default()),
        PROXY => {}
        _ => return Err(Malformed("PROXY header of an unknown version or command")),
    }
    let address_bytes = match family >> 4 {
        0 => 0,
        1 => 12,
        2 => 36,
        3 => 216, // unix sockets
        _ => return Err(Malformed("PROXY header of an unknown address family")),
    };
    let (addresses, tlvs) = rest.split_at_checked(address_bytes).ok_or(Malformed("PROXY header is cut"))?;
    let peer = match *addresses {
        [a, b, c, d, _, _, _, _, high, low, _, _] => Some(([a, b, c, d], u16::from_be_bytes([high, low])).into()),
        _ if address_bytes == 36 => v6(addresses),
        _ => None,
    };
    let is_stream = matches!(family & 0xF, 0 | 1);
    let mut header = ProxyHeader { peer: peer.filter(|_| is_stream), ..ProxyHeader::default() };
    for tlv in Tlvs(tlvs) {
        match tlv? {
            (AUTHORITY, name) => header.server_name = Some(text(name)?),
            (SSL, value) => header.common_name = verified_name(value)?,
            (LISTENER, name) => header.listener = Some(text(name)?),
            (REFERENCES, _) => header.takes_references = true,
            _ => {}
        }
    }
    Ok(header)
}

fn v6(addresses: &[u8]) -> Option<SocketAddr> {
    let source = <[u8; 16]>::try_from(addresses.get(..16)?).ok()?;
    let port = addresses.get(32..34)?.try_into().map(u16::from_be_bytes).ok()?;
    Some((source, port).into())
}

/// Common Name in an SSL TLV, if the proxy has verified the client's certificate.
fn verified_name(value: &[u8]) -> Result<Option<String>, ProxyError> {
    let &[client, a, b, c, d, ref tlvs @ ..] = value else { return Err(Malformed("PROXY header has a short SSL TLV")) };
    let is_verified = client & (CERTIFICATE_NOW | CERTIFICATE_IN_SESSION) != 0 && [a, b, c, d] == [0; 4];
    let mut name = None;
    for tlv in Tlvs(tlvs) {
        if let (COMMON_NAME, value) = tlv? {
            name = Some(text(value)?);
        }
    }
    Ok(name.filter(|_| is_verified))
}

fn text(bytes: &[u8]) -> Result<String, ProxyError> {
    String::from_utf8(bytes.to_owned()).map_err(|_| Malformed("PROXY header has a name that is not UTF-8"))
}

/// Type-length-value entries: a byte, two bytes, and the value.
struct Tlvs<'a>(&'a [u8]);

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<(u8, &'a [u8]), ProxyError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.0);
        if rest.is_empty() {
            return None;
        }
        let cut = Malformed("PROXY header has a cut TLV");
        let Some((&[kind, high, low], rest)) = rest.split_first_chunk() else { return Some(Err(cut)) };
        let Some((value, rest)) = rest.split_at_checked(u16::from_be_bytes([high, low]).into()) else {
            return Some(Err(cut));
        };
        self.0 = rest;
        Some(Ok((kind, value)))
    }
}

/// As [`read`]. Returns the header as text, or why it is malformed; `Err(None)` = the connection ends within it.
#[cfg(fuzzing)]
pub async fn for_fuzzing<S: AsyncRead + Unpin>(stream: &mut S) -> Result<String, Option<&'static str>> {
    match read(stream).await {
        Ok(header) => Ok(format!("{header:?}")),
        Err(ProxyError::Connection(_)) => Err(None),
        Err(Malformed(reason)) => Err(Some(reason)),
    }
}

const V1_BEGIN: &[u8] = b"PROXY ";
const V1_BYTES_MAX: usize = 107;
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of "PROXY UNKNOWN\r\n". No header is shorter.
const SHORTEST: usize = 15;
/// Maximum number of bytes behind the first 16: 4 KiB of TLVs, and the longest addresses.
const V2_BYTES_MAX: usize = 4096 + 216;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const AUTHORITY: u8 = 0x02;
const SSL: u8 = 0x20;
const COMMON_NAME: u8 = 0x22;
/// Of our own, among the types that the specification leaves to applications.
const LISTENER: u8 = 0xE0;
const REFERENCES: u8 = 0xE1;
/// Address families of TCP.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
/// Bits of an SSL TLV: the client has shown a certificate in this connection, or in another one of its TLS session.
const CERTIFICATE_NOW: u8 = 0x02;
const CERTIFICATE_IN_SESSION: u8 = 0x04;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tenbin_balancer::Rng;
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn header_v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [V2_SIGNATURE, &[command, family], &length, rest].concat()
    }

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        [&[kind], &(value.len() as u16).to_be_bytes()[..], value].concat()
    }

    const ADDRESSES: [u8; 12] = [192, 0, 2, 1, 10, 0, 0, 1, 0x12, 0x34, 7, 91];

    fn with_tlvs(tlvs: &[u8]) -> Vec<u8> {
        header_v2(PROXY, 0x11, &[&ADDRESSES[..], tlvs].concat())
    }

    fn certificate(client: u8, verify: u8, name: &[u8]) -> Vec<u8> {
        let value = [&[client, 0, 0, 0, verify], &tlv(0x21, b"TLSv1.3")[..], &tlv(COMMON_NAME, name)].concat();
        with_tlvs(&tlv(SSL, &value))
    }

    /// Reads one header, and returns the unread bytes too.
    async fn read_all(mut bytes: &[u8]) -> (Result<ProxyHeader, ProxyError>, &[u8]) {
        let header = read(&mut bytes).await;
        (header, bytes)
    }

    /// A header, with the client's address, the server's name and the Common Name that it tells.
    type Good = (Vec<u8>, Option<&'static str>, Option<&'static str>, Option<&'static str>);

    fn good() -> Vec<Good> {
        let v4 = Some("192.0.2.1:4660");
        let v6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1], &[0; 16], &[0x12, 0x34, 7, 91]].concat();
        let authority = [tlv(4, &[0; 9]), tlv(AUTHORITY, b"broker.example")].concat();
        vec![
            (b"PROXY UNKNOWN\r\n".to_vec(), None, None, None),
            (b"PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n".to_vec(), None, None, None),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 4660 1883\r\n".to_vec(), v4, None, None),
            (b"PROXY TCP6 2001:db8::1 ::1 4660 1883\r\n".to_vec(), Some("[2001:db8::1]:4660"), None, None),
            (header_v2(LOCAL, 0, &[]), None, None, None),
            (header_v2(LOCAL, 0x11, &[&ADDRESSES[..], &[1, 2]].concat()), None, None, None),
            (header_v2(PROXY, 0, &[]), None, None, None),
            (header_v2(PROXY, 0x11, &ADDRESSES), v4, None, None),
            (header_v2(PROXY, 0x12, &ADDRESSES), None, None, None),
            (header_v2(PROXY, 0x21, &v6), Some("[2001:db8::1]:4660"), None, None),
            (header_v2(PROXY, 0x31, &[0; 216]), None, None, None),
            (with_tlvs(&authority), v4, Some("broker.example"), None),
            (with_tlvs(&tlv(4, &[0; 4093])), v4, None, None),
            (with_tlvs(&tlv(LISTENER, b"outside")), v4, None, None),
            (certificate(CERTIFICATE_NOW | 1, 0, b"alice"), v4, None, Some("alice")),
            (certificate(CERTIFICATE_NOW | 1, 1, b"alice"), v4, None, None),
            (certificate(1, 0, b"alice"), v4, None, None),
        ]
    }

    #[tokio::test]
    async fn headers_tell_address_and_names_and_end_exactly() {
        for (bytes, peer, server_name, common_name) in good() {
            let followed = [&bytes[..], b"\x10\x0e"].concat();
            let (header, rest) = read_all(&followed).await;
            let header = header.unwrap();
            assert_eq!(header.peer.map(|peer| peer.to_string()).as_deref(), peer, "{bytes:?}");
            assert_eq!(header.server_name.as_deref(), server_name, "{bytes:?}");
            assert_eq!(header.common_name.as_deref(), common_name, "{bytes:?}");
            assert_eq!(rest, b"\x10\x0e", "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn written_header_is_read_back() {
        for (client, server, family) in [
            ("192.0.2.1:4660", "10.0.0.1:1883", TCP4),
            ("[2001:db8::1]:4660", "[::1]:1883", TCP6),
            ("192.0.2.1:4660", "[::1]:1883", TCP6),
            ("[::ffff:192.0.2.1]:4660", "[::ffff:10.0.0.1]:1883", TCP6),
        ] {
            let client: SocketAddr = client.parse().unwrap();
            let takes_references = client.is_ipv4();
            let bytes = write_v2(client, server.parse().unwrap(), "outside", takes_references);
            assert_eq!(bytes[13], family);
            let followed = [&bytes[..], b"\x10"].concat();
            let (header, rest) = read_all(&followed).await;
            let header = header.unwrap();
            assert_eq!((header.peer.unwrap().ip().to_canonical(), rest), (client.ip().to_canonical(), &b"\x10"[..]));
            assert_eq!((header.peer.unwrap().port(), header.listener.as_deref()), (4660, Some("outside")));
            assert_eq!(header.takes_references, takes_references);
        }
        let long = write_v2(([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into(), &"x".repeat(100_000), false);
        assert!(matches!(read_all(&long).await.0, Err(Malformed("PROXY header longer than 4 KiB"))));
    }

    #[tokio::test]
    async fn headers_come_byte_by_byte_or_are_cut() {
        for (bytes, ..) in good() {
            let expected = read_all(&bytes).await.0.unwrap();
            let (mut ours, mut theirs) = tokio::io::duplex(1);
            let (header, ()) = tokio::join!(read(&mut ours), async { theirs.write_all(&bytes).await.unwrap() });
            assert_eq!(header.unwrap(), expected);
            for length in 0..bytes.len() {
                assert!(matches!(read_all(&bytes[..length]).await.0, Err(ProxyError::Connection(_))), "{length}");
            }
        }
    }

    #[tokio::test]
    async fn malformed_headers_are_refused() {
        let long = format!("PROXY UNKNOWN {}", "x".repeat(200));
        let many_tlvs = tlv(4, &[0; 100]).repeat(600);
        for (bytes, word) in [
            (&b"\x10"[..], "no PROXY header"),
            (b"PROXIMATE.......", "no PROXY header"),
            (b"\r\n\r\n\0\r\nQUIX\n!!!!", "no PROXY header"),
            (long.as_bytes(), "too long"),
            (b"PROXY TCP4 ::1 ::1 1 2\r\n", "address"),
            (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "address"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "lacks"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n", "too many"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n", "port"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n", "port"),
            (b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "protocol"),
            (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", "protocol"),
            (b"PROXY \xff\xff\xff\xff\xff\xff\xff\xff\xff\r\n", "not text"),
            (&header_v2(0x22, 0, &[]), "command"),
            (&header_v2(0x11, 0, &[]), "command"),
            (&header_v2(PROXY, 0x41, &[]), "family"),
            (&header_v2(PROXY, 0x11, &ADDRESSES[..11]), "cut"),
            (&header_v2(PROXY, 0x11, &many_tlvs), "4 KiB"),
            (&with_tlvs(&[4, 0]), "cut TLV"),
            (&with_tlvs(&[4, 0, 2, 0]), "cut TLV"),
            (&with_tlvs(&tlv(AUTHORITY, b"\xff")), "UTF-8"),
            (&with_tlvs(&tlv(SSL, &[1, 0, 0, 0])), "short SSL"),
        ] {
            let error = read_all(bytes).await.0.unwrap_err().to_string();
            assert!(error.contains(word), "{bytes:?}: {error}");
        }
    }

    /// Mutations of all headers: 20,000, or for `TENBIN_MUTATION_SECONDS`.
    #[tokio::test]
    async fn mutated_headers_neither_panic_nor_take_more() {
        let seconds = std::env::var("TENBIN_MUTATION_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
        let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let (good, mut rng) = (good(), Rng::new(1));
        let mut number = 0_u64;
        while until.map_or(number < 20_000, |until| Instant::now() < until) {
            let mut bytes = good[number as usize % good.len()].0.clone();
            for _ in 0..=rng.next_u64() % 4 {
                mutate(&mut bytes, &mut rng);
            }
            bytes.resize(bytes.len() + V2_BYTES_MAX, 0xA5);
            let (header, rest) = read_all(&bytes).await;
            assert!(bytes.len() - rest.len() <= 16 + V2_BYTES_MAX, "{bytes:?}");
            assert!(!matches!(header, Err(ProxyError::Connection(_))), "{bytes:?}");
            number += 1;
        }
    }

    fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
        let at = rng.next_u64() as usize % bytes.len().max(1);
        match rng.next_u64() % 4 {
            0 if !bytes.is_empty() => bytes[at] = rng.next_u64() as u8,
            1 if !bytes.is_empty() => bytes[at] ^= 1 << (rng.next_u64() % 8),
            2 => bytes.insert(at.min(bytes.len()), rng.next_u64() as u8),
            _ => bytes.truncate(at),
        }
    }
}
