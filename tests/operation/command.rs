//! The command itself: its output, its refusals to start, and its shutdown.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, Silence, VERSIONS};
use tenbin_broker::Policy;
use tenbin_codec::{Connect, Packet, ProtocolVersion, ReasonCode};

#[test]
fn start_line_names_version_address_and_policy() {
    let broker = BrokerProcess::start(&[]);
    let [line] = broker.start_lines() else { panic!("one line: {:?}", broker.start_lines()) };
    for word in ["tenbin", env!("CARGO_PKG_VERSION"), &broker.address().to_string(), "adaptive"] {
        assert!(line.contains(word), "{word} is missing in {line}");
    }
    assert_ne!(broker.address().port(), 0);
    broker.assert_serves();
}

#[test]
fn policy_argument_overrides_policy_of_the_file() {
    let starts_with = |arguments: &[&str], policy: Policy| {
        let broker = BrokerProcess::start(arguments);
        let expected = format!("policy {policy})");
        assert!(broker.start_lines()[0].contains(&expected), "{arguments:?}: {:?}", broker.start_lines());
    };
    for policy in Policy::ALL {
        let file = ConfigFile::new(&format!("policy = \"{policy}\""));
        starts_with(&["--policy", policy.name()], policy);
        starts_with(&["--config", file.path()], policy);
        starts_with(&["--config", file.path(), "--policy", "random"], Policy::Random);
    }
}

#[test]
fn listens_on_all_addresses_given() {
    let broker = BrokerProcess::start(&["--listen", "127.0.0.1:0"]);
    let [first, second] = broker.addresses() else { panic!("two addresses: {:?}", broker.addresses()) };
    assert_ne!(first, second);
    for (address, client_id) in [(first, "a"), (second, "b")] {
        let connect = Connect::new(ProtocolVersion::V5, crate::support::text(client_id));
        RawClient::connect(*address, connect).0.settle();
    }
}

#[test]
fn listener_without_authentication_is_warned_of_beyond_loopback() {
    const WARNING: &str = "other machines may connect without authentication";
    let broker = BrokerProcess::start_exactly(&["--listen", "127.0.0.1:0", "--listen", "0.0.0.0:0"]);
    broker.log().wait_for(&["WARN", WARNING, "address=0.0.0.0:"], PATIENCE);
    assert_eq!(broker.log().all().iter().filter(|line| line.contains(WARNING)).count(), 1);
}

#[test]
fn listens_where_the_file_says() {
    let file = ConfigFile::new("listen = [\"127.0.0.1:0\"]");
    BrokerProcess::start_exactly(&["--config", file.path()]).assert_serves();
}

#[test]
fn help_lists_the_subcommands() {
    let output = tenbin(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for subcommand in ["broker ", "passwd ", "loadgen ", "simulate "] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(subcommand)), "{subcommand} is missing:\n{help}");
    }

    let output = tenbin(&["broker", "--help"]);
    assert!(output.status.success());
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for option in ["--config", "--listen", "--policy", "--log"].into_iter().chain(Policy::ALL.map(Policy::name)) {
        assert!(help.contains(option), "{option} is missing:\n{help}");
    }
}

#[test]
fn help_of_every_command_fits_100_columns() {
    for command in
        ["", "broker", "gateway", "passwd", "store", "sessions", "loadgen", "explain", "simulate", "completions", "man"]
    {
        let output = tenbin(&command.split_whitespace().chain(["--help"]).collect::<Vec<_>>());
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        let longest = help.lines().map(|line| line.chars().count()).max();
        assert!(output.status.success() && longest.is_some_and(|longest| longest <= 100), "{command}:\n{help}");
    }
}

#[test]
fn completions_and_manual_cover_the_subcommands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = tenbin(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && script.contains("ephemeral"), "{shell}:\n{script}");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pages = directory.path().join("man1");
    assert!(tenbin(&["man", pages.to_str().expect("UTF-8")]).status.success());
    assert!(!pages.join("tenbin-loadgen.1").exists(), "the page of another program");
    for program in ["loadgen", "simulate", "verify"] {
        assert!(tenbin(&[program, "man", pages.to_str().expect("UTF-8")]).status.success());
        let script = tenbin(&[program, "completions", "bash"]).stdout;
        assert!(String::from_utf8_lossy(&script).contains(&format!("tenbin-{program}")), "{program}");
    }
    let pages_of_each = [
        "tenbin.1",
        "tenbin-broker.1",
        "tenbin-store-prune.1",
        "tenbin-loadgen.1",
        "tenbin-loadgen-run.1",
        "tenbin-simulate.1",
        "tenbin-verify.1",
        "tenbin-verify-run.1",
    ];
    for page in pages_of_each {
        let text = std::fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains(".SH SYNOPSIS"), "{page}:\n{text}");
    }
}

