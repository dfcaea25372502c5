//! PROXY headers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Instant;

use tenbin_broker::auth::Peer;
use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode};
use tokio_rustls::rustls::version::TLS13;

use crate::support::{
    BrokerProcess, Certificates, ClientStream, ConfigFile, PATIENCE, RawClient, WitnessedBroker, encode, text,
};

pub(super) const V1: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.1 4660 1883\r\n";
const HEALTH_CHECK: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// A header of version 2 for 192.0.2.1:4660.
fn v2(tlvs: &[u8]) -> Vec<u8> {
    let address = [192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x34, 7, 91];
    let length = (address.len() + tlvs.len()) as u16;
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11", &length.to_be_bytes()[..], &address, tlvs].concat()
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind], &(value.len() as u16).to_be_bytes()[..], value].concat()
}

/// A broker whose listener has these further keys.
fn broker_with(listener: &str, rest: &str) -> (BrokerProcess, ConfigFile) {
    let text = format!("{rest}[[listeners]]\naddress = \"127.0.0.1:0\"\nanonymous = true\n{listener}");
    let file = ConfigFile::new(&text);
    (BrokerProcess::start_exactly(&["--config", file.path(), "--log", "debug"]), file)
}

pub(super) const LOOPBACK: &str = "proxy_from = [\"127.0.0.0/8\"]\n";

/// Opens a connection that begins with `header`.
fn open(address: SocketAddr, header: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_nodelay(true).expect("an open connection");
    // The broker may close before it has read all.
    let _ = stream.write_all(header);
    stream
}

fn connect(stream: TcpStream, client_id: &str) -> RawClient {
    let client = RawClient::on(stream, ProtocolVersion::V5);
    let (client, connack) = client.introduce(Connect::new(ProtocolVersion::V5, text(client_id)));
    assert_eq!(connack.reason, ReasonCode::Success, "CONNACK");
    client
}

