//! Files that people name in configurations and arguments.
//!
//! [`read`] opens a file once, without waiting, and takes regular files of a bounded size alone: a FIFO, a device or a
//! directory is an error. [`Replacing`] replaces a file as a whole, for one process at a time.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, fcntl_setfl};

/// Most bytes of a configuration, a key, a list of certificates or the like.
pub const BYTES_MAX: u64 = 16 << 20;

/// Reads a regular file of at most `bytes_max` bytes. Follows symbolic links.
///
/// # Errors
/// It cannot be read, is no regular file, or has more bytes.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    bounded(open(path, false)?, bytes_max)
}

/// As [`read_text`], and reads a pipe up to its end, once its writer has opened it. For files that are given on the
/// command line: nothing else may make a program wait for a writer.
///
/// # Errors
/// As [`read_text`].
pub fn read_text_or_pipe(path: &Path) -> io::Result<String> {
    let file = open(path, true)?;
    if file.metadata()?.file_type().is_fifo() {
        // Until there is a text, or its writer has ended; a pipe without a writer would look like an empty file.
        poll(&mut [PollFd::new(&file, PollFlags::IN)], None)?;
        fcntl_setfl(&file, OFlags::empty())?;
    }
    text(bounded(file, BYTES_MAX)?)
}

fn bounded(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len().min(bytes_max);
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default() + 1);
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("it has more than {} KiB", bytes_max >> 10);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// As [`read`], for text in UTF-8 of at most [`BYTES_MAX`] bytes.
///
/// # Errors
/// As [`read`], or it is no text.
pub fn read_text(path: &Path) -> io::Result<String> {
    text(read(path, BYTES_MAX)?)
}

/// The text of bytes in UTF-8.
///
/// # Errors
/// They are none.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Opens a regular file for reading, or a pipe.
fn open(path: &Path, takes_pipes: bool) -> io::Result<File> {
    // Opening a FIFO would wait for its writer, and opening a terminal could make it ours.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || (takes_pipes && kind.is_fifo()) {
        return Ok(file);
    }
    let kind = if kind.is_dir() { "a directory" } else { "a FIFO, a socket or a device" };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, and no regular file")))
}

