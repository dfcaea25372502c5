//! TCP connections between machines, second by second, as `ss` shows them on each of them.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::rounded;
use super::ss::{self, Socket};
use crate::results::SocketSample;
use crate::run::stage::Stage;
use crate::systems::Line;

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

/// Connections of all machines at the last look.
pub(super) struct Sockets {
    machines: Vec<Machine>,
    before: HashMap<(usize, SocketAddr, SocketAddr), Socket>,
    /// Machines by the addresses of their connections.
    owners: HashMap<IpAddr, String>,
    has_begun: bool,
}

/// The process that tells the connections of a machine.
struct Machine {
    name: String,
    stream: Option<UnixStream>,
    received: Vec<u8>,
    /// How often the process has ended since its last answer. A power cut ends it too.
    ends: u32,
}

impl Sockets {
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let machine = |name| Machine { name, stream: None, received: Vec::new(), ends: 0 };
        let machines = names.into_iter().map(machine).collect();
        Self { machines, before: HashMap::new(), owners: HashMap::new(), has_begun: false }
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

    /// Rows of the time since the last look, from the answers that arrive until `deadline`. The first look only
    /// remembers the counters.
    pub(super) fn look(
        &mut self,
        number: u64,
        second: u64,
        interval: Duration,
        deadline: Instant,
    ) -> Vec<SocketSample> {
        let mut now: Vec<(usize, Socket)> = Vec::new();
        for (index, machine) in self.machines.iter_mut().enumerate() {
            let sockets = machine.answer(number, deadline).map(|text| ss::parse(&text)).unwrap_or_default();
            let outside = sockets.into_iter().filter(|socket| !socket.local.ip().is_loopback());
            now.extend(outside.map(|socket| (index, socket)));
        }
        for (index, socket) in &now {
            self.owners.insert(socket.local.ip(), self.machines[*index].name.clone());
        }
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        let rows = if has_begun { self.rows(second, interval, &now) } else { Vec::new() };
        let key = |(index, socket): (usize, Socket)| ((index, socket.local, socket.peer), socket);
        self.before = now.into_iter().map(key).collect();
        rows
    }

    /// Machines whose connections cannot be sampled.
    pub(super) fn silent(&self) -> Vec<&str> {
        self.machines.iter().filter(|machine| machine.ends >= MOST_ENDS).map(|machine| machine.name.as_str()).collect()
    }

    fn rows(&self, second: u64, interval: Duration, now: &[(usize, Socket)]) -> Vec<SocketSample> {
        let mut rows = Vec::new();
        for index in now.iter().map(|(index, _)| *index).collect::<HashSet<_>>() {
            let of_machine = now.iter().filter(|(of, _)| *of == index).map(|(_, socket)| socket);
            let mut own = of_machine.filter_map(|socket| self.row(second, interval, index, socket)).collect::<Vec<_>>();
            own.sort_by_key(|row| std::cmp::Reverse(row.acknowledged + row.received + row.unsent));
            own.truncate(MOST);
            rows.extend(own);
        }
        let place = |row: &SocketSample| (row.from.clone(), row.to.clone(), row.port, row.peer_port);
        rows.sort_by_key(place);
        rows
    }

    /// `None` for a connection without traffic, and for one to the machine itself or out of the lab.
    fn row(&self, second: u64, interval: Duration, index: usize, now: &Socket) -> Option<SocketSample> {
        let (from, to) = (&self.machines[index].name, self.owners.get(&now.peer.ip())?);
        // A connection that begins again with the same ports counts from zero.
        let before = self.before.get(&(index, now.local, now.peer));
        let before = before.filter(|before| before.received <= now.received && before.acknowledged <= now.acknowledged);
        let since = |value: fn(&Socket) -> u64| value(now).saturating_sub(before.map_or(0, value));
        let share = |value: fn(&Socket) -> u64| {
            rounded((since(value) as f64 / 1e3 / interval.as_secs_f64().max(1e-3)).min(1.0))
        };
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
}

impl Machine {
    fn start(&mut self, stage: &Stage) {
        // The process ends with its stream, and with the machine.
        match stage.world.spawn_with_stream(&self.name, &Line::shell(SCRIPT), &log(stage)) {
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

    #[test]
    fn rows_are_differences_between_named_machines() {
        let mut sockets = Sockets::new(["a".to_owned(), "b".to_owned()]);
        let (mut a, mut b) = (told(&mut sockets, 0), told(&mut sockets, 1));
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
        assert_eq!(sockets.look(0, 0, SECOND, soon()), []);
        // A late answer of an earlier look stands before this one.
        writeln!(a, "end 9\n{}end 1", from_a(5000, 800)).unwrap();
        writeln!(b, "{from_b}end 1").unwrap();
        let rows = sockets.look(1, 0, SECOND, soon());
        let [one, other] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((one.from.as_str(), one.to.as_str(), one.port, one.peer_port), ("a", "b", 40, 80));
        assert_eq!((one.acknowledged, one.in_flight, one.unsent, one.send_window), (4000, 400, 500, 60));
        assert_eq!((one.rtt_ms, one.receiver_limited, one.buffer_limited), (10.2, 0.7, 0.0));
        assert_eq!((other.from.as_str(), other.unread, other.received), ("b", 70, 0));
    }

    #[test]
    fn a_machine_that_ends_or_is_late_hides_no_other() {
        let mut sockets = Sockets::new(["a".to_owned(), "b".to_owned()]);
        let (a, mut b) = (told(&mut sockets, 0), told(&mut sockets, 1));
        b.write_all(b"ESTAB 0 9 10.0.0.2:1 10.0.0.2:2\nend 0\n").unwrap();
        sockets.look(0, 0, SECOND, Instant::now());
        assert_eq!(sockets.owners.len(), 1, "b is heard although a is late");
        drop(a);
        b.write_all(b"ESTAB 0 9 10.0.0.2:1 10.0.0.2:2\nend 1\n").unwrap();
        sockets.look(1, 0, SECOND, soon());
        assert_eq!((sockets.machines[0].ends, sockets.machines[1].ends), (1, 0));
        assert!(sockets.silent().is_empty());
        sockets.machines[0].ends = MOST_ENDS;
        assert_eq!(sockets.silent(), ["a"]);
    }
}
