//! A bare MQTT-SN client on a UDP socket.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tenbin_sn_codec::v1_2::{
    Connect, Disconnect, Message, MessageId, Publish, QoS, RegAck, Register, ReturnCode, Subscribe, Subscribed, Topic,
};
use tenbin_sn_gateway::{Config, Gateway, Upstream};

/// Bound on every wait; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Time after which a client repeats a message that may have been lost.
const REPEAT: Duration = Duration::from_secs(1);

pub(crate) struct Client {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn new(gateway: SocketAddr) -> Self {
        Self::at("127.0.0.1", gateway)
    }

    /// A client with a separate IP address.
    pub(crate) fn at(address: &str, gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).expect("a free port");
        socket.connect(gateway).expect("an address");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        Self { socket, buffer: vec![0; 65_535] }
    }

    pub(crate) fn send(&self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_bytes(&bytes);
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        self.socket.send(bytes).expect("sent");
    }

    /// The next datagram.
    pub(crate) fn receive_bytes(&mut self) -> &[u8] {
        let size = self.socket.recv(&mut self.buffer).expect("a datagram in time");
        &self.buffer[..size]
    }

    /// The next message.
    pub(crate) fn receive(&mut self) -> Message<'_> {
        Message::decode(self.receive_bytes()).expect("a message")
    }

    /// The next message after repeated questions whether the client is there, which are answered: the gateway asks again
    /// after 0.7 s.
    fn receive_answer(&mut self) -> Message<'_> {
        loop {
            let size = self.receive_bytes().len();
            match Message::decode(&self.buffer[..size]) {
                Ok(Message::PingReq(_)) => self.send(&Message::PingResp),
                _ => return Message::decode(&self.buffer[..size]).expect("a message"),
            }
        }
    }

    /// The next message after the questions whether the client is there, which are answered.
    pub(crate) fn receive_proven(&mut self) -> Message<'_> {
        loop {
            let size = self.receive_bytes().len();
            let answer = match Message::decode(&self.buffer[..size]) {
                Ok(Message::Register(Register { topic_id, message_id, .. })) => {
                    Message::RegAck(RegAck { topic_id, message_id, code: ReturnCode::Accepted })
                }
                Ok(Message::PingReq(_)) => Message::PingResp,
                _ => return Message::decode(&self.buffer[..size]).expect("a message"),
            };
            self.send(&answer);
        }
    }

    /// Answers the question for the proof of the address, which comes next.
    pub(crate) fn prove(&mut self) {
        let answer = match self.receive() {
            Message::Register(Register { topic_id, message_id, topic: "~" }) => {
                RegAck { topic_id, message_id, code: ReturnCode::Accepted }
            }
            other => panic!("{other:?}"),
        };
        self.send(&Message::RegAck(answer));
    }

    /// Connects to a session that exists.
    pub(crate) fn connect_to_session(&mut self, client_id: &str, clean_session: bool) {
        assert_eq!(self.connect(client_id, clean_session), ReturnCode::Accepted);
        self.prove();
    }

    /// The number of PINGREQs up to the next other message, which is DISCONNECT.
    pub(crate) fn questions_before_disconnect(&mut self) -> usize {
        let mut questions = 0;
        loop {
            match self.receive() {
                Message::PingReq(_) => questions += 1,
                Message::Disconnect(_) => return questions,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Whether nothing came so far.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket");
        let result = self.socket.recv(&mut self.buffer);
        self.socket.set_nonblocking(false).expect("a socket");
        matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    pub(crate) fn connect(&mut self, client_id: &str, clean_session: bool) -> ReturnCode {
        self.send(&Message::Connect(Connect { will: false, clean_session, duration: 60, client_id }));
        match self.receive_answer() {
            Message::ConnAck(code) => code,
            other => panic!("{other:?}"),
        }
    }

    /// Sends CONNECT until it is accepted, past answers to earlier messages: a full inbox of a thread drops datagrams.
    pub(crate) fn connect_past_others(&mut self, client_id: &str) {
        let connect = Message::Connect(Connect { will: false, clean_session: true, duration: 60, client_id });
        self.socket.set_read_timeout(Some(REPEAT)).expect("a time");
        let deadline = Instant::now() + PATIENCE;
        self.send(&connect);
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(size) if self.buffer[..size] == *b"\x03\x05\x00" => break,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.send(&connect)
                }
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < deadline, "CONNACK");
        }
        self.socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    }

    /// Connects, with repetitions while the broker is not there.
    pub(crate) fn connect_in_the_end(&mut self, client_id: &str, clean_session: bool) {
        let deadline = Instant::now() + PATIENCE;
        while self.connect(client_id, clean_session) != ReturnCode::Accepted {
            assert!(Instant::now() < deadline, "CONNACK");
            std::thread::sleep(Duration::from_millis(150));
        }
    }

    pub(crate) fn register(&mut self, topic: &str) -> u16 {
        self.send(&Message::Register(Register { topic_id: 0, message_id: MessageId::new(7), topic }));
        match self.receive_answer() {
            Message::RegAck(ack) => {
                assert_eq!(ack.code, ReturnCode::Accepted);
                ack.topic_id
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn subscribe(&mut self, filter: &str, qos: QoS) -> u16 {
        let id = MessageId::new(8).expect("not 0");
        self.send(&Message::Subscribe(Subscribe { dup: false, qos, message_id: id, topic: Subscribed::Name(filter) }));
        match self.receive() {
            Message::SubAck(ack) => {
                assert_eq!((ack.code, ack.qos), (ReturnCode::Accepted, qos));
                ack.topic_id
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn publish(&self, topic: Topic, qos: QoS, id: u16, data: &[u8]) {
        let publish =
            Publish { dup: false, qos: Some(qos), retain: false, topic, message_id: MessageId::new(id), data };
        self.send(&Message::Publish(publish));
    }

    pub(crate) fn disconnect(&mut self) {
        self.send(&Message::Disconnect(Disconnect { duration: None }));
        assert_eq!(self.receive(), Message::Disconnect(Disconnect { duration: None }));
    }
}

/// A gateway at a free port, with the lines of its configuration's table `[listener]`.
pub(crate) fn gateway(broker: SocketAddr, head: &str, listener: &str) -> Gateway {
    let text = format!("broker = \"{broker}\"\n{head}\n[listener]\naddress = \"127.0.0.1:0\"\n{listener}\n");
    let config = Config::parse(&text).expect("legal");
    let upstream = Upstream::of(&config).expect("readable");
    Gateway::start(config, upstream).expect("started")
}

/// Waits until a counter has at least this value.
pub(crate) fn wait_for(gateway: &Gateway, counter: &str, value: u64) {
    wait_until(gateway, counter, |now| now >= value);
}

/// Waits until a gauge has this value: a thread publishes its gauges after the answers of the same lap.
pub(crate) fn wait_for_gauge(gateway: &Gateway, gauge: &str, value: u64) {
    wait_until(gateway, gauge, |now| now == value);
}

fn wait_until(gateway: &Gateway, name: &str, holds: impl Fn(u64) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds(gateway.stats().get(name)) {
        assert!(Instant::now() < deadline, "{name}: {:?}", gateway.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
}
