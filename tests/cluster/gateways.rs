//! Listeners of HTTP and MQTT-SN at nodes that do not lead.

use std::fs;
use std::io::{BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::harness::{Cluster, free_address};
use crate::sensor::{QOS_1, Sensor};
use crate::support::{ClientStream, PATIENCE, RawClient, read_answer, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn http_publish_reaches_the_leader_through_any_node() {
    let listener = "name = \"ingest\"\ntransport = \"http\"\n";
    let ban = "[[ban]]\nnetwork = \"127.0.0.3\"\n";
    let Some((cluster, addresses)) = start(2, listener, ban) else { return };
    let leader = cluster.wait_for_copies();
    let mut reader = reader(&cluster, leader, "news");
    publish_at_each(&cluster, &addresses, &mut reader);
    // The leader sees the client's own address.
    for address in &addresses {
        assert_eq!(post([127, 0, 0, 3], *address, "unwanted"), Some(403));
    }

    // The next leader serves the listener itself. The last one closes its server, and passes clients on.
    let (is_done, said) = cluster.nodes[leader].switch(&[]);
    assert!(is_done, "{said}");
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    let mut reader = self::reader(&cluster, 1 - leader, "news");
    publish_at_each(&cluster, &addresses, &mut reader);
}

#[test]
fn mqtt_sn_client_of_a_spare_goes_on_after_the_leader_is_killed() {
    let listener = "name = \"field\"\ntransport = \"mqtt-sn\"\n";
    let Some((mut cluster, addresses)) = start(3, listener, "") else { return };
    let leader = cluster.wait_for_copies();
    let follower = cluster.follower(leader);
    let spare = 3 - leader - follower;
    wait_for_passing(&cluster, spare, leader);
    let mut backend = reader(&cluster, leader, "up/#");
    let mut sensor = Sensor::connect(addresses[spare], "sensor", 0, 600);
    let id = sensor.register("up/1");
    sensor.subscribe("down/1", QOS_1);
    assert_eq!(sensor.publish(id, QOS_1, "first"), 0);
    assert_eq!(backend.receive_message().payload, "first");
    assert_eq!(backend.publish("down/1", "hello", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(sensor.next_message().as_deref(), Some("hello"));

    sensor.sleep(600);
    assert_eq!(backend.publish("down/1", "while asleep", QoS::AtLeastOnce), ReasonCode::Success);
    wait_for_topic(&cluster, follower, "up/1");
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), follower);
    wait_for_passing(&cluster, spare, follower);
    let mut backend = reader(&cluster, follower, "up/#");

    // The gateway of the next leader does not know the client, and tells it so.
    sensor.send(0x16, b"sensor");
    assert_eq!(sensor.receive(), [0x18], "DISCONNECT");
    assert_eq!(sensor.try_connect("sensor", 0, 600), 0);
    // The node may have been killed before it stored the acknowledgement of the last message.
    let next = sensor.next_message().filter(|message| message != "hello").or_else(|| sensor.next_message());
    assert_eq!(next.as_deref(), Some("while asleep"));
    assert_eq!(sensor.publish(id, QOS_1, "second"), 0, "its topic id is known");
    assert_eq!(backend.receive_message().payload, "second");
    sensor.sleep(600);
    assert_eq!(backend.publish("down/1", "for the sleeper", QoS::AtLeastOnce), ReasonCode::Success);
    cluster.wait("message of the sleeper", |_| {
        sensor.wake("sensor").contains(&"for the sleeper".to_owned()).then_some(())
    });
}

/// Starts nodes with such a listener, and waits for two copies. Returns its addresses at the nodes.
fn start(count: usize, listener: &str, tables: &str) -> Option<(Cluster, Vec<SocketAddr>)> {
    let listener = format!("[[listeners]]\naddress = \"GATEWAY\"\nanonymous = true\n{listener}{tables}");
    let mut cluster = Cluster::plan(count, &listener)?;
    let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
    for (node, address) in cluster.nodes.iter_mut().zip(&addresses) {
        node.change_config("GATEWAY", &address.to_string());
        node.start();
    }
    cluster.wait_for_copies();
    Some((cluster, addresses))
}

fn reader(cluster: &Cluster, at: usize, filter: &str) -> RawClient {
    let (mut client, _) = cluster.connect(at, &Connect::new(V5, text("reader")));
    client.subscribe(filter, QoS::AtMostOnce);
    client
}

/// Publishes at each node, as soon as its port is open.
fn publish_at_each(cluster: &Cluster, addresses: &[SocketAddr], reader: &mut RawClient) {
    for (at, address) in addresses.iter().enumerate() {
        // A server that is closing has answered nothing, and published nothing.
        let status = cluster.wait("answer to POST", |_| {
            TcpStream::connect(address).ok()?;
            post([127, 0, 0, 1], *address, &format!("at {at}"))
        });
        assert_eq!(status, 204);
        assert_eq!(reader.receive_message().payload, format!("at {at}"));
    }
}

/// Publishes by HTTP from a loopback address. Returns the status.
fn post(source: [u8; 4], address: SocketAddr, body: &str) -> Option<u16> {
    let mut stream = ClientStream::tcp_from(Ipv4Addr::from(source).into(), address);
    stream.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
    let request = format!(
        "POST /topics/news HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A node may close the connection before.
    stream.write_all(request.as_bytes()).ok()?;
    read_answer(&mut BufReader::new(stream)).map(|answer| answer.status)
}

/// Waits until the node `at` passes datagrams on to the node `leader`.
fn wait_for_passing(cluster: &Cluster, at: usize, leader: usize) {
    let leader = cluster.nodes[leader].cluster.to_string();
    cluster.nodes[at].log().wait_for(&["passing datagrams of MQTT-SN on", &leader], PATIENCE);
}

/// Waits until the copy of topic ids at a node contains a name.
fn wait_for_topic(cluster: &Cluster, at: usize, name: &str) {
    cluster.wait("stored topic", |cluster| {
        let bytes = fs::read(cluster.nodes[at].data.join("sn/field/topic-ids")).unwrap_or_default();
        bytes.windows(name.len()).any(|part| part == name.as_bytes()).then_some(())
    });
}
