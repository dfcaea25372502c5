use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::sn_abuse::sensor::CLEAN;
use crate::support::PATIENCE;

/// A socket that sends datagrams to a gateway, and counts the answers.
pub(crate) struct Source {
    socket: UdpSocket,
    /// Datagrams received so far, and their bytes.
    pub(crate) answers: usize,
    pub(crate) answer_bytes: usize,
}

/// A connected client whose ping tells that the gateway has handled all datagrams before it.
pub(crate) struct Metronome(UdpSocket);

impl Source {
    pub(crate) fn new(gateway: SocketAddr) -> Self {
        Self::at([127, 0, 0, 1], gateway)
    }

    pub(crate) fn at(address: [u8; 4], gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::from(address), 0)).expect("a free port");
        socket.connect(gateway).expect("an address");
        socket.set_nonblocking(true).expect("a socket");
        Self { socket, answers: 0, answer_bytes: 0 }
    }

    pub(crate) fn send(&self, datagram: &[u8]) {
        self.socket.send(datagram).expect("a gateway that lives");
    }

    /// Takes the answers so far.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        let (mut taken, mut buffer) = (Vec::new(), [0; 2048]);
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(size) => taken.push(buffer[..size].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("the gateway is gone: {error}"),
            }
        }
        self.answers += taken.len();
        self.answer_bytes += taken.iter().map(Vec::len).sum::<usize>();
        taken
    }

    /// Waits for the next answer.
    pub(crate) fn wait(&mut self) -> Vec<u8> {
        self.wait_for(PATIENCE).expect("an answer")
    }

    /// Connects, with repetitions: an attack from this address may have used up its CONNECTs of this second.
    pub(crate) fn connect(&mut self, client_id: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.send(&connect(client_id, CLEAN, 0));
            match self.wait_for(Duration::from_secs(1)).as_deref() {
                Some(b"\x03\x05\x00") => return,
                other => assert!(Instant::now() < until, "CONNACK: {other:?}"),
            }
        }
    }

    fn wait_for(&mut self, patience: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + patience;
        let mut buffer = [0; 2048];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(size) => {
                    self.answers += 1;
                    self.answer_bytes += size;
                    return Some(buffer[..size].to_vec());
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("the gateway is gone: {error}"),
                Err(_) if Instant::now() > until => return None,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Metronome {
    pub(crate) fn start(gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(gateway).expect("an address");
        socket.send(&connect("metronome", CLEAN, 0)).expect("a gateway that lives");
        let mut answer = [0; 3];
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        socket.recv(&mut answer).expect("CONNACK");
        assert_eq!(&answer, b"\x03\x05\x00");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a time");
        Self(socket)
    }

    pub(crate) fn tick(&self) {
        let (until, mut buffer) = (Instant::now() + PATIENCE, [0; 2048]);
        loop {
            self.0.send(&sn(0x16, b"")).expect("a gateway that lives");
            match self.0.recv(&mut buffer) {
                // The gateway asks for a proof of the address: REGISTER of the topic `~`.
                Ok(7) if buffer[1] == 0x0A => {
                    self.0.send(&sn(0x0B, &[&buffer[2..6], &[0]].concat())).expect("a gateway that lives");
                }
                Ok(size) => return assert_eq!(&buffer[..size], b"\x02\x17", "PINGRESP"),
                // The ping was lost with the flood.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    assert!(Instant::now() < until, "PINGRESP");
                }
                Err(error) => panic!("the gateway is gone: {error}"),
            }
        }
    }
}

/// A message of MQTT-SN.
pub(crate) fn sn(kind: u8, body: &[u8]) -> Vec<u8> {
    match u8::try_from(body.len() + 2) {
        Ok(length) => [&[length, kind], body].concat(),
        Err(_) => {
            let length = u16::try_from(body.len() + 4).expect("a datagram");
            [&[1], &length.to_be_bytes()[..], &[kind], body].concat()
        }
    }
}

/// CONNECT.
pub(crate) fn connect(client_id: &str, flags: u8, seconds: u16) -> Vec<u8> {
    sn(0x04, &[&[flags, 1], &seconds.to_be_bytes()[..], client_id.as_bytes()].concat())
}

/// PUBLISH.
pub(crate) fn publish(flags: u8, topic: [u8; 2], id: u16, payload: &[u8]) -> Vec<u8> {
    sn(0x0C, &[&[flags], &topic[..], &id.to_be_bytes(), payload].concat())
}

/// REGISTER.
pub(crate) fn register(id: u16, name: &str) -> Vec<u8> {
    sn(0x0A, &[&[0, 0], &id.to_be_bytes()[..], name.as_bytes()].concat())
}

/// SUBSCRIBE to a filter.
pub(crate) fn subscribe(flags: u8, id: u16, filter: &str) -> Vec<u8> {
    sn(0x12, &[&[flags], &id.to_be_bytes()[..], filter.as_bytes()].concat())
}
