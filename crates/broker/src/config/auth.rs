//! Sources of the authentication chain: tables `[[auth]]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use super::range::Ranged;
use super::service_url::ServiceUrl;

/// A source of the authentication chain. Listeners name the sources that they ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSource {
    /// Name in `auth` of listeners and in the log.
    pub name: String,
    /// Realm of the users; `None` = see `default.toml`.
    pub realm: Option<String>,
    /// Kind of the source, with its settings.
    pub kind: SourceKind,
}

/// Kind of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// Verified client certificates.
    Certificate(CertificateSource),
    /// User Name and Password, by a password file.
    Passwords(FileSource),
    /// Authentication Method SCRAM-SHA-256, by a password file.
    Scram(FileSource),
    /// JSON Web Tokens.
    Jwt(Box<JwtSource>),
    /// A service that is asked over HTTP.
    Http(HttpSource),
}

/// A password file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSource {
    /// Path of the file, see [`crate::auth::PasswordFile`].
    pub file: PathBuf,
}

/// Users by their certificates.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateSource {
    /// Field of the certificate that names the user.
    #[serde(default)]
    pub user_from: CertificateName,
    /// Users by the SHA-256 fingerprint of their certificate, as lower-case hexadecimal digits. If there are any, no
    /// other certificate counts.
    #[serde(default, deserialize_with = "fingerprints")]
    pub users: BTreeMap<String, String>,
}

/// Field of a certificate that names the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateName {
    /// Common Name of the subject.
    #[default]
    CommonName,
    /// Subject Alternative Name: DNS name.
    SanDns,
    /// Subject Alternative Name: URI.
    SanUri,
    /// Subject Alternative Name: e-mail address.
    SanEmail,
}

/// Keys and required claims of JSON Web Tokens.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSource {
    /// File with the secret of HS256, HS384 and HS512.
    pub secret_file: Option<PathBuf>,
    /// PEM file with a public key.
    pub public_key: Option<PathBuf>,
    /// JSON Web Key Set.
    pub jwks: Option<KeySetPlace>,
    /// PEM file with further authorities of the URL's server.
    pub ca: Option<PathBuf>,
    /// Claim that names the user.
    #[serde(default = "subject")]
    pub user_claim: String,
    /// Required issuer.
    pub issuer: Option<String>,
    /// Required audience.
    pub audience: Option<String>,
    /// Required values of claims; `%c` stands for the Client Identifier and `%u` for the User Name.
    #[serde(default)]
    pub must: BTreeMap<String, String>,
    /// Whether a token needs `exp`.
    #[serde(default = "yes")]
    pub require_expiry: bool,
    #[serde(default = "leeway")]
    leeway_seconds: Ranged<0, 3600>,
}

/// Place of a JSON Web Key Set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySetPlace {
    /// A file.
    File(PathBuf),
    /// An URL.
    Url(ServiceUrl),
}

/// A service that is asked over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSource {
    /// URL of the service.
    pub url: ServiceUrl,
    /// PEM file with further authorities of the server.
    pub ca: Option<PathBuf>,
    /// Effect of a failed request.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// Effect of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The client is refused.
    #[default]
    Refuse,
    /// The next source is asked.
    Next,
}

impl JwtSource {
    /// Tolerated difference of clocks, in seconds.
    pub fn leeway_seconds(&self) -> u64 {
        self.leeway_seconds.get()
    }

    fn check(self) -> Result<Self, String> {
        let keys = [self.secret_file.is_some(), self.public_key.is_some(), self.jwks.is_some()];
        if keys.iter().filter(|&&is_given| is_given).count() != 1 {
            return Err("needs exactly one of secret_file, public_key and jwks".to_owned());
        }
        if self.ca.is_some() && self.jwks_url().is_none() {
            return Err("ca: only with an URL in jwks".to_owned());
        }
        match self.jwks_url() {
            Some(url) if !url.is_private() => Err("jwks: needs https://, except on a loopback address".to_owned()),
            _ => Ok(self),
        }
    }

    /// The URL of the key set, if it is none of a file.
    pub(crate) fn jwks_url(&self) -> Option<&ServiceUrl> {
        match &self.jwks {
            Some(KeySetPlace::Url(url)) => Some(url),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for KeySetPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if !text.contains("://") {
            return Ok(Self::File(text.into()));
        }
        let url = ServiceUrl::try_from(text).map(Self::Url);
        url.map_err(|reason| D::Error::custom(format!("jwks: {reason}; for file:// write the path alone")))
    }
}

impl<'de> Deserialize<'de> for AuthSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Table::deserialize(deserializer)?;
        let mut text = |key: &str| match table.remove(key) {
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(D::Error::custom(format!("{key}: needs to be a text"))),
            None => Ok(None),
        };
        let name = text("name")?.ok_or_else(|| D::Error::missing_field("name"))?;
        let entry = |error: String| D::Error::custom(format!("auth {name:?}: {error}"));
        let kind = text("kind")?.ok_or_else(|| entry("missing field `kind`".to_owned()))?;
        let realm = text("realm")?;
        let kind = match kind.as_str() {
            "certificate" => settings(table).map(SourceKind::Certificate),
            "passwords" => settings(table).map(SourceKind::Passwords),
            "scram" => settings(table).map(SourceKind::Scram),
            "jwt" => settings(table).and_then(JwtSource::check).map(|jwt| SourceKind::Jwt(Box::new(jwt))),
            "http" => settings(table).map(SourceKind::Http),
            other => Err(format!("kind: {other:?} is none of certificate, passwords, scram, jwt and http")),
        };
        Ok(Self { kind: kind.map_err(entry)?, realm, name })
    }
}

