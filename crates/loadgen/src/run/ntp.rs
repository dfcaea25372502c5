//! `--ntp HOST`: adjusts the run's clock to an NTP server, with the simple form of the protocol (SNTPv4, RFC 4330).
//!
//! ```text
//! 0   leap 2 bits, version 3, mode 3      24..32  originate: our transmit time, sent back
//! 1   stratum                             32..40  receive: when the server got it
//! 4.. not used here                       40..48  transmit: when it answered
//! ```
//!
//! Times are 32 bits of seconds since 1900 and 32 bits of their fraction. The seconds overflow in February 2036; values
//! below 2^31 belong to the era that begins then.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{UdpSocket, lookup_host};

use super::clock::RunClock;
use super::offset::{Offset, Probe};
use crate::LoadgenError;
use crate::target::with_port;

/// Offset of the clock of the NTP server `host`, with or without a port, from `clock`.
///
/// # Errors
/// The server cannot be reached, does not answer, or says that its time is unusable.
pub(crate) async fn offset(host: &str, clock: RunClock) -> Result<Offset, LoadgenError> {
    ask(host, clock, PAUSES).await.map_err(|reason| LoadgenError::Ntp { server: host.to_owned(), reason })
}

async fn ask(host: &str, clock: RunClock, pauses: Pauses) -> Result<Offset, String> {
    let found = lookup_host(with_port(host, PORT)).await.map_err(|error| error.to_string())?.next();
    let server = found.ok_or("the name has no address")?;
    let socket = connect(server).await.map_err(|error| error.to_string())?;
    let (mut probes, mut last) = (Vec::new(), String::new());
    for number in 0..QUESTIONS {
        if number > 0 {
            tokio::time::sleep(pauses.between).await;
        }
        match tokio::time::timeout(pauses.answer, probe(&socket, clock)).await {
            Ok(Ok(probe)) => probes.push(probe),
            Ok(Err(reason)) => last = reason,
            Err(_) => last = format!("no answer within {:?}", pauses.answer),
        }
        // One datagram may be lost; if the second is lost too, give up.
        if number > 0 && probes.is_empty() {
            break;
        }
    }
    Offset::of(&probes).ok_or(last)
}

async fn connect(server: SocketAddr) -> std::io::Result<UdpSocket> {
    let any = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    Ok(socket)
}

/// Waiting times.
#[derive(Debug, Clone, Copy)]
struct Pauses {
    /// From one request to the next.
    between: Duration,
    /// For an answer.
    answer: Duration,
}

/// Sends one request; ignores answers to other requests.
async fn probe(socket: &UdpSocket, clock: RunClock) -> Result<Probe, String> {
    let asked_ns = clock.now_ns();
    let question = question(asked_ns);
    socket.send(&question).await.map_err(|error| error.to_string())?;
    loop {
        let mut answer = [0; LEN];
        let count = socket.recv(&mut answer).await.map_err(|error| error.to_string())?;
        let heard_ns = clock.now_ns();
        // A late answer to an earlier request, or a forged one.
        if count < LEN || answer[ORIGINATE..RECEIVE] != question[TRANSMIT..] {
            continue;
        }
        return read(&answer, asked_ns, heard_ns);
    }
}

fn question(now_ns: u64) -> [u8; LEN] {
    let mut packet = [0; LEN];
    packet[0] = VERSION << 3 | CLIENT;
    packet[TRANSMIT..].copy_from_slice(&timestamp(now_ns).to_be_bytes());
    packet
}

/// Parses an answer of the server.
fn read(answer: &[u8; LEN], asked_ns: u64, heard_ns: u64) -> Result<Probe, String> {
    let (leap, mode, stratum) = (answer[0] >> 6, answer[0] & 7, answer[1]);
    if mode != SERVER {
        return Err(format!("an answer of mode {mode} instead of {SERVER}"));
    }
    if stratum == 0 {
        // Kiss-o'-death: a code of four letters in place of a reference, such as RATE, DENY or INIT.
        return Err(format!("it gives no time: {}", answer[12..16].escape_ascii()));
    }
    if leap == 3 || stratum > 15 {
        return Err("its clock is not set by anything".to_owned());
    }
    let at = |from: usize| {
        let bytes = answer[from..from + 8].try_into().expect("eight bytes");
        unix_ns(u64::from_be_bytes(bytes))
    };
    match (at(RECEIVE), at(TRANSMIT)) {
        (Some(received_ns), Some(answered_ns)) => Ok(Probe { asked_ns, received_ns, answered_ns, heard_ns }),
        _ => Err("an answer without times".to_owned()),
    }
}

/// Converts a time to NTP's format.
fn timestamp(unix_ns: u64) -> u64 {
    let seconds = unix_ns / NANOS + UNIX_EPOCH;
    let fraction = ((unix_ns % NANOS) << 32) / NANOS;
    // The shift drops the era: 32 bits of seconds remain.
    seconds << 32 | fraction
}

