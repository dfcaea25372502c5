//! The HTTP exchange before the first frame.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::support::PATIENCE;
use super::{Served, exchange, request};

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
        (request().replace("/mqtt", "/other"), "404"),
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
