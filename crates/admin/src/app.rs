//! State shared by all requests: the broker, the memory budget for request bodies, and the shutdown phase.
//!
//! A handler reaches a queue only through [`App`], which sends the request to the broker and waits for the reply with a
//! timeout. A queue's shard may end without replying, so a handler never waits for a reply without a bound. Changes run
//! in tasks of their own, which do: see [`App::carry_out`].

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

/// Changes under way at the same time. Others wait, as long as their clients do.
const CHANGES_MAX: u32 = 256;

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
    /// One permit for each change that may begin.
    changes: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
    consumers: Consumers,
}

impl App {
    pub(crate) fn new(broker: Arc<dyn Broker>, settings: Settings, phase: watch::Receiver<Phase>) -> Self {
        let body_budget = Arc::new(Semaphore::new(settings.body_bytes_max.saturating_mul(BODIES_MAX)));
        let changes = Arc::new(Semaphore::new(CHANGES_MAX as usize));
        Self(Arc::new(Inner {
            broker,
            settings,
            body_budget,
            changes,
            phase,
            consumers: Consumers::default(),
        }))
    }

    pub(crate) fn broker(&self) -> &Arc<dyn Broker> {
        &self.0.broker
    }

    /// Names by which requests may address the server.
    pub(crate) fn allowed_hosts(&self) -> &[String] {
        &self.0.settings.allowed_hosts
    }

    /// Origins of the web pages that may use the API.
    pub(crate) fn allowed_origins(&self) -> &[String] {
        &self.0.settings.allowed_origins
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

    /// Runs an administrative change to its end, which is its line in the audit log. A request ends with its
    /// connection, and the broker makes a change that it has been sent in any case, so the change runs in a task of its
    /// own. It waits for the broker as long as it takes; only the response has a timeout.
    ///
    /// # Errors
    /// That of the change; or the response was due before its end.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let permits = Arc::clone(&self.0.changes);
        let outcome = async {
            let permit = permits.acquire_owned().await.ok()?;
            let run = async move {
                let outcome = change.await;
                drop(permit);
                outcome
            };
            tokio::spawn(run).await.ok()
        };
        let outcome = tokio::time::timeout(REPLY_TIMEOUT, outcome).await;
        outcome.ok().flatten().unwrap_or_else(|| Err(Problem::unanswered()))
    }

    /// The same, for a change that blocks.
    ///
    /// # Errors
    /// As for [`Self::carry_out`].
    pub(crate) async fn carry_out_blocking<T: Send + 'static>(
        &self,
        change: impl FnOnce() -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let ended = async {
            let ended = tokio::task::spawn_blocking(change).await;
            ended.unwrap_or_else(|_| Err(Problem::unanswered()))
        };
        self.carry_out(ended).await
    }

    /// Waits until no change is under way, and lets no other begin.
    pub(crate) async fn finish_changes(&self) {
        if let Ok(all) = self.0.changes.acquire_many(CHANGES_MAX).await {
            all.forget();
        }
    }

    /// Sends a request of a change to a queue and waits for the reply.
    pub(crate) async fn change(&self, queue: &str, request: Request) -> Result<Reply, Problem> {
        self.submit(queue, request).end().await
    }

    /// Calls `send` with a reply callback for a change and waits for the reply.
    pub(crate) async fn await_change(&self, send: impl FnOnce(ReplyCallback)) -> Result<Reply, Problem> {
        PendingReply::to(send).end().await
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
        let reply = tokio::time::timeout(REPLY_TIMEOUT + request_wait, self.end()).await;
        reply.unwrap_or_else(|_| Err(Problem::unanswered()))
    }

    /// Waits as long as the broker takes.
    async fn end(self) -> Result<Reply, Problem> {
        match self.0.await {
            Ok(Reply::Refused(error)) => Err(Problem::from(&error)),
            Ok(reply) => Ok(reply),
            // The broker has shut down or is overloaded.
            Err(_) => Err(Problem::unanswered()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use serde_json::{Map, Value};

    use super::*;
    use crate::broker::{ConnectionPermit, MemoryUsage, TurnDurations};

    struct Nothing;

    impl Broker for Nothing {
        fn admit(&self, _peer: IpAddr) -> Option<ConnectionPermit> {
            None
        }

        fn submit(&self, _queue: &str, _request: Request, _reply: ReplyCallback) {}

        fn queues(&self) -> Vec<Arc<str>> {
            Vec::new()
        }

        fn is_topic(&self, _name: &str) -> bool {
            false
        }

        fn bindings(&self) -> Vec<Map<String, Value>> {
            Vec::new()
        }

        fn add_binding(&self, _name: &str, _binding: Map<String, Value>, _reply: ReplyCallback) {}

        fn remove_binding(&self, _name: &str, _reply: ReplyCallback) {}

        fn memory(&self) -> MemoryUsage {
            MemoryUsage::default()
        }

        fn turn_durations(&self) -> TurnDurations {
            TurnDurations::default()
        }

        fn errors(&self) -> Vec<String> {
            Vec::new()
        }
    }

    fn app() -> App {
        let (_, phase) = watch::channel(Phase::Serving);
        App::new(Arc::new(Nothing), Settings::default(), phase)
    }

    #[tokio::test]
    async fn a_change_ends_although_its_client_has_gone() {
        let app = app();
        let (reply, replied) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel();
        let (note, noted) = oneshot::channel();
        let change = async move {
            begins.send(()).unwrap();
            replied.await.map_err(|_| Problem::unanswered())?;
            note.send("noted").unwrap();
            Ok(())
        };
        let client = {
            let app = app.clone();
            tokio::spawn(async move { app.carry_out(change).await })
        };
        begun.await.unwrap();
        client.abort();
        assert!(client.await.unwrap_err().is_cancelled());
        reply.send(()).unwrap();
        assert_eq!(noted.await, Ok("noted"));
        app.finish_changes().await;
    }

    #[tokio::test]
    async fn the_server_waits_for_changes_at_its_end() {
        let app = app();
        let (reply, replied) = oneshot::channel();
        let changing = app.clone();
        let change = async move { replied.await.map_err(|_| Problem::unanswered()) };
        let client = tokio::spawn(async move { changing.carry_out(change).await });
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            () = app.finish_changes() => panic!("a change is under way"),
            () = tokio::task::yield_now() => {}
        }
        reply.send(7).unwrap();
        assert_eq!(client.await.unwrap(), Ok(7));
        app.finish_changes().await;
    }

    #[tokio::test]
    async fn a_change_that_the_broker_drops_is_not_answered() {
        let app = app();
        let change = app.clone();
        let outcome = app.carry_out(async move { change.change("q", Request::Delete).await }).await;
        assert_eq!(outcome.unwrap_err(), Problem::unanswered());
    }
}
