use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use argon2::Argon2;
use argon2::password_hash::PasswordHasher as _;
use argon2::password_hash::phc::PasswordHash;
use tenbin_codec::Secret;
use tenbin_kit::files::Replacing;

use super::password_hash;
use super::scram::{ITERATIONS, PREFIX, SALT_BYTES, ScramSecret, Shapes};

/// Users with hashes of their passwords. The text file has lines of two kinds:
///
/// ```text
///   # a comment
///   alice:$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH               for User Name and Password
///   alice:$scram-sha-256$65536$SALT$STORED_KEY$SERVER_KEY        for Authentication Method SCRAM-SHA-256
/// ```
///
/// A user has a line of either kind or both. `tenbin passwd` writes them. The lines of `mosquitto_passwd` (`$7$`, `$6$`
/// and argon2id) are for User Name and Password.
#[derive(Debug, Clone, Default)]
pub struct PasswordFile {
    /// Empty for one that was not read from a file.
    path: PathBuf,
    users: HashMap<String, Secrets>,
    /// Salt lengths and iteration counts that SCRAM reveals.
    shapes: Shapes,
}

/// Hashes of one user's password.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// For User Name and Password, as the line has it.
    hash: Option<Secret<String>>,
    scram: Option<ScramSecret>,
}

/// Error in a password file; its text is one line with file and line number.
#[derive(Debug)]
pub struct PasswordFileError {
    path: PathBuf,
    line: Option<usize>,
    message: String,
}

impl PasswordFile {
    /// Reads the password file at `path`.
    ///
    /// # Errors
    /// The file is unreadable, or a line is of neither kind.
    pub fn read(path: &Path) -> Result<Self, PasswordFileError> {
        let text = text_of(path).map_err(|error| unusable(path, format!("cannot be read: {error}")))?;
        let mut file = Self { path: path.to_owned(), ..Self::default() };
        for (index, line) in text.lines().enumerate() {
            let wrong = |message: String| PasswordFileError { path: path.to_owned(), line: Some(index + 1), message };
            file.add(line).map_err(wrong)?;
        }
        Ok(file)
    }

    /// Reads the same file again.
    pub(super) fn read_again(&self) -> Result<Self, PasswordFileError> {
        Self::read(&self.path)
    }

    /// Returns the hashes of `user`'s password.
    pub(super) fn get(&self, user: &str) -> Option<&Secrets> {
        self.users.get(user)
    }

    /// Salt lengths and iteration counts that SCRAM reveals.
    pub(super) fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Returns a hash that takes as long to check as an existing user's hash.
    pub(super) fn decoy(&self) -> String {
        self.users.values().find_map(Secrets::hash).unwrap_or(DECOY).to_owned()
    }

    /// Sets the password of `user` in the file at `path`. Creates the file if necessary; all other lines stay.
    ///
    /// # Errors
    /// The file cannot be read or written, or the name is not allowed in it.
    pub fn set(path: &Path, user: &str, secrets: &Secrets) -> Result<(), PasswordFileError> {
        if !is_user_name(user) {
            return Err(unusable(path, format!("{user:?} cannot be a user's name")));
        }
        let hash = secrets.hash().map(|hash| format!("{user}:{hash}"));
        let scram = secrets.scram.as_ref().map(|secret| format!("{user}:{secret}"));
        Self::edit(path, user, hash.into_iter().chain(scram).collect()).map(|_| ())
    }

    /// Removes `user` from the file at `path`; returns whether the file had this user.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn delete(path: &Path, user: &str) -> Result<bool, PasswordFileError> {
        Self::edit(path, user, Vec::new())
    }

    /// Replaces the user's first line by `new` and removes the user's other lines.
    fn edit(path: &Path, user: &str, mut new: Vec<String>) -> Result<bool, PasswordFileError> {
        let not_written = |error| unusable(path, format!("cannot be written: {error}"));
        // From the reading on, so that no other process's change is lost.
        let replacing = match Replacing::begin(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(unusable(path, format!("cannot be read: {error}")));
            }
            begun => begun.map_err(not_written)?,
        };
        let text = match text_of(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !new.is_empty() => String::new(),
            read => read.map_err(|error| unusable(path, format!("cannot be read: {error}")))?,
        };
        let mut lines = Vec::new();
        let mut found = false;
        for line in text.lines() {
            if line.split_once(':').is_some_and(|(name, _)| name == user) {
                found = true;
                lines.append(&mut new);
            } else {
                lines.push(line.to_owned());
            }
        }
        lines.append(&mut new);
        let text = lines.iter().flat_map(|line| [line, "\n"]).collect::<String>();
        replacing.write(text.as_bytes()).map_err(not_written)?;
        Ok(found)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (user, secret) = line.split_once(':').ok_or("no colon behind the user's name")?;
        if !is_user_name(user) {
            return Err(format!("{user:?} cannot be a user's name"));
        }
        let secrets = self.users.entry(user.to_owned()).or_default();
        let is_second = if let Some(scram) = secret.strip_prefix(PREFIX) {
            let secret = ScramSecret::parse(scram).ok_or("no legal scram-sha-256 secret")?;
            self.shapes.add(&secret);
            secrets.scram.replace(secret).is_some()
        } else {
            password_hash::check(secret)?;
            secrets.hash.replace(Secret::new(secret.to_owned())).is_some()
        };
        if is_second { Err(format!("a second line of one kind for {user}")) } else { Ok(()) }
    }
}

