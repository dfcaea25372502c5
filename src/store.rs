//! `tenbin store`.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tenbin_broker::Config;
use tenbin_broker::session_administration::{
    AdministrationError, SessionFilter, list_sessions, prune_groups, remove_sessions,
};
use tenbin_broker::store_inspection::{DumpOptions, Found, InspectionError, check, dump};
use tenbin_kit::cli;

#[cfg(feature = "cluster")]
use crate::cluster::ClusterError;
use crate::sessions::{self, CANNOT_BE_READ, SessionsError};

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Reads all of a data directory that no broker uses, and reports damage.
    Check(DirectoryArgs),
    /// Shows the content of a data directory that no broker uses, a JSON object a line.
    Dump(DumpArgs),
    /// Writes a backup of a data directory that no broker uses into a file: sessions, messages, retained messages, Wills,
    /// bans and topic ids.
    ///
    /// The file appears once it is whole and checked; an existing one is replaced. `tenbin cluster restore` makes a
    /// directory from it. A damaged directory is refused with file and offset, as `check` names them. Exit code 1 if data is
    /// damaged, with --accept-damage too; 2 if there is no backup for another reason.
    #[cfg(feature = "cluster")]
    Backup(BackupArgs),
    /// Removes sessions from a data directory that no broker uses, with their subscriptions, messages and Wills; or lists
    /// and removes share groups without a rule.
    ///
    /// At least one condition is needed; all of them have to hold. Prints the sessions or share groups, a JSON object a
    /// line. Wills are not published. Exit code 2 if the directory or the configuration cannot be used.
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DirectoryArgs {
    /// The data directory, as `tenbin broker --data` has it.
    directory: PathBuf,
}

#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    at: DirectoryArgs,
    /// The file.
    file: PathBuf,
    /// Writes the file even if the directory is damaged. No broker starts with what is restored from it.
    #[arg(long)]
    accept_damage: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    at: DirectoryArgs,
    /// Shows the queued messages too: topic, size, QoS and time of expiry.
    #[arg(long)]
    messages: bool,
    /// Shows payloads, in Base64, of the messages shown: retained ones, Wills, and with --messages queued ones.
    #[arg(long)]
    payloads: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    at: DirectoryArgs,
    /// Prints the sessions and removes nothing.
    #[arg(long)]
    dry_run: bool,
    /// Removes the share groups of --without-rule, with their messages. Without it, they are only printed.
    #[arg(long, requires = "without_rule", conflicts_with = "dry_run")]
    remove: bool,
    #[command(flatten)]
    which: PruneConditions,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct PruneConditions {
    /// Sessions of this user.
    #[arg(long, value_name = "NAME", conflicts_with = "anonymous")]
    user: Option<String>,
    /// Sessions of anonymous clients.
    #[arg(long, conflicts_with = "realm")]
    anonymous: bool,
    /// Sessions of users of this realm.
    #[arg(long, value_name = "REALM")]
    realm: Option<String>,
    /// Sessions whose last connection came through this listener.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Sessions whose user or listener is missing in this configuration file and the password files that it names.
    #[arg(long, value_name = "FILE")]
    orphaned: Option<PathBuf>,
    /// Share groups, instead of sessions: those without a member and without a rule with `keep_seconds` in this
    /// configuration file, with which messages wait.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "anonymous", "realm", "listener", "orphaned"])]
    without_rule: Option<PathBuf>,
}

pub(crate) fn run(command: &StoreCommand) -> ExitCode {
    let mut out = BufWriter::new(cli::out());
    let found = match command {
        StoreCommand::Check(DirectoryArgs { directory }) => check(directory, &mut out),
        StoreCommand::Dump(DumpArgs { at, messages, payloads }) => {
            dump(&at.directory, DumpOptions { messages: *messages, payloads: *payloads }, &mut out)
        }
        #[cfg(feature = "cluster")]
        StoreCommand::Backup(BackupArgs { at, file, accept_damage }) => {
            return match crate::cluster::write_closed(&at.directory, file, *accept_damage) {
                Ok(contents) => {
                    let words = crate::cluster::words(&contents);
                    let _ = writeln!(out, "{}: {words}", file.display()).and_then(|()| out.flush());
                    contents.damage.map_or(ExitCode::SUCCESS, |_| ExitCode::from(DAMAGED))
                }
                Err(error) => {
                    let is_damaged = matches!(error, ClusterError::Damaged { .. });
                    cli::fail("tenbin", &error, if is_damaged { DAMAGED } else { CANNOT_BE_READ })
                }
            };
        }
        StoreCommand::Prune(PruneArgs {
            at,
            remove,
            which: PruneConditions { without_rule: Some(config), .. },
            ..
        }) => {
            return sessions::finish(Config::read(config).map_err(SessionsError::from).and_then(|config| {
                let count = prune_groups(&at.directory, &config, *remove, &mut out)?;
                out.flush().map_err(AdministrationError::Output)?;
                let done = if *remove { "removed" } else { "without a rule: --remove removes them" };
                let _ = writeln!(io::stderr(), "{count} share groups {done}");
                Ok(())
            }));
        }
        StoreCommand::Prune(PruneArgs { at, dry_run, which, .. }) => {
            return sessions::finish(which.filter().and_then(|filter| {
                let work = if *dry_run { list_sessions } else { remove_sessions };
                let count = work(&at.directory, &filter, &mut out)?;
                out.flush().map_err(AdministrationError::Output)?;
                let _ = writeln!(io::stderr(), "{count} sessions {}", if *dry_run { "selected" } else { "removed" });
                Ok(())
            }));
        }
    };
    let found = found.and_then(|found| Ok(out.flush().map(|()| found)?));
    match found {
        Ok(found) => code_of(found),
        // The reader of the pipe has closed it.
        Err(InspectionError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => cli::fail("tenbin", &error, CANNOT_BE_READ),
    }
}

impl PruneConditions {
    fn filter(&self) -> Result<SessionFilter, SessionsError> {
        let Self { user, anonymous, realm, listener, orphaned, without_rule: _ } = self;
        Ok(SessionFilter {
            user: user.clone(),
            anonymous: *anonymous,
            realm: realm.clone(),
            listener: listener.clone(),
            orphaned_in: orphaned.as_deref().map(Config::read).transpose()?,
            ..SessionFilter::default()
        })
    }
}

fn code_of(found: Found) -> ExitCode {
    match found {
        found if found.is_fine() => ExitCode::SUCCESS,
        found if found.unreadable > 0 => ExitCode::from(CANNOT_BE_READ),
        _ => ExitCode::from(DAMAGED),
    }
}

const DAMAGED: u8 = 1;
