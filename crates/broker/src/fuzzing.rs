//! Parts of the broker for the fuzz targets in `fuzz/`, in builds with `--cfg fuzzing` alone.

use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use tenbin_codec::{Secret, Text};

use crate::Config;
use crate::auth::{Access, Answer, AuthRequest, Origin, Settings, TransportProtocol};
pub use crate::net::read_proxy_header;

/// Sources of logins, without connections.
#[derive(Debug)]
pub struct Logins(Access);

/// Answer to a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// The client is this user.
    Accepted(Option<String>),
    /// Cause of the refusal; `None` if it has none for the log.
    Refused(Option<String>),
}

impl Logins {
    /// Sources of a configuration, whose listener is named `fuzz`.
    ///
    /// # Panics
    /// The configuration is wrong.
    pub fn new(config: &str) -> Self {
        let config = Config::parse(config).expect("a configuration");
        Self(Access::new(Settings::load(&config, true).expect("usable sources"), [0; 32], None, None))
    }

    /// Decides on a CONNECT with this Password, or with it as data of the Authentication Method `JWT`.
    ///
    /// # Panics
    /// The answer has to wait for another task.
    pub fn login(&self, password: &[u8], is_method: bool) -> Login {
        let data = Secret::from(password);
        let (password, data) = if is_method { (None, Some(data)) } else { (Some(data), None) };
        let request = AuthRequest {
            client_id: Text::from_static("client"),
            user_name: None,
            password,
            origin: Origin::direct(SocketAddr::from(([127, 0, 0, 1], 1)).into(), None, TransportProtocol::Tcp),
            listener: "fuzz".into(),
            method: is_method.then(|| Text::from_static("JWT")),
            data,
            current: None,
        };
        let mut answer = self.0.authenticator().authenticate(request);
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Answer::Accept { identity, .. }) => {
                Login::Accepted(identity.user.map(|user| user.as_str().to_owned()))
            }
            Poll::Ready(Answer::RefuseLogin(refusal)) => Login::Refused(Some(refusal.cause.into_owned())),
            Poll::Ready(_) => Login::Refused(None),
            Poll::Pending => panic!("these sources ask nobody"),
        }
    }
}
