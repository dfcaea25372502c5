//! `tenbin bridge`, and the bridges of `tenbin broker`.

mod settings;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tenbin_bridge::Bridge;
use tenbin_broker::{Config, ConfigError, LogLimiter};
use tenbin_kit::cli;
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;

use crate::logging::{self, LogFormat};
use crate::service_manager;

pub(crate) use settings::{check, embedded};

/// Arguments of `tenbin bridge`.
#[derive(Debug, Args)]
pub(crate) struct BridgeArgs {
    /// Configuration file (TOML), of which the tables `[[bridge]]` with the key `local` count: it may be the broker's.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Least severe level of log lines to print: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: Level,
    /// Form of log lines.
    #[arg(long, value_name = "FORM", default_value = "text")]
    log_format: LogFormat,
    /// Checks the configuration, and ends.
    #[arg(long)]
    check: bool,
}

/// Why the bridges did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BridgeError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("configuration {}: bridge: no table has the key `local`, so that there is nothing to run here", .0.display())]
    None(PathBuf),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Runs the bridges with the key `local`, until SIGINT or SIGTERM. SIGHUP would end the program by default.
pub(crate) fn run(arguments: &BridgeArgs) -> Result<(), BridgeError> {
    let file = &arguments.config;
    let config = Config::read_with(file, tenbin_broker::config::environment())?;
    let mut all = Vec::new();
    for bridge in &config.bridge {
        let Some(local) = bridge.local.clone() else { continue };
        let table = bridge.clone();
        let settings = move || settings::standalone(&table, &local);
        all.push((settings().map_err(|reason| config.error_in_bridge(bridge, &reason))?, settings));
    }
    if all.is_empty() {
        return Err(BridgeError::None(file.clone()));
    }
    let warnings = config.bridge_warnings();
    if arguments.check {
        warnings.iter().try_for_each(|warning| writeln!(cli::out(), "warning: {warning}"))?;
        return Ok(writeln!(cli::out(), "configuration is valid, with {} bridges to run", all.len())?);
    }
    let limiter = Arc::new(LogLimiter::new(&config));
    logging::init(arguments.log, arguments.log_format, config.log_text_characters_maximum(), limiter);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let bridges = all.into_iter().map(|(settings, renew)| Bridge::start(settings, renew));
        let bridges = bridges.collect::<Result<Vec<_>, _>>()?;
        writeln!(cli::out(), "tenbin {} runs {} bridges", env!("CARGO_PKG_VERSION"), bridges.len())?;
        service_manager::ready("bridging");
        let mut watchdog = service_manager::watchdog();
        loop {
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                _ = hangup.recv() => tracing::warn!("SIGHUP reloads nothing here: begin the program again"),
                () = service_manager::next(&mut watchdog) => service_manager::alive(),
            }
        }
        service_manager::stopping();
        bridges.iter().for_each(Bridge::stop);
        bridges.iter().for_each(Bridge::finish);
        Ok(())
    })
}
