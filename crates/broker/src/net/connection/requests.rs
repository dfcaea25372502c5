//! Requests to a connection that a later request may have replaced.

use super::ConnectionTask;
use crate::net::core::Core;
use crate::net::end::End;
use crate::net::stream::Stream;

impl<S: Stream> ConnectionTask<S> {
    /// Serves requests that another request may have replaced: takes over changed rights, and answers operators.
    ///
    /// # Errors
    /// The client has lost its access.
    #[cold]
    pub(super) fn take_replaced_requests(&mut self) -> Result<(), End> {
        self.take_rights_over()?;
        self.answer_questions();
        Ok(())
    }

    /// Tells operators the figures of the session, and takes over their traces.
    pub(super) fn answer_questions(&mut self) {
        self.core.show_output();
        self.core.take_traces(self.core.out.end());
        let Core { open, lease, connection, .. } = &self.core;
        let shared = &open.shared;
        let questions = shared.sessions.registry.roster().map(|roster| roster.questions(lease.client.number));
        for question in questions.into_iter().flatten() {
            let _ = question.send(lease.figures(connection.session()));
        }
    }
}
