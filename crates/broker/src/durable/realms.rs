//! The realms of listeners, remembered across runs.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Duration;

use tenbin_store::state::Table;

use super::bytes::{Fields, RecordError, put_bytes};
use super::{Durable, meta};
use crate::auth::KnownRealm;

impl Durable {
    /// The realms of the last run; none if they cannot be read.
    pub(crate) fn realms(&self) -> Vec<KnownRealm> {
        // The broker does not start if the scan fails: see `load`.
        let Ok(Some(record)) = meta(&self.state, REALMS_KEY) else { return Vec::new() };
        decode(&record).unwrap_or_else(|error| {
            let directory = self.directory().display();
            tracing::warn!(%directory, %error, "cannot read the realms of the last run: listeners without the key `realm` get new ones");
            Vec::new()
        })
    }

    /// Remembers the realms of this run. Waits for the disk, so that no later configuration meets older realms.
    pub(crate) fn keep_realms(&self, realms: &[KnownRealm]) {
        let written = self.state.put(Table::Meta, REALMS_KEY.into(), encode(realms).into());
        if !self.state.wait(written, PATIENCE) {
            tracing::warn!(
                directory = %self.directory().display(),
                "the realms of the listeners cannot be written: the next start may not know moved password files"
            );
        }
    }
}

/// Encodes the version, then listener, file, realm and label of each; 0 = no label.
fn encode(realms: &[KnownRealm]) -> Vec<u8> {
    let mut record = vec![VERSION];
    for KnownRealm { listener, file, realm, label } in realms {
        put_bytes(&mut record, listener.as_bytes());
        put_bytes(&mut record, file.as_os_str().as_bytes());
        put_bytes(&mut record, realm.as_bytes());
        record.push(u8::from(label.is_some()));
        label.iter().for_each(|label| put_bytes(&mut record, label.as_bytes()));
    }
    record
}

pub(super) fn decode(record: &[u8]) -> Result<Vec<KnownRealm>, RecordError> {
    let mut fields = Fields::of(record, VERSION)?;
    let mut realms = Vec::new();
    while !fields.is_empty() {
        let listener = fields.str("listener")?.into();
        let file = std::ffi::OsString::from_vec(fields.bytes()?.to_vec()).into();
        let realm = fields.str("realm")?.into();
        let label = match fields.u8()? {
            0 => None,
            _ => Some(fields.str("label")?.into()),
        };
        realms.push(KnownRealm { listener, file, realm, label });
    }
    Ok(realms)
}

/// How long a start or a reload waits for the disk.
const PATIENCE: Duration = Duration::from_secs(2);
const VERSION: u8 = 2;
pub(super) const REALMS_KEY: &[u8] = b"realms";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_realms_are_decoded_unchanged() {
        let realm = |listener: &str, file: &str, realm: &str, label: Option<&str>| KnownRealm {
            listener: listener.into(),
            file: file.into(),
            realm: realm.into(),
            label: label.map(Into::into),
        };
        for realms in [vec![], vec![realm("a", "/etc/pw", "pw", Some("x")), realm("b", "/x", "", None)]] {
            let record = encode(&realms);
            assert_eq!(decode(&record), Ok(realms));
            assert!(record.len() == 1 || decode(&record[..record.len() - 1]).is_err());
        }
    }
}