/// Appends `text` to a regular file in one write, since others may append at the same time. Makes a missing file, which
/// only its owner may use; follows no symbolic link.
///
/// # Errors
/// It cannot be written, or is no regular file. The error names it.
pub fn append(path: &Path, text: &str) -> io::Result<()> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let file = private().append(true).create(true).custom_flags(flags.bits().cast_signed()).open(path);
    let written = file.and_then(|mut file| match file.metadata()?.is_file() {
        true => file.write_all(text.as_bytes()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    });
    written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Options for creating a file that only its owner may use.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Makes all files and directories private to their owner that this process creates from now on, also those of libraries.
pub fn create_privately() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// The right to replace a file: one process at a time has it for a directory.
pub struct Replacing {
    path: PathBuf,
    /// The locked directory. Files that are replaced keep no lock.
    directory: File,
}

impl Replacing {
    /// Waits for other processes that replace a file in the same directory. Symbolic links at `path` stay.
    ///
    /// # Errors
    /// The directory cannot be read, or its file system has no locks.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let is_link = fs::symlink_metadata(path).is_ok_and(|link| link.is_symlink());
        let path = if is_link { fs::canonicalize(path)? } else { path.to_owned() };
        let directory = File::open(directory_of(&path))?;
        directory.lock()?;
        Ok(Self { path, directory })
    }

    /// The file, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file atomically, so that no reader ever gets half of it, and durably.
    ///
    /// A new file is readable by its owner only. An existing one keeps owner, group and mode.
    ///
    /// # Errors
    /// It cannot be written, or the old owner cannot be kept. Then the old file stays.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        let mut name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".new");
        let new = self.path.with_file_name(name);
        // One that a killed process has left.
        let _ = fs::remove_file(&new);
        let mut file = private().write(true).create_new(true).open(&new)?;
        let written = file.write_all(bytes).and_then(|()| {
            if let Ok(old) = fs::metadata(&self.path) {
                keep_owner(&file, &old)?;
                file.set_permissions(old.permissions())?;
            }
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            self.directory.sync_all()
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }
}

impl fmt::Debug for Replacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Replacing").field(&self.path).finish()
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Keeps owner and group: otherwise a broker that runs as the old owner could not read the file.
fn keep_owner(file: &File, old: &fs::Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    let user = (new.uid() != old.uid()).then(|| old.uid());
    let group = (new.gid() != old.gid()).then(|| old.gid());
    if user.is_none() && group.is_none() {
        return Ok(());
    }
    fchown(file, user, group).map_err(|error| {
        let message = format!("it belongs to user {} and group {}, and has to: {error}", old.uid(), old.gid());
        io::Error::new(error.kind(), message)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn text_is_appended_to_regular_files_alone() {
        let directory = tempfile::tempdir().expect("ours to write");
        let path = |name: &str| directory.path().join(name);
        for text in ["one\n", "two\n"] {
            append(&path("file"), text).expect("a new file");
        }
        assert_eq!(fs::read_to_string(path("file")).expect("a text"), "one\ntwo\n");
        assert_eq!(path("file").metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        symlink(path("file"), path("link")).expect("ours to write");
        assert!(std::process::Command::new("mkfifo").arg(path("fifo")).status().expect("mkfifo is there").success());
        for wrong in [path("link"), path("fifo"), path(""), path("none/file"), "/dev/zero".into()] {
            let error = append(&wrong, "three\n").expect_err("no regular file").to_string();
            assert!(error.starts_with(&wrong.display().to_string()), "{error}");
        }
    }

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "text").unwrap();
        symlink(path("file"), path("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        File::create(path("huge")).unwrap().set_len(1 << 40).unwrap();
        fs::write(path("binary"), [0xFF]).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read_text(&path(name)).unwrap(), "text");
            assert_eq!(read(&path(name), 4).unwrap(), b"text");
        }
        let begun = Instant::now();
        for (file, words) in [
            (path("fifo"), "no regular file"),
            (directory.path().to_owned(), "a directory"),
            ("/dev/zero".into(), "no regular file"),
            (path("huge"), "more than 16384 KiB"),
            (path("binary"), "UTF-8"),
            (path("missing"), "No such file"),
        ] {
            let error = read_text(&file).unwrap_err().to_string();
            assert!(error.contains(words), "{}: {error}", file.display());
        }
        assert!(read(&path("file"), 3).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing waits for a writer");
    }

    #[test]
    fn pipe_is_read_to_its_end_where_allowed() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for (length, is_read) in [(100_000, true), (usize::try_from(BYTES_MAX).unwrap() + 1, false)] {
            let text = "x".repeat(length);
            thread::scope(|scope| {
                // It fails if the reader ends first.
                scope.spawn(|| drop(fs::write(&pipe, &text)));
                assert_eq!(read_text_or_pipe(&pipe).ok(), is_read.then(|| text.clone()));
            });
        }
        fs::write(directory.path().join("file"), "text").unwrap();
        assert_eq!(read_text_or_pipe(&directory.path().join("file")).unwrap(), "text");
        for refused in [directory.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            assert!(read_text_or_pipe(refused).unwrap_err().to_string().contains("no regular file"));
        }
    }

    #[test]
    fn replacements_at_the_same_time_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(directory.path().join("file.new"), "of a killed process").unwrap();
        let add = |number: usize| {
            let replacing = Replacing::begin(&path).unwrap();
            let old = fs::read_to_string(replacing.path()).unwrap_or_default();
            replacing.write(format!("{old}{number}\n").as_bytes()).unwrap();
        };
        thread::scope(|scope| (0..16).for_each(|number| drop(scope.spawn(move || add(number)))));
        let mut lines: Vec<usize> =
            fs::read_to_string(&path).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        lines.sort_unstable();
        assert_eq!(lines, (0..16).collect::<Vec<_>>());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left");
    }

    #[test]
    fn replaced_file_keeps_mode_and_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        Replacing::begin(&link).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
