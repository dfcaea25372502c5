//! DTLS: identities, their sessions, and floods.

use std::collections::VecDeque;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenbin_sn_codec::v1_2::{
    Connect, Disconnect, Message, MessageId, PingReq, Publish, QoS, Register, ReturnCode, Topic,
};
use tenbin_sn_dtls::{Client, ClientKeys, Output, Session};
use tenbin_sn_gateway::{Config, Gateway};

use crate::client::{PATIENCE, gateway, wait_for};
use crate::fake_broker::{Event, FakeBroker};

/// A client with DTLS on a separate socket.
struct Secured {
    socket: UdpSocket,
    session: Session,
    buffer: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
}

impl Secured {
    /// Opens a session with the key of an identity.
    fn open(gateway: SocketAddr, keys: &Path, identity: &str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(gateway).expect("an address");
        Self::open_at(socket, keys, identity)
    }

    fn open_at(socket: UdpSocket, keys: &Path, identity: &str) -> Self {
        Self::open_with(socket, &client(keys, identity))
    }

    fn open_with(socket: UdpSocket, client: &Client) -> Self {
        let session = Session::connect(client, Instant::now());
        let mut secured = Self { socket, session, buffer: Vec::new(), messages: VecDeque::new() };
        let first = secured.call(|session, buffer, output| session.handle_timeout(Instant::now(), buffer, output));
        first.expect("a first datagram");
        let deadline = Instant::now() + PATIENCE;
        while !secured.session.is_open() {
            assert!(Instant::now() < deadline, "a session in time");
            secured.step();
        }
        secured
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut Session, &mut Vec<u8>, &mut dyn FnMut(Output<'_>)) -> T) -> T {
        call(&mut self.session, &mut self.buffer, &mut |output| match output {
            Output::Datagram(datagram) => drop(self.socket.send(datagram).expect("sent")),
            Output::Message(message) => self.messages.push_back(message.to_vec()),
        })
    }

    /// Handles one datagram, or the deadline of a repetition.
    fn step(&mut self) {
        let wait = self.session.deadline().map_or(PATIENCE, |at| at.saturating_duration_since(Instant::now()));
        self.socket.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).expect("a time");
        let mut datagram = [0; 2048];
        let result = match self.socket.recv(&mut datagram) {
            Ok(size) => {
                self.call(|session, buffer, output| session.receive(&datagram[..size], Instant::now(), buffer, output))
            }
            Err(_) => self.call(|session, buffer, output| session.handle_timeout(Instant::now(), buffer, output)),
        };
        result.expect("the session goes on");
    }

    fn send(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.call(|session, buffer, output| session.send(&bytes, Instant::now(), buffer, output)).expect("sent");
    }

    /// The next message.
    fn receive(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        while self.messages.is_empty() {
            assert!(Instant::now() < deadline, "a message in time");
            self.step();
        }
        self.messages.pop_front().expect("a message")
    }

    fn connect(&mut self, client_id: &str) -> ReturnCode {
        self.connect_with(client_id, true)
    }

    fn connect_with(&mut self, client_id: &str, clean_session: bool) -> ReturnCode {
        self.send(&Message::Connect(Connect { will: false, clean_session, duration: 60, client_id }));
        match Message::decode(&self.receive()) {
            Ok(Message::ConnAck(code)) => code,
            other => panic!("{other:?}"),
        }
    }

    fn register(&mut self, topic: &str) -> u16 {
        self.send(&Message::Register(Register { topic_id: 0, message_id: MessageId::new(7), topic }));
        match Message::decode(&self.receive()) {
            Ok(Message::RegAck(ack)) => ack.topic_id,
            other => panic!("{other:?}"),
        }
    }

    fn fall_asleep(&mut self) {
        self.send(&Message::Disconnect(Disconnect { duration: Some(600) }));
        assert!(matches!(Message::decode(&self.receive()), Ok(Message::Disconnect(_))));
    }
}

fn client(keys: &Path, identity: &str) -> Client {
    let keys = ClientKeys::PreShared { identity: identity.to_owned(), file: keys.to_owned() };
    Client::new(&keys, "127.0.0.1").expect("a key")
}

/// Keys of two identities, and the lines of a listener with them.
fn keys() -> (TempDir, std::path::PathBuf) {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("keys");
    fs::write(&file, format!("pump-7:{}\npump-8:{}\n", "07".repeat(16), "08".repeat(16))).expect("written");
    (directory, file)
}

fn secured(broker: &FakeBroker, head: &str, listener: &str, keys: &Path) -> Gateway {
    let listener = format!("connects_per_second_per_address = 0\n{listener}\ndtls.psk_file = {keys:?}");
    gateway(broker.address, head, &listener)
}

const FAREWELL: Message<'_> = Message::Disconnect(Disconnect { duration: None });

