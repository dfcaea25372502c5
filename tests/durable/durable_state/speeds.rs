use bytes::Bytes;
use tenbin_codec::{Packet, PacketType, PingBody, PingReq, QoS};

use super::DataDirectory;
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, at_qos, share};

#[test]
fn worker_speed_is_remembered_across_a_restart() {
    let stage = DataDirectory::new();
    let config = ConfigFile::new("policy = \"adaptive\"\n[[share]]\nlate_binding = \"off\"\n");
    let arguments = ["--config", config.path()];
    let mut broker = stage.start_with(&arguments);
    for (name, milliseconds) in [("fast", 2), ("slow", 200)] {
        let mut worker = worker(&broker, name);
        let payload = Bytes::from(format!("{{\"msgsInQueue\":0,\"processingTimePerMsg\":{milliseconds}}}"));
        let body = PingBody { payload, ..PingBody::default() };
        worker.send(&Packet::PingReq(PingReq { body: Some(Box::new(body)) }));
        worker.wait_for(PacketType::PingResp);
        worker.disconnect();
    }
    // Speeds are stored from time to time, and at shutdown.
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
    let broker = stage.start_with(&arguments);
    let mut workers = ["fast", "slow"].map(|name| worker(&broker, name));
    let mut publisher = broker.v5("publisher");
    for number in 0..20 {
        publisher.publish_with(at_qos("topic", &number.to_string(), QoS::AtLeastOnce));
    }
    let [fast, slow] = workers.each_mut().map(given);
    assert!(fast >= 15 && fast + slow == 20, "fast {fast}, slow {slow}");
}

fn worker(broker: &BrokerProcess, name: &str) -> RawClient {
    let mut worker = broker.v5(name);
    worker.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
    worker
}

/// Number of messages received so far, without acknowledging them.
fn given(worker: &mut RawClient) -> usize {
    worker.send(&Packet::PingReq(PingReq::PLAIN));
    let mut count = 0;
    loop {
        match worker.receive() {
            Packet::Publish(_) => count += 1,
            Packet::PingResp => return count,
            other => panic!("{other:?} instead of a message"),
        }
    }
}
