//! Each status of a refusal; those of credentials and of missing messages are tested elsewhere.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_client::{AcknowledgeMode, Client, ClientOptions, QoS, Subscription, SubscriptionOptions, TopicFilter};
use tenbin_http_ingest::Settings;

use crate::broker::{PATIENCE, Tested, before_silence};
use crate::http::Http;

#[test]
fn illegal_requests_are_400_404_and_405() {
    let tested = Tested::open();
    let mut http = tested.http();
    for (path, word) in [
        ("/topics/", "empty topic"),
        ("/topics/a/%23", "wildcard in a topic name"),
        ("/topics/+", "wildcard in a topic name"),
        ("/topics/a%00", "a%00"),
        ("/topics/a%FF", "a%FF"),
        ("/topics/a?qos=3", "qos"),
        ("/topics/a?retain=maybe", "retain"),
        ("/topics/a?expiry=soon", "expiry"),
        ("/topics/a?priority=1", "priority"),
    ] {
        http.post(path, "", b"x").expect(400, word);
    }
    http.get("/topics/$share/g/a").expect(400, "shared subscription");
    http.get("/topics/a/+").expect(400, "wildcard");
    http.post("/other/a", "", b"x").expect(404, "/other/a");
    http.send_request("PUT /topics/a", "", b"x");
    let answer = http.receive();
    answer.expect(405, "PUT");
    assert!(answer.head.contains("allow: GET, HEAD, POST"), "{}", answer.head);
    let mut http = tested.http();
    http.send("this is not HTTP\r\n\r\n");
    assert_eq!(http.receive().status, 400);
    http.wait_for_close();
    tested.http().post("/topics/a", "Origin: https://example.com\r\n", b"x").expect(403, "https://example.com");
    assert_eq!(tested.broker.metrics().messages_received, 0);
}

#[test]
fn features_that_the_broker_lacks_are_400() {
    let config = "listen = [\"127.0.0.1:0\"]\n[capabilities]\nmaximum_qos = 1\nretain = false";
    let tested = Tested::start(config, Settings::default());
    tested.http().post("/topics/a?qos=2", "", b"x").expect(400, "QoS");
    tested.http().post("/topics/a?retain=true", "", b"x").expect(400, "etain");
}

#[test]
fn body_without_end_is_408() {
    let settings = Settings { request_time: Duration::from_secs(1), ..Settings::default() };
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]", settings);
    let mut http = tested.http();
    http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\n\r\nab");
    http.receive().expect(408, "body");
    http.wait_for_close();
}

#[test]
fn large_bodies_are_413() {
    let settings = Settings { body_bytes_maximum: 1024, ..Settings::default() };
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]\n[connections]\npacket_bytes_maximum = 1024", settings);
    let mut http = tested.http();
    http.post("/topics/a", "", &[b'x'; 1025]).expect(413, "1024 bytes");
    http.wait_for_close();
    let mut http = tested.http();
    http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nContent-Length: 99999999999999\r\n\r\n");
    http.receive().expect(413, "1024 bytes");
    let mut http = tested.http();
    http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n");
    http.send([&b"401\r\n"[..], &[b'x'; 0x401], b"\r\n"].concat());
    http.receive().expect(413, "1024 bytes");
    // The packet has a topic too.
    tested.http().post("/topics/a", "", &[b'x'; 1020]).expect(413, "\"a\"");
    assert_eq!(tested.http().post("/topics/a", "", &[b'x'; 1000]).status, 204);
}

/// An answer has to reach a client that sends its body without waiting.
#[test]
fn refusal_of_a_large_body_is_not_lost() {
    let settings = Settings { body_bytes_maximum: 1024, ..Settings::default() };
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]", settings);
    for _ in 0..50 {
        tested.http().post("/topics/a", "", &[b'x'; 512 * 1024]).expect(413, "1024 bytes");
    }
}

#[test]
fn payload_that_is_not_as_declared_is_415() {
    let tested = Tested::open();
    let mut http = tested.http();
    http.post("/topics/a", "Content-Type: application/json\r\n", b"\xFF").expect(415, "application/json");
    http.send(b"POST /topics/a HTTP/1.1\r\nHost: b\r\nContent-Type: \xFF\r\nContent-Length: 1\r\n\r\nx");
    http.receive().expect(415, "Content-Type");
}

/// Receivers could not tell the encoded body from a plain one.
#[test]
fn encoded_body_is_415_and_not_published() {
    let tested = Tested::open();
    let mut subscriber = tested.subscribe("#");
    let mut http = tested.http();
    http.post("/topics/a", "Content-Encoding: gzip\r\n", b"\x1F\x8B\x08").expect(415, "gzip");
    http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
    http.receive().expect(501, "gzip");
    assert_eq!(tested.http().post("/topics/plain", "", b"x").status, 204);
    assert_eq!(subscriber.next_text().0, "plain");
}

