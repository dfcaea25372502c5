/// Secret key of the hash of ordering keys, topics and Client Identifiers, by which share groups choose.
pub(crate) type HashKey = [u8; 16];
