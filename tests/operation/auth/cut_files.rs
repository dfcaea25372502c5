//! SIGHUP with an emptied or cut configuration file: nothing opens that was closed.

use std::fs;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::auth::guarded::{Guarded, Passwords, USERS, as_user};
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, text};

/// Rules that allow by default. The last key of each table restricts it.
const RULES: &str = "acl_default = \"allow\"\n";
const TABLES: &str = "\
[[ban]]\nclient_id = \"worse\"\nuser = \"alice\"\n\
[[acl]]\nallow = \"publish\"\ntopic = \"secret/#\"\nuser = \"alice\"\n\
[[acl]]\ndeny = \"all\"\ntopic = \"secret/#\"\n\
[[ban]]\nclient_id = \"bad\"\n\
[[share]]\ngroup = \"g\"\npolicy = \"random\"\n";

fn whole(passwords: &Passwords) -> String {
    let listener = "[[listeners]]\nname = \"main\"\naddress = \"127.0.0.1:0\"";
    format!("{RULES}{listener}\npublishes_per_second = 1000\npassword_file = {:?}\n{TABLES}", passwords.path())
}

/// Sends SIGHUP. Returns whether the reload succeeded.
fn hang_up(broker: &BrokerProcess) -> bool {
    let count = |word| broker.log().count(word, usize::MAX, Duration::ZERO);
    let (taken, refused) = (count(" reloaded"), count("reload failed"));
    broker.signal("HUP");
    let until = Instant::now() + PATIENCE;
    while count(" reloaded") + count("reload failed") == taken + refused {
        assert!(Instant::now() < until, "no answer to SIGHUP");
        std::thread::sleep(Duration::from_millis(5));
    }
    count(" reloaded") > taken
}

/// Asserts that nothing is allowed that the whole file does not allow.
fn assert_closed(broker: &BrokerProcess, cut: &str) {
    let connect = |client_id: &str, user: &str| {
        let connect = as_user(Connect::new(ProtocolVersion::V5, text(client_id)), user);
        RawClient::try_connect(broker.address(), connect)
    };
    assert_ne!(connect("anonymous", "").1.reason, ReasonCode::Success, "anonymous after {cut:?}");
    assert_ne!(connect("bad", "bob").1.reason, ReasonCode::Success, "banned after {cut:?}");
    let (mut bob, connack) = connect("bob", "bob");
    if connack.reason == ReasonCode::Success {
        let reason = bob.publish("secret/x", "x", QoS::AtLeastOnce);
        assert_eq!(reason, ReasonCode::NotAuthorized, "after {cut:?}");
    }
}

#[test]
fn file_cut_at_any_line_opens_nothing() {
    let passwords = Passwords::of(&USERS);
    let whole = whole(&passwords);
    let config = ConfigFile::new(&whole);
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    let mut refused = 0;
    for (at, _) in whole.match_indices('\n').chain([(0, "")]) {
        let cut = &whole[..at];
        // Written in place, as by an editor whose disk is full.
        fs::write(config.path(), cut).expect("ours to write");
        refused += usize::from(!hang_up(&broker));
        assert_closed(&broker, cut);
        fs::write(config.path(), &whole).expect("ours to write");
        assert!(hang_up(&broker));
    }
    assert!(refused > 15, "{refused}");
}

/// Whether the reload of a file succeeds that replaces the first.
fn is_taken(before: &str, after: &str) -> (bool, String) {
    let config = ConfigFile::new(before);
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    fs::write(config.path(), after).expect("ours to write");
    let taken = hang_up(&broker);
    let said = broker.log().all().into_iter().rfind(|line| line.contains("reload failed")).unwrap_or_default();
    (taken, said)
}

