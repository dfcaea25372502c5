//! The drain of listeners.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json as value;
use tenbin_codec::{Connect, ProtocolVersion, QoS};

use crate::admin::stage::{Stage, disconnect_of, json, wait_until};
use crate::support::{ConfigFile, DataDirectory, RawClient, text};

fn drain(stage: &Stage, body: &serde_json::Value) -> u16 {
    stage.tell("POST", "/api/v1/drain", body).status
}

fn is_ready(stage: &Stage) -> bool {
    stage.get("/readyz").status == 200
}

fn is_open(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

fn at(address: SocketAddr, name: &str) -> RawClient {
    RawClient::connect(address, Connect::new(ProtocolVersion::V5, text(name))).0
}

/// Shows that the broker answers this client.
fn check_alive(client: &mut RawClient) {
    client.subscribe("alive", QoS::AtLeastOnce);
}

#[test]
fn drained_broker_refers_clients_and_accepts_none() {
    let stage = Stage::start(&[]);
    let mut clients: Vec<_> = (0..3).map(|number| stage.broker.v5(&format!("c{number}"))).collect();
    let answer = stage.tell("POST", "/api/v1/drain", &value!({ "seconds": 0, "server_reference": "other:1883" }));
    assert_eq!(json(&answer), value!({ "connections": 3, "seconds": 0 }));
    for client in &mut clients {
        let disconnect = disconnect_of(client);
        assert_eq!(disconnect.reason.byte(), 0x9C);
        let reference = disconnect.properties.and_then(|properties| properties.server_reference);
        assert_eq!(reference.map(|reference| reference.as_str().to_owned()), Some("other:1883".to_owned()));
    }
    let ready = stage.get("/readyz");
    assert!(ready.status == 503 && ready.body.contains("[-] drain"), "{}", ready.body);
    wait_until(|| !is_open(stage.broker.address()));
}

#[test]
fn cancelled_drain_keeps_clients_and_opens_the_listener_again() {
    let stage = Stage::start(&[]);
    let address = stage.broker.address();
    let _clients: Vec<_> = (0..3).map(|number| stage.broker.v5(&format!("c{number}"))).collect();
    // The first client goes at once, the others hours later.
    assert_eq!(drain(&stage, &value!({ "seconds": 86_400 })), 200);
    assert_eq!(drain(&stage, &value!({ "seconds": 0 })), 409, "one drain at a time");
    wait_until(|| !is_open(address));
    wait_until(|| stage.get_json("/api/v1/status")["connections"] == 2);
    assert_eq!(stage.get_json("/api/v1/status")["state"], "draining");
    let cancelled = stage.command(&["admin", "drain", "--cancel"]).output().expect("it runs");
    assert!(cancelled.status.success(), "{cancelled:?}");
    assert_eq!((is_ready(&stage), is_open(address)), (true, true));
    assert_eq!(stage.get_json("/api/v1/status")["state"], "serving");
    assert_eq!(stage.ask("DELETE", "/api/v1/drain").status, 404, "it has ended");
    drop(stage.broker.v5("new"));
    // Nothing of the first drain is left.
    assert_eq!(drain(&stage, &value!({ "seconds": 0 })), 200);
    wait_until(|| stage.get_json("/api/v1/status")["connections"] == 0);
}

#[test]
fn reload_ends_a_drain() {
    let file = ConfigFile::new("policy = \"adaptive\"\n");
    let stage = Stage::start(&["--config", file.path()]);
    let _clients = ["a", "b", "c"].map(|name| stage.broker.v5(name));
    let connections = || stage.get_json("/api/v1/status")["connections"].clone();
    for (reload, left) in [("HUP", 2), ("admin", 1)] {
        assert_eq!(drain(&stage, &value!({ "seconds": 86_400 })), 200);
        assert!(!is_ready(&stage));
        // The first client goes at once.
        wait_until(|| connections() == left);
        match reload {
            "HUP" => stage.broker.signal("HUP"),
            _ => assert_eq!(stage.ask("POST", "/api/v1/config/reload").status, 200),
        }
        wait_until(|| is_ready(&stage));
        assert_eq!(stage.ask("DELETE", "/api/v1/drain").status, 404, "{reload}");
    }
    assert_eq!(connections(), 1);
}

#[test]
fn drain_of_one_listener_leaves_the_broker_ready() {
    let file = ConfigFile::new(
        "[connections]\nconnect_timeout_ms = 3000\n\
         [[listeners]]\nname = \"other\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n",
    );
    let data = DataDirectory::new();
    let stage = Stage::start(&["--config", file.path(), "--data", data.path_text()]);
    let listeners = stage.get_json("/api/v1/status")["listeners"].clone();
    let other: SocketAddr = listeners
        .as_array()
        .and_then(|all| all.iter().find(|listener| listener["name"] == "other"))
        .and_then(|listener| listener["address"].as_str()?.parse().ok())
        .expect("an address");
    assert_eq!(drain(&stage, &value!({ "listener": "nowhere" })), 404);
    let mut here = stage.broker.v5("here");
    let mut there = ["first", "second"].map(|name| at(other, name));
    // The second client's turn comes after a second.
    let begun = stage.tell("POST", "/api/v1/drain", &value!({ "listener": "other", "seconds": 2 }));
    assert_eq!(json(&begun), value!({ "connections": 2, "seconds": 2 }));
    wait_until(|| !is_open(other));
    assert!(is_ready(&stage), "the first listener is open");
    // It comes back by the other listener before that.
    let mut back = ["first", "second"].map(|name| stage.broker.v5(name));
    for client in &mut there {
        assert!([0x9C, 0x8E].contains(&disconnect_of(client).reason.byte()));
    }
    wait_until(|| stage.tell("POST", "/api/v1/drain", &value!({ "listener": "nowhere" })).status == 404);
    for client in back.iter_mut().chain([&mut here]) {
        check_alive(client);
    }
    assert_eq!(stage.get_json("/api/v1/status")["state"], "serving");
    let first = listeners.as_array().and_then(|all| all.iter().find(|listener| listener["name"] != "other"));
    let first = first.expect("the first listener")["name"].clone();
    assert_eq!(drain(&stage, &value!({ "listener": first, "seconds": 86_400 })), 200);
    assert!(!is_ready(&stage), "none is open");
    assert_eq!(stage.get_json("/api/v1/status")["state"], "draining");
    assert_eq!(stage.ask("DELETE", "/api/v1/drain").status, 204);
    wait_until(|| is_open(other));
    assert_eq!(stage.get_json("/api/v1/status")["state"], "serving");
}

#[test]
fn client_that_still_connects_when_the_drain_begins_goes_too() {
    let stage = Stage::start(&[]);
    let late = RawClient::open(stage.broker.address(), ProtocolVersion::V5);
    wait_until(|| stage.get_json("/api/v1/status")["connections"] == 1);
    let begun = stage.tell("POST", "/api/v1/drain", &value!({ "seconds": 0 }));
    assert_eq!(json(&begun), value!({ "connections": 0, "seconds": 0 }));
    wait_until(|| !is_open(stage.broker.address()));
    let (mut late, connack) = late.introduce(Connect::new(ProtocolVersion::V5, text("late")));
    assert_eq!(connack.reason.byte(), 0);
    assert_eq!(disconnect_of(&mut late).reason.byte(), 0x9C);
}

#[test]
fn client_that_comes_back_after_the_drain_was_cancelled_stays() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.v5("c");
    assert_eq!(drain(&stage, &value!({ "seconds": 0 })), 200);
    assert_eq!(disconnect_of(&mut client).reason.byte(), 0x9C);
    assert_eq!(stage.ask("DELETE", "/api/v1/drain").status, 204);
    let mut back = stage.broker.v5("c");
    // Longer than the drain waits between two looks.
    std::thread::sleep(Duration::from_millis(600));
    check_alive(&mut back);
}
