//! A QoS 1 or 2 message acknowledged with success reaches all its receivers. A message without room is refused.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode};

use super::{narrow, number_of, numbered, publish_all};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, Dice, PATIENCE, RawClient, lasting, seed, text};

const BOTH: [QoS; 2] = [QoS::AtLeastOnce, QoS::ExactlyOnce];

fn ephemeral(queue: &str) -> BrokerProcess {
    let config = ConfigFile::new(&format!("[queue]\n{queue}\n"));
    BrokerProcess::start(&["--config", config.path(), "--ephemeral"])
}

/// Publishes messages in one write. Returns the numbers acknowledged with success; all others were refused.
fn publish_numbers(publisher: &mut RawClient, messages: Vec<Publish>) -> BTreeSet<usize> {
    let numbers: Vec<_> = messages.iter().map(number_of).collect();
    let reasons = publish_all(publisher, messages);
    let mut accepted = BTreeSet::new();
    for (number, reason) in numbers.into_iter().zip(reasons) {
        match reason {
            ReasonCode::Success => drop(accepted.insert(number)),
            reason => assert_eq!(reason, ReasonCode::QuotaExceeded, "message {number}"),
        }
    }
    accepted
}

/// Receives and acknowledges until all `wanted` messages have reached a client. Returns their numbers in order of
/// arrival.
fn collect(clients: &mut [RawClient], wanted: &BTreeSet<usize>, what: &str) -> Vec<usize> {
    let mut missing = wanted.clone();
    let mut came = Vec::new();
    let until = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        let lost = (missing.len(), missing.first());
        assert!(Instant::now() < until, "{what}: {lost:?} and others of {} have not come", wanted.len());
        for client in &mut *clients {
            while let Ok(Packet::Publish(publish)) = client.try_receive(Duration::from_millis(20)) {
                client.acknowledge(&publish);
                missing.remove(&number_of(&publish));
                came.push(number_of(&publish));
            }
        }
    }
    for client in clients {
        came.extend(client.drain().iter().map(number_of));
    }
    came
}

#[test]
fn chunk_beyond_the_room_of_an_absent_session_is_refused() {
    for qos in BOTH {
        let broker = ephemeral("messages_maximum = 40");
        let mut away = broker.connect(lasting(ProtocolVersion::V5, "away"));
        away.subscribe("topic", QoS::ExactlyOnce);
        away.disconnect();
        let messages = (0..200).map(|number| numbered("topic", number, 100, qos)).collect();
        let accepted = publish_numbers(&mut broker.v5("publisher"), messages);
        assert!((1..=40).contains(&accepted.len()), "{} of 200 are acknowledged, 40 have room", accepted.len());
        let away = broker.connect(lasting(ProtocolVersion::V5, "away"));
        let came = collect(&mut [away], &accepted, "absent session");
        assert_eq!(came, accepted.into_iter().collect::<Vec<_>>(), "{qos}");
    }
}

#[test]
fn chunks_beyond_the_room_of_a_slow_receiver_are_refused() {
    let broker = ephemeral("");
    let mut slow = broker.connect(narrow(Connect::new(ProtocolVersion::V5, text("slow")), 16));
    slow.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let mut accepted = BTreeSet::new();
    for first in (0..20_000).step_by(1000) {
        let messages = (first..first + 1000).map(|number| numbered("topic", number, 16, QoS::AtLeastOnce)).collect();
        accepted.append(&mut publish_numbers(&mut publisher, messages));
    }
    assert!((16_000..17_500).contains(&accepted.len()), "a queue has 16,384 places: {}", accepted.len());
    let came = collect(&mut [slow], &accepted, "slow receiver");
    assert_eq!(came, accepted.into_iter().collect::<Vec<_>>());
}

#[test]
fn chunk_beyond_the_room_of_a_share_group_is_refused() {
    for qos in BOTH {
        for is_away in [true, false] {
            let broker = ephemeral("messages_maximum = 40");
            let member = |name: &str| broker.connect(narrow(lasting(ProtocolVersion::V5, name), 3));
            let mut members: Vec<_> = ["one", "two"].into_iter().map(member).collect();
            for member in &mut members {
                member.subscribe("$share/group/topic", QoS::ExactlyOnce);
            }
            if is_away {
                members.drain(..).for_each(RawClient::disconnect);
            }
            let messages = (0..400).map(|number| numbered("topic", number, 100, qos)).collect();
            let accepted = publish_numbers(&mut broker.v5("publisher"), messages);
            // Each member's queue, the group backlog, and the messages in flight.
            assert!((1..=3 * 40 + 2 * 3).contains(&accepted.len()), "{}", accepted.len());
            if is_away {
                members = ["one", "two"].into_iter().map(member).collect();
            }
            let mut came = collect(&mut members, &accepted, "share group");
            came.sort_unstable();
            assert_eq!(came, accepted.into_iter().collect::<Vec<_>>(), "{qos}, away: {is_away}");
        }
    }
}

