//! Why a share group gave its last messages to whom, as the broker tells it below `$SYS/share/`.
//!
//! ```text
//!   $SYS/share/<ShareName>/<filter, percent-encoded>/members ─┐
//!                                                  …/shadow  ─┼─► Told, one for each filter ──► table or JSON
//!                                                  …/decisions┘   (the last to come)
//! ```
//!
//! It speaks to the broker over MQTT only, as any client could.
#![forbid(unsafe_code)]

mod args;
mod error;
mod listen;
mod table;
mod told;

use std::io::{self, ErrorKind, Write};

pub use args::ExplainArgs;
pub use error::ExplainError;

use args::Format;
use listen::Listener;
use table::Table;

/// Prints what the broker tells of a share group, to standard output; with `--follow`, until it is stopped.
///
/// # Errors
/// The broker cannot be reached, refuses, tells nothing, or is none that tells; each is one line.
pub fn run(args: &ExplainArgs) -> Result<(), ExplainError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ExplainError::Io)?;
    match runtime.block_on(explain(args, &mut io::stdout().lock())) {
        // Whoever reads has read enough.
        Err(ExplainError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

async fn explain(args: &ExplainArgs, out: &mut dyn Write) -> Result<(), ExplainError> {
    let mut listener = Listener::connect(args).await?;
    let mut table = Table::default();
    let first = listener.first().await?;
    match args.format {
        Format::Table => first.iter().try_for_each(|told| table.write(out, told))?,
        Format::Json => first.iter().try_for_each(|told| writeln!(out, "{}", told.to_json()))?,
    }
    out.flush()?;
    if !args.follow {
        listener.disconnect().await;
        return Ok(());
    }
    loop {
        let told = listener.next().await?;
        match args.format {
            Format::Table => table.write_news(out, &told)?,
            Format::Json => writeln!(out, "{}", told.to_json())?,
        }
        out.flush()?;
    }
}
