//! TCP connections between machines, second by second, as `ss` shows them on each of them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::rounded;
use super::ss::{self, Socket};
use crate::line::Line;
use crate::results::SocketSample;
use crate::run::stage::Stage;

/// Prints the connections of a machine for each line of its input, and the line after them.
const SCRIPT: &str = "command -v ss >/dev/null || { echo 'ss is not installed: it is part of iproute2' >&2; exit 1; }
while read -r number; do ss -tinH || exit 1; echo \"end $number\"; done";

/// Errors of the machines' processes. No instance has a dot in its name.
pub(super) fn log(stage: &Stage) -> PathBuf {
    stage.log("sampler.ss")
}

/// Most rows of a machine and second: of many connections, those with the most traffic.
const MOST: usize = 64;
/// Ends of a machine's process in a row after which its connections are not sampled any more.
const MOST_ENDS: u32 = 3;

/// Connections of all machines, each at its last answer.
pub(super) struct Sockets {
    machines: Vec<Machine>,
    /// Machines by their addresses: addresses in the plan, and local addresses of connections.
    owners: HashMap<IpAddr, String>,
}

/// The process that reports the connections of a machine.
struct Machine {
    name: String,
    stream: Option<UnixStream>,
    received: Vec<u8>,
    /// How often the process has ended since its last answer. A power cut ends it too.
    ends: u32,
    /// Its last answer, and when that came.
    before: HashMap<(SocketAddr, SocketAddr), Socket>,
    looked: Option<Instant>,
}

impl Sockets {
    /// Samples on machines with these `names`. `owners` are all machines by their addresses.
    pub(super) fn new(names: impl IntoIterator<Item = String>, owners: HashMap<IpAddr, String>) -> Self {
        let machine =
            |name| Machine { name, stream: None, received: Vec::new(), ends: 0, before: HashMap::new(), looked: None };
        Self { machines: names.into_iter().map(machine).collect(), owners }
    }

    /// Starts the process of each machine that has none.
    pub(super) fn start(&mut self, stage: &Stage) {
        let idle = |machine: &&mut Machine| machine.stream.is_none() && machine.ends < MOST_ENDS;
        self.machines.iter_mut().filter(idle).for_each(|machine| machine.start(stage));
    }

    /// Lets all machines look at their connections now.
    pub(super) fn ask(&mut self, stage: &Stage, number: u64) {
        self.start(stage);
        for machine in &mut self.machines {
            let asked = machine.stream.as_mut().map(|stream| writeln!(stream, "{number}"));
            if asked.is_some_and(|asked| asked.is_err()) {
                machine.end();
            }
        }
    }

    /// Rows of each machine since its last answer, from the answers to the look at `now` that arrive until `deadline`.
    /// The first answer of a machine only gives the counters.
    pub(super) fn look(&mut self, number: u64, second: u64, now: Instant, deadline: Instant) -> Vec<SocketSample> {
        let mut answers = Vec::new();
        for (index, machine) in self.machines.iter_mut().enumerate() {
            let Some(text) = machine.answer(number, deadline) else { continue };
            let mut sockets = ss::parse(&text);
            sockets.retain(|socket| !socket.local.ip().is_loopback());
            for socket in &sockets {
                self.owners.insert(socket.local.ip(), machine.name.clone());
            }
            answers.push((index, sockets));
        }
        let mut rows = Vec::new();
        for (index, sockets) in answers {
            let machine = &mut self.machines[index];
            if let Some(looked) = machine.looked {
                rows.extend(machine.rows(second, now.duration_since(looked), &sockets, &self.owners));
            }
            machine.looked = Some(now);
            machine.before = sockets.into_iter().map(|socket| ((socket.local, socket.peer), socket)).collect();
        }
        rows.sort_by_key(|row| (row.from.clone(), row.to.clone(), row.port, row.peer_port));
        rows
    }

    /// Machines whose connections cannot be sampled.
    pub(super) fn silent(&self) -> Vec<&str> {
        self.machines.iter().filter(|machine| machine.ends >= MOST_ENDS).map(|machine| machine.name.as_str()).collect()
    }
}

