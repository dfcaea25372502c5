//! Feeds any bytes to the decoders of MQTT-SN messages and of a forwarder's envelope.
//!
//! A message that was read is written again, and reads the same. No byte more or less makes a message of its datagram.
//! An envelope is written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenbin_sn_codec::Forwarded;
use tenbin_sn_codec::v1_2::Message;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Message::decode(data) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert!(again.len() <= data.len(), "the shortest length is written");
        assert_eq!(Message::decode(&again), Ok(message));
        assert!(Message::decode(&data[..data.len() - 1]).is_err(), "it is cut");
        assert!(Message::decode(&[data, &[0]].concat()).is_err(), "it is padded");
        assert!(!Forwarded::is_envelope(data));
    }
    if let Ok(forwarded) = Forwarded::decode(data) {
        assert!(Forwarded::is_envelope(data) && !Forwarded::is_envelope(forwarded.message));
        let mut again = Vec::new();
        forwarded.encode(&mut again);
        assert_eq!(Forwarded::decode(&again), Ok(forwarded));
    }
});
