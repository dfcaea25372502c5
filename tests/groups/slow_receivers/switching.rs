//! Messages of QoS 1 and 2: in order, once, and out of memory while their receiver is slow.

use std::io::Write as _;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode};

use super::{Figures, config, figure, narrow, number_of, numbered, publish_all, receive};
use crate::support::{ConfigFile, DataDirectory, Dice, PATIENCE, RawClient, Silence, lasting, seed, text};

const BYTES: usize = 4096;

/// Receivers of each kind: in a persistent session, and in transient ones.
fn receivers() -> [Connect; 3] {
    let passing = |version| Connect::new(version, text("slow"));
    [lasting(ProtocolVersion::V5, "slow"), passing(ProtocolVersion::V5), passing(ProtocolVersion::V311)]
}

#[test]
fn slow_receivers_messages_spill_to_disk_and_stay_in_order() {
    for connect in receivers() {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let case = format!("{:?}, {:?}, QoS {qos}", connect.version, connect.properties.session_expiry_interval);
            let config = config("");
            let directory = DataDirectory::new();
            let broker = directory.start_with(&["--config", config.path()]);
            let mut slow = broker.connect(narrow(connect.clone(), 8));
            slow.subscribe("topic", qos);
            let mut normal = broker.v5("normal");
            normal.subscribe("topic", QoS::AtLeastOnce);
            let mut publisher = broker.v5("publisher");
            let figures = Figures::of(&broker);
            let mut published = 0;
            let mut publish = |count: usize, normal: &mut RawClient| {
                for first in (published..published + count).step_by(50) {
                    let messages = (first..first + 50).map(|number| numbered("topic", number, BYTES, qos)).collect();
                    let reasons = publish_all(&mut publisher, messages);
                    assert!(reasons.iter().all(|reason| *reason == ReasonCode::Success), "{case}: {reasons:?}");
                    assert_eq!(receive(normal, 50), (first..first + 50).collect::<Vec<_>>(), "{case}");
                }
                published += count;
            };
            publish(500, &mut normal);
            figures.wait_for("clients/spooling", |clients| clients == 1);
            publish(500, &mut normal);
            figures.wait_for("queued messages/bytes", |bytes| bytes <= 2 * 64 * 1024);
            // 3.1.1 has no Receive Maximum: almost as much may be in flight as in the queue, and queued messages may
            // follow.
            let under_way = if connect.version == ProtocolVersion::V311 { 2 * (1 << 20) / BYTES } else { 8 };
            Figures::of(&broker).wait_for("spooling/messages", |messages| messages + under_way as u64 >= 900);
            assert_eq!(figure(&broker, "publish/messages/dropped"), 0, "{case}");
            assert_eq!(receive(&mut slow, 1000), (0..1000).collect::<Vec<_>>(), "{case}");
            figures.wait_for("clients/spooling", |clients| clients == 0);
            figures.wait_for("spooling/messages", |messages| messages == 0);
            let begun = figure(&broker, "spooling/begun");
            Figures::of(&broker).wait_for("spooling/ended", |ended| ended == begun);
            publish(50, &mut normal);
            assert_eq!(receive(&mut slow, 50), (1000..1050).collect::<Vec<_>>(), "{case}");
            slow.expect_nothing_waiting();
            let log = broker.log();
            log.wait_for(&["receiver", "slow", "spooling", "queued_bytes", "drain_rate"], PATIENCE);
        }
    }
}

