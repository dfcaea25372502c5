/// Tables of the state. Their writers define the meaning of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// Data about the store: format version, counters. First, so that the version is found at once.
    Meta = 0,
    /// Sessions.
    Sessions = 1,
    /// Subscriptions of sessions.
    Subscriptions = 2,
    /// Retained messages.
    Retained = 3,
    /// Will Messages.
    Wills = 4,
    /// Measured speeds of clients that left share groups.
    Speeds = 5,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 6] =
        [Self::Meta, Self::Sessions, Self::Subscriptions, Self::Retained, Self::Wills, Self::Speeds];

    /// Name for errors and logs.
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