impl Machine {
    fn rows(
        &self,
        second: u64,
        interval: Duration,
        now: &[Socket],
        owners: &HashMap<IpAddr, String>,
    ) -> Vec<SocketSample> {
        let row = |socket| self.row(second, interval, socket, owners);
        let mut rows = now.iter().filter_map(row).collect::<Vec<_>>();
        rows.sort_by_key(|row| std::cmp::Reverse(row.acknowledged + row.received + row.unsent));
        rows.truncate(MOST);
        rows
    }

    /// `None` for a connection without traffic, and for one to the machine itself or out of the lab.
    fn row(
        &self,
        second: u64,
        interval: Duration,
        now: &Socket,
        owners: &HashMap<IpAddr, String>,
    ) -> Option<SocketSample> {
        let (from, to) = (&self.name, owners.get(&now.peer.ip())?);
        // A connection that begins again with the same ports counts from zero.
        let before = self.before.get(&(now.local, now.peer));
        let before = before.filter(|before| before.received <= now.received && before.acknowledged <= now.acknowledged);
        // Bytes of several seconds without an answer count as those of one.
        let seconds = (interval.as_secs_f64().round() as u64).max(1);
        let all = |value: fn(&Socket) -> u64| value(now).saturating_sub(before.map_or(0, value));
        let since = |value: fn(&Socket) -> u64| all(value).div_ceil(seconds);
        let share =
            |value: fn(&Socket) -> u64| rounded((all(value) as f64 / 1e3 / interval.as_secs_f64().max(1e-3)).min(1.0));
        let (acknowledged, received) = (since(|socket| socket.acknowledged), since(|socket| socket.received));
        let has_traffic = acknowledged + received + now.unacknowledged + now.unread > 0;
        (from != to && has_traffic).then(|| SocketSample {
            second,
            from: from.clone(),
            to: to.clone(),
            port: now.local.port(),
            peer_port: now.peer.port(),
            rtt_ms: now.rtt_ms,
            congestion_window: now.congestion_window,
            send_window: now.send_window,
            receive_window: now.receive_window,
            in_flight: now.unacknowledged.saturating_sub(now.unsent),
            unsent: now.unsent,
            unread: now.unread,
            acknowledged,
            received,
            retransmitted: since(|socket| socket.retransmitted),
            busy: share(|socket| socket.busy_ms),
            receiver_limited: share(|socket| socket.receiver_limited_ms),
            buffer_limited: share(|socket| socket.buffer_limited_ms),
        })
    }

    fn start(&mut self, stage: &Stage) {
        // The process ends with its stream, and with the machine.
        match stage.world.spawn_beside_with_stream(&self.name, &Line::shell(SCRIPT), &log(stage)) {
            Ok((_, stream)) => self.stream = Some(stream),
            Err(_) => self.end(),
        }
    }

    fn end(&mut self) {
        self.stream = None;
        self.received.clear();
        self.ends += 1;
    }

