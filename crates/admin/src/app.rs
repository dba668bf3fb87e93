//! State shared by all requests: the broker, the memory budget for request bodies, and the shutdown phase.
//!
//! A handler reaches a queue only through [`App`], which sends the request to the broker and waits for the reply with a
//! timeout. A queue's shard may end without replying, so a handler never waits for a reply without a bound.

use std::sync::Arc;
use std::time::Duration;

use mainstem_queue_core::{Reply, Request};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::broker::{Broker, ReplyCallback};
use crate::consumers::Consumers;
use crate::problem::Problem;
use crate::settings::Settings;

/// Longest wait for a reply of the broker, in addition to the wait time that the request asks for.
const REPLY_TIMEOUT: Duration = Duration::from_mins(1);

/// Request bodies of the maximum size that fit into memory at the same time.
const BODIES_MAX: usize = 8;

/// Progress of the shutdown. Phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// The other listeners are closing: requests no longer wait for messages, and the broker is not ready.
    Draining,
    /// No connection is accepted.
    Stopped,
}

impl Phase {
    /// Waits until the shutdown has reached this phase.
    pub(crate) async fn reached(self, mut now: watch::Receiver<Self>) {
        // If the sender is gone, the server has stopped.
        now.wait_for(|phase| *phase >= self).await.ok();
    }
}

/// State shared by all requests.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    broker: Arc<dyn Broker>,
    settings: Settings,
    body_budget: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
    consumers: Consumers,
}

impl App {
    pub(crate) fn new(broker: Arc<dyn Broker>, settings: Settings, phase: watch::Receiver<Phase>) -> Self {
        let body_budget = Arc::new(Semaphore::new(settings.body_bytes_max.saturating_mul(BODIES_MAX)));
        Self(Arc::new(Inner { broker, settings, body_budget, phase, consumers: Consumers::default() }))
    }

    pub(crate) fn broker(&self) -> &Arc<dyn Broker> {
        &self.0.broker
    }

    /// Names by which requests may address the server.
    pub(crate) fn allowed_hosts(&self) -> &[String] {
        &self.0.settings.allowed_hosts
    }

    /// Largest request body, in bytes. A response holds about as many bytes of messages at most.
    pub(crate) fn body_bytes_max(&self) -> usize {
        self.0.settings.body_bytes_max
    }

    /// Longest time for a request body to arrive.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.0.settings.request_timeout
    }

    /// Bytes of memory left for request bodies.
    pub(crate) fn body_budget(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.body_budget)
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.0.phase.clone()
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.0.phase.borrow() > Phase::Serving
    }

    pub(crate) fn consumers(&self) -> &Consumers {
        &self.0.consumers
    }

    /// Sends a request to a queue and waits for the reply.
    pub(crate) async fn request(&self, queue: &str, request: Request) -> Result<Reply, Problem> {
        self.submit(queue, request).wait(Duration::ZERO).await
    }

    /// Sends a request to a queue without waiting for the reply.
    pub(crate) fn submit(&self, queue: &str, request: Request) -> PendingReply {
        PendingReply::to(|reply| self.0.broker.submit(queue, request, reply))
    }

    /// Calls `send` with a reply callback and waits for the reply.
    pub(crate) async fn await_reply(&self, send: impl FnOnce(ReplyCallback)) -> Result<Reply, Problem> {
        PendingReply::to(send).wait(Duration::ZERO).await
    }
}

/// A reply that has not arrived yet.
pub(crate) struct PendingReply(oneshot::Receiver<Reply>);

impl PendingReply {
    fn to(send: impl FnOnce(ReplyCallback)) -> Self {
        let (sender, receiver) = oneshot::channel();
        // The receiver is gone if the client has disconnected.
        send(Box::new(move |reply| drop(sender.send(reply))));
        Self(receiver)
    }

    /// Waits for the reply of a request that itself waits up to `request_wait` for messages.
    pub(crate) async fn wait(self, request_wait: Duration) -> Result<Reply, Problem> {
        match tokio::time::timeout(REPLY_TIMEOUT + request_wait, self.0).await {
            Ok(Ok(Reply::Refused(error))) => Err(Problem::from(&error)),
            Ok(Ok(reply)) => Ok(reply),
            // The broker has shut down or is overloaded.
            Ok(Err(_)) | Err(_) => Err(Problem::unanswered()),
        }
    }
}
