//! `POST …/receive`: leases messages to a client, and waits for them if the queue has none.
//!
//! The client may disconnect at any time. While the request waits, [`ReceiveGuard`] removes the waiting consumer from
//! the queue; once messages are leased, [`UnsentLeases`] releases them unless the response reaches the kernel. A task
//! of its own awaits the queue's reply, because hyper drops the handler when the client disconnects, and a reply that
//! arrives after that must still release its leases.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use mainstem_queue_core::{DEFAULT_GROUP, Delivery, GroupName, Receipt, Reply, Request};
use mainstem_security::Action;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::access::Caller;
use crate::app::{App, Phase};
use crate::broker::Broker;
use crate::consumers::ReceiveId;
use crate::input::{
    BATCH_MAX, LEASE_MS_MAX, Parameters, Params, PathParams, check_group, check_optional, integer, text,
};
use crate::problem::Problem;
use crate::receipt::show_receipt;
use crate::record;
use crate::socket::{BufferedLeases, MessagesBody, UnsentLeases};

/// Longest wait for a message, in ms.
const WAIT_MS_MAX: u64 = 60_000;
/// Longest name of a consumer, in characters.
const NAME_CHARS_MAX: usize = 255;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Query {
    #[serde(deserialize_with = "text")]
    group: Option<String>,
    #[serde(deserialize_with = "integer")]
    max: Option<u64>,
    #[serde(deserialize_with = "integer")]
    wait_ms: Option<u64>,
    #[serde(deserialize_with = "integer")]
    lease_ms: Option<u64>,
    #[serde(deserialize_with = "text")]
    consumer: Option<String>,
}

impl Parameters for Query {
    fn check(&self) -> Result<(), Problem> {
        check_group(self.group.as_deref())?;
        check_optional("wait_ms", self.wait_ms, 0..=WAIT_MS_MAX)?;
        check_optional("max", self.max, 1..=BATCH_MAX as u64)?;
        check_optional("lease_ms", self.lease_ms, 1..=LEASE_MS_MAX)?;
        if self.consumer.as_ref().is_some_and(|name| !(1..=NAME_CHARS_MAX).contains(&name.chars().count())) {
            return Err(Problem::invalid(format!("consumer: must be 1 to {NAME_CHARS_MAX} characters")));
        }
        Ok(())
    }

    fn or(self, defaults: Self) -> Self {
        Self {
            group: self.group.or(defaults.group),
            max: self.max.or(defaults.max),
            wait_ms: self.wait_ms.or(defaults.wait_ms),
            lease_ms: self.lease_ms.or(defaults.lease_ms),
            consumer: self.consumer.or(defaults.consumer),
        }
    }
}

pub(crate) async fn receive(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(queue): PathParams<String>,
    Extension(buffered): Extension<BufferedLeases>,
    Params(query): Params<Query>,
) -> Result<Response, Problem> {
    let (wait_ms, max) = (query.wait_ms.unwrap_or(0), query.max.unwrap_or(1));
    let queue: Arc<str> = queue.into();
    let name = Arc::clone(&queue);
    let group: GroupName = query.group.as_deref().unwrap_or(DEFAULT_GROUP).into();
    let guard = ReceiveGuard::new(&app, &queue, &group, query.consumer.as_deref());
    let request = Request::Receive {
        group: Arc::clone(&group),
        consumer: guard.id.consumer,
        max: max as u32,
        bytes_max: app.body_bytes_max(),
        lease_ms: query.lease_ms,
        wait_ms,
    };
    let pending = app.submit(&queue, request);
    let broker = Arc::clone(app.broker());
    // Not awaited in the handler: see the documentation of this module.
    let (sender, mut receiver) = oneshot::channel();
    tokio::spawn(async move {
        let reply = pending.wait(Duration::from_millis(wait_ms)).await;
        drop(sender.send(reply.map(|reply| Leased::new(broker, queue, group, reply))));
    });
    let leased = tokio::select! {
        biased;
        leased = &mut receiver => leased,
        () = Phase::Draining.reached(app.phase()) => {
            guard.stop_waiting();
            let leased = receiver.await;
            // The queue's shard may have shut down without replying; it has leased nothing then.
            if matches!(leased, Ok(Ok(_))) { leased } else { Ok(Ok(Leased::nothing(&guard))) }
        }
    };
    guard.complete();
    let Leased { messages, leases } = leased.map_err(|_| Problem::unanswered())??;
    // Messages that came after a change must not leave by the rights from before it. Dropping the leases returns them.
    caller.check_again(&app, Action::Receive, &name)?;
    let body = Bytes::from(json!({ "messages": messages }).to_string());
    let mut response = Response::new(Body::new(MessagesBody::new(body, leases, buffered)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Messages leased to the client: their JSON, and the leases to release if the client does not get them.
struct Leased {
    messages: Vec<Value>,
    leases: UnsentLeases,
}

impl Leased {
    fn new(broker: Arc<dyn Broker>, queue: Arc<str>, group: GroupName, reply: Reply) -> Self {
        let deliveries = if let Reply::Received(deliveries) = reply { deliveries } else { Vec::new() };
        let receipts = deliveries.iter().map(|delivery| delivery.receipt).collect();
        let leases = UnsentLeases { broker, queue, group, receipts };
        Self { messages: deliveries.iter().map(show).collect(), leases }
    }

    fn nothing(guard: &ReceiveGuard) -> Self {
        let broker = Arc::clone(guard.app.broker());
        Self::new(broker, Arc::clone(&guard.queue), Arc::clone(&guard.group), Reply::Done)
    }
}

fn show(delivery: &Delivery) -> Value {
    let Receipt { offset, count, .. } = delivery.receipt;
    let mut map = Map::new();
    map.insert("receipt".into(), json!(show_receipt(delivery.receipt)));
    map.insert("offset".into(), json!(offset));
    map.insert("delivery_count".into(), json!(count));
    map.insert("first_delivered_at".into(), json!(delivery.first_delivered_ms));
    map.insert("lease_until".into(), json!(delivery.lease_until_ms));
    record::show(&delivery.payload.record(), &mut map);
    Value::Object(map)
}

/// A receive request in progress. Dropping it before [`ReceiveGuard::complete`] makes the queue stop waiting for it.
struct ReceiveGuard {
    app: App,
    queue: Arc<str>,
    group: GroupName,
    id: ReceiveId,
    is_complete: bool,
}

impl ReceiveGuard {
    fn new(app: &App, queue: &Arc<str>, group: &GroupName, name: Option<&str>) -> Self {
        let id = app.consumers().begin(queue, group, name);
        Self { app: app.clone(), queue: Arc::clone(queue), group: Arc::clone(group), id, is_complete: false }
    }

    /// Makes the queue reply at once. A named consumer stays registered, because it may send another request; the id of
    /// an unnamed one is never used again, so it leaves the queue.
    fn stop_waiting(&self) {
        let (group, consumer) = (Arc::clone(&self.group), self.id.consumer);
        let request = if self.id.is_named() {
            Request::StopWaiting { group, consumer }
        } else {
            Request::Leave { group, consumer }
        };
        // The reply to the receive request is the one that counts.
        self.app.broker().submit(&self.queue, request, Box::new(drop));
    }

    /// The queue has replied.
    fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for ReceiveGuard {
    fn drop(&mut self) {
        let is_newest = self.app.consumers().end(self.id);
        if !self.is_complete && is_newest {
            self.stop_waiting();
        }
    }
}
