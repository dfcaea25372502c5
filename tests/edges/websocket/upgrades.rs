//! The HTTP exchange before the first frame.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tenbin_codec::{Connect, Packet, ProtocolVersion};

use super::{Served, exchange, request};
use crate::support::{BrokerProcess, ClientStream, ConfigFile, PATIENCE, RawClient, encode, text};

/// Also checks that the answer proves knowledge of the request's key.
#[test]
fn mqtt_6_0_0_4_server_selects_the_subprotocol() {
    let served = Served::start("");
    for (offered, selected) in [("mqtt", "mqtt"), ("chat, mqttv3.1, mqtt", "mqtt"), ("mqttv3.1", "mqttv3.1")] {
        let (_, answer) =
            exchange(served.address(), &request().replace("Protocol: mqtt", &format!("Protocol: {offered}")));
        assert!(answer.starts_with("HTTP/1.1 101 "), "{offered}: {answer}");
        assert!(answer.contains(&format!("\r\nSec-WebSocket-Protocol: {selected}\r\n")), "{offered}: {answer}");
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
    }
}

/// The broker refuses a client that does not offer `mqtt`.
#[test]
fn mqtt_6_0_0_3_client_without_subprotocol_is_refused() {
    let served = Served::start("");
    for (from, to) in [("Protocol: mqtt", "Protocol: chat"), ("Sec-WebSocket-Protocol: mqtt\r\n", "")] {
        let (mut stream, answer) = exchange(served.address(), &request().replace(from, to));
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the whole answer");
        assert_eq!(text, "Sec-WebSocket-Protocol does not offer mqtt [MQTT-6.0.0-3]\n");
    }
}

