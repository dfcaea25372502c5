use base64ct::{Base64, Encoding as _};
use tenbin_broker::auth::{PasswordFile, Secrets};

use crate::broker::Tested;

/// Signed by `SECRET`, of the user `meter`, who may publish to `plant/#`.
const TOKEN: &str = concat!(
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.",
    "eyJzdWIiOiJtZXRlciIsImFjbCI6eyJwdWIiOlsicGxhbnQvIyJdfX0.",
    "Mrj72qOP-lN9GP45rkaeyRFhH5sEQDyh9CypyF-yHAs"
);
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A broker with users and rights, by passwords and tokens.
fn guarded() -> Tested {
    let directory = tempfile::tempdir().expect("a directory");
    let (users, secret) = (directory.path().join("users"), directory.path().join("secret"));
    PasswordFile::set(&users, "anna", &Secrets::new(b"pass:word", false).expect("legal")).expect("written");
    std::fs::write(&secret, SECRET).expect("written");
    let config = format!(
        "[[listeners]]\naddress = \"127.0.0.1:0\"\nauth = [\"passwords\", \"tokens\"]\n\
         [[auth]]\nname = \"passwords\"\nkind = \"passwords\"\nfile = {users:?}\n\
         [[auth]]\nname = \"tokens\"\nkind = \"jwt\"\nsecret_file = {secret:?}\nrequire_expiry = false\n\
         [[acl]]\nuser = \"anna\"\nallow = \"all\"\ntopic = \"plant/#\"\n\
         [[acl]]\nuser = \"anna\"\nallow = \"publish\"\ntopic = \"written/%u\"\n"
    );
    Tested::start(&config, Default::default())
}

fn basic(credentials: &str) -> String {
    format!("Authorization: Basic {}\r\n", Base64::encode_string(credentials.as_bytes()))
}

#[test]
fn users_have_the_rights_of_the_broker() {
    let tested = guarded();
    let (anna, meter) = (basic("anna:pass:word"), format!("Authorization: Bearer {TOKEN}\r\n"));
    let mut http = tested.http();
    assert_eq!(http.post("/topics/plant/1?retain=true", &anna, b"x").status, 204);
    assert_eq!(http.post("/topics/written/anna", &anna, b"x").status, 204);
    http.post("/topics/other", &anna, b"x").expect(403, "\"other\"");
    http.post("/topics/$SYS/x", &anna, b"x").expect(403, "\"$SYS/x\"");
    let read = |http: &mut crate::http::Http, topic: &str, headers: &str| {
        http.send_request(&format!("GET /topics/{topic}"), headers, b"");
        http.receive()
    };
    assert_eq!(read(&mut http, "plant/1", &anna).status, 200);
    read(&mut http, "written/anna", &anna).expect(403, "written/anna");
    // The same connection, as another user.
    assert_eq!(http.post("/topics/plant/1", &meter, b"x").status, 204);
    read(&mut http, "plant/1", &meter).expect(403, "plant/1");
    http.post("/topics/written/anna", &meter, b"x").expect(403, "written/anna");
}

#[test]
fn other_credentials_are_refused_with_401() {
    let tested = guarded();
    let mut http = tested.http();
    let wrong_token = format!("Authorization: Bearer {}x\r\n", TOKEN);
    for headers in ["", &basic("anna:wrong"), &basic("nobody:x"), "Authorization: Bearer none\r\n", &wrong_token] {
        let answer = http.post("/topics/plant/1", headers, b"x");
        answer.expect(401, "CONNECT");
        assert!(answer.head.contains("www-authenticate: Basic"), "{}", answer.head);
    }
    http.post("/topics/plant/1", "Authorization: Digest x\r\n", b"x").expect(401, "neither Basic nor Bearer");
    // The connection goes on.
    assert_eq!(http.post("/topics/plant/1", &basic("anna:pass:word"), b"x").status, 204);
}

#[test]
fn client_that_may_not_connect_sends_no_body() {
    let tested = guarded();
    let mut http = tested.http();
    http.send("POST /topics/plant/1 HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    http.receive().expect(401, "CONNECT");
}
