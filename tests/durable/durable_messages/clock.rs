//! Messages with an expiry wait while the system clock is set.

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use super::faults::Faults;
use crate::support::{BrokerProcess, DataDirectory, RawClient, at_qos, lasting, retained, with_expiry};

const INTERVAL: u32 = 3600;
const DAY: u64 = 86_400;

/// Sets the clock.
type Set = fn(&Faults);
const RIGHT: Set = |faults| faults.set_clock_back(0);
const AHEAD: Set = |faults| faults.set_clock_ahead(DAY);
const BACK: Set = |faults| faults.set_clock_back(DAY);

/// Payload of each message: the clock's state at its publication.
const PUBLISHED: [(&str, Set); 4] = [("right", RIGHT), ("ahead", AHEAD), ("back", BACK), ("right again", RIGHT)];

fn start(faults: &Faults, directory: &DataDirectory) -> BrokerProcess {
    BrokerProcess::start_in(&faults.environment(), &["--listen", "127.0.0.1:0", "--data", directory.path_text()])
}

fn subscribe(broker: &BrokerProcess, client: &str) {
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, client));
    receiver.subscribe("topic", QoS::AtLeastOnce);
    receiver.disconnect();
}

fn publish(broker: &BrokerProcess, faults: &Faults) {
    let mut publisher = broker.v5("publisher");
    for (payload, set) in PUBLISHED {
        set(faults);
        let publish = with_expiry(at_qos("topic", payload, QoS::AtLeastOnce), INTERVAL);
        assert_eq!(publisher.publish_with(publish), ReasonCode::Success);
    }
}

/// Asserts that all messages arrive, with no more remaining time than at their publication.
fn expect_all(broker: &BrokerProcess, client: &str) {
    let (mut receiver, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, client));
    assert!(connack.session_present, "{client}");
    receiver.settle();
    let came = receiver.drain();
    let payloads: Vec<_> = came.iter().map(|publish| String::from_utf8_lossy(&publish.payload)).collect();
    assert_eq!(payloads, PUBLISHED.map(|(payload, _)| payload), "{client}");
    for publish in &came {
        let left = publish.properties.as_ref().and_then(|properties| properties.message_expiry_interval);
        assert!(left.is_some_and(|left| left <= INTERVAL), "{client}: {left:?} seconds left");
    }
}

#[test]
fn setting_the_clock_ends_no_message_of_the_same_run() {
    let (faults, directory) = (Faults::new(), DataDirectory::new());
    let broker = start(&faults, &directory);
    let readers = [("reads right", RIGHT), ("reads ahead", AHEAD), ("reads back", BACK), ("reads at last", RIGHT)];
    readers.iter().for_each(|(client, _)| subscribe(&broker, client));
    publish(&broker, &faults);
    for (client, set) in readers {
        set(&faults);
        expect_all(&broker, client);
    }
}

#[test]
fn mqtt_3_3_2_6_clock_set_between_runs_raises_no_expiry() {
    let (faults, directory) = (Faults::new(), DataDirectory::new());
    let mut broker = start(&faults, &directory);
    let readers = [("reads right", RIGHT), ("reads back", BACK), ("reads at last", RIGHT)];
    readers.iter().for_each(|(client, _)| subscribe(&broker, client));
    publish(&broker, &faults);
    for (client, set) in readers {
        drop(broker); // killed
        set(&faults);
        broker = start(&faults, &directory);
        // A run whose clock was ahead for a while, and that has noticed it.
        AHEAD(&faults);
        assert_eq!(broker.v5("other").publish_with(retained("other", "kept")), ReasonCode::Success);
        set(&faults);
        expect_all(&broker, client);
    }
}
