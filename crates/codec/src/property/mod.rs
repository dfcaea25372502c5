//! The 27 properties of MQTT 5.0 (§2.2.2): their identifiers, reading and writing.
//!
//! Which property may stand in which packet is decided where the packet is decoded: what its `match` does not
//! take has no place there.

mod id;
mod read;
mod write;

pub use id::PropertyId;
pub(crate) use read::{Property, PropertyReader};
pub(crate) use write::{PropertyWriter, put_properties};

use crate::Text;

/// A User Property: name and value, both the application's. Names may repeat and the order is kept
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
