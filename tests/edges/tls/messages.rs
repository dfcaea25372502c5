//! Messages over TLS.

use tenbin_broker::{Broker, Config};
use tenbin_codec::QoS;
use tokio::runtime::Runtime;
use tokio_rustls::rustls::version::TLS13;

use super::{Guarded, connect};
use crate::support::{Certificates, PATIENCE, QOS_ALL, TLS_VERSIONS, assert_slow_member_gets_few};

#[test]
fn messages_of_each_qos_and_size_arrive_over_tls() {
    let guarded = Guarded::start("", "");
    for version in TLS_VERSIONS {
        let config = guarded.certificates.client(version);
        let mut publisher = connect(guarded.address(), &config, "publisher");
        let mut subscriber = connect(guarded.address(), &config, "subscriber");
        let mut plain = guarded.broker.v5("plain");
        for client in [&mut subscriber, &mut plain] {
            client.subscribe("sizes", QoS::ExactlyOnce);
        }
        for qos in QOS_ALL {
            for size in [0, 1, 20, 1_000, 16_384, 1 << 20] {
                let payload = (0..size).map(|at| char::from(b'a' + (at % 23) as u8)).collect::<String>();
                publisher.publish("sizes", &payload, qos);
                for client in [&mut subscriber, &mut plain] {
                    let message = client.receive_message();
                    assert_eq!((message.qos, message.payload.len()), (qos, size), "{version:?}");
                    assert!(message.payload == payload, "{version:?}, {size} bytes at {qos:?}");
                }
            }
        }
        publisher.disconnect();
        subscriber.cut();
    }
}

#[test]
fn slow_receiver_over_tls_gets_everything_in_order() {
    let guarded = Guarded::start("[queue]\nbytes_maximum = 67108864", "");
    let (mut publisher, mut subscriber) = (guarded.connect("publisher"), guarded.connect("subscriber"));
    subscriber.subscribe("slow", QoS::AtLeastOnce);
    // More than the buffers of both kernels hold.
    for number in 0..400 {
        publisher.publish("slow", &format!("{number:0>60000}"), QoS::AtLeastOnce);
    }
    for number in 0..400 {
        assert!(subscriber.receive_message().payload == format!("{number:0>60000}"), "message {number}");
    }
    subscriber.expect_nothing_waiting();
}

#[test]
fn member_that_does_not_read_keeps_few_messages() {
    let guarded = Guarded::start("policy = \"least_inflight\"", "");
    assert_slow_member_gets_few(|client_id| guarded.connect(client_id));
}

#[test]
fn migration_over_tls_loses_and_reorders_nothing() {
    let certificates = Certificates::new();
    let config = Config::parse(&certificates.listener("")).expect("a configuration");
    let runtime = Runtime::new().expect("threads");
    let broker = Broker::builder().config(config).threads(3).restless();
    let broker = runtime.block_on(broker.start()).expect("a free port");
    let (address, client) = (broker.addresses()[0], certificates.client(&TLS13));
    let (mut publisher, mut subscriber) =
        (connect(address, &client, "publisher"), connect(address, &client, "subscriber"));
    subscriber.subscribe("moving", QoS::AtLeastOnce);
    let until = std::time::Instant::now() + PATIENCE;
    for number in 0.. {
        publisher.publish("moving", &number.to_string(), QoS::AtLeastOnce);
        assert_eq!(subscriber.receive_message().payload, number.to_string());
        if number > 500 && broker.metrics().connections_moved > 20 {
            break;
        }
        assert!(std::time::Instant::now() < until, "{} moves", broker.metrics().connections_moved);
    }
    runtime.block_on(broker.shutdown());
}
