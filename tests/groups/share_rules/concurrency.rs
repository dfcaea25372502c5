//! Late binding: messages wait with their group until a member can begin with them.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode, UserProperty};

use crate::support::{BrokerProcess, ConfigFile, Numbered, PATIENCE, RawClient, lasting, share, text};

const TOPIC: &str = "work";

/// A worker that takes this many messages at a time.
fn worker(broker: &BrokerProcess, client_id: &str, concurrency: Option<&str>) -> RawClient {
    let mut connect = Connect::new(ProtocolVersion::V5, text(client_id));
    connect.properties.user_properties =
        concurrency.map(|number| UserProperty::new(text("concurrency"), text(number))).into_iter().collect();
    let mut worker = broker.connect(connect);
    worker.subscribe(&share("group", TOPIC), QoS::ExactlyOnce);
    worker
}

/// The properties of a CONNECT that tells a concurrency of 1.
fn one_at_a_time(client_id: &str) -> Connect {
    let mut connect = lasting(ProtocolVersion::V5, client_id);
    connect.properties.user_properties = vec![UserProperty::new(text("concurrency"), text("1"))];
    connect
}

fn publish(publisher: &mut RawClient, payloads: impl IntoIterator<Item = usize>, qos: QoS) {
    payloads.into_iter().for_each(|payload| {
        publisher.publish(TOPIC, &payload.to_string(), qos);
    });
}

fn number(publish: &Publish) -> usize {
    crate::support::number_of(publish)
}

#[test]
fn messages_wait_until_a_worker_can_begin() {
    let cases = [Some("1"), None].map(|told| [(told, QoS::AtLeastOnce), (told, QoS::ExactlyOnce)]);
    for (told, qos) in cases.into_iter().flatten() {
        let broker = BrokerProcess::start(&[]);
        let [mut one, mut two] = ["one", "two"].map(|id| worker(&broker, id, told));
        let mut publisher = broker.v5("publisher");
        publish(&mut publisher, 0..3, qos);
        let mut begun = [one.receive_publish(), two.receive_publish()];
        [&mut one, &mut two].into_iter().for_each(RawClient::expect_nothing_waiting);
        assert_eq!(begun.each_ref().map(number).iter().sum::<usize>(), 1, "{qos}: the first two");
        // One of them works on: it gets all the others, and the other none. Only one waits at a time: of several, a
        // worker may get one more than it can begin with.
        for next in 2..6 {
            one.acknowledge(&begun[0]);
            begun[0] = one.receive_publish();
            assert_eq!(number(&begun[0]), next, "{qos}: the oldest");
            publish(&mut publisher, [next + 1], qos);
        }
        two.expect_nothing_waiting();
    }
}

#[test]
fn worker_of_three_threads_gets_three_messages_and_three_behind() {
    let broker = BrokerProcess::start(&[]);
    let mut worker = worker(&broker, "worker", Some("3"));
    publish(&mut broker.v5("publisher"), 0..7, QoS::AtLeastOnce);
    let begun = [(); 6].map(|()| worker.receive_publish());
    worker.expect_nothing_waiting();
    worker.acknowledge(&begun[0]);
    assert_eq!(number(&worker.receive_publish()), 6);
}

#[test]
fn messages_beyond_receive_maximum_wait_with_the_group() {
    let broker = BrokerProcess::start(&[]);
    let receivers = ["one", "two"].map(|client_id| {
        let mut connect = Connect::new(ProtocolVersion::V5, text(client_id));
        connect.properties.receive_maximum = NonZeroU16::new(2);
        let mut worker = broker.connect(connect);
        worker.subscribe(&share("group", TOPIC), QoS::AtLeastOnce);
        worker
    });
    let [mut one, mut two] = receivers;
    publish(&mut broker.v5("publisher"), 0..6, QoS::AtLeastOnce);
    // Early binding would have given each member three, and the third one of `two` would wait for ever.
    receive_all(&mut one, &mut two, 6, "receive maximum");
    assert!(two.try_receive(Duration::ZERO).is_err());
}

