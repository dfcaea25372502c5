use super::*;

#[test]
fn the_shipped_file_is_the_default() {
    let shipped = Config::parse(Config::DEFAULT_TOML).unwrap();
    if let Some(NotTaken { key, old, new }) = shipped.not_taken(&Config::default()).first() {
        panic!("default.toml has {key} = {old}, tables.rs {new}");
    }
    assert_eq!(shipped, Config::default());
    assert_eq!(Config::parse("").unwrap(), Config::default());
}

#[test]
fn the_shipped_file_names_every_key() {
    let shown = format!("{:?}", Config::default());
    let keys = shown.split([' ', '{', ',', '(']).filter_map(|word| word.strip_suffix(':'));
    // An older key has no effect, and a warning names it.
    for key in keys.filter(|key| !["source", "filters_per_packet_maximum"].contains(key)) {
        let tables = [format!("[{key}]"), format!("# [[{key}]]"), format!("# [admin.{key}]")];
        let named = Config::DEFAULT_TOML.lines().any(|line| line.starts_with(key) || tables.iter().any(|t| t == line));
        assert!(named, "{key} is missing in default.toml");
    }
}

#[test]
fn the_shipped_file_names_every_policy() {
    for policy in Policy::ALL {
        let named = format!("#   {:24}", format!("\"{policy}\""));
        assert!(Config::DEFAULT_TOML.lines().any(|line| line.starts_with(&named)), "{policy} is missing");
    }
}

#[test]
fn shipped_examples_are_valid_and_cover_every_key() {
    let is_key = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let example = |line: &'static str| {
        line.strip_prefix("# ").filter(|line| line.starts_with('[') && line.ends_with(']') || is_key(line))
    };
    let text = Config::DEFAULT_TOML.lines().filter_map(example).collect::<Vec<_>>().join("\n");
    let config = Config::parse(&text).unwrap();
    let (logins, rules) = ((&config.auth, &config.ban), (&config.acl, &config.share));
    let shown = format!("{:?} {logins:?} {rules:?} {:?} {:?}", config.listeners, config.webhook, config.bridge);
    let keys = shown.split([' ', '{', ',', '(']).filter_map(|word| word.strip_suffix(':'));
    let is_ours =
        |key: &&str| !["effect", "action", "tv_sec", "tv_nsec", "work"].contains(key) && !key.starts_with('"');
    for key in keys.filter(is_ours) {
        let tables = [format!("[listeners.{key}]"), format!("[[listeners.tls.{key}]]"), format!("[[bridge.{key}]]")];
        let is_named = text.lines().any(|line| line.starts_with(key) || tables.iter().any(|table| table == line));
        assert!(is_named, "{key} is missing in default.toml");
    }
    assert!(text.contains("allow = ") && text.contains("deny = "));
}

#[test]
fn configured_listeners_replace_the_default_one() {
    let listener = "[[listeners]]\naddress = \"127.0.0.1:1884\"\n";
    let config = Config::parse(listener).unwrap();
    assert_eq!(config.listen, []);
    assert_eq!(*config.listeners[0].name(), *"127.0.0.1:1884");
    assert!(!config.listeners[0].anonymous && config.listeners[0].acl);
    let config = Config::parse(&format!("listen = [\"127.0.0.1:1885\"]\n{listener}")).unwrap();
    assert_eq!(config.all_listeners().map(|listener| listener.anonymous).collect::<Vec<_>>(), [true, false]);
    for text in [format!("{listener}{listener}"), format!("listen = [\"127.0.0.1:1884\"]\n{listener}")] {
        assert!(Config::parse(&text).unwrap_err().to_string().contains("127.0.0.1:1884"));
    }
}

