use std::io::IsTerminal as _;

use tracing::Level;

/// Sends log lines of `level` and more severe ones to standard error.
pub(crate) fn init(level: Level) {
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .init();
}
