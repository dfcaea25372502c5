use bytes::{BufMut, Bytes};

use super::UserProperty;
use crate::varint::{put_counted, write_varint};
use crate::write_buffer::put_binary;
use crate::{PropertyId, QoS, Text};

/// Writes `Property Length | properties` with the properties that `fill` adds.
pub(crate) fn put_properties(out: &mut Vec<u8>, fill: impl FnOnce(&mut PropertyWriter<'_>)) {
    // A list beyond the largest Property Length also exceeds the Remaining Length: the packet is not written at all.
    let _ = put_counted(out, |bytes| fill(&mut PropertyWriter { bytes }));
}

/// Appends properties, and omits those that are `None`.
#[derive(Debug)]
pub(crate) struct PropertyWriter<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
}

impl PropertyWriter<'_> {
    pub(crate) fn flag(&mut self, id: PropertyId, value: Option<bool>) {
        self.u8(id, value.map(u8::from));
    }

    pub(crate) fn qos(&mut self, id: PropertyId, value: Option<QoS>) {
        self.u8(id, value.map(QoS::bits));
    }

    pub(crate) fn u16(&mut self, id: PropertyId, value: Option<u16>) {
        if let Some(value) = value {
            self.bytes.put_u8(id.value());
            self.bytes.put_u16(value);
        }
    }

    pub(crate) fn u32(&mut self, id: PropertyId, value: Option<u32>) {
        if let Some(value) = value {
            self.bytes.put_u8(id.value());
            self.bytes.put_u32(value);
        }
    }

    pub(crate) fn varint(&mut self, id: PropertyId, value: u32) {
        self.bytes.put_u8(id.value());
        write_varint(self.bytes, value);
    }

    pub(crate) fn text(&mut self, id: PropertyId, value: Option<&Text>) {
        if let Some(value) = value {
            self.bytes.put_u8(id.value());
            put_binary(self.bytes, value.as_bytes());
        }
    }

    pub(crate) fn binary(&mut self, id: PropertyId, value: Option<&Bytes>) {
        if let Some(value) = value {
            self.bytes.put_u8(id.value());
            put_binary(self.bytes, value);
        }
    }

    pub(crate) fn user(&mut self, properties: &[UserProperty]) {
        for property in properties {
            self.bytes.put_u8(PropertyId::UserProperty.value());
            put_binary(self.bytes, property.name.as_bytes());
            put_binary(self.bytes, property.value.as_bytes());
        }
    }

    fn u8(&mut self, id: PropertyId, value: Option<u8>) {
        if let Some(value) = value {
            self.bytes.put_u8(id.value());
            self.bytes.put_u8(value);
        }
    }
}
