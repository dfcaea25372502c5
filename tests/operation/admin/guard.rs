//! Tokens, roles, and requests that other sites cause.

use std::io::{BufReader, ErrorKind, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tenbin_codec::QoS;

use crate::admin::stage::{Stage, json as json_of, wait_until};
use crate::support::{BrokerProcess, ClientStream, DataDirectory, PATIENCE, read_answer, share};

/// Makes a token in `file`, as operators do.
fn make_token(file: &std::path::Path, role: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    let made = command.args(["admin", "token", "--role", role]).arg(file).output().expect("it runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("text").trim().to_owned()
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn changes_need_an_operators_token_and_reading_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    let (viewer, operator) = (make_token(&file, "viewer"), make_token(&file, "operator"));
    let stage = Stage::start_in(&[("TENBIN_ADMIN__TOKENS", file.clone())], &[]);
    let ban = json!({ "client": "worm" }).to_string();
    let ask = |token: Option<&str>| {
        let token = token.map(bearer);
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(token.as_ref().map(|token| ("authorization", &token[..])));
        stage.send_bare("POST", "/api/v1/bans", &headers, &ban).status
    };
    assert_eq!(
        (ask(None), ask(Some("tenbin-guessed")), ask(Some(&viewer)), ask(Some(&operator))),
        (401, 401, 403, 201)
    );
    assert_eq!(stage.send_bare("GET", "/api/v1/bans", &[], "").status, 200);
    let wrong = stage.send_bare("GET", "/api/v1/bans", &[("authorization", "Bearer x")], "");
    assert_eq!((wrong.status, wrong.header("www-authenticate")), (401, Some("Bearer")));
    // A token that is taken out of the file ends at once.
    let kept = std::fs::read_to_string(&file).expect("the file");
    std::fs::write(&file, kept.lines().take(1).collect::<String>() + "\n# no operator\n").expect("written");
    wait_until(|| ask(Some(&operator)) == 401);
    assert_eq!(ask(Some(&viewer)), 403);
    // Tokens stop working too when their file is deleted.
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(ask(Some(&viewer)), 401);
    let _ = make_token(&file, "viewer");
    assert_eq!(ask(Some(&make_token(&file, "operator"))), 201);
}

#[test]
fn many_wrong_tokens_are_refused_over_one_connection() {
    let stage = Stage::start(&[]);
    let mut stream = TcpStream::connect(stage.admin).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
    let mut answers = BufReader::new(stream.try_clone().expect("the same socket"));
    for number in 0..10_000 {
        let request = format!(
            "POST /api/v1/drain HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer tenbin-{number:048x}\r\ncontent-length: 0\r\n\r\n",
            stage.admin
        );
        stream.write_all(request.as_bytes()).expect("sent");
        assert_eq!(read_answer(&mut answers).expect("an answer").status, 401, "{number}");
    }
    assert_eq!(stage.get("/readyz").status, 200);
}

#[test]
fn rebound_hosts_and_other_sites_are_refused() {
    let stage = Stage::start_in(&[("TENBIN_ADMIN__HOSTS", "broker.example.org".into())], &[]);
    let status = |method: &str, headers: &[(&str, &str)]| stage.send(method, "/api/v1/status", headers, "").status;
    let port = stage.admin.port();
    for (host, expected) in [
        ("evil.example.org", 403),
        (&format!("evil.example.org:{port}"), 403),
        ("", 403),
        (&format!("localhost:{port}"), 200),
        ("[::1]", 200),
        ("Broker.Example.org:9883", 200),
    ] {
        assert_eq!(status("GET", &[("host", host)]), expected, "{host:?}");
    }
    let own = format!("http://{}", stage.admin);
    for (origin, expected) in
        [("http://evil.example.org", 403), ("null", 403), ("http://127.0.0.1:1", 403), (&own, 200)]
    {
        assert_eq!(status("GET", &[("origin", origin)]), expected, "{origin}");
    }
    assert_eq!(status("GET", &[("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(status("GET", &[("sec-fetch-site", "same-origin")]), 200);
    let headers = [("origin", "http://evil.example.org"), ("content-type", "application/json")];
    assert_eq!(stage.send("POST", "/api/v1/drain", &headers, "{}").status, 403);
    // A host name means a proxy, and others may reach the proxy.
    assert_eq!(stage.send_bare("GET", "/api/v1/status", &[], "").status, 401);
    let bare = crate::support::exchange(stage.admin, b"GET /healthz HTTP/1.0\r\n\r\n").expect("an answer");
    assert_eq!(bare.status, 400);
}

#[test]
fn other_addresses_need_tokens_to_start_and_to_read() {
    let address = ("TENBIN_ADMIN__ADDRESS", PathBuf::from("0.0.0.0:0"));
    let listen = ["--listen", "127.0.0.1:0"];
    let refused = BrokerProcess::fail_to_start_in(std::slice::from_ref(&address), &listen);
    assert!(refused.1.iter().any(|line| line.contains("tenbin admin token")), "{refused:?}");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    std::fs::write(&file, "admin 12\n").expect("written");
    let environment = [address.clone(), ("TENBIN_ADMIN__TOKENS", file.clone())];
    let refused = BrokerProcess::fail_to_start_in(&environment, &listen);
    assert!(refused.1.iter().any(|line| line.contains("line 1") && line.contains("no role")), "{refused:?}");
    std::fs::remove_file(&file).expect("removed");
    let viewer = make_token(&file, "viewer");
    let stage = Stage::start_at("0.0.0.0:0", &[("TENBIN_ADMIN__TOKENS", file)], &[]);
    let read = |headers: &[(&str, &str)], path: &str| stage.send_bare("GET", path, headers, "").status;
    assert_eq!((read(&[], "/healthz"), read(&[], "/readyz"), read(&[], "/metrics")), (200, 200, 401));
    assert_eq!(read(&[("authorization", &bearer(&viewer))], "/metrics"), 200);
}

#[test]
fn local_operators_token_is_private_and_ends_with_the_broker() {
    let data = DataDirectory::new();
    let path = data.path().join("admin.token");
    let first = {
        let mut stage = Stage::start(&["--data", data.path_text()]);
        let mode = std::fs::metadata(&path).expect("the token's file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let token = std::fs::read_to_string(&path).expect("a token");
        stage.broker.signal("TERM");
        stage.broker.wait_for_exit(PATIENCE);
        token
    };
    assert!(!path.exists());
    let stage = Stage::start(&["--data", data.path_text()]);
    let token = bearer(first.trim());
    let answer = stage.send_bare("POST", "/api/v1/config/reload", &[("authorization", &token)], "");
    assert_eq!(json_of(&answer)["status"], 401, "it was another run's");
}

#[test]
fn slow_head_is_cut_off_and_others_are_served() {
    let stage = Stage::start(&[]);
    let mut slow: Vec<_> = (0..100).map(|_| TcpStream::connect(stage.admin).expect("it listens")).collect();
    for stream in &mut slow {
        // Connections beyond all places end.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost:");
    }
    for path in ["/healthz", "/readyz", "/api/v1/status", "/metrics"] {
        assert_eq!(stage.get(path).status, 200, "{path}");
    }
    let last = slow.pop().expect("a stream");
    last.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
    // Ten seconds later.
    let ended = read_answer(&mut BufReader::new(last));
    assert!(ended.is_none_or(|answer| answer.status == 408), "its time is over");
}

/// Silent connections from 1, 4, 16 and 256 addresses take no place from a connection with a token, nor from newer ones.
#[test]
fn strangers_take_no_places_from_operators() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    let viewer = make_token(&file, "viewer");
    let stage = Stage::start_at("0.0.0.0:0", &[("TENBIN_ADMIN__TOKENS", file)], &[]);
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {viewer}\r\n\r\n", stage.admin);
    let at = SocketAddr::from(([127, 0, 0, 1], stage.admin.port()));
    let mut scraper = TcpStream::connect(at).expect("it listens");
    scraper.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
    let mut answers = BufReader::new(scraper.try_clone().expect("the same socket"));
    for addresses in [1, 4, 16, 256] {
        let strangers = (0..300).map(|number| {
            let mut stream = ClientStream::tcp_from([127, 0, 1, (number % addresses) as u8].into(), at);
            // It may have made room already.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            stream
        });
        let _strangers = strangers.collect::<Vec<_>>();
        scraper.write_all(request.as_bytes()).expect("it is open");
        assert_eq!(read_answer(&mut answers).expect("an answer").status, 200, "{addresses}: the same connection");
        let headers = [("authorization", &bearer(&viewer)[..])];
        assert_eq!(stage.send_bare("GET", "/metrics", &headers, "").status, 200, "{addresses}: a new one");
        assert_eq!(stage.send_bare("GET", "/readyz", &[], "").status, 200, "{addresses}: a probe");
    }
    stage.broker.log().wait_for(&["evicted a connection without a token", "peer="], PATIENCE);
}

/// The client closes its side behind the request.
#[test]
fn half_closed_requests_are_answered() {
    let stage = Stage::start(&[]);
    let mut stream = TcpStream::connect(stage.admin).expect("it listens");
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {}\r\n\r\n", stage.admin);
    stream.write_all(request.as_bytes()).expect("sent");
    stream.shutdown(Shutdown::Write).expect("open");
    assert_eq!(read_answer(&mut BufReader::new(stream)).expect("an answer").status, 200);
}

#[test]
fn encoded_bodies_are_refused() {
    let stage = Stage::start(&[]);
    for (name, value, status) in [("content-encoding", "gzip", 415), ("content-encoding", "identity", 200)] {
        assert_eq!(stage.send("POST", "/api/v1/config/check", &[(name, value)], "").status, status, "{name}: {value}");
    }
}

#[test]
fn peers_that_do_not_read_are_cut_off() {
    let stage = Stage::start(&[]);
    let mut member = stage.broker.v5("member");
    for number in 0..32 {
        member.subscribe(&share(&format!("a group with a long name {number}"), "jobs"), QoS::AtLeastOnce);
    }
    let connect = || {
        let stream = TcpStream::connect(stage.admin).expect("it listens");
        stream.set_write_timeout(Some(PATIENCE)).expect("a legal timeout");
        stream
    };
    let mut watchers: Vec<_> = (0..8).map(|_| connect()).collect();
    for watcher in &mut watchers {
        let request = format!("GET /api/v1/events HTTP/1.1\r\nhost: {}\r\n\r\n", stage.admin);
        watcher.write_all(request.as_bytes()).expect("sent");
    }
    let mut askers: Vec<_> = (0..8).map(|_| connect()).collect();
    for asker in &mut askers {
        let request = format!("GET /api/v1/openapi.json HTTP/1.1\r\nhost: {}\r\n\r\n", stage.admin);
        // The server reads no more once an answer waits.
        let many = request.repeat(200);
        asker.set_write_timeout(Some(Duration::from_millis(200))).expect("a legal timeout");
        let _ = asker.write_all(many.as_bytes());
    }
    assert_eq!(stage.get("/healthz").status, 200);
    // They end after ten seconds in which an answer, or an event, has not gone out.
    wait_until(|| askers.iter().all(is_reset));
    wait_until(|| watchers.iter().all(is_reset));
    assert_eq!(stage.get("/api/v1/status").status, 200);
}

/// Whether the server has closed a connection, of which nothing is read.
fn is_reset(stream: &TcpStream) -> bool {
    let mut stream = stream;
    let is_end = |error: &std::io::Error| matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
    stream.write_all(b"\r\n").is_err_and(|error| is_end(&error))
}

#[test]
fn body_above_a_mebibyte_is_refused() {
    let stage = Stage::start(&[]);
    let large = "#".repeat((1 << 20) + 1);
    assert_eq!(stage.send("POST", "/api/v1/config/check", &[], &large).status, 413);
    assert_eq!(stage.send("POST", "/api/v1/config/check", &[], &large[1..]).status, 200);
}

#[test]
fn check_of_a_configuration_reads_regular_files_alone() {
    let stage = Stage::start(&[]);
    let directory = tempfile::tempdir().expect("ours to write");
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo is there").success());
    let before = stage.broker.resident_bytes();
    for file in ["/dev/zero", fifo.to_str().expect("text"), directory.path().to_str().expect("text")] {
        let listener = "[[listeners]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n";
        let tls = |keys: &str| format!("{listener}anonymous = true\n[listeners.tls]\n{keys}");
        let auth = |kind: &str, key: &str| {
            format!("{listener}auth = [\"a\"]\n[[auth]]\nname = \"a\"\nkind = {kind:?}\n{key} = {file:?}\n")
        };
        for text in [
            format!("{listener}password_file = {file:?}\n"),
            tls(&format!("certificate = {file:?}\nkey = {file:?}\n")),
            auth("passwords", "file"),
            auth("scram", "file"),
            auth("jwt", "secret_file"),
            auth("jwt", "public_key"),
            auth("jwt", "jwks"),
            format!("{}\nurl = \"https://localhost/\"\n", auth("http", "ca")),
            format!("[[webhook]]\nurl = \"http://localhost/\"\nevents = [\"connected\"]\nsecret_file = {file:?}\n"),
            format!("[admin]\naddress = \"127.0.0.1:1\"\ntokens = {file:?}\n"),
            format!(
                "{listener}anonymous = true\ntransport = \"mqtt-sn\"\n\
                 [listeners.sn.dtls]\npsk_file = {file:?}\n"
            ),
        ] {
            let begun = Instant::now();
            let answer = stage.send("POST", "/api/v1/config/check", &[], &text);
            let errors = &json_of(&answer)["errors"];
            let words = errors[0].as_str().unwrap_or_default();
            assert!(words.contains("no regular file") && words.contains(file), "{text}: {errors}");
            assert!(begun.elapsed() < Duration::from_secs(20), "it waits for {file}");
        }
    }
    let grown = stage.broker.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    // Keys that the program checks, and addresses.
    let sn = "[[listeners]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"mqtt-sn\"\n";
    for (text, wanted) in [
        (format!("{sn}[listeners.sn]\nretry = 3\n"), "unknown field `retry`"),
        (format!("{sn}[listeners.sn]\nthreads = 0\n"), "threads"),
        (format!("{sn}[listeners.sn]\ntopics.1 = \"a/#\"\n"), "no topic name"),
        ("listen = [\"127.0.0.1:7\", \"0.0.0.0:7\"]\n".to_owned(), "overlaps"),
    ] {
        let errors = json_of(&stage.send("POST", "/api/v1/config/check", &[], &text))["errors"].to_string();
        assert!(errors.contains(wanted), "{text}: {errors}");
    }
}