#[test]
fn order_holds_while_a_receiver_alternates_its_speed() {
    let seed = seed("TENBIN_SLOW_SEED");
    let _ = writeln!(std::io::stderr(), "TENBIN_SLOW_SEED={seed}");
    // A 3.1.1 receiver has no Receive Maximum: it may have too much in flight to count as slow.
    for (number, connect) in receivers().into_iter().take(2).enumerate() {
        // Slow from 128 KiB on, so that it changes soon.
        let config = ConfigFile::new(
            "[queue]\nbytes_maximum = 262144\nwhen_full = \"spool\"\n[store]\nsync = \"never\"\n[sys]\ninterval_seconds = 1\n",
        );
        let directory = DataDirectory::new();
        let broker = directory.start_with(&["--config", config.path()]);
        let mut dice = Dice::new(seed, number);
        let _ = writeln!(std::io::stderr(), "receiver {number}");
        let mut slow = broker.connect(narrow(connect, 4));
        slow.subscribe("#", QoS::ExactlyOnce);
        let mut publishers = [broker.v5("publisher-0"), broker.v311("publisher-1")];
        // By publisher and QoS.
        let mut sent = [[0; 3]; 2];
        let mut got = [[0; 3]; 2];
        for round in 0..6 {
            // The first round publishes enough to make the receiver slow at least once, with any seed.
            let least = if round == 0 { 40 } else { 1 };
            let bytes = if round == 0 { 4000 } else { [100, 1000, 4000][dice.within(0..3) as usize] };
            for _ in 0..dice.within(least..60) {
                for (publisher, client) in publishers.iter_mut().enumerate() {
                    let messages = (0..dice.within(1..30)).map(|_| {
                        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][dice.within(0..3) as usize];
                        let number = &mut sent[publisher][usize::from(qos.bits())];
                        *number += 1;
                        numbered(&format!("{publisher}"), *number - 1, bytes, qos)
                    });
                    let messages = messages.collect();
                    publish_all(client, messages);
                }
            }
            if round == 0 {
                Figures::of(&broker).wait_for("spooling/begun", |begun| begun > 0);
            }
            std::thread::sleep(Duration::from_millis(dice.within(0..500)));
            let until = Instant::now() + Duration::from_millis(dice.within(0..1500));
            while Instant::now() < until {
                take(&mut slow, &mut got, Duration::from_millis(10));
            }
        }
        while sent != got {
            assert!(take(&mut slow, &mut got, PATIENCE), "{got:?} of {sent:?}");
        }
        slow.expect_nothing_waiting();
        assert_eq!(figure(&broker, "publish/messages/dropped"), 0);
    }
}

/// Returns true if a message arrived within `patience`.
fn take(client: &mut RawClient, got: &mut [[usize; 3]; 2], patience: Duration) -> bool {
    let publish = match client.try_receive(patience) {
        Ok(Packet::Publish(publish)) => publish,
        Ok(other) => panic!("{other:?} instead of PUBLISH"),
        Err(Silence::TimedOut) => return false,
        Err(silence) => panic!("{silence:?}"),
    };
    client.acknowledge(&publish);
    let publisher = usize::from(publish.topic.as_bytes()[0] - b'0');
    let next = got[publisher][usize::from(publish.qos.bits())];
    assert_eq!(number_of(&publish), next, "publisher {publisher}, QoS {}, {got:?}", publish.qos);
    got[publisher][usize::from(publish.qos.bits())] += 1;
    true
}

#[test]
fn kill_during_spill_loses_no_acknowledged_message() {
    let config = config("");
    let directory = DataDirectory::new();
    let arguments = ["--config", config.path()];
    let broker = directory.start_with(&arguments);
    let mut slow = broker.connect(narrow(lasting(ProtocolVersion::V5, "slow"), 8));
    slow.subscribe("topic", QoS::AtLeastOnce);
    let mut passing = broker.connect(narrow(Connect::new(ProtocolVersion::V5, text("passing")), 8));
    passing.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    for first in (0..600).step_by(50) {
        let messages = (first..first + 50).map(|number| numbered("topic", number, BYTES, QoS::AtLeastOnce)).collect();
        publish_all(&mut publisher, messages);
    }
    Figures::of(&broker).wait_for("clients/spooling", |clients| clients == 2);
    // Further messages go to disk directly.
    for first in (600..1000).step_by(50) {
        let messages = (first..first + 50).map(|number| numbered("topic", number, BYTES, QoS::AtLeastOnce)).collect();
        publish_all(&mut publisher, messages);
    }
    drop(broker); // kills it
    let broker = directory.start_with(&arguments);
    // Messages of the ended session are gone.
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages == 1000);
    let (mut slow, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "slow"));
    assert!(connack.session_present);
    assert_eq!(receive(&mut slow, 1000), (0..1000).collect::<Vec<_>>());
    slow.expect_nothing_waiting();
}
