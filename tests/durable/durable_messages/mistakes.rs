//! Mistakes in files and on the command line, mended later: no stored message ends. `docs/admin.md` lists what ends one.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use tenbin_broker::auth::{PasswordFile, Secrets};
use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, exchange, lasting, share, text};

/// Makes a mistake in a configuration.
type Mistake = Box<dyn Fn(&str) -> String>;

const QOS: [QoS; 2] = [QoS::AtLeastOnce, QoS::ExactlyOnce];
/// Messages for each receiver and QoS.
const MESSAGES: usize = 20;

/// A broker with stored messages for an offline session, an offline member of a share group, and a standing group.
struct Stage {
    /// File of passwords, and its right content.
    passwords: (PathBuf, Vec<u8>),
    config: ConfigFile,
    directory: DataDirectory,
    broker: Option<BrokerProcess>,
    reloads: usize,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.passwords.0);
    }
}

impl Stage {
    fn new() -> Self {
        let directory = DataDirectory::new();
        let passwords = directory.path().with_extension("passwords");
        let secrets = Secrets::new(b"secret", false).expect("a password");
        PasswordFile::set(&passwords, "worker", &secrets).expect("ours to write");
        let right = fs::read(&passwords).expect("just written");
        let config = ConfigFile::new("");
        let stage = Self { passwords: (passwords, right), config, directory, broker: None, reloads: 0 };
        stage.mend();
        stage
    }

    /// Writes the right files.
    fn mend(&self) {
        let (passwords, right) = &self.passwords;
        fs::write(passwords, right).expect("ours to write");
        fs::write(self.config.path(), self.right()).expect("ours to write");
    }

    fn right(&self) -> String {
        let file = &self.passwords.0;
        format!(
            "[[listeners]]\nname = \"main\"\naddress = \"127.0.0.1:0\"\npassword_file = {file:?}\n{SHARE}{ACL}{OTHERS}"
        )
    }

    fn start(&mut self, arguments: &[&str]) {
        self.broker = None; // as by `kill -9`
        self.reloads = 0;
        let environment = [("TENBIN_ADMIN__ADDRESS", "127.0.0.1:0".into())];
        let all = [&["--data", self.directory.path_text()], arguments].concat();
        self.broker = Some(BrokerProcess::start_in(&environment, &all));
    }

    fn start_configured(&mut self) {
        let config = self.config.path().to_owned();
        self.start(&["--config", &config]);
    }

    fn reload(&mut self) {
        self.broker().signal("HUP");
        self.reloads += 1;
        let log = self.broker().log();
        let done = log.count(" reloaded", self.reloads, PATIENCE);
        assert_eq!(done, self.reloads, "{}", log.all().join("\n"));
    }

    fn broker(&self) -> &BrokerProcess {
        self.broker.as_ref().expect("started")
    }

    fn connect(&self, mut connect: Connect) -> RawClient {
        connect.user_name = Some(text("worker"));
        connect.password = Some("secret".into());
        // A reload may have opened another socket.
        let address = listening(self.broker());
        let (client, connack) = RawClient::connect(address, connect);
        assert_eq!(connack.reason, ReasonCode::Success);
        client
    }

    fn lasting(&self, client_id: &str) -> RawClient {
        self.connect(lasting(ProtocolVersion::V5, client_id))
    }

    fn publish_all(&self) {
        let mut publisher = self.connect(Connect::new(ProtocolVersion::V5, text("publisher")));
        for topic in TOPICS {
            for qos in QOS {
                for number in 0..MESSAGES {
                    let reason = publisher.publish(topic, &format!("{topic} {qos} {number}"), qos);
                    assert_eq!(reason, ReasonCode::Success, "{topic}");
                }
            }
        }
    }

    /// Numbers of ended messages, by cause.
    fn ended(&self) -> BTreeMap<String, u64> {
        let line = self.broker().wait_for_start_line("admin HTTP at http://");
        let address = line.split("http://").nth(1).and_then(|rest| rest.trim().parse().ok()).expect("an address");
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        let metrics = exchange(address, request.as_bytes()).expect("an answer").body;
        let samples =
            metrics.lines().filter_map(|line| line.strip_prefix("tenbin_store_ended_messages_total{cause=\""));
        let sample = |line: &str| {
            let (cause, value) = line.split_once("\"} ").expect("a sample");
            (cause.to_owned(), value.parse().expect("a number"))
        };
        samples.map(sample).collect()
    }
}

