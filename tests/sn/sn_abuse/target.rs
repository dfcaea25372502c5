use std::io::Write as _;
use std::net::SocketAddr;

use crate::sn_abuse::canary::Canary;
use crate::sn_abuse::source::{Metronome, Source};
use crate::support::{BrokerProcess, ConfigFile, GatewayProcess};

/// A gateway under attack, with its broker and a canary.
pub(crate) struct Target {
    name: &'static str,
    pub(crate) broker: BrokerProcess,
    _gateway: Option<GatewayProcess>,
    /// UDP address of the gateway.
    pub(crate) address: SocketAddr,
    pub(crate) canary: Canary,
    pub(crate) metronome: Metronome,
    growth: Vec<Growth>,
}

/// Resident memory of one process.
struct Growth {
    process: &'static str,
    pid: u32,
    before: u64,
    most: u64,
}

/// Allowed growth of each process.
const GROWTH_MAXIMUM: u64 = 64 << 20;
/// Datagrams of a flood between two ticks of the metronome, and between two songs of the canary.
const TICK: usize = 64;
const SONG: usize = 4096;
/// Bytes of a flood between two ticks: less than the socket's buffer.
const TICK_BYTES: usize = 48 * 1024;

const KEYS: &str = "retry_seconds = 0.5\nretries = 20\n";

impl Target {
    /// The broker's own gateway.
    pub(crate) fn built_in(keys: &str) -> Self {
        let file = ConfigFile::new(&format!(
            "listen = [\"127.0.0.1:0\"]\n[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"127.0.0.1:0\"\n\
             name = \"field\"\nanonymous = true\n[listeners.sn]\n{KEYS}{keys}"
        ));
        let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
        let line = broker.wait_for_start_line("listening on UDP");
        let address = line.split_once("UDP ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("an address: {line}"));
        Self::new("built in", broker, None, address)
    }

    /// A gateway as a separate process.
    pub(crate) fn separate(keys: &str) -> Self {
        let broker = BrokerProcess::start(&[]);
        let listen = ([127, 0, 0, 1], 0).into();
        let gateway = GatewayProcess::start(broker.address(), listen, &format!("{KEYS}{keys}"), &[]);
        let address = gateway.address;
        Self::new("separate", broker, Some(gateway), address)
    }

    fn new(name: &'static str, broker: BrokerProcess, gateway: Option<GatewayProcess>, address: SocketAddr) -> Self {
        let mut canary = Canary::start(broker.address(), address);
        let metronome = Metronome::start(address);
        canary.assert_sings();
        let processes = [("broker", Some(broker.pid())), ("gateway", gateway.as_ref().map(GatewayProcess::pid))];
        let growth = processes.into_iter().filter_map(|(process, pid)| Some(Growth::new(process, pid?))).collect();
        Self { name, broker, _gateway: gateway, address, canary, metronome, growth }
    }

    /// Sends datagrams as fast as the gateway handles them, and looks after the canary. Returns their number.
    pub(crate) fn flood(&mut self, source: &mut Source, datagrams: impl IntoIterator<Item = Vec<u8>>) -> usize {
        let (mut sent, mut bytes) = (0, 0);
        for datagram in datagrams {
            if bytes + datagram.len() > TICK_BYTES {
                self.metronome.tick();
                bytes = 0;
            }
            source.send(&datagram);
            (sent, bytes) = (sent + 1, bytes + datagram.len());
            self.pace(sent);
            if sent.is_multiple_of(TICK) {
                source.take();
                bytes = 0;
            }
        }
        self.metronome.tick();
        source.take();
        sent
    }

    /// Looks after gateway and canary now and then; to be called after each datagram.
    pub(crate) fn pace(&mut self, sent: usize) {
        if sent.is_multiple_of(TICK) {
            self.metronome.tick();
        }
        if sent.is_multiple_of(SONG) {
            self.look();
        }
    }

    /// Looks in each round whose number is a multiple of `every`.
    pub(crate) fn look_after(&mut self, round: usize, every: usize) {
        if round.is_multiple_of(every) {
            self.look();
        }
    }

    /// The canary sings, and all processes are measured.
    pub(crate) fn look(&mut self) {
        self.canary.assert_sings();
        self.growth.iter_mut().for_each(Growth::measure);
    }

    pub(crate) fn assert_unharmed(&mut self, what: &str) {
        self.metronome.tick();
        self.look();
        for Growth { process, before, most, .. } in &self.growth {
            let grown = most - before;
            let _ = writeln!(std::io::stderr(), "{what}, {}: the {process} grew by {} KiB", self.name, grown >> 10);
            assert!(grown <= GROWTH_MAXIMUM, "{what}, {}: the {process} grew by {grown} bytes", self.name);
        }
        self.broker.assert_serves();
    }
}

impl Growth {
    fn new(process: &'static str, pid: u32) -> Self {
        let before = resident_bytes(pid);
        Self { process, pid, before, most: before }
    }

    fn measure(&mut self) {
        self.most = self.most.max(resident_bytes(self.pid));
    }
}

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("every process has one");
    let kibibytes = line.split_ascii_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    kibibytes.expect("a number of kB") * 1024
}
