//! `tenbin broker`.

#[cfg(feature = "cluster")]
mod as_node;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
#[cfg(feature = "admin")]
use tenbin_broker::Administration;
use tenbin_broker::config::{ListenAddress, Transport, environment};
use tenbin_broker::session_administration::{GroupWithoutRule, groups_without_rule_at_start};
use tenbin_broker::{
    Broker, BrokerBuilder, Config, ConfigCheck, ConfigError, LogLimiter, Policy, StartError, raise_descriptor_limit,
};
use tenbin_kit::cli;
use tenbin_sn_gateway::StateCopy;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tracing::Level;

#[cfg(feature = "cluster")]
use crate::cluster::{self, node};
use crate::listeners::{self, AllListeners};
use crate::logging::{self, LogFormat, LogLevel};
use crate::service_manager;

/// Runs the broker until SIGINT or SIGTERM; SIGHUP reloads listeners, credentials, certificates,
/// ACLs and share-group rules.
#[derive(Debug, Clone, Args)]
pub(crate) struct BrokerArgs {
    /// Configuration file (TOML), or a pipe, which no reload reads again; keys that it leaves out have their defaults, and a file without any key is refused.
    /// Environment variables override them: TENBIN_QUEUE__MESSAGES_MAXIMUM is `messages_maximum` of `[queue]`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on, without authentication, instead of those in `listen`; `[[listeners]]` are opened too.
    /// May be given several times. Forms: PORT or :PORT (all addresses of the machine), HOST:PORT (an IPv6 address in
    /// brackets), unix:PATH. Port 0 selects a free one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<ListenAddress>,
    /// UDP address for MQTT-SN clients, IP:PORT, without authentication. May be given several times. Port 0 selects a free
    /// one. docs/MQTTSN.md has the settings of such listeners.
    #[arg(long, value_name = "ADDRESS")]
    sn: Vec<SocketAddr>,
    /// Address of HTTP ingest, IP:PORT, without authentication: POST /topics/TOPIC publishes, GET reads the retained
    /// message. May be given several times. Port 0 selects a free one. docs/HTTP.md has the settings of such listeners.
    #[arg(long, value_name = "ADDRESS")]
    http: Vec<SocketAddr>,
    /// Default policy of share groups, instead of the configured one.
    #[arg(long, value_name = "NAME", value_parser = policy_parser())]
    policy: Option<Policy>,
    /// Maximum number of threads that serve clients: by default one for each processor. The broker uses as few as the
    /// load needs.
    #[arg(long, value_name = "COUNT")]
    threads: Option<NonZeroUsize>,
    /// Directory for sessions, subscriptions, queued messages, retained messages and Wills, instead of the configured
    /// one: ./tenbin-data by default.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Stores nothing on disk: all state is lost when the broker ends.
    #[arg(long, conflicts_with = "data")]
    ephemeral: bool,
    /// Least severe level of log lines to print: error, warn, info, debug or trace. `[log]` of the configuration bounds
    /// their number and length.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: Level,
    /// Form of log lines.
    #[arg(long, value_name = "FORM", default_value = "text")]
    log_format: LogFormat,
    /// Checks the configuration, and ends: prints errors, warnings, and the keys that differ from their defaults. Errors of
    /// addresses show once keys and files are right. Opens no socket, and looks up the names in addresses. With --data it
    /// reads that directory, unless a broker uses it: it prints how many messages wait there with share groups for which
    /// the configuration has no rule. Exit code 0 without an error, else 1.
    #[arg(long)]
    check: bool,
    /// Prints the default configuration with all its keys, and ends.
    #[arg(long)]
    print_config: bool,
}

/// Reads the name of a policy; `--help` lists them.
fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name)).try_map(|name| name.parse())
}

/// Number of processors that this process may use.
fn available() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Why the broker did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokerError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Start(#[from] StartError),
    /// All that is wrong with the configuration, a line each.
    #[error("{0}")]
    Check(String),
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The node of a cluster cannot begin.
    #[cfg(feature = "cluster")]
    #[error("{0}")]
    Node(String),
}

pub(crate) fn run(arguments: &BrokerArgs) -> Result<(), BrokerError> {
    if arguments.print_config {
        return Ok(io::stdout().write_all(Config::DEFAULT_TOML.as_bytes())?);
    }
    if arguments.check {
        return arguments.check();
    }
    tenbin_kit::files::create_privately();
    let config = arguments.configuration(arguments.read()?)?;
    let log_limiter = Arc::new(LogLimiter::new(&config));
    let characters_maximum = config.log_text_characters_maximum();
    let log_level = logging::init(arguments.log, arguments.log_format, characters_maximum, Arc::clone(&log_limiter));
    for unknown in Config::unknown_variables(environment()) {
        tracing::warn!("ignoring {unknown}");
    }
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(
        config,
        arguments,
        log_limiter,
        log_level,
    ))
}

