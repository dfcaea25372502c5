//! Datagrams in a stream: `ADDRESS LOCAL LENGTH\n`, and the bytes. An empty line has no datagram.

use std::io::{self, Write as _};

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

use crate::route::{Route, Via};

/// Bytes of a line at most.
const HEAD_BYTES_MAXIMUM: u64 = 256;

/// Adds a datagram from or to a client. `-` = any local address.
pub(crate) fn write(Route { to, via }: Route, datagram: &[u8], out: &mut Vec<u8>) {
    let local = via.local.map_or_else(|| "-".to_owned(), |local| local.to_string());
    let _always = writeln!(out, "{to} {local} {}", datagram.len());
    out.extend(datagram);
}

/// Reads a datagram; `None` = an empty line. Cancelling loses bytes.
///
/// # Errors
/// The stream fails or ends, or its bytes are no datagram.
pub(crate) async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<(Route, Box<[u8]>)>> {
    let mut head = String::new();
    (&mut *stream).take(HEAD_BYTES_MAXIMUM).read_line(&mut head).await?;
    if head == "\n" {
        return Ok(None);
    }
    let (route, length) = parse(&head).ok_or(io::ErrorKind::InvalidData)?;
    let mut datagram = vec![0; length.into()];
    stream.read_exact(&mut datagram).await?;
    Ok(Some((route, datagram.into())))
}

fn parse(head: &str) -> Option<(Route, u16)> {
    let mut words = head.strip_suffix('\n')?.split(' ');
    let to = words.next()?.parse().ok()?;
    let local = words.next()?;
    let local = if local == "-" { None } else { Some(local.parse().ok()?) };
    Some((Route { to, via: Via { local, relay: None } }, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr, SocketAddrV6};

    use super::*;

    #[tokio::test]
    async fn stream_keeps_addresses_and_datagrams() {
        let (v4, mapped) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([0, 0, 0, 0, 0, 0xFFFF, 0xC000, 0x0201]));
        let scoped = SocketAddrV6::new([0xFE80, 0, 0, 0, 0, 0, 0, 1].into(), 7, 0, 3).into();
        let routes = [
            (SocketAddr::new(v4, 4660), None),
            (SocketAddr::new(v4, 4660), Some(v4)),
            (SocketAddr::new(mapped, 1), Some(mapped)),
            (scoped, Some(IpAddr::from([0; 16]))),
        ];
        let routes = routes.map(|(to, local)| Route { to, via: Via { local, relay: None } });
        let mut bytes = b"\n".to_vec();
        let lengths = [0, 1, 1400, usize::from(u16::MAX)];
        for (route, length) in routes.iter().zip(lengths) {
            write(*route, &vec![7; length], &mut bytes);
        }
        let mut stream = &bytes[..];
        assert!(matches!(read(&mut stream).await, Ok(None)));
        for (route, length) in routes.iter().zip(lengths) {
            let Ok(Some((read, datagram))) = read(&mut stream).await else { panic!("no datagram of {route:?}") };
            assert_eq!((read, datagram.len()), (*route, length));
        }
        assert!(read(&mut stream).await.is_err(), "the stream has ended");
        assert!(read(&mut &b"192.0.2.1:1 - 70000\n"[..]).await.is_err(), "too long for a datagram");
    }
}
