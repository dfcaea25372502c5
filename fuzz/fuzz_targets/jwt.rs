//! Logs in with JSON Web Tokens: any bytes, or any header and claims with a right signature.
//!
//! ```text
//!   how the token comes | the token, or header and claims, with a line feed between them
//! ```
//!
//! No token without the secret is accepted. A signed one is accepted only with its algorithm, and within its time.
#![no_main]

use std::sync::LazyLock;
use std::time::SystemTime;

use base64ct::{Base64UrlUnpadded, Encoding};
use libfuzzer_sys::fuzz_target;
use ring::hmac;
use serde_json::{Map, Value};
use tenbin_broker::fuzzing::{Login, Logins};

const SECRET: &[u8] = b"a secret of 32 bytes and a few more, never in the input";

static LOGINS: LazyLock<Logins> = LazyLock::new(|| {
    let file = tempfile::NamedTempFile::new().expect("ours to write");
    std::fs::write(file.path(), SECRET).expect("ours to write");
    let logins = Logins::new(&format!(
        "[[listeners]]\nname = \"fuzz\"\naddress = \"127.0.0.1:0\"\nauth = [\"tokens\"]\n\
         [[auth]]\nname = \"tokens\"\nkind = \"jwt\"\nsecret_file = {:?}\n",
        file.path()
    ));
    let token = signed(br#"{"alg":"HS256"}"#, br#"{"sub":"alice","exp":4000000000}"#);
    assert_eq!(logins.login(token.as_bytes(), false), Login::Accepted(Some("alice".to_owned())));
    logins
});

/// A token by the secret.
fn signed(header: &[u8], claims: &[u8]) -> String {
    let message = [header, claims].map(Base64UrlUnpadded::encode_string).join(".");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), message.as_bytes());
    format!("{message}.{}", Base64UrlUnpadded::encode_string(signature.as_ref()))
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, text)) = data.split_first() else { return };
    let is_method = how & 1 == 1;
    if how & 2 == 0 {
        let login = LOGINS.login(text, is_method);
        assert!(matches!(login, Login::Refused(_)), "{login:?}");
        return;
    }
    let Some(cut) = text.iter().position(|byte| *byte == b'\n') else { return };
    let (header, claims) = (&text[..cut], &text[cut + 1..]);
    let Login::Accepted(user) = LOGINS.login(signed(header, claims).as_bytes(), is_method) else { return };
    let object = |text| serde_json::from_slice::<Map<String, Value>>(text).expect("an accepted token is JSON");
    let (header, claims) = (object(header), object(claims));
    assert_eq!(header.get("alg").and_then(Value::as_str), Some("HS256"));
    let user = user.expect("a token has a user");
    match claims.get("sub") {
        Some(Value::String(subject)) => assert_eq!(*subject, user),
        Some(Value::Number(subject)) => assert_eq!(subject.to_string(), user),
        other => panic!("user {user:?} from {other:?}"),
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let time = |name| claims.get(name).map(|time: &Value| time.as_f64().expect("a number"));
    // An hour more than any leeway.
    assert!(time("exp").is_some_and(|expiry| expiry > now - 3600.0), "{claims:?}");
    assert!(time("nbf").is_none_or(|begin| begin < now + 3600.0), "{claims:?}");
});
