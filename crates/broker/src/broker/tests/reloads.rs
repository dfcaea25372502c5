//! Reloads at an unusual time.

use crate::broker::ReloadError;
use crate::{Broker, Config};

#[tokio::test]
async fn reload_of_a_stopping_broker_opens_no_socket() {
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let broker = Broker::builder().config(config.clone()).start().await.unwrap();
    // As at the end of a look-up during which the broker has begun to stop.
    broker.parts.shared.stopping.send_replace(true);
    let closing = broker.parts.listeners().close();
    closing.await;
    assert!(matches!(broker.reload(&config), Err(ReloadError::Stopping)));
    assert!(broker.addresses().is_empty());
}
