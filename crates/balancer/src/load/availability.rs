/// Whether a client can take messages now. A pick chooses among the members of the best availability in the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Availability {
    /// Connected, with room in its queue and quota left.
    #[default]
    Ready = 0,
    /// Connected, but its queue is full or its quota used up: chosen only if no member is `Ready`.
    Full = FULL,
    /// Not connected, its session kept: chosen only if every member is `Offline`; the message then waits for it.
    Offline = OFFLINE,
}

impl Availability {
    /// Converts a discriminant.
    pub(super) fn of(discriminant: u8) -> Self {
        match discriminant {
            FULL => Self::Full,
            OFFLINE => Self::Offline,
            _ => Self::Ready,
        }
    }
}

const FULL: u8 = 1;
const OFFLINE: u8 = 3;
