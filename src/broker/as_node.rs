//! The broker as a node of a cluster.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenbin_broker::{BrokerBuilder, Config, ConfigCheck, LogLimiter, ReloadError};
use tenbin_store::mirror::Mirror;
use tokio::signal::unix::{SignalKind, signal};

use super::{BrokerArgs, BrokerError};
use crate::cluster::{self, node};
use crate::logging::LogLevel;
use crate::service_manager;

/// The configuration of the brokers that a node begins. It is read again when the node begins to lead, and at SIGHUP.
struct NodeConfig {
    arguments: BrokerArgs,
    log: (Arc<LogLimiter>, Arc<LogLevel>),
    /// The newest one that was taken, by this node or by its broker.
    last: Mutex<Config>,
    /// Why the file cannot be used, as of the last look.
    fault: Mutex<Option<String>>,
}

impl NodeConfig {
    /// Notes the end of a reload of this node's broker. The next broker begins with the configuration that this one has taken,
    /// also if the file is broken then.
    fn reloaded(&self, ended: Result<&Config, &ReloadError>) {
        match ended {
            // It is no fault of the file.
            Err(ReloadError::Stopping) => return,
            Err(_) => {}
            Ok(config) => take(&mut lock(&self.last), config.clone()),
        }
        self.note(ended.err());
    }

    /// Takes the file for the brokers to come. If anything in it is wrong, the last configuration stays.
    fn renew(&self) -> Result<(), String> {
        let read = self.arguments.configuration_again().map_err(|error| error.to_string());
        let renewed = read.and_then(|newer| renew(&mut lock(&self.last), newer));
        self.note(renewed.as_ref().err());
        renewed
    }

    /// Notes whether the file can be used.
    fn note(&self, error: Option<impl ToString>) {
        *lock(&self.fault) = error.map(|error| error.to_string());
    }
}

/// Replaces `last` by a newer configuration, as far as a node takes one without a restart.
///
/// # Errors
/// The reason for which a reload refuses it. Then nothing changes.
fn renew(last: &mut Config, newer: Config) -> Result<(), String> {
    // The start of the broker reads the files of an unchanged one anyway. Clients wait for it.
    if newer != *last {
        for [key, old, new] in ConfigCheck::of_newer(last, &newer)? {
            if OF_NODE.iter().any(|table| key.starts_with(table)) {
                tracing::warn!(key, old, new, "reload does not change this key: restart the broker");
            }
        }
    }
    take(last, newer);
    Ok(())
}

/// Replaces `last`, without the tables that need a restart of the node.
fn take(last: &mut Config, newer: Config) {
    *last = Config { cluster: last.cluster.clone(), store: last.store.clone(), ..newer };
}

impl node::MakeBroker for Arc<NodeConfig> {
    fn builder(&self, mirror: &Arc<Mirror>) -> BrokerBuilder {
        // Another leader may have been reloaded since this node has started.
        if self.arguments.config.is_some()
            && let Err(error) = self.renew()
        {
            tracing::error!(%error, "cannot use the configuration file: beginning with the last configuration");
        }
        let config = lock(&self.last).clone();
        let copy = node::state_copy(mirror, &config.store.directory);
        let (again, of_broker) = (self.arguments.clone(), Arc::clone(self));
        let read = move || again.configuration_again();
        let builder = super::builder(config, &self.arguments, read, self.log.clone(), Some(copy)).0;
        builder.on_reload(move |ended| of_broker.reloaded(ended))
    }

    fn fault(&self) -> Option<String> {
        lock(&self.fault).clone()
    }
}

