//! Tokens of operators: random texts, of which only SHA-256 hashes are kept.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tenbin_kit::digits::{from_hexadecimal, hexadecimal};

/// Rights of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// May read everything.
    Viewer,
    /// May change things too.
    Operator,
}

/// The tokens that a server accepts.
#[derive(Debug, Default)]
pub struct Tokens {
    file: Option<PathBuf>,
    /// Time of the file that was read last, with its lines.
    read: Mutex<(Option<SystemTime>, Vec<Hashed>)>,
    local: Option<Hash>,
}

type Hash = [u8; 32];
type Hashed = (Role, Hash);

impl FromStr for Role {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "viewer" => Ok(Self::Viewer),
            "operator" => Ok(Self::Operator),
            _ => Err(format!("{name:?} is no role; valid are viewer and operator")),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        })
    }
}

impl Tokens {
    /// Reads the tokens of `file`, and again whenever it changes. Tokens of a deleted file end.
    ///
    /// # Errors
    /// The file cannot be read, or a line is no role with a hash. The error names file and line.
    pub fn load(file: Option<&Path>) -> Result<Self, String> {
        let read = file.map(read).transpose()?.unwrap_or_default();
        Ok(Self { file: file.map(Path::to_owned), read: Mutex::new(read), local: None })
    }

    /// Accepts a token for the local operator too, and writes it to `path`, which only this user may read.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn make_local(&mut self, path: &Path) -> io::Result<()> {
        let token = new_token()?;
        let _ = fs::remove_file(path); // it may have other rights
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(format!("{token}\n").as_bytes())?;
        self.local = Some(hash(&token));
        Ok(())
    }

    /// Whether there is a token in the file.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Role of a token; `None` = it is unknown.
    pub(crate) fn role(&self, token: &str) -> Option<Role> {
        let hash = hash(token);
        let is_it = |known: &Hash| bool::from(known.ct_eq(&hash));
        let local = self.local.as_ref().filter(|known| is_it(known)).map(|_| Role::Operator);
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file
            && modified(file) != known.0
        {
            match read(file) {
                Ok(again) => *known = again,
                Err(_) if is_missing(file) => {
                    tracing::warn!(file = %file.display(), "admin: token file removed: its tokens are invalid");
                    *known = (None, Vec::new());
                }
                Err(error) => tracing::error!(%error, "admin: cannot read the token file: keeping the old tokens"),
            }
        }
        let of_file = known.1.iter().filter(|(_, known)| is_it(known)).map(|(role, _)| *role).max();
        local.max(of_file)
    }
}

/// Makes a token for `role` and adds its hash to `file`, which is created if it is missing.
///
/// # Errors
/// The system has no random numbers, or the file cannot be written.
pub fn add_token(file: &Path, role: Role) -> io::Result<String> {
    let token = new_token()?;
    tenbin_kit::files::append(file, &format!("{role} {}\n", hexadecimal(&hash(&token))))?;
    Ok(token)
}

fn new_token() -> io::Result<String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("tenbin-{}", hexadecimal(&bytes)))
}

fn is_missing(file: &Path) -> bool {
    fs::metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|found| found.modified()).ok()
}

fn read(file: &Path) -> Result<(Option<SystemTime>, Vec<Hashed>), String> {
    let at = modified(file);
    let text =
        tenbin_kit::files::read_text(file).map_err(|error| format!("{}: cannot be read: {error}", file.display()))?;
    let lines = text.lines().enumerate().map(|(number, line)| (number, line.split('#').next().unwrap_or("").trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty());
    let hashed = lines.map(|(number, line)| {
        let wrong = |reason: String| format!("{}, line {}: {reason}", file.display(), number + 1);
        let (role, digits) = line.split_once(' ').unwrap_or((line, ""));
        let role = role.parse().map_err(wrong)?;
        let hash = from_hexadecimal(digits.trim()).and_then(|bytes| bytes.try_into().ok());
        Ok((role, hash.ok_or_else(|| wrong("needs a role and 64 hexadecimal digits".to_owned()))?))
    });
    Ok((at, hashed.collect::<Result<_, String>>()?))
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}