#[test]
fn rules_say_whose_limit_counts() {
    for (rule, told, begun, is_limited) in [
        ("late_binding = false", Some("1"), 3, false),
        ("late_binding = \"off\"", Some("1"), 3, false),
        ("late_binding = \"told\"", Some("1"), 1, true),
        ("late_binding = \"told\"", None, 3, false),
        ("late_binding = true", None, 1, true),
        ("concurrency = 2", None, 3, true),
        ("concurrency = 2", Some("1"), 1, true),
    ] {
        let config = ConfigFile::new(&format!("[[share]]\ngroup = \"group\"\n{rule}\n"));
        let broker = BrokerProcess::start(&["--config", config.path()]);
        let mut worker = worker(&broker, "worker", told);
        let mut publisher = broker.v5("publisher");
        // Two threads have a message behind them.
        publish(&mut publisher, 0..begun + usize::from(is_limited), QoS::AtLeastOnce);
        let got: Vec<_> = (0..begun).map(|_| number(&worker.receive_publish())).collect();
        assert_eq!(got, (0..begun).collect::<Vec<_>>(), "{rule} {told:?}");
        worker.expect_nothing_waiting();
    }
}

/// Completed messages bring the next ones at once, and not only when the broker offers them once a second.
#[test]
fn every_completion_brings_messages_that_waited() {
    const MESSAGES: usize = 400;
    for (qos, reason) in [
        (QoS::AtLeastOnce, ReasonCode::Success),
        (QoS::AtLeastOnce, ReasonCode::UnspecifiedError),
        (QoS::ExactlyOnce, ReasonCode::Success),
        (QoS::ExactlyOnce, ReasonCode::UnspecifiedError),
    ] {
        let broker = BrokerProcess::start(&[]);
        let mut worker = worker(&broker, "worker", Some("1"));
        Numbered { topics: &[TOPIC], count: MESSAGES, qos }.publish(&mut broker.v5("publisher"));
        let begun = Instant::now();
        for _ in 0..MESSAGES {
            let publish = worker.receive_publish();
            match (reason.is_error(), qos, publish.packet_id) {
                (true, QoS::AtLeastOnce, Some(id)) => worker.send(&Packet::PubAck(Ack::new(id, reason))),
                (true, QoS::ExactlyOnce, Some(id)) => worker.send(&Packet::PubRec(Ack::new(id, reason))),
                _ => worker.acknowledge(&publish),
            }
        }
        // Without them at most eight messages are offered once a second.
        assert!(begun.elapsed() < Duration::from_secs(25), "{qos} {reason:?}: {:?}", begun.elapsed());
    }
}

/// A client of MQTT 3.1.1 cannot tell its concurrency.
#[test]
fn worker_of_3_1_1_gets_the_next_message_when_it_has_none() {
    let broker = BrokerProcess::start(&[]);
    let [mut one, mut two] = ["one", "two"].map(|client_id| {
        let mut worker = broker.connect(Connect::new(ProtocolVersion::V311, text(client_id)));
        worker.subscribe(&share("group", TOPIC), QoS::AtLeastOnce);
        worker
    });
    publish(&mut broker.v5("publisher"), 0..3, QoS::AtLeastOnce);
    let begun = [one.receive_publish(), two.receive_publish()];
    two.expect_nothing_waiting();
    one.acknowledge(&begun[0]);
    assert_eq!(number(&one.receive_publish()), 2);
}

/// It acknowledges twenty messages together, and never fewer.
#[test]
fn worker_that_collects_messages_gets_them_by_and_by() {
    let broker = BrokerProcess::start(&[]);
    let mut worker = worker(&broker, "worker", None);
    publish(&mut broker.v5("publisher"), 0..40, QoS::AtLeastOnce);
    for first in [0, 20] {
        let batch: Vec<_> = (0..20).map(|_| worker.receive_publish()).collect();
        assert_eq!(number(&batch[0]), first);
        batch.iter().for_each(|publish| worker.acknowledge(publish));
    }
}

