//! Tests of the carriers of load reports, and of early reports.

use std::time::{Duration, Instant};

use tenbin_client::{
    AcknowledgeMode, Client, ClientOptions, Events, LoadReport, LoadReporter, ProtocolVersion, QoS, ReportCarrier,
};
use tenbin_codec::{ConnAck, Packet, PingReq, ReasonCode, ReportCarriers};

use crate::script::{Peer, Server, next_message};

const INTERVAL: Duration = Duration::from_millis(50);

#[tokio::test]
async fn without_announcement_no_reports_are_sent() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let server = Server::start().await;
        let reporter = LoadReporter::new(INTERVAL);
        let options = server.options().version(version).keep_alive(Duration::from_secs(1));
        let options = options.load_reporter(reporter.clone());
        let (_client, _events, mut peer) = server.client(options).await;
        // Every possible reason for a report.
        (0..100).for_each(|_| reporter.finish_after(Duration::from_millis(5)));
        reporter.drain();
        assert_eq!(peer.receive().await, Packet::PingReq(PingReq::PLAIN));
    }
}

#[tokio::test]
async fn best_announced_carrier_is_used() {
    for (told, expected) in [
        (&ReportCarrier::ALL[..], ReportCarrier::PingReq),
        (&[ReportCarrier::Publish, ReportCarrier::Ack], ReportCarrier::Publish),
        (&[ReportCarrier::Ack], ReportCarrier::Ack),
    ] {
        let server = Server::start().await;
        let options = server.options().load_reporter(LoadReporter::new(INTERVAL));
        let (_client, _events, mut peer) = told_client(&server, options, told).await;
        if expected == ReportCarrier::Ack {
            tokio::time::sleep(INTERVAL).await;
            peer.publish(QoS::AtLeastOnce, 7, false, "x").await;
        }
        let (carrier, _) = next_report(&mut peer).await;
        assert_eq!(carrier, expected);
    }
}

#[tokio::test]
async fn published_report_is_qos_0_message_to_load_topic() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let server = Server::start().await;
        let reporter = LoadReporter::new(INTERVAL);
        reporter.finish_after(Duration::from_millis(40));
        let options = server.options().version(version).load_reporter(reporter);
        let options = options.report_carrier(ReportCarrier::Publish);
        let (_client, _events, mut peer) = server.client(options).await;
        for expected in
            [r#"{"msgsInQueue":0,"processingTimePerMsg":40}"#, r#"{"msgsInQueue":0,"processingTimePerMsg":0}"#]
        {
            let publish = peer.receive_publish().await;
            assert_eq!(
                (publish.topic.as_bytes(), publish.qos, publish.retain),
                (&b"$load"[..], QoS::AtMostOnce, false)
            );
            assert_eq!(publish.payload, expected);
        }
    }
}

#[tokio::test]
async fn acknowledgements_carry_a_report_when_it_is_due() {
    for (mode, qos) in [
        (AcknowledgeMode::OnReceipt, QoS::AtLeastOnce),
        (AcknowledgeMode::OnReceipt, QoS::ExactlyOnce),
        (AcknowledgeMode::Manual, QoS::AtLeastOnce),
        (AcknowledgeMode::Manual, QoS::ExactlyOnce),
    ] {
        let server = Server::start().await;
        let reporter = LoadReporter::new(Duration::from_millis(200)).eager(false);
        let options = server.options().acknowledge(mode).load_reporter(reporter.clone());
        let before = Instant::now(); // The first interval begins with CONNACK.
        let (client, mut events, mut peer) = told_client(&server, options, &[ReportCarrier::Ack]).await;
        let mut reports = Vec::new();
        let mut messages = 0;
        while reports.len() < 3 {
            messages += 1;
            // A fast machine needs more messages than there are Packet Identifiers.
            let id = ((messages - 1) % u32::from(u16::MAX) + 1) as u16;
            peer.publish(qos, id, false, "x").await;
            let message = next_message(&mut events).await;
            if mode == AcknowledgeMode::Manual {
                reporter.started();
                reporter.finish_after(Duration::from_millis(3));
                client.acknowledge(&message);
            }
            reports.extend(ack_report(&mut peer).await);
            if mode == AcknowledgeMode::OnReceipt {
                reporter.started();
            }
        }
        assert!(before.elapsed() >= Duration::from_millis(600), "one in each interval, and not in each of {messages}");
        for report in reports {
            let expected = match mode {
                AcknowledgeMode::Manual => {
                    LoadReport { processing_time: Duration::from_millis(3), ..LoadReport::default() }
                }
                // Received and not taken out yet.
                AcknowledgeMode::OnReceipt => LoadReport { messages_in_queue: 1, ..LoadReport::default() },
            };
            assert_eq!(report, expected);
        }
    }
}