/// Reads the keys of one kind. The error is one line and names the key.
fn settings<T: DeserializeOwned>(table: Table) -> Result<T, String> {
    table.try_into().map_err(|error: toml::de::Error| error.to_string().trim().replace('\n', " "))
}

fn fingerprints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let given = BTreeMap::<String, String>::deserialize(deserializer)?;
    let read = |(text, user): (String, String)| match fingerprint(&text) {
        Some(fingerprint) => Ok((fingerprint, user)),
        None => Err(D::Error::custom(format!("{text:?} is no SHA-256 fingerprint of 64 hexadecimal digits"))),
    };
    given.into_iter().map(read).collect()
}

/// A SHA-256 fingerprint as lower-case digits; the text may have colons.
pub(crate) fn fingerprint(text: &str) -> Option<String> {
    let digits = text.chars().filter(|&digit| digit != ':').collect::<String>().to_ascii_lowercase();
    let is_whole = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_whole.then_some(digits)
}

fn subject() -> String {
    "sub".to_owned()
}

fn leeway() -> Ranged<0, 3600> {
    Ranged(30)
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn errors_in_auth_name_entry_key_and_line() {
        let entry = |kind: &str, rest: &str| format!("\n[[auth]]\nname = \"a\"\nkind = \"{kind}\"\n{rest}");
        for (text, word) in [
            ("\n[[auth]]\nkind = \"jwt\"".to_owned(), "name"),
            ("\n[[auth]]\nname = \"a\"".to_owned(), "kind"),
            (entry("ldap", ""), "ldap"),
            (entry("passwords", ""), "file"),
            (entry("passwords", "file = 7"), "file"),
            (entry("passwords", "file = \"f\"\nurl = \"x\""), "url"),
            (entry("scram", "realm = 7\nfile = \"f\""), "realm"),
            (entry("certificate", "user_from = \"serial\""), "san_dns"),
            (entry("certificate", "users = { ab = \"alice\" }"), "64 hexadecimal digits"),
            (entry("jwt", ""), "exactly one"),
            (entry("jwt", "secret_file = \"a\"\njwks = \"b\""), "exactly one"),
            (entry("jwt", "jwks = \"http://keys.example/\""), "https"),
            (entry("jwt", "jwks = \"http://127.0.0.1.keys.example/\""), "https"),
            (entry("jwt", "secret_file = \"a\"\nca = \"b\""), "ca"),
            (entry("jwt", "secret_file = \"a\"\nleeway_seconds = 3601"), "0 to 3600"),
            (entry("jwt", "secret_file = \"a\"\nmust = \"sub\""), "must"),
            (entry("http", "url = \"ftp://x\""), "http"),
            (entry("http", "url = \"http://x\"\non_failure = \"accept\""), "refuse"),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(word), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn listeners_name_entries_that_exist() {
        let auth = "[[auth]]\nname = \"a\"\nkind = \"passwords\"\nfile = \"f\"\n";
        let listener = |more: &str| format!("[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\n{more}\n");
        for (text, words) in [
            (format!("{auth}{auth}"), ["auth", "\"a\""]),
            (listener("auth = [\"b\"]"), ["listeners", "\"b\""]),
            (format!("{auth}{}", listener("auth = [\"a\", \"a\"]")), ["in", "twice"]),
            (format!("{auth}{}", listener("auth = [\"a\"]\npassword_file = \"f\"")), ["auth", "password_file"]),
            (format!("{auth}{}", listener("auth = [\"a\"]\nrealm = \"r\"")), ["auth", "realm"]),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        let config = Config::parse(&format!("{auth}{}", listener("auth = [\"a\"]"))).unwrap();
        assert_eq!(config.listeners[0].auth, ["a"]);
        assert_eq!(config.auth[0].kind, SourceKind::Passwords(FileSource { file: "f".into() }));
    }

    #[test]
    fn fingerprints_may_have_colons() {
        let digits = "ab".repeat(32);
        let colons = vec!["AB"; 32].join(":");
        assert_eq!((fingerprint(&digits), fingerprint(&colons)), (Some(digits.clone()), Some(digits)));
    }
}
