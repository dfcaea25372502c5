//! Sessions of clients with credentials.

use tenbin_sn_codec::v1_2::{Auth, Connect, Disconnect, Message, PingReq, ReturnCode};

use crate::client::{Client, gateway};
use crate::fake_broker::FakeBroker;

const FAREWELL: Message<'_> = Message::Disconnect(Disconnect { duration: None });

/// CONNECT and AUTH of a client, and the answer.
fn connect(client: &mut Client, clean_session: bool, password: &[u8]) -> ReturnCode {
    client.send(&Message::Connect(Connect { will: false, clean_session, duration: 60, client_id: "c" }));
    let data = Auth::plain_data("plant", password);
    client.send(&Message::Auth(Auth { reason: 0, method: Auth::PLAIN, data: &data }));
    match client.receive() {
        Message::ConnAck(code) => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sleeping_client_belongs_to_its_credentials() {
    let broker = FakeBroker::start();
    let listener = "credentials = true\nrebind = \"any\"\nconnects_per_second_per_address = 0";
    let gateway = gateway(broker.address, "", listener);
    let [mut sleeper, mut other, mut moved] = [(); 3].map(|()| Client::new(gateway.address()));
    assert_eq!(connect(&mut sleeper, false, b"secret"), ReturnCode::Accepted);
    assert_eq!(broker.connect().user_name.expect("a user").as_str(), "plant");
    sleeper.send(&Message::Disconnect(Disconnect { duration: Some(600) }));
    assert!(matches!(sleeper.receive(), Message::Disconnect(_)));

    // Who knows its id alone gets nothing.
    other.send(&Message::PingReq(PingReq { client_id: Some("c") }));
    assert_eq!(other.receive(), FAREWELL);
    assert_eq!(connect(&mut other, false, b"guess"), ReturnCode::Congestion);
    sleeper.send(&Message::PingReq(PingReq { client_id: Some("c") }));
    assert_eq!(sleeper.receive(), Message::PingResp, "it sleeps on");

    assert_eq!(connect(&mut moved, false, b"secret"), ReturnCode::Accepted);
    assert_eq!(gateway.stats().get("rebound"), 1);
}

#[test]
fn active_client_is_asked_for_equal_credentials_alone() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "credentials = true\nconnects_per_second_per_address = 0");
    let [mut lost, mut other, mut moved] = [(); 3].map(|()| Client::new(gateway.address()));
    assert_eq!(connect(&mut lost, true, b"secret"), ReturnCode::Accepted);
    assert_eq!(connect(&mut other, true, b"guess"), ReturnCode::Congestion);
    assert!(lost.is_silent(), "it is not asked");
    // It does not answer, and has lost its session.
    assert_eq!(connect(&mut moved, true, b"secret"), ReturnCode::Accepted);
    assert_eq!(gateway.stats().get("taken_over"), 1);
}
