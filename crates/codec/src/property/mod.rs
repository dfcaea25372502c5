//! The 27 properties of MQTT 5.0 (§2.2.2): reading and writing.
//!
//! The decoder of each packet decides which properties are legal there: those that its `match` names.

mod read;
mod write;

pub(crate) use read::{Property, PropertyReader};
pub(crate) use write::{PropertyWriter, put_properties};

use crate::Text;

/// User Property: a name and a value defined by the application. Names may repeat, and their order is preserved
/// `[MQTT-3.3.2-18]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UserProperty {
    /// The name.
    pub name: Text,
    /// The value.
    pub value: Text,
}

impl UserProperty {
    /// From two texts.
    pub fn new(name: Text, value: Text) -> Self {
        Self { name, value }
    }
}
