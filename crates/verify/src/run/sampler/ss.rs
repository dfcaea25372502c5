//! Output of `ss -tinH`, the kernel's figures of TCP connections.

use std::net::{IpAddr, SocketAddr};

/// One end of a TCP connection. Figures that this kernel or this `ss` does not tell are zero.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Bytes that have arrived and were not read.
    pub(super) unread: u64,
    /// Bytes that were written and not acknowledged.
    pub(super) unacknowledged: u64,
    /// Those of them that were not sent yet.
    pub(super) unsent: u64,
    pub(super) rtt_ms: f64,
    /// Congestion window in bytes.
    pub(super) congestion_window: u64,
    pub(super) send_window: u64,
    pub(super) receive_window: u64,
    /// Bytes since the begin of the connection.
    pub(super) acknowledged: u64,
    pub(super) received: u64,
    pub(super) retransmitted: u64,
    /// Milliseconds since the begin of the connection.
    pub(super) busy_ms: u64,
    pub(super) receiver_limited_ms: u64,
    pub(super) buffer_limited_ms: u64,
}

/// All connections of an output. Lines with blanks at their begin continue the one before.
pub(super) fn parse(text: &str) -> Vec<Socket> {
    let mut records: Vec<String> = Vec::new();
    for line in text.lines() {
        match records.last_mut().filter(|_| line.starts_with(char::is_whitespace)) {
            Some(record) => record.push_str(line),
            None => records.push(line.to_owned()),
        }
    }
    records.iter().filter_map(|record| socket(record)).collect()
}

/// `STATE UNREAD UNACKNOWLEDGED LOCAL PEER`, and then words such as `rtt:0.1/0.05` in any order.
fn socket(record: &str) -> Option<Socket> {
    let mut words = record.split_whitespace().skip(1);
    let (unread, unacknowledged) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (local, peer) = (address(words.next()?)?, address(words.next()?)?);
    let words = words.collect::<Vec<_>>();
    let value = |name: &str| {
        let value = words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'))?;
        let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
        value[..end].parse::<f64>().ok()
    };
    let number = |name: &str| value(name).unwrap_or_default() as u64;
    Some(Socket {
        local,
        peer,
        unread,
        unacknowledged,
        unsent: number("notsent"),
        rtt_ms: value("rtt").unwrap_or_default(),
        congestion_window: number("cwnd").saturating_mul(number("mss")),
        send_window: number("snd_wnd"),
        receive_window: number("rcv_wnd").max(number("rcv_ssthresh")),
        acknowledged: number("bytes_acked"),
        received: number("bytes_received"),
        retransmitted: number("bytes_retrans"),
        busy_ms: number("busy"),
        receiver_limited_ms: number("rwnd_limited"),
        buffer_limited_ms: number("sndbuf_limited"),
    })
}

/// An address as `10.77.0.1:80`, `10.77.0.1%eth0:80` or `[::ffff:10.77.0.1]:80`, which is the same one.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.rsplit_once(':')?;
    let ip = ip.trim_matches(['[', ']']).split('%').next()?.trim_end_matches(']');
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?.to_canonical(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_LINE: &str = "ESTAB 0      1703936 10.77.0.1:41034 10.77.0.2:9999  bbr wscale:0,10 rto:204 rtt:10.232/0.008 mss:16384 pmtu:65535 rcvmss:536 advmss:65483 cwnd:14 ssthresh:12 bytes_sent:691372032 bytes_retrans:98304 bytes_acked:691240961 segs_out:42200 bbr:(bw:10922664056bps,mrtt:0.006,pacing_gain:1.25,cwnd_gain:2) send 57344000000bps lastsnd:4 busy:816ms rwnd_limited:624ms(76.5%) sndbuf_limited:8ms(1.0%) unacked:2 retrans:0/6 rcv_space:65495 rcv_ssthresh:65495 notsent:1671168 minrtt:0.006 snd_wnd:32768";

    #[test]
    fn connection_has_windows_times_and_queues() {
        let all = parse(ONE_LINE);
        let [one] = &all[..] else { panic!("{all:?}") };
        assert_eq!((one.local.to_string(), one.peer.to_string()), ("10.77.0.1:41034".into(), "10.77.0.2:9999".into()));
        assert_eq!((one.unread, one.unacknowledged, one.unsent), (0, 1_703_936, 1_671_168));
        assert_eq!((one.rtt_ms, one.congestion_window, one.send_window), (10.232, 14 * 16384, 32768));
        assert_eq!((one.acknowledged, one.received, one.retransmitted), (691_240_961, 0, 98304));
        assert_eq!((one.busy_ms, one.receiver_limited_ms, one.buffer_limited_ms), (816, 624, 8));
    }

    #[test]
    fn continued_lines_and_mapped_addresses_are_read() {
        let text = "ESTAB 5 0 [::ffff:10.77.0.2]:9092 [::ffff:10.77.0.1]:41034 \n\t cubic rtt:0.069/0.034 cwnd:10 mss:1000 rcv_wnd:70000\nFIN-WAIT-1 0 1 10.77.0.2%eth0:1 10.77.0.3:2\n";
        let all = parse(text);
        assert_eq!((all.len(), all[0].local, all[0].unread), (2, "10.77.0.2:9092".parse().unwrap(), 5));
        assert_eq!((all[0].congestion_window, all[0].receive_window), (10_000, 70_000));
        assert_eq!((all[1].local.to_string(), all[1].send_window), ("10.77.0.2:1".into(), 0));
    }

    #[test]
    fn other_lines_are_passed_over() {
        assert_eq!(parse(""), []);
        assert_eq!(parse("ss: not found\nRTNETLINK answers: no\nESTAB a b c d\nESTAB 1 2 3:x 4:5\n"), []);
        let strange = parse("ESTAB 0 0 1.2.3.4:5 6.7.8.9:10 cwnd:99999999999999999999 mss:99999999999999 rtt: x:");
        assert_eq!((strange.len(), strange[0].rtt_ms), (1, 0.0));
    }
}
