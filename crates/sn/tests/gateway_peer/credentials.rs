//! Credentials of clients, in AUTH.

use tenbin_codec::Text;
use tenbin_sn::{Action, ClientOptions, Credentials, DropCause, End, Login};
use tenbin_sn_codec::v1_2::{Auth, Connect, Message, ReturnCode};

use crate::rig::{RETRY, Rig, connect, gateway};

fn auth<'a>(method: &'a str, data: &'a [u8]) -> Message<'a> {
    Message::Auth(Auth { reason: 0, method, data })
}

#[test]
fn credentials_are_user_name_and_password() {
    let gateway = gateway(|settings| settings.asks_credentials = true);
    let mut rig = Rig::accept(&gateway, connect("c"), None);
    assert_eq!(rig.action, Action::Continue);
    assert!(rig.sent().is_empty());
    // A repeated CONNECT changes nothing.
    rig.client(Message::Connect(connect("c")));
    assert_eq!(rig.action, Action::Continue);
    rig.client(auth(Auth::PLAIN, b"\0plant\0secret"));
    let connect = rig.open();
    assert_eq!(connect.user_name, Some(Text::try_from("plant").expect("legal")));
    assert_eq!(connect.password, Some("secret".into()));
    // A copy changes nothing either.
    rig.client(auth(Auth::PLAIN, b"\0plant\0other"));
    assert_eq!(rig.action, Action::Continue);
}

#[test]
fn credentials_come_before_the_will() {
    let gateway = gateway(|settings| settings.asks_credentials = true);
    let mut rig = Rig::accept(&gateway, Connect { will: true, ..connect("c") }, None);
    assert!(rig.sent().is_empty());
    rig.client(auth(Auth::PLAIN, b"\0plant\0secret"));
    assert_eq!(rig.sent(), [b"\x02\x06"]);
}

#[test]
fn client_without_credentials_is_refused() {
    let gateway = gateway(|settings| settings.asks_credentials = true);
    for data in [&b"plant"[..], b"\0\xFF\0secret"] {
        let mut rig = Rig::accept(&gateway, connect("c"), None);
        rig.client(auth(Auth::PLAIN, data));
        assert_eq!(rig.action, Action::End(End::Refused(ReturnCode::NotSupported)));
        assert_eq!(rig.sent(), [b"\x03\x05\x03"]);
    }
    let mut rig = Rig::accept(&gateway, connect("c"), None);
    rig.client(auth("SCRAM-SHA-256", b"\0plant\0secret"));
    assert_eq!(rig.action, Action::End(End::Refused(ReturnCode::NotSupported)));

    let mut rig = Rig::accept(&gateway, connect("c"), None);
    let _ = rig.sent();
    rig.pass(RETRY * 5);
    assert_eq!(rig.action, Action::End(End::Refused(ReturnCode::NotSupported)));
    assert_eq!(rig.sent(), [b"\x03\x05\x03"]);
}

#[test]
fn credentials_that_nobody_asked_for_are_dropped() {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.client(auth(Auth::PLAIN, b"\0plant\0secret"));
    rig.action = Action::OpenUpstream;
    assert_eq!(rig.drops(DropCause::Unexpected), 1);
    assert_eq!(rig.open().user_name, None);
}

#[test]
fn login_of_a_client_replaces_that_of_the_gateway() {
    let login = |user| Login { user: Text::try_from(user).expect("legal"), password: None };
    let gateway = gateway(|settings| settings.upstream_login = Some(login("gateway")));
    let mut rig = Rig::accept(&gateway, connect("c"), None);
    rig.peer.set_login(login("pump-7"));
    assert_eq!(rig.open().user_name, Some(login("pump-7").user));
}

#[test]
fn logins_do_not_show_their_passwords() {
    let login = Login { user: Text::from_static("plant"), password: Some("hidden".into()) };
    let credentials = Credentials { user: "plant".to_owned(), password: "hidden".into() };
    let options = ClientOptions { credentials: Some(credentials), ..ClientOptions::new("c") };
    let shown = format!("{login:?} {options:?}");
    assert!(shown.matches("***").count() == 2 && !shown.contains("hidden"), "{shown}");
}
