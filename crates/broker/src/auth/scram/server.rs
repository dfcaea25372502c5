use base64ct::{Base64, Encoding};
use bytes::Bytes;
use subtle::ConstantTimeEq;

use super::ScramSecret;

/// Parsed first message of the client.
#[derive(Debug)]
pub(crate) struct ClientFirst {
    /// User name that the client claims.
    pub(crate) user: String,
    nonce: String,
    /// Text before the bare message. The client repeats it in its last message.
    gs2_header: String,
    bare: String,
}

/// State between the server's first message and the client's last.
#[derive(Debug)]
pub(crate) struct Challenge {
    first: ClientFirst,
    secret: ScramSecret,
    /// Concatenated nonces of client and server.
    nonce: String,
    message: String,
}

/// Result of an exchange in which the client has proved that it knows the password.
#[derive(Debug)]
pub(crate) struct Verified {
    /// The server's last message.
    pub(crate) server_final: Bytes,
}

/// Failed exchange: the message violates SCRAM or the proof is wrong. Nothing reveals which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed;

impl ClientFirst {
    /// Parses `n,,n=user,r=nonce`. A leading `y` says that the client could bind to a TLS channel.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Failed> {
        let text = std::str::from_utf8(message).map_err(|_| Failed)?;
        let mut header = text.splitn(3, ',');
        let (binding, authorize_as, bare) = (header.next(), header.next(), header.next());
        let (Some("n" | "y"), Some(authorize_as), Some(bare)) = (binding, authorize_as, bare) else {
            return Err(Failed); // channel binding is not supported
        };
        let mut attributes = bare.split(',');
        // A mandatory extension ("m=") would come first.
        let name = attributes.next().and_then(|name| name.strip_prefix("n=")).ok_or(Failed)?;
        let nonce = attributes.next().and_then(|nonce| nonce.strip_prefix("r=")).ok_or(Failed)?;
        let user = unescape(name)?;
        let other = authorize_as.strip_prefix("a=").map(unescape).transpose()?;
        // Acting as another user is not supported.
        let is_self = authorize_as.is_empty() || other.is_some_and(|other| other == user);
        let nonce_is_legal = !nonce.is_empty() && nonce.bytes().all(|byte| byte.is_ascii_graphic());
        if user.is_empty() || !is_self || !nonce_is_legal {
            return Err(Failed);
        }
        let gs2_header = text[..text.len() - bare.len()].to_owned();
        Ok(Self { user, nonce: nonce.to_owned(), gs2_header, bare: bare.to_owned() })
    }

    /// Continues with the user's secret and a random text for the nonce.
    pub(crate) fn challenge(self, secret: ScramSecret, random: &str) -> Challenge {
        let nonce = format!("{}{random}", self.nonce);
        let message = format!("r={nonce},s={},i={}", Base64::encode_string(&secret.salt), secret.iterations);
        Challenge { first: self, secret, nonce, message }
    }
}

impl Challenge {
    /// Returns the server's first message.
    pub(crate) fn message(&self) -> Bytes {
        Bytes::copy_from_slice(self.message.as_bytes())
    }

    /// Checks the client's last message.
    pub(crate) fn verify(&self, message: &[u8]) -> Result<Verified, Failed> {
        let text = std::str::from_utf8(message).map_err(|_| Failed)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(Failed)?;
        let mut attributes = without_proof.split(',');
        let binding = attributes.next().and_then(|binding| binding.strip_prefix("c=")).ok_or(Failed)?;
        let nonce = attributes.next().and_then(|nonce| nonce.strip_prefix("r=")).ok_or(Failed)?;
        let proof: [u8; 32] = Base64::decode_vec(proof).ok().and_then(|proof| proof.try_into().ok()).ok_or(Failed)?;
        let same_binding = Base64::decode_vec(binding).is_ok_and(|header| header == self.first.gs2_header.as_bytes());
        let same_nonce = bool::from(nonce.as_bytes().ct_eq(self.nonce.as_bytes()));
        let conversation = [self.first.bare.as_bytes(), b",", self.message.as_bytes(), b",", without_proof.as_bytes()];
        if !self.secret.accepts(&proof, &conversation) || !same_binding || !same_nonce {
            return Err(Failed);
        }
        let signature = Base64::encode_string(&self.secret.signature(&conversation));
        Ok(Verified { server_final: Bytes::from(format!("v={signature}")) })
    }
}

/// Decodes a name with `,` and `=` written as `=2C` and `=3D`.
fn unescape(name: &str) -> Result<String, Failed> {
    let mut parts = name.split('=');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_at_checked(2) {
            Some(("2C", rest)) => plain.extend([",", rest]),
            Some(("3D", rest)) => plain.extend(["=", rest]),
            _ => return Err(Failed),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677 §3.
    fn challenge() -> Challenge {
        let first = ClientFirst::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
        assert_eq!(first.user, "user");
        let salt = Base64::decode_vec("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        first.challenge(ScramSecret::new(b"pencil", salt, 4096), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    }

    const FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                         p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    #[test]
    fn rfc_7677_example_succeeds() {
        let challenge = challenge();
        assert_eq!(
            &challenge.message()[..],
            b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let verified = challenge.verify(FINAL.as_bytes()).unwrap();
        assert_eq!(&verified.server_final[..], b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn altered_proof_nonce_or_binding_fails() {
        let challenge = challenge();
        for (from, to) in
            [("p=dH", "p=eH"), ("$k0", "$k1"), ("biws", "eSws"), ("c=biws,", ""), (",p=", ",q="), ("=", "")]
        {
            assert_eq!(challenge.verify(FINAL.replace(from, to).as_bytes()).unwrap_err(), Failed, "{from} {to}");
        }
        assert_eq!(challenge.verify(b"").unwrap_err(), Failed);
        assert_eq!(challenge.verify(b"\xFF").unwrap_err(), Failed);
    }

    #[test]
    fn unsupported_first_messages_are_rejected() {
        for message in [
            "",
            "n",
            "n,,",
            "n,,n=u",
            "n,,n=,r=x",
            "n,,n=u,r=",
            "p=tls-exporter,,n=u,r=x",
            "n,a=other,n=u,r=x",
            "n,,m=ext,n=u,r=x",
            "n,,n=u=2,r=x",
            "n,,n=u=2D,r=x",
            "n,b,n=u,r=x",
            "n,,n=u,r=a b",
        ] {
            assert!(ClientFirst::parse(message.as_bytes()).is_err(), "{message}");
        }
        for (message, user) in [("y,,n=u,r=x", "u"), ("n,a=u,n=u,r=x", "u"), ("n,,n=a=2Cb=3D,r=x,e=1", "a,b=")] {
            assert_eq!(ClientFirst::parse(message.as_bytes()).unwrap().user, user);
        }
    }
}
