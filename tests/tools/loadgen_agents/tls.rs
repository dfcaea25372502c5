use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::loadgen_agents::agent::{Agent, failure, run, summary};
use crate::support::BrokerProcess;

/// A root authority, an intermediate one, and a client certificate of the intermediate one, in files.
struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

impl Authority {
    fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let directory = format!("tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(directory);
        std::fs::create_dir_all(&directory).expect("the tests' directory is ours to write");

        let (issuer, certificate) = {
            let (params, key) = (authority(name), key());
            let certificate = params.self_signed(&key).expect("a certificate");
            (Issuer::new(params, key), certificate)
        };
        let (params, middle_key) = (authority("department"), key());
        let middle = params.signed_by(&middle_key, &issuer).expect("a certificate");
        let client_key = key();
        let department = Issuer::new(params, middle_key);
        let client = CertificateParams::default().signed_by(&client_key, &department).expect("a certificate");

        let authority = Self { directory, issuer, certificate };
        for (name, text) in [
            ("root.pem", authority.certificate.pem()),
            ("middle.pem", middle.pem()),
            ("client.pem", client.pem()),
            ("client.key", client_key.serialize_pem()),
        ] {
            std::fs::write(authority.directory.join(name), text).expect("the tests' directory is ours to write");
        }
        authority
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().expect("a target directory with a readable name").to_owned()
    }

    /// Serves TLS in front of `broker` until the test's process ends. With `asks_clients`, clients need a certificate
    /// of this authority.
    fn guard(&self, broker: SocketAddr, asks_clients: bool) -> String {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().expect("ring has them");
        let builder = if asks_clients {
            let mut roots = RootCertStore::empty();
            roots.add(self.certificate.der().clone()).expect("a certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.expect("there is an authority"))
        } else {
            builder.with_no_client_auth()
        };
        let own_key = key();
        let own = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let own = own.signed_by(&own_key, &self.issuer).expect("a certificate");
        let own_key = PrivateKeyDer::try_from(own_key.serialize_der()).expect("a key");
        let config = builder.with_single_cert(vec![own.der().clone()], own_key).expect("they belong together");
        let port = splice(TlsAcceptor::from(Arc::new(config)), broker);
        format!("localhost:{port}")
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("random numbers")
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Forwards decrypted connections to `broker`. Returns the port.
fn splice(acceptor: TlsAcceptor, broker: SocketAddr) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    listener.set_nonblocking(true).expect("a socket");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = TcpListener::from_std(listener).expect("a socket");
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // The tests expect refused and closed connections.
                    let Ok(mut client) = acceptor.accept(stream).await else { return };
                    let Ok(mut broker) = TcpStream::connect(broker).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut broker).await;
                });
            }
        });
    });
    port
}

/// Runs a load in both directions with payloads of this size.
fn load(mut command: Command, payload: &str) {
    command.args(["--tls", "--publishers", "3", "--subscribers", "3", "--messages", "200", "--qos", "1"]);
    command.args(["--payload", payload]);
    let summary = summary(command);
    assert_eq!((&summary["verdict"]["received"], &summary["verdict"]["lost"]), (&1800.into(), &0.into()), "{summary}");
}

#[test]
fn load_over_tls_arrives_complete_at_every_size() {
    let (broker, authority) = (BrokerProcess::start(&[]), Authority::new("tests"));
    let guard = authority.guard(broker.address(), false);
    // The largest payload exceeds a TLS record. All 600 messages fit into a subscriber's queue at the broker.
    for payload in ["20", "600", "20000"] {
        let mut command = run(&guard);
        command.args(["--ca", &authority.path("root.pem")]);
        load(command, payload);
    }
    let mut trusting = run(&guard);
    trusting.arg("--insecure");
    load(trusting, "100");
}

