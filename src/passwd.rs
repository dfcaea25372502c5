//! `tenbin passwd`.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use tenbin_broker::auth::{PasswordFile, PasswordFileError, Secrets};

/// Gives a user a password in a password file, or removes the user.
///
/// Prompts for the password on a terminal, else reads the first line of standard input. The new file keeps its owner;
/// if that is not possible, the old file stays. A running broker reloads it on SIGHUP.
#[derive(Debug, Args)]
pub(crate) struct PasswdArgs {
    /// The password file; created if missing.
    file: PathBuf,
    /// The user's name: not empty, no colon, no # at the start.
    user: String,
    /// Lets the user in by SCRAM-SHA-256 too, which never sends the password.
    #[arg(long, conflicts_with = "delete")]
    scram: bool,
    /// Removes the user.
    #[arg(long)]
    delete: bool,
}

/// Why the file was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PasswdError {
    #[error("{0}")]
    File(#[from] PasswordFileError),
    #[error("there is no user {0:?}")]
    NoSuchUser(String),
    #[error("{0}")]
    Password(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

pub(crate) fn run(arguments: &PasswdArgs) -> Result<(), PasswdError> {
    if !arguments.delete {
        let password = read_password()?;
        let secrets = Secrets::new(password.as_bytes(), arguments.scram).map_err(PasswdError::Password)?;
        return Ok(PasswordFile::set(&arguments.file, &arguments.user, &secrets)?);
    }
    if PasswordFile::delete(&arguments.file, &arguments.user)? {
        return Ok(());
    }
    Err(PasswdError::NoSuchUser(arguments.user.clone()))
}

fn read_password() -> Result<String, PasswdError> {
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let ask = |prompt: &str| {
        write!(io::stderr(), "{prompt}: ")?;
        rpassword::read_password()
    };
    let password = ask("Password")?;
    if ask("Again")? != password {
        return Err(PasswdError::Password("these are two passwords".to_owned()));
    }
    Ok(password)
}
