//! Unix sockets.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::support::{BrokerProcess, ClientStream, ConfigFile, PATIENCE, RawClient, lasting, text};

/// A broker that listens on a unix socket, and on a port.
struct Local {
    broker: BrokerProcess,
    file: ConfigFile,
    directory: TempDir,
}

impl Local {
    /// `more`: keys of the listener, and further tables.
    fn start(more: &str) -> Self {
        let directory = tempfile::tempdir().expect("ours to write");
        let socket = directory.path().join("a.sock");
        let text = format!(
            "[[listeners]]\naddress = \"unix:{}\"\nname = \"local\"\nanonymous = true\n{more}",
            socket.display()
        );
        let file = ConfigFile::new(&text);
        let arguments = ["--listen", "127.0.0.1:0", "--config", file.path(), "--log", "debug"];
        Self { broker: BrokerProcess::start_exactly(&arguments), file, directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("a.sock")
    }

    fn connect(&self, connect: Connect) -> RawClient {
        let client = RawClient::on(ClientStream::unix(&self.path()), connect.version);
        let (client, connack) = client.introduce(connect);
        assert_eq!(connack.reason, ReasonCode::Success, "CONNACK");
        client
    }

    fn v5(&self, client_id: &str) -> RawClient {
        self.connect(Connect::new(ProtocolVersion::V5, text(client_id)))
    }
}

#[test]
fn local_clients_are_known_by_their_user_and_have_rights() {
    let acl = "[[acl]]\nlistener = \"local\"\nallow = \"all\"\ntopic = \"a\"\n";
    let local = Local::start(&format!("mode = \"0600\"\n{acl}"));
    let uid = fs::metadata(local.path()).expect("it listens").uid();
    assert_eq!(fs::metadata(local.path()).expect("it listens").permissions().mode() & 0o777, 0o600);
    let mut client = local.v5("client");
    local.broker.log().wait_for(&[&format!("peer=uid:{uid}"), "client", "connected"], PATIENCE);
    client.subscribe("a", QoS::AtLeastOnce);
    client.publish("a", "by a unix socket", QoS::AtLeastOnce);
    assert_eq!(client.receive_message().payload, "by a unix socket");
    assert_eq!(client.publish("b", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    local.broker.wait_for_start_line("listening on unix:");
}

#[test]
fn slow_local_receiver_loses_nothing() {
    const COUNT: usize = 3000;
    let local = Local::start("");
    let mut slow = local.connect(lasting(ProtocolVersion::V5, "slow"));
    slow.subscribe("a", QoS::AtLeastOnce);
    let mut publisher = local.v5("publisher");
    let payload = "x".repeat(1000);
    for number in 0..COUNT {
        assert_eq!(publisher.publish("a", &format!("{number} {payload}"), QoS::AtLeastOnce), ReasonCode::Success);
    }
    for (number, message) in slow.receive_messages(COUNT).into_iter().enumerate() {
        assert!(message.payload.starts_with(format!("{number} ").as_bytes()));
    }
}

#[test]
fn reload_closes_a_unix_socket_and_removes_its_file() {
    let local = Local::start("");
    let mut client = local.v5("client");
    fs::write(local.file.path(), "policy = \"random\"\n").expect("ours to write");
    local.broker.signal("HUP");
    local.broker.log().wait_for(&["reloaded"], PATIENCE);
    assert!(!local.path().exists());
    client.settle();
}

#[test]
fn rights_of_unix_socket_change_only_with_whole_reload() {
    let local = Local::start("mode = \"0600\"\n");
    let mode = || fs::metadata(local.path()).expect("it listens").permissions().mode() & 0o777;
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("bound");
    let wider = fs::read_to_string(local.file.path()).expect("ours to read").replace("0600", "0666");
    let other = format!("[[listeners]]\nname = \"taken\"\naddress = \"{}\"\nanonymous = true\n", taken.1);
    fs::write(local.file.path(), format!("{wider}{other}")).expect("ours to write");
    local.broker.signal("HUP");
    local.broker.log().wait_for(&["reload failed", "listener taken"], PATIENCE);
    assert_eq!(mode(), 0o600);
    fs::write(local.file.path(), wider).expect("ours to write");
    local.broker.signal("HUP");
    local.broker.log().wait_for(&["reloaded"], PATIENCE);
    assert_eq!(mode(), 0o666);
    local.v5("client").settle();
}

#[test]
fn reload_changes_rights_of_no_other_file() {
    let local = Local::start("mode = \"0600\"\n");
    let other = local.directory.path().join("other");
    fs::write(&other, "private").expect("ours to write");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).expect("ours to change");
    let mode = || fs::metadata(&other).expect("ours to read").permissions().mode() & 0o777;
    let wider = fs::read_to_string(local.file.path()).expect("ours to read").replace("0600", "0666");
    fs::write(local.file.path(), wider).expect("ours to write");
    for is_link in [true, false] {
        fs::remove_file(local.path()).expect("ours to remove");
        if is_link {
            std::os::unix::fs::symlink(&other, local.path()).expect("ours to make");
        } else {
            fs::hard_link(&other, local.path()).expect("ours to make");
        }
        let before = local.broker.log().count("reload failed", usize::MAX, std::time::Duration::ZERO);
        local.broker.signal("HUP");
        assert_eq!(local.broker.log().count("reload failed", before + 1, PATIENCE), before + 1);
        local.broker.log().wait_for(&["listener local", "another file has taken the place of the socket"], PATIENCE);
        assert_eq!(mode(), 0o600);
    }
}

#[test]
fn mosquitto_tools_use_a_unix_socket() {
    if Command::new("mosquitto_pub").arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return;
    }
    let local = Local::start("");
    let mut receiver = local.broker.v5("receiver");
    receiver.subscribe("a", QoS::AtLeastOnce);
    let path = local.path();
    let publish =
        Command::new("mosquitto_pub").arg("--unix").arg(path).args(["-q", "1", "-t", "a", "-m", "hello"]).status();
    assert!(publish.expect("installed").success());
    assert_eq!(receiver.receive_message().payload, "hello");
}
