//! Each of the 32 events of the thesis' table 4 happens, and is told once.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use tenbin_broker::hooks::Events;
use tenbin_codec::{
    Ack, Auth, AuthProperties, Connect, ConnectProperties, Packet, PacketType, PingReq, ProtocolVersion, Publish, QoS,
    ReasonCode, Will,
};

use crate::hooks::recorder::{Everything, Logins, Recorder, Rights};
use crate::hooks::stage::Stage;
use crate::support::{RawClient, lasting, message, retained, text, topic, with_expiry};

/// Rows of the table with the event of [`Recorder`] that [`make_all_happen`] causes once.
const ROWS: [(&str, &str); 32] = [
    ("OnStarted", "started 0"),
    ("OnStopped", "stopped "),
    ("OnConnectAuthenticate", "authenticate visitor"),
    ("OnACLCheck", "authorize visitor news"),
    ("OnSysInfoTick", "sys_tick 0"),
    ("OnConnect", "connect visitor"),
    ("OnSessionEstablish", "session_establish visitor"),
    ("OnSessionEstablished", "session_established visitor false"),
    ("OnDisconnect", "disconnected visitor Some(Success)"),
    ("OnAuthPacket", "auth_packet "),
    ("OnPacketRead", "packet_read visitor PINGREQ"),
    ("OnPacketEncode", "packet_encode visitor PINGRESP"),
    ("OnPacketSent", "packet_sent visitor PINGRESP 2"),
    ("OnPacketProcessed", "packet_processed visitor PINGREQ Ok(())"),
    ("OnSubscribe", "subscribe visitor news"),
    ("OnSubscribed", "subscribed visitor news 0x1"),
    ("OnSelectSubscribers", "select news [\"visitor\"]"),
    ("OnUnsubscribe", "unsubscribe visitor news"),
    ("OnUnsubscribed", "unsubscribed visitor news 0x0"),
    ("OnPublish", "publish visitor news"),
    ("OnPublished", "published visitor news 1"),
    ("OnPublishDropped", "dropped sleeper lost Offline"),
    ("OnRetainMessage", "retained kept"),
    ("OnRetainPublished", "retained_sent visitor kept"),
    ("OnQosPublish", "qos_sent visitor news 1"),
    ("OnQosComplete", "qos_complete visitor news"),
    ("OnQosDropped", "qos_dropped narrow Refused"),
    ("OnPacketIDExhausted", "send_quota_exhausted narrow"),
    ("OnWill", "will mortal last"),
    ("OnWillSent", "will_sent mortal last 0"),
    ("OnClientExpired", "session_expired brief"),
    ("OnRetainedExpired", "retained_expired fleeting"),
];

#[test]
fn each_event_of_the_table_is_told_once() {
    let recorder = Recorder::default();
    let mut stage = Stage::start("[sys]\ninterval_seconds = 3600\n", |builder| {
        let (logins, rights) = (Logins(recorder.clone()), Rights(recorder.clone()));
        builder.hooks(Everything(recorder.clone())).authenticator(logins).authorizer(rights)
    });
    make_all_happen(&stage, &recorder);
    stage.shutdown();
    for (row, event) in ROWS {
        recorder.wait_for(event);
        assert_eq!(recorder.count(event), 1, "{row}: {event}");
    }
}

/// Events beyond the table. The test of webhooks makes them happen.
const MORE: [&str; 7] =
    ["slow_begun", "slow_ended", "group_backlog", "dead_letter", "denied", "leader_changed", "copies_changed"];

#[test]
fn table_has_each_event_of_the_trait() {
    let rows: BTreeSet<_> = ROWS.iter().filter_map(|(_, event)| event.split(' ').next()).chain(MORE).collect();
    let traits = ["authenticate", "auth_packet", "authorize"];
    let events: BTreeSet<_> = Events::ALL.iter().map(|(name, _)| *name).chain(traits).collect();
    assert_eq!(rows, events);
}