#[test]
fn request_without_host_is_400() {
    let tested = Tested::open();
    let mut http = tested.http();
    http.send("GET /topics/a HTTP/1.1\r\n\r\n");
    http.receive().expect(400, "Host");
}

/// Silent connections from 1, 8 and 16 addresses take all places.
#[test]
fn silent_connections_make_room_for_clients() {
    let settings = Settings { connections_maximum: 32, request_time: 10 * PATIENCE, ..Settings::default() };
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]", settings);
    for addresses in [1, 8, 16] {
        let _silent: Vec<_> = (0..40).map(|number| tested.stream_from([127, 0, 1, number % addresses])).collect();
        let began = Instant::now();
        let is_served = || {
            let (mut stream, mut answer) = (tested.stream_from([127, 0, 9, 9]), Vec::new());
            let request = "POST /topics/a HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx";
            // The server may have closed it.
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.read_to_end(&mut answer);
            answer.starts_with(b"HTTP/1.1 204")
        };
        // While all others are new too, there is no place.
        while !is_served() {
            assert!(began.elapsed() < PATIENCE, "{addresses} addresses");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn too_many_connects_are_429() {
    let config = "listen = [\"127.0.0.1:0\"]\n[connections]\nconnects_per_second_per_address = 1";
    let tested = Tested::start(config, Settings::default());
    let refused = (0..100).map(|_| tested.http().post("/topics/a", "", b"x")).find(|answer| answer.status != 204);
    refused.expect("one of them").expect(429, "CONNECT");
}

#[test]
fn too_many_connections_are_429_and_503() {
    let of = |loopback_per_address_maximum, connections_maximum| Settings {
        loopback_per_address_maximum,
        connections_maximum,
        ..Settings::default()
    };
    for (settings, status, word) in [(of(2, 100), 429, "this address"), (of(0, 2), 503, "too many connections")] {
        let tested = Tested::start("listen = [\"127.0.0.1:0\"]", settings);
        let mut open = [tested.http(), tested.http()];
        for http in &mut open {
            assert_eq!(http.post("/topics/a", "", b"x").status, 204);
        }
        let mut third = tested.http();
        third.receive().expect(status, word);
        third.wait_for_close();
        let [closed, mut last] = open;
        drop(closed);
        assert_eq!(last.post("/topics/a", "", b"x").status, 204);
        let deadline = Instant::now() + PATIENCE;
        // The place is free again once the server has seen the end of the connection.
        loop {
            let mut http = tested.http();
            http.send_request("POST /topics/a", "Connection: close\r\n", b"x");
            if http.receive().status == 204 {
                break;
            }
            assert!(Instant::now() < deadline, "the place stays taken");
        }
    }
}

#[test]
fn long_heads_are_431() {
    let tested = Tested::open();
    let mut http = tested.http();
    http.send(format!("GET /topics/a HTTP/1.1\r\nHost: b\r\nX: {}\r\n\r\n", "x".repeat(9000)));
    assert_eq!(http.receive().status, 431);
    http.wait_for_close();
}

#[test]
fn silent_broker_is_503() {
    let server = before_silence(Settings { request_time: Duration::from_secs(1), ..Settings::default() });
    Http::connect(server.address()).post("/topics/a", "", b"x").expect(503, "did not answer CONNECT");
}

#[test]
fn closed_broker_is_503() {
    let server = crate::broker::server(Settings::default(), tenbin_http_ingest::Upstream::memory(|_, _| {}));
    Http::connect(server.address()).post("/topics/a", "", b"x").expect(503, "CONNECT");
}

#[test]
fn stopped_broker_is_503() {
    let tested = Tested::open();
    let mut http = tested.http();
    assert_eq!(http.post("/topics/a", "", b"x").status, 204);
    let Tested { server: _server, broker, runtime } = tested;
    runtime.block_on(Arc::into_inner(broker).expect("the last handle").shutdown());
    http.post("/topics/a", "", b"x").expect(503, "CONNECT");
}

#[test]
fn full_queue_of_a_receiver_is_507() {
    let config = "listen = [\"127.0.0.1:0\"]\n[queue]\nmessages_maximum = 1";
    let tested = Tested::start(config, Settings::default());
    let options = ClientOptions::new(tested.broker.addresses()[0].to_string(), "slow")
        .receive_maximum(1)
        .acknowledge(AcknowledgeMode::Manual);
    let _client = tested.runtime.block_on(async {
        let (client, events) = Client::connect(options).await.expect("connected");
        let filter = TopicFilter::try_from("a").expect("legal");
        let options = SubscriptionOptions::at(QoS::AtLeastOnce);
        client.subscribe(vec![Subscription { filter, options }]).await.expect("an answer");
        (client, events)
    });
    let mut http = tested.http();
    let refused = (0..10).map(|_| http.post("/topics/a", "", b"x")).find(|answer| answer.status != 204);
    refused.expect("one of them").expect(507, "\"a\"");
}
