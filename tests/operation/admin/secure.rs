//! Admin HTTP over TLS, and the viewer's token of a file.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tenbin_codec::QoS;

use crate::admin::stage::{Stage, wait_until};
use crate::support::{BrokerProcess, Certificates, ConfigFile, DataDirectory, PATIENCE, share};

/// A broker whose admin HTTP has TLS.
struct Secure {
    certificates: Certificates,
    /// Read again by a reload.
    _file: ConfigFile,
    data: DataDirectory,
    broker: BrokerProcess,
    url: String,
}

/// `[admin.tls]` with further keys.
fn table(certificates: &Certificates, more: &str) -> String {
    let (certificate, key) = (certificates.path("broker.pem"), certificates.path("broker.key"));
    let watch = if more.contains("watch_seconds") { "" } else { "watch_seconds = 0\n" };
    format!("[admin.tls]\ncertificate = {certificate:?}\nkey = {key:?}\n{watch}{more}\n")
}

impl Secure {
    fn start(more: impl FnOnce(&Certificates) -> String) -> Self {
        let certificates = Certificates::new();
        let file = ConfigFile::new(&table(&certificates, &more(&certificates)));
        let data = DataDirectory::new();
        let environment = [("TENBIN_ADMIN__ADDRESS", PathBuf::from("127.0.0.1:0"))];
        let arguments = ["--listen", "127.0.0.1:0", "--config", file.path(), "--data", data.path_text()];
        let broker = BrokerProcess::start_in(&environment, &arguments);
        let line = broker.wait_for_start_line("admin HTTP at https://");
        let url = line.rsplit(' ').next().expect("a URL").to_owned();
        Self { certificates, _file: file, data, broker, url }
    }

    /// Runs `tenbin` with these arguments, without settings in its environment; returns whether it succeeds, and its output.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        command.args(arguments).current_dir(self.data.path());
        for name in ["TENBIN_URL", "TENBIN_TOKEN", "TENBIN_DATA"] {
            command.env_remove(name);
        }
        let done = command.output().expect("it runs");
        (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).expect("text"))
    }

    /// Runs `tenbin admin` with the broker's data directory.
    fn admin(&self, arguments: &[&str]) -> (bool, String) {
        self.run(&[&["admin", "--data", self.data.path_text()], arguments].concat())
    }
}

#[test]
fn commands_find_secure_admin_http_by_the_data_directory() {
    let secure = Secure::start(|_| String::new());
    let (is_fine, text) = secure.admin(&["health"]);
    assert!(is_fine && text == "ok\n", "{text}");
    let (is_fine, text) = secure.admin(&["publish", "a", "b"]);
    assert!(is_fine, "a change: {text}");
    let mut worker = secure.broker.v5("worker");
    worker.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    let (is_fine, text) = secure.run(&["explain", "--group", "pool", "--data", secure.data.path_text()]);
    assert!(is_fine && text.contains("worker"), "{text}");

    let (url, ca) = (&secure.url[..], secure.certificates.path("root.pem"));
    let (is_fine, text) = secure.admin(&["--url", url, "--ca", &ca, "status"]);
    assert!(is_fine && text.contains("serving"), "{text}");
    let (is_fine, text) = secure.admin(&["--url", url, "status"]);
    assert!(!is_fine && text.contains(url), "an unknown authority: {text}");
    let (is_fine, text) = secure.admin(&["--url", url, "--ca", "/nowhere/ca.pem", "status"]);
    assert!(!is_fine && text.contains("--ca: /nowhere/ca.pem"), "{text}");
    let (is_fine, text) = secure.admin(&["--url", &url.replace("https", "http"), "status"]);
    assert!(!is_fine && text.contains("https://"), "{text}");
    secure.broker.log().wait_for(&["admin: TLS handshake failed", "peer=127.0.0.1:"], PATIENCE);
}

