//! Explains the last decisions of a share group, from the broker's reports below `$SYS/share/`.
//!
//! ```text
//!   $SYS/share/<ShareName>/<filter, percent-encoded>/members ─┐
//!                                                  …/shadow  ─┼─► Reports, one for each filter ──► table or JSON
//!                                                  …/decisions┘   (the last one published)
//! ```
//!
//! It speaks only MQTT with the broker, as any client could. A [`Printer`] shows reports that came in another way.
#![forbid(unsafe_code)]

mod args;
mod error;
mod listen;
mod reports;
mod table;

use std::io::{self, ErrorKind, Write};

pub use args::ExplainArgs;
pub use error::ExplainError;
pub use tenbin_client::Transport;

use args::Format;
use listen::Listener;
use reports::Reports;
use serde_json::Value;
use table::Table;
use tenbin_kit::printable::Printable;

/// Prints the broker's reports on a share group to standard output; with `--follow`, until stopped. `transport` is below MQTT.
///
/// # Errors
/// The broker cannot be reached, refuses, reports nothing, or is not Tenbin. Each error is one line.
pub fn run(args: &ExplainArgs, transport: Transport) -> Result<(), ExplainError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ExplainError::Io)?;
    match runtime.block_on(explain(args, transport, &mut Printable::new(io::stdout().lock()))) {
        // The reader has closed the pipe.
        Err(ExplainError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

async fn explain(args: &ExplainArgs, transport: Transport, out: &mut dyn Write) -> Result<(), ExplainError> {
    let mut listener = Listener::connect(args, transport).await?;
    let mut table = Table::default();
    let first = listener.first().await?;
    write(args.format, &mut table, out, &first, true)?;
    if !args.follow {
        listener.disconnect().await;
        return Ok(());
    }
    loop {
        let reports = listener.next().await?;
        write(args.format, &mut table, out, &[reports], false)?;
    }
}

/// Writes reports as a whole, or their new decisions.
fn write(
    format: Format,
    table: &mut Table,
    out: &mut dyn Write,
    reports: &[Reports],
    is_first: bool,
) -> Result<(), ExplainError> {
    for reports in reports {
        match format {
            Format::Table if is_first => table.write(out, reports)?,
            Format::Table => table.write_news(out, reports)?,
            Format::Json => writeln!(out, "{}", reports.to_json())?,
        }
    }
    Ok(out.flush()?)
}

/// Prints reports to standard output: first as a whole, then their new decisions.
#[derive(Debug)]
pub struct Printer {
    format: Format,
    table: Table,
    is_first: bool,
}

impl Printer {
    /// A printer in the wanted format.
    pub fn new(args: &ExplainArgs) -> Self {
        Self { format: args.format, table: Table::default(), is_first: true }
    }

    /// Prints documents with `members`, `shadow` and `decisions`, one for each filter.
    ///
    /// # Errors
    /// A document has another form, or the output fails.
    pub fn print(&mut self, documents: &[Value]) -> Result<(), ExplainError> {
        let reports: Result<Vec<_>, _> = documents.iter().map(Reports::of).collect();
        let reports = reports.map_err(ExplainError::NotUnderstood)?;
        let is_first = std::mem::replace(&mut self.is_first, false);
        write(self.format, &mut self.table, &mut Printable::new(io::stdout().lock()), &reports, is_first)
    }
}
