//! `tenbin-loadgen run` with the broker that it starts: MQTTLoader's configuration, its summary, and exit codes.

use std::process::{Command, Output};

use crate::support::{BrokerProcess, Certificates, ConfigFile};

fn loadgen(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenbin")).arg("loadgen").args(arguments).output().expect("our own binary")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Values after `name: ` in a summary, on each side.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

#[test]
fn mqttloader_configuration_runs_and_prints_its_summary() {
    let broker = BrokerProcess::start(&[]);
    let conf = format!(
        "# every key that a broker on this machine can take\n\
         broker = {}\nbroker_port = {}\nmqtt_version = 5\nnum_publishers = 4\nnum_subscribers: 2\n\
         qos_publisher = 1\nqos_subscriber=1\nshared_subscription = true\nretain = false\n\
         topic = plant/\\u006cine\npayload = 100\nnum_messages = 250\nramp_up = 0\nramp_down = 0\ninterval = 500\n\
         subscriber_timeout = 2\nexec_time = 30\nlog_level = INFO\nuser_name = john\npassword = secret\ntls = false\n",
        broker.address().ip(),
        broker.address().port(),
    );
    let file = ConfigFile::new(&conf);
    let text = stdout(&loadgen(&["run", "--conf", file.path(), "--assert", "lost=0,duplicated=0,expected=1000"]));
    let (publisher, subscriber) = text.split_once("-----Subscriber-----").expect("both sides");
    assert!(publisher.contains("-----Publisher-----"), "{text}");
    for name in ["Maximum throughput [msg/s]", "Average throughput [msg/s]", "Per second throughput [msg/s]"] {
        assert_eq!((values(publisher, name).len(), values(subscriber, name).len()), (1, 1), "{name} in {text}");
    }
    assert_eq!(values(publisher, "Number of published messages"), ["1000"]);
    assert_eq!(values(subscriber, "Number of received messages"), ["1000"]);
    for name in ["Maximum latency [ms]", "Average latency [ms]"] {
        let [value] = values(subscriber, name)[..] else { panic!("{name} in {text}") };
        assert!(value.parse::<f64>().expect("a number") > 0.0, "{text}");
    }
    assert!(text.contains("mqttload: 2 subscribers, Jain's index"), "{text}");

    // Arguments beside the file take precedence.
    let more = ["--num-publishers", "1", "--messages", "7", "--interval", "0", "--shared=a,b"];
    let text = stdout(&loadgen(&[&["run", "--conf", file.path()], &more[..]].concat()));
    assert_eq!(values(&text, "Number of published messages"), ["7"]);
    assert_eq!(values(&text, "Number of received messages"), ["14"]);
}

#[test]
fn every_kind_of_connection_speaks_websocket_and_tls() {
    let certificates = Certificates::new();
    let web = "[[listeners]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"websocket\"\npath = \"/mqtt\"\n";
    let secure = certificates.listener("").replace("[listeners.tls]", "transport = \"websocket\"\n[listeners.tls]");
    let config = ConfigFile::new(&format!("{web}{secure}"));
    let broker = BrokerProcess::start_exactly(&["--listen", "127.0.0.1:0", "--config", config.path()]);
    let ports = [1, 2].map(|listener| broker.addresses()[listener].port());
    let authority = certificates.path("root.pem");
    let load = ["--messages", "300", "--qos", "1", "--payload", "20000", "--conns", "20", "--publishers", "2"];
    let asserts = ["--assert", "lost=0,duplicated=0,expected=600"];
    for (port, tls) in [(ports[0], &[][..]), (ports[1], &["--tls", "--ca", &authority])] {
        for kind in [&[][..], &["--service", "1us"]] {
            let place = format!("localhost:{port}");
            let arguments = [&["run", "--broker", &place, "--websocket"], &load[..], &asserts, tls, kind].concat();
            stdout(&loadgen(&arguments));
        }
    }
    let output =
        loadgen(&["run", "--broker", &format!("localhost:{}", ports[0]), "--websocket=/other", "--messages", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("404: MQTT is at the path /mqtt"), "{said}");
}

#[test]
fn every_kind_of_connection_uses_a_unix_socket() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("mqtt").display().to_string();
    let config = ConfigFile::new(&format!("[[listeners]]\naddress = \"unix:{path}\"\nanonymous = true\n"));
    let broker = BrokerProcess::start(&["--config", config.path()]);
    let load = "--messages 300 --qos 1 --conns 20 --publishers 2 --assert lost=0,duplicated=0,expected=600";
    // No broker listens at this address.
    let run = ["run", "--broker", "127.0.0.1:1", "--unix", &path].into_iter().chain(load.split_whitespace());
    let run: Vec<_> = run.collect();
    stdout(&loadgen(&run));
    stdout(&loadgen(&[&run[..], &["--service", "1us"]].concat()));
    drop(broker);
    let output = loadgen(&run);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&format!("unix:{path}")), "{said}");
}

