//! `--ntp HOST`: adjusts the run's clock to an NTP server, with the simple form of the protocol (SNTPv4, RFC 4330).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rsntp::{AsyncSntpClient, Config, SynchronizationResult};
use tokio::net::lookup_host;

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
    let any = if server.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let config = Config::default().bind_address((any, 0).into()).timeout(pauses.answer);
    let client = AsyncSntpClient::with_config(config);
    let (mut probes, mut last) = (Vec::new(), String::new());
    for number in 0..QUESTIONS {
        if number > 0 {
            tokio::time::sleep(pauses.between).await;
        }
        let answer = client.synchronize(server).await.map_err(|error| error.to_string());
        match answer.and_then(|answer| probe(&answer, clock, pauses.answer)) {
            Ok(probe) => probes.push(probe),
            Err(reason) => last = reason,
        }
        // One datagram may be lost; if the second is lost too, give up.
        if number > 0 && probes.is_empty() {
            break;
        }
    }
    Offset::of(&probes).ok_or(last)
}

/// An answer by `clock`. It was measured by the system clock; the time for comparing the two adds to its round trip.
///
/// # Errors
/// The server sent no times. NTP writes them as 0, which `rsntp` takes for the first second after the overflow.
fn probe(answer: &SynchronizationResult, clock: RunClock, longest: Duration) -> Result<Probe, String> {
    let ns = |seconds: f64| (seconds * 1e9).round() as i64;
    let before_ns = clock.now_ns();
    let system_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
    let heard_ns = clock.now_ns();
    let round_trip = answer.round_trip_delay().as_secs_f64();
    let shown_s = (system_ns + ns(answer.clock_offset().as_secs_f64())) / 1_000_000_000;
    if !(-1.0..=longest.as_secs_f64()).contains(&round_trip) || (shown_s - OVERFLOW).abs() < 5 {
        return Err("an answer without times".to_owned());
    }
    let asked_ns = before_ns.saturating_add_signed(-ns(round_trip).max(0));
    let ahead_ns = ns(answer.clock_offset().as_secs_f64()) + system_ns - before_ns.midpoint(heard_ns) as i64;
    let received_ns = asked_ns.midpoint(heard_ns).saturating_add_signed(ahead_ns);
    Ok(Probe { asked_ns, received_ns, answered_ns: received_ns, heard_ns })
}

/// Waiting times.
#[derive(Debug, Clone, Copy)]
struct Pauses {
    /// From one request to the next.
    between: Duration,
    /// For an answer.
    answer: Duration,
}

const PORT: u16 = 123;

/// Seconds since 1970 at which the 32 bits of NTP's seconds overflow, in February 2036.
const OVERFLOW: i64 = (1 << 32) - 2_208_988_800;

/// Number of requests: few, as public servers reject clients that ask often.
const QUESTIONS: usize = 4;
const PAUSES: Pauses = Pauses { between: Duration::from_millis(500), answer: Duration::from_secs(2) };

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::UdpSocket;

    use super::*;

    const LEN: usize = 48;
    const ORIGINATE: usize = 24;
    const RECEIVE: usize = 32;
    const TRANSMIT: usize = 40;
    const VERSION: u8 = 4;
    const CLIENT: u8 = 3;
    const SERVER: u8 = 4;

    const QUICK: Pauses = Pauses { between: Duration::from_millis(1), ..PAUSES };

    /// A time in the format of NTP: 32 bits of seconds since 1900, and 32 bits of their fraction.
    fn timestamp(unix_ns: u64) -> u64 {
        let (seconds, ns) = (unix_ns / 1_000_000_000 + 2_208_988_800, unix_ns % 1_000_000_000);
        (seconds << 32) | ((ns << 32) / 1_000_000_000)
    }

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
            // Conversions of times round, and the system clock may be slewed.
            assert!(offset.ns.abs_diff(ahead_ns) <= offset.uncertainty_ns + 1_000, "{ahead_ns}: {offset:?}");
        }
    }

    #[tokio::test]
    async fn unusable_server_error_names_the_reason() {
        type Spoil = fn(&mut [u8; LEN]);
        let cases: [(Spoil, &str); 6] = [
            (
                |answer| {
                    answer[1] = 0;
                    answer[12..16].copy_from_slice(b"RATE");
                },
                "Kiss-o'-Death",
            ),
            (|answer| answer[0] |= 3 << 6, "not synchronized"),
            (|answer| answer[0] = VERSION << 3 | CLIENT, "invalid mode"),
            (|answer| answer[TRANSMIT..].fill(0), "without times"),
            (|answer| answer[RECEIVE..TRANSMIT].fill(0), "without times"),
            (|answer| answer[RECEIVE..].fill(0), "without times"),
        ];
        for (spoil, expected) in cases {
            let clock = RunClock::new(0);
            let address = server(clock, 0, spoil).await;
            let error = ask(&address.to_string(), clock, QUICK).await.unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[tokio::test]
    async fn answers_to_another_question_do_not_count() {
        let clock = RunClock::new(0);
        let address = server(clock, 0, |answer| answer[ORIGINATE] ^= 1).await;
        let error = ask(&address.to_string(), clock, QUICK).await.unwrap_err();
        assert!(error.contains("originate"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_named() {
        // The socket is closed again, so that nothing listens at its address.
        let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = offset(&nobody.to_string(), RunClock::new(0)).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("NTP server {nobody}: ")), "{error}");
    }
}
