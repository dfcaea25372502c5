//! Stock clients before the broker's own gateway, if they are installed: the Python client `mqtt-sn-12` in `target/python`,
//! as `.ci/run` does, or on the path; and Bisquitt's clients in Go. `tenbin-sn-gateway` has the same before Mosquitto.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use crate::mqtt_sn::bisquitt::{self, Bisquitt};
use crate::mqtt_sn::{built_in, built_in_with, sn_address};
use crate::support::{BrokerProcess, GatewayProcess, Lines, PATIENCE};

/// A program of the client; `None` if it is not installed.
fn program(name: &str) -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python/bin").join(name);
    let path = std::env::var_os("PATH")?;
    let on_path = std::env::split_paths(&path).map(|directory| directory.join(name));
    let found = std::iter::once(installed).chain(on_path).find(|path| path.is_file());
    if found.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: {name} is not installed (pip install mqtt-sn-12)");
    }
    found
}

fn spawn(program: &Path, gateway: SocketAddr, arguments: &str) -> Child {
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &gateway.port().to_string()]).args(arguments.split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("an executable file")
}

/// A program that ends with the handle at the latest: a client without answers waits forever.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn end(child: Child, what: &str) -> Output {
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success(), "{what}: {output:?}");
    output
}

#[test]
fn stock_client_meets_clients_of_mqtt() {
    let (Some(publish), Some(subscribe)) = (program("mqtt_sn_pub"), program("mqtt_sn_sub")) else { return };
    let file = built_in(([127, 0, 0, 1], 0).into());
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let gateway = sn_address(&broker);
    let mut backend = broker.v5("backend");
    backend.subscribe("plant/#", QoS::AtLeastOnce);
    for (filter, topic) in
        [("-t plant/one -q 1", "plant/one"), ("-t plant/+ -q 1", "plant/two"), ("-t plant/one -q 0", "plant/one")]
    {
        let mut receiver = spawn(&subscribe, gateway, &format!("{filter} -1 -i receiver"));
        // Until its subscription is there, messages pass it by.
        let until = Instant::now() + PATIENCE;
        while receiver.try_wait().expect("a process").is_none() {
            assert!(Instant::now() < until, "{filter}");
            end(spawn(&publish, gateway, &format!("-t {topic} -q 1 -m to-{topic} -i sender")), topic);
            let message = backend.receive_message();
            assert_eq!(
                (message.topic.text().as_str(), &message.payload[..]),
                (topic, format!("to-{topic}").as_bytes())
            );
        }
        let received = end(receiver, filter);
        assert!(String::from_utf8_lossy(&received.stdout).contains(&format!("to-{topic}")), "{filter}: {received:?}");
    }
}

#[test]
fn stock_go_clients_exchange_messages_and_a_will() {
    let Some(clients) = Bisquitt::find() else { return };
    let any = ([127, 0, 0, 1], 0).into();
    let file = built_in_with(any, bisquitt::LISTENER);
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    clients.exercise(sn_address(&broker));
    let gateway = GatewayProcess::start(broker.address(), any, bisquitt::LISTENER, &[]);
    clients.exercise(gateway.address);
}

#[test]
fn stock_client_gets_messages_once_when_it_wakes() {
    let Some(python) = program("mqtt_sn_sub").map(|program| program.with_file_name("python3")) else { return };
    let seconds: u64 = std::env::var("TENBIN_TEST_SLEEP").map_or(3, |text| text.parse().expect("seconds"));
    let file = built_in(([127, 0, 0, 1], 0).into());
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sn/mqtt_sn/stock_sleeper.py");
    let begun = Instant::now();
    let mut sleeper = Command::new(python);
    sleeper.arg("-B").arg(script).args([&sn_address(&broker).port().to_string(), "sleeper", "plant/one"]);
    let mut sleeper =
        Running(sleeper.arg(seconds.to_string()).stdout(Stdio::piped()).spawn().expect("an executable file"));
    let lines = Lines::collect(sleeper.0.stdout.take().expect("piped"));
    lines.wait_for(&["asleep"], PATIENCE);
    let mut backend = broker.v5("backend");
    for (payload, qos) in [("first", QoS::AtMostOnce), ("second", QoS::AtLeastOnce), ("third", QoS::AtLeastOnce)] {
        backend.publish("plant/one", payload, qos);
    }
    lines.wait_for(&["awake"], PATIENCE + Duration::from_secs(seconds));
    assert!(begun.elapsed() >= Duration::from_secs(seconds), "the client has slept");
    let lines = lines.to_end(PATIENCE);
    assert!(sleeper.0.wait().expect("a process").success());
    assert_eq!(lines, ["asleep", "first", "second", "third", "awake", "awake"]);
}
