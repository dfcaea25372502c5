//! A DTLS handshake and messages whose datagrams are changed, cut, repeated, lost, and joined by any others.
//!
//! Neither side panics. A message comes out as it went in, at most once.
#![no_main]

use std::collections::VecDeque;
use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, KeyPair};
use tenbin_sn_dtls::{Client, ClientKeys, Output, Server, ServerFiles, Session};

/// Server and client with a pre-shared key, and with a certificate.
static SIDES: LazyLock<[(Server, Client); 2]> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let key = KeyPair::generate().expect("a key");
    let own = CertificateParams::new(vec!["gateway".to_owned()]).expect("a name").self_signed(&key).expect("signed");
    fs::write(path("keys"), format!("c:{}\n", "07".repeat(16))).expect("written");
    fs::write(path("own"), own.pem()).expect("written");
    fs::write(path("key"), key.serialize_pem()).expect("written");
    let psk_file = Some(path("keys"));
    let certified = ServerFiles {
        psk_file: psk_file.clone(),
        certificate: Some(path("own")),
        key: Some(path("key")),
        client_ca: None,
    };
    let shared = ClientKeys::PreShared { identity: "c".to_owned(), file: path("keys") };
    let certificates = ClientKeys::Certificates { authorities: path("own"), own: None };
    let server = |files| Server::new(&files).expect("usable");
    let client = |keys| Client::new(&keys, "gateway").expect("usable");
    [
        (server(ServerFiles { psk_file, ..ServerFiles::default() }), client(shared)),
        (server(certified), client(certificates)),
    ]
});

const STEPS: usize = 60;

/// One side, and the datagrams on their way to it.
struct Side {
    session: Option<Session>,
    arriving: VecDeque<Vec<u8>>,
    received: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl Side {
    fn new(session: Session) -> Self {
        Self { session: Some(session), arriving: VecDeque::new(), received: Vec::new(), sent: Vec::new() }
    }

    /// Calls the session, which ends by an error.
    fn call(
        &mut self,
        other: &mut Self,
        call: impl FnOnce(&mut Session, &mut Vec<u8>, &mut dyn FnMut(Output<'_>)) -> bool,
    ) {
        let Some(session) = &mut self.session else { return };
        let received = &mut self.received;
        let goes_on = call(session, &mut Vec::new(), &mut |output| match output {
            Output::Datagram(datagram) => other.arriving.push_back(datagram.to_vec()),
            Output::Message(message) => received.push(message.to_vec()),
        });
        if !goes_on {
            self.session = None;
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let (server, client) = &SIDES[usize::from(input.arbitrary().unwrap_or(false))];
    let mut now = Instant::now();
    let mut sides = [Side::new(Session::connect(client, now)), Side::new(Session::accept(server, now))];
    for _ in 0..STEPS {
        let Ok(choice) = input.arbitrary::<u8>() else { break };
        let [one, other] = &mut sides;
        let (here, there) = if choice & 1 == 0 { (one, other) } else { (other, one) };
        let mut datagram = match choice >> 1 & 7 {
            // Time.
            0 => {
                now += Duration::from_millis(input.arbitrary::<u16>().unwrap_or(0).into());
                here.call(there, |session, buffer, output| session.handle_timeout(now, buffer, output).is_ok());
                continue;
            }
            // A message.
            1 => {
                let message = vec![choice; usize::from(input.arbitrary::<u8>().unwrap_or(0)) + 1];
                if here.session.as_ref().is_some_and(Session::is_open) {
                    here.sent.push(message.clone());
                    here.call(there, |session, buffer, output| session.send(&message, now, buffer, output).is_ok());
                }
                continue;
            }
            // Bytes from a stranger.
            2 => input.arbitrary::<Vec<u8>>().unwrap_or_default(),
            // A repeated one.
            3 => here.arriving.front().cloned().unwrap_or_default(),
            _ => here.arriving.pop_front().unwrap_or_default(),
        };
        match choice >> 4 {
            // Lost.
            0 => continue,
            1 => datagram.truncate(input.arbitrary::<u8>().unwrap_or(0).into()),
            2 => {
                let at = usize::from(input.arbitrary::<u8>().unwrap_or(0));
                if let Some(byte) = datagram.get_mut(at) {
                    *byte ^= input.arbitrary::<u8>().unwrap_or(1);
                }
            }
            3 => datagram.extend(input.arbitrary::<Vec<u8>>().unwrap_or_default()),
            _ => {}
        }
        here.call(there, |session, buffer, output| session.receive(&datagram, now, buffer, output).is_ok());
    }
    let [client, server] = &mut sides;
    for (here, there) in [(&client.received, &mut server.sent), (&server.received, &mut client.sent)] {
        for message in here {
            let at = there.iter().position(|sent| sent == message).expect("a message that was sent, once");
            there.swap_remove(at);
        }
    }
});