#[test]
fn publishers_and_subscribers_can_be_in_programs_of_their_own() {
    let broker = BrokerProcess::start(&[]);
    let address = broker.address().to_string();
    let run = |line: &str| {
        let arguments = ["run", "--broker", &address].into_iter().chain(line.split_whitespace());
        stdout(&loadgen(&arguments.collect::<Vec<_>>()))
    };
    // Retained, so that the order of publisher and subscriber does not matter.
    let text = run("--subscribers 0 --messages 20 --topic part/{topic} --topics 20 --retain");
    assert_eq!(values(&text, "Number of published messages"), ["20"]);
    assert_eq!(values(&text, "Number of received messages"), ["0"]);
    let text = run("--publishers 0 --filter part/+ --subscriber-timeout 5s --time 60");
    assert_eq!(values(&text, "Number of published messages"), ["0"]);
    assert_eq!(values(&text, "Number of received messages"), ["20"]);
    let [latency] = values(&text, "Average latency [ms]")[..] else { panic!("one: {text}") };
    assert!(latency.parse::<f64>().expect("a number") > 0.0 && text.contains("no verdict"), "{text}");
}

#[test]
fn the_exit_code_tells_a_failed_assertion_and_wrong_arguments() {
    let failed = loadgen(&["run", "--broker", "tenbin", "--messages", "10", "--assert", "received=11,lost=0"]);
    assert_eq!(failed.status.code(), Some(1));
    let (out, err) = (String::from_utf8_lossy(&failed.stdout), String::from_utf8_lossy(&failed.stderr));
    assert!(out.contains("assertion failed: received = 10, wanted = 11\n"), "{out}");
    assert!(out.contains("assertion holds: lost = 0, wanted = 0\n"), "{out}");
    assert!(err.ends_with("tenbin-loadgen: 1 of 2 assertions failed\n"), "{err}");

    assert_eq!(loadgen(&["run", "--assert", "p99<50"]).status.code(), Some(2));
    let file = ConfigFile::new("broker = 127.0.0.1\nnum_publisher = 1\n");
    let wrong = loadgen(&["run", "--conf", file.path()]);
    let err = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(1));
    assert_eq!(
        err.trim_end(),
        format!("tenbin-loadgen: {}, line 2: num_publisher: MQTTLoader has no such key", file.path())
    );
}

#[test]
fn help_lists_the_figures_of_assertions() {
    let text = stdout(&loadgen(&["run", "--help"]));
    for word in ["--conf", "--assert", "--find-rate", "out_of_order", "p999", "jain", "Exit code"] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
}

#[test]
fn policies_are_compared_on_brokers_of_their_own() {
    let load = ["--shared", "--subscribers", "3", "--messages", "100", "--qos", "1", "--runs", "1"];
    let text = stdout(&loadgen(&[&["compare", "--policies", "adaptive,round_robin"], &load[..]].concat()));
    for policy in ["adaptive", "round_robin"] {
        let rows = text.lines().filter(|line| line.split_whitespace().next() == Some(policy)).count();
        assert_eq!(rows, 2, "{policy} in {text}");
    }
}
