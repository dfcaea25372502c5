//! `tenbin passwd`.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use tenbin_codec::{Connect, ProtocolVersion, ReasonCode};

use crate::auth::guarded::{Passwords, USERS, with_password};
use crate::support::{BrokerProcess, ConfigFile, RawClient, text};

#[test]
fn a_password_from_standard_input_lets_in() {
    let file = Passwords::empty();
    assert!(passwd(&[file.path(), "carol"], "opera\n").status.success());
    assert!(passwd(&[file.path(), "dave", "--scram"], "saw me").status.success());
    let content = fs::read_to_string(file.path()).expect("made");
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
    assert!(!fs::read_to_string(file.path()).expect("made").contains("carol"));
}

#[cfg(unix)]
#[test]
fn a_new_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = Passwords::empty();
    assert!(passwd(&[file.path(), "carol"], "opera\n").status.success());
    let mode = fs::metadata(file.path()).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[cfg(unix)]
#[test]
fn passwd_keeps_a_symbolic_link() {
    use std::os::unix::fs::symlink;
    let (file, link) = (Passwords::of(&[("alice", "wonderland")]), Passwords::empty());
    symlink(file.path(), link.path()).expect("a new name");
    assert!(passwd(&[link.path(), "carol"], "opera\n").status.success());
    assert!(fs::symlink_metadata(link.path()).expect("still there").is_symlink());
    let content = fs::read_to_string(file.path()).expect("ours");
    assert!(content.contains("alice:") && content.contains("carol:"), "{content}");
    // A dangling link is not replaced by a file either.
    fs::remove_file(file.path()).expect("ours");
    let output = passwd(&[link.path(), "carol"], "opera\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(link.path()), "{said}");
    assert!(fs::symlink_metadata(link.path()).expect("still there").is_symlink());
}

/// A process that may change owners keeps the file's owner. One that may not leaves the file unchanged.
#[cfg(unix)]
#[test]
fn passwd_keeps_the_owner_or_leaves_the_file_unchanged() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    use std::os::unix::process::CommandExt as _;
    const OTHER: u32 = 65_534;
    let file = Passwords::of(&[("alice", "wonderland")]);
    if chown(file.path(), Some(OTHER), Some(OTHER)).is_err() {
        return skip("only root can give files away");
    }
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).expect("root");
    assert!(passwd(&[file.path(), "carol"], "opera\n").status.success());
    let kept = fs::metadata(file.path()).expect("there");
    assert_eq!((kept.uid(), kept.gid(), kept.mode() & 0o777), (OTHER, OTHER, 0o640));

    if Command::new(env!("CARGO_BIN_EXE_tenbin")).arg("--version").uid(OTHER).gid(OTHER).output().is_err() {
        return skip("the built command is where another user does not reach it");
    }
    // Root's file, in a directory where others may write.
    let directory = Passwords::empty();
    fs::create_dir(directory.path()).expect("a new name");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("root");
    let roots = format!("{}/passwords", directory.path());
    fs::write(&roots, "# root's\n").expect("root");
    let output = run(command(&[&roots, "carol"]).uid(OTHER).gid(OTHER), "opera\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&roots) && said.contains("user 0 and group 0"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(fs::read_to_string(&roots).expect("root"), "# root's\n");
    assert_eq!(fs::read_dir(directory.path()).expect("root").count(), 1, "nothing is left beside it");
    fs::remove_dir_all(directory.path()).expect("root");
}

#[test]
fn passwd_errors_take_one_line() {
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

#[cfg(unix)]
#[test]
fn passwd_commands_at_the_same_time_lose_no_change() {
    let file = Passwords::of(&USERS);
    let line = fs::read_to_string(file.path()).expect("ours to read");
    let secret = line.lines().next().and_then(|line| line.split_once(':')).expect("a line").1.to_owned();
    // Deleting takes no time for a hash, so that more commands meet.
    let deleted = (0..20).map(|number| format!("deleted-{number}")).collect::<Vec<_>>();
    let lines = deleted.iter().map(|user| format!("{user}:{secret}\n")).collect::<String>();
    fs::write(file.path(), line + &lines).expect("ours to write");
    std::thread::scope(|scope| {
        for user in &deleted {
            let path = file.path();
            scope.spawn(move || assert!(passwd(&[path, user, "--delete"], "").status.success()));
        }
        for number in 0..4 {
            let path = file.path();
            scope.spawn(move || assert!(passwd(&[path, &format!("new-{number}")], "secret\n").status.success()));
        }
    });
    let text = fs::read_to_string(file.path()).expect("ours to read");
    let missing = (0..4).find(|number| !text.contains(&format!("new-{number}:$argon2id")));
    assert_eq!((missing, text.contains("deleted-"), text.contains("alice:")), (None, false, true), "{text}");
}

fn skip(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

fn passwd(arguments: &[&str], input: &str) -> Output {
    run(&mut command(arguments), input)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.arg("passwd").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(command: &mut Command, input: &str) -> Output {
    let mut child = command.spawn().expect("the built command can be started");
    // The command may exit before it reads.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("our own child")
}
