//! Illegal first packets, in place of CONNECT.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, hex};

#[test]
fn mqtt_3_1_4_1_an_illegal_connect_is_refused_and_closed() {
    let config = ConfigFile::logging_all();
    let broker = BrokerProcess::start(&["--config", config.path()]);
    let mut wrong = Vec::new();
    for (what, bytes, answer, word) in CASES {
        let logged = broker.log().all().len();
        let said = converse(broker.address(), &hex(bytes));
        let fits = match answer {
            Close => said.as_deref() == Ok(&[]),
            Bytes(bytes) => said.as_ref() == Ok(&hex(bytes)),
            Refusal(code) => match said.as_deref() {
                Ok([0x20, _, session_present, byte, ..]) => (session_present, byte) == (&0, code),
                said => said == Ok(&[]),
            },
        };
        if !fits {
            wrong.push(format!("{what}: {said:02X?}"));
        }
        let told = || broker.log().all()[logged..].iter().any(|line| line.contains(word));
        if !within(PATIENCE, told) {
            wrong.push(format!("{what}: {word} is missing in the log: {:?}", &broker.log().all()[logged..]));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    broker.assert_serves();
}

enum Answer {
    /// Closed without an answer.
    Close,
    /// These bytes, then closed.
    Bytes(&'static str),
    /// CONNACK of 5.0 with this code, or nothing, then closed.
    Refusal(u8),
}
use Answer::{Bytes, Close, Refusal};

/// Name, bytes to send, expected answer, and a word of the log line.
#[rustfmt::skip]
const CASES: &[(&str, &str, Answer, &str)] = &[
    ("PUBLISH first",          "30 03 00 01 61",                                    Close, "MQTT-3.1.0-1"),
    ("PINGREQ first",          "C0 00",                                             Close, "MQTT-3.1.0-1"),
    ("CONNACK first",          "20 02 00 00",                                       Close, "MQTT-3.1.0-1"),
    ("DISCONNECT first [MQTT-3.14.0-1]", "E0 00",                                   Close, "MQTT-3.1.0-1"),
    ("AUTH first",             "F0 00",                                             Close, "MQTT-3.1.0-1"),
    ("a request of HTTP",      "47 45 54 20 2F 20 48 54 54 50 2F 31 2E 31 0D 0A 0D 0A", Close, "MQTT-3.1.0-1"),
    ("a hello of TLS",         "16 03 01 00 05 01 00 00 01 00",                     Close, "MQTT-2.1.3-1"),
    ("zeros",                  "00 00 00 00",                                       Close, "§2.1.2"),
    ("256 MiB announced",      "10 FF FF FF 7F",                                    Refusal(0x95), "MQTT-3.2.2-15"),
    ("length of 5 bytes",      "10 FF FF FF FF 7F",                                 Close, "MQTT-1.5.5-1"),

    ("another protocol [MQTT-3.1.2-1]", "10 0D 00 04 4D 51 54 58 05 02 00 3C 00 00 00", Refusal(0x84), "MQTT-3.1.2-1"),
    ("version 6 [MQTT-3.1.2-2]", "10 0D 00 04 4D 51 54 54 06 02 00 3C 00 00 00",    Refusal(0x84), "MQTT-3.1.2-2"),
    ("3.1.1 by the name of 3.1", "10 0F 00 06 4D 51 49 73 64 70 04 02 00 3C 00 01 63", Bytes("20 02 00 01"), "MQTT-3.1.2-2"),
    ("version 3",              "10 0C 00 04 4D 51 54 54 03 02 00 3C 00 00",         Bytes("20 02 00 01"), "MQTT-3.1.2-2"),
    ("version 3 of a bridge",   "10 0D 00 04 4D 51 54 54 83 02 00 3C 00 01 63",     Bytes("20 02 00 01"), "MQTT-3.1.2-2"),
    ("version 6 of a bridge",   "10 0D 00 04 4D 51 54 54 86 02 00 3C 00 01 63",     Bytes("20 02 00 01"), "MQTT-3.1.2-2"),

    ("reserved flag",          "10 0D 00 04 4D 51 54 54 05 03 00 3C 00 00 00",      Refusal(0x81), "MQTT-3.1.2-3"),
    ("reserved flag, 3.1.1",   "10 0C 00 04 4D 51 54 54 04 03 00 3C 00 00",         Close, "MQTT-3.1.2-3"),
    ("Will QoS without Will [MQTT-3.1.2-11]", "10 0D 00 04 4D 51 54 54 05 0A 00 3C 00 00 00", Refusal(0x81), "MQTT-3.1.2-11"),
    ("Will Retain without Will [MQTT-3.1.2-13]", "10 0D 00 04 4D 51 54 54 05 22 00 3C 00 00 00", Refusal(0x81), "MQTT-3.1.2-1"),
    ("Will QoS 3 [MQTT-3.1.2-12]", "10 14 00 04 4D 51 54 54 05 1E 00 3C 00 00 01 63 00 00 01 77 00 00", Refusal(0x81), "MQTT-3.1.2-1"),
    ("Will without its fields [MQTT-3.1.2-9]", "10 0E 00 04 4D 51 54 54 05 06 00 3C 00 00 01 63", Refusal(0x81), "§2.1.4"),
    ("Will to a wildcard",     "10 14 00 04 4D 51 54 54 05 06 00 3C 00 00 01 63 00 00 01 23 00 00", Refusal(0x81), "MQTT"),
    ("Will with a Topic Alias", "10 17 00 04 4D 51 54 54 05 06 00 3C 00 00 01 63 03 23 00 01 00 01 77 00 00", Refusal(0x82), "§2.2.2.2"),
    ("password without user name, 3.1.1", "10 10 00 04 4D 51 54 54 04 42 00 3C 00 01 63 00 01 70", Close, "MQTT-3.1.2-22"),
    ("no user name behind its flag [MQTT-3.1.2-17]", "10 0E 00 04 4D 51 54 54 05 82 00 3C 00 00 01 63", Close, "MQTT-3.1.3-12"),
    ("user name without its flag [MQTT-3.1.2-16]", "10 11 00 04 4D 51 54 54 05 02 00 3C 00 00 01 63 00 01 75", Refusal(0x81), "§2.1.4"),

    ("client id that is no UTF-8 [MQTT-3.1.3-4]", "10 0F 00 04 4D 51 54 54 05 02 00 3C 00 00 02 C3 28", Refusal(0x81), "MQTT-1.5.4-1"),
    ("client id of no UTF-8, 3.1.1", "10 0E 00 04 4D 51 54 54 04 02 00 3C 00 02 C3 28", Close, "MQTT-1.5.4-1"),
    ("user name of no UTF-8 [MQTT-3.1.3-12]", "10 12 00 04 4D 51 54 54 05 82 00 3C 00 00 01 63 00 02 C3 28", Close, "MQTT-3.1.3-12"),
    ("user property of no UTF-8 [MQTT-1.5.7-1]", "10 16 00 04 4D 51 54 54 05 02 00 3C 08 26 00 02 C3 28 00 01 61 00 01 63", Refusal(0x81), "MQTT-1.5.4-1"),
    ("U+0000 in the client id", "10 0E 00 04 4D 51 54 54 05 02 00 3C 00 00 01 00",  Refusal(0x81), "MQTT-1.5.4-2"),

    ("Session Expiry twice",   "10 17 00 04 4D 51 54 54 05 02 00 3C 0A 11 00 00 00 01 11 00 00 00 01 00 00", Refusal(0x82), "§2.2.2.2"),
    ("Receive Maximum 0",      "10 10 00 04 4D 51 54 54 05 02 00 3C 03 21 00 00 00 00", Refusal(0x82), "§2.2.2.2"),
    ("Maximum Packet Size 0",  "10 12 00 04 4D 51 54 54 05 02 00 3C 05 27 00 00 00 00 00 00", Refusal(0x82), "§2.2.2.2"),
    ("Request Problem Information 2", "10 0F 00 04 4D 51 54 54 05 02 00 3C 02 17 02 00 00", Refusal(0x82), "§2.2.2.2"),
    ("Request Response Information 2", "10 0F 00 04 4D 51 54 54 05 02 00 3C 02 19 02 00 00", Refusal(0x82), "§2.2.2.2"),
    ("unknown property",       "10 0F 00 04 4D 51 54 54 05 02 00 3C 02 7F 00 00 00", Refusal(0x81), "§2.2.2.2"),
    ("property of PUBLISH",    "10 0F 00 04 4D 51 54 54 05 02 00 3C 02 01 00 00 00", Refusal(0x82), "§2.2.2.2"),
    ("Authentication Data alone", "10 11 00 04 4D 51 54 54 05 02 00 3C 04 16 00 01 61 00 00", Refusal(0x82), "§3.1.2.11"),
    ("Authentication Method [MQTT-4.12.0-1]", "10 11 00 04 4D 51 54 54 05 02 00 3C 04 15 00 01 61 00 00", Refusal(0x8C), "refused"),
    ("bytes left",             "10 0E 00 04 4D 51 54 54 05 02 00 3C 00 00 00 00",   Refusal(0x81), "§2.1.4"),
    ("client id past the end", "10 0E 00 04 4D 51 54 54 05 02 00 3C 00 00 09 63",   Refusal(0x81), "§2.1.4"),
];

#[test]
fn mqtt_3_1_4_6_packets_after_a_refused_connect_are_ignored() {
    let broker = BrokerProcess::start(&[]);
    let mut witness = broker.v5("witness");
    witness.subscribe("#", tenbin_codec::QoS::AtMostOnce);
    let refused = hex("10 11 00 04 4D 51 54 54 05 02 00 3C 04 15 00 01 61 00 00");
    let publish = hex("30 04 00 01 61 00");
    let said = converse(broker.address(), &[refused, publish].concat()).expect("a closed connection");
    assert!(said.is_empty() || said[3] == 0x8C, "{said:02X?}");
    witness.expect_nothing_waiting();
}

/// Sends bytes and reads until the broker closes, which must not wait for more.
fn converse(address: SocketAddr, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream.write_all(bytes).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    let mut said = Vec::new();
    stream.read_to_end(&mut said).map_err(|error| format!("not closed: {error}; {said:02X?}"))?;
    Ok(said)
}

fn within(patience: Duration, holds: impl Fn() -> bool) -> bool {
    let until = std::time::Instant::now() + patience;
    while std::time::Instant::now() < until {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
