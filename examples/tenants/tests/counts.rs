//! The plugin counts the messages of clients, by tenant.

use std::time::Duration;

use tenbin_broker::hooks::{QoS, TopicFilter};
use tenbin_broker::{Broker, Config};
use tenbin_tenants::Tenants;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn messages_are_counted_by_tenant() {
    let tenants = Tenants::default();
    let config = Config::parse("listen = ['127.0.0.1:0']\n[sys]\ninterval_seconds = 1\n").expect("legal keys");
    let broker = Broker::builder().config(config).hooks(tenants.clone()).start().await.expect("a free port");
    let filter = TopicFilter::try_from("tenants/acme/messages").expect("a filter");
    let mut told = broker.handle().subscribe(&filter, QoS::AtMostOnce).expect("it runs");
    let mut client = tokio::net::TcpStream::connect(broker.addresses()[0]).await.expect("it listens");
    let connect = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c";
    let messages = b"\x30\x08\0\x06acme/a\x30\x08\0\x06acme/b\x30\x06\0\x04rest\xc0\0";
    client.write_all(&[&connect[..], messages].concat()).await.expect("it reads");
    let mut answers = [0; 6];
    client.read_exact(&mut answers).await.expect("CONNACK and PINGRESP");
    assert_eq!(["acme", "rest", "other"].map(|tenant| tenants.messages_of(tenant)), [2, 1, 0]);
    let counted = async {
        loop {
            let received = told.next().await.expect("it runs");
            if received.message.payload == "2" {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted).await.expect("the count is told");
    broker.shutdown().await;
}