    /// The answer to `ask(number)`. A late answer to an earlier one is passed over.
    fn answer(&mut self, number: u64, deadline: Instant) -> Option<String> {
        let end = format!("end {number}");
        loop {
            let whole = self.received.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let text = String::from_utf8_lossy(&self.received[..whole]);
            let lines = text.lines().collect::<Vec<_>>();
            if let Some(last) = lines.iter().position(|line| *line == end) {
                let first = lines[..last].iter().rposition(|line| line.starts_with("end ")).map_or(0, |at| at + 1);
                let answer = lines[first..last].join("\n");
                self.received.clear();
                self.ends = 0;
                return Some(answer);
            }
            let rest = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let stream = self.stream.as_mut()?;
            let mut chunk = [0; 1 << 16];
            match stream.set_read_timeout(Some(rest)).and_then(|()| stream.read(&mut chunk)) {
                Ok(0) => {
                    self.end();
                    return None;
                }
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose answers the test writes.
    fn told(sockets: &mut Sockets, index: usize) -> UnixStream {
        let (own, its) = UnixStream::pair().unwrap();
        sockets.machines[index].stream = Some(own);
        its
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn sockets() -> (Sockets, UnixStream, UnixStream) {
        let mut sockets = Sockets::new(["a".to_owned(), "b".to_owned()], HashMap::new());
        let (a, b) = (told(&mut sockets, 0), told(&mut sockets, 1));
        (sockets, a, b)
    }

    #[test]
    fn rows_are_differences_between_named_machines() {
        let ((mut sockets, mut a, mut b), begin) = (sockets(), Instant::now());
        let from_a = |acked: u64, limited: u64| {
            format!(
                "ESTAB 0 900 10.0.0.1:40 10.0.0.2:80 cubic rtt:10.2/1 mss:1000 cwnd:10 bytes_acked:{acked} \
                 busy:{limited}ms rwnd_limited:{limited}ms(9%) notsent:500 snd_wnd:60\n\
                 ESTAB 0 9 127.0.0.1:1 127.0.0.1:2\nESTAB 0 9 10.0.0.1:7 192.0.2.1:443\n"
            )
        };
        let from_b = "ESTAB 70 0 [::ffff:10.0.0.2]:80 [::ffff:10.0.0.1]:40 cubic bytes_received:9\n";
        writeln!(a, "{}end 0", from_a(1000, 100)).unwrap();
        writeln!(b, "{from_b}end 0").unwrap();
        assert_eq!(sockets.look(0, 0, begin, soon()), []);
        // A late answer of an earlier look stands before this one.
        writeln!(a, "end 9\n{}end 1", from_a(5000, 800)).unwrap();
        writeln!(b, "{from_b}end 1").unwrap();
        let rows = sockets.look(1, 0, begin + SECOND, soon());
        let [one, other] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((one.from.as_str(), one.to.as_str(), one.port, one.peer_port), ("a", "b", 40, 80));
        assert_eq!((one.acknowledged, one.in_flight, one.unsent, one.send_window), (4000, 400, 500, 60));
        assert_eq!((one.rtt_ms, one.receiver_limited, one.buffer_limited), (10.2, 0.7, 0.0));
        assert_eq!((other.from.as_str(), other.unread, other.received), ("b", 70, 0));
    }

    #[test]
    fn a_machine_that_ends_or_is_late_hides_no_other() {
        let (mut sockets, a, mut b) = sockets();
        b.write_all(b"ESTAB 0 9 10.0.0.2:1 10.0.0.2:2\nend 0\n").unwrap();
        sockets.look(0, 0, Instant::now(), Instant::now());
        assert_eq!(sockets.owners.len(), 1, "b is heard although a is late");
        drop(a);
        b.write_all(b"ESTAB 0 9 10.0.0.2:1 10.0.0.2:2\nend 1\n").unwrap();
        sockets.look(1, 0, Instant::now(), soon());
        assert_eq!((sockets.machines[0].ends, sockets.machines[1].ends), (1, 0));
        assert!(sockets.silent().is_empty());
        sockets.machines[0].ends = MOST_ENDS;
        assert_eq!(sockets.silent(), ["a"]);
    }

    #[test]
    fn rows_after_silence_have_rates_of_all_of_its_time() {
        let ((mut sockets, mut a, mut b), begin) = (sockets(), Instant::now());
        let line = |from: u8, to: u8, bytes: u64, ms: u64| {
            format!("ESTAB 0 9 10.0.0.{from}:40 10.0.0.{to}:40 cubic bytes_acked:{bytes} busy:{ms}ms\n")
        };
        writeln!(a, "{}end 0", line(1, 2, 1_000_000, 5000)).unwrap();
        sockets.look(0, 0, begin, Instant::now() + Duration::from_millis(1));
        // The first answer of b, and none of a.
        writeln!(b, "{}end 1", line(2, 1, 7_000_000, 5000)).unwrap();
        assert_eq!(sockets.look(1, 0, begin + SECOND, Instant::now() + Duration::from_millis(1)), []);
        writeln!(a, "{}end 4", line(1, 2, 1_004_000, 7000)).unwrap();
        writeln!(b, "{}end 4", line(2, 1, 7_000_300, 5000)).unwrap();
        let rows = sockets.look(4, 3, begin + 4 * SECOND, soon());
        let short = |row: &SocketSample| (row.from.clone(), row.acknowledged, row.busy);
        assert_eq!(rows.iter().map(short).collect::<Vec<_>>(), [("a".into(), 1000, 0.5), ("b".into(), 100, 0.0)]);
    }
}
