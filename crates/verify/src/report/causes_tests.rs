use super::*;

const NONE: Samples<'_> = Samples { links: &[], sockets: &[], instances: &[], limits: &[], processor_limits: &[] };

fn during(from: u64, to: u64) -> Vec<Range<Time>> {
    vec![Time::from_secs(from)..Time::from_secs(to)]
}

/// Ten seconds of a connection, each like `sample`.
fn seconds(sample: &SocketSample) -> Vec<SocketSample> {
    (0..10).map(|second| SocketSample { second, ..sample.clone() }).collect()
}

fn connection(from: &str, to: &str) -> SocketSample {
    let (from, to) = (from.to_owned(), to.to_owned());
    SocketSample { from, to, port: 9092, peer_port: 40000, rtt_ms: 10.2, ..SocketSample::default() }
}

fn texts(samples: &Samples<'_>, times: &[Range<Time>]) -> Vec<String> {
    causes(samples, times).iter().map(|cause| format!("{}: {}", cause.subject, cause.text)).collect()
}

fn of_sockets(sockets: &[SocketSample]) -> Vec<String> {
    texts(&Samples { sockets, ..NONE }, &during(2, 8))
}

#[test]
fn small_window_at_a_long_round_trip_is_named() {
    let limited = SocketSample {
        send_window: 60 * 1024,
        acknowledged: 5_500_000,
        busy: 0.99,
        receiver_limited: 0.93,
        unsent: 9000,
        ..connection("broker-1", "broker-2")
    };
    let found = of_sockets(&seconds(&limited));
    assert_eq!(found, ["broker-1 → broker-2: window 60 KiB at 10.2 ms, so at most 6.0 MB/s (93 % of the time)"]);
    // Only in the seconds of the phase, and not if the connection was faster than the bound.
    assert_eq!(texts(&Samples { sockets: &seconds(&limited), ..NONE }, &during(20, 30)), [""; 0]);
    assert_eq!(of_sockets(&seconds(&SocketSample { acknowledged: 50_000_000, ..limited.clone() })), [""; 0]);
    assert_eq!(of_sockets(&seconds(&SocketSample { receiver_limited: 0.1, ..limited.clone() })), [""; 0]);
    // At a short round trip no window of this size is a limit.
    assert_eq!(of_sockets(&seconds(&SocketSample { rtt_ms: 0.1, ..limited })), [""; 0]);
}

#[test]
fn full_socket_of_the_receiver_is_no_small_window() {
    let sender = SocketSample { send_window: 4096, busy: 1.0, receiver_limited: 1.0, ..connection("broker", "sub") };
    let (from, to) = (sender.to.clone(), sender.from.clone());
    let receiver = SocketSample { from, to, port: 40000, peer_port: 9092, unread: 2 << 20, ..sender.clone() };
    let receiver = SocketSample { receiver_limited: 0.0, busy: 0.0, ..receiver };
    let all = [seconds(&sender), seconds(&receiver)].concat();
    let found = of_sockets(&all);
    assert_eq!(found, ["broker → sub: the receiver reads too slowly: 2048 KiB wait in its socket (100 % of the time)"]);
}

/// As when the receiver is paused: its buffer is full, and nothing is under way.
#[test]
fn receiver_with_a_window_of_zero_is_slow() {
    let sender = SocketSample { busy: 1.0, receiver_limited: 1.0, unsent: 9000, ..connection("broker", "sub") };
    // The number of bytes that wait in the receiver's socket is unknown.
    assert_eq!(of_sockets(&seconds(&sender)), ["broker → sub: the receiver's window is full (100 % of the time)"]);
    let (from, to) = (sender.to.clone(), sender.from.clone());
    let receiver = SocketSample { from, to, port: 40000, peer_port: 9092, unread: 65536, ..SocketSample::default() };
    let found = of_sockets(&[seconds(&sender), seconds(&receiver)].concat());
    assert_eq!(found, ["broker → sub: the receiver reads too slowly: 64 KiB wait in its socket (100 % of the time)"]);
    // Also without the kernel's count of that time.
    let probing = SocketSample { receiver_limited: 0.0, congestion_window: 14_480, ..sender };
    let found = of_sockets(&[seconds(&probing), seconds(&receiver)].concat());
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("reads too slowly"), "{found:?}");
}

