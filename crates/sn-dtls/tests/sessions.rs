//! Sessions of both sides without sockets.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenbin_sn_dtls::{Client, ClientKeys, Hello, Identity, Output, Server, ServerFiles, Session, SessionError};

const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// Both ends, and the datagrams under way.
struct Pair {
    client: Session,
    server: Session,
    buffer: Vec<u8>,
    now: Instant,
}

impl Pair {
    fn new(client: &Client, server: &Server) -> Self {
        let now = Instant::now();
        let (client, server) = (Session::connect(client, now), Session::accept(server, now));
        Self { client, server, buffer: Vec::new(), now }
    }

    /// Runs the handshake until both are silent.
    fn shake_hands(&mut self) -> Result<(), SessionError> {
        let mut to_server = Vec::new();
        self.client.handle_timeout(self.now, &mut self.buffer, &mut |output| keep(output, &mut to_server))?;
        assert!(Hello::of(&to_server[0]).is_some_and(|hello| hello.is_first));
        while !to_server.is_empty() {
            let mut to_client = Vec::new();
            for datagram in to_server.drain(..) {
                self.server.receive(&datagram, self.now, &mut self.buffer, &mut |out| keep(out, &mut to_client))?;
            }
            for datagram in to_client {
                self.client.receive(&datagram, self.now, &mut self.buffer, &mut |out| keep(out, &mut to_server))?;
            }
        }
        Ok(())
    }
}

fn keep(output: Output<'_>, datagrams: &mut Vec<Vec<u8>>) {
    match output {
        Output::Datagram(datagram) => datagrams.push(datagram.to_vec()),
        Output::Message(message) => panic!("unexpected message {message:?}"),
    }
}

fn psk(directory: &TempDir, name: &str, identity: &str, key: &str) -> std::path::PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, format!("{identity}:{key}\n")).unwrap();
    path
}

fn client_with(file: &Path, identity: &str) -> Client {
    Client::new(&ClientKeys::PreShared { identity: identity.to_owned(), file: file.to_owned() }, "gateway").unwrap()
}

fn assert_exchange(pair: &mut Pair) {
    assert!(pair.client.is_open() && pair.server.is_open());
    for message in [&b"hello"[..], &[7; 1400]] {
        let (mut records, mut received) = (Vec::new(), Vec::new());
        pair.client.send(message, pair.now, &mut pair.buffer, &mut |out| keep(out, &mut records)).unwrap();
        assert_eq!(records.len(), 1);
        let mut take = |output: Output<'_>| {
            let Output::Message(message) = output else { panic!("{output:?}") };
            received.push(message.to_vec());
        };
        pair.server.receive(&records[0], pair.now, &mut pair.buffer, &mut take).unwrap();
        // A copy is a replay.
        pair.server.receive(&records[0], pair.now, &mut pair.buffer, &mut take).unwrap();
        assert_eq!(received, [message]);
    }
}

#[test]
fn pre_shared_key_opens_a_session_with_its_identity() {
    let directory = TempDir::new().unwrap();
    let file = psk(&directory, "keys", "pump-7", KEY);
    let server = Server::new(&ServerFiles { psk_file: Some(file.clone()), ..Default::default() }).unwrap();
    let mut pair = Pair::new(&client_with(&file, "pump-7"), &server);
    pair.shake_hands().unwrap();
    assert_exchange(&mut pair);
    assert_eq!(pair.server.identity(), Some(&Identity::PreSharedKey("pump-7".to_owned())));

    let mut farewell = Vec::new();
    pair.client.close(pair.now, &mut pair.buffer, &mut |out| keep(out, &mut farewell));
    let end = pair.server.receive(&farewell[0], pair.now, &mut pair.buffer, &mut |_| {});
    assert!(matches!(end, Err(SessionError::Closed)), "{end:?}");
}

#[test]
fn wrong_key_and_unknown_identity_open_nothing() {
    let directory = TempDir::new().unwrap();
    let file = psk(&directory, "keys", "pump-7", KEY);
    let server = Server::new(&ServerFiles { psk_file: Some(file), ..Default::default() }).unwrap();
    for identity in ["pump-7", "pump-8"] {
        let wrong = psk(&directory, "wrong", identity, &"ff".repeat(16));
        let mut pair = Pair::new(&client_with(&wrong, identity), &server);
        let _ = pair.shake_hands();
        assert!(!pair.server.is_open() && pair.server.identity().is_none(), "{identity}");
    }
}

#[test]
fn changed_file_counts_for_later_handshakes() {
    let directory = TempDir::new().unwrap();
    let file = psk(&directory, "keys", "pump-7", KEY);
    let server = Server::new(&ServerFiles { psk_file: Some(file), ..Default::default() }).unwrap();
    let added = psk(&directory, "keys", "pump-8", KEY);
    fs::File::options().write(true).open(&added).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let mut pair = Pair::new(&client_with(&added, "pump-8"), &server);
        let _ = pair.shake_hands();
        if pair.server.is_open() {
            break;
        }
        assert!(Instant::now() < until, "the file is never read again");
        std::thread::yield_now();
    }
}