#[test]
fn wrong_requests_get_their_status_and_a_log_line() {
    let served = Served::start("");
    let many = format!("\r\n{}\r\n", "x: y\r\n".repeat(10_000));
    for (request, status) in [
        (request().replace("GET", "POST"), "405"),
        (request().replace(": 13", ": 12"), "426"),
        ("GET /mqtt HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), "426"),
        ("\u{10}\u{d}\0\u{4}MQTT\u{5}\u{2}\0\0\0\0\0".to_owned(), "400"),
        (request().replace("\r\n\r\n", &many), "431"),
        (request().replace("localhost", &"x".repeat(10_000)), "431"),
    ] {
        let (_, answer) = exchange(served.address(), &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        served.broker.log().wait_for(&["upgrade to WebSocket failed", status], PATIENCE);
    }
}

/// MQTT.js asks for "/" if its URL has no path, others for "/ws" or "/mqtt/".
#[test]
fn any_path_is_accepted_unless_one_is_configured() {
    let listener = |keys: &str| {
        format!(
            "[[listeners]]\nname = \"pages\"\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"websocket\"\n{keys}"
        )
    };
    for (keys, legal) in
        [("", &["/mqtt", "/", "/mqtt/", "/ws", "/a/b?c"][..]), ("path = \"/mqtt\"", &["/mqtt", "/mqtt?c"])]
    {
        let served = Served::start(&listener(keys));
        for path in ["/mqtt", "/", "/mqtt/", "/ws", "/a/b?c", "/mqtt?c", "/MQTT"] {
            let (_, answer) = exchange(served.broker.addresses()[1], &request().replace("/mqtt", path));
            let status = if keys.is_empty() || legal.contains(&path) { "101" } else { "404" };
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{keys}: {path}: {answer}");
        }
    }
}

#[test]
fn unfinished_requests_end_with_the_connect_timeout() {
    let served = Served::start("[connections]\nconnect_timeout_ms = 1500");
    let mut silent = TcpStream::connect(served.address()).expect("the broker listens");
    silent.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    let (mut slow, text) = (silent.try_clone().expect("a descriptor"), request());
    let writer = std::thread::spawn(move || {
        let sent = text.bytes().take_while(|&byte| {
            std::thread::sleep(Duration::from_millis(200));
            slow.write_all(&[byte]).is_ok()
        });
        sent.count()
    });
    // The broker closes without an answer, or with a reset, since bytes keep coming.
    assert!(!matches!(silent.read(&mut [0; 10]), Ok(1..)));
    assert!(writer.join().expect("the writer ends") < request().len());
}

#[test]
fn pages_of_other_origins_are_refused() {
    let web = "[[listeners]]\nname = \"pages\"\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"websocket\"\npath = \"\"\n\
               origins = [\"https://page.example\"]";
    let served = Served::start(web);
    let address = served.broker.addresses()[1];
    for (origin, status) in
        [("Origin: https://page.example\r\n", "101"), ("", "101"), ("Origin: https://page.example.evil\r\n", "403")]
    {
        let request =
            request().replace("/mqtt", "/any").replace("Upgrade: websocket", &format!("{origin}Upgrade: websocket"));
        let (_, answer) = exchange(address, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{origin}: {answer}");
    }
}

/// A broker whose WebSocket listener has proxies in this network; `rest`: tables before the listener.
fn behind(network: &str, rest: &str) -> (BrokerProcess, ConfigFile) {
    let config = ConfigFile::new(&format!(
        "{rest}[[listeners]]\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"websocket\"\n\
         proxy_from = [\"{network}\"]\nproxy = \"optional\"\nproxy_forwarded_for = true\n"
    ));
    (BrokerProcess::start_exactly(&["--config", config.path(), "--log", "debug"]), config)
}

/// Connects behind `before`, with these values of `X-Forwarded-For`. `None`: the broker has closed the connection.
fn forwarded(broker: &BrokerProcess, before: &str, values: &[&str], client_id: &str) -> Option<RawClient> {
    let mut stream = TcpStream::connect(broker.address()).expect("the broker listens");
    stream.write_all(before.as_bytes()).expect("an open connection");
    let fields = values.iter().map(|value| format!("\r\nX-Forwarded-For: {value}")).collect::<String>();
    let stream = ClientStream::from(stream).upgraded_with(&fields);
    let mut client = RawClient::on(stream, ProtocolVersion::V5);
    let connect = Connect::new(ProtocolVersion::V5, text(client_id));
    client.try_send_bytes(&encode(&Packet::Connect(Box::new(connect)), ProtocolVersion::V5));
    client.receive_or_end().map(|_| client)
}

#[test]
fn forwarded_address_stands_for_the_client() {
    let (broker, _config) = behind("127.0.0.0/8", "");
    for (client_id, before, values, peer) in [
        ("one", "", &["192.0.2.1"][..], "192.0.2.1:0"),
        ("last", "", &["10.0.0.1, 192.0.2.2"], "192.0.2.2:0"),
        ("proxies", "", &["192.0.2.3,127.0.0.2", " 127.0.0.3 "], "192.0.2.3:0"),
        ("junk", "", &["junk", ", 192.0.2.4"], "192.0.2.4:0"),
        ("port", "", &["192.0.2.5:4660"], "192.0.2.5:4660"),
        ("six", "", &["2001:db8::1"], "[2001:db8::1]:0"),
        ("brackets", "", &["[2001:db8::2]"], "[2001:db8::2]:0"),
        ("all", "", &["[2001:db8::3]:4660"], "[2001:db8::3]:4660"),
        ("inside", "", &["127.0.0.4, 127.0.0.5"], "127.0.0.4:0"),
        ("none", "", &[], "127.0.0.1:"),
        // A PROXY header comes first, and tells whose field it is.
        ("stranger", "PROXY TCP4 192.0.2.6 198.51.100.1 4660 80\r\n", &["192.0.2.7"], "192.0.2.6:4660"),
        ("chained", "PROXY TCP4 127.0.0.6 198.51.100.1 4660 80\r\n", &["192.0.2.8"], "192.0.2.8:0"),
    ] {
        forwarded(&broker, before, values, client_id).expect("accepted").settle();
        broker.log().wait_for(&[&format!("peer={peer}"), &format!("client=\"{client_id}\"")], PATIENCE);
    }
}

#[test]
fn forwarded_address_of_strangers_does_not_count() {
    let (broker, _config) = behind("192.0.2.0/24", "");
    for (client_id, value) in [("address", "192.0.2.1"), ("junk", "junk")] {
        forwarded(&broker, "", &[value], client_id).expect("accepted").settle();
        broker.log().wait_for(&["peer=127.0.0.1:", &format!("client=\"{client_id}\"")], PATIENCE);
    }
}

#[test]
fn forwarded_address_does_not_count_unless_configured() {
    let config = ConfigFile::new(
        "[[listeners]]\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"websocket\"\n\
         proxy_from = [\"127.0.0.1\"]\nproxy = \"optional\"\n",
    );
    let broker = BrokerProcess::start_exactly(&["--config", config.path(), "--log", "debug"]);
    forwarded(&broker, "", &["192.0.2.1"], "address").expect("accepted").settle();
    broker.log().wait_for(&["peer=127.0.0.1:", "client=\"address\""], PATIENCE);
}

#[test]
fn malformed_forwarded_address_is_refused() {
    let (broker, _config) = behind("127.0.0.1", "");
    for value in ["", "junk", "unknown", "192.0.2.1, ", "192.0.2.256", "[192.0.2.1]", "192.0.2.1:x", "junk, 127.0.0.1"]
    {
        let fields = format!("X-Forwarded-For: {value}\r\nUpgrade: websocket");
        let (mut stream, answer) = exchange(broker.address(), &request().replace("Upgrade: websocket", &fields));
        assert!(answer.starts_with("HTTP/1.1 400 "), "{value}: {answer}");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the whole answer");
        assert!(text.starts_with("X-Forwarded-For has ") && text.ends_with(", which is no address\n"), "{text}");
        broker.log().wait_for(&["upgrade to WebSocket failed", "X-Forwarded-For has"], PATIENCE);
    }
}

#[test]
fn bounds_of_an_address_hold_for_the_forwarded_one() {
    let bounds = "[connections]\nper_address_maximum = 1\nloopback_per_address_maximum = 1\n";
    let (broker, _config) = behind("127.0.0.0/8", bounds);
    let mut clients = ["192.0.2.1", "192.0.2.2"].map(|value| forwarded(&broker, "", &[value], value).expect("room"));
    assert!(forwarded(&broker, "", &["192.0.2.1"], "third").is_none());
    broker.log().wait_for(&["upgrade to WebSocket failed", "too many connections of 192.0.2.1"], PATIENCE);
    // The proxy's own connection counts for itself alone.
    let mut own = forwarded(&broker, "", &[], "own").expect("room");
    assert!(forwarded(&broker, "", &[], "other").is_none());
    forwarded(&broker, "", &["192.0.2.3"], "late").expect("room").settle();
    clients.iter_mut().chain([&mut own]).for_each(RawClient::settle);
}
