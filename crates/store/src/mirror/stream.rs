//! Byte streams between a leader and its copy.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection of the mirror. Its clones are the same connection.
pub trait Stream: Read + Write + Send {
    /// Another handle of the connection.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    fn duplicate(&self) -> io::Result<Box<dyn Stream>>;

    /// Bounds the time for which a write may wait for the other end.
    ///
    /// # Errors
    /// The system refuses it.
    fn set_write_timeout(&self, patience: Duration) -> io::Result<()>;

    /// Ends the connection: calls that block in any handle return.
    fn hang_up(&self);
}

impl Stream for TcpStream {
    fn duplicate(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn set_write_timeout(&self, patience: Duration) -> io::Result<()> {
        TcpStream::set_write_timeout(self, Some(patience))
    }

    fn hang_up(&self) {
        // An error means that it has ended already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Stream for UnixStream {
    fn duplicate(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn set_write_timeout(&self, patience: Duration) -> io::Result<()> {
        UnixStream::set_write_timeout(self, Some(patience))
    }

    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}
