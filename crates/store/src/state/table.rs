/// What is kept apart. The meaning of keys and values is their writers' matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// What is about all: the format version, counters. First, so that the version is found at once.
    Meta = 0,
    /// Sessions.
    Sessions = 1,
    /// Their subscriptions.
    Subscriptions = 2,
    /// Retained messages.
    Retained = 3,
    /// Wills.
    Wills = 4,
    /// Remembered speeds.
    Speeds = 5,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Meta, Self::Sessions, Self::Subscriptions, Self::Retained, Self::Wills, Self::Speeds];

    /// As errors and logs say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Sessions => "sessions",
            Self::Subscriptions => "subscriptions",
            Self::Retained => "retained",
            Self::Wills => "wills",
            Self::Speeds => "speeds",
        }
    }
}