#[test]
fn handshakes_and_reloads_of_admin_http_are_counted() {
    let secure = Secure::start(|_| "watch_seconds = 1".to_owned());
    let ca = secure.certificates.path("root.pem");
    let counters = || {
        let (is_fine, text) = secure.admin(&["--url", &secure.url, "--ca", &ca, "--format", "json", "status"]);
        assert!(is_fine, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["counters"].clone()
    };
    let before = counters()["tls_handshakes"].as_u64().expect("a number");
    assert!(before > 0);
    let (is_fine, _) = secure.admin(&["--url", &secure.url, "status"]);
    assert!(!is_fine, "an unknown authority");
    wait_until(|| counters()["tls_handshakes_failed"] == 1);
    assert!(counters()["tls_handshakes"].as_u64() > Some(before));
    secure.certificates.renew();
    wait_until(|| counters()["tls_reloads"] == 1);
    secure.certificates.write("broker.pem", "no certificate\n");
    wait_until(|| counters()["tls_reloads_failed"] == 1);
}

#[test]
fn reload_reads_new_certificates_of_admin_http() {
    let secure = Secure::start(|_| String::new());
    secure.certificates.renew();
    let (is_fine, text) = secure.admin(&["health"]);
    assert!(!is_fine && text.contains("another certificate"), "the old one serves: {text}");
    secure.broker.signal("HUP");
    secure.broker.log().wait_for(&["reloaded"], PATIENCE);
    let (is_fine, text) = secure.admin(&["health"]);
    assert!(is_fine, "{text}");

    // Wrong files change nothing.
    secure.certificates.write("broker.pem", "no certificate\n");
    secure.broker.signal("HUP");
    let line = secure.broker.log().wait_for(&["reload failed"], PATIENCE);
    assert!(line.contains("admin: tls.certificate: ") && line.contains("broker.pem"), "{line}");
    let ca = secure.certificates.path("root.pem");
    let (is_fine, text) = secure.admin(&["--url", &secure.url, "--ca", &ca, "health"]);
    assert!(is_fine, "{text}");
}

#[test]
fn admin_http_asks_for_client_certificates() {
    let secure = Secure::start(|certificates| {
        format!("client_ca = {:?}\nclient_certificates = \"required\"", certificates.path("root.pem"))
    });
    let (is_fine, text) = secure.admin(&["health"]);
    assert!(!is_fine, "{text}");
    secure.certificates.issue("operator", &["operator.example.org"]);
    let [certificate, key] = ["operator.pem", "operator.key"].map(|name| secure.certificates.path(name));
    let (is_fine, text) = secure.admin(&["--certificate", &certificate, "--key", &key, "health"]);
    assert!(is_fine, "{text}");
    let (is_fine, text) = secure.admin(&["--certificate", &certificate, "--key", &certificate, "health"]);
    assert!(!is_fine && text.contains(&format!("--key: {certificate}")), "{text}");
}

#[test]
fn start_and_check_name_wrong_files_of_admin_http() {
    let certificates = Certificates::new();
    let plain = table(&certificates, "");
    for (text, words) in [
        (plain.replace("broker.key", "missing.key"), "admin: tls.key: "),
        (plain.replace("broker.pem", "broker.key"), "admin: tls.certificate: "),
        (
            table(&certificates, "client_ca = \"/nowhere/ca.pem\"\nclient_certificates = \"required\""),
            "/nowhere/ca.pem",
        ),
        (format!("[admin]\naddress = \"unix:/tmp/tenbin-admin-test\"\n{plain}"), "a unix socket has no TLS"),
    ] {
        let file = ConfigFile::new(&text);
        let address = if text.contains("unix:") { "unix:/tmp/tenbin-admin-test" } else { "127.0.0.1:0" };
        let environment = [("TENBIN_ADMIN__ADDRESS", PathBuf::from(address))];
        // It runs `--check`, too.
        let arguments = ["--listen", "127.0.0.1:0", "--config", file.path()];
        let (_, said) = BrokerProcess::fail_to_start_in(&environment, &arguments);
        assert!(said.iter().any(|line| line.contains(words)), "{words}: {said:?}");
    }
}

#[test]
fn address_in_the_data_directory_ends_with_the_broker() {
    let mut secure = Secure::start(|_| String::new());
    let path = secure.data.path().join("admin.url");
    let told = std::fs::read_to_string(&path).expect("the address");
    assert_eq!(told, format!("{}\n{}\n", secure.url, secure.certificates.path("broker.pem")));
    secure.broker.signal("TERM");
    secure.broker.wait_for_exit(PATIENCE);
    assert!(!path.exists());
}

#[test]
fn explain_speaks_mqtt_over_tls() {
    let certificates = Certificates::new();
    let file = ConfigFile::new(&certificates.listener(""));
    let stage = Stage::start(&["--config", file.path()]);
    let secure = stage.broker.last_address();
    let member = "a-member-whose-name-is-rather-long-7d9f6c5b8d-abcde";
    let mut worker = stage.broker.v5(member);
    worker.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    let run = |arguments: &[&str]| {
        let mut command = stage.command(&["explain", "--group", "pool"]);
        let done = command.args(arguments).output().expect("it runs");
        (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).expect("text"))
    };
    let (broker, ca) = (format!("localhost:{}", secure.port()), certificates.path("root.pem"));
    let (is_fine, text) = run(&["--broker", &broker, "--tls", "--ca", &ca, "--format", "json"]);
    assert!(is_fine && text.contains(member), "{text}");
    let (is_fine, text) = run(&["--broker", &broker, "--tls", "--ca", "/nowhere/ca.pem"]);
    assert!(!is_fine && text.contains("--ca: /nowhere/ca.pem"), "{text}");
    let plain = format!("localhost:{}", stage.broker.address().port());
    let (is_fine, text) = run(&["--broker", &plain]);
    assert!(is_fine, "{text}");
}

