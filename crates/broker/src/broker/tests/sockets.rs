//! Sockets that are open before the broker.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Broker, Config, OpenSockets, StartError};

async fn connack(stream: &mut TcpStream) -> [u8; 4] {
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).await.unwrap();
    connack
}

#[tokio::test]
async fn client_that_came_before_the_broker_is_served() {
    let text = "listen = [\"localhost:0\"]\n[[listeners]]\nname = \"b\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n";
    let config = Config::parse(text).unwrap();
    let sockets = OpenSockets::open(&config).await.unwrap();
    let addresses = sockets.addresses();
    let mut early = Vec::new();
    for address in &addresses {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0").await.unwrap();
        early.push(stream);
    }
    let broker = Broker::builder().config(config).sockets(sockets).start().await.unwrap();
    assert_eq!(broker.addresses(), addresses);
    for stream in &mut early {
        assert_eq!(connack(stream).await, [0x20, 2, 0, 0]);
    }
}

#[tokio::test]
async fn relay_and_broker_accept_at_the_same_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[[listeners]]\nname = \"local\"\naddress = \"unix:{}\"\nanonymous = true\n",
        path.display()
    );
    let config = Config::parse(&text).unwrap();
    let sockets = OpenSockets::open(&config).await.unwrap();
    let address = sockets.addresses()[0];
    let acceptors = sockets.acceptors().unwrap();
    let [(name, acceptor)] = &acceptors[..] else { panic!("{acceptors:?}") };
    assert_eq!((&**name, acceptor.local_addr().unwrap()), ("#0", address), "an unnamed listener, by its place");
    let (client, accepted) = tokio::join!(TcpStream::connect(address), acceptor.accept());
    assert_eq!(accepted.unwrap().1, client.unwrap().local_addr().unwrap());
    assert!(matches!(OpenSockets::open(&config).await, Err(StartError::Listen(_))), "the unix socket is open");
    drop(acceptors);
    let _local = tokio::net::UnixStream::connect(&path).await.unwrap();
    let broker = Broker::builder().config(config).sockets(sockets).start().await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), async {
        while broker.connections() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    drop(broker);
    assert!(!path.exists());
}
