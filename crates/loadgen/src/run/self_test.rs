//! `--self-test`: measures the limit of the driver itself, so that it is not mistaken for a broker's.
//!
//! A stand-in for a broker runs in its own threads. It accepts any connection, discards published messages unread, and
//! sends messages to subscribers as fast as they read. The figures are the messages at the other end, and the processor
//! time of the driver's only thread, system time included.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{
    ConnAck, Decoded, Decoder, Packet, ProtocolVersion, QoS, ReasonCode, SubAck, TopicName, WriteBuffer,
};

use super::clock::RunClock;
use super::driver::Assignment;
use super::engine::{Engine, FrameOptions, Frames};
use super::{Audience, Broker, Layout, Plan, Publishers, Schedule, Slice, Stamp, Status};
use crate::LoadgenError;

/// Measures both directions and writes a line for each.
///
/// # Errors
/// No port or thread is left, or the results cannot be printed.
pub(crate) async fn self_test(out: &mut dyn Write) -> Result<(), LoadgenError> {
    self_test_for(MEASURED, out).await
}

async fn self_test_for(time: Duration, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let swallowed = Arc::new(AtomicU64::new(0));
    let address = stand_in(Arc::clone(&swallowed)).map_err(LoadgenError::Runtime)?;
    let print = LoadgenError::Print;
    writeln!(out, "self-test: one driver thread, {PAYLOAD} bytes, QoS 0, MQTT 5.0").map_err(print)?;
    let frame_len = frames().len_max() as u64;
    let taken = |_: &Status| swallowed.load(Ordering::Relaxed) / frame_len;
    let sent = measure(&plan(address, None, vec![]), time, taken).await?;
    writeln!(out, "  publish into a sink    {sent}").map_err(print)?;
    let subscriber = Audience::new("sink", 1, TOPIC);
    let received = measure(&plan(address, Some(0), vec![subscriber]), time, |status| status.received).await?;
    writeln!(out, "  receive from a source  {received}").map_err(print)?;
    out.flush().map_err(print)
}

/// Number of messages, and their cost.
#[derive(Debug, Clone, Copy)]
struct Measured {
    messages: u64,
    seconds: f64,
    cpu_seconds: f64,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let messages = self.messages as f64;
        write!(
            f,
            "{:>6.2} M messages/s, {:>6.2} M for each processor second of the driver",
            messages / self.seconds / 1e6,
            messages / self.cpu_seconds / 1e6
        )
    }
}

/// Measures `plan` for `time` after a warm-up.
async fn measure(plan: &Plan, time: Duration, count: impl Fn(&Status) -> u64) -> Result<Measured, LoadgenError> {
    let layout = Arc::new(Layout::of(plan)?);
    let clock = RunClock::new(0);
    let mut engine =
        Engine::prepare(Assignment { plan: Arc::new(plan.clone()), layout, slice: Slice::ALL, clock }).await?;
    engine.start(clock.now_ns());
    tokio::time::sleep(WARM_UP).await;
    let look = || {
        let status = engine.status();
        (Instant::now(), count(&status), status.cpu_ns.iter().sum::<u64>())
    };
    let before = look();
    tokio::time::sleep(time).await;
    let after = look();
    engine.stop_publishing();
    engine.finish().await?;
    Ok(Measured {
        messages: after.1 - before.1,
        seconds: (after.0 - before.0).as_secs_f64(),
        cpu_seconds: (after.2 - before.2) as f64 / 1e9,
    })
}

/// A plan for one driver thread.
fn plan(address: SocketAddr, messages: Option<u64>, audiences: Vec<Audience>) -> Plan {
    let stand_in = Broker::new("stand-in", address.ip().to_string(), address.port());
    let publishers = Publishers { payload: PAYLOAD, messages, ..Publishers::new(1, TOPIC) };
    // The caller ends the run.
    let schedule = Schedule { time_limit: Duration::MAX, subscriber_timeout: Duration::ZERO, ..Schedule::default() };
    Plan { schedule, threads: 1, ..Plan::new(TAG, vec![stand_in], publishers, audiences) }
}

/// Starts the stand-in on a free port of this machine; it counts the bytes of published messages.
///
/// Its threads end with their connections.
fn stand_in(swallowed: Arc<AtomicU64>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let swallowed = Arc::clone(&swallowed);
            // The driver reports a connection that fails.
            let serve = move || drop(serve(stream, &swallowed));
            let _ = std::thread::Builder::new().name("stand-in".into()).spawn(serve);
        }
    };
    std::thread::Builder::new().name("stand-in".into()).spawn(accept)?;
    Ok(address)
}

/// Answers CONNECT and SUBSCRIBE; then sends messages to a subscriber, or discards a publisher's messages.
fn serve(mut stream: TcpStream, swallowed: &AtomicU64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut decoder = Decoder::server(u32::MAX);
    let mut input = BytesMut::new();
    let mut buffer = vec![0; SWALLOW];
    loop {
        match decoder.decode(&mut input) {
            Ok(Decoded::Packet(Packet::Connect(_))) => {
                answer(&mut stream, &Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::Success))))?;
            }
            Ok(Decoded::Packet(Packet::Subscribe(subscribe))) => {
                let reasons = vec![ReasonCode::Success];
                let suback = SubAck { packet_id: subscribe.packet_id, properties: Default::default(), reasons };
                answer(&mut stream, &Packet::SubAck(suback))?;
                return give(stream);
            }
            Ok(Decoded::Packet(_)) => break,
            Ok(Decoded::NeedMore(_)) => {
                let count = stream.read(&mut buffer)?;
                if count == 0 {
                    return Ok(());
                }
                input.extend_from_slice(&buffer[..count]);
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => swallowed.fetch_add(count as u64, Ordering::Relaxed),
        };
    }
}

fn answer(stream: &mut TcpStream, packet: &Packet) -> io::Result<()> {
    let mut out = WriteBuffer::new();
    packet.encode(ProtocolVersion::V5, &mut out);
    stream.write_all(&out.to_bytes())
}

/// Sends numbered messages without end.
fn give(mut stream: TcpStream) -> io::Result<()> {
    let frames = frames();
    let clock = RunClock::new(0);
    let mut block = Vec::with_capacity(SWALLOW);
    let mut sequences = 0..u32::MAX;
    loop {
        block.clear();
        let due_ns = clock.now_ns();
        for sequence in sequences.by_ref().take(BLOCK) {
            frames.append(0, 0, Stamp { due_ns, tag: TAG, stream: 0, sequence, late_us: 0 }, &mut block);
        }
        stream.write_all(&block)?;
    }
}

/// Frames of both directions.
fn frames() -> Frames {
    let options = FrameOptions {
        version: ProtocolVersion::V5,
        qos: QoS::AtMostOnce,
        retain: false,
        payload_len: PAYLOAD as usize,
    };
    Frames::new(options, [TopicName::try_from(TOPIC).expect("it is a plain text")])
}

const TOPIC: &str = "self/test";
const TAG: u16 = 0x5E1F;
const PAYLOAD: u32 = 100;

/// Messages per write.
const BLOCK: usize = 500;

/// Bytes per read.
const SWALLOW: usize = 1 << 20;

const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_directions_are_measured() {
        let mut out = Vec::new();
        self_test_for(Duration::from_secs(1), &mut out).await.unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() == 3 && lines[1].contains("publish") && lines[2].contains("receive"), "{text}");
        for line in &lines[1..] {
            let rate: f64 = line[24..].split_whitespace().next().unwrap().parse().unwrap();
            assert!(rate > 0.0, "{text}");
        }
    }
}
