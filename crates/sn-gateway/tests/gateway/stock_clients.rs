//! Stock clients before Mosquitto, if they are installed: the Python client `mqtt-sn-12` in `target/python`, as `.ci/run`
//! does, or on the path; and Bisquitt's clients in Go.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::bisquitt::{self, Bisquitt};
use crate::client::{gateway, wait_for};
use crate::mosquitto::Mosquitto;

/// A program of the client; `None` if it is not installed.
fn program(name: &str) -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin").join(name);
    let on_path =
        std::env::split_paths(&std::env::var_os("PATH")?).map(|directory| directory.join(name)).collect::<Vec<_>>();
    let found = std::iter::once(installed).chain(on_path).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: {name} is not installed (pip install mqtt-sn-12)");
    }
    found
}

fn spawn(program: &Path, port: u16, arguments: &str) -> Child {
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(arguments.split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("an executable file")
}

/// Waits for the end of a program.
fn end(child: Child, name: &str) -> Output {
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success(), "{name}: {output:?}");
    output
}

#[test]
fn stock_python_client_publishes_and_subscribes() {
    let (Some(publish), Some(subscribe), Some(broker)) =
        (program("mqtt_sn_pub"), program("mqtt_sn_sub"), Mosquitto::start())
    else {
        return;
    };
    let gateway = gateway(broker.address, "", "[listener.topics]\n7 = \"plant/predefined\"");
    let port = gateway.address().port();
    let mut sent = 0;
    for (receive, send) in [
        ("-t plant/one -q 1", "-t plant/one -q 0"),
        ("-t plant/two -q 1", "-t plant/two -q 1"),
        ("-T 7 -q 0", "-T 7 -q 1"),
        ("-t plant/+ -q 1", "-t plant/wild -q 1"),
        ("-t plant/will -q 1", "-t plant/will -q 1 --will-topic plant/gone --will-payload bye"),
    ] {
        // SUBACK is on its way once the broker has the subscription: CONNACK and SUBACK are two datagrams.
        let before = gateway.stats().get("datagrams_sent");
        let receiver = spawn(&subscribe, port, &format!("{receive} -1 -i receiver"));
        wait_for(&gateway, "datagrams_sent", before + 2);
        sent += 1;
        let message = format!("message-{sent}");
        end(spawn(&publish, port, &format!("{send} -m {message} -i sender")), send);
        let received = end(receiver, receive);
        let text = String::from_utf8_lossy(&received.stdout);
        assert!(text.contains(&message), "{receive}: {received:?}");
    }
}

#[test]
fn stock_go_clients_exchange_messages_and_a_will() {
    let (Some(clients), Some(broker)) = (Bisquitt::find(), Mosquitto::start()) else { return };
    for head in ["", "mqtt = \"3.1.1\""] {
        let gateway = gateway(broker.address, head, bisquitt::LISTENER);
        clients.exercise(gateway.address());
    }
}
