//! Where the log continues after opening.

use std::io;

use super::{
    disk::{Disk, DiskFile, write_all},
    recovery::{Examined, OpenError, open},
    segment::{Header, log_name, prepare},
};

/// Files with which the committer starts.
#[derive(Default)]
pub(super) struct Beginning {
    /// The file of the next segment.
    pub(super) prepared: Option<(u32, Box<dyn DiskFile>)>,
    /// Header of the last segment, if there is no room for a new one: the log continues in its rest.
    pub(super) rest: Option<Header>,
    /// Spare segments.
    pub(super) spares: Vec<String>,
    /// Size of segments, once the log is no longer small.
    pub(super) grows_to: Option<u32>,
}

impl Beginning {
    /// Makes the next segment. `header` is its header except for the number.
    pub(super) fn make(
        disk: &dyn Disk,
        examined: &Examined,
        header: Header,
        mut spares: Vec<String>,
    ) -> Result<Self, OpenError> {
        let segments = &examined.index.segments;
        let is_new = segments.len() == 0;
        let number = if is_new { segments.newest() } else { segments.newest() + 1 };
        let header = Header { number, ..header };
        let made = prepare(disk, header, None).or_else(|error| match spares.pop() {
            Some(spare) => prepare(disk, header, Some(&spare)),
            None => Err(error),
        });
        match made {
            Ok(file) => return Ok(Self { prepared: Some((number, file)), rest: None, spares, grows_to: None }),
            // A log that is not new can continue in its last file.
            Err(error) if is_new => return Err(OpenError::Io { path: disk.path(&log_name(number)), error }),
            Err(_) => {}
        }
        let number = segments.newest();
        let (window, header) = open(disk, number)?;
        let cleared = clear(window.file(), examined.end, header.file_bytes);
        cleared.map_err(|error| OpenError::Io { path: disk.path(&log_name(number)), error })?;
        Ok(Self { prepared: None, rest: Some(header), spares, grows_to: None })
    }
}

/// Overwrites the rest of a file with zeros, so that records of a torn write cannot follow new ones.
fn clear(file: &dyn DiskFile, from: u32, to: u32) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let (mut offset, end) = (u64::from(from), u64::from(to));
    while offset < end {
        let length = ZEROS.len().min((end - offset) as usize);
        write_all(file, &ZEROS[..length], offset)?;
        offset += length as u64;
    }
    file.sync()
}
