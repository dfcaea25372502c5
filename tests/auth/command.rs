//! `tenbin passwd`.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use tenbin_codec::{Connect, ProtocolVersion, ReasonCode};

use crate::guarded::{Passwords, with_password};
use crate::support::{BrokerProcess, ConfigFile, RawClient, text};

#[test]
fn a_password_from_standard_input_lets_in() {
    let file = Passwords::empty();
    assert!(passwd(&[file.path(), "carol"], "opera\n").status.success());
    assert!(passwd(&[file.path(), "dave", "--scram"], "saw me").status.success());
    let content = std::fs::read_to_string(file.path()).expect("made");
    let kinds: Vec<_> = content.lines().map(|line| line.split('$').take(2).collect::<String>()).collect();
    assert_eq!(kinds, ["carol:argon2id", "dave:argon2id", "dave:scram-sha-256"]);
    assert!(!content.contains("opera"));
    let config =
        ConfigFile::new(&format!("[[listeners]]\naddress = \"127.0.0.1:0\"\npassword_file = {:?}\n", file.path()));
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    for (user, password, reason) in [
        ("carol", "opera", ReasonCode::Success),
        ("dave", "saw me", ReasonCode::Success),
        ("carol", "opera\n", ReasonCode::BadUserNameOrPassword),
    ] {
        let connect = with_password(Connect::new(ProtocolVersion::V5, text("c")), user, password);
        assert_eq!(RawClient::try_connect(broker.address(), connect).1.reason, reason, "{user} {password:?}");
    }

    assert!(passwd(&[file.path(), "carol", "--delete"], "").status.success());
    assert!(!std::fs::read_to_string(file.path()).expect("made").contains("carol"));
}

#[cfg(unix)]
#[test]
fn a_new_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = Passwords::empty();
    assert!(passwd(&[file.path(), "carol"], "opera\n").status.success());
    let mode = std::fs::metadata(file.path()).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn mistakes_are_told_in_one_line() {
    let file = Passwords::empty();
    for (arguments, input, word) in [
        (&[file.path(), "carol"][..], "", "empty"),
        (&[file.path(), "a:b"], "x", "a:b"),
        (&[file.path(), "carol", "--scram"], "é", "ASCII"),
        (&["/nowhere/passwords", "carol"], "x", "/nowhere/passwords"),
        (&[file.path(), "carol", "--delete"], "", file.path()),
    ] {
        let output = passwd(arguments, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    file.set("alice", "wonderland");
    let output = passwd(&[file.path(), "carol", "--delete"], "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("carol"));
}

fn passwd(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.arg("passwd").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the built command can be started");
    // It may end before it reads.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("our own child")
}
