//! `/healthz`, `/readyz`, and the server's address.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use tenbin_codec::{ProtocolVersion, QoS};

use crate::admin::stage::{Stage, json, wait_until};
use crate::support::{BrokerProcess, Certificates, ConfigFile, PATIENCE, exchange, message, read_answer, subscription};

#[test]
fn healthy_broker_is_alive_and_ready() {
    let stage = Stage::start(&[]);
    for path in ["/healthz", "/readyz"] {
        let plain = stage.get(path);
        assert_eq!((plain.status, &plain.body[..]), (200, "ok\n"), "{path}");
        let verbose = stage.get(&format!("{path}?verbose"));
        assert!(verbose.body.starts_with("[+] ") && verbose.body.ends_with("\nok\n"), "{}", verbose.body);
    }
    assert!(stage.get("/readyz?verbose").body.contains("[+] listeners\n"));
    let lost = stage.get("/nowhere");
    assert_eq!((lost.status, lost.header("content-type")), (404, Some("application/problem+json")));
    assert_eq!(json(&lost)["status"], 404);
    assert_eq!(stage.ask("PUT", "/healthz").status, 405);
}

#[test]
fn stopping_broker_is_not_ready() {
    let stage = Stage::start(&[]);
    // A client that does not read its DISCONNECT keeps the broker from ending at once.
    let client = stage.broker.v5("stays");
    stage.broker.signal("TERM");
    let until = Instant::now() + PATIENCE;
    loop {
        // The broker ends a moment later, and its admin HTTP with it.
        let Ok(mut stream) = TcpStream::connect(stage.admin) else { break };
        let request = format!("GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", stage.admin);
        let _ = stream.write_all(request.as_bytes());
        match read_answer(&mut std::io::BufReader::new(stream)) {
            Some(answer) if answer.status == 200 => assert!(Instant::now() < until, "still ready"),
            Some(answer) => {
                assert!(answer.status == 503 && answer.body.contains("stopping"), "{answer:?}");
                break;
            }
            None => break,
        }
    }
    drop(client);
}

#[test]
fn health_answers_soon_while_clients_connect() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.v5("client");
    let address = stage.broker.address();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let (health, ping) = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    if let Ok(mut stream) = TcpStream::connect(address) {
                        let _ = stream.write_all(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00");
                    }
                }
            });
        }
        let times = (0..20).map(|_| {
            let asked_at = Instant::now();
            assert_eq!((stage.get("/healthz").status, stage.get("/readyz").status), (200, 200));
            let (health, pinged_at) = (asked_at.elapsed() / 2, Instant::now());
            client.settle();
            (health, pinged_at.elapsed())
        });
        let times: (Vec<_>, Vec<_>) = times.unzip();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        (median(times.0), median(times.1))
    });
    // Medians, since a loaded machine may stop any process for a while. There a connected client waits too.
    assert!(
        health < Duration::from_millis(100).max(10 * ping).min(Duration::from_secs(5)),
        "{health:?}, and {ping:?} of a connected client"
    );
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
fn taken_address_is_fatal_unless_it_is_the_default() {
    let stage = Stage::start(&[]);
    let taken = stage.admin.to_string();
    let refused = BrokerProcess::fail_to_start_in(
        &[("TENBIN_ADMIN__ADDRESS", taken.clone().into())],
        &["--listen", "127.0.0.1:0"],
    );
    assert!(!refused.0.success() && refused.1.iter().any(|line| line.contains(&taken)), "{refused:?}");
    let default = "127.0.0.1:9883";
    let holder = std::net::TcpListener::bind(default);
    let environment = [("TENBIN_ADMIN__ADDRESS", default.into())];
    let broker = BrokerProcess::start_in(&environment, &["--listen", "127.0.0.1:0"]);
    broker.log().wait_for(&["no admin HTTP: its default address is taken"], PATIENCE);
    drop(holder);
}

#[test]
fn unix_socket_serves_and_is_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("admin.sock");
    let address = format!("unix:{}", path.display());
    let environment = [("TENBIN_ADMIN__ADDRESS", address.clone().into())];
    let mut broker = BrokerProcess::start_in(&environment, &["--listen", "127.0.0.1:0"]);
    assert!(broker.wait_for_start_line("admin HTTP at ").ends_with(&address));
    let mode = std::fs::metadata(&path).expect("the socket's file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("the broker listens there");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok\n"), "{answer}");
    broker.signal("TERM");
    broker.wait_for_exit(PATIENCE);
    assert!(!path.exists(), "the socket's file goes");
}

#[test]
fn broken_certificate_is_told_while_the_old_one_serves() {
    let certificates = Certificates::new();
    let listener = format!(
        "[[listeners]]\nname = \"secure\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n\
         [listeners.tls]\ncertificate = \"{}\"\nkey = \"{}\"\nwatch_seconds = 1\n",
        certificates.path("broker.pem"),
        certificates.path("broker.key"),
    );
    let file = ConfigFile::new(&listener);
    let stage = Stage::start(&["--config", file.path()]);
    let verbose = || stage.get("/readyz?verbose");
    let warning = || verbose().body.lines().find(|line| line.starts_with("[!] tls: ")).map(str::to_owned);
    assert_eq!(warning(), None);
    certificates.write("broker.pem", "nothing");
    // The watch finds it, and so does a reload.
    wait_until(|| warning().is_some());
    let told = warning().expect("a warning");
    // No paths: anybody may ask.
    assert_eq!(told, "[!] tls: listener secure: newer TLS files cannot be used; see the log");
    assert_eq!((verbose().status, &stage.get("/readyz").body[..]), (200, "ok\n"));
    assert_eq!(stage.ask("POST", "/api/v1/config/reload").status, 400);
    assert!(warning().is_some());
    stage.broker.log().wait_for(&["reload by an operator failed"], PATIENCE);
    certificates.renew();
    assert_eq!(stage.ask("POST", "/api/v1/config/reload").status, 200);
    assert_eq!(warning(), None);
}

