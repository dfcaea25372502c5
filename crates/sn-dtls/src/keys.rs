//! Pre-shared keys.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dimpl::PskResolver;
use tenbin_codec::Secret;
use tenbin_kit::digits::from_hexadecimal;

use crate::SetupError;

thread_local! {
    /// Identity of the last key that was looked up: the engine does not tell which one its client used.
    static LOOKED_UP: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Time between two looks at the file.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Shortest key: 128 bits.
const KEY_BYTES_MINIMUM: usize = 16;

/// Keys of a file, by identity. A changed file counts for the handshakes that follow.
pub(crate) struct KeyFile {
    path: PathBuf,
    keys: Mutex<Keys>,
}

struct Keys {
    by_identity: HashMap<String, Secret<Vec<u8>>>,
    /// Time of the last change of the file, and its size.
    mark: Option<(SystemTime, u64)>,
    /// The same of a file that cannot be used, so that the log has it once.
    failed: Option<(SystemTime, u64)>,
    looked_at: Instant,
}

impl KeyFile {
    pub(crate) fn read(path: &Path) -> Result<Self, SetupError> {
        let (mark, by_identity) = (mark_of(path), keys_of(path)?);
        let keys = Keys { by_identity, mark, failed: None, looked_at: Instant::now() };
        Ok(Self { path: path.to_owned(), keys: Mutex::new(keys) })
    }
}

impl PskResolver for KeyFile {
    fn resolve(&self, identity: &[u8]) -> Option<Vec<u8>> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.looked_at.elapsed() >= LOOK_PAUSE {
            keys.looked_at = Instant::now();
            let mark = mark_of(&self.path);
            if mark != keys.mark {
                match keys_of(&self.path) {
                    Ok(by_identity) => (keys.by_identity, keys.mark, keys.failed) = (by_identity, mark, None),
                    Err(error) if keys.failed != mark => {
                        keys.failed = mark;
                        tracing::warn!(%error, "the last pre-shared keys stay");
                    }
                    Err(_) => {}
                }
            }
        }
        let identity = std::str::from_utf8(identity).ok()?;
        let key = keys.by_identity.get(identity)?.expose().clone();
        LOOKED_UP.set(Some(identity.to_owned()));
        Some(key)
    }
}

/// The one key of a client.
pub(crate) struct OneKey(pub(crate) Secret<Vec<u8>>);

impl PskResolver for OneKey {
    fn resolve(&self, _identity: &[u8]) -> Option<Vec<u8>> {
        Some(self.0.expose().clone())
    }
}

/// Takes the identity whose key this thread has looked up since the last call.
pub(crate) fn take_looked_up() -> Option<String> {
    LOOKED_UP.take()
}

/// The key of an identity in a file.
pub(crate) fn key_of(path: &Path, identity: &str) -> Result<Secret<Vec<u8>>, SetupError> {
    let key = keys_of(path)?.remove(identity);
    key.ok_or_else(|| SetupError::new(path, format!("has no key of identity {identity:?}")))
}

fn mark_of(path: &Path) -> Option<(SystemTime, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}

/// Reads lines of `IDENTITY:KEY`, the key in hexadecimal digits. Empty lines and those with `#` in front do not count.
fn keys_of(path: &Path) -> Result<HashMap<String, Secret<Vec<u8>>>, SetupError> {
    let text = tenbin_kit::files::read_text(path).map_err(|error| SetupError::new(path, error))?;
    let mut keys = HashMap::new();
    for (line, number) in text.lines().zip(1..) {
        let wrong = |reason: &str| SetupError::new(path, format!("line {number}: {reason}"));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (identity, digits) = line.rsplit_once(':').ok_or_else(|| wrong("is not IDENTITY:KEY"))?;
        let key = from_hexadecimal(digits)
            .ok_or_else(|| wrong("the key has other characters than pairs of hexadecimal digits"))?;
        if key.len() < KEY_BYTES_MINIMUM {
            return Err(wrong("the key has less than 32 hexadecimal digits"));
        }
        if identity.is_empty() || keys.insert(identity.to_owned(), Secret::new(key)).is_some() {
            return Err(wrong("the identity is empty, or has a key already"));
        }
    }
    if keys.is_empty() { Err(SetupError::new(path, "has no key")) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn errors_name_file_and_line() {
        let key = "0f".repeat(16);
        for (text, named) in [
            (String::new(), "has no key"),
            (format!("# comment\n\na:{key}\nb\n"), "line 4: is not IDENTITY:KEY"),
            (format!("a:{key}0\n"), "line 1: the key has other"),
            ("a:zz\n".to_owned(), "line 1: the key has other"),
            ("a:0f\n".to_owned(), "less than 32"),
            (format!("a:{key}\na:{key}\n"), "line 2: the identity"),
            (format!(":{key}\n"), "line 1: the identity"),
        ] {
            let file = file(&text);
            let error = keys_of(file.path()).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(file.path().to_str().unwrap()), "{text}: {error}");
        }
    }

    #[test]
    fn identities_may_contain_colons() {
        let file = file(&format!("plant:7:{}\n", "0F".repeat(16)));
        assert_eq!(key_of(file.path(), "plant:7").unwrap(), Secret::new([15; 16]));
        let keys = KeyFile::read(file.path()).unwrap();
        assert_eq!(keys.resolve(b"plant:7"), Some(vec![15; 16]));
        assert_eq!(take_looked_up().as_deref(), Some("plant:7"));
        assert_eq!((keys.resolve(b"plant"), take_looked_up()), (None, None));
        assert!(key_of(file.path(), "plant").unwrap_err().to_string().contains("\"plant\""));
    }
}
