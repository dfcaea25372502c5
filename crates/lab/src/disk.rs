//! Filesystems of a machine's own for its data.

use serde::{Deserialize, Serialize};

/// Filesystem for the data of a machine. Without one, data is in a plain directory, without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Disk {
    /// In memory, with a size; needs no root. It outlives processes, but not the machine.
    Memory {
        /// Size in bytes.
        bytes: u64,
    },
    /// An ext4 filesystem in a file, mounted by a loop device; needs root. The power of such machines can be cut.
    Image {
        /// Size in bytes, at least 16 MiB. The file is sparse: it takes the space that is in use.
        bytes: u64,
    },
}
