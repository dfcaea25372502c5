use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;

use crate::{ClientError, ClientErrorKind, Failure};

/// State shared by the handles, the tickets and the task.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) client_id: Arc<str>,
    /// Reason of the end; set by the task before it ends on its own.
    pub(crate) end: OnceLock<Failure>,
}

impl Shared {
    pub(crate) fn error(&self, kind: ClientErrorKind) -> ClientError {
        ClientError { client_id: Arc::clone(&self.client_id), kind }
    }

    /// Converts the task's answer to a command. An answer dropped by the task means that the client has ended.
    pub(crate) fn outcome<T>(
        &self,
        answer: Result<Result<T, ClientErrorKind>, oneshot::error::RecvError>,
    ) -> Result<T, ClientError> {
        answer.map_err(|_| self.ended())?.map_err(|kind| self.error(kind))
    }

    pub(crate) fn ended(&self) -> ClientError {
        self.error(ClientErrorKind::Ended(self.end.get().cloned()))
    }
}