#[test]
fn messages_of_a_lost_worker_go_to_the_next_that_can_begin() {
    let broker = BrokerProcess::start(&[]);
    let mut lost = worker(&broker, "lost", Some("1"));
    let mut publisher = broker.v5("publisher");
    publish(&mut publisher, 0..2, QoS::AtLeastOnce);
    assert_eq!(number(&lost.receive_publish()), 0);
    let mut next = worker(&broker, "next", Some("1"));
    let first = next.receive_publish();
    assert_eq!(number(&first), 1);
    publish(&mut publisher, 2..4, QoS::AtLeastOnce);
    drop(lost);
    next.acknowledge(&first);
    let mut rest: Vec<_> = (0..3)
        .map(|_| {
            let publish = next.receive_publish();
            next.acknowledge(&publish);
            number(&publish)
        })
        .collect();
    rest.sort_unstable();
    assert_eq!(rest, [0, 2, 3], "the lost worker's only message, and those that waited");
}

#[test]
fn messages_do_not_wait_with_other_policies_or_at_qos_0() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let [mut one, mut two] = ["one", "two"].map(|id| worker(&broker, id, Some("1")));
    publish(&mut broker.v5("publisher"), 0..6, QoS::AtLeastOnce);
    assert_eq!([&mut one, &mut two].map(|worker| worker.drain().len()), [3, 3], "another policy");

    let broker = BrokerProcess::start(&[]);
    let mut worker = worker(&broker, "worker", Some("1"));
    publish(&mut broker.v5("publisher"), 0..3, QoS::AtMostOnce);
    let got: Vec<_> = (0..3).map(|_| number(&worker.receive_message())).collect();
    assert_eq!(got, [0, 1, 2]);
}

/// It is ready for a few, and for one more each second: not for all that the others have no room for.
#[test]
fn worker_that_never_acknowledges_gets_few_messages() {
    const MESSAGES: usize = 400;
    for receive_maximum in [None, NonZeroU16::new(500)] {
        let broker = BrokerProcess::start(&[]);
        let mut connect = Connect::new(ProtocolVersion::V5, text("silent"));
        connect.properties.receive_maximum = receive_maximum;
        let mut silent = broker.connect(connect);
        silent.subscribe(&share("group", TOPIC), QoS::AtLeastOnce);
        let mut honest = ["one", "two"].map(|id| worker(&broker, id, Some("1")));
        publish(&mut broker.v5("publisher"), 0..MESSAGES, QoS::AtLeastOnce);
        let mut got = 0;
        loop {
            let before = got;
            got += honest.iter_mut().map(|worker| worker.drain().len()).sum::<usize>();
            if got == before {
                break;
            }
        }
        silent.settle();
        let kept = std::iter::from_fn(|| silent.take_set_aside()).count();
        assert!(kept <= 20, "{receive_maximum:?}: {kept} of {MESSAGES}");
        assert_eq!(got + kept, MESSAGES, "{receive_maximum:?}");
    }
}

/// Receives all messages, of which `full` acknowledges none. Nothing else happens until then.
fn receive_all(stock: &mut RawClient, full: &mut RawClient, messages: usize, case: &str) {
    let until = Instant::now() + PATIENCE;
    let mut got = 0;
    while got < messages {
        assert!(Instant::now() < until, "{case}: {got} of {messages}");
        got += usize::from(full.try_receive(Duration::ZERO).is_ok());
        if let Ok(Packet::Publish(publish)) = stock.try_receive(Duration::from_millis(20)) {
            stock.acknowledge(&publish);
            got += 1;
        }
    }
}

/// The other member has no room. A new member gets a few messages, and the others when it has completed these.
#[test]
fn burst_goes_to_the_only_member_that_acknowledges() {
    let ten = NonZeroU16::new(10);
    let cases =
        [(Some("1"), None, QoS::AtLeastOnce), (Some("1"), None, QoS::ExactlyOnce), (None, ten, QoS::AtLeastOnce)];
    for (concurrency, receive_maximum, qos) in cases {
        for granted in [qos, QoS::AtMostOnce] {
            let broker = BrokerProcess::start(&[]);
            let mut connect = Connect::new(ProtocolVersion::V5, text("full"));
            connect.properties.receive_maximum = receive_maximum;
            connect.properties.user_properties =
                concurrency.map(|number| UserProperty::new(text("concurrency"), text(number))).into_iter().collect();
            let mut full = broker.connect(connect);
            full.subscribe(&share("group", TOPIC), QoS::ExactlyOnce);
            let mut stock = broker.v5("stock");
            stock.subscribe(&share("group", TOPIC), granted);
            Numbered { topics: &[TOPIC], count: 100, qos }.publish(&mut broker.v5("publisher"));
            let case = format!("{concurrency:?} {receive_maximum:?} {qos} {granted}");
            receive_all(&mut stock, &mut full, 100, &case);
        }
    }
}

