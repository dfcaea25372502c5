//! Messages that wait for a share group, more of them than are in memory.

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use super::support::{DataDirectory, RawClient, lasting, share};

/// Also those that are published while it is read, which is page by page.
#[test]
fn what_waits_for_a_share_group_comes_in_order_after_a_kill_and_what_is_new_behind_it() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let directory = DataDirectory::new();
        let broker = directory.start();
        let mut member = broker.connect(lasting(ProtocolVersion::V5, "member"));
        member.subscribe(&share("workers", "topic"), QoS::ExactlyOnce);
        member.cut();
        let mut publisher = broker.v5("publisher");
        (0..WAITING).for_each(|number| publish(&mut publisher, number, qos));
        drop((publisher, broker));

        let broker = directory.start();
        let mut publisher = broker.v5("publisher");
        let mut member = broker.connect(lasting(ProtocolVersion::V5, "member"));
        let mut published = WAITING;
        let mut expected = 0;
        while expected < published {
            let message = member.receive_message();
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            assert_eq!(text.split(' ').next(), Some(expected.to_string().as_str()), "{qos}");
            expected += 1;
            if expected % 3 == 0 && expected < WAITING {
                publish(&mut publisher, published, qos);
                published += 1;
            }
        }
        member.expect_nothing_waiting();
    }
}

fn publish(publisher: &mut RawClient, number: usize, qos: QoS) {
    let payload = format!("{number} {}", "x".repeat(1000));
    assert_eq!(publisher.publish("topic", &payload, qos), ReasonCode::Success);
}

const WAITING: usize = 500;