/// The address of the newest socket.
fn listening(broker: &BrokerProcess) -> SocketAddr {
    let opened = broker.log().all().into_iter().rev().find_map(|line| {
        let address = line.contains("listening").then(|| line.split("address=").nth(1))??.split(' ').next()?.to_owned();
        address.parse().ok()
    });
    opened.unwrap_or_else(|| broker.address())
}

#[test]
fn no_mistake_in_a_file_ends_a_stored_message() {
    let without = |part: &'static str| move |right: &str| right.replace(part, "");
    let with = |more: &'static str| move |right: &str| format!("{more}{right}");
    let mistakes: [(&str, Mistake); 7] = [
        ("no rule of the standing group", Box::new(without(SHARE))),
        ("another rule name", Box::new(|right: &str| right.replace("\"standing\"", "\"Standing\""))),
        ("no rule of the ACL for these topics", Box::new(without(ACL))),
        ("a rule that denies", Box::new(|right: &str| right.replace(ACL, &ACL.replace("allow", "deny")))),
        ("another listener", Box::new(|right: &str| right.replace("\"main\"", "\"front\""))),
        ("low limits", Box::new(with("[queue]\nmessages_maximum = 1\n[store]\nqueue_bytes_maximum = 1\n"))),
        ("a user that is missing", Box::new(str::to_owned)),
    ];
    for by_restart in [false, true] {
        let mut stage = Stage::new();
        stage.start_configured();
        for (client_id, filter) in [("session", "own".to_owned()), ("member", share("plain", "shared"))] {
            let mut client = stage.lasting(client_id);
            client.subscribe(&filter, QoS::ExactlyOnce);
            client.disconnect();
        }
        stage.publish_all();
        for (what, mistake) in &mistakes {
            fs::write(stage.config.path(), mistake(&stage.right())).expect("ours to write");
            if what.contains("user") {
                assert!(PasswordFile::delete(&stage.passwords.0, "worker").expect("ours to write"));
            }
            if by_restart {
                stage.start_configured()
            } else {
                stage.reload()
            }
            expect_no_end(&stage, what);
            stage.mend();
            if by_restart {
                stage.start_configured()
            } else {
                stage.reload()
            }
            expect_no_end(&stage, what);
        }
        if by_restart {
            let empty = ConfigFile::new("");
            for arguments in [&[][..], &["--config", empty.path()]] {
                stage.start(&[&["--listen", "127.0.0.1:0"], arguments].concat());
                expect_no_end(&stage, "no --config, or an empty file");
            }
            stage.start_configured();
        }
        for (client_id, topic) in ["session", "member", "another"].into_iter().zip(TOPICS) {
            let mut client = stage.lasting(client_id);
            if topic == "kept" {
                client.subscribe(&share("standing", "kept"), QoS::ExactlyOnce);
            }
            let messages = client.receive_messages(QOS.len() * MESSAGES);
            let mut got: Vec<_> =
                messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect();
            got.sort();
            let mut wanted: Vec<_> = QOS
                .into_iter()
                .flat_map(|qos| (0..MESSAGES).map(move |number| format!("{topic} {qos} {number}")))
                .collect();
            wanted.sort();
            assert_eq!(got, wanted, "by restart: {by_restart}");
        }
    }
}

fn expect_no_end(stage: &Stage, what: &str) {
    let ended = stage.ended();
    assert!(!ended.is_empty() && ended.values().all(|messages| *messages == 0), "{what}: {ended:?}");
}

#[test]
fn table_of_causes_names_those_of_the_broker() {
    let mut stage = Stage::new();
    stage.start_configured();
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admin.md")).expect("the page");
    let table = page.split("### What ends a stored message").nth(1).and_then(|rest| rest.split("\n#").next());
    let rows = table.expect("the section").lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut told: Vec<_> = rows.filter(|cause| *cause != "cause").map(ToOwned::to_owned).collect();
    told.sort();
    assert_eq!(told, stage.ended().into_keys().collect::<Vec<_>>());
}

const TOPICS: [&str; 3] = ["own", "shared", "kept"];
const SHARE: &str = "[[share]]\ngroup = \"standing\"\nfilter = \"kept\"\nkeep_seconds = 604800\n";
const ACL: &str = "[[acl]]\nallow = \"subscribe\"\ntopic = \"+\"\n";
const OTHERS: &str = "[[acl]]\nallow = \"publish\"\ntopic = \"+\"\n";
