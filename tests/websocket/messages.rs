//! Messages over WebSocket, with and without TLS.

use tenbin_codec::QoS;

use super::Served;
use super::support::{QOS_ALL, share};

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
    let mut members = [served.connect("reads"), served.connect("stalls")];
    for member in &mut members {
        member.subscribe(&share("group", "work"), QoS::AtMostOnce);
    }
    let [mut reader, mut staller] = members;
    let mut publisher = served.connect("publisher");
    let mut read = Vec::new();
    for number in 0..600 {
        publisher.publish("work", &format!("{number:0>50000}"), QoS::AtMostOnce);
        publisher.settle();
        read.extend(reader.drain());
    }
    let stalled = staller.drain();
    assert!(read.len() > 350, "{} were read, {} were not", read.len(), stalled.len());
    let mut numbers = read.iter().chain(&stalled).map(|message| message.payload.clone()).collect::<Vec<_>>();
    numbers.sort();
    let expected = (0..600).map(|number| format!("{number:0>50000}")).collect::<Vec<_>>();
    assert!(numbers == expected, "lost or doubled: {} of 600", numbers.len());
}
