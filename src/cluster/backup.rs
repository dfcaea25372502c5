//! `tenbin cluster backup` and `tenbin store backup`: the file.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal as _, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tenbin_kit::printable::{printable, printable_within};
use tenbin_store::LockedDirectory;
use tenbin_store::mirror::{Contents, backup_closed, check_backup};

use super::commands::{ClusterError, runtime};
use super::control::{self, ControlAnswer, ControlError, ControlRequest};

/// Writes a backup of the node with this data directory into a file, which appears once it is whole and checked.
///
/// # Errors
/// No node with data runs there, the file cannot be written, the node has broken it off, or its store is damaged and
/// `accepts_damage` is false. The text names the file.
pub(super) fn write(directory: &Path, file: &Path, accepts_damage: bool) -> Result<Contents, ClusterError> {
    make(file, accepts_damage, |new, out| receive(directory, new, out).map(|()| None))
}

/// Writes a backup of a data directory that no broker uses, in the same way.
///
/// # Errors
/// The directory is in use or cannot be read, the file cannot be written, or the directory is damaged and `accepts_damage` is
/// false.
pub(crate) fn write_closed(directory: &Path, file: &Path, accepts_damage: bool) -> Result<Contents, ClusterError> {
    let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let about = json!({ "version": env!("CARGO_PKG_VERSION"), "begun_ms": begun.as_millis() as u64 }).to_string();
    let locked = LockedDirectory::open_to_read(directory).map_err(io::Error::other)?;
    make(file, accepts_damage, |new, out| {
        backup_closed(&locked, &about, &mut BufWriter::new(out)).map_err(|error| named(new, &error))
    })
}

/// Makes a file from what `fill` writes, checked. `fill` returns damage that shows in no record.
fn make(
    file: &Path,
    accepts_damage: bool,
    fill: impl FnOnce(&Path, &mut File) -> Result<Option<String>, ClusterError>,
) -> Result<Contents, ClusterError> {
    // Before the node begins its work.
    require_regular(file).map_err(|error| named(file, &error))?;
    let name = file.file_name().ok_or_else(|| named(file, &io::Error::other("it names no file")))?;
    // A name that no other backup has: one into the same file may be under way. It is removed if the backup fails.
    let mut new = tempfile::Builder::new();
    let new = new.prefix(name).suffix(".new").tempfile_in(directory_of(file)).map_err(|error| named(file, &error))?;
    let (mut out, path) = new.into_parts();
    let damage = fill(&path, &mut out)?;
    out.sync_all().map_err(|error| named(&path, &error))?;
    let mut contents = check_backup(&path)?;
    contents.damage = damage.or(contents.damage);
    if let Some(damage) = contents.damage.as_ref().filter(|_| !accepts_damage) {
        return Err(ClusterError::Damaged { path: file.to_owned(), damage: damage.clone() });
    }
    path.persist(file).map_err(|error| named(file, &error.error))?;
    File::open(directory_of(file)).and_then(|directory| directory.sync_all()).map_err(|error| named(file, &error))?;
    Ok(contents)
}

/// Fails if there is something else than a regular file: a backup would replace a device or a link.
fn require_regular(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::other("it exists, and is no regular file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn receive(directory: &Path, path: &Path, out: &mut File) -> Result<(), ClusterError> {
    let runtime = runtime()?;
    let asked = control::ask_stream(directory, &ControlRequest::Backup, ANSWER_TIMEOUT);
    let (answer, stream) = runtime.block_on(asked)?;
    let ControlAnswer::Stream { .. } = answer else { return Err(ControlError::Unexpected.into()) };
    let mut stream = {
        let _there = runtime.enter();
        stream.into_std()?
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(NODE_PATIENCE))?;
    let (mut piece, mut bytes, mut progress) = (vec![0; 256 << 10], 0_u64, Progress::new());
    loop {
        let read = stream.read(&mut piece).map_err(silent)?;
        if read == 0 {
            break;
        }
        out.write_all(&piece[..read]).map_err(|error| named(path, &error))?;
        bytes += read as u64;
        progress.show(bytes);
    }
    progress.end();
    Ok(())
}

/// A line at a terminal that shows how far the work is.
struct Progress {
    is_shown: bool,
    last: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal(), last: Instant::now() }
    }

    fn show(&mut self, bytes: u64) {
        if self.is_shown && self.last.elapsed() >= PROGRESS_EVERY {
            self.last = Instant::now();
            // The terminal may be closed.
            let _ = write!(io::stderr(), "\r{} MiB", bytes >> 20);
        }
    }

    fn end(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r");
        }
    }
}

/// The content in a line.
pub(crate) fn words(contents: &Contents) -> String {
    let Contents { about, bytes, segments, entries, damage } = contents;
    let of = serde_json::from_str::<Value>(about).unwrap_or_default();
    let cluster = of["cluster"].as_str().map(|cluster| {
        let epoch = of["epoch"].as_u64().map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
        format!("cluster {}{epoch}: ", printable_within(cluster, NAME_CHARACTERS_MAX))
    });
    let cluster = cluster.unwrap_or_default();
    let damage = damage.as_ref().map(|damage| format!("; problem: {}", printable(damage))).unwrap_or_default();
    format!("{cluster}{bytes} bytes, {segments} segments of messages, {entries} entries of the state{damage}")
}

/// An error of the connection to the node, with its cause.
fn silent(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, format!("the node has sent nothing for {NODE_PATIENCE:?}"))
        }
        _ => error,
    }
}

fn named(path: &Path, error: &io::Error) -> ClusterError {
    ClusterError::Io(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file may be forged.
const NAME_CHARACTERS_MAX: usize = 64;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence of the node.
const NODE_PATIENCE: Duration = Duration::from_secs(60);
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_forged_file_are_bounded_and_escaped() {
        let cluster = format!("\u{1b}]0;x\u{7}\u{9b}2J{}", "y".repeat(10_000));
        let about = json!({ "cluster": cluster, "epoch": "\u{1b}[31m" }).to_string();
        let damage = Some("spool/\u{1b}".to_owned());
        let words = words(&Contents { about, damage, ..Contents::default() });
        assert!(!words.contains(char::is_control) && words.chars().count() < 250, "{words}");
        assert!(words.starts_with("cluster \\u001b]0;x\\u0007\\u009b2Jyyy") && words.contains("…: 0 bytes"), "{words}");
        assert!(words.ends_with("; problem: spool/\\u001b"), "{words}");
        let about = json!({ "cluster": "shop", "epoch": 7 }).to_string();
        let all = Contents { about, bytes: 1, segments: 2, entries: 3, damage: None };
        assert_eq!(
            super::words(&all),
            "cluster shop, epoch 7: 1 bytes, 2 segments of messages, 3 entries of the state"
        );
    }
}