#[test]
fn messages_of_a_lost_member_wait_beyond_the_limits() {
    let broker = ephemeral("messages_maximum = 40");
    let mut members: Vec<_> = (0..6).map(|number| broker.v5(&format!("member-{number}"))).collect();
    let stays = broker.connect(lasting(ProtocolVersion::V5, "stays"));
    for member in members.iter_mut().chain([&mut { stays }]) {
        member.subscribe("$share/group/topic", QoS::AtLeastOnce);
    }
    let mut publisher = broker.v5("publisher");
    let messages = (0..200).map(|number| numbered("topic", number, 100, QoS::AtLeastOnce)).collect();
    let accepted = publish_numbers(&mut publisher, messages);
    assert!(accepted.len() > 100, "seven members have room for more: {}", accepted.len());
    members.into_iter().for_each(RawClient::cut);
    let stays = broker.connect(lasting(ProtocolVersion::V5, "stays"));
    collect(&mut [stays], &accepted, "the members that are gone had more than the group's line holds");
}

/// Several kinds of receivers, with random limits, sizes and chunks: no acknowledged message is lost, with or without a
/// store.
#[test]
fn acknowledged_messages_arrive_whatever_the_limits() {
    let seed = seed("TENBIN_ACCOUNTED_SEED");
    let _ = writeln!(std::io::stderr(), "TENBIN_ACCOUNTED_SEED={seed}");
    for round in 0..6 {
        let mut dice = Dice::new(seed, round);
        let (messages, bytes) = (dice.within(5..300), dice.within(5_000..300_000));
        let stored = dice.within(1_000..100_000);
        let config = ConfigFile::new(&format!(
            "[queue]\nmessages_maximum = {messages}\nbytes_maximum = {bytes}\n
            [store]\nsync = \"never\"\nqueue_bytes_maximum = {stored}\n"
        ));
        let directory = DataDirectory::new();
        let broker = match round % 2 {
            0 => BrokerProcess::start(&["--config", config.path(), "--ephemeral"]),
            _ => directory.start_with(&["--config", config.path()]),
        };
        let what = format!("round {round}: {messages} messages, {bytes} bytes, {stored} stored");
        any_limits(&broker, &mut dice, &what);
    }
}

fn any_limits(broker: &BrokerProcess, dice: &mut Dice, what: &str) {
    let mut own = |name: &str, filter: &str, lasts: bool| {
        let connect = match lasts {
            true => lasting(ProtocolVersion::V5, name),
            false => Connect::new(ProtocolVersion::V5, text(name)),
        };
        let mut client = broker.connect(narrow(connect, dice.within(1..20) as u16));
        client.subscribe(filter, QoS::ExactlyOnce);
        client
    };
    own("away", "own/away", true).disconnect();
    let slow = own("slow", "own/slow", false);
    let slow_lasting = own("slow-lasting", "own/slow-lasting", true);
    let everything = own("all", "#", false);
    let passing_members = [own("passing-1", "$share/passing/own/passing", false)];
    let lasting_members = ["lasting-1", "lasting-2"].map(|name| own(name, "$share/lasting/own/lasting", true));
    let topics = ["away", "slow", "slow-lasting", "passing", "lasting"];

    let mut publisher = broker.v5("publisher");
    let mut accepted: [BTreeSet<usize>; 5] = Default::default();
    let mut next = 0;
    for _ in 0..30 {
        let topic = dice.within(0..5) as usize;
        let chunk = (0..dice.within(1..200)).map(|_| {
            next += 1;
            numbered(&format!("own/{}", topics[topic]), next, dice.within(8..2000) as usize, BOTH[next % 2])
        });
        let chunk = chunk.collect();
        accepted[topic].append(&mut publish_numbers(&mut publisher, chunk));
    }
    let all = accepted.iter().flatten().copied().collect();
    let away = broker.connect(lasting(ProtocolVersion::V5, "away"));
    let mut receivers = [vec![away], vec![slow], vec![slow_lasting], passing_members.into(), lasting_members.into()];
    for (number, clients) in receivers.iter_mut().enumerate() {
        let came = collect(clients, &accepted[number], &format!("{what}, {}", topics[number]));
        let once: BTreeSet<_> = came.iter().copied().collect();
        assert_eq!(once.len(), came.len(), "{what}, {}: a message came twice", topics[number]);
    }
    collect(&mut [everything], &all, &format!("{what}, the one that wants everything"));
}
