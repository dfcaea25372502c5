//! Where a log goes on when it is opened.

use std::io;

use super::{
    disk::{Disk, DiskFile, write_all},
    recovery::{Examined, OpenError, open},
    segment::{Header, log_name, prepare},
};

/// What the committer begins with.
#[derive(Default)]
pub(super) struct Beginning {
    /// The file of the next segment.
    pub(super) prepared: Option<(u32, Box<dyn DiskFile>)>,
    /// There is no room for one: the log goes on in the rest of the last segment.
    pub(super) rest: Option<Header>,
    /// Files to be used again.
    pub(super) spares: Vec<String>,
}

impl Beginning {
    /// `header` is that of the next segment, but for its number.
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
            Ok(file) => return Ok(Self { prepared: Some((number, file)), rest: None, spares }),
            // A log that has begun has a file.
            Err(error) if is_new => return Err(OpenError::Io { path: disk.path(&log_name(number)), error }),
            Err(_) => {}
        }
        let number = segments.newest();
        let (window, header) = open(disk, number)?;
        let cleared = clear(window.file(), examined.end, header.file_bytes);
        cleared.map_err(|error| OpenError::Io { path: disk.path(&log_name(number)), error })?;
        Ok(Self { prepared: None, rest: Some(header), spares })
    }
}

/// Zeros where records of a torn write may be: they must not follow what is appended now.
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
