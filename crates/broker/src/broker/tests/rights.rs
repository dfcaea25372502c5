//! Changes of the rules that find a session's lease taken.

use std::time::{Duration, Instant};

use tenbin_codec::Text;
use tokio::io::duplex;

use super::client::PATIENCE;
use super::in_memory::{PEER, exchange};
use crate::auth::{PasswordFile, Secrets};
use crate::registry::Lease;
use crate::slices::Pace;
use crate::{Broker, Config, lifecycle};

/// A broker that lets everybody in, with a session that is away and has one subscription; and a configuration that lets only
/// users in.
async fn broker_and_closed(files: &std::path::Path) -> (Broker, Config) {
    let path = files.join("passwords");
    PasswordFile::set(&path, "alice", &Secrets::new(b"wonderland", false).unwrap()).unwrap();
    let config = |more: &str| {
        Config::parse(&format!("[[listeners]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n{more}\n")).unwrap()
    };
    let broker = Broker::builder().config(config("anonymous = true")).start().await.unwrap();
    let (mut stream, other_end) = duplex(1024);
    broker.serve(other_end, PEER);
    exchange(&mut stream, b"\x10\x0d\0\x04MQTT\x04\0\0\0\0\x01c", &[0x20, 2, 0, 0]).await;
    exchange(&mut stream, b"\x82\x06\0\x01\0\x01t\x01", &[0x90, 3, 0, 1, 1]).await;
    drop(stream);
    (broker, config(&format!("password_file = {path:?}")))
}

/// The session's lease, once its connection has given it back.
async fn lease(broker: &Broker) -> Lease {
    let until = Instant::now() + PATIENCE;
    loop {
        let session = broker.shared.registry.find(&Text::from_static("c")).unwrap();
        if let Some(lease) = session.try_lease() {
            return lease;
        }
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Subscriptions that the router does not know, since the session's user may not come in any more.
async fn suspended(broker: &Broker) -> usize {
    lease(broker).await.state.suspended.len()
}

#[tokio::test]
async fn reload_during_a_visit_of_the_expiry_queue_is_taken_over() {
    let files = tempfile::tempdir().unwrap();
    let (broker, closed) = broker_and_closed(files.path()).await;
    let lease = lease(&broker).await;
    broker.reload(&closed).unwrap();
    lifecycle::expire(&broker.shared, lease, Instant::now(), &mut Pace::default()).await;
    assert_eq!(suspended(&broker).await, 1);
}

#[tokio::test]
async fn lease_of_a_refused_connection_keeps_the_session_suspended() {
    let files = tempfile::tempdir().unwrap();
    let (broker, closed) = broker_and_closed(files.path()).await;
    let taken = lease(&broker).await;
    broker.reload(&closed).unwrap();
    lifecycle::give_back(&broker.shared, taken, Instant::now()).await;
    assert_eq!(suspended(&broker).await, 1);
    // And when nothing has changed since.
    let taken = lease(&broker).await;
    lifecycle::give_back(&broker.shared, taken, Instant::now()).await;
    assert_eq!(suspended(&broker).await, 1);
}
