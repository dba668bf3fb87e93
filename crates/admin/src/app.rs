//! What all requests share: the broker, the room for bodies, and how far the end has come.

use std::sync::Arc;
use std::time::Duration;

use mainstem_queue::{Reply, Request};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::problem::Problem;
use crate::receive::Consumers;
use crate::seam::Broker;
use crate::serve::Settings;

/// Longest time the broker has for an answer, beyond what a request itself waits for.
const ANSWER: Duration = Duration::from_mins(1);

/// Bodies of full size that may be in memory at once.
const BODIES_AT_ONCE: usize = 8;

/// How far the end of the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It is far.
    Serving,
    /// The other doors are closing: nothing is waited for any more, and the broker is not ready.
    Draining,
    /// Nothing is accepted any more.
    Ended,
}

impl Phase {
    /// Waits until it has come this far.
    pub(crate) async fn reached(self, mut now: watch::Receiver<Self>) {
        // If nobody can say so any more, it is the end.
        now.wait_for(|phase| *phase >= self).await.ok();
    }
}

/// What all requests share.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    broker: Arc<dyn Broker>,
    settings: Settings,
    room: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
    consumers: Consumers,
}

impl App {
    pub(crate) fn new(broker: Arc<dyn Broker>, settings: Settings, phase: watch::Receiver<Phase>) -> Self {
        let room = Arc::new(Semaphore::new(settings.body_bytes_max.saturating_mul(BODIES_AT_ONCE)));
        Self(Arc::new(Inner { broker, settings, room, phase, consumers: Consumers::default() }))
    }

    pub(crate) fn broker(&self) -> &Arc<dyn Broker> {
        &self.0.broker
    }

    /// Largest body of a request, bytes; also about the most bytes of messages in an answer.
    pub(crate) fn body_bytes_max(&self) -> usize {
        self.0.settings.body_bytes_max
    }

    /// Longest time for a body to come.
    pub(crate) fn patience(&self) -> Duration {
        self.0.settings.patience
    }

    /// Bytes that bodies may take.
    pub(crate) fn room(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.room)
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

    /// Asks a queue, and waits for the answer.
    pub(crate) async fn ask(&self, queue: &str, request: Request) -> Result<Reply, Problem> {
        self.begin(queue, request).wait(Duration::ZERO).await
    }

    /// Asks a queue: it has been asked when this returns.
    pub(crate) fn begin(&self, queue: &str, request: Request) -> Answer {
        Answer::to(|reply| self.0.broker.ask(queue, request, reply))
    }

    /// Asks what `ask` asks, and waits for the answer.
    pub(crate) async fn await_reply(&self, ask: impl FnOnce(crate::seam::Reply)) -> Result<Reply, Problem> {
        Answer::to(ask).wait(Duration::ZERO).await
    }
}

/// An answer that is to come.
pub(crate) struct Answer(oneshot::Receiver<Reply>);

impl Answer {
    fn to(ask: impl FnOnce(crate::seam::Reply)) -> Self {
        let (sender, receiver) = oneshot::channel();
        // Nobody hears it whose client has gone.
        ask(Box::new(move |reply| drop(sender.send(reply))));
        Self(receiver)
    }

    /// Waits for it; the request itself may wait for `more`.
    pub(crate) async fn wait(self, more: Duration) -> Result<Reply, Problem> {
        match tokio::time::timeout(ANSWER + more, self.0).await {
            Ok(Ok(Reply::Refused(refusal))) => Err(Problem::from(&refusal)),
            Ok(Ok(reply)) => Ok(reply),
            // The broker has ended, or has too much to do.
            Ok(Err(_)) | Err(_) => Err(Problem::unanswered()),
        }
    }
}
