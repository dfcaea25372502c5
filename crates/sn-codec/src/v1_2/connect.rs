use alloc::vec::Vec;

use super::flags::Flags;
use crate::DecodeError;
use crate::reader::Reader;

/// ProtocolId of MQTT-SN 1.2.
pub const PROTOCOL_ID: u8 = 0x01;

/// CONNECT (§5.4.4): a client sets up its connection.
///
/// ```text
///   Flags: Will, CleanSession | ProtocolId | Duration (2) | ClientId
/// ```
///
/// The specification allows client ids of 1 to 23 bytes. The codec accepts every length; limits are the gateway's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The client has a Will: the gateway asks for it.
    pub will: bool,
    /// Discard subscriptions and Will of earlier connections.
    pub clean_session: bool,
    /// Keep alive in seconds; 0 = off.
    pub duration: u16,
    /// Identifies the client.
    pub client_id: &'a str,
}

impl<'a> Connect<'a> {
    pub(super) fn decode(mut body: Reader<'a>) -> Result<Self, DecodeError> {
        let flags = Flags(body.u8()?);
        // Before all other fields, whose place depends on the version.
        match body.u8()? {
            PROTOCOL_ID => {}
            id => return Err(DecodeError::ProtocolId(id)), // [SN-CONNECT-1]
        }
        Ok(Self {
            will: flags.will(),
            clean_session: flags.clean_session(),
            duration: body.u16()?,
            client_id: body.rest_text()?,
        })
    }

    pub(super) fn len(&self) -> usize {
        4 + self.client_id.len()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let flags = Flags::default().with_will(self.will).with_clean_session(self.clean_session);
        let [high, low] = self.duration.to_be_bytes();
        out.extend_from_slice(&[flags.0, PROTOCOL_ID, high, low]);
        out.extend_from_slice(self.client_id.as_bytes());
    }
}
