//! The compose file: its pair and its etcd as processes on loopback, in place of containers.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use toml::Table;

use crate::harness::{Cluster, Etcd, free_address};
use crate::loopback::{self, list};
use crate::{root, said, tenbin};

#[test]
fn pair_of_the_compose_file_takes_over() {
    let read = |path| std::fs::read_to_string(root().join(path)).expect("a file");
    let file: Value = serde_saphyr::from_str(&read("deploy/docker/compose.yaml")).expect("YAML");
    let text = file["configs"]["node"]["content"].as_str().expect("a configuration");
    let config: Table = text.parse().expect("TOML");
    let services = &file["services"];
    let names: Vec<_> = list(&config["cluster"]["nodes"]).map(|node| node.split(':').next().expect("a host")).collect();
    let store = config["store"]["directory"].as_str().expect("a directory");
    let listener = config["listeners"][0]["address"].as_str().expect("an address");

    let content = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(content.path(), text).expect("ours to write");
    let image = read("deploy/docker/Dockerfile");
    let mut published = BTreeSet::new();
    for name in &names {
        let service = &services[name];
        assert_eq!(service["hostname"], *name, "a node without the key `node` is named by its host");
        assert_eq!(service["configs"][0]["source"], "node");
        let target = service["configs"][0]["target"].as_str().expect("a path");
        assert!(image.contains(&format!("CMD [\"broker\", \"--config\", {target:?}]")), "{target}");
        assert_eq!(service["volumes"][0], format!("{name}:{store}"));
        let (outside, inside) = service["ports"][0].as_str().and_then(|port| port.split_once(':')).expect("ports");
        assert_eq!(listener, format!("0.0.0.0:{inside}"));
        assert!(published.insert(outside), "{outside} is published twice");
        let mut check = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        check.args(["broker", "--check", "--config"]).arg(content.path()).env("TENBIN_CLUSTER__NODE", name);
        let checked = check.output().expect("the built command can be started");
        assert!(checked.status.success(), "{}", said(&checked));
    }
    if !Etcd::is_there() {
        return;
    }

    let engine = format!("http://{}", free_address());
    let documented = list(&config["cluster"]["etcd"]).next().expect("a server");
    let words = services["witness"]["command"].as_array().expect("a command").iter();
    let options = words.filter_map(|word| word.as_str()?.strip_prefix("--")?.split_once('='));
    let (own, options): (Vec<_>, Vec<_>) = options.partition(|(name, _)| *name == "data-dir");
    assert_eq!(services["witness"]["volumes"][0], format!("witness:{}", own[0].1));
    let anywhere = documented.replace("witness", "0.0.0.0");
    let here = |value: &str| value.replace(documented, &engine).replace(&anywhere, &engine);
    let options = options.into_iter().map(|(name, value)| (name.to_owned(), here(value)));
    let mut cluster = loopback::nodes(&config, |url| {
        assert_eq!(url, documented);
        engine.clone()
    });
    cluster.etcd = Some(Etcd::start_with(cluster.directory(), options.collect()));
    cluster.start_all();

    let is_healthy = |cluster: &Cluster, at: usize| {
        let data = cluster.nodes[at].data.to_str().expect("a readable name");
        let test = services[names[at]]["healthcheck"]["test"].as_array().expect("a command").iter();
        let words: Vec<_> = test.map(|word| word.as_str().expect("a word").replace(store, data)).collect();
        assert_eq!(words[..2], ["CMD", "/usr/bin/tenbin"]);
        tenbin(&words[2..].iter().map(|word| &word[..]).collect::<Vec<_>>()).status.success()
    };
    let all_are_healthy = |cluster: &Cluster| {
        cluster.wait("healthy nodes", |cluster| (0..names.len()).all(|at| is_healthy(cluster, at)).then_some(()));
    };
    let leader = cluster.wait_for_copies();
    all_are_healthy(&cluster);
    cluster.nodes[leader].kill();
    assert!(!is_healthy(&cluster, leader), "a dead node");
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    all_are_healthy(&cluster);
}
