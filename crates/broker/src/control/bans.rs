//! Bans that operators make while the broker runs. With a data directory they survive a restart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenbin_admin::{Answer, BanView, ControlError};

use super::Control;
use crate::config::Ban;
use crate::lifecycle::enforcement;

/// Bans that operators have made, by number.
#[derive(Debug, Default)]
pub(super) struct Bans {
    list: Vec<(u64, Ban)>,
    /// Number of the newest one.
    last: u64,
    /// `None` = they end with the broker.
    file: Option<PathBuf>,
}

/// The file of bans.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored<B> {
    last: u64,
    bans: Vec<B>,
}

impl Bans {
    /// Reads the bans that are stored in a data directory.
    ///
    /// # Errors
    /// The file cannot be read. The error names it.
    pub(super) fn load(directory: Option<&Path>) -> io::Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let path = directory.join(FILE);
        let cannot = |error: io::Error| io::Error::new(error.kind(), format!("bans: {}: {error}", path.display()));
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { file: Some(path), ..Self::default() });
            }
            text => text.map_err(cannot)?,
        };
        let invalid =
            |error: &dyn std::fmt::Display| cannot(io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
        let stored: Stored<Map<String, Value>> = serde_json::from_str(&text).map_err(|error| invalid(&error))?;
        let mut list = Vec::new();
        for mut ban in stored.bans {
            let number = ban.remove("number").and_then(|number| number.as_u64());
            let view = serde_json::from_value(Value::Object(ban)).map_err(|error| invalid(&error))?;
            list.push((number.unwrap_or_default(), ban_of(view).map_err(|error| invalid(&error))?));
        }
        let mut bans = Self { list, last: stored.last, file: Some(path) };
        bans.drop_expired();
        Ok(bans)
    }

    /// The file and its new content; `None`: the bans end with the broker.
    fn to_store(&self) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
        let Some(file) = &self.file else { return Ok(None) };
        let bans = self.list.iter().map(|(number, ban)| view(Some(*number), ban)).collect();
        let text = serde_json::to_vec_pretty(&Stored { last: self.last, bans })?;
        Ok(Some((file.clone(), text)))
    }

    fn drop_expired(&mut self) {
        let now = SystemTime::now();
        self.list.retain(|(_, ban)| ban.until.is_none_or(|until| until > now));
    }
}

impl Control {
    /// Bans of the configuration, and those made here.
    pub(super) fn list_bans(&self) -> Vec<BanView> {
        let configured = self.shared.admission.access.bans();
        let made = self.bans();
        let configured = configured.iter().map(|ban| view(None, ban));
        configured.chain(made.list.iter().map(|(number, ban)| view(Some(*number), ban))).collect()
    }

    pub(super) fn make_ban(&self, wanted: BanView) -> Answer<BanView> {
        check_sizes(&wanted)?;
        let ban = ban_of(wanted)?;
        let made = {
            let mut bans = self.bans();
            bans.drop_expired();
            if bans.list.len() >= BANS_MAX {
                return Err(ControlError::Conflict(format!("there are {BANS_MAX} bans")));
            }
            bans.last += 1;
            let number = bans.last;
            tracing::info!(?ban, number, "an operator bans clients");
            self.note_operator(&format!("ban {number} was made"));
            let made = view(Some(number), &ban);
            bans.list.push((number, ban));
            self.apply(&bans);
            made
        };
        self.store_bans()?;
        Ok(made)
    }

    pub(super) fn end_ban(&self, number: u64) -> Answer<()> {
        {
            let mut bans = self.bans();
            let before = bans.list.len();
            bans.list.retain(|(known, _)| *known != number);
            if bans.list.len() == before {
                return Err(ControlError::NotFound(format!("there is no ban {number} that was made here")));
            }
            tracing::info!(number, "an operator ends a ban");
            self.note_operator(&format!("ban {number} was ended"));
            bans.drop_expired();
            self.apply(&bans);
        }
        self.store_bans()
    }

    /// Puts the bans of the last run into effect, before clients connect.
    pub(super) fn restore_bans(&self) {
        self.shared.admission.access.set_further_bans(self.bans().list.iter().map(|(_, ban)| ban.clone()).collect());
    }

