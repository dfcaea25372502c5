use crate::broker::Tested;

#[test]
fn get_reads_the_retained_message() {
    let tested = Tested::open();
    let mut http = tested.http();
    http.get("/topics/plant/1").expect(404, "plant/1");
    let put = |http: &mut crate::http::Http, body: &[u8]| {
        let answer = http.post("/topics/plant/1?retain=true", "Content-Type: text/plain\r\n", body);
        assert_eq!(answer.status, 204);
    };
    put(&mut http, b"21.5");
    let answer = http.get("/topics/plant/1");
    assert_eq!((answer.status, &answer.body[..]), (200, &b"21.5"[..]), "{answer:?}");
    assert!(answer.head.contains("content-type: text/plain\r\n"), "{}", answer.head);
    assert!(answer.head.contains("x-content-type-options: nosniff"), "{}", answer.head);
    let answer = tested.http().get("/topics/plant%2F1");
    assert_eq!((answer.status, &answer.body[..]), (200, &b"21.5"[..]), "of another connection");
    http.send("HEAD /topics/plant/1 HTTP/1.1\r\nHost: b\r\n\r\nGET /topics/plant HTTP/1.1\r\nHost: b\r\n\r\n");
    let head = read_head(&mut http);
    assert!(head.contains("200 OK") && head.contains("content-length: 4"), "{head}");
    http.receive().expect(404, "\"plant\"");
    put(&mut http, b"");
    http.get("/topics/plant/1").expect(404, "plant/1");
}

/// The head of an answer without a body.
fn read_head(http: &mut crate::http::Http) -> String {
    use std::io::Read as _;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        http.stream.read_exact(&mut byte).expect("a byte");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text")
}

#[test]
fn large_retained_message_is_read_whole() {
    let tested = Tested::open();
    let body: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    assert_eq!(tested.http().post("/topics/a?retain=true", "", &body).status, 204);
    let answer = tested.http().get("/topics/a");
    assert!(answer.status == 200 && answer.body == body, "{} {} bytes", answer.status, answer.body.len());
    assert!(answer.head.contains("application/octet-stream"));
}

/// The subscription that reads a retained message also gets messages published at the same time.
#[test]
fn busy_topic_is_read_without_live_messages() {
    let tested = Tested::open();
    assert_eq!(tested.http().post("/topics/a?retain=true", "", b"kept").status, 204);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut http = tested.http();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                http.send_request("POST /topics/a?qos=0", "", b"live");
                assert_eq!(http.receive().status, 204);
            }
        });
        let mut http = tested.http();
        for _ in 0..500 {
            let answer = http.get("/topics/a");
            assert_eq!((answer.status, &answer.body[..]), (200, &b"kept"[..]));
            http.get("/topics/b").expect(404, "\"b\"");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        busy.join().expect("published");
    });
}

#[test]
fn status_topics_are_read_like_others() {
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]\n[sys]\ninterval_seconds = 1", Default::default());
    let mut subscriber = tested.subscribe("$SYS/broker/version");
    subscriber.next();
    let answer = tested.http().get("/topics/$SYS/broker/version");
    assert!(answer.status == 200 && !answer.body.is_empty(), "{answer:?}");
}
