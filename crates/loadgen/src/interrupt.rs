use std::future::Future;
use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::LoadgenError;

/// Runs `work` to its end. SIGINT or SIGTERM drops it, and thereby the brokers it started.
pub(crate) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, LoadgenError>>,
) -> Result<T, LoadgenError> {
    tokio::select! {
        result = work => result,
        signal = interrupted() => Err(signal.map_or_else(LoadgenError::Runtime, |()| LoadgenError::Interrupted)),
    }
}

async fn interrupted() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
