//! Stream of a node's process, at the standard input and output of a further `ssh`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Most time until the controller attaches to a stream.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// `tenbin-verify node --attach PATH`: copies between the socket and the standard streams until the socket's end.
pub(crate) fn relay(path: &Path) -> io::Result<()> {
    let socket = UnixStream::connect(path)?;
    // The standard streams of the library keep bytes back until the end of a line.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let to = socket.try_clone()?;
    thread::Builder::new().spawn(move || {
        let _ = copy(input, &to);
        let _ = to.shutdown(Shutdown::Write);
    })?;
    copy(&socket, output)
}

/// Joins `stream` to the first one that attaches at `listener`, whose file is then removed.
pub(super) fn join(stream: UnixStream, listener: UnixListener, path: &Path) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    let peer = loop {
        match listener.accept() {
            Ok((peer, _)) => break peer,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    };
    std::fs::remove_file(path)?;
    peer.set_nonblocking(false)?;
    let (from, to) = (peer.try_clone()?, stream.try_clone()?);
    thread::Builder::new().spawn(move || {
        let _ = copy(&from, &to);
        let _ = to.shutdown(Shutdown::Write);
    })?;
    let copied = copy(&stream, &peer);
    let _ = peer.shutdown(Shutdown::Both);
    copied
}

/// Passes bytes on as soon as they arrive.
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => to.write_all(&buffer[..bytes])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
