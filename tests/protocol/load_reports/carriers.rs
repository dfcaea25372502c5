//! A report has the same effect with every carrier.

use tenbin_codec::{PacketType, ProtocolVersion, QoS};

use crate::load_reports::group::{BUSY, Carrier, Group, IDLE, ack, packet, user_property};

#[test]
fn every_carrier_changes_the_choice_in_both_directions() {
    let mut group = Group::new();
    // The balancer uses the mean of five reports, so five new reports replace the last round.
    for carrier in Carrier::ALL {
        for busy in [0, 1] {
            (0..5).for_each(|_| group.report_busy(busy, carrier));
            group.assert_all_go_to(1 - busy, &format!("{carrier:?}"));
        }
    }
    group.assert_rejections(0);
}

#[test]
fn at_3_1_1_a_published_report_counts_too() {
    let mut group = Group::of(ProtocolVersion::V311);
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for busy in [0, 1] {
            (0..5).for_each(|_| group.report_busy(busy, Carrier::Publish(qos)));
            group.assert_all_go_to(1 - busy, &format!("QoS {qos}"));
        }
    }
}

#[test]
fn first_load_property_counts_among_other_properties() {
    let mut group = Group::new();
    group.report(0, Carrier::PingReq, IDLE);
    group.publisher.publish("mail/1", "x", QoS::AtLeastOnce);
    let message = group.members[1].receive_publish();
    let id = message.packet_id.expect("QoS 1").get().to_be_bytes();
    let reason_string = b"\x1F\x00\x04done";
    let properties = [
        &reason_string[..],
        &user_property(b"lo", IDLE),
        &user_property(b"loads", IDLE),
        &user_property(b"load", BUSY),
        &user_property(b"load", IDLE),
    ]
    .concat();
    assert!(properties.len() > 127 && properties.len() < 16_384);
    let length = [(properties.len() & 127) as u8 | 128, (properties.len() >> 7) as u8];
    group.members[1].send_bytes(&packet(0x40, &[&id[..], &[0], &length, &properties].concat()));
    group.members[1].settle();
    group.assert_all_go_to(0, "the other one says that it is busy");
}

#[test]
fn ack_of_an_unknown_id_still_carries_a_report() {
    let mut group = Group::new();
    group.report(0, Carrier::PingReq, IDLE);
    // PUBACK of an identifier that is not in use, as after a restart.
    let property = user_property(b"load", BUSY);
    let body = [&b"\x77\x77\x00"[..], &[property.len() as u8], &property].concat();
    group.members[1].send_bytes(&packet(0x40, &body));
    group.members[1].settle();
    group.assert_all_go_to(0, "the other one says that it is busy");
}

#[test]
fn illegal_ack_carries_no_report() {
    let mut group = Group::new();
    group.publisher.publish("mail/1", "x", QoS::ExactlyOnce);
    let message = group.members[1].receive_publish();
    group.members[1].send_bytes(&ack(0x40, &message, b"no report"));
    assert_eq!(group.members[1].receive().packet_type(), PacketType::Disconnect, "PUBACK of QoS 2");
    group.members[1].expect_closed();
    group.assert_rejections(0);
}