/// Waits until the broker has closed the connection, without a byte for the client.
fn assert_closed(mut stream: TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("an open connection");
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn told_address_stands_for_the_client_in_the_log() {
    let (broker, _file) = broker_with(LOOPBACK, "");
    for (client_id, header) in [("one", V1.to_vec()), ("two", v2(&[])), ("three", v2(&tlv(4, &[0; 4000])))] {
        let mut client = connect(open(broker.address(), &header), client_id);
        broker.log().wait_for(&["peer=192.0.2.1:4660", client_id], PATIENCE);
        client.subscribe("a", QoS::AtLeastOnce);
        client.publish("a", "through a proxy", QoS::AtLeastOnce);
        assert_eq!(client.receive_message().payload, "through a proxy");
    }
    connect(open(broker.address(), HEALTH_CHECK), "the proxy").settle();
    broker.log().wait_for(&["peer=127.0.0.1:", "the proxy"], PATIENCE);
}

#[test]
fn connections_without_needed_header_or_right_are_closed() {
    let (broker, _file) = broker_with(LOOPBACK, "");
    assert_closed(open(broker.address(), b"\x10"));
    broker.log().wait_for(&["PROXY header failed", "no PROXY header"], PATIENCE);
    assert_closed(open(broker.address(), &v2(&tlv(4, &[0; 1000]).repeat(64))));
    broker.log().wait_for(&["PROXY header failed", "longer than 4 KiB"], PATIENCE);
    connect(open(broker.address(), V1), "client").settle();
    for keys in ["", "proxy = \"optional\"\n"] {
        let (broker, _file) = broker_with(&format!("proxy_from = [\"192.0.2.0/24\"]\n{keys}"), "");
        assert_closed(open(broker.address(), V1));
        broker.log().wait_for(&["PROXY header failed", "not in proxy_from"], PATIENCE);
    }
}

#[test]
fn optional_header_may_be_missing() {
    for network in ["127.0.0.1", "192.0.2.0/24"] {
        let keys = format!("proxy_from = [\"{network}\"]\nproxy = \"optional\"\n");
        // Each of the connections counts once.
        let (broker, _file) = broker_with(&keys, "[connections]\nloopback_per_address_maximum = 1\n");
        connect(open(broker.address(), b""), "direct").settle();
        broker.log().wait_for(&["peer=127.0.0.1:", "direct"], PATIENCE);
        if network.starts_with("127") {
            connect(open(broker.address(), V1), "proxied").settle();
            broker.log().wait_for(&["peer=192.0.2.1:4660", "proxied"], PATIENCE);
        }
    }
}

#[test]
fn bounds_of_an_address_hold_for_the_told_one() {
    let bounds = "[connections]\nper_address_maximum = 2\nloopback_per_address_maximum = 1\n";
    let (broker, _file) = broker_with(LOOPBACK, bounds);
    let of = |last: u8| format!("PROXY TCP4 192.0.2.{last} 198.51.100.1 4660 1883\r\n");
    let client = |last: u8, id: &str| connect(open(broker.address(), of(last).as_bytes()), id);
    let mut first = [client(1, "1a"), client(1, "1b")];
    let mut others = [client(2, "2a"), client(3, "3a")];
    assert_closed(open(broker.address(), of(1).as_bytes()));
    broker.log().wait_for(&["too many connections of 192.0.2.1"], PATIENCE);
    first.iter_mut().chain(&mut others).for_each(RawClient::settle);
    let [one, _other] = first;
    one.disconnect();
    let until = Instant::now() + PATIENCE;
    loop {
        let mut again = RawClient::on(open(broker.address(), of(1).as_bytes()), ProtocolVersion::V5);
        let connect = Connect::new(ProtocolVersion::V5, text("1c"));
        again.try_send_bytes(&encode(&Packet::Connect(Box::new(connect)), ProtocolVersion::V5));
        if again.receive_or_end().is_some() {
            break;
        }
        assert!(Instant::now() < until, "its place is free");
    }
}

#[test]
fn header_comes_byte_by_byte_or_is_cut_anywhere() {
    let (broker, _file) = broker_with(LOOPBACK, "");
    for header in [V1.to_vec(), v2(&tlv(4, b"padding"))] {
        let mut stream = open(broker.address(), b"");
        header.iter().for_each(|byte| stream.write_all(&[*byte]).expect("an open connection"));
        connect(stream, "slow").settle();
        for length in 0..header.len() {
            let stream = open(broker.address(), &header[..length]);
            stream.shutdown(Shutdown::Write).expect("an open connection");
            assert_closed(stream);
        }
    }
    connect(open(broker.address(), V1), "afterwards").settle();
}

#[test]
fn authenticator_sees_the_names_that_a_proxy_tells() {
    let certificate = [&[3, 0, 0, 0, 0][..], &tlv(0x22, b"alice")].concat();
    let header = v2(&[tlv(2, b"mqtt.example"), tlv(0x20, &certificate)].concat());
    for (keys, user) in [("", None), ("proxy_trust_tls = true\n", Some("alice"))] {
        let text = format!("[[listeners]]\naddress = \"127.0.0.1:0\"\nanonymous = true\n{LOOPBACK}{keys}");
        let witnessed = WitnessedBroker::start(&text);
        let stream = open(witnessed.broker.addresses()[0], &header);
        let proxy = stream.local_addr().expect("connected");
        connect(stream, "client").settle();
        let origin = witnessed.next_origin();
        assert_eq!(origin.peer, Peer::Ip(([192, 0, 2, 1], 4660).into()));
        assert_eq!(origin.socket_peer, Peer::Ip(proxy));
        assert_eq!(origin.server_name.as_deref(), Some("mqtt.example"));
        let common_name = origin.certificate.and_then(|certificate| certificate.common_name.clone());
        assert_eq!(common_name.as_deref(), user);
    }
}

#[test]
fn header_comes_before_tls() {
    let certificates = Certificates::new();
    let listener = certificates.listener("").replace("[listeners.tls]", &format!("{LOOPBACK}[listeners.tls]"));
    let file = ConfigFile::new(&listener);
    let broker = BrokerProcess::start_exactly(&["--config", file.path(), "--log", "debug"]);
    let stream = ClientStream::tls_on(open(broker.address(), V1), "localhost", &certificates.client(&TLS13));
    let client = RawClient::on(stream, ProtocolVersion::V5);
    let (mut client, _) = client.introduce(Connect::new(ProtocolVersion::V5, text("secure")));
    client.settle();
    broker.log().wait_for(&["peer=192.0.2.1:4660", "secure"], PATIENCE);
}
