use std::time::{Duration, Instant};

use tenbin_client::{
    ClientEvent, ClientOptions, DisconnectReason, LoadReport, LoadReporter, ProtocolVersion, QoS, Reconnect,
    ReportCarrier, Violation,
};
use tenbin_codec::{ConnAck, Packet, PingReq, ReasonCode};

use crate::script::{Peer, Server, next, next_message};

/// Returns the next ping and answers it. Skips other packets.
async fn next_ping(peer: &mut Peer) -> PingReq {
    loop {
        if let Packet::PingReq(ping) = peer.receive().await {
            peer.send(Packet::PingResp).await;
            return ping;
        }
    }
}

async fn next_report(peer: &mut Peer) -> LoadReport {
    let body = next_ping(peer).await.body.expect("an extended ping");
    assert!(body.user_properties.is_empty());
    LoadReport::from_json(&body.payload).expect("a report")
}

/// Options of a client that requires extended pings.
fn in_pings(server: &Server, reporter: LoadReporter) -> ClientOptions {
    server.options().load_reporter(reporter).report_carrier(ReportCarrier::PingReq)
}

#[tokio::test]
async fn reports_come_at_the_interval_and_reset_the_mean() {
    let server = Server::start().await;
    let interval = Duration::from_millis(100);
    let reporter = LoadReporter::new(interval).eager(false);
    let before = Instant::now();
    let (_client, mut events, mut peer) = server.client(in_pings(&server, reporter.clone())).await;
    assert_eq!(next_report(&mut peer).await, LoadReport::default());
    assert!(before.elapsed() >= interval, "the first comes one interval after CONNACK");

    for text in ["a", "b", "c"] {
        peer.publish(QoS::AtMostOnce, 0, false, text).await;
    }
    for _ in 0..3 {
        next_message(&mut events).await;
    }
    // Early reports may come in between; together they must account for all messages.
    reporter.started();
    reporter.finish_after(Duration::from_millis(40));
    let report = loop {
        let report = next_report(&mut peer).await;
        if report.processing_time > Duration::ZERO {
            break report;
        }
    };
    assert_eq!(
        report,
        LoadReport { messages_in_queue: 2, processing_time: Duration::from_millis(40), draining: false }
    );
    let report = next_report(&mut peer).await;
    assert_eq!(report, LoadReport { messages_in_queue: 2, processing_time: Duration::ZERO, draining: false });
    assert!(before.elapsed() >= interval * 3);
}

#[tokio::test]
async fn the_report_is_the_json_of_the_thesis() {
    let server = Server::start().await;
    let reporter = LoadReporter::new(Duration::from_millis(50));
    reporter.finish_after(Duration::from_micros(25_400));
    let (_client, _events, mut peer) = server.client(in_pings(&server, reporter)).await;
    let payload = next_ping(&mut peer).await.body.unwrap().payload;
    assert_eq!(payload, &br#"{"msgsInQueue":0,"processingTimePerMsg":25.4}"#[..]);
}

#[tokio::test]
async fn a_keep_alive_shorter_than_the_interval_is_the_interval() {
    let server = Server::start().await;
    let reporter = LoadReporter::new(Duration::from_secs(3600));
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.server_keep_alive = Some(1); // replaces the client's 60 s
    let options = in_pings(&server, reporter);
    let (connected, mut peer) = server.answer(options, connack).await;
    let _client = connected.unwrap();
    assert_eq!(next_report(&mut peer).await, LoadReport::default());
}

#[tokio::test]
async fn pings_are_plain_at_3_1_1_and_without_reporter() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let server = Server::start().await;
        let mut options = server.options().version(version).keep_alive(Duration::from_secs(1));
        if version == ProtocolVersion::V311 {
            let reporter = LoadReporter::new(Duration::from_millis(10));
            options = options.load_reporter(reporter).report_carrier(ReportCarrier::PingReq);
        }
        let before = Instant::now();
        let (_client, _events, mut peer) = server.client(options).await;
        assert_eq!(next_ping(&mut peer).await, PingReq::PLAIN);
        assert!(before.elapsed() >= Duration::from_secs(1));
    }
}

#[tokio::test]
async fn unanswered_ping_ends_the_connection() {
    let server = Server::start().await;
    let options = server.options().keep_alive(Duration::from_secs(1)).reconnect(Reconnect::Never);
    let (_client, mut events, mut peer) = server.client(options).await;
    assert_eq!(peer.receive().await, Packet::PingReq(PingReq::PLAIN));
    let event = next(&mut events).await;
    let is_ping_missing =
        matches!(&event, ClientEvent::Disconnected { reason: DisconnectReason::Violation(Violation::PingResponse) });
    assert!(is_ping_missing, "{event:?}");
}