#[test]
fn errors_name_key_and_line() {
    for (text, line, word) in [
        ("policy = \"fastest\"", 1, "thesis_score"),
        ("\npolcy = \"random\"", 2, "polcy"),
        ("[sessions]\nreceive_maximum = 0", 2, "1 to 65535"),
        ("[sessions]\n\nreceive_maximum = \"many\"", 3, "receive_maximum"),
        ("[capabilities]\nmaximum_qos = 3", 2, "0 to 2"),
        ("[capabilities]\nresponse_information = \"a/#\"", 2, "wildcards"),
        ("listen = [\"nowhere\"]", 1, "listen: \"nowhere\" is no address"),
        ("[queue]\nwhen_full = \"panic\"", 2, "drop_oldest"),
        ("[store]\nsync = \"often\"", 2, "interval"),
        ("[store]\nsync_interval_ms = 0", 2, "1 to 3600000"),
        ("[log]\ntext_characters_maximum = 3", 2, "16 to 65535"),
        ("[log]\nlines_per_second = -1", 2, "0 to 1000000000"),
        ("[queue\n", 1, ""),
        ("[[listeners]]\nname = \"a\"", 1, "address"),
        ("[[listeners]]\naddress = \"1\"\nproxy_from = [\"host\"]", 3, "proxy_from: \"host\" is no network"),
        ("[[listeners]]\naddress = \"unix:a\"\nmode = \"0888\"", 3, "mode: \"0888\" is no mode"),
        ("[[listeners]]\naddress = \"::1:1\"", 2, "address: \"::1:1\" is no address"),
        ("[[listeners]]\naddress = \"127.0.0.1:0\"\npasswords = \"x\"", 3, "passwords"),
        ("[[acl]]\nallow = \"all\"\ntopic = \"a\"\n[[acl]]\nallow = \"all\"\ntopic = \"a#\"", 6, "a#"),
        ("\n[[acl]]\ntopic = \"a\"", 2, "rule 1"),
        ("acl_default = \"maybe\"", 1, "auto"),
        ("[[share]]\n\npolicy = \"fastest\"", 3, "policy: unknown"),
        ("[[share]]\nshadow = \"slowest\"", 2, "shadow: unknown"),
        ("[[share]]\nlate_binding = true\npolicy = \"random\"", 1, "late_binding: needs the policy adaptive"),
        ("[[share]]\nlate_binding = 3", 2, "learn, told or off"),
        ("[[share]]\nlate_binding = \"sometimes\"", 2, "\"sometimes\" is none of learn, told, off"),
        ("[[share]]\nconcurrency = 0", 2, "concurrency"),
        ("[[share]]\nconcurrency = 2\npolicy = \"random\"", 1, "concurrency: needs the policy adaptive"),
        ("[[share]]\nconcurrency = 2\nlate_binding = \"off\"", 1, "concurrency: has no effect with late_binding off"),
        ("[[share]]\ngroup = \"a\"\nkey = \"topic_level:0\"", 3, "topic_level:N"),
        ("[[share]]\nfilter = \"a#\"", 2, "filter: \"a#\""),
        ("[[share]]\nfilter = \"$share/g/a\"", 2, "after $share/name/"),
        ("[[share]]\ngroup = \"a/b\"", 2, "group: \"a/b\""),
        ("[[share]]\npolcy = \"random\"", 2, "polcy"),
        ("\n[[share]]\nkey = \"topic\"\npolicy = \"sticky\"", 2, "key: the policy sticky"),
        ("[[share]]\nfair_by = \"user\"", 2, "publisher"),
        ("\n[[share]]\nkey = \"topic\"\nfair_by = \"publisher\"", 2, "fair_by: a key may span"),
        ("[[share]]\nhold_beyond_ms = 0", 2, "hold_beyond_ms"),
        ("load_reports = [\"ping\"]", 1, "pingreq"),
        ("[[listeners]]\naddress = \"127.0.0.1:0\"\nload_reports = [\"acks\"]", 3, "ack, publish"),
    ] {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.contains(&format!("line {line}")), "{text}: {error}");
        assert!(error.contains(word), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "one line: {error}");
    }
    assert!(Config::parse("listen = []").is_err());
    let unix = "[[listeners]]\naddress = \"unix:a\"\n";
    for (text, words) in [
        (format!("{unix}proxy_from = [\"127.0.0.1\"]"), "listeners: unix:a: proxy_from"),
        (format!("{unix}[listeners.tls]\ncertificate = \"c\"\nkey = \"k\""), "listeners: unix:a: tls"),
        ("[[listeners]]\naddress = \"1\"\ngroup = \"mqtt\"".to_owned(), "listeners: :1: group"),
    ] {
        let error = Config::parse(&text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn packet_size_without_room_names_both_keys() {
    for (size, size_key, bound, bound_key) in [
        (64 << 20, "packet_bytes_maximum", 48 << 20, "address_bytes_maximum"),
        (4 << 20, "packet_bytes_maximum", (16 << 20) - 1, "loopback_address_bytes_maximum"),
        (4 << 20, "packet_bytes_maximum", (16 << 20) - 1, "user_bytes_maximum"),
        (4 << 20, "packet_bytes_maximum", (16 << 20) - 1, "bytes_maximum"),
        (20 << 20, "connect_packet_bytes_maximum", 79 << 20, "address_bytes_maximum"),
    ] {
        let text = |bound| format!("[connections]\n{size_key} = {size}\n[limits]\n{bound_key} = {bound}\n");
        let error = Config::parse(&text(bound)).unwrap_err().to_string();
        let keys = [format!("connections.{size_key}: {size}"), format!("limits.{bound_key} ({bound})")];
        assert!(keys.iter().all(|key| error.contains(key)), "{error}");
        assert!(error.contains(&format!("{}", size * 4)), "{error}");
    }
    // Small packets are not charged, and 0 means no bound.
    for text in [
        "[connections]\npacket_bytes_maximum = 16384\nconnect_packet_bytes_maximum = 16384\n[limits]\nbytes_maximum = 1024",
        "[connections]\npacket_bytes_maximum = 268435460\n[limits]\nuser_bytes_maximum = 0\naddress_bytes_maximum = 0\n\
         loopback_address_bytes_maximum = 0",
    ] {
        Config::parse(text).unwrap();
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::read(Path::new("/nowhere/tenbin.toml")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/tenbin.toml"), "{error}");
}
