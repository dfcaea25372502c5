//! The switch's end of one machine's network interface.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// How machines are joined to the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortKind {
    /// `Tap` where `/dev/net/tun` opens, else `Veth`.
    #[default]
    Auto,
    /// A TAP device in the machine.
    Tap,
    /// A pair of virtual interfaces, whose outer end is read by a packet socket.
    Veth,
}

/// A descriptor that reads and writes whole frames, each behind a `virtio_net_hdr`.
#[derive(Debug)]
pub(crate) struct Port(OwnedFd);

/// Result of one read.
pub(crate) enum Read {
    Frame(usize),
    Empty,
    /// The interface is gone, with its machine.
    Gone,
}

impl Port {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Read {
        match rustix::io::read(&self.0, buffer) {
            Ok(0) => Read::Gone,
            Ok(bytes) => Read::Frame(bytes),
            Err(Errno::BADFD | Errno::NODEV | Errno::NXIO) => Read::Gone,
            // An interface that is down now and then comes up again.
            Err(_) => Read::Empty,
        }
    }

    /// False if the interface took no frame: its queue is full, or it is down.
    pub(crate) fn write(&self, frame: &[u8]) -> bool {
        rustix::io::write(&self.0, frame).is_ok_and(|bytes| bytes == frame.len())
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