#[test]
fn late_acknowledgement_brings_messages_that_waited_for_it() {
    let broker = BrokerProcess::start(&[]);
    let [mut full, mut stock] = [Some("1"), None].map(|told| worker(&broker, told.unwrap_or("stock"), told));
    let mut publisher = broker.v5("publisher");
    publish(&mut publisher, 0..4, QoS::AtLeastOnce);
    receive_all(&mut stock, &mut full, 4, "first messages");
    publish(&mut publisher, 4..12, QoS::AtLeastOnce);
    std::thread::sleep(Duration::from_millis(2_500));
    publish(&mut publisher, 12..32, QoS::AtLeastOnce);
    receive_all(&mut stock, &mut full, 28, "late");
}

#[test]
fn worker_that_comes_back_gets_no_more_than_it_can_begin_with() {
    let broker = BrokerProcess::start(&[]);
    let mut worker = broker.connect(one_at_a_time("worker"));
    worker.subscribe(&share("group", TOPIC), QoS::AtLeastOnce);
    worker.disconnect();
    publish(&mut broker.v5("publisher"), 0..5, QoS::AtLeastOnce);
    // More than it can begin with, as many wait, but not all.
    let mut worker = broker.connect(one_at_a_time("worker"));
    let begun = [(); 4].map(|()| worker.receive_publish());
    assert_eq!(begun.each_ref().map(number), [0, 1, 2, 3]);
    worker.expect_nothing_waiting();
    begun.iter().for_each(|publish| worker.acknowledge(publish));
    assert_eq!(number(&worker.receive_publish()), 4);
}

/// Such a member begins with a message when it is written: no acknowledgement serves the backlog.
#[test]
fn messages_wait_for_no_acknowledgement_of_a_member_at_qos_0() {
    let broker = BrokerProcess::start(&[]);
    let mut worker = broker.connect(one_at_a_time("worker"));
    worker.subscribe(&share("group", TOPIC), QoS::AtMostOnce);
    let together = Numbered { topics: &[TOPIC], count: 5, qos: QoS::AtLeastOnce };
    together.publish(&mut broker.v5("publisher"));
    let got: Vec<_> = (0..5).map(|_| number(&worker.receive_message())).collect();
    assert_eq!(got, [0, 1, 2, 3, 4]);
}

#[test]
fn quiet_publisher_does_not_wait_for_the_burst_of_another() {
    for fair_by in ["publisher", "off"] {
        let file = ConfigFile::new(&format!("[[share]]\nfair_by = \"{fair_by}\""));
        let broker = BrokerProcess::start(&["--config", file.path()]);
        let mut worker = worker(&broker, "worker", Some("1"));
        publish(&mut broker.v5("loud"), 0..40, QoS::AtLeastOnce);
        publish(&mut broker.v5("quiet"), 40..42, QoS::AtLeastOnce);
        let got: Vec<_> = (0..42)
            .map(|_| {
                let publish = worker.receive_publish();
                worker.acknowledge(&publish);
                number(&publish)
            })
            .collect();
        if fair_by == "publisher" {
            let last_of_quiet = got.iter().position(|&number| number == 41);
            assert!(last_of_quiet.is_some_and(|place| place < 20), "{got:?}");
            let (quiet, loud): (Vec<usize>, Vec<usize>) = got.iter().partition(|&&number| number >= 40);
            assert!(quiet.is_sorted() && loud.is_sorted(), "{got:?}");
        } else {
            assert_eq!(got, (0..42).collect::<Vec<_>>());
        }
    }
}
