use tenbin_client::QoS;

use crate::broker::Tested;

/// The client closes its side behind the request.
#[test]
fn half_closed_request_is_answered() {
    let tested = Tested::open();
    let mut http = tested.http();
    http.send_request("POST /topics/a", "", b"x");
    http.stream.shutdown(std::net::Shutdown::Write).expect("open");
    assert_eq!(http.receive().status, 204);
}

#[test]
fn each_qos_is_answered_with_204() {
    let tested = Tested::open();
    let mut subscriber = tested.subscribe("#");
    let mut http = tested.http();
    for (query, qos) in [
        ("", QoS::AtLeastOnce),
        ("?qos=0", QoS::AtMostOnce),
        ("?qos=1", QoS::AtLeastOnce),
        ("?qos=2", QoS::ExactlyOnce),
    ] {
        let answer = http.post(&format!("/topics/plant/1/temp{query}"), "", b"21.5");
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{answer:?}");
        let message = subscriber.next();
        assert_eq!((message.topic.text().as_str(), &message.payload[..]), ("plant/1/temp", &b"21.5"[..]));
        assert_eq!(message.qos, qos);
        assert_eq!(message.properties, None);
    }
}

#[test]
fn content_type_and_expiry_become_properties() {
    let tested = Tested::open();
    let mut subscriber = tested.subscribe("a");
    let answer = tested.http().post("/topics/a?expiry=60", "Content-Type: application/json\r\n", b"{}");
    assert_eq!(answer.status, 204);
    let properties = subscriber.next().properties.expect("some");
    assert_eq!(properties.content_type.expect("one").as_str(), "application/json");
    assert_eq!(properties.payload_format_indicator, Some(true));
    assert!(properties.message_expiry_interval.is_some_and(|seconds| seconds <= 60));
}

#[test]
fn chunked_and_expected_bodies_are_received() {
    let tested = Tested::open();
    let mut subscriber = tested.subscribe("a");
    let mut http = tested.http();
    http.send(
        "POST /topics/a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    );
    assert_eq!(http.receive().status, 204);
    assert_eq!(&subscriber.next().payload[..], b"abcde");
    http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(http.receive().status, 100);
    http.send("xyz");
    assert_eq!(http.receive().status, 204);
    assert_eq!(&subscriber.next().payload[..], b"xyz");
}

#[test]
fn largest_body_is_published() {
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]", Default::default());
    let mut subscriber = tested.subscribe("a");
    let body = vec![b'x'; (4 << 20) - 1024];
    assert_eq!(tested.http().post("/topics/a", "", &body).status, 204);
    assert_eq!(subscriber.next().payload.len(), body.len());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let tested = Tested::open();
    let mut subscriber = tested.subscribe("#");
    let mut http = tested.http();
    let requests: String = (0..100)
        .map(|number| {
            let qos = number % 3;
            format!("POST /topics/t/{number}?qos={qos} HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\nx")
        })
        .collect();
    http.send(requests + "GET /topics/none HTTP/1.1\r\nHost: b\r\n\r\n");
    for _ in 0..100 {
        assert_eq!(http.receive().status, 204);
    }
    assert_eq!(http.receive().status, 404);
    let topics: Vec<String> = (0..100).map(|_| subscriber.next_text().0).collect();
    let sent: Vec<String> = (0..100).map(|number| format!("t/{number}")).collect();
    assert_eq!(topics, sent);
    assert_eq!(tested.broker.metrics().connections_opened, 2, "one MQTT client, and the subscriber");
}

#[test]
fn connection_per_request_leaves_no_client_behind() {
    let tested = Tested::open();
    for number in 0..20 {
        let mut http = tested.http();
        let answer = http.post("/topics/a", "Connection: close\r\n", format!("{number}").as_bytes());
        assert_eq!(answer.status, 204);
        http.wait_for_close();
    }
    let deadline = std::time::Instant::now() + crate::broker::PATIENCE;
    while tested.broker.sessions() > 0 {
        assert!(std::time::Instant::now() < deadline, "{} sessions", tested.broker.sessions());
        std::thread::yield_now();
    }
}

#[test]
fn threads_share_one_address() {
    let settings = tenbin_http_ingest::Settings { threads: 3, ..Default::default() };
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]", settings);
    let mut subscriber = tested.subscribe("#");
    let mut open: Vec<_> = (0..16).map(|_| tested.http()).collect();
    for http in &mut open {
        assert_eq!(http.post("/topics/a", "", b"x").status, 204);
        subscriber.next();
    }
}

#[test]
fn requests_in_progress_are_answered_when_the_server_stops() {
    let mut tested = Tested::open();
    let (mut idle, mut busy) = (tested.http(), tested.http());
    assert_eq!(idle.post("/topics/a", "", b"x").status, 204);
    busy.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(busy.receive().status, 100);
    let address = tested.server.address();
    let Tested { server, broker, runtime } = &mut tested;
    runtime.block_on(async {
        let finishing = server.finish();
        let sending = tokio::task::spawn_blocking(move || {
            idle.wait_for_close();
            busy.send("xy");
            assert_eq!(busy.receive().status, 204);
            busy.wait_for_close();
        });
        let (sent, ()) = tokio::join!(sending, finishing);
        sent.expect("answered");
    });
    assert!(std::net::TcpStream::connect(address).is_err(), "it does not listen");
    assert_eq!(broker.metrics().messages_received, 2);
}