#[test]
fn token_of_a_file_reads_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("viewer");
    std::fs::write(&file, "short\n").expect("written");
    let environment =
        [("TENBIN_ADMIN__ADDRESS", PathBuf::from("0.0.0.0:0")), ("TENBIN_ADMIN__VIEWER_TOKEN_FILE", file.clone())];
    let (_, said) = BrokerProcess::fail_to_start_in(&environment, &["--listen", "127.0.0.1:0"]);
    assert!(said.iter().any(|line| line.contains(file.to_str().expect("text")) && line.contains("16")), "{said:?}");

    std::fs::write(&file, "first-token-of-a-scrape\n").expect("written");
    let stage = Stage::start_at("0.0.0.0:0", &environment[1..], &[]);
    let ask = |method: &str, path: &str, token: &str| {
        let answer = stage.send_bare(method, path, &[("authorization", &format!("Bearer {token}"))], "");
        (answer.status, answer.body)
    };
    for path in ["/metrics", "/api/v1/status", "/api/v1/clients", "/api/v1/findings", "/readyz"] {
        assert_eq!(ask("GET", path, "first-token-of-a-scrape").0, 200, "{path}");
        assert_eq!(ask("GET", path, "other-token-of-a-scrape").0, 401, "{path}");
    }
    for (method, path) in
        [("POST", "/api/v1/config/reload"), ("DELETE", "/api/v1/clients/a"), ("GET", "/api/v1/trace?client=a")]
    {
        let (status, body) = ask(method, path, "first-token-of-a-scrape");
        assert!(status == 403 && body.contains("needs a token of role operator"), "{method} {path}: {status} {body}");
    }
    // A Secret is replaced as a whole.
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(directory.path().join("new"), "other-token-of-a-scrape").expect("written");
    std::fs::rename(directory.path().join("new"), &file).expect("replaced");
    wait_until(|| ask("GET", "/metrics", "other-token-of-a-scrape").0 == 200);
    assert_eq!(ask("GET", "/metrics", "first-token-of-a-scrape").0, 401);
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(ask("GET", "/metrics", "other-token-of-a-scrape").0, 401);
}
