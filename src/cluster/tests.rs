//! Checks of `[cluster]` with files.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tenbin_broker::Config;

use super::*;

/// A configuration of the node `a` in `directory`, with further keys of `[cluster]`.
fn config(directory: &Path, more: &str) -> Config {
    let file = directory.join("tenbin.toml");
    let text = format!(
        "[store]\ndirectory = {:?}\n[cluster]\nname = \"c\"\nnode = \"a\"\n\
         nodes = [\"a=10.0.0.1:7883\", \"b=10.0.0.2:7883\"]\n{more}",
        directory.join("data")
    );
    Config::parse_read(&file, text, std::iter::empty()).expect("it is legal")
}

/// The only error, which names the file and `line` of the configuration.
fn error(directory: &Path, more: &str, line: usize) -> String {
    let found = check(&config(directory, more));
    let place = format!("configuration {}, line {line}: cluster: ", directory.join("tenbin.toml").display());
    assert!(found.errors.len() == 1 && found.errors[0].starts_with(&place), "{:?}, not {place}", found.errors);
    found.errors[0].clone()
}

#[test]
fn certificate_that_other_nodes_refuse_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = |params: &CertificateParams| {
        CertifiedIssuer::self_signed(params.clone(), KeyPair::generate().expect("a key")).expect("an authority")
    };
    let ca = authority(&params);
    fs::write(path("ca.pem"), ca.pem()).expect("written");
    let write = |years: [i32; 2], ca: &CertifiedIssuer<'_, KeyPair>| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["a".to_owned()]).expect("a name");
        (params.not_before, params.not_after) = (date_time_ymd(years[0], 1, 1), date_time_ymd(years[1], 1, 1));
        let certificate = params.signed_by(&key, ca).expect("a certificate");
        fs::write(path("a.pem"), certificate.pem()).expect("written");
        fs::write(path("a.key"), key.serialize_pem()).expect("written");
    };
    let keys = format!("certificate = {:?}\nkey = {:?}\nca = {:?}\n", path("a.pem"), path("a.key"), path("ca.pem"));
    write([2020, 4000], &ca);
    assert_eq!(check(&config(directory.path(), &keys)).errors, Vec::<String>::new());
    let own = format!("certificate: {}: other nodes refuse it: ", path("a.pem").display());
    for (years, reason) in [([2020, 2021], "expired"), ([3999, 4000], "not valid yet")] {
        write(years, &ca);
        let error = error(directory.path(), &keys, 7);
        assert!(error.contains(&own) && error.contains(reason), "{error}");
    }
    write([2020, 4000], &authority(&params));
    assert!(error(directory.path(), &keys, 7).contains(&own), "of another authority");

    write([2020, 2021], &ca);
    let etcd = format!(
        "etcd = [\"https://10.0.0.3:2379\"]\netcd_ca = {:?}\netcd_certificate = {:?}\netcd_key = {:?}\n",
        path("ca.pem"),
        path("a.pem"),
        path("a.key")
    );
    let error = error(directory.path(), &etcd, 9);
    assert!(error.contains("etcd_certificate: ") && error.contains("ended on 2021-01-01"), "{error}");
}

#[test]
fn service_account_needs_its_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let account = directory.path().join("account");
    let keys = format!("agreement = \"kubernetes\"\nkubernetes_directory = {account:?}\n");
    let error = || error(directory.path(), &keys, 8);
    assert!(error().contains("there is no such directory"), "{}", error());
    fs::create_dir(&account).expect("a directory");
    let params = CertificateParams::default();
    let ca = params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate").pem();
    for (file, content) in [("namespace", "default\n"), ("token", "secret\n"), ("ca.crt", &ca[..])] {
        let path = account.join(file).display().to_string();
        assert!(error().contains(&path), "{}", error());
        fs::write(account.join(file), "\n").expect("written");
        assert!(error().contains(&path), "{}", error());
        fs::write(account.join(file), content).expect("written");
    }
    assert_eq!(check(&config(directory.path(), &keys)).errors, Vec::<String>::new());
}

#[test]
fn store_of_another_cluster_is_an_error_with_its_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    assert_eq!(check(&config(directory.path(), "")).errors, Vec::<String>::new());
    fs::create_dir(&data).expect("a directory");
    let mark = |cluster: &str, node: &str| {
        let record = r#"{"epoch":3,"leader":"b","follower":null,"nonce":7}"#;
        let text = format!(r#"{{"cluster":"{cluster}","node":"{node}","record":{record},"boot_id":"x"}}"#);
        fs::write(data.join("cluster.json"), text).expect("written");
    };
    mark("c", "a");
    assert_eq!(check(&config(directory.path(), "")).errors, Vec::<String>::new());
    mark("other", "a");
    let found = error(directory.path(), "", 4);
    assert!(found.contains("belongs to cluster \"other\"") && found.contains(&*data.to_string_lossy()), "{found}");
    mark("c", "b");
    assert!(error(directory.path(), "", 5).contains("belongs to node \"b\""));
}