#[test]
fn missing_program_is_named_with_the_command_that_builds_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let alone = directory.path().join("tenbin");
    std::fs::copy(env!("CARGO_BIN_EXE_tenbin"), &alone).expect("a copy");
    let output = Command::new(&alone).args(["loadgen", "run", "--help"]).env("PATH", "").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{said}");
    for word in ["tenbin-loadgen", "cargo build --release -p tenbin-loadgen"] {
        assert!(said.contains(word), "{word} is missing in {said}");
    }
    // A program in PATH is as good as one beside the file.
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_tenbin")).parent().expect("a directory");
    let output = Command::new(&alone).args(["loadgen", "run", "--help"]).env("PATH", beside).output().expect("it runs");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("tenbin-loadgen run"));
}

#[test]
fn simulate_compares_policies_and_reports_bad_scenario_keys() {
    let file = ConfigFile::new("messages = 30\narrivals = { fixed = \"10ms\" }\n[[workers]]\nservice = \"5ms\"\n");
    let output = tenbin(&["simulate", file.path(), "--policy", "round_robin,central_queue", "--format", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cases: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let waiting = [0, 1].map(|index| cases[0]["policies"][index]["waiting_ms"]["mean"].as_f64());
    assert_eq!(waiting, [Some(0.2), Some(0.0)]);

    let file = ConfigFile::new("messages = 30\nmesages = 30\n");
    let output = tenbin(&["simulate", file.path()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.lines().count() == 1, "{said}");
    for word in [file.path(), "line 2", "mesages"] {
        assert!(said.contains(word), "{word} is missing in {said}");
    }
}

#[test]
fn version_is_the_packages() {
    let output = tenbin(&["--version"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), concat!("tenbin ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_printed_configuration_is_a_legal_file() {
    let output = tenbin(&["broker", "--print-config"]);
    assert!(output.status.success());
    let file = ConfigFile::new(&String::from_utf8(output.stdout).expect("TOML is text"));
    BrokerProcess::start(&["--config", file.path()]).assert_serves();
}

#[test]
fn port_in_use_is_reported_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let said = refusal(&["--listen", &address]);
    assert!(said.contains(&address), "{said}");
    assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");
}

#[test]
fn port_in_use_leaves_no_data_directory_behind() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    refusal(&["--listen", &address, "--data", data.to_str().expect("UTF-8")]);
    assert!(!data.exists());
}

#[test]
fn a_configuration_that_cannot_be_read_is_named_in_one_line() {
    let file = ConfigFile::new("");
    let path = file.path().to_owned();
    drop(file);
    let said = refusal(&["--config", &path]);
    assert!(said.contains(&path), "{said}");
}

#[test]
fn configuration_error_names_file_line_and_key() {
    for (text, line, key) in [
        ("\npolcy = \"random\"", "line 2", "polcy"),
        ("policy = \"fastest\"", "line 1", "policy"),
        ("[sessions]\nreceive_maximum = 0", "line 2", "receive_maximum"),
        ("[sessions]\n\nreceive_maximum = \"many\"", "line 3", "receive_maximum"),
        ("[connections]\nconnect_timeout_ms = -1", "line 2", "connect_timeout_ms"),
        ("[connectons]\nmaximum = 1", "line 1", "connectons"),
        ("listen = [\"nowhere\"]", "line 1", "listen"),
        ("[queue]\nwhen_full = \"panic\"", "line 2", "when_full"),
        ("[queue\n", "line 1", "unclosed table"),
    ] {
        let file = ConfigFile::new(text);
        let said = refusal(&["--listen", "127.0.0.1:0", "--config", file.path()]);
        for word in [file.path(), line, key] {
            assert!(said.contains(word), "{text:?}: {word} is missing in {said}");
        }
    }
}

#[test]
fn start_and_check_refuse_addresses_that_overlap() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("mqtt.sock");
    let (unix, same) =
        (format!("unix:{}", socket.display()), format!("unix:{}/./mqtt.sock", directory.path().display()));
    let entry = |name: &str, address: &str, keys: &str| {
        format!("[[listeners]]\nname = {name:?}\naddress = {address:?}\nanonymous = true\n{keys}\n")
    };
    let (http, sn) = ("transport = \"http\"", "transport = \"mqtt-sn\"\nsn.threads = 2");
    for (one, other, keys) in [
        ("127.0.0.1:18831", "127.0.0.1:18831", ["", ""]),
        ("0.0.0.0:18831", "127.0.0.1:18831", ["", "transport = \"websocket\""]),
        ("[::]:18831", "0.0.0.0:18831", ["", http]),
        (":18831", "[::1]:18831", ["", http]),
        ("localhost:18831", "127.0.0.1:18831", ["", ""]),
        ("127.0.0.1:18831", "127.0.0.1:18831", [sn, sn]),
        ("127.0.0.1:18831", "[::]:18831", [sn, sn]),
        (&unix, &same, ["", ""]),
    ] {
        let file = ConfigFile::new(&[entry("a", one, keys[0]), entry("b", other, keys[1])].concat());
        let said = refusal(&["--config", file.path()]);
        let overlap = format!("listeners: b: address: {other} overlaps {one} (listeners: a: address)");
        assert!(said.contains(file.path()) && said.contains(&overlap), "{said}");
        let check = tenbin(&["broker", "--check", "--config", file.path()]);
        let checked = String::from_utf8_lossy(&check.stderr);
        assert!(!check.status.success() && checked.contains(&overlap), "{checked}");
        // The argument takes the place of `listen`.
        let file = ConfigFile::new(&format!("listen = [{one:?}]\n{}", entry("b", other, "")));
        let arguments = ["broker", "--check", "--listen", "127.0.0.1:0", "--config", file.path()];
        assert!(tenbin(&arguments).status.success());
        assert!(refusal(&["--config", file.path()]).contains("(listen)"));
    }
    let fine = [entry("a", "127.0.0.1:0", ""), entry("b", "127.0.0.1:0", http), entry("c", "127.0.0.1:0", sn)].concat();
    let file = ConfigFile::new(&[fine, entry("d", "127.0.0.1:0", sn), entry("e", "[::]:0", "")].concat());
    assert!(tenbin(&["broker", "--check", "--config", file.path()]).status.success());
    BrokerProcess::start_exactly(&["--config", file.path()]).assert_serves();
    let text = [entry("a", "127.0.0.1:18831", ""), entry("b", "127.0.0.1:18831", sn)].concat();
    let file = ConfigFile::new(&format!("{text}[admin]\naddress = \"127.0.0.1:18831\"\n"));
    let check = tenbin(&["broker", "--check", "--config", file.path()]);
    let said = String::from_utf8_lossy(&check.stderr);
    let overlap = format!("configuration {}: admin.address: 127.0.0.1:18831 overlaps", file.path());
    assert!(check.status.code() == Some(1) && said.contains(&overlap) && said.lines().count() == 1, "{said}");
}

#[test]
fn start_and_check_refuse_multicast_at_a_listeners_port() {
    // The group's socket excludes the socket of each listener at all addresses, also of the group's listener.
    let port =
        std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let group = format!("multicast = \"225.1.1.1:{port}\"");
    let entry = |name: &str, address: &str, keys: &str| {
        let of_broker = "transport = \"mqtt-sn\"\nanonymous = true";
        format!("[[listeners]]\nname = {name:?}\naddress = {address:?}\n{of_broker}\n[listeners.sn]\n{keys}\n")
    };
    let at_all = format!("0.0.0.0:{port}");
    let apart = [entry("a", &at_all, ""), entry("b", "127.0.0.1:0", &group)].concat();
    for (text, overlap) in [
        (apart, format!("listeners: b: multicast: 225.1.1.1:{port} overlaps {at_all} (listeners: a: address)")),
        (
            entry("a", &at_all, &group),
            format!("listeners: a: multicast: 225.1.1.1:{port} overlaps {at_all} (listeners: a: address)"),
        ),
    ] {
        let file = ConfigFile::new(&text);
        refusal(&["--config", file.path()]);
        let without_broker = ConfigFile::new(&text.replace("anonymous = true\n", ""));
        for (command, file) in [("broker", &file), ("gateway", &without_broker)] {
            let check = tenbin(&[command, "--check", "--config", file.path()]);
            let said = String::from_utf8_lossy(&check.stderr);
            let overlap = format!("configuration {}: {overlap}", file.path());
            assert!(check.status.code() == Some(1) && said.contains(&overlap), "{said}");
        }
        let start = tenbin(&["gateway", "--config", without_broker.path()]);
        assert!(String::from_utf8_lossy(&start.stderr).contains(&overlap), "{start:?}");
    }
    for text in [
        format!("[listener]\naddress = \"{at_all}\"\n{group}\n"),
        "[[listeners]]\naddress = \"127.0.0.1:1\"\nname = \"a\"\n[[listeners]]\naddress = \"0.0.0.0:1\"\n".to_owned(),
    ] {
        let file = ConfigFile::new(&text);
        for arguments in [&["gateway", "--config", file.path()][..], &["gateway", "--check", "--config", file.path()]] {
            let said = String::from_utf8_lossy(&tenbin(arguments).stderr).into_owned();
            assert!(said.contains(file.path()) && said.contains(" overlaps "), "{said}");
        }
    }
    let file = ConfigFile::new(&[entry("a", "127.0.0.1:0", &group), entry("b", "127.0.0.2:0", &group)].concat());
    assert!(tenbin(&["broker", "--check", "--config", file.path()]).status.success(), "groups share their address");
}

#[test]
fn gateway_refuses_aggregation_with_a_reason() {
    let removed = "aggregation was removed in 0.2.0: each client has its own connection";
    let file = ConfigFile::new("mqtt = \"5.0\"\naggregate = 0\n");
    for (arguments, place) in [
        (&["gateway", "--check", "--config", file.path()][..], "line 2: aggregate: "),
        (&["gateway", "--config", file.path()], "line 2: aggregate: "),
        (&["gateway", "--aggregate"], "--aggregate"),
        (&["gateway", "--aggregate=2"], "--aggregate"),
    ] {
        let output = tenbin(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(place) && said.contains(removed), "{said}");
    }
    assert!(!String::from_utf8_lossy(&tenbin(&["gateway", "--help"]).stdout).contains("aggregate"));
}

#[test]
fn an_unknown_policy_is_refused_with_the_known_ones() {
    let (status, said) = BrokerProcess::fail_to_start(&["--listen", "127.0.0.1:0", "--policy", "fastest"]);
    assert!(!status.success());
    let said = said.join("\n");
    for word in ["fastest"].into_iter().chain(Policy::ALL.map(Policy::name)) {
        assert!(said.contains(word), "{word} is missing in {said}");
    }
}

#[test]
fn sigterm_and_sigint_disconnect_clients_and_exit_cleanly() {
    for signal in ["TERM", "INT"] {
        let mut broker = BrokerProcess::start(&[]);
        let mut clients = VERSIONS.map(|version| broker.client(version, &version.to_string()));
        broker.signal(signal);
        for client in &mut clients {
            client.expect_end(ReasonCode::ServerShuttingDown);
        }
        assert_eq!(broker.wait_for_exit(PATIENCE).code(), Some(0), "SIG{signal}");
    }
}

#[test]
fn mqtt_3_2_2_8_connect_during_shutdown_gets_a_legal_code() {
    let broker = BrokerProcess::start(&[]);
    let mut late = broker.open(ProtocolVersion::V5);
    let mut early = broker.v5("early");
    broker.signal("TERM");
    early.expect_end(ReasonCode::ServerShuttingDown);
    let connect = Packet::Connect(Box::new(Connect::new(ProtocolVersion::V5, crate::support::text("late"))));
    late.try_send_bytes(&crate::support::encode(&connect, ProtocolVersion::V5));
    match late.try_receive(PATIENCE) {
        Ok(Packet::ConnAck(connack)) => assert!(connack.reason.is_error(), "{}", connack.reason),
        Err(Silence::Closed) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn log_without_terminal_has_no_escape_sequences() {
    let mut broker = BrokerProcess::start(&["--log", "debug"]);
    broker.v5("client").settle();
    broker.signal("TERM");
    broker.wait_for_exit(PATIENCE);
    let log = broker.log().to_end(PATIENCE);
    assert!(!log.is_empty());
    assert_eq!(log.iter().find(|line| line.contains('\u{1B}')), None, "an escape sequence");
}

#[test]
fn connection_without_connect_does_not_delay_shutdown() {
    let file = ConfigFile::new("[connections]\nconnect_timeout_ms = 600000");
    let mut broker = BrokerProcess::start(&["--config", file.path()]);
    let _silent = broker.open(ProtocolVersion::V5);
    broker.v5("talks").settle();
    broker.signal("TERM");
    assert_eq!(broker.wait_for_exit(PATIENCE).code(), Some(0), "long before the time for a CONNECT is over");
}

#[test]
fn reload_names_each_changed_key_that_needs_a_restart() {
    let file = ConfigFile::new("policy = \"random\"\n[queue]\nmessages_maximum = 5\n");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let text = "policy = \"adaptive\"\n[queue]\nmessages_maximum = 6\n[sessions]\nreceive_maximum = 7\n";
    std::fs::write(file.path(), text).expect("a file of ours");
    broker.signal("HUP");
    broker.log().wait_for(&[" reloaded "], PATIENCE);
    broker.log().wait_for(&["WARN", "key=\"queue.messages_maximum\"", "old=\"5\"", "new=\"6\""], PATIENCE);
    broker.log().wait_for(&["WARN", "key=\"sessions.receive_maximum\"", "old=\"1024\"", "new=\"7\""], PATIENCE);
    let warnings = broker.log().all().iter().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 2, "the policy is taken");
}

#[test]
fn config_from_a_pipe_is_read_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there").success());
    let path = pipe.to_str().expect("text");
    let write = |to: std::path::PathBuf| {
        std::thread::spawn(move || std::fs::write(to, "policy = \"random\"\n").expect("a reader"))
    };
    let writer = write(pipe.clone());
    let check = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(["broker", "--check", "--config", path]).output();
    let check = check.expect("the built command can be started");
    assert!(check.status.success() && String::from_utf8_lossy(&check.stdout).contains("policy = random"), "{check:?}");
    writer.join().expect("it has written");
    let writer = write(pipe.clone());
    let broker = BrokerProcess::start(&["--config", path]);
    writer.join().expect("it has written");
    assert!(broker.start_lines()[0].contains("policy random"), "{:?}", broker.start_lines());
    broker.signal("HUP");
    broker.log().wait_for(&["ERROR", "reload failed", path, "no regular file"], PATIENCE);
    broker.assert_serves();
}

#[test]
fn systemd_is_told_of_start_reload_and_stop() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket of ours");
    manager.set_read_timeout(Some(PATIENCE)).expect("not zero");
    let file = ConfigFile::new("listen = [\"127.0.0.1:0\"]");
    let environment = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "20000".into())];
    let mut broker = BrokerProcess::start_in(&environment, &["--config", file.path()]);
    let wait_for = |wanted: &str| {
        let mut message = [0; 4096];
        loop {
            let length = manager.recv(&mut message).expect("a message in time");
            if String::from_utf8_lossy(&message[..length]).contains(wanted) {
                return;
            }
        }
    };
    wait_for("READY=1");
    wait_for("WATCHDOG=1");
    broker.signal("HUP");
    wait_for("RELOADING=1");
    wait_for("READY=1");
    std::fs::write(file.path(), "lisen = []").expect("a file of ours");
    broker.signal("HUP");
    wait_for("the last reload failed");
    broker.signal("TERM");
    wait_for("STOPPING=1");
    assert_eq!(broker.wait_for_exit(PATIENCE).code(), Some(0));
}

/// The one line that the command prints when it refuses to start.
fn refusal(arguments: &[&str]) -> String {
    let (status, said) = BrokerProcess::fail_to_start(arguments);
    assert!(!status.success(), "{arguments:?}");
    // Log lines, such as one on a limit of the system, are not counted.
    let is_logged = |line: &&String| [" INFO ", " WARN "].iter().any(|level| line.contains(level));
    let said: Vec<_> = said.iter().filter(|line| !is_logged(line)).collect();
    let [line] = said[..] else { panic!("one line: {said:?}") };
    line.clone()
}

fn tenbin(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tenbin")).args(arguments).output().expect("the built command can be started")
}
