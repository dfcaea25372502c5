use alloc::vec::Vec;

use crate::DecodeError;
use crate::reader::Reader;

/// ADVERTISE (§5.4.1): a gateway announces itself to all clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advertise {
    /// Id of the gateway.
    pub gateway_id: u8,
    /// Seconds until the next ADVERTISE.
    pub duration: u16,
}

/// SEARCHGW (§5.4.2): a client looks for a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchGw {
    /// Hops that the message may travel; 0 = all.
    pub radius: u8,
}

/// GWINFO (§5.4.3): the answer to SEARCHGW, from a gateway or from a client that knows one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GwInfo<'a> {
    /// Id of the gateway.
    pub gateway_id: u8,
    /// Address of the gateway; empty if the gateway itself answers.
    pub address: &'a [u8],
}

impl Advertise {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, DecodeError> {
        let advertise = Self { gateway_id: body.u8()?, duration: body.u16()? };
        body.finish()?;
        Ok(advertise)
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.push(self.gateway_id);
        out.extend_from_slice(&self.duration.to_be_bytes());
    }
}

impl SearchGw {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, DecodeError> {
        let search = Self { radius: body.u8()? };
        body.finish()?;
        Ok(search)
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.push(self.radius);
    }
}

impl<'a> GwInfo<'a> {
    pub(super) fn decode(mut body: Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self { gateway_id: body.u8()?, address: body.rest() })
    }

    pub(super) fn len(&self) -> usize {
        1 + self.address.len()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.gateway_id);
        out.extend_from_slice(self.address);
    }
}
