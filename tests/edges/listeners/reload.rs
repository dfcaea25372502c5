//! SIGHUP opens and closes listeners.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use crate::listeners::connect;
use crate::support::{BrokerProcess, ConfigFile, PATIENCE};

/// A broker whose configuration file changes.
struct Changing {
    file: ConfigFile,
    broker: BrokerProcess,
}

impl Changing {
    fn start(listeners: &[(&str, &str)]) -> Self {
        let file = ConfigFile::new(&configuration(listeners));
        let broker = BrokerProcess::start_listening(&["--config", file.path()], listeners.len());
        Self { file, broker }
    }

    /// Reloads the file with these listeners, and waits for the next log line with `word`.
    fn reload(&self, configuration: &str, word: &str) -> String {
        fs::write(self.file.path(), configuration).expect("a file of ours");
        let before = self.broker.log().count(word, usize::MAX, Duration::ZERO);
        self.broker.signal("HUP");
        assert_eq!(self.broker.log().count(word, before + 1, PATIENCE), before + 1, "{word}");
        let lines = self.broker.log().all();
        lines.into_iter().rfind(|line| line.contains(word)).expect("it has been counted")
    }

    /// Address at which a reload has opened a listener.
    fn opened(&self, name: &str) -> SocketAddr {
        let line = self.broker.log().wait_for(&["listening", name], PATIENCE);
        let address = line.split("address=").nth(1).and_then(|rest| rest.split_ascii_whitespace().next());
        address.expect("the address").parse().expect("an address")
    }
}

/// Listeners as `(name, address)`, each with a further key `more`.
fn configuration(listeners: &[(&str, &str)]) -> String {
    let listener = |(name, address): &(&str, &str)| {
        format!("[[listeners]]\nname = \"{name}\"\naddress = \"{address}\"\nanonymous = true\n")
    };
    listeners.iter().map(listener).collect()
}

fn wait_until_closed(address: SocketAddr) {
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < until, "{address} is still open");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn reload_opens_new_listeners_and_keeps_old_connections() {
    let changing = Changing::start(&[("old", "127.0.0.1:0"), ("stays", "127.0.0.2:0")]);
    let [old, stays] = *changing.broker.addresses() else { panic!("two addresses") };
    let (mut first, mut second) = (connect(old, "first"), connect(stays, "second"));
    first.subscribe("a", QoS::AtLeastOnce);
    changing.reload(&configuration(&[("new", "localhost:0"), ("stays", "127.0.0.2:0")]), "reloaded");
    wait_until_closed(old);
    let mut third = connect(changing.opened("new"), "third");
    for client in [&mut second, &mut third, &mut connect(stays, "fourth")] {
        client.publish("a", "to a closed listener's client", QoS::AtLeastOnce);
        assert_eq!(first.receive_message().payload, "to a closed listener's client");
    }
    // A further reload keeps them too.
    changing.reload(&configuration(&[("stays", "127.0.0.2:0")]), "reloaded");
    first.settle();
    third.settle();
}

#[test]
fn reload_with_a_port_in_use_changes_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).expect("bound");
    let changing = Changing::start(&[("old", "127.0.0.1:0")]);
    let new =
        configuration(&[("free", "127.0.0.1:0"), ("taken", &taken.1)]) + "[[acl]]\ndeny = \"all\"\ntopic = \"#\"\n";
    let line = changing.reload(&new, "reload failed");
    for word in ["listener taken", &taken.1, "in use"] {
        assert!(line.contains(word), "{word} is missing in {line}");
    }
    let mut client = connect(changing.broker.address(), "client");
    client.subscribe("a", QoS::AtLeastOnce);
    client.publish("a", "still allowed", QoS::AtLeastOnce);
    assert_eq!(client.receive_message().payload, "still allowed");
    assert!(!changing.broker.log().all().iter().any(|line| line.contains("listening")));
}

#[test]
fn renamed_listener_keeps_its_port() {
    let changing = Changing::start(&[("old", "127.0.0.1:0")]);
    let mut early = connect(changing.broker.address(), "early");
    changing.reload(&configuration(&[("new", "127.0.0.1:0")]), "reloaded");
    assert_eq!(changing.opened("new"), changing.broker.address());
    connect(changing.broker.address(), "late").settle();
    early.settle();
}

#[test]
fn changed_key_that_needs_a_restart_is_logged() {
    let changing = Changing::start(&[("old", "127.0.0.1:0")]);
    let new = configuration(&[("new", "127.0.0.1:0")]) + "[queue]\nmessages_maximum = 5\n";
    changing.reload(&new, "reloaded");
    let lines = changing.broker.log().all();
    let named: Vec<_> = lines.iter().filter(|line| line.contains("restart the broker")).collect();
    assert!(named.len() == 1 && named[0].contains("queue.messages_maximum"), "{named:?}");
}
