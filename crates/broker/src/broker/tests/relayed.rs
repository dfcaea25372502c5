//! Clients that another node of the cluster passes on.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::hooks::Connecting;
use crate::{Broker, Config, Events, Hooks, RelayedStream, Verdict, write_relay_header};

const CONNECT: &[u8] = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c";
const ACCEPTED: [u8; 4] = [0x20, 2, 0, 0];
const NOT_AUTHORIZED: [u8; 4] = [0x20, 2, 0, 5];

async fn start(text: &str) -> Broker {
    let config = Config::parse(text).unwrap();
    Broker::builder().config(config).start().await.unwrap()
}

/// Opens a connection as a relay does.
async fn dial(broker: &Broker) -> TcpStream {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (relay, accepted) = tokio::join!(TcpStream::connect(port.local_addr().unwrap()), port.accept());
    broker.serve_relayed(RelayedStream::Plain(accepted.unwrap().0));
    relay.unwrap()
}

fn header(client: &str, listener: &str) -> Vec<u8> {
    write_relay_header(client.parse().unwrap(), ([10, 0, 0, 1], 1883).into(), listener, false)
}

async fn relay(broker: &Broker, client: &str, listener: &str) -> TcpStream {
    let mut stream = dial(broker).await;
    stream.write_all(&header(client, listener)).await.unwrap();
    stream
}

/// Sends CONNECT, and returns CONNACK, or less if the connection ends before it.
async fn connect(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Vec<u8> {
    stream.write_all(CONNECT).await.unwrap();
    let mut connack = Vec::new();
    let _ = stream.take(4).read_to_end(&mut connack).await;
    connack
}

/// Waits until the broker has closed the connection; returns how long it took.
async fn closed(mut stream: TcpStream) -> Duration {
    let began = Instant::now();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0])).await.expect("it stays open");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    began.elapsed()
}

/// Remembers where clients come from.
#[derive(Clone, Default)]
struct Origins(Arc<Mutex<Vec<(String, String, String)>>>);

impl Hooks for Origins {
    fn wants(&self) -> Events {
        Events::CONNECT
    }

    fn connect(&self, client: &Connecting<'_>) -> Verdict {
        let seen = (client.origin.peer.to_string(), client.origin.socket_peer.to_string(), client.listener.to_owned());
        self.0.lock().unwrap().push(seen);
        Verdict::Go
    }
}

#[tokio::test]
async fn relayed_client_counts_by_its_own_address() {
    let text = "[[listeners]]\nname = \"outside\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n\
                [[ban]]\nnetwork = \"192.0.2.7\"\n[connections]\nper_address_maximum = 1\n";
    let origins = Origins::default();
    let config = Config::parse(text).unwrap();
    let broker = Broker::builder().config(config).hooks(origins.clone()).start().await.unwrap();
    let mut first = relay(&broker, "192.0.2.1:4660", "outside").await;
    assert_eq!(connect(&mut first).await, ACCEPTED);
    let expected = ["192.0.2.1:4660", "192.0.2.1:4660", "outside"].map(str::to_owned);
    assert_eq!(*origins.0.lock().unwrap(), [expected.into()]);
    let mut banned = relay(&broker, "192.0.2.7:1", "outside").await;
    assert_eq!(connect(&mut banned).await, NOT_AUTHORIZED);
    closed(relay(&broker, "192.0.2.1:4661", "outside").await).await;
    let mut other = relay(&broker, "[2001:db8::1]:1", "outside").await;
    assert_eq!(connect(&mut other).await, ACCEPTED);
    drop((first, other));
    while broker.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut again = relay(&broker, "192.0.2.1:4662", "outside").await;
    assert_eq!(connect(&mut again).await, ACCEPTED);
}

#[tokio::test]
async fn relay_that_takes_references_is_greeted() {
    let broker = start("listen = [\"127.0.0.1:0\"]\n").await;
    let name = broker.config().listen[0].to_string();
    for takes_references in [true, false] {
        let mut client = dial(&broker).await;
        let header =
            write_relay_header(([192, 0, 2, 1], 1).into(), ([10, 0, 0, 1], 1883).into(), &name, takes_references);
        client.write_all(&header).await.unwrap();
        if takes_references {
            let mut greeting = [1; 2];
            client.read_exact(&mut greeting).await.unwrap();
            assert_eq!(greeting, tenbin_codec::EXTERNAL_GREETING);
        }
        assert_eq!(connect(&mut client).await, ACCEPTED);
    }
}

