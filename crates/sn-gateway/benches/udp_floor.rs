//! The bare UDP socket: messages for each second of processor time of a thread that receives datagrams of an MQTT-SN PUBLISH
//! with 255 bytes, counts or answers them, and does nothing else. A gateway cannot be faster.
//!
//! `cargo bench -p tenbin-sn-gateway --bench udp_floor`
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    missing_docs,
    reason = "a bench reads clocks and prints figures"
)]

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};

const DATAGRAM: usize = 262;
const PUBACK: [u8; 7] = [7, 0x0D, 0, 1, 0, 1, 0];
/// Sockets of the senders.
const CLIENTS: usize = 20;
const SERIES: usize = 3;
const TIME: Duration = Duration::from_secs(2);

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    Duration::from_nanos(text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number"))
}

/// Sends to `to` from many sockets until it is told to stop, and takes the answers.
fn send(to: SocketAddr, stop: &AtomicBool, has_answers: bool) {
    let sockets: Vec<UdpSocket> = (0..CLIENTS)
        .map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
            socket.connect(to).expect("an address");
            socket.set_nonblocking(true).expect("a socket");
            socket
        })
        .collect();
    let (datagram, mut answer) = ([7; DATAGRAM], [0; 64]);
    while !stop.load(Relaxed) {
        for socket in &sockets {
            let _ = socket.send(&datagram);
            if has_answers {
                while socket.recv(&mut answer).is_ok() {}
            }
        }
    }
}

/// Messages for each second of processor time of the receiver.
fn measure(answers: bool, receive: impl FnOnce(UdpSocket, Instant, bool) -> u64 + Send + 'static) -> f64 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
    let (to, stop) = (socket.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
    let (sender, result) = mpsc::channel();
    std::thread::spawn(move || {
        let before = thread_time();
        let received = receive(socket, Instant::now() + TIME, answers);
        let _ = sender.send(received as f64 / (thread_time() - before).as_secs_f64());
    });
    let sending = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || send(to, &stop, answers))
    };
    let rate = result.recv().expect("the receiver ends");
    stop.store(true, Relaxed);
    sending.join().expect("no panic");
    rate
}

fn one_by_one(socket: UdpSocket, until: Instant, answers: bool) -> u64 {
    let (mut buffer, mut received) = ([0; 2048], 0);
    while Instant::now() < until {
        let Ok((_, from)) = socket.recv_from(&mut buffer) else { continue };
        received += 1;
        if answers {
            let _ = socket.send_to(&PUBACK, from);
        }
    }
    received
}

fn in_batches(socket: UdpSocket, until: Instant, answers: bool) -> u64 {
    let state = UdpSocketState::new((&socket).into()).expect("a socket");
    let mut buffers = vec![vec![0; 2048]; BATCH_SIZE];
    let (mut metas, mut received) = (vec![RecvMeta::default(); BATCH_SIZE], 0);
    while Instant::now() < until {
        let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let Ok(count) = state.recv((&socket).into(), &mut slices, &mut metas) else {
            std::thread::yield_now();
            continue;
        };
        for meta in &metas[..count] {
            let datagrams = meta.len.div_ceil(meta.stride.max(1));
            received += datagrams as u64;
            for _ in 0..if answers { datagrams } else { 0 } {
                let _ = socket.send_to(&PUBACK, meta.addr);
            }
        }
    }
    received
}

fn main() {
    println!(
        "datagrams of {DATAGRAM} bytes for each second of processor time of the receiver; medians of {SERIES} series"
    );
    let mut figures = [const { Vec::new() }; 4];
    for _ in 0..SERIES {
        figures[0].push(measure(false, one_by_one));
        figures[1].push(measure(false, in_batches));
        figures[2].push(measure(true, one_by_one));
        figures[3].push(measure(true, in_batches));
    }
    let names = [
        "receive, one a call",
        "receive, in batches",
        "receive and answer, one a call",
        "receive and answer, in batches",
    ];
    for (name, mut rates) in names.into_iter().zip(figures) {
        rates.sort_by(f64::total_cmp);
        println!("{name:32} {:>10.0}", rates[SERIES / 2]);
    }
}
