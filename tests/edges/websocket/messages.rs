//! Messages over WebSocket, with and without TLS.

use tenbin_codec::QoS;

use super::Served;
use crate::support::{QOS_ALL, assert_slow_member_gets_few};

#[test]
fn messages_of_each_qos_and_size_arrive_over_websocket() {
    let served = Served::start("");
    for is_secure in [false, true] {
        let connect = |client_id| if is_secure { served.connect_secure(client_id) } else { served.connect(client_id) };
        let (mut publisher, mut subscriber) = (connect("publisher"), connect("subscriber"));
        let mut plain = served.broker.v5("plain");
        for client in [&mut subscriber, &mut plain] {
            client.subscribe("sizes", QoS::ExactlyOnce);
        }
        for qos in QOS_ALL {
            for size in [0, 1, 20, 125, 126, 1_000, 65_535, 65_536, 3 << 20] {
                let payload = (0..size).map(|at| char::from(b'a' + (at % 23) as u8)).collect::<String>();
                publisher.publish("sizes", &payload, qos);
                for client in [&mut subscriber, &mut plain] {
                    let message = client.receive_message();
                    assert_eq!((message.qos, message.payload.len()), (qos, size));
                    assert!(message.payload == payload, "{size} bytes at {qos:?}");
                }
            }
        }
        publisher.disconnect();
        subscriber.cut();
    }
}

#[test]
fn slow_receiver_over_websocket_gets_everything_in_order() {
    let served = Served::start("[queue]\nbytes_maximum = 67108864");
    for is_secure in [false, true] {
        let connect = |client_id| if is_secure { served.connect_secure(client_id) } else { served.connect(client_id) };
        let (mut publisher, mut subscriber) = (connect("publisher"), connect("subscriber"));
        subscriber.subscribe("slow", QoS::AtLeastOnce);
        // More than the buffers of both kernels hold.
        for number in 0..400 {
            publisher.publish("slow", &format!("{number:0>60000}"), QoS::AtLeastOnce);
        }
        for number in 0..400 {
            assert!(subscriber.receive_message().payload == format!("{number:0>60000}"), "message {number}");
        }
        subscriber.expect_nothing_waiting();
        publisher.disconnect();
        subscriber.cut();
    }
}

#[test]
fn member_over_websocket_that_does_not_read_keeps_few() {
    let served = Served::start("policy = \"least_inflight\"");
    assert_slow_member_gets_few(|client_id| served.connect(client_id));
}