#[test]
fn reload_that_leaves_out_a_protection_is_refused_by_name() {
    let passwords = Passwords::of(&USERS);
    let listener =
        format!("[[listeners]]\nname = \"main\"\naddress = \"127.0.0.1:0\"\npassword_file = {:?}\n", passwords.path());
    let rule = "[[acl]]\nallow = \"all\"\ntopic = \"a\"\n";
    for (before, after, words) in [
        (listener.clone(), String::new(), "it has no key"),
        (listener.clone(), "# nothing\n".to_owned(), "it has no key"),
        (listener.clone(), "[queue]\nmessages_maximum = 16384\n".to_owned(), "listeners: none is left"),
        (format!("{listener}{rule}"), listener.clone(), "acl: no rule is left"),
        (format!("acl_default = \"deny\"\n{listener}"), listener.clone(), "acl: no rule is left"),
        (format!("{listener}{rule}"), format!("acl_default = \"allow\"\n{listener}"), "acl: no rule is left"),
    ] {
        let (taken, said) = is_taken(&before, &after);
        assert!(!taken && said.contains(words) && said.contains(".toml"), "{after:?}: {said}");
    }
    // These changes are explicit, so a reload takes them.
    for (before, after) in [
        (format!("acl_default = \"deny\"\n{listener}"), format!("acl_default = \"allow\"\n{listener}")),
        (format!("{listener}{rule}"), format!("acl_default = \"deny\"\n{listener}")),
        (format!("{listener}{rule}"), format!("{listener}[[acl]]\nallow = \"all\"\ntopic = \"#\"\n")),
        (format!("{listener}[[ban]]\nuser = \"bob\"\n"), format!("# no ban\n{listener}")),
        (format!("{listener}{rule}{rule}"), format!("{listener}{rule}")),
    ] {
        let (taken, said) = is_taken(&before, &after);
        assert!(taken, "{after:?}: {said}");
    }
}

/// A closed listener's rules stay in their order: a rule for it alone does not go before an earlier one.
#[test]
fn connections_of_a_closed_listener_keep_all_rules() {
    let passwords = Passwords::of(&USERS);
    let listener = |name: &str| {
        format!("[[listeners]]\nname = {name:?}\naddress = \"127.0.0.1:0\"\npassword_file = {:?}\n", passwords.path())
    };
    let rule = |keys: &str| format!("[[acl]]\n{keys}\n");
    let general = rule("deny = \"all\"\ntopic = \"secret/#\"");
    let own = rule("listener = \"closed\"\nallow = \"all\"\ntopic = \"#\"");
    let config = ConfigFile::new(&[listener("closed"), listener("open"), general, own].concat());
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    let mut bob = broker.connect(as_user(Connect::new(ProtocolVersion::V5, text("bob")), "bob"));
    let mut may = |topic: &str| bob.publish(topic, "", QoS::AtLeastOnce) != ReasonCode::NotAuthorized;
    assert_eq!([may("secret/x"), may("a"), may("b")], [false, true, true]);
    // The rule that denied is gone, and another one came.
    let now = [listener("open"), rule("deny = \"all\"\ntopic = \"b\""), rule("allow = \"all\"\ntopic = \"#\"")];
    fs::write(config.path(), now.concat()).expect("ours to write");
    for _ in 0..2 {
        assert!(hang_up(&broker));
        assert_eq!([may("secret/x"), may("a"), may("b")], [false, true, false]);
    }
}

#[test]
fn unban_at_the_end_of_the_file_needs_another_change() {
    let guarded = Guarded::start("[[ban]]\nuser = \"bob\"\n");
    let text = fs::read_to_string(guarded.config.path()).expect("ours to read");
    let without = text.split("[[ban]]").next().expect("a beginning");
    fs::write(guarded.config.path(), without).expect("ours to write");
    guarded.hang_up("beginning of the one in effect");
    fs::write(guarded.config.path(), format!("# bob may come\n{without}")).expect("ours to write");
    guarded.hang_up(" reloaded");
    guarded.client(ProtocolVersion::V5, "bob", "bob");
}
