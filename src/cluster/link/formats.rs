//! Versions of the formats in a copy, and which of them a node reads.

use serde::{Deserialize, Serialize};
use tenbin_store::{mirror, spool, state};

/// Versions of formats. 0: the node has not told it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Formats {
    /// Files of the log of messages.
    pub(crate) log: u32,
    /// Tables of the state.
    pub(crate) state: u32,
    /// Bans of operators, and topic ids of MQTT-SN.
    pub(crate) small_files: u32,
    /// Operations of the mirror.
    pub(crate) mirror: u32,
}

/// The oldest and the newest formats that a node reads, both included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Readable {
    pub(crate) oldest: Formats,
    pub(crate) newest: Formats,
}

impl Formats {
    /// Formats that this program writes.
    pub(crate) const OWN: Self = Self {
        log: spool::FORMAT_VERSION,
        state: state::FORMAT_VERSION,
        small_files: mirror::SMALL_FILES_VERSION,
        mirror: mirror::OPERATIONS_VERSION,
    };

    fn named(self) -> [(&'static str, u32); 4] {
        [("log", self.log), ("state", self.state), ("small_files", self.small_files), ("mirror", self.mirror)]
    }
}

impl Readable {
    /// Formats that this program reads. A format whose version grows keeps its oldest readable one here.
    pub(crate) const OWN: Self = Self { oldest: Formats::OWN, newest: Formats::OWN };

    /// The first of a leader's formats that a node with this cannot read, in words; `None` = it reads all of them.
    pub(crate) fn unreadable(&self, leader: &Formats) -> Option<String> {
        let ranges = self.oldest.named().into_iter().zip(self.newest.named());
        let mut all = leader.named().into_iter().zip(ranges);
        all.find_map(|((name, written), ((_, oldest), (_, newest)))| {
            let is_read = written > 0 && (oldest..=newest).contains(&written);
            (!is_read).then(|| match (written, newest) {
                (0, _) => format!("the leader does not tell its version of the format {name:?}"),
                (_, 0) => format!("it does not tell which versions of the format {name:?} it reads"),
                _ => format!(
                    "the leader writes version {written} of the format {name:?}, and it reads {oldest} to {newest}"
                ),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(log: u32, state: u32) -> Formats {
        Formats { log, state, small_files: 1, mirror: 1 }
    }

    #[test]
    fn newer_node_reads_an_older_leader_and_not_the_reverse() {
        let (old, new) = (formats(1, 1), formats(2, 1));
        let of_old = Readable { oldest: old, newest: old };
        let of_new = Readable { oldest: old, newest: new };
        assert_eq!([of_new.unreadable(&old), of_new.unreadable(&new), of_old.unreadable(&old)], [None, None, None]);
        let unreadable = of_old.unreadable(&new).expect("it cannot");
        assert_eq!(unreadable, "the leader writes version 2 of the format \"log\", and it reads 1 to 1");
        let dropped = Readable { oldest: new, newest: new };
        assert!(dropped.unreadable(&old).is_some_and(|words| words.contains("reads 2 to 2")));
    }

    #[test]
    fn each_format_counts_and_an_untold_one_is_unreadable() {
        assert_eq!(Readable::OWN.unreadable(&Formats::OWN), None);
        for (at, name) in ["log", "state", "small_files", "mirror"].into_iter().enumerate() {
            let mut written = [1; 4];
            written[at] = 9;
            let [log, state, small_files, mirror] = written;
            let words = Readable::OWN.unreadable(&Formats { log, state, small_files, mirror }).expect("version 9");
            assert!(words.contains(name), "{words}");
        }
        let untold = serde_json::from_str::<Readable>("{}").expect("keys have defaults");
        assert!(untold.unreadable(&Formats::OWN).is_some_and(|words| words.contains("does not tell which")));
        assert!(Readable::OWN.unreadable(&Formats::default()).is_some_and(|words| words.contains("leader does not")));
    }
}
