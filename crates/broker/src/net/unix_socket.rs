//! Unix sockets: their files, and the streams of their clients.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixStream;

use super::stream::Stream;
use crate::config::Listener;
use crate::values::{Peer, TransportProtocol};

/// File of a listening socket. Removed when dropped, unless another socket has taken its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

/// Binds a socket to `path`, with the rights of `listener`. No client can connect before it listens.
///
/// # Errors
/// Another process answers there, another kind of file is there, or the directory or the group is not ours.
pub(super) fn bind(path: &Path, listener: &Listener) -> io::Result<(Socket, SocketFile)> {
    remove_stale(path)?;
    let socket = new_socket()?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    file.permit(listener)?.keep();
    Ok((socket, file))
}

/// Checks the directory and the group of a unix listener, without changing anything.
///
/// # Errors
/// One of them does not exist.
pub(super) fn check(path: &Path, listener: &Listener) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !fs::metadata(directory)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "its directory is a file"));
    }
    SockAddr::unix(path)?; // which bounds its length
    is_socket(path)?;
    listener.group.as_deref().map_or(Ok(0), group_number).map(drop)
}

/// Whether a socket is there.
///
/// # Errors
/// Something else is there.
fn is_socket(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(file) if file.file_type().is_socket() => Ok(true),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there")),
    }
}

/// Removes the file of a socket at which no process answers.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !is_socket(path)? {
        return Ok(());
    }
    match new_socket()?.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "address in use: another process answers there")),
    }
}

fn new_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Connecting to a full backlog would block.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Number of the group `name`, which may be the number itself.
fn group_number(name: &str) -> io::Result<u32> {
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1))?.and_then(|number| number.parse().ok())
    };
    let found = name.parse().ok().or_else(|| fs::read_to_string("/etc/group").ok()?.lines().find_map(number));
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no group {name:?}")))
}

impl SocketFile {
    /// Gives the file the rights of `listener`.
    ///
    /// # Errors
    /// Another file has taken its place, perhaps a link to one that is not ours, or the rights cannot be given.
    pub(super) fn permit(&self, listener: &Listener) -> io::Result<NewRights> {
        let group = listener.group.as_deref().map(group_number).transpose()?;
        let handle = FileHandle::open(&self.path)?;
        let found = handle.look()?;
        if !found.file_type().is_socket() || (found.dev(), found.ino()) != self.identity {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file has taken the place of the socket"));
        }
        let rights = NewRights { path: self.path.clone(), before: Some((found.mode() & 0o7777, found.gid())), handle };
        rights.handle.give(listener.mode(), group)?;
        Ok(rights)
    }
}

/// A file of any kind, whatever happens to its path. A symbolic link is the link itself.
#[derive(Debug)]
struct FileHandle(OwnedFd);

impl FileHandle {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// A path that leads to this file as long as the descriptor is open.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    fn look(&self) -> io::Result<fs::Metadata> {
        fs::metadata(self.path())
    }

    fn give(&self, mode: u32, group: Option<u32>) -> io::Result<()> {
        if group.is_some() {
            chown(self.path(), None, group)?;
        }
        fs::set_permissions(self.path(), fs::Permissions::from_mode(mode))
    }
}

/// New rights of a socket's file. Dropped without [`NewRights::keep`], it restores those from before.
#[derive(Debug)]
pub(crate) struct NewRights {
    path: PathBuf,
    handle: FileHandle,
    /// Mode and group.
    before: Option<(u32, u32)>,
}

impl NewRights {
    pub(crate) fn keep(mut self) {
        self.before = None;
    }
}

impl Drop for NewRights {
    fn drop(&mut self) {
        let Some((mode, group)) = self.before else { return };
        if let Err(error) = self.handle.give(mode, Some(group)) {
            tracing::warn!(path = %self.path.display(), %error, "cannot restore the rights of a unix socket");
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Stream for UnixStream {
    fn begin(&self, _: Peer) {}

    fn protocol(&self) -> TransportProtocol {
        TransportProtocol::Unix
    }

    fn local_address(&self) -> Option<SocketAddr> {
        None
    }

    fn inode(&self) -> Option<u32> {
        // The file system of sockets counts in 32 bits.
        rustix::fs::fstat(self).ok().and_then(|file| u32::try_from(file.st_ino).ok())
    }

    fn register_again(&mut self) -> io::Result<()> {
        // By a second descriptor: the first one stays until that has succeeded.
        *self = Self::from_std(self.as_fd().try_clone_to_owned()?.into())?;
        Ok(())
    }
}
