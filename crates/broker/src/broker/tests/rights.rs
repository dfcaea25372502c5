//! Rule changes while a session's lease is held.

use std::time::{Duration, Instant};

use tenbin_codec::Text;
use tokio::io::duplex;

use super::client::PATIENCE;
use super::in_memory::{PEER, exchange};
use crate::auth::{PasswordFile, Secrets};
use crate::registry::Lease;
use crate::slices::Pauses;
use crate::{Broker, Config, lifecycle};

/// Starts a broker that admits all clients, with a disconnected session that has one subscription.
///
/// Also returns a configuration that admits only users.
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

/// Returns the session's lease, once its connection has released it.
async fn lease(broker: &Broker) -> Lease {
    let until = Instant::now() + PATIENCE;
    loop {
        let session = broker.parts.shared.sessions.registry.find(&Text::from_static("c")).unwrap();
        if let Some(lease) = session.try_lease() {
            return lease;
        }
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Number of subscriptions that the router does not have because the session's user may no longer connect.
async fn suspended(broker: &Broker) -> usize {
    lease(broker).await.state.suspended.len()
}

#[tokio::test]
async fn reload_during_expiry_visit_takes_effect() {
    let files = tempfile::tempdir().unwrap();
    let (broker, closed) = broker_and_closed(files.path()).await;
    let lease = lease(&broker).await;
    broker.reload(&closed).unwrap();
    lifecycle::expire(&broker.parts.shared, lease, Instant::now(), &mut Pauses::default()).await;
    assert_eq!(suspended(&broker).await, 1);
}

#[tokio::test]
async fn session_stays_suspended_after_refused_connection() {
    let files = tempfile::tempdir().unwrap();
    let (broker, closed) = broker_and_closed(files.path()).await;
    let taken = lease(&broker).await;
    broker.reload(&closed).unwrap();
    lifecycle::give_back(&broker.parts.shared, taken, Instant::now()).await;
    assert_eq!(suspended(&broker).await, 1);
    // Also if the rules have not changed again.
    let taken = lease(&broker).await;
    lifecycle::give_back(&broker.parts.shared, taken, Instant::now()).await;
    assert_eq!(suspended(&broker).await, 1);
}
