//! Credentials of a request: `Authorization: Basic` or `Bearer`.

use crate::answer::Refusal;
use base64ct::{Base64, Encoding as _};
use hyper::{HeaderMap, StatusCode, header};
use tenbin_client::Secret;

/// User Name and Password of CONNECT. A token is a Password with an empty User Name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: Secret,
}

impl Credentials {
    /// Reads the header; `None` without one.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let Some(value) = values.next() else { return Ok(None) };
        // No error shows the value.
        let wrong = |text: &str| Refusal::new(StatusCode::UNAUTHORIZED, format!("Authorization: {text}"));
        if values.next().is_some() {
            return Err(wrong("is there twice"));
        }
        let text = value.to_str().map_err(|_| wrong("has other characters than ASCII"))?;
        let (scheme, given) = text.split_once(' ').unwrap_or((text, ""));
        let given = given.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            if given.is_empty() {
                return Err(wrong("Bearer without a token"));
            }
            return Ok(Some(Self { user: String::new(), password: given.into() }));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(wrong("its scheme is neither Basic nor Bearer"));
        }
        let decoded = Base64::decode_vec(given).map_err(|_| wrong("Basic without legal Base64"))?;
        let colon = decoded.iter().position(|&byte| byte == b':');
        let colon = colon.ok_or_else(|| wrong("Basic without a colon behind the user"))?;
        let user = std::str::from_utf8(&decoded[..colon]).map_err(|_| wrong("Basic with a user that is not UTF-8"))?;
        Ok(Some(Self { user: user.to_owned(), password: decoded[colon + 1..].into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<Option<Credentials>, String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        Credentials::read(&headers).map_err(|refusal| format!("{refusal:?}"))
    }

    #[test]
    fn basic_and_bearer_become_user_name_and_password() {
        let of = |user: &str, password: &str| Credentials { user: user.into(), password: password.into() };
        let basic = |text: &str| read(&format!("Basic {}", Base64::encode_string(text.as_bytes())));
        assert_eq!(basic("anna:secret"), Ok(Some(of("anna", "secret"))));
        assert!(!format!("{:?}", basic("anna:secret")).contains("secret"));
        assert_eq!(basic("anna:a:b"), Ok(Some(of("anna", "a:b"))));
        assert_eq!(basic(":"), Ok(Some(of("", ""))));
        assert_eq!(read("bearer  a.b.c"), Ok(Some(of("", "a.b.c"))));
        assert_eq!(Credentials::read(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn illegal_credentials_are_refused_without_showing_them() {
        let hidden = Base64::encode_string(b"nocolon");
        for (value, word) in [
            ("Digest x", "neither Basic nor Bearer"),
            ("Bearer ", "without a token"),
            ("Basic", "without a colon"),
            ("Basic ???", "Base64"),
            (&format!("Basic {hidden}"), "without a colon"),
            (&format!("Basic {}", Base64::encode_string(b"\xFF:x")), "not UTF-8"),
        ] {
            let error = read(value).unwrap_err();
            assert!(error.contains("401") && error.contains(word), "{value}: {error}");
            assert!(!error.contains(&hidden) && !error.contains("nocolon"), "{error}");
        }
    }
}