/// Why there can be no data directory of this name, if something else is there.
fn no_directory(path: &Path) -> Option<String> {
    let there = path.ancestors().find(|part| part.symlink_metadata().is_ok())?;
    let wrong = |reason: &str| Some(format!("data directory {}: {} {reason}", path.display(), there.display()));
    match there.metadata() {
        Ok(found) if found.is_dir() => None,
        Ok(_) => wrong("is no directory"),
        Err(error) => wrong(&error.to_string()),
    }
}

impl BrokerArgs {
    /// Checks the configuration file, with the environment.
    fn check(&self) -> Result<(), BrokerError> {
        let variables = environment().collect::<Vec<_>>().into_iter();
        let file = self.read()?;
        #[cfg_attr(not(feature = "cluster"), expect(unused_mut, reason = "a cluster has further warnings"))]
        let ConfigCheck { mut errors, mut warnings, differences } = match &file {
            Some((path, text)) => ConfigCheck::of_file(path, text, variables),
            None => ConfigCheck::of("", variables),
        };
        let mut without_rule = Some(Vec::new());
        if errors.is_empty() {
            let config = self.configuration(file)?;
            let listeners = AllListeners::new(&config, 1, None);
            errors = ConfigCheck::of_addresses(&config);
            if errors.is_empty() {
                errors.extend(listeners.sn.overlap(self.config.as_deref(), &config.listeners));
            }
            errors.extend(listeners.errors(&config));
            #[cfg(feature = "cluster")]
            {
                let found = cluster::check(&config);
                errors.extend(found.errors);
                warnings.extend(found.warnings);
            }
            errors.extend(no_directory(&config.store.directory));
            if let Some(directory) = self.data.as_deref().filter(|directory| directory.exists()) {
                match groups_without_rule_at_start(directory, &config) {
                    Ok(groups) => without_rule = groups,
                    Err(error) => errors.push(error.to_string()),
                }
            }
        }
        let mut out = cli::out();
        if without_rule.is_none() {
            writeln!(out, "warning: the messages in the data directory were not looked at: another process uses it")?;
        }
        for GroupWithoutRule { group, filter, waiting, .. } in without_rule.iter().flatten() {
            writeln!(
                out,
                "warning: {waiting} messages wait with share group {group}/{filter}, which has no rule with keep_seconds"
            )?;
        }
        for warning in &warnings {
            writeln!(out, "warning: {warning}")?;
        }
        for [key, old, new] in &differences {
            writeln!(out, "{key} = {new} (default: {old})")?;
        }
        for unknown in Config::unknown_variables(environment()) {
            writeln!(out, "warning: {unknown}")?;
        }
        if errors.is_empty() {
            writeln!(out, "configuration is valid, with {} keys that differ from their defaults", differences.len())?;
            return Ok(());
        }
        Err(BrokerError::Check(errors.join("\ntenbin: ")))
    }

    /// Reads the configuration file, which may be a pipe.
    fn read(&self) -> Result<Option<(&Path, String)>, ConfigError> {
        let path = self.config.as_deref();
        path.map(|path| Ok((path, Config::read_argument(path)?))).transpose()
    }

    /// The configuration, once the file is written: an editor may be at it. A pipe is refused: it can be read once.
    fn configuration_again(&self) -> Result<Config, ConfigError> {
        let changed = |file: &PathBuf| std::fs::metadata(file).and_then(|found| found.modified()).ok();
        let age = |file: &PathBuf| changed(file).and_then(|changed| changed.elapsed().ok());
        let until = Instant::now() + WRITING_MAX;
        while self.config.as_ref().and_then(age).is_some_and(|age| age < WRITTEN_AFTER) && Instant::now() < until {
            std::thread::sleep(WRITTEN_AFTER / 4);
        }
        Ok(self.with_arguments(match &self.config {
            Some(path) => Config::read_with(path, environment())?,
            None => Config::parse_with("", environment())?,
        }))
    }

    /// The configuration of a file; environment variables override its keys, and arguments override both.
    fn configuration(&self, file: Option<(&Path, String)>) -> Result<Config, ConfigError> {
        Ok(self.with_arguments(match file {
            Some((path, text)) => Config::parse_read(path, text, environment())?,
            None => Config::parse_with("", environment())?,
        }))
    }

    fn with_arguments(&self, mut config: Config) -> Config {
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        let further = [(Transport::MqttSn, &self.sn), (Transport::Http, &self.http)];
        for (transport, addresses) in further {
            config.listeners.extend(addresses.iter().map(|&address| listeners::anonymous(transport, address)));
        }
        if let Some(policy) = self.policy {
            config.policy = policy;
        }
        if let Some(directory) = &self.data {
            config.store.directory.clone_from(directory);
        }
        if self.ephemeral {
            config.store.directory.clear();
        }
        config
    }
}

/// Time without changes after which a file counts as written.
const WRITTEN_AFTER: Duration = Duration::from_millis(200);
/// Longest wait for that.
const WRITING_MAX: Duration = Duration::from_secs(5);