/// Serves clients as a node of a cluster, until SIGINT or SIGTERM.
pub(super) async fn serve(
    config: Config,
    arguments: &BrokerArgs,
    log_limiter: Arc<LogLimiter>,
    log_level: Arc<LogLevel>,
) -> Result<(), BrokerError> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let _file_size = ignore_file_size_signal()?;
    if config.store.directory.as_os_str().is_empty() {
        return Err(BrokerError::Node("a node of a cluster needs a data directory: leave out --ephemeral".to_owned()));
    }
    let overlaps = ConfigCheck::of_addresses(&config);
    if !overlaps.is_empty() {
        return Err(BrokerError::Node(overlaps.join("\ntenbin: ")));
    }
    if let Some(warning) = config.cluster_warning() {
        tracing::warn!("{warning}");
    }
    let brokers = Arc::new(NodeConfig {
        arguments: arguments.clone(),
        log: (log_limiter, log_level),
        last: Mutex::new(config.clone()),
        fault: Mutex::default(),
    });
    let make = Arc::new(Arc::clone(&brokers));
    let node = node::start(config.clone(), make, tokio::runtime::Handle::current()).await;
    let mut node = node.map_err(|error| BrokerError::Node(cluster::placed(&config, &error)))?;
    let own = config.cluster.own().map_or("", |node| &node.name);
    for address in node.addresses() {
        writeln!(
            io::stdout(),
            "tenbin {} listening on {address} (MQTT 5.0 and 3.1.1, node {own} of cluster {})",
            env!("CARGO_PKG_VERSION"),
            config.cluster.name,
        )?;
    }
    if let Some(url) = node.admin_url() {
        writeln!(io::stdout(), "tenbin {} admin HTTP at {url}", env!("CARGO_PKG_VERSION"))?;
    }
    let mut watchdog = service_manager::watchdog();
    service_manager::ready("serving clients as a node of a cluster");
    let signal = loop {
        tokio::select! {
            _ = interrupt.recv() => break "SIGINT",
            _ = terminate.recv() => break "SIGTERM",
            _ = hangup.recv() => {
                let (broker, brokers) = (node.broker(), Arc::clone(&brokers));
                drop(tokio::task::spawn_blocking(move || match broker {
                    Some(broker) => super::reload(&brokers.arguments, || {
                        broker.reload_from(|| brokers.arguments.configuration_again())
                    }),
                    // It is in effect once this node leads.
                    None => super::reload(&brokers.arguments, || brokers.renew()),
                }));
            }
            () = service_manager::next(&mut watchdog) => service_manager::alive(),
            () = node.ended() => return Err(BrokerError::Node("the node has ended".to_owned())),
        }
    };
    service_manager::stopping();
    tracing::info!(signal, "stopping");
    node.stop();
    loop {
        tokio::select! {
            () = node.ended() => break,
            // Without waiting for the follower.
            _ = interrupt.recv() => node.stop(),
            _ = terminate.recv() => node.stop(),
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// Lets a write beyond the limit of a file's size (`ulimit -f`) fail as on a full disk. By itself the signal would end the
/// process. The signal stays ignored.
fn ignore_file_size_signal() -> io::Result<tokio::signal::unix::Signal> {
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tables that the node itself reads, once at its start.
const OF_NODE: [&str; 4] = ["admin.", "cluster.", "log.", "store."];

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "[cluster]\nname = \"c\"\nnode = \"a\"\nnodes = [\"a:7883\", \"b:7883\"]\n";
    const RULE: &str = "[[acl]]\nallow = \"all\"\ntopic = \"#\"\n";

    #[test]
    fn node_takes_a_newer_configuration_without_its_own_tables() {
        let parse = |text: &str| Config::parse(&format!("{text}{NODE}")).unwrap();
        let mut last = parse("");
        let (cluster, store) = (last.cluster.clone(), last.store.clone());
        let own = "[store]\ndirectory = \"else\"\n";
        let newer = Config::parse(&format!("policy = \"random\"\n{own}{RULE}{NODE}lease_ms = 300\n")).unwrap();
        assert_eq!(renew(&mut last, newer), Ok(()));
        assert_eq!((last.policy.name(), last.acl.len()), ("random", 1));
        assert_eq!((&last.cluster, &last.store), (&cluster, &store));

        let before = last.clone();
        let file = "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\npassword_file = \"/missing/passwords\"\n";
        let error = renew(&mut last, parse(&format!("{file}{RULE}"))).unwrap_err();
        assert!(error.contains("/missing/passwords"), "{error}");
        let error = renew(&mut last, parse("")).unwrap_err();
        assert!(error.contains("acl: no rule is left"), "{error}");
        assert_eq!(last, before, "a wrong file changes nothing");

        // The broker has taken a file with a rule: the next one may not lack it.
        let mut last = parse("");
        take(&mut last, Config::parse(&format!("{own}{RULE}{NODE}lease_ms = 300\n")).unwrap());
        assert_eq!((last.acl.len(), &last.cluster, &last.store), (1, &cluster, &store));
        assert!(renew(&mut last, parse("")).unwrap_err().contains("acl: no rule is left"));
    }
}
