//! A reply that two may give: the job that does the work, or who finds that it cannot run.

use std::sync::{Arc, Mutex, PoisonError};

use mainstem_security::Reply;

use crate::verifier::Job;

/// A reply, given once.
pub(crate) struct SharedReply<T>(Arc<Mutex<Option<Reply<T>>>>);

impl<T> Clone for SharedReply<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> SharedReply<T> {
    pub(crate) fn new(reply: Reply<T>) -> Self {
        Self(Arc::new(Mutex::new(Some(reply))))
    }

    /// Gives the reply, unless it has been given.
    pub(crate) fn answer(&self, result: T) {
        let reply = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reply) = reply {
            reply(result);
        }
    }
}

/// Submits a job that gives a reply. If too many jobs wait, the reply is `busy`.
pub(crate) fn submit<T: Send + 'static>(
    submit: impl FnOnce(Job) -> Result<(), Job>,
    reply: &SharedReply<T>,
    busy: T,
    work: impl FnOnce(&SharedReply<T>) + Send + 'static,
) {
    let later = reply.clone();
    if submit(Box::new(move || work(&later))).is_err() {
        reply.answer(busy);
    }
}