async fn serve(
    config: Config,
    arguments: &BrokerArgs,
    log_limiter: Arc<LogLimiter>,
    log_level: Arc<LogLevel>,
) -> Result<(), BrokerError> {
    #[cfg(feature = "cluster")]
    if config.cluster.is_on() {
        return as_node::serve(config, arguments, log_limiter, log_level).await;
    }
    #[cfg(feature = "cluster")]
    node::leave_cluster(&config.store.directory)?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let again = arguments.clone();
    let read = move || again.configuration_again();
    let (builder, opened) = builder(config, arguments, read, (log_limiter, log_level), None);
    let AllListeners { sn, http, .. } = &opened;
    let broker = builder.start().await?;
    for address in broker.listening() {
        writeln!(
            io::stdout(),
            "tenbin {} listening on {address} (MQTT 5.0 and 3.1.1, policy {})",
            env!("CARGO_PKG_VERSION"),
            broker.config().policy,
        )?;
    }
    for address in http.addresses() {
        writeln!(io::stdout(), "tenbin {} HTTP ingest at http://{address}/topics/", env!("CARGO_PKG_VERSION"))?;
    }
    for address in sn.addresses() {
        writeln!(io::stdout(), "tenbin {} listening on UDP {address} (MQTT-SN 1.2)", env!("CARGO_PKG_VERSION"))?;
    }
    if let Some(url) = broker.admin_url() {
        writeln!(io::stdout(), "tenbin {} admin HTTP at {url}", env!("CARGO_PKG_VERSION"))?;
    }
    let mut watchdog = service_manager::watchdog();
    service_manager::ready("serving clients");
    let broker = Arc::new(broker);
    let mut reloading: Option<JoinHandle<()>> = None;
    let signal = loop {
        tokio::select! {
            _ = interrupt.recv() => break "SIGINT",
            _ = terminate.recv() => break "SIGTERM",
            // One at a time. It blocks, and this thread has other tasks.
            _ = hangup.recv(), if reloading.is_none() => {
                let (broker, arguments) = (Arc::clone(&broker), arguments.clone());
                let apply = move || reload(&arguments, || broker.reload_from(|| arguments.configuration_again()));
                reloading = Some(tokio::task::spawn_blocking(apply));
            }
            () = service_manager::next(&mut watchdog) => service_manager::alive(),
            Some(()) = ended(&mut reloading) => {}
        }
    };
    service_manager::stopping();
    tracing::info!(signal, connections = broker.connections(), sessions = broker.sessions(), "stopping");
    let metrics = broker.metrics();
    ended(&mut reloading).await;
    #[cfg(feature = "bridge")]
    opened.bridges.finish().await;
    http.finish().await;
    if let Some(broker) = Arc::into_inner(broker) {
        broker.shutdown().await;
    }
    tracing::info!(
        connections = metrics.connections_opened,
        messages_received = metrics.messages_received,
        messages_sent = metrics.messages_sent,
        messages_dropped = metrics.dropped(),
        bytes_received = metrics.bytes_received,
        bytes_sent = metrics.bytes_sent,
        load_reports = metrics.load_reports,
        "stopped"
    );
    Ok(())
}

/// The builder of a broker with this configuration, and its gateways. `read` reads the file again. `copy` learns what the
/// gateways write.
#[cfg_attr(not(feature = "admin"), expect(unused_variables, reason = "operators alone use them"))]
fn builder(
    config: Config,
    arguments: &BrokerArgs,
    read: impl Fn() -> Result<Config, ConfigError> + Send + Sync + 'static,
    (log_limiter, log_level): (Arc<LogLimiter>, Arc<LogLevel>),
    copy: Option<Arc<dyn StateCopy>>,
) -> (BrokerBuilder, AllListeners) {
    let threads = arguments.threads.map_or_else(available, NonZeroUsize::get);
    let directory = config.store.directory.clone();
    let gateways = AllListeners::new(&config, threads, copy);
    let given = gateways.clone();
    let mut builder = Broker::builder().gateways(gateways).config(config).threads(threads).log_limiter(log_limiter);
    if !directory.as_os_str().is_empty() {
        builder = builder.store(directory);
    }
    #[cfg(feature = "admin")]
    {
        let mut administration =
            Administration::default().log(move |level, client, span| log_level.set(level, client, span));
        if arguments.config.is_some() {
            administration = administration.configuration(read);
        }
        builder = builder.admin(administration);
    }
    (builder, given)
}

/// Waits for the end of a task, and forgets it. `None` if there is no task.
async fn ended(task: &mut Option<JoinHandle<()>>) -> Option<()> {
    let done = task.as_mut()?.await;
    *task = None;
    match done {
        Ok(()) => Some(()),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Reloads the configuration file by `apply`. If anything in the new files is wrong, the old rules stay.
fn reload<E: Display>(arguments: &BrokerArgs, apply: impl FnOnce() -> Result<(), E>) {
    let Some(file) = &arguments.config else {
        tracing::info!("nothing to reload: there is no configuration file");
        return;
    };
    service_manager::reloading();
    match apply() {
        Ok(()) => {
            tracing::info!(file = %file.display(), "reloaded");
            service_manager::ready("serving clients");
        }
        Err(error) => {
            tracing::error!(%error, "reload failed: keeping the old configuration");
            service_manager::ready("serving clients; the last reload failed, see the log");
        }
    }
}
