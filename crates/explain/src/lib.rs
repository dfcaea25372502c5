//! Explains the last decisions of a share group, from the broker's reports below `$SYS/share/`.
//!
//! ```text
//!   $SYS/share/<ShareName>/<filter, percent-encoded>/members ─┐
//!                                                  …/shadow  ─┼─► Reports, one for each filter ──► table or JSON
//!                                                  …/decisions┘   (the last one published)
//! ```
//!
//! It speaks only MQTT with the broker, as any client could.
#![forbid(unsafe_code)]

mod args;
mod error;
mod listen;
mod reports;
mod table;

use std::io::{self, ErrorKind, Write};

pub use args::ExplainArgs;
pub use error::ExplainError;

use args::Format;
use listen::Listener;
use table::Table;

/// Prints the broker's reports on a share group to standard output; with `--follow`, until stopped.
///
/// # Errors
/// The broker cannot be reached, refuses, reports nothing, or is not Tenbin. Each error is one line.
pub fn run(args: &ExplainArgs) -> Result<(), ExplainError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ExplainError::Io)?;
    match runtime.block_on(explain(args, &mut io::stdout().lock())) {
        // The reader has closed the pipe.
        Err(ExplainError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

async fn explain(args: &ExplainArgs, out: &mut dyn Write) -> Result<(), ExplainError> {
    let mut listener = Listener::connect(args).await?;
    let mut table = Table::default();
    let first = listener.first().await?;
    match args.format {
        Format::Table => first.iter().try_for_each(|reports| table.write(out, reports))?,
        Format::Json => first.iter().try_for_each(|reports| writeln!(out, "{}", reports.to_json()))?,
    }
    out.flush()?;
    if !args.follow {
        listener.disconnect().await;
        return Ok(());
    }
    loop {
        let reports = listener.next().await?;
        match args.format {
            Format::Table => table.write_news(out, &reports)?,
            Format::Json => writeln!(out, "{}", reports.to_json())?,
        }
        out.flush()?;
    }
}
