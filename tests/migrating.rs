//! The configurations in `docs/MIGRATING.md`.

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use support::{Certificates, Lines, PATIENCE};
use tenbin_broker::Config;

const PAGE: &str = include_str!("../docs/MIGRATING.md");

#[test]
fn configurations_for_tenbin_are_valid() {
    let all = blocks("toml").map(|text| Config::parse(text).unwrap_or_else(|error| panic!("{error}:\n{text}")));
    let listeners: Vec<_> = all.map(|config| config.listeners.len()).collect();
    assert_eq!(listeners, [2, 2]);
}

#[test]
fn mosquitto_accepts_its_example() {
    if Command::new("mosquitto").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return;
    }
    let certificates = Certificates::new();
    let ports = [free_port(), free_port()];
    let example = only("conf")
        .replace("listener 1883", &format!("listener {}", ports[0]))
        .replace("listener 8883", &format!("listener {}", ports[1]));
    // Paths are relative to Mosquitto's directory. Started by root, it would take another user's rights.
    certificates.write("mosquitto.conf", &format!("user root\n{}", example.replace("certs/", "")));
    certificates.write("acl", only("acl"));
    certificates.write("passwords", "");
    fs::create_dir(certificates.path("data")).expect("ours to write");
    let mut mosquitto = Command::new("mosquitto");
    mosquitto.args(["-c", "mosquitto.conf"]).current_dir(certificates.path(""));
    let mut mosquitto = Ended(mosquitto.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("installed"));
    let said = Lines::collect(mosquitto.0.stderr.take().expect("piped"));
    let until = Instant::now() + PATIENCE;
    for port in ports {
        while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
            let ended = mosquitto.0.try_wait().expect("our own child");
            assert!(ended.is_none() && Instant::now() < until, "{ended:?}:\n{}", said.all().join("\n"));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// A child process, killed when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Texts of the page's code blocks of this language.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let begin = format!("```{language}\n");
    PAGE.match_indices("```")
        .filter_map(move |(at, _)| PAGE[at..].strip_prefix(&begin)?.split_once("```").map(|block| block.0))
}

fn only(language: &str) -> &'static str {
    let mut blocks = blocks(language);
    let block = blocks.next().expect("the page has one");
    assert!(blocks.next().is_none(), "the page has one");
    block
}

fn free_port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("bound").port().to_string()
}
