//! Tokens by another implementation (PyJWT 2), in `vectors.json`, and wrong ones.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64ct::{Base64UrlUnpadded, Encoding};
use ring::hmac;
use serde_json::json;

use super::*;
use crate::Config;
use crate::auth::source::Kind;
use crate::auth::{Origin, TransportProtocol};
use crate::config::{AuthSource, SourceKind};

/// A source with one key.
struct Stage {
    directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A source with these keys of the configuration.
    fn source(&self, key: &str, file: &Path, more: &str) -> Result<Source, String> {
        let text = format!("[[auth]]\nname = \"tokens\"\nkind = \"jwt\"\n{key} = {file:?}\n{more}");
        let AuthSource { kind: SourceKind::Jwt(config), .. } = Config::parse(&text).unwrap().auth.remove(0) else {
            panic!("a source of this kind")
        };
        let kind = Kind::Jwt(Arc::new(Jwt::load(&config)?));
        Ok(Source { name: "tokens".into(), realm: "tokens".into(), place: 0, kind })
    }

    fn secret(&self, more: &str) -> Source {
        let file = self.file("secret", vectors()["secret"].as_str().unwrap());
        self.source("secret_file", &file, more).unwrap()
    }
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

/// `Ok`: the user; `Err`: the cause of the refusal, or "not mine".
async fn answer(source: &Source, token: &str) -> Result<String, String> {
    let request = AuthRequest {
        client_id: Text::from_static("c"),
        user_name: Some(Text::from_static("u")),
        password: Some(token.into()),
        origin: Origin::direct(SocketAddr::from(([127, 0, 0, 1], 1)).into(), None, TransportProtocol::Tcp),
        listener: "l".into(),
        method: None,
        data: None,
        current: None,
    };
    let Kind::Jwt(jwt) = &source.kind else { panic!("a source of this kind") };
    match jwt.answer(source, &request).await {
        Answer::Accept { identity, .. } => Ok(identity.user.unwrap().as_str().to_owned()),
        Answer::RefuseLogin(refusal) => Err(refusal.cause.into_owned()),
        Answer::NotMine => Err("not mine".to_owned()),
        _ => panic!("no exchange"),
    }
}

/// A token by the secret of the vectors.
fn signed(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| Base64UrlUnpadded::encode_string(value.to_string().as_bytes());
    let message = format!("{}.{}", part(header), part(claims));
    let secret = vectors()["secret"].as_str().unwrap().to_owned();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", Base64UrlUnpadded::encode_string(signature.as_ref()))
}

fn hs256() -> Value {
    json!({"alg": "HS256"})
}

#[tokio::test]
async fn every_algorithm_is_verified_with_its_own_key_only() {
    let (stage, vectors) = (Stage::new(), vectors());
    let mut sources = vec![("secret", stage.secret(""))];
    for name in ["rsa", "p256", "p384", "ed25519"] {
        let file = stage.file(name, vectors["pem"][name].as_str().unwrap());
        sources.push((name, stage.source("public_key", &file, "").unwrap()));
    }
    let jwks = stage.file("jwks", &vectors["jwks"].to_string());
    let set = stage.source("jwks", &jwks, "").unwrap();
    for vector in vectors["tokens"].as_array().unwrap() {
        let (key, token) = (vector["key"].as_str().unwrap(), vector["token"].as_str().unwrap());
        for (name, source) in &sources {
            let expected =
                if *name == key { Ok("alice".to_owned()) } else { Err("wrong algorithm or signature".to_owned()) };
            assert_eq!(answer(source, token).await, expected, "{} with {name}", vector["alg"]);
        }
        let expected = if key == "secret" { Err("not mine".to_owned()) } else { Ok("alice".to_owned()) };
        assert_eq!(answer(&set, token).await, expected, "{} with the set", vector["alg"]);
        let (message, signature) = token.rsplit_once('.').unwrap();
        let other = if signature.starts_with('A') { "B" } else { "A" };
        let altered = format!("{message}.{other}{}", &signature[1..]);
        if key != "secret" {
            assert_eq!(answer(&set, &altered).await, Err("wrong algorithm or signature".to_owned()));
        }
    }
}

#[tokio::test]
async fn forged_and_illegal_tokens_are_refused() {
    let (stage, vectors) = (Stage::new(), vectors());
    let rsa = stage.file("rsa", vectors["pem"]["rsa"].as_str().unwrap());
    let rsa = stage.source("public_key", &rsa, "").unwrap();
    let wrong = Err("wrong algorithm or signature".to_owned());
    assert_eq!(answer(&rsa, vectors["bad"]["none"].as_str().unwrap()).await, wrong);
    assert_eq!(answer(&rsa, vectors["bad"]["rsa_key_as_secret"].as_str().unwrap()).await, wrong);
    let secret = stage.secret("");
    let good = signed(&hs256(), &json!({"sub": "alice", "exp": 9_999_999_999_u64}));
    assert_eq!(answer(&secret, &good).await, Ok("alice".to_owned()));
    let long = signed(&hs256(), &json!({"sub": "alice", "exp": 9_999_999_999_u64, "x": "x".repeat(1 << 20)}));
    let critical = signed(&json!({"alg": "HS256", "crit": ["x"]}), &json!({"sub": "alice", "exp": 9_999_999_999_u64}));
    for text in ["", "a", "a.b", "a.b.c", "..", &long, &critical, &good[1..], &format!("{good}."), &format!("{good}=")]
    {
        assert_eq!(answer(&secret, text).await, Err("not mine".to_owned()), "{:.80}", text);
    }
}

#[tokio::test]
async fn claims_decide_on_a_token_with_a_right_signature() {
    let stage = Stage::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let more =
        "issuer = \"i\"\naudience = \"a\"\nmust = { client_id = \"%c\", name = \"x-%u\" }\nuser_claim = \"who\"\n";
    let source = stage.secret(more);
    let good = || json!({"who": "w", "iss": "i", "aud": "a", "client_id": "c", "name": "x-u", "exp": now + 60});
    for (claim, value, expected) in [
        ("x", json!(1), Ok("w")),
        ("who", json!(7), Ok("7")),
        ("aud", json!(["b", "a"]), Ok("w")),
        ("exp", json!(now - 10), Ok("w")), // within the leeway
        ("nbf", json!(now + 10), Ok("w")),
        ("exp", json!(now - 60), Err("expired")),
        ("exp", json!(null), Err("a time is no number of seconds")),
        ("exp", json!(-1), Err("a time is no number of seconds")),
        ("exp", json!(1e300), Err("a time is no number of seconds")),
        ("nbf", json!(now + 60), Err("not valid yet")),
        ("iss", json!("other"), Err("not mine")),
        ("aud", json!("other"), Err("wrong aud")),
        ("aud", json!([]), Err("wrong aud")),
        ("client_id", json!("d"), Err("a required claim has another value")),
        ("name", json!("u"), Err("a required claim has another value")),
        ("who", json!(""), Err("no user")),
        ("who", json!(["w"]), Err("no user")),
        ("acl", json!({"pub": ["a#"]}), Err("acl has a rule that is not known")),
    ] {
        let mut claims = good();
        claims[claim] = value.clone();
        let expected = expected.map(ToOwned::to_owned).map_err(ToOwned::to_owned);
        assert_eq!(answer(&source, &signed(&hs256(), &claims)).await, expected, "{claim} {value}");
    }
    let endless = signed(&hs256(), &json!({"sub": "alice"}));
    assert_eq!(answer(&stage.secret(""), &endless).await, Err("no exp".to_owned()));
    assert_eq!(answer(&stage.secret("require_expiry = false"), &endless).await, Ok("alice".to_owned()));
}

/// The last key of the set signed the tokens.
#[tokio::test]
async fn token_without_kid_is_checked_with_few_keys() {
    let stage = Stage::new();
    let own = Base64UrlUnpadded::encode_string(vectors()["secret"].as_str().unwrap().as_bytes());
    let other = Base64UrlUnpadded::encode_string(&[7; 32]);
    let set = |count: usize, algorithm: &str| {
        let keys = (1..=count).map(|number| {
            let (key, algorithm) = if number == count { (&own, "HS256") } else { (&other, algorithm) };
            json!({"kty": "oct", "kid": number.to_string(), "alg": algorithm, "k": key})
        });
        let file = stage.file("jwks", &json!({"keys": keys.collect::<Vec<_>>()}).to_string());
        stage.source("jwks", &file, "").unwrap()
    };
    let claims = json!({"sub": "alice", "exp": 9_999_999_999_u64});
    let (without, with) = (signed(&hs256(), &claims), signed(&json!({"alg": "HS256", "kid": "64"}), &claims));
    assert_eq!(answer(&set(KEYS_TRIED_MAX, "HS256"), &without).await, Ok("alice".to_owned()));
    let refused = Err("too many keys fit: none has the kid of the token".to_owned());
    assert_eq!(answer(&set(KEYS_TRIED_MAX + 1, "HS256"), &without).await, refused);
    // Keys of other algorithms do not count, nor do those with another Key ID.
    assert_eq!(answer(&set(64, "HS512"), &without).await, Ok("alice".to_owned()));
    assert_eq!(answer(&set(64, "HS256"), &with).await, Ok("alice".to_owned()));
}

#[test]
fn unusable_key_files_are_named() {
    let stage = Stage::new();
    let pem = |body: &str| format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n");
    for (key, text, word) in [
        ("secret_file", "short\n".to_owned(), "32 bytes, has 5"),
        ("public_key", "x".to_owned(), "BEGIN PUBLIC KEY"),
        ("public_key", pem("*"), "base64"),
        ("public_key", pem("MAA="), "no key of"),
        ("jwks", "{".to_owned(), "JSON"),
        ("jwks", "{}".to_owned(), "keys"),
        ("jwks", json!({"keys": [{"kty": "other"}]}).to_string(), "no key that can be used"),
        ("jwks", json!({"keys": vec![json!({}); 65]}).to_string(), "64"),
    ] {
        let file = stage.file("key", &text);
        let error = stage.source(key, &file, "").unwrap_err();
        assert!(error.starts_with(key) && error.contains(word), "{text}: {error}");
    }
    let error = stage.source("jwks", Path::new("/nowhere/at/all"), "").unwrap_err();
    assert!(error.contains("/nowhere/at/all"), "{error}");
}

#[test]
fn key_does_not_show_its_secret() {
    let key = Key::from_secret(b"a secret of at least 32 characters".to_vec()).unwrap();
    assert!(format!("{key:?}").contains("Secret(***)"), "{key:?}");
}
