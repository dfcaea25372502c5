//! A group backlog larger than its part in memory.

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::support::{DataDirectory, RawClient, lasting, share};

/// The backlog is read page by page. Messages published during the reading go behind it.
#[test]
fn group_backlog_is_delivered_in_order_after_a_kill() {
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