    /// Puts the bans into effect.
    fn apply(&self, bans: &Bans) {
        self.shared.admission.access.set_further_bans(bans.list.iter().map(|(_, ban)| ban.clone()).collect());
        enforcement::changed(&self.shared);
    }

    /// Stores the present bans, also in the copy on another machine. To be called without the lock of the bans: it waits for
    /// the disk, and for the copy.
    ///
    /// # Errors
    /// They cannot be stored, or not in the copy within [`COPIED_WITHIN`]. They are in effect all the same.
    fn store_bans(&self) -> Answer<()> {
        let is_copied = self.write_bans().and_then(|number| match (&self.shared.storage.durable, number) {
            (Some(durable), Some(number)) => durable.is_copied(number, COPIED_WITHIN),
            _ => Ok(true),
        });
        match is_copied {
            Ok(true) => Ok(()),
            Ok(false) => {
                tracing::warn!("changed bans are not on the second copy yet: a takeover may forget the change");
                let reason =
                    "in effect and stored at this node, and not yet on the second copy: it gets there with the copy";
                Err(ControlError::Unavailable(reason.to_owned()))
            }
            Err(error) => {
                tracing::error!(%error, "changed bans cannot be stored: a restart forgets the change");
                Err(ControlError::Unavailable(format!("in effect until the broker ends, but not stored: {error}")))
            }
        }
    }

    /// Writes the present bans. Returns the number for [`Durable::is_copied`](crate::durable::Durable::is_copied).
    fn write_bans(&self) -> io::Result<Option<u64>> {
        // One at a time: the newest bans come last, also to the copy.
        let _writing = self.writing_bans.lock().unwrap_or_else(PoisonError::into_inner);
        let to_store = self.bans().to_store()?;
        let Some((path, text)) = to_store else { return Ok(None) };
        let file = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        write(&path, &text).map_err(file)?;
        self.shared.storage.durable.as_ref().map_or(Ok(None), |durable| durable.replaced(FILE, &text))
    }
}

/// Replaces a file durably.
pub(super) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Rejects a ban of a longer name than a client can have.
fn check_sizes(wanted: &BanView) -> Answer<()> {
    for (key, text) in [("user", &wanted.user), ("client", &wanted.client)] {
        if text.as_ref().is_some_and(|text| text.len() > TEXT_BYTES_MAX) {
            return Err(ControlError::Invalid(format!("{key}: needs to have at most {TEXT_BYTES_MAX} bytes")));
        }
    }
    Ok(())
}

fn ban_of(wanted: BanView) -> Answer<Ban> {
    let BanView { number: _, user, client, network, certificate, until } = wanted;
    let invalid = |key: &str, reason: &dyn std::fmt::Display| ControlError::Invalid(format!("{key}: {reason}"));
    let network = network.as_deref().map(str::parse).transpose().map_err(|error| invalid("network", &error))?;
    let certificate = certificate.as_deref().map(|text| {
        crate::config::fingerprint(text)
            .ok_or_else(|| invalid("certificate", &"needs to be a SHA-256 fingerprint of 64 hexadecimal digits"))
    });
    let until = until.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(u64::from(u32::MAX) * 4)));
    let ban = Ban { user, client_id: client, network, certificate: certificate.transpose()?, until };
    if ban.user.is_none() && ban.client_id.is_none() && ban.network.is_none() && ban.certificate.is_none() {
        return Err(ControlError::Invalid("a ban needs user, client, network or certificate".to_owned()));
    }
    Ok(ban)
}

fn view(number: Option<u64>, ban: &Ban) -> BanView {
    let since = |until: SystemTime| until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    BanView {
        number,
        user: ban.user.clone(),
        client: ban.client_id.clone(),
        network: ban.network.map(|network| network.to_string()),
        certificate: ban.certificate.clone(),
        until: ban.until.map(since),
    }
}

/// Wait for the copy on another machine.
const COPIED_WITHIN: Duration = Duration::from_secs(3);
/// The file in a data directory.
const FILE: &str = "bans.json";
/// Bans that operators may have at a time: each CONNECT is compared with all.
const BANS_MAX: usize = 10_000;
/// Bytes of a text in an MQTT packet.
const TEXT_BYTES_MAX: usize = 65_535;
