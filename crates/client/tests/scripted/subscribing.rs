use tenbin_client::{
    Client, ClientErrorKind, ProtocolVersion, QoS, ReasonCode, Subscription, SubscriptionOptions, TopicFilter,
};
use tenbin_codec::{ConnAck, Packet, PacketId, SubAck, UnsubAck};

use crate::script::{Peer, Server, within};

pub(crate) fn subscription(filter: &str, qos: QoS) -> Subscription {
    Subscription { filter: TopicFilter::try_from(filter).unwrap(), options: SubscriptionOptions::at(qos) }
}

pub(crate) async fn grant(peer: &mut Peer, packet_id: PacketId, reasons: Vec<ReasonCode>) {
    peer.send(Packet::SubAck(SubAck { packet_id, properties: Default::default(), reasons })).await;
}

/// Answers the next SUBSCRIBE, and returns its filters.
pub(crate) async fn answer_subscribe(peer: &mut Peer, reasons: Vec<ReasonCode>) -> Vec<String> {
    match peer.receive().await {
        Packet::Subscribe(subscribe) => {
            grant(peer, subscribe.packet_id, reasons).await;
            subscribe.subscriptions.iter().map(|subscription| subscription.filter.to_string()).collect()
        }
        packet => panic!("not SUBSCRIBE: {packet:?}"),
    }
}

/// Subscribes to one filter, which the broker grants.
pub(crate) async fn subscribe(client: &Client, peer: &mut Peer, filter: &str) {
    let subscriptions = vec![subscription(filter, QoS::AtLeastOnce)];
    let (granted, filters) =
        tokio::join!(client.subscribe(subscriptions), answer_subscribe(peer, vec![ReasonCode::GrantedQoS1]));
    assert_eq!(granted.unwrap(), [ReasonCode::GrantedQoS1]);
    assert_eq!(filters, [filter]);
}

#[tokio::test]
async fn answers_come_filter_by_filter() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options()).await;
    let reasons = vec![ReasonCode::GrantedQoS2, ReasonCode::NotAuthorized];
    let wanted = vec![subscription("a", QoS::ExactlyOnce), subscription("b", QoS::ExactlyOnce)];
    let (granted, filters) = tokio::join!(client.subscribe(wanted), answer_subscribe(&mut peer, reasons.clone()));
    assert_eq!(granted.unwrap(), reasons);
    assert_eq!(filters, ["a", "b"]);

    let filters = vec![TopicFilter::try_from("a").unwrap(), TopicFilter::try_from("z").unwrap()];
    let reasons = vec![ReasonCode::Success, ReasonCode::NoSubscriptionExisted];
    let (ended, ()) = tokio::join!(client.unsubscribe(filters), async {
        let Packet::Unsubscribe(unsubscribe) = peer.receive().await else { panic!("not UNSUBSCRIBE") };
        let answer =
            UnsubAck { packet_id: unsubscribe.packet_id, properties: Default::default(), reasons: reasons.clone() };
        peer.send(Packet::UnsubAck(answer)).await;
    });
    assert_eq!(ended.unwrap(), reasons);
}

#[tokio::test]
async fn unsuback_of_3_1_1_counts_as_success_for_all() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options().version(ProtocolVersion::V311)).await;
    subscribe(&client, &mut peer, "a").await;
    let filters = vec![TopicFilter::try_from("a").unwrap(), TopicFilter::try_from("b").unwrap()];
    let (ended, ()) = tokio::join!(client.unsubscribe(filters), async {
        let Packet::Unsubscribe(unsubscribe) = peer.receive().await else { panic!("not UNSUBSCRIBE") };
        let answer = UnsubAck { packet_id: unsubscribe.packet_id, properties: Default::default(), reasons: vec![] };
        peer.send(Packet::UnsubAck(answer)).await;
    });
    assert_eq!(ended.unwrap(), [ReasonCode::Success; 2]);
}

#[tokio::test]
async fn invalid_subscriptions_are_the_callers_error() {
    let server = Server::start().await;
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.maximum_packet_size = 100.try_into().ok();
    let (connected, _peer) = server.answer(server.options(), connack).await;
    let (client, _events) = connected.unwrap();
    let mut shared = subscription("$share/g/a", QoS::AtMostOnce);
    shared.options.no_local = true;
    for wanted in [vec![], vec![shared]] {
        let error = within(client.subscribe(wanted)).await.unwrap_err();
        assert!(matches!(error.kind(), ClientErrorKind::Invalid(_)), "{error}");
    }
    let error = within(client.unsubscribe(vec![])).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Invalid(_)), "{error}");
    let long = subscription(&"x".repeat(100), QoS::AtMostOnce);
    let error = within(client.unsubscribe(vec![long.filter.clone()])).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::PacketTooLarge));
    let error = within(client.subscribe(vec![long])).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::PacketTooLarge));
}