#[test]
fn identity_of_the_key_is_the_user_name() {
    let (directory, keys) = keys();
    let password = directory.path().join("password");
    fs::write(&password, "of the gateway\n").expect("written");
    let broker = FakeBroker::start();
    let head = format!("user = \"sn/%u\"\npassword_file = {password:?}");
    let gateway = secured(&broker, &head, "", &keys);
    let mut client = Secured::open(gateway.address(), &keys, "pump-7");
    assert_eq!(client.connect("c"), ReturnCode::Accepted);
    let connect = broker.connect();
    assert_eq!(connect.user_name.expect("a user").as_str(), "sn/pump-7");
    assert_eq!(connect.password, Some("of the gateway".into()));
    client.send(&Message::PingReq(PingReq { client_id: None }));
    assert_eq!(Message::decode(&client.receive()), Ok(Message::PingResp));
}

#[test]
fn messages_outside_of_dtls_are_dropped() {
    let (_directory, keys) = keys();
    let broker = FakeBroker::start();
    let gateway = secured(&broker, "", "", &keys);
    let mut client = crate::client::Client::new(gateway.address());
    client.send(&Message::Connect(Connect { will: false, clean_session: true, duration: 60, client_id: "c" }));
    wait_for(&gateway, "dtls_dropped", 1);
    assert!(client.is_silent() && broker.try_event().is_none());
}

#[test]
fn session_of_a_client_belongs_to_its_identity() {
    let (_directory, keys) = keys();
    let broker = FakeBroker::start();
    let gateway = secured(&broker, "", "rebind = \"never\"", &keys);
    let mut owner = Secured::open(gateway.address(), &keys, "pump-7");
    let mut other = Secured::open(gateway.address(), &keys, "pump-8");
    assert_eq!(owner.connect("c"), ReturnCode::Accepted);
    assert_eq!(other.connect("c"), ReturnCode::Congestion);

    // The identity decides, and no question is needed.
    let mut moved = Secured::open(gateway.address(), &keys, "pump-7");
    assert_eq!(moved.connect("c"), ReturnCode::Accepted);
    assert_eq!(Message::decode(&owner.receive()), Ok(FAREWELL));

    moved.fall_asleep();
    let wake = Message::PingReq(PingReq { client_id: Some("c") });
    // A session without a client may have ended.
    let mut other = Secured::open(gateway.address(), &keys, "pump-8");
    other.send(&wake);
    assert_eq!(Message::decode(&other.receive()), Ok(FAREWELL));
    let mut owner = Secured::open(gateway.address(), &keys, "pump-7");
    owner.send(&wake);
    assert_eq!(Message::decode(&owner.receive()), Ok(Message::PingResp));
}

#[test]
fn new_identity_at_an_address_ends_the_client_there() {
    let (_directory, keys) = keys();
    let broker = FakeBroker::start();
    let gateway = secured(&broker, "", "", &keys);
    let mut client = Secured::open(gateway.address(), &keys, "pump-7");
    assert_eq!(client.connect("c"), ReturnCode::Accepted);
    let socket = client.socket.try_clone().expect("the same socket");
    let mut again = Secured::open_at(socket.try_clone().expect("the same socket"), &keys, "pump-7");
    again.send(&Message::PingReq(PingReq { client_id: None }));
    assert_eq!(Message::decode(&again.receive()), Ok(Message::PingResp), "the same client in a new session");
    let mut other = Secured::open_at(socket, &keys, "pump-8");
    other.send(&Message::PingReq(PingReq { client_id: None }));
    assert_eq!(Message::decode(&other.receive()), Ok(FAREWELL), "the address has no client");
    while !matches!(broker.event(), Event::Closed(_)) {}
}

/// Sends a ClientHello from an address, and returns its size.
fn say_hello(address: &str, gateway: SocketAddr, client: &Client) -> (UdpSocket, usize) {
    let socket = UdpSocket::bind((address, 0)).expect("a free port");
    let mut size = 0;
    let mut session = Session::connect(client, Instant::now());
    let sent = session.handle_timeout(Instant::now(), &mut Vec::new(), &mut |output| {
        let Output::Datagram(datagram) = output else { panic!("{output:?}") };
        size += socket.send_to(datagram, gateway).expect("sent");
    });
    sent.expect("a first datagram");
    (socket, size)
}

#[test]
fn hello_flood_leaves_room_for_clients() {
    let (_directory, keys) = keys();
    let broker = FakeBroker::start();
    let gateway = secured(&broker, "", "connects_per_second = 0\ndtls.handshakes_maximum = 100", &keys);
    let client = client(&keys, "pump-7");
    let (socket, size) = say_hello("127.0.0.1", gateway.address(), &client);
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    let answer = socket.recv(&mut [0; 2048]).expect("a cookie");
    assert!(answer <= size, "{answer} bytes for {size}");
    for number in 0..2000_u32 {
        let address = format!("127.1.{}.{}", number / 250, number % 250 + 1);
        let (forged, _) = say_hello(&address, gateway.address(), &client);
        // Any second datagram proves nothing.
        forged.send_to(b"\x16\xFE\xFD", gateway.address()).expect("sent");
        // The socket's buffer has room for a few hundred.
        if number % 50 == 49 {
            wait_for(&gateway, "datagrams_received", 2 * u64::from(number) + 3);
        }
    }
    let mut client = Secured::open(gateway.address(), &keys, "pump-7");
    assert_eq!(client.connect("c"), ReturnCode::Accepted);
    assert_eq!(gateway.stats().get("dtls_opened"), 1);
}