#[test]
fn congestion_and_send_buffer_are_told_apart() {
    let congested = SocketSample {
        congestion_window: 14_480,
        send_window: 65_536,
        rtt_ms: 50.0,
        acknowledged: 280_000,
        retransmitted: 6000,
        busy: 1.0,
        unsent: 70_000,
        ..connection("a", "b")
    };
    let wanted = "a → b: congestion window 14 KiB at 50.0 ms, so at most 0.29 MB/s (100 % of the time); 2.1 % of its bytes were sent again";
    assert_eq!(of_sockets(&seconds(&congested)), [wanted]);
    let buffered =
        SocketSample { buffer_limited: 0.8, in_flight: 60 << 10, unsent: 4 << 10, busy: 1.0, ..connection("a", "b") };
    assert_eq!(
        of_sockets(&seconds(&buffered)),
        ["a → b: send buffer 64 KiB at 10.2 ms, so at most 6.4 MB/s (80 % of the time)"]
    );
}

#[test]
fn full_window_of_a_busy_receiver_is_the_limit() {
    let sender = SocketSample {
        send_window: 22_912,
        acknowledged: 2_200_000,
        busy: 1.0,
        receiver_limited: 1.0,
        ..connection("sender", "receiver")
    };
    let (from, to) = (sender.to.clone(), sender.from.clone());
    let receiver = SocketSample { from, to, port: 40000, peer_port: 9092, unread: 22_912, ..SocketSample::default() };
    let found = of_sockets(&[seconds(&sender), seconds(&receiver)].concat());
    assert_eq!(found, ["sender → receiver: window 22 KiB at 10.2 ms, so at most 2.2 MB/s (100 % of the time)"]);
}

/// As measured with BBR, which believes in the old round trip for ten seconds after a delay has begun.
#[test]
fn limits_that_follow_each_other_are_both_named() {
    let first = SocketSample {
        rtt_ms: 21.0,
        congestion_window: 52_000,
        send_window: 104_000,
        in_flight: 52_000,
        unsent: 120_000,
        acknowledged: 2_200_000,
        busy: 1.0,
        ..connection("kafka-2", "kafka-3")
    };
    let later = SocketSample {
        congestion_window: 306_000,
        in_flight: 104_000,
        acknowledged: 4_400_000,
        receiver_limited: 0.4,
        ..first.clone()
    };
    let all = (0..10).map(|second| SocketSample { second, ..if second < 5 { first.clone() } else { later.clone() } });
    assert_eq!(
        of_sockets(&all.collect::<Vec<_>>()),
        [
            "kafka-2 → kafka-3: window 102 KiB at 21.0 ms, so at most 5.0 MB/s (50 % of the time)",
            "kafka-2 → kafka-3: congestion window 51 KiB at 21.0 ms, so at most 2.5 MB/s (50 % of the time)",
        ]
    );
}

/// As measured with BBR: the kernel counts a small part of the time as limited by the receiver, although all that the
/// window allows is under way.
#[test]
fn smaller_window_is_the_limit_of_a_paced_sender() {
    let paced = SocketSample {
        rtt_ms: 20.4,
        congestion_window: 295_392,
        send_window: 103_692,
        in_flight: 103_692,
        unsent: 99_103,
        acknowledged: 4_000_000,
        busy: 0.95,
        receiver_limited: 0.15,
        ..connection("kafka-1", "kafka-3")
    };
    let found = of_sockets(&seconds(&paced));
    assert_eq!(found, ["kafka-1 → kafka-3: window 101 KiB at 20.4 ms, so at most 5.1 MB/s (95 % of the time)"]);
}

#[test]
fn loss_is_named_without_congestion() {
    let lossy = SocketSample { acknowledged: 100_000, retransmitted: 1000, busy: 0.9, ..connection("a", "b") };
    assert_eq!(of_sockets(&seconds(&lossy)), ["a → b: 1.0 % of its bytes were sent again"]);
}

#[test]
fn the_most_limited_connection_stands_for_its_pair() {
    let limited = SocketSample { send_window: 65536, busy: 1.0, receiver_limited: 0.9, ..connection("a", "b") };
    let idle = SocketSample { peer_port: 5, receiver_limited: 0.0, ..limited.clone() };
    let found = of_sockets(&[seconds(&idle), seconds(&limited)].concat());
    assert!(found.len() == 1 && found[0].ends_with("(90 % of the time) (one of 2 connections)"), "{found:?}");
}