#[tokio::test]
async fn listener_of_the_list_is_known_by_its_address() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let broker = start(&format!("listen = [\"{address}\"]\n")).await;
    let mut client = relay(&broker, "192.0.2.1:1", &address.to_string()).await;
    assert_eq!(connect(&mut client).await, ACCEPTED);
    client.write_all(b"\x82\x06\0\x01\0\x01t\0\x30\x04\0\x01tx").await.unwrap();
    let mut came = [0; 11];
    client.read_exact(&mut came).await.unwrap();
    assert_eq!(&came, b"\x90\x03\0\x01\0\x30\x04\0\x01tx");
}

#[tokio::test]
async fn unknown_listener_and_header_without_names_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("[[listeners]]\nname = \"unix\"\naddress = \"unix:{}/s\"\n", directory.path().display());
    let broker = start(&format!("listen = [\"127.0.0.1:0\"]\n{unix}anonymous = true\n")).await;
    for listener in ["nothing", "unix", "", &"x".repeat(1000)] {
        closed(relay(&broker, "192.0.2.1:1", listener).await).await;
    }
    for header in [&b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", CONNECT] {
        let mut stream = dial(&broker).await;
        stream.write_all(header).await.unwrap();
        closed(stream).await;
    }
    assert_eq!(broker.sessions(), 0);
}

#[tokio::test]
async fn silent_relay_is_closed_within_connect_timeout() {
    let broker = start("listen = [\"127.0.0.1:0\"]\n[connections]\nconnect_timeout_ms = 300\n").await;
    let name = broker.config().listen[0].to_string();
    let whole = header("192.0.2.1:1", &name);
    for sent in [0, 5, 20, whole.len()] {
        let mut stream = dial(&broker).await;
        stream.write_all(&whole[..sent]).await.unwrap();
        let took = closed(stream).await;
        assert!(took > Duration::from_millis(200), "{sent}: {took:?}");
    }
    while broker.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn proxy_before_the_relay_tells_the_client() {
    let text = "[[listeners]]\nname = \"proxied\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n\
                proxy_from = [\"192.0.2.0/24\"]\n[[ban]]\nnetwork = \"198.51.100.7\"\n";
    let broker = start(text).await;
    for (client, connack) in [("198.51.100.1", ACCEPTED), ("198.51.100.7", NOT_AUTHORIZED)] {
        let mut stream = relay(&broker, "192.0.2.1:4660", "proxied").await;
        stream.write_all(format!("PROXY TCP4 {client} 192.0.2.1 5000 1883\r\n").as_bytes()).await.unwrap();
        assert_eq!(connect(&mut stream).await, connack, "{client}");
    }
    // The relay's own address is no proxy's: another peer may not send the second header.
    let mut stream = relay(&broker, "203.0.113.1:1", "proxied").await;
    stream.write_all(b"PROXY TCP4 198.51.100.1 192.0.2.1 5000 1883\r\n").await.unwrap();
    closed(stream).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn relayed_client_has_tls_end_to_end() {
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    let directory = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["broker".to_owned()]).unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("broker.pem"), cert.pem()).unwrap();
    std::fs::write(file("broker.key"), signing_key.serialize_pem()).unwrap();
    let [pem, key] = ["broker.pem", "broker.key"].map(|name| file(name).display().to_string());
    let broker = start(&format!(
        "[[listeners]]\nname = \"tls\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n\
         [listeners.tls]\ncertificate = \"{pem}\"\nkey = \"{key}\"\n"
    ))
    .await;
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = relay(&broker, "192.0.2.1:1", "tls").await;
    let name = ServerName::try_from("broker").unwrap();
    let mut client = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    assert_eq!(connect(&mut client).await, ACCEPTED);
    let plain = broker.addresses()[0];
    assert_ne!(connect(&mut TcpStream::connect(plain).await.unwrap()).await, ACCEPTED);
}