#[test]
fn keys_that_exclude_dtls_are_named() {
    let (directory, keys) = keys();
    for (listener, named) in [
        ("threads = 2", "threads: does not"),
        ("multicast = \"239.1.1.1:1884\"", "multicast: does not"),
        ("forwarders = [\"127.0.0.1\"]", "forwarders: does not"),
        ("qos_minus_one = true", "qos_minus_one: does not"),
        ("dtls.surprise = 1", "surprise"),
        ("dtls.handshakes_maximum = 0", "handshakes_maximum"),
    ] {
        let text = format!("[listener]\n{listener}\ndtls.psk_file = {keys:?}\n");
        let error = Config::parse(&text).expect_err(&text).to_string();
        assert!(error.contains(named), "{error}");
    }
    let missing = directory.path().join("missing");
    let config = Config::parse(&format!("[listener]\naddress = \"127.0.0.1:0\"\ndtls.psk_file = {missing:?}\n"));
    let error = Gateway::start(config.expect("legal"), tenbin_sn_gateway::Upstream::tcp("127.0.0.1:1"));
    assert!(error.expect_err("no file").to_string().contains("missing"));
}

#[test]
fn sleeper_outlives_another_client_at_its_address() {
    let (_directory, keys) = keys();
    let broker = FakeBroker::start();
    let gateway = secured(&broker, "", "", &keys);
    let mut sleeper = Secured::open(gateway.address(), &keys, "pump-7");
    assert_eq!(sleeper.connect("c"), ReturnCode::Accepted);
    sleeper.fall_asleep();
    // The network has given its port to another client.
    let mut other = Secured::open_at(sleeper.socket.try_clone().expect("the same socket"), &keys, "pump-8");
    assert_eq!(other.connect("d"), ReturnCode::Accepted);
    let mut woken = Secured::open(gateway.address(), &keys, "pump-7");
    woken.send(&Message::PingReq(PingReq { client_id: Some("c") }));
    assert_eq!(Message::decode(&woken.receive()), Ok(Message::PingResp));
}

#[test]
fn stored_state_belongs_to_an_identity() {
    let (_directory, keys) = keys();
    let broker = FakeBroker::start();
    let gateway = secured(&broker, "", "", &keys);
    let mut owner = Secured::open(gateway.address(), &keys, "pump-7");
    assert_eq!(owner.connect_with("c", false), ReturnCode::Accepted);
    let topic = Topic::Normal(owner.register("of/owner"));
    owner.send(&FAREWELL);
    assert_eq!(Message::decode(&owner.receive()), Ok(FAREWELL));
    for clean_session in [false, true] {
        let mut other = Secured::open(gateway.address(), &keys, "pump-8");
        assert_eq!(other.connect_with("c", clean_session), ReturnCode::Accepted);
        other.register("of/other");
        other.send(&FAREWELL);
        assert_eq!(Message::decode(&other.receive()), Ok(FAREWELL));
    }
    let mut owner = Secured::open(gateway.address(), &keys, "pump-7");
    assert_eq!(owner.connect_with("c", false), ReturnCode::Accepted);
    let (qos, data) = (Some(QoS::AtMostOnce), &b"on its own id"[..]);
    owner.send(&Message::Publish(Publish { dup: false, qos, retain: false, topic, message_id: None, data }));
    loop {
        if let tenbin_codec::Packet::Publish(publish) = broker.packet() {
            assert_eq!(publish.topic.text().as_str(), "of/owner");
            break;
        }
    }
}

#[test]
fn reload_uses_other_certificates() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let renew = || {
        let key = rcgen::KeyPair::generate().expect("a key");
        let own = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        fs::write(path("own"), own.self_signed(&key).expect("signed").pem()).expect("written");
        fs::write(path("key"), key.serialize_pem()).expect("written");
    };
    let client = || {
        let keys = ClientKeys::Certificates { authorities: path("own"), own: None };
        Client::new(&keys, "127.0.0.1").expect("usable")
    };
    renew();
    let broker = FakeBroker::start();
    let listener = format!("dtls = {{ certificate = {:?}, key = {:?} }}", path("own"), path("key"));
    let gateway = gateway(broker.address, "", &listener);
    let open = |client: &Client| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(gateway.address()).expect("an address");
        Secured::open_with(socket, client)
    };
    assert_eq!(open(&client()).connect("c"), ReturnCode::Accepted);
    renew();
    gateway.reload_keys();
    assert_eq!(open(&client()).connect("d"), ReturnCode::Accepted);
}