#[tokio::test]
async fn first_mean_and_growing_queue_are_reported_early() {
    let server = Server::start().await;
    let reporter = LoadReporter::new(Duration::from_secs(3600));
    let options = server.options().load_reporter(reporter.clone());
    let before = Instant::now();
    let (_client, mut events, mut peer) = told_client(&server, options, &ReportCarrier::ALL).await;
    reporter.finish_after(Duration::from_millis(7));
    let (_, report) = next_report(&mut peer).await;
    assert_eq!(report.processing_time, Duration::from_millis(7));
    let first = before.elapsed();
    assert!(first >= LoadReporter::EAGER_GAP);
    for _ in 0..4 {
        peer.publish(QoS::AtMostOnce, 0, false, "x").await;
    }
    let (_, report) = next_report(&mut peer).await;
    assert_eq!(report, LoadReport { messages_in_queue: 4, ..LoadReport::default() });
    assert!(before.elapsed() >= LoadReporter::EAGER_GAP * 2);
    // From another thread, while the client waits.
    let from_elsewhere = reporter.clone();
    tokio::task::spawn_blocking(move || from_elsewhere.finish_after(Duration::from_millis(70))).await.unwrap();
    assert_eq!(next_report(&mut peer).await.1.processing_time, Duration::from_millis(70));
    next_message(&mut events).await;
}

#[tokio::test]
async fn draining_is_in_early_and_all_later_reports() {
    let server = Server::start().await;
    let reporter = LoadReporter::new(Duration::from_secs(3600)).eager(false);
    let options = server.options().load_reporter(reporter.clone()).report_carrier(ReportCarrier::PingReq);
    let (_client, _events, mut peer) = server.client(options).await;
    for expected in [true, false, true] {
        if expected {
            reporter.drain()
        } else {
            reporter.resume()
        }
        assert_eq!(next_report(&mut peer).await.1.draining, expected);
    }
    drop(peer);
    let (mut peer, _) = server.welcome(false).await;
    assert!(next_report(&mut peer).await.1.draining);
}

/// Connects a client to a broker that announces these carriers.
async fn told_client(server: &Server, options: ClientOptions, told: &[ReportCarrier]) -> (Client, Events, Peer) {
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.user_properties.extend(told.iter().copied().collect::<ReportCarriers>().to_property());
    let (connected, peer) = server.answer(options, connack).await;
    let (client, mut events) = connected.unwrap();
    crate::script::next(&mut events).await;
    (client, events, peer)
}

/// Returns the next report and its carrier. Answers pings.
async fn next_report(peer: &mut Peer) -> (ReportCarrier, LoadReport) {
    let read = |json: &[u8]| LoadReport::from_json(json).expect("a report");
    loop {
        match peer.receive().await {
            Packet::PingReq(ping) => {
                peer.send(Packet::PingResp).await;
                if let Some(body) = ping.body {
                    return (ReportCarrier::PingReq, read(&body.payload));
                }
            }
            Packet::Publish(publish) if publish.topic.as_bytes() == b"$load" => {
                return (ReportCarrier::Publish, read(&publish.payload));
            }
            Packet::PubAck(ack) | Packet::PubRec(ack) => {
                if let Some(report) = ack.properties.as_ref().and_then(|properties| properties.load_report()) {
                    return (ReportCarrier::Ack, read(report.as_bytes()));
                }
            }
            _ => {}
        }
    }
}

/// Completes the handshake of one message, and returns the report in its acknowledgement.
async fn ack_report(peer: &mut Peer) -> Option<LoadReport> {
    let (ack, is_received) = match peer.receive().await {
        Packet::PubAck(ack) => (ack, false),
        Packet::PubRec(ack) => (ack, true),
        other => panic!("{other:?}"),
    };
    if is_received {
        peer.send(Packet::PubRel(crate::script::ack(ack.packet_id.get()))).await;
        assert_eq!(peer.receive().await, Packet::PubComp(crate::script::ack(ack.packet_id.get())));
    }
    let report = ack.properties.as_ref().and_then(|properties| properties.load_report())?;
    Some(LoadReport::from_json(report.as_bytes()).expect("a report"))
}