#[test]
fn denied_actions_are_counted_logged_and_told() {
    let rules = "[[acl]]\nallow = \"all\"\ntopic = \"a\"\n";
    let file = ConfigFile::new(rules);
    let stage = Stage::start(&["--config", file.path()]);
    let warning =
        || stage.get("/readyz?verbose").body.lines().find(|line| line.contains(" denied: ")).map(str::to_owned);
    assert_eq!(warning(), None);
    // Neither client is told: QoS 0, and MQTT 3.1.1.
    for (number, version) in [ProtocolVersion::V311, ProtocolVersion::V5].into_iter().enumerate() {
        let name = format!("client-{number}");
        let mut client = stage.broker.client(version, &name);
        client.publish_with(message("secret/x", "x"));
        client.publish("secret/y", "x", QoS::AtLeastOnce);
        client.subscribe_to(None, vec![subscription("secret/#", QoS::AtLeastOnce)]);
        for words in [["publish denied", "secret/x"], ["publish denied", "secret/y"], ["subscribe denied", "secret/#"]]
        {
            let log = stage.broker.log();
            log.wait_for(&["INFO", words[0], "peer=127.0.0.1:", &name, words[1], "listener=127.0.0.1:0"], PATIENCE);
        }
    }
    let metrics = stage.get("/metrics").body;
    for (action, count) in [("publish", 4), ("subscribe", 2)] {
        let line = format!("tenbin_denied_total{{action=\"{action}\",listener=\"127.0.0.1:0\"}} {count}\n");
        assert!(metrics.contains(&line), "{line} is missing in {metrics}");
    }
    let told = warning().expect("a warning");
    assert!(told.starts_with("[!] denied: 6 actions of clients"), "{told}");
    assert_eq!(stage.get("/readyz").status, 200);
}

#[test]
fn failed_reload_is_told_until_the_next_one() {
    let file = ConfigFile::new("policy = \"random\"\n");
    let stage = Stage::start(&["--config", file.path()]);
    let is_told = || stage.get("/readyz?verbose").body.contains("[!] reload: the last one failed");
    for broken in ["", "policy = \"none\"\n", "[[listeners]]\naddress = \"127.0.0.1:0\"\n"] {
        std::fs::write(file.path(), broken).expect("ours to write");
        stage.broker.signal("HUP");
        wait_until(is_told);
        assert_eq!(stage.get("/readyz").status, 200);
        std::fs::write(file.path(), "policy = \"sticky\"\n").expect("ours to write");
        assert_eq!(stage.ask("POST", "/api/v1/config/reload").status, 200);
        assert!(!is_told());
    }
    std::fs::write(file.path(), "").expect("ours to write");
    assert_eq!(stage.ask("POST", "/api/v1/config/reload").status, 400);
    assert!(is_told());
}

#[test]
fn ended_revocation_list_is_told() {
    let certificates = Certificates::new();
    let listener = |more: &str| {
        format!(
            "[[listeners]]\nname = \"secure\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n\
             [listeners.tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n\
             client_certificates = \"optional\"\nwatch_seconds = 1\n{more}",
            certificates.path("broker.pem"),
            certificates.path("broker.key"),
            certificates.path("root.pem"),
        )
    };
    certificates.revoke_until(&[], (2025, 2, 1));
    let file = ConfigFile::new(&listener(&format!("crl = \"{}\"\n", certificates.path("crl.pem"))));
    let stage = Stage::start(&["--config", file.path()]);
    let warning =
        || stage.get("/readyz?verbose").body.lines().find(|line| line.starts_with("[!] tls: ")).map(str::to_owned);
    let told = warning().expect("a warning");
    assert!(told.contains("listener secure") && told.ends_with("ended on 2025-02-01"), "{told}");
    let words = ["WARN", "a revocation list has ended", "crl.pem", "2025-02-01"];
    stage.broker.log().wait_for(&words, PATIENCE);
    // A new list is noticed by itself.
    certificates.revoke(&[]);
    wait_until(|| warning().is_none());
    certificates.revoke_until(&[], (2025, 3, 1));
    wait_until(|| warning().is_some_and(|told| told.ends_with("2025-03-01")));
}

#[test]
fn oversized_heads_are_refused() {
    let stage = Stage::start(&[]);
    let head = |fields: String| format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n{fields}\r\n", stage.admin);
    let many = (0..65).map(|number| format!("x-{number}: y\r\n")).collect::<String>();
    let long = format!("x: {}\r\n", "y".repeat(20_000));
    for fields in [many, long] {
        let answer = exchange(stage.admin, head(fields).as_bytes());
        assert!(answer.is_none_or(|answer| answer.status == 431), "too much");
    }
    assert_eq!(stage.get("/healthz").status, 200);
}
