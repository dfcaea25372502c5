//! Check that the state and the messages of a data directory belong together.

use std::{
    fmt, fs,
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
};

use crate::directory;

/// Random number shared by the state and the messages of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId(u128);

/// Message files of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFiles {
    /// Id of their store; `None` if no file names it.
    pub id: Option<StoreId>,
    /// Segments of the log.
    pub segments: usize,
}

/// The state and the messages do not belong together, or one of them is missing. The text is one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(pub(crate) String);

impl StoreId {
    pub(crate) fn random() -> Self {
        let half = || u128::from(RandomState::new().hash_one(std::time::SystemTime::now()));
        Self(half() << 64 | half())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u128::from_le_bytes).map(Self)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl MessageFiles {
    /// Reads a data directory without changing it.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    pub fn of(directory: &Path) -> io::Result<Self> {
        let path = messages_in(directory);
        let id = read(&path.join(FILE))?;
        let segments = match fs::read_dir(&path) {
            Ok(entries) => entries.flatten().filter(|entry| is_segment(&entry.path())).count(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(Self { id, segments })
    }

    /// Whether there are no message files.
    pub fn is_empty(&self) -> bool {
        self.id.is_none() && self.segments == 0
    }

    /// Writes the store's id into the directory of its messages, if it has none.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn name(self, directory: &Path, id: StoreId) -> io::Result<()> {
        if self.id.is_some() {
            return Ok(());
        }
        let text = id.to_string();
        let line = format!("{text} {:08x}\n", crc32c::crc32c(text.as_bytes()));
        directory::replace(&messages_in(directory).join(FILE), line.as_bytes())
    }

    /// Checks that these messages belong to a state.
    pub(crate) fn check(self, directory: &Path, state: StateIdentity) -> Result<(), Mismatch> {
        let (state_path, path) = (directory.join("state"), messages_in(directory));
        let (state_path, path) = (state_path.display(), path.display());
        let to_do = format!(
            "put the missing files back (is a volume not mounted?); to begin anew and lose what {} holds, remove it",
            directory.display()
        );
        let problem = match (state, self.id) {
            (StateIdentity::New, None) if self.segments == 0 => return Ok(()),
            (StateIdentity::New, _) => format!("{state_path} is missing or empty, but {path} holds messages: {to_do}"),
            (StateIdentity::Named(state), Some(id)) if state == id => return Ok(()),
            (StateIdentity::Named(state), Some(id)) => {
                format!("{state_path} is of store {state}, but {path} is of store {id}: {to_do}")
            }
            (StateIdentity::Named(state), None) if self.segments > 0 => {
                format!("{state_path} is of store {state}, but {path}/{FILE} is missing: {to_do}")
            }
            // The state is made before the messages; its content shows whether messages existed.
            (StateIdentity::Named(_) | StateIdentity::Unnamed, None) => return Ok(()),
            (StateIdentity::Unnamed, Some(id)) => {
                format!("{state_path} names no store, but {path} is of store {id}: {to_do}")
            }
        };
        Err(Mismatch(problem))
    }

    /// Checks that messages exist, for a state that had some.
    ///
    /// # Errors
    /// There are no message files.
    pub fn require(self, directory: &Path) -> Result<(), Mismatch> {
        if self.segments > 0 {
            return Ok(());
        }
        Err(Mismatch(format!(
            "{} holds no messages' files, but {} is of a store that had some: put the missing files back (is a volume not \
             mounted?); to begin anew and lose what {} holds, remove it",
            messages_in(directory).display(),
            directory.join("state").display(),
            directory.display()
        )))
    }
}

/// Identity of the store to which a state belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StateIdentity {
    /// There is no state.
    New,
    /// The state was written before states had ids.
    Unnamed,
    Named(StoreId),
}

fn messages_in(directory: &Path) -> PathBuf {
    directory.join("spool")
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

fn read(path: &Path) -> io::Result<Option<StoreId>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let id = std::str::from_utf8(&text).ok().and_then(|text| {
        let (id, sum) = text.strip_suffix('\n')?.split_once(' ')?;
        let is_whole = sum == format!("{:08x}", crc32c::crc32c(id.as_bytes()));
        u128::from_str_radix(id, 16).ok().filter(|_| is_whole).map(StoreId)
    });
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{}: damaged", path.display()));
    id.map(Some).ok_or_else(damaged)
}

const FILE: &str = "store-id";