/// Certificates of an authority, a server and a client, as PEM files.
struct Authority {
    directory: TempDir,
    own: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let own = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.path().join("ca"), own.pem()).unwrap();
        Self { directory, own }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Signs a certificate; returns the names of its files.
    fn sign(&self, name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.own).unwrap();
        let files = (self.file(name), self.file(&format!("{name}.key")));
        fs::write(&files.0, certificate.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }

    fn server(&self, client_ca: Option<&Self>) -> Server {
        let (certificate, key) = self.sign("gateway");
        let client_ca = client_ca.map(|authority| authority.file("ca"));
        Server::new(&ServerFiles { certificate: Some(certificate), key: Some(key), client_ca, psk_file: None }).unwrap()
    }

    fn client(&self, own: Option<(std::path::PathBuf, std::path::PathBuf)>, server: &str) -> Client {
        Client::new(&ClientKeys::Certificates { authorities: self.file("ca"), own }, server).unwrap()
    }
}

#[test]
fn certificates_of_known_authorities_open_a_session() {
    let ours = Authority::new();
    let mut pair = Pair::new(&ours.client(None, "gateway"), &ours.server(None));
    pair.shake_hands().unwrap();
    assert_exchange(&mut pair);
    assert_eq!(pair.server.identity(), None);

    let own = ours.sign("pump-7");
    let mut pair = Pair::new(&ours.client(Some(own), "gateway"), &ours.server(Some(&ours)));
    pair.shake_hands().unwrap();
    assert_exchange(&mut pair);
    assert_eq!(pair.server.identity().and_then(Identity::name).as_deref(), Some("pump-7"));
}

#[test]
fn certificates_of_others_open_nothing() {
    let (ours, others) = (Authority::new(), Authority::new());
    for (client, server) in [
        (others.client(None, "gateway"), ours.server(None)),
        (ours.client(None, "another"), ours.server(None)),
        (ours.client(Some(others.sign("pump-7")), "gateway"), ours.server(Some(&ours))),
        (ours.client(None, "gateway"), ours.server(Some(&ours))),
    ] {
        let mut pair = Pair::new(&client, &server);
        let end = pair.shake_hands();
        assert!(end.is_err() && !(pair.server.is_open() && pair.client.is_open()), "{end:?}");
    }
}

#[test]
fn files_that_do_not_fit_are_named() {
    let ours = Authority::new();
    let (certificate, key) = ours.sign("gateway");
    let missing = ours.file("missing");
    for (files, named) in [
        (ServerFiles::default(), "psk_file"),
        (ServerFiles { certificate: Some(certificate.clone()), ..Default::default() }, "needs `key`"),
        (
            ServerFiles {
                certificate: Some(certificate.clone()),
                key: Some(ours.sign("other").1),
                ..Default::default()
            },
            "does not belong",
        ),
        (ServerFiles { psk_file: Some(missing.clone()), ..Default::default() }, "missing"),
        (ServerFiles { certificate: Some(key.clone()), key: Some(key.clone()), ..Default::default() }, "gateway.key"),
        (
            ServerFiles { certificate: Some(certificate), key: Some(key), client_ca: Some(missing), psk_file: None },
            "missing",
        ),
    ] {
        let error = Server::new(&files).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// The server's answers to a ClientHello alone, with all repetitions of the engine.
#[test]
fn only_a_returned_cookie_proves_an_address() {
    let directory = TempDir::new().unwrap();
    let file = psk(&directory, "keys", "pump-7", KEY);
    let ours = Authority::new();
    let keyed = Server::new(&ServerFiles { psk_file: Some(file.clone()), ..Default::default() }).unwrap();
    for (client, server) in [(client_with(&file, "pump-7"), keyed), (ours.client(None, "gateway"), ours.server(None))] {
        let mut pair = Pair::new(&client, &server);
        let (mut hello, mut cookie) = (Vec::new(), Vec::new());
        pair.client.handle_timeout(pair.now, &mut pair.buffer, &mut |out| keep(out, &mut hello)).unwrap();
        pair.server.receive(&hello[0], pair.now, &mut pair.buffer, &mut |out| keep(out, &mut cookie)).unwrap();
        assert!(cookie.len() == 1 && cookie[0].len() <= hello[0].len() && !pair.server.is_proven());
        pair.server.receive(b"junk", pair.now, &mut pair.buffer, &mut |out| keep(out, &mut cookie)).unwrap();
        assert!(!pair.server.is_proven());
        let (mut again, mut answer) = (Vec::new(), Vec::new());
        pair.client.receive(&cookie[0], pair.now, &mut pair.buffer, &mut |out| keep(out, &mut again)).unwrap();
        assert!(Hello::of(&again[0]).is_some_and(|hello| !hello.is_first));
        // The server's engine would repeat the cookie, in the datagram with its answer.
        let late = pair.now + Duration::from_secs(2);
        pair.server.receive(&again[0], late, &mut pair.buffer, &mut |out| keep(out, &mut answer)).unwrap();
        assert!(pair.server.is_proven());
    }
}
