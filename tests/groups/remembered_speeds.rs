//! A returning worker is expected to be as fast as before.

use crate::support::{BrokerProcess, ConfigFile, RawClient, at_qos, lasting, share, text};
use bytes::Bytes;
use tenbin_codec::{Connect, Packet, PacketType, PingBody, PingReq, ProtocolVersion, QoS};

#[test]
fn returning_worker_is_expected_at_its_old_speed() {
    for is_lasting in [false, true] {
        let (fast, slow) = given_after_return("", is_lasting);
        assert!(fast >= 15 && fast + slow == 20, "fast {fast}, slow {slow}, lasting {is_lasting}");
    }
}

#[test]
fn worker_without_remembered_speed_starts_like_any_other() {
    for off in ["seconds = 0", "maximum = 0"] {
        let (fast, slow) = given_after_return(off, false);
        assert_eq!((fast, slow), (10, 10), "{off}");
    }
}

/// Returns how many of twenty messages each of two workers gets after it reconnects.
///
/// Both report their speed before, and acknowledge no message after. The group ends in between unless the sessions
/// last.
fn given_after_return(limits: &str, is_lasting: bool) -> (usize, usize) {
    let file = ConfigFile::new(&format!(
        "policy = \"adaptive\"\n[[share]]\nlate_binding = \"off\"\n[remembered_speeds]\n{limits}\n"
    ));
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let connect = |id: &str| match is_lasting {
        true => lasting(ProtocolVersion::V5, id),
        false => Connect::new(ProtocolVersion::V5, text(id)),
    };
    for (id, milliseconds) in [("fast", 2), ("slow", 200)] {
        let mut worker = broker.connect(connect(id));
        worker.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
        report(&mut worker, milliseconds);
        worker.disconnect();
    }
    let mut workers = ["fast", "slow"].map(|id| {
        let mut worker = broker.connect(connect(id));
        if !is_lasting {
            worker.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
        }
        worker
    });
    let mut publisher = broker.v5("publisher");
    for number in 0..20 {
        publisher.publish_with(at_qos("topic", &number.to_string(), QoS::AtLeastOnce));
    }
    let [fast, slow] = workers.each_mut().map(given);
    (fast, slow)
}

fn report(worker: &mut RawClient, milliseconds: u32) {
    let json = format!("{{\"msgsInQueue\":0,\"processingTimePerMsg\":{milliseconds}}}");
    let body = PingBody { payload: Bytes::from(json), ..PingBody::default() };
    worker.send(&Packet::PingReq(PingReq { body: Some(Box::new(body)) }));
    worker.wait_for(PacketType::PingResp);
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
