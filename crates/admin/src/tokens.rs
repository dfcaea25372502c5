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
    files: TokenFiles,
    /// Times of the files that were read last, with their tokens.
    read: Mutex<(Times, Vec<Hashed>)>,
    local: Option<Hash>,
}

/// Files of tokens.
#[derive(Debug, Clone, Default)]
pub struct TokenFiles {
    /// Roles with hashes, as [`add_token`] writes them.
    pub hashes: Option<PathBuf>,
    /// A viewer's token as it is, in the first line.
    pub viewer: Option<PathBuf>,
}

type Hash = [u8; 32];
type Hashed = (Role, Hash);
type Times = [Option<SystemTime>; 2];

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
    /// Reads the tokens of `files`, and again whenever one changes. Tokens of a deleted file end.
    ///
    /// # Errors
    /// A file cannot be read, a line is no role with a hash, or a viewer's token is too short. The error names the file.
    pub fn load(files: TokenFiles) -> Result<Self, String> {
        let times = files.times();
        let read = files.read()?;
        Ok(Self { files, read: Mutex::new((times, read)), local: None })
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

    /// Role of a token; `None` = it is unknown.
    pub(crate) fn role(&self, token: &str) -> Option<Role> {
        let hash = hash(token);
        let is_it = |known: &Hash| bool::from(known.ct_eq(&hash));
        let local = self.local.as_ref().filter(|known| is_it(known)).map(|_| Role::Operator);
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let times = self.files.times();
        if times != known.0 {
            match self.files.present().read() {
                Ok(again) => *known = (times, again),
                Err(error) => tracing::error!(%error, "admin: cannot read the token files: keeping the old tokens"),
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

impl TokenFiles {
    fn times(&self) -> Times {
        [&self.hashes, &self.viewer].map(|file| fs::metadata(file.as_ref()?).and_then(|found| found.modified()).ok())
    }

    /// The files that exist. The log names the others.
    fn present(&self) -> Self {
        let present = |file: Option<&Path>| {
            let file = file?;
            if fs::metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                tracing::warn!(file = %file.display(), "admin: token file removed: its tokens are invalid");
                return None;
            }
            Some(file.to_owned())
        };
        Self { hashes: present(self.hashes.as_deref()), viewer: present(self.viewer.as_deref()) }
    }

    fn read(&self) -> Result<Vec<Hashed>, String> {
        let mut hashed = self.hashes.as_deref().map(read_hashes).transpose()?.unwrap_or_default();
        hashed.extend(self.viewer.as_deref().map(read_viewer).transpose()?);
        Ok(hashed)
    }
}

fn read_text(file: &Path) -> Result<String, String> {
    tenbin_kit::files::read_text(file).map_err(|error| format!("{}: cannot be read: {error}", file.display()))
}

/// The token of a viewer in the first line of `file`.
fn read_viewer(file: &Path) -> Result<Hashed, String> {
    let text = read_text(file)?;
    let token = text.lines().next().unwrap_or_default().trim();
    if token.len() < VIEWER_BYTES_MIN {
        let least = format!("the token in the first line needs at least {VIEWER_BYTES_MIN} characters");
        return Err(format!("{}: {least}", file.display()));
    }
    Ok((Role::Viewer, hash(token)))
}

/// The tokens of a file of roles with hashes.
fn read_hashes(file: &Path) -> Result<Vec<Hashed>, String> {
    let text = read_text(file)?;
    let lines = text.lines().enumerate().map(|(number, line)| (number, line.split('#').next().unwrap_or("").trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty());
    let hashed = lines.map(|(number, line)| {
        let wrong = |reason: String| format!("{}, line {}: {reason}", file.display(), number + 1);
        let (role, digits) = line.split_once(' ').unwrap_or((line, ""));
        let role = role.parse().map_err(wrong)?;
        let hash = from_hexadecimal(digits.trim()).and_then(|bytes| bytes.try_into().ok());
        Ok((role, hash.ok_or_else(|| wrong("needs a role and 64 hexadecimal digits".to_owned()))?))
    });
    hashed.collect()
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

/// Shortest token that a person may choose, so that guesses do not find it.
const VIEWER_BYTES_MIN: usize = 16;