#[test]
fn client_certificate_chain_of_two_files_is_presented() {
    let (broker, authority) = (BrokerProcess::start(&[]), Authority::new("tests"));
    let guard = authority.guard(broker.address(), true);
    let chain = format!("{};{}", authority.path("client.pem"), authority.path("middle.pem"));
    let files = ["--ca", &authority.path("root.pem"), "--client-key", &authority.path("client.key"), "--client-cert"];
    let mut command = run(&guard);
    command.args(files).arg(&chain);
    load(command, "100");

    // The same from an agent, which reads the files itself.
    let agent = Agent::start(&[]);
    let mut command = run(&guard);
    command.args(["--agents", &agent.address]).args(files).arg(&chain);
    load(command, "100");

    let mut unknown = run(&guard);
    unknown.args(["--tls", "--ca", &authority.path("root.pem")]);
    let error = failure(unknown);
    assert!(error.contains(&format!("cannot connect to {guard}")), "{error}");
}

#[test]
fn broker_with_untrusted_certificate_is_refused() {
    let (broker, authority) = (BrokerProcess::start(&[]), Authority::new("tests"));
    let guard = authority.guard(broker.address(), false);
    let other = Authority::new("somebody else");
    let mut command = run(&guard);
    command.args(["--tls", "--ca", &other.path("root.pem")]);
    let error = failure(command);
    assert!(error.contains(&guard) && error.ends_with("(no known authority vouches for the broker: --ca)"), "{error}");

    let mut command = run(&guard);
    command.args(["--tls", "--ca", "/nonexistent/root.pem"]);
    let error = failure(command);
    assert!(error.starts_with("tenbin-loadgen: cannot use /nonexistent/root.pem: No such file"), "{error}");
}

#[test]
fn simulated_workers_use_tls_and_come_back_with_it() {
    let (broker, authority) = (BrokerProcess::start(&[]), Authority::new("tests"));
    let guard = authority.guard(broker.address(), true);
    let chain = format!("{};{}", authority.path("client.pem"), authority.path("middle.pem"));
    let mut command = run(&guard);
    command.args(["--ca", &authority.path("root.pem"), "--client-key", &authority.path("client.key")]);
    command.args(["--client-cert", &chain, "--qos", "1", "--messages", "1000", "--interval", "2ms"]);
    command.args(["--subscribers", "2", "--shared", "--service", "1ms", "--reports", "pingreq"]);
    command.args(["--session-expiry", "60s", "--cut", "subscribers:300ms/50ms"]);
    let summary = summary(command);
    let (verdict, connections) = (&summary["verdict"], &summary["connections"]);
    assert_eq!((&verdict["expected"], &verdict["lost"]), (&1000.into(), &0.into()), "{summary}");
    let cut = connections["cut"].as_u64().expect("a number");
    assert!(cut >= 3 && connections["sessions_present"].as_u64() == Some(cut), "{connections}");
    assert_eq!(connections["lost"], 0, "{connections}");
    assert!(summary["audiences"][0]["waiting"]["count"].as_u64() >= Some(1000), "they are workers: {summary}");
}

#[test]
fn idle_connections_use_tls_and_come_back_with_it() {
    let (broker, authority) = (BrokerProcess::start(&[]), Authority::new("tests"));
    let guard = authority.guard(broker.address(), false);
    let mut command = run(&guard);
    command.args(["--ca", &authority.path("root.pem"), "--publishers", "0", "--subscribers", "0", "--time", "8"]);
    // Silent connections that are not cut are closed after 6 s.
    command.args(["--conns", "60", "--session-expiry", "60s", "--keep-alive", "4", "--cut", "idle:200ms/20ms"]);
    let connections = &summary(command)["connections"];
    let cut = connections["cut"].as_u64().expect("a number");
    assert!(cut >= 5 && connections["sessions_present"].as_u64() == Some(cut), "{connections}");
    let numbers = ["refused", "lost"].map(|name| connections[name].as_u64());
    assert_eq!(numbers, [Some(0), Some(0)], "{connections}");
    assert_eq!(connections["accepted"].as_u64(), Some(60 + cut), "{connections}");

    let other = Authority::new("somebody else");
    let mut command = run(&guard);
    command.args(["--ca", &other.path("root.pem"), "--publishers", "0", "--subscribers", "0", "--conns", "60"]);
    let error = failure(command);
    assert!(error.contains(&guard) && error.ends_with("(no known authority vouches for the broker: --ca)"), "{error}");
}
