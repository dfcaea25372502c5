use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;

use crate::{ClientError, ClientErrorKind, DisconnectReason};

/// State shared by the handles, the tickets and the task.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) broker: Arc<str>,
    pub(crate) client_id: Arc<str>,
    /// Reason of the end; set by the task before it ends on its own.
    pub(crate) end: OnceLock<DisconnectReason>,
}

impl Shared {
    pub(crate) fn error(&self, kind: ClientErrorKind) -> ClientError {
        ClientError { broker: Arc::clone(&self.broker), client_id: Arc::clone(&self.client_id), kind }
    }

    /// Converts the task's answer to a request. An answer dropped by the task means that the client has ended.
    pub(crate) fn outcome<T>(
        &self,
        answer: Result<Result<T, ClientErrorKind>, oneshot::error::RecvError>,
    ) -> Result<T, ClientError> {
        answer.map_err(|_| self.ended())?.map_err(|kind| self.error(kind))
    }

    pub(crate) fn ended(&self) -> ClientError {
        self.error(ClientErrorKind::Ended(self.end.get().cloned()))
    }

    pub(crate) fn invalid(&self, what: &str) -> ClientError {
        self.error(ClientErrorKind::Invalid(what.to_owned()))
    }
}
