//! Tests of the relay on sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::*;

fn start() -> SocketAddr {
    let mut relay = Relay::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = relay.listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            relay.lap(&mut events).unwrap();
        }
    });
    address
}

fn exchange(stream: &mut TcpStream, send: &[u8], expected: &[u8]) {
    stream.write_all(send).unwrap();
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, expected);
}

fn connect(address: SocketAddr, level: u8) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let properties: &[u8] = if level == 5 { &[0] } else { &[] };
    let body = [b"\0\x04MQTT", &[level, 2, 0, 0][..], properties, &[0, 0]].concat();
    let connect = [&[0x10, body.len() as u8][..], &body].concat();
    let connack: &[u8] = if level == 5 { &[0x20, 3, 0, 0, 0] } else { &[0x20, 2, 0, 0] };
    exchange(&mut stream, &connect, connack);
    stream
}

fn subscribe(address: SocketAddr, filter: &[u8], qos: u8) -> TcpStream {
    let mut stream = connect(address, 5);
    let body = [&[0, 7, 0, 0, filter.len() as u8][..], filter, &[qos]].concat();
    let subscribe = [&[0x82, body.len() as u8][..], &body].concat();
    exchange(&mut stream, &subscribe, &[0x90, 4, 0, 7, 0, qos]);
    stream
}

#[test]
fn whole_frames_come_to_all_and_by_turns_to_a_group() {
    let address = start();
    let mut each = [subscribe(address, b"t", 0), subscribe(address, b"t", 0)];
    let mut group = [subscribe(address, b"$share/g/t", 0), subscribe(address, b"$share/g/t", 0)];
    let mut publisher = connect(address, 5);
    let frame = |payload: u8| [0x30, 5, 0, 1, b't', 0, payload];
    let sent = [frame(b'a'), frame(b'b'), frame(b'c')].concat();
    // Two pieces; the first one ends within a frame.
    publisher.write_all(&sent[..10]).unwrap();
    publisher.write_all(&sent[10..]).unwrap();
    exchange(&mut publisher, &[0xC0, 0], &[0xD0, 0]);
    each.iter_mut().for_each(|receiver| exchange(receiver, b"", &sent));
    exchange(&mut group[0], b"", &[frame(b'a'), frame(b'c')].concat());
    exchange(&mut group[1], b"", &frame(b'b'));
}

#[test]
fn qos_1_and_2_messages_get_identifiers_of_their_receiver() {
    let address = start();
    let mut receiver = subscribe(address, b"t", 2);
    let mut publisher = connect(address, 5);
    exchange(&mut publisher, &[0x32, 7, 0, 1, b't', 1, 2, 0, b'a'], &[0x40, 2, 1, 2]);
    exchange(&mut receiver, b"", &[0x32, 7, 0, 1, b't', 0, 1, 0, b'a']);
    exchange(&mut publisher, &[0x34, 7, 0, 1, b't', 1, 2, 0, b'b'], &[0x50, 2, 1, 2]);
    exchange(&mut publisher, &[0x62, 2, 1, 2], &[0x70, 2, 1, 2]);
    exchange(&mut receiver, &[0x40, 2, 0, 1], &[0x34, 7, 0, 1, b't', 0, 2, 0, b'b']);
    exchange(&mut receiver, &[0x50, 2, 0, 2], &[0x62, 2, 0, 2]);
}

#[test]
fn mqtt_3_1_1_has_no_properties() {
    let mut stream = connect(start(), 4);
    exchange(&mut stream, &[0x82, 6, 0, 7, 0, 1, b't', 1], &[0x90, 3, 0, 7, 1]);
    exchange(&mut stream, &[0x30, 4, 0, 1, b't', b'x'], &[0x30, 4, 0, 1, b't', b'x']);
}

#[test]
fn messages_before_disconnect_are_delivered() {
    let address = start();
    let mut receiver = subscribe(address, b"t", 0);
    let mut publisher = connect(address, 5);
    let frame = [0x30, 5, 0, 1, b't', 0, b'a'];
    publisher.write_all(&[&frame[..], &[0xE0, 0]].concat()).unwrap();
    exchange(&mut receiver, b"", &frame);
    assert_eq!(publisher.read(&mut [0]).unwrap(), 0);
}
