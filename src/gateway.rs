//! `tenbin gateway`.

use std::convert::Infallible as NoValue;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tenbin_broker::{LogLimiter, raise_descriptor_limit};
use tenbin_kit::cli;
use tenbin_sn_gateway::config::{AGGREGATION_REMOVED, parse_version};
use tenbin_sn_gateway::{Config, ConfigError, Gateway, StartError, Stats, Upstream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval_at};
use tracing::Level;

use crate::listeners;
use crate::logging::{self, LogFormat};
use crate::service_manager;

/// Arguments of `tenbin gateway`.
#[derive(Debug, Args)]
pub(crate) struct GatewayArgs {
    /// The broker, HOST:PORT, instead of the configured one: 127.0.0.1:1883 by default.
    #[arg(long, value_name = "HOST:PORT")]
    broker: Option<String>,
    /// UDP address, instead of the configured one: 127.0.0.1:10000 by default. Port 0 selects a free one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Configuration file (TOML); absent keys have their defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for topic ids and Wills of clients without Clean Session, which then survive a restart.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// An option of version 0.1, which is refused with a reason.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", require_equals = true, hide = true)]
    #[arg(value_parser = |_: &str| Err::<NoValue, _>(AGGREGATION_REMOVED))]
    aggregate: Option<NoValue>,
    /// Protocol version towards the broker, instead of the configured one: 5.0 by default, or 3.1.1.
    #[arg(long, value_name = "VERSION")]
    mqtt: Option<String>,
    /// Prints all counters as a line of JSON on standard output, at this interval in seconds and at the end.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60")]
    stats: Option<NonZeroU16>,
    /// Least severe level of log lines to print: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: Level,
    /// Form of log lines.
    #[arg(long, value_name = "FORM", default_value = "text")]
    log_format: LogFormat,
    /// Checks the configuration, and ends.
    #[arg(long)]
    check: bool,
    /// Prints the default configuration with all its keys, and ends.
    #[arg(long)]
    print_config: bool,
}

/// Why the gateway did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Overlap(String),
    #[error("--listen: the configuration has [[listeners]]")]
    Listeners,
    #[error("--mqtt: {0}")]
    Version(String),
    #[error("{0}")]
    Start(#[from] StartError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Time between two log lines with the counters.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) fn run(arguments: &GatewayArgs) -> Result<(), GatewayError> {
    if arguments.print_config {
        return Ok(io::stdout().write_all(Config::DEFAULT_TOML.as_bytes())?);
    }
    let config = arguments.configuration()?;
    if arguments.check {
        config.check_files()?;
        return Ok(writeln!(io::stdout(), "configuration is valid")?);
    }
    let limits = tenbin_broker::Config::default();
    let limiter = Arc::new(LogLimiter::new(&limits));
    logging::init(arguments.log, arguments.log_format, limits.log_text_characters_maximum(), limiter);
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(arguments, config))
}

impl GatewayArgs {
    /// Reads the configuration file; arguments override its keys.
    fn configuration(&self) -> Result<Config, GatewayError> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if let Some(broker) = &self.broker {
            config.broker.clone_from(broker);
        }
        if let Some(address) = self.listen {
            if !config.listeners.is_empty() {
                return Err(GatewayError::Listeners);
            }
            config.listener.address = address;
        }
        if let Some(directory) = &self.state {
            config.state.clone_from(directory);
        }
        if let Some(version) = &self.mqtt {
            config.mqtt = parse_version(version).map_err(GatewayError::Version)?;
        }
        config.check()?;
        let tables = config.listeners.iter().map(|table| format!("listeners: {}: ", table.name()));
        // Without tables there is one listener, whose keys are in `[listener]`.
        let places = tables.chain(["listener.".to_owned()]);
        let opened = config.for_each_listener()?.into_iter().map(|config| config.listener);
        match listeners::overlap(self.config.as_deref(), places.zip(opened)) {
            Some(overlap) => Err(GatewayError::Overlap(overlap)),
            None => Ok(config),
        }
    }
}