impl Secrets {
    /// Hashes a password with random salts. Takes a fraction of a second.
    ///
    /// # Errors
    /// The password is empty, or the system has no random numbers. For SCRAM also a password with characters other than
    /// printable ASCII, which clients may encode differently.
    pub fn new(password: &[u8], scram: bool) -> Result<Self, String> {
        if password.is_empty() {
            return Err("the password is empty".to_owned());
        }
        if scram && !password.iter().all(|&byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err("a password for SCRAM has printable ASCII characters only".to_owned());
        }
        let salt = || random::<SALT_BYTES>();
        let hash = Argon2::default().hash_password_with_salt(password, &salt()?);
        let hash: PasswordHash = hash.map_err(|error| error.to_string())?;
        let scram = if scram { Some(ScramSecret::new(password, salt()?.to_vec(), ITERATIONS)) } else { None };
        Ok(Self { hash: Some(Secret::new(hash.to_string())), scram })
    }

    /// Hash for User Name and Password.
    pub(super) fn hash(&self) -> Option<&str> {
        self.hash.as_ref().map(|hash| hash.expose().as_str())
    }

    pub(super) fn scram(&self) -> Option<&ScramSecret> {
        self.scram.as_ref()
    }

    /// Fingerprint of the secrets, comparable only for the same `hasher`.
    pub(super) fn stamp(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one((self.hash(), self.scram.as_ref().map(ToString::to_string)))
    }
}

/// Returns random bytes of the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    Ok(bytes)
}

fn is_user_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('#') && !name.contains(|c: char| c == ':' || c.is_control())
}

fn text_of(path: &Path) -> io::Result<String> {
    tenbin_kit::files::text(tenbin_kit::files::read(path, BYTES_MAX)?)
}

fn unusable(path: &Path, message: String) -> PasswordFileError {
    PasswordFileError { path: path.to_owned(), line: None, message }
}

/// Most bytes of a password file: some 400,000 users.
const BYTES_MAX: u64 = 64 << 20;

/// Hash of random bytes with the parameters of new hashes.
const DECOY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$dGhlcmUgaXMgbm8gc3VjaCB1$qw4VsLYVzt8n7rPa0gC9xV1Q0jJxPZcS2Z2y3q1k9bM";

impl fmt::Display for PasswordFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "password file {}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for PasswordFileError {}

#[cfg(test)]
mod tests {
    use super::super::password_hash::verify;
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tenbin-passwd-{name}-{}", std::process::id()))
    }

    #[test]
    fn set_and_delete_keep_other_users() {
        let path = temporary("edit");
        let _ = std::fs::remove_file(&path);
        let secrets = Secrets::new(b"pencil", true).unwrap();
        PasswordFile::set(&path, "alice", &secrets).unwrap();
        std::fs::write(&path, format!("# ours\n{}", std::fs::read_to_string(&path).unwrap())).unwrap();
        PasswordFile::set(&path, "bob", &Secrets::new(b"x", false).unwrap()).unwrap();
        let file = PasswordFile::read(&path).unwrap();
        assert_eq!(file.get("alice"), Some(&secrets));
        assert!(file.get("bob").unwrap().scram().is_none());
        assert!(verify(b"pencil", secrets.hash().unwrap(), &mut Vec::new()));
        assert!(!verify(b"pencils", secrets.hash().unwrap(), &mut Vec::new()));

        // A new password removes the SCRAM secret of the old one.
        PasswordFile::set(&path, "alice", &Secrets::new(b"pen", false).unwrap()).unwrap();
        assert!(PasswordFile::read(&path).unwrap().get("alice").unwrap().scram().is_none());
        assert!(PasswordFile::delete(&path, "alice").unwrap());
        assert!(!PasswordFile::delete(&path, "alice").unwrap());
        let file = PasswordFile::read(&path).unwrap();
        assert!(file.get("alice").is_none() && file.get("bob").is_some());
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# ours\n"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn broken_lines_are_reported_with_their_number() {
        let path = temporary("broken");
        let good = format!("u:{DECOY}");
        for line in [
            "u",
            "u:",
            "u:secret",
            ":x",
            "u:$argon2i$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaA",
            "u:$scram-sha-256$1$a$b$c",
            &good,
        ] {
            std::fs::write(&path, format!("{good}\n\n{line}\n")).unwrap();
            let error = PasswordFile::read(&path).unwrap_err().to_string();
            assert!(error.contains("line 3") && error.contains("tenbin-passwd"), "{line}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(PasswordFile::read(&path).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn decoy_has_the_parameters_of_real_hashes() {
        assert!(!verify(b"", DECOY, &mut Vec::new()));
        let hash = PasswordHash::new(DECOY).unwrap();
        let ours = Secrets::new(b"x", false).unwrap();
        let ours = PasswordHash::new(ours.hash().unwrap()).unwrap();
        assert_eq!(hash.params, ours.params);
        assert_eq!(hash.hash.unwrap().len(), ours.hash.unwrap().len());
    }

    #[test]
    fn invalid_names_and_passwords_are_rejected() {
        for name in ["", "a:b", "#a", "a\nb"] {
            assert!(PasswordFile::set(Path::new("/nowhere/at/all"), name, &Secrets::default()).is_err());
        }
        assert!(Secrets::new(b"", false).is_err());
        assert!(Secrets::new("é".as_bytes(), true).is_err());
        assert!(Secrets::new("é".as_bytes(), false).is_ok());
    }
}
