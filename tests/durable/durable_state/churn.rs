//! Clients connect, take over, start cleanly and leave while the broker is killed: sessions match their CONNACKs and
//! SUBACKs.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use tenbin_codec::{Connect, Disconnect, DisconnectProperties, Packet, ProtocolVersion, QoS, ReasonCode, Subscribe};

use super::expiring;
use super::random::{announced_seed, rounds_or};
use crate::support::DataDirectory;
use crate::support::{BrokerProcess, Dice, PATIENCE, RawClient, encode, lasting, subscription};

/// Default; `TENBIN_ROUNDS` overrides it.
const ROUNDS: usize = 5;
const CLIENTS: usize = 4;

/// `None` without a session, otherwise whether it is subscribed.
type Session = Option<bool>;

/// Possible sessions of each client.
type Possible = [Vec<Session>; CLIENTS];

#[test]
fn sessions_match_their_answers_after_a_kill_at_any_time() {
    let mut random = Dice::new(announced_seed(), 0);
    let stage = DataDirectory::new();
    let mut possible: Possible = std::array::from_fn(|_| vec![None]);
    let (rounds, mut told) = (rounds_or(ROUNDS), 0);
    for round in 0..rounds {
        let broker = stage.start();
        look(&broker, &mut possible, round);
        let (address, lives) = (broker.address(), Duration::from_millis(100 + random.within(0..200)));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(lives);
            drop(broker);
        });
        told += churn(address, &mut possible, &mut random);
        killer.join().expect("it only waits");
    }
    look(&stage.start(), &mut possible, rounds);
    let _ = writeln!(std::io::stderr(), "{told} times told");
    assert!(told > 10 * rounds, "{told} in {rounds} rounds");
}

/// Asserts that each session is a possible one, which from here on is the only possible one.
fn look(broker: &BrokerProcess, possible: &mut Possible, round: usize) {
    let mut publisher = broker.v5("publisher");
    for (number, may_be) in possible.iter_mut().enumerate() {
        let (mut client, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, &name(number)));
        let is_subscribed = publisher.publish(&name(number), "", QoS::AtLeastOnce) == ReasonCode::Success;
        let is = connack.session_present.then_some(is_subscribed);
        assert!(may_be.contains(&is), "round {round}: {} is {is:?}, and may be {may_be:?}", name(number));
        assert_eq!(!client.drain().is_empty(), is_subscribed);
        *may_be = vec![Some(is_subscribed)];
        client.disconnect();
    }
}

/// Changes sessions until the broker is gone. Returns the number of its answers.
fn churn(address: SocketAddr, possible: &mut Possible, random: &mut Dice) -> usize {
    let (mut open, mut told) = (Vec::new(), 0);
    loop {
        let number = random.within(0..CLIENTS as u64) as usize;
        let step = come_and_go(address, number, &mut possible[number], random, &mut open);
        match step {
            Some(count) => told += count,
            None => return told,
        }
        if open.len() > CLIENTS {
            open.remove(0);
        }
    }
}

/// Opens one connection of a client. Returns the number of answers, or `None` if the broker is gone.
fn come_and_go(
    address: SocketAddr,
    number: usize,
    may_be: &mut Vec<Session>,
    random: &mut Dice,
    open: &mut Vec<RawClient>,
) -> Option<usize> {
    let expiry = [0, 600, u32::MAX][random.within(0..3) as usize];
    let connect = Connect { clean_start: random.within(0..3) == 0, ..expiring(&name(number), expiry) };
    let clean_start = connect.clean_start;
    // Until CONNACK, the broker may or may not have applied the CONNECT.
    let before = may_be.clone();
    let goes_on = |session: &Session| match expiry {
        0 => None,
        _ => Some(session.unwrap_or(false) && !clean_start),
    };
    may_be.extend(before.iter().map(goes_on));
    if clean_start {
        may_be.push(None); // the old one has ended, the new one has not begun
    }
    let mut client = RawClient::try_open(address, ProtocolVersion::V5)?;
    client.try_send_bytes(&encode(&Packet::Connect(Box::new(connect)), ProtocolVersion::V5));
    let Ok(Packet::ConnAck(connack)) = client.try_receive(PATIENCE) else { return None };
    assert_eq!(connack.reason, ReasonCode::Success);
    let was: Vec<_> = match connack.session_present {
        true => before.iter().filter(|session| session.is_some() && !clean_start).collect(),
        false => before.iter().filter(|session| session.is_none() || clean_start).collect(),
    };
    let present = connack.session_present;
    assert!(
        !was.is_empty(),
        "{}: Session Present {present}, clean start {clean_start}, may be {before:?}",
        name(number)
    );
    *may_be = was.into_iter().map(goes_on).collect();
    let mut told = 1;
    if random.within(0..2) == 0 {
        let (packet_id, user_properties) = (client.next_id(), Vec::new());
        let subscriptions = vec![subscription(&name(number), QoS::AtLeastOnce)];
        let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions };
        if expiry > 0 {
            may_be.push(Some(true));
        }
        client.try_send_bytes(&encode(&Packet::Subscribe(subscribe), ProtocolVersion::V5));
        if random.within(0..3) > 0 {
            let Ok(Packet::SubAck(_)) = client.try_receive(PATIENCE) else { return None };
            *may_be = vec![(expiry > 0).then_some(true)];
            told += 1;
        }
    }
    match random.within(0..4) {
        0 => client.cut(),
        1 => open.push(client), // the next connection takes over
        2 => client.try_send_bytes(&encode(&disconnect(None), ProtocolVersion::V5)),
        _ => {
            may_be.push(None);
            client.try_send_bytes(&encode(&disconnect(Some(0)), ProtocolVersion::V5));
        }
    }
    Some(told)
}

fn disconnect(session_expiry_interval: Option<u32>) -> Packet {
    let properties = DisconnectProperties { session_expiry_interval, ..DisconnectProperties::default() };
    Packet::Disconnect(Disconnect { reason: ReasonCode::Success, properties: Some(Box::new(properties)) })
}

fn name(number: usize) -> String {
    format!("client{number}")
}