fn make_all_happen(stage: &Stage, recorder: &Recorder) {
    recorder.wait_for("sys_tick 0");
    let mut visitor = visit(stage);
    visitor.send(&Packet::PingReq(PingReq::PLAIN));
    visitor.wait_for(PacketType::PingResp);
    visitor.subscribe("news", QoS::AtLeastOnce);
    visitor.publish("news", "1", QoS::AtLeastOnce);
    let news = received(&mut visitor);
    assert_eq!(mark_of(&news), ["seen-by"], "the hook has added it to the packet");
    visitor.acknowledge(&news);
    recorder.wait_for("qos_complete visitor news");
    visitor.unsubscribe(&["news"]);
    visitor.publish_with(retained("kept", "1"));
    visitor.subscribe("kept", QoS::AtMostOnce);
    received(&mut visitor);
    let fleeting = with_expiry(retained("fleeting", "1"), 1);
    visitor.publish_with(fleeting);

    let mut sleeper = stage.connect_with(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("lost", QoS::AtMostOnce);
    sleeper.disconnect();
    visitor.publish("lost", "1", QoS::AtMostOnce);
    recorder.wait_for("dropped sleeper lost Offline");

    exhaust_a_quota(stage, &mut visitor);

    let mut mortal = Connect::new(ProtocolVersion::V5, text("mortal"));
    let (qos, payload) = (QoS::AtMostOnce, "1".into());
    mortal.will =
        Some(Will { qos, retain: false, topic: topic("last"), payload, delay_interval: None, properties: None });
    stage.connect_with(mortal).cut();
    recorder.wait_for("will_sent mortal last 0");

    let mut brief = lasting(ProtocolVersion::V5, "brief");
    brief.properties.session_expiry_interval = Some(1);
    stage.connect_with(brief).disconnect();
    recorder.wait_for("session_expired brief");
    recorder.wait_for("retained_expired fleeting");
    visitor.disconnect();
    recorder.wait_for("disconnected visitor Some(Success)");
}

/// Connects by an exchange of AUTH. The CONNACK has a User Property of the hooks.
fn visit(stage: &Stage) -> RawClient {
    let method = Some(text("steps"));
    let properties = ConnectProperties { authentication_method: method.clone(), ..ConnectProperties::default() };
    let connect = Connect { properties, ..Connect::new(ProtocolVersion::V5, text("visitor")) };
    let mut visitor = RawClient::open(stage.address(), ProtocolVersion::V5);
    visitor.send(&Packet::Connect(Box::new(connect)));
    visitor.wait_for(PacketType::Auth);
    let properties = AuthProperties { authentication_method: method, ..AuthProperties::default() };
    visitor.send(&Packet::Auth(Box::new(Auth { reason: ReasonCode::ContinueAuthentication, properties })));
    let Packet::ConnAck(connack) = visitor.wait_for(PacketType::ConnAck) else { unreachable!("its type") };
    let names: Vec<_> = connack.properties.user_properties.iter().map(|property| property.name.as_str()).collect();
    assert_eq!(names, ["seen-by"]);
    visitor
}

/// A client that accepts one message at a time refuses the first one.
fn exhaust_a_quota(stage: &Stage, publisher: &mut RawClient) {
    let mut connect = Connect::new(ProtocolVersion::V5, text("narrow"));
    connect.properties.receive_maximum = NonZeroU16::new(1);
    let mut narrow = stage.connect_with(connect);
    narrow.subscribe("work", QoS::AtLeastOnce);
    publisher.publish_with(Publish { qos: QoS::AtLeastOnce, ..message("work", "1") });
    let work = received(&mut narrow);
    let refusal = Ack::new(work.packet_id.expect("QoS 1"), ReasonCode::UnspecifiedError);
    narrow.send(&Packet::PubAck(refusal));
    narrow.settle();
    narrow.disconnect();
}

fn received(client: &mut RawClient) -> Publish {
    let Packet::Publish(publish) = client.wait_for(PacketType::Publish) else { unreachable!("its type") };
    publish
}

fn mark_of(publish: &Publish) -> Vec<&str> {
    let properties = publish.properties.iter().flat_map(|properties| &properties.user_properties);
    properties.map(|property| property.name.as_str()).collect()
}