#[test]
fn connections_that_wait_for_their_programs_are_not_limited() {
    let calm = SocketSample {
        send_window: 65536,
        congestion_window: 14480,
        acknowledged: 9000,
        busy: 0.9,
        ..connection("a", "b")
    };
    let instances = |cpu: f64| {
        let one = |second| InstanceSample {
            second,
            name: "a".to_owned(),
            cpu: cpu + second as f64 / 10.0,
            processors: 2,
            ..Default::default()
        };
        (0..10).map(one).collect::<Vec<_>>()
    };
    let samples = Samples { sockets: &seconds(&calm), instances: &instances(0.5), ..NONE };
    assert_eq!(texts(&samples, &during(2, 8)), [""; 0]);
    assert_eq!(texts(&NONE, &[]), [""; 0]);
}

#[test]
fn processors_in_full_use_are_named() {
    let rows = |name: &str, cpu: f64, processors| {
        let one = |second| InstanceSample { second, name: name.to_owned(), cpu, processors, ..Default::default() };
        (0..10).map(one).collect::<Vec<_>>()
    };
    let all = [rows("pinned", 0.99, 1), rows("one", 1.0, 4), rows("half", 1.2, 2), rows(MACHINE, 3.9, 4)].concat();
    assert_eq!(
        texts(&Samples { instances: &all, ..NONE }, &during(2, 8)),
        [
            "one: it uses one processor all the time, as one busy thread does",
            "pinned: it uses 0.99 of 1 processors",
            "this machine: 3.90 of 4 processors are busy, so figures are limits of this machine",
        ]
    );
}

#[test]
fn processors_that_a_fault_takes_are_named_while_it_lasts() {
    let one = |second| InstanceSample { second, name: "b".to_owned(), cpu: 0.48, processors: 4, ..Default::default() };
    let instances = (0..10).map(one).collect::<Vec<_>>();
    let time = Time::from_secs(2)..Time::from_secs(8);
    let limit = |processors| ProcessorLimit { name: "b".to_owned(), processors, time: time.clone() };
    let with = |limits: &[ProcessorLimit], times: &[Range<Time>]| {
        texts(&Samples { instances: &instances, processor_limits: limits, ..NONE }, times)
    };
    let wanted = "b: it uses 0.48 of the 0.50 processors that the fault leaves";
    assert_eq!(with(&[limit(2.0), limit(0.5)], &during(2, 8)), [wanted]);
    assert_eq!(with(&[limit(2.0)], &during(2, 8)), [""; 0]);
    assert_eq!(with(&[limit(0.5)], &during(8, 10)), [""; 0]);
}

#[test]
fn a_rate_that_is_used_up_is_named_while_it_lasts() {
    let link = |second, bytes, queued_bytes| {
        let (from, to) = ("a".to_owned(), "b".to_owned());
        LinkSample { second, from, to, bytes, packets: 9, dropped: 2, queued_bytes }
    };
    let limit = |queue_bytes| RateLimit {
        from: "a".to_owned(),
        to: "b".to_owned(),
        bits_per_second: 8_000_000,
        queue_bytes,
        time: Time::from_secs(2)..Time::from_secs(8),
    };
    let full: Vec<_> = (0..10).map(|second| link(second, 990_000, 60 << 10)).collect();
    let samples = Samples { links: &full, limits: &[limit(64 << 10)], ..NONE };
    let wanted = "a → b: 7.9 of the fault's 8.0 Mbit/s are in use, 60 KiB wait in its queue, 12 packets were dropped";
    assert_eq!(texts(&samples, &during(2, 8)), [wanted]);
    assert_eq!(texts(&samples, &during(8, 10)), [""; 0]);
    let idle: Vec<_> = (0..10).map(|second| link(second, 1000, 0)).collect();
    assert_eq!(texts(&Samples { links: &idle, ..samples }, &during(2, 8)), [""; 0]);
}

#[test]
fn short_phases_use_the_seconds_that_they_touch() {
    let times = [Time::from_ns(2_600_000_000)..Time::from_ns(3_200_000_000)];
    let found = (0..6).filter(|second| Seconds::of(&times).contain(*second)).collect::<Vec<_>>();
    assert_eq!((found, Seconds::of(&times).count()), (vec![2, 3], 2.0));
    let times = [Time::from_ns(2_600_000_000)..Time::from_ns(5_200_000_000)];
    let found = (0..9).filter(|second| Seconds::of(&times).contain(*second)).collect::<Vec<_>>();
    assert_eq!((found, Seconds::of(&times).count()), (vec![3, 4], 2.0));
}