/// Prints a line. A reader that is gone is no reason to end.
fn say(line: &str) {
    let _ = writeln!(cli::out(), "{line}");
}

/// Gateways of all listeners.
struct Running(Vec<Gateway>);

impl Running {
    fn start(config: &Config) -> Result<Self, GatewayError> {
        let start = |config: Config| Ok(Gateway::start(config.clone(), Upstream::of(&config)?)?);
        Ok(Self(config.for_each_listener()?.into_iter().map(start).collect::<Result<_, GatewayError>>()?))
    }

    fn place(&self, config: &Config) -> String {
        let addresses: Vec<_> = self.0.iter().map(|gateway| gateway.address().to_string()).collect();
        format!("gateway listening on UDP {}, before the broker {}", addresses.join(" and "), config.broker)
    }

    fn stats(&self) -> Stats {
        Stats::sum(self.0.iter().map(Gateway::stats))
    }

    fn stop(self) {
        for gateway in self.0 {
            gateway.stop();
        }
    }
}

/// Keeps the port of a listener for which the system has chosen one.
fn keep_port(new: &mut SocketAddr, old: SocketAddr) {
    if new.port() == 0 && new.ip() == old.ip() {
        *new = old;
    }
}

/// Reads the configuration again, and starts the gateways anew: their clients get DISCONNECT, and those without Clean
/// Session keep their sessions. If that fails, the old configuration stays.
fn reload(arguments: &GatewayArgs, config: &mut Config, running: Running) -> Result<Running, GatewayError> {
    let read = arguments.configuration().and_then(|new| {
        config.check_complete(&new)?;
        new.check_files()?;
        Ok(new)
    });
    let mut new = match read {
        Ok(new) => new,
        Err(error) => {
            say(&format!("reload: {error}; the old configuration stays"));
            return Ok(running);
        }
    };
    if let ([gateway], []) = (&running.0[..], &new.listeners[..]) {
        keep_port(&mut new.listener.address, gateway.address());
    }
    for (table, gateway) in new.listeners.iter_mut().zip(&running.0) {
        keep_port(&mut table.address, gateway.address());
    }
    running.stop();
    let running = match Running::start(&new) {
        Ok(running) => running,
        Err(error) => {
            say(&format!("reload: {error}; the old configuration stays"));
            return Running::start(config);
        }
    };
    say(&format!("reloaded: {}", running.place(&new)));
    *config = new;
    Ok(running)
}

async fn serve(arguments: &GatewayArgs, mut config: Config) -> Result<(), GatewayError> {
    let stats = arguments.stats;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut running = Running::start(&config)?;
    writeln!(io::stdout(), "tenbin {} MQTT-SN {}", env!("CARGO_PKG_VERSION"), running.place(&config))?;
    service_manager::ready("serving clients");
    let mut watchdog = service_manager::watchdog();
    let period = stats.map_or(LOG_INTERVAL, |seconds| Duration::from_secs(seconds.get().into()));
    let mut ticks = interval_at(Instant::now() + period, period);
    let mut shown = Stats::default();
    let signal = loop {
        tokio::select! {
            _ = interrupt.recv() => break "SIGINT",
            _ = terminate.recv() => break "SIGTERM",
            _ = hangup.recv() => running = reload(arguments, &mut config, running)?,
            () = service_manager::next(&mut watchdog) => service_manager::alive(),
            _ = ticks.tick() => {
                let now = running.stats();
                if stats.is_some() {
                    say(&now.to_json());
                } else if now != shown {
                    tracing::info!("counters: {}", now.to_text());
                }
                shown = now;
            }
        }
    };
    service_manager::stopping();
    tracing::info!(signal, "stopping");
    let last = running.stats();
    // It waits for the threads, and the signals' runtime has nothing else to do.
    running.stop();
    if stats.is_some() {
        say(&last.to_json());
    }
    tracing::info!("stopped: {}", last.to_text());
    Ok(())
}
