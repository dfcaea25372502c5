//! Costs of DTLS: handshakes, messages, and the memory of a server's sessions.
#![allow(clippy::print_stdout, missing_docs, reason = "a bench prints figures")]

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use criterion::Criterion;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tenbin_sn_dtls::{Client, ClientKeys, Output, Server, ServerFiles, Session};

const PAYLOAD: usize = 255;
/// Sessions whose memory is measured.
const SESSIONS: usize = 2000;

/// Files of both sides.
struct Files {
    directory: TempDir,
}

impl Files {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
        write("keys", &format!("pump-7:{}\n", "07".repeat(16)));
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed");
        let key = KeyPair::generate().expect("a key");
        let names = CertificateParams::new(vec!["gateway".to_owned()]).expect("a name");
        write("ca", &authority.pem());
        write("certificate", &names.signed_by(&key, &authority).expect("signed").pem());
        write("key", &key.serialize_pem());
        Self { directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn with_keys(&self) -> (Server, Client) {
        let files = ServerFiles { psk_file: Some(self.path("keys")), ..ServerFiles::default() };
        let keys = ClientKeys::PreShared { identity: "pump-7".to_owned(), file: self.path("keys") };
        (Server::new(&files).expect("usable"), Client::new(&keys, "gateway").expect("usable"))
    }

    fn with_certificates(&self) -> (Server, Client) {
        let (certificate, key) = (Some(self.path("certificate")), Some(self.path("key")));
        let files = ServerFiles { certificate, key, ..ServerFiles::default() };
        let keys = ClientKeys::Certificates { authorities: self.path("ca"), own: None };
        (Server::new(&files).expect("usable"), Client::new(&keys, "gateway").expect("usable"))
    }
}

fn collect(datagrams: &mut Vec<Vec<u8>>) -> impl FnMut(Output<'_>) + '_ {
    |output| {
        if let Output::Datagram(datagram) = output {
            datagrams.push(datagram.to_vec());
        }
    }
}

/// A session of both sides, after all of the handshake or after its first datagram.
fn open(server: &Server, client: &Client, is_whole: bool) -> (Session, Session) {
    let (now, mut buffer) = (Instant::now(), Vec::new());
    let (mut client, mut server) = (Session::connect(client, now), Session::accept(server, now));
    let mut to_server = Vec::new();
    client.handle_timeout(now, &mut buffer, &mut collect(&mut to_server)).expect("a first datagram");
    loop {
        let mut to_client = Vec::new();
        for datagram in to_server.drain(..) {
            server.receive(&datagram, now, &mut buffer, &mut collect(&mut to_client)).expect("legal");
        }
        if !is_whole || to_client.is_empty() {
            return (client, server);
        }
        for datagram in to_client {
            client.receive(&datagram, now, &mut buffer, &mut collect(&mut to_server)).expect("legal");
        }
    }
}

fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok()).map_or(0, |pages| pages * 4096)
}

fn print_memory(name: &str, server: &Server, client: &Client, is_whole: bool) {
    // The first ones grow pools of the allocator.
    let warm: Vec<_> = (0..100).map(|_| open(server, client, is_whole).1).collect();
    let before = resident_bytes();
    let sessions: Vec<_> = (0..SESSIONS).map(|_| open(server, client, is_whole).1).collect();
    let bytes = (resident_bytes() - before) / SESSIONS;
    println!("{name:<40} memory: {bytes} bytes a session");
    drop((warm, sessions));
}

fn main() {
    let files = Files::new();
    let sides = [("psk", files.with_keys()), ("certificate", files.with_certificates())];
    for (name, (server, client)) in &sides {
        print_memory(&format!("{name}, first datagram"), server, client, false);
        print_memory(&format!("{name}, open"), server, client, true);
    }
    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    for (name, (server, client)) in &sides {
        criterion.bench_function(&format!("{name}, server after first datagram"), |bench| {
            bench.iter(|| black_box(open(server, client, false)));
        });
        criterion.bench_function(&format!("{name}, handshake of both sides"), |bench| {
            bench.iter(|| black_box(open(server, client, true)));
        });
        let ((mut client, mut server), mut buffer, now) = (open(server, client, true), Vec::new(), Instant::now());
        let message = [7; PAYLOAD];
        criterion.bench_function(&format!("{name}, message from client to server"), |bench| {
            let mut datagrams = Vec::new();
            bench.iter(|| {
                client.send(&message, now, &mut buffer, &mut collect(&mut datagrams)).expect("open");
                for datagram in datagrams.drain(..) {
                    server
                        .receive(&datagram, now, &mut buffer, &mut |output| {
                            black_box(output);
                        })
                        .expect("open");
                }
            });
        });
    }
    criterion.final_summary();
}
