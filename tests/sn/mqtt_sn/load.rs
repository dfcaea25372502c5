use std::process::Command;

use crate::mqtt_sn::broker;

/// Runs a load over MQTT-SN; the verdict is the command's.
fn load(arguments: &[&str]) {
    let (broker, gateway) = broker();
    let (gateway, mqtt) = (gateway.to_string(), broker.address().to_string());
    let arguments = arguments.iter().map(|&argument| if argument == "MQTT" { &mqtt[..] } else { argument });
    let output = Command::new(env!("CARGO_BIN_EXE_tenbin"))
        .args(["loadgen", "run", "--protocol", "mqtt-sn", "--broker", &gateway, "--publishers", "4"])
        .args(["--messages", "100", "--assert", "lost=0,duplicated=0,out_of_order=0,expected=400"])
        .args(arguments)
        .output()
        .expect("the program runs");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
}

#[test]
fn load_passes_from_mqtt_sn_to_mqtt_sn() {
    load(&["--qos", "1"]);
    load(&["--qos", "2"]);
}

#[test]
fn load_passes_from_mqtt_sn_to_mqtt() {
    load(&["--qos", "1", "--mqtt-broker", "MQTT"]);
}
