//! Clients that use the socket of a relay.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use tenbin_sn_codec::v1_2::{Message, PingReq, QoS, ReturnCode};
use tenbin_sn_gateway::config::Listener;
use tenbin_sn_gateway::{Gateway, RelaySocket};
use tokio::sync::oneshot;

use crate::addresses::message;
use crate::client::{Client, gateway};
use crate::fake_broker::FakeBroker;

/// A relay on a thread, which ends when this is dropped.
struct Relay {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Passes datagrams of `address` on to a gateway, once its socket is open.
    fn start(address: SocketAddr, gateway: &Gateway) -> Self {
        let (near, far) = tokio::io::duplex(64 * 1024);
        gateway.serve_relay(far);
        let (end, ended) = oneshot::channel::<()>();
        let (is_open, open) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = Listener { address, ..Listener::default() };
                let mut socket = RelaySocket::open(&listener).expect("a free port");
                is_open.send(()).expect("the test waits");
                let passed = AtomicU64::new(0);
                tokio::select! {
                    passed = socket.pass(near, "the gateway", &passed) => panic!("{passed:?}"),
                    _ = ended => {}
                }
            });
        });
        open.recv().expect("an open socket");
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(ended.is_none_or(|ended| ended.is_ok()), "the relay has panicked");
        }
    }
}

#[test]
fn client_is_reached_by_the_relay_that_it_uses_last() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "threads = 2\ntrust_addresses = true");
    let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let relay = Relay::start(address, &gateway);
    let mut client = Client::new(address);
    assert_eq!(client.connect("far", true), ReturnCode::Accepted);
    client.subscribe("topic", QoS::AtMostOnce);
    broker.send("far", &message("topic", "by the first relay"));
    assert!(matches!(client.receive_proven(), Message::Publish(publish) if publish.data == b"by the first relay"));

    // Its address is the same, and its session goes on.
    drop(relay);
    let _relay = Relay::start(address, &gateway);
    client.send(&Message::PingReq(PingReq { client_id: None }));
    assert_eq!(client.receive(), Message::PingResp);
    broker.send("far", &message("topic", "by the second relay"));
    assert!(matches!(client.receive_proven(), Message::Publish(publish) if publish.data == b"by the second relay"));
    assert_eq!(gateway.stats().get("clients"), 1);
}