/// Converts NTP's format to Unix time; `None` for 0, which means unknown.
fn unix_ns(timestamp: u64) -> Option<u64> {
    let (seconds, fraction) = (timestamp >> 32, timestamp & u64::from(u32::MAX));
    let era = if seconds < 1 << 31 { 1 << 32 } else { 0 };
    let seconds = (timestamp != 0).then(|| (era + seconds).checked_sub(UNIX_EPOCH))??;
    Some(seconds * NANOS + ((fraction * NANOS) >> 32))
}

const PORT: u16 = 123;
const LEN: usize = 48;
const ORIGINATE: usize = 24;
const RECEIVE: usize = 32;
const TRANSMIT: usize = 40;
const VERSION: u8 = 4;
const CLIENT: u8 = 3;
const SERVER: u8 = 4;

/// 1970 in seconds since 1900.
const UNIX_EPOCH: u64 = 2_208_988_800;
const NANOS: u64 = 1_000_000_000;

/// Number of requests: few, as public servers reject clients that ask often.
const QUESTIONS: usize = 4;
const PAUSES: Pauses = Pauses { between: Duration::from_millis(500), answer: Duration::from_secs(2) };

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Pauses = Pauses { between: Duration::from_millis(1), ..PAUSES };

    /// A server whose clock is `ahead_ns` ahead of `clock`, and which applies `spoil` to its answers.
    async fn server(clock: RunClock, ahead_ns: i64, spoil: fn(&mut [u8; LEN])) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let clock = clock.moved(ahead_ns);
        tokio::spawn(async move {
            let mut question = [0; LEN];
            while let Ok((LEN, peer)) = socket.recv_from(&mut question).await {
                let mut answer = [0; LEN];
                (answer[0], answer[1]) = (VERSION << 3 | SERVER, 2);
                answer[ORIGINATE..RECEIVE].copy_from_slice(&question[TRANSMIT..]);
                answer[RECEIVE..TRANSMIT].copy_from_slice(&timestamp(clock.now_ns()).to_be_bytes());
                answer[TRANSMIT..].copy_from_slice(&timestamp(clock.now_ns()).to_be_bytes());
                spoil(&mut answer);
                socket.send_to(&answer, peer).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn a_servers_clock_is_read() {
        let clock = RunClock::new(0);
        for ahead_ns in [0, 250_000_000, -3_600_000_000_000] {
            let address = server(clock, ahead_ns, |_| ()).await;
            let offset = ask(&address.to_string(), clock, QUICK).await.unwrap();
            // NTP's fraction is a quarter of a nanosecond, and conversion rounds down twice.
            assert!(offset.ns.abs_diff(ahead_ns) <= offset.uncertainty_ns + 2, "{ahead_ns}: {offset:?}");
        }
    }

    #[tokio::test]
    async fn unusable_server_error_names_the_reason() {
        type Spoil = fn(&mut [u8; LEN]);
        let cases: [(Spoil, &str); 4] = [
            (
                |answer| {
                    answer[1] = 0;
                    answer[12..16].copy_from_slice(b"RATE");
                },
                "it gives no time: RATE",
            ),
            (|answer| answer[0] |= 3 << 6, "its clock is not set by anything"),
            (|answer| answer[0] = VERSION << 3 | CLIENT, "an answer of mode 3 instead of 4"),
            (|answer| answer[TRANSMIT..].fill(0), "an answer without times"),
        ];
        for (spoil, expected) in cases {
            let clock = RunClock::new(0);
            let address = server(clock, 0, spoil).await;
            assert_eq!(ask(&address.to_string(), clock, QUICK).await.unwrap_err(), expected);
        }
    }

    #[tokio::test]
    async fn answers_to_another_question_do_not_count() {
        let clock = RunClock::new(0);
        let address = server(clock, 0, |answer| answer[ORIGINATE] ^= 1).await;
        let impatient = Pauses { answer: Duration::from_millis(50), ..QUICK };
        let error = ask(&address.to_string(), clock, impatient).await.unwrap_err();
        assert_eq!(error, "no answer within 50ms");
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_named() {
        // The socket is closed again, so that nothing listens at its address.
        let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = offset(&nobody.to_string(), RunClock::new(0)).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("NTP server {nobody}: ")), "{error}");
    }

    #[test]
    fn times_are_those_of_ntp() {
        assert_eq!(timestamp(0), UNIX_EPOCH << 32);
        assert_eq!(unix_ns(UNIX_EPOCH << 32 | 1 << 31), Some(NANOS / 2));
        assert_eq!(unix_ns(0), None);
        // Just before and after the seconds overflow, on 7 February 2036.
        let overflow = ((1u64 << 32) - UNIX_EPOCH) * NANOS;
        for unix in [overflow - NANOS, overflow, overflow + NANOS / 4] {
            assert_eq!(unix_ns(timestamp(unix)), Some(unix).filter(|_| timestamp(unix) != 0));
        }
    }
}
