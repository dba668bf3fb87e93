//! `POST …/receive`: taking messages, waiting for them if there are none.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use mainstem_queue::{DEFAULT_GROUP, Delivery, GroupName, Receipt, Reply, Request};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::app::{App, Phase};
use crate::input::{Asked, At, BATCH_MAX, within};
use crate::problem::Problem;
use crate::record;
use crate::seam::Broker;
use crate::settle::show_receipt;
use crate::wire::{Buffered, Held, Messages};

/// Longest time to wait for a message, ms.
const WAIT_MS_MAX: u64 = 60_000;
/// Longest lease, ms: twelve hours.
pub(crate) const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1000;
/// Longest name of a consumer, bytes.
const NAME_BYTES_MAX: usize = 255;

/// Numbers of this door's consumers. Other doors give none with this bit.
const OF_HTTP: u64 = 1 << 63;
/// And of those among them that have a name.
const IS_NAMED: u64 = 1 << 62;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Query {
    group: Option<String>,
    max: Option<u64>,
    wait_ms: Option<u64>,
    lease_ms: Option<u64>,
    consumer: Option<String>,
}

pub(crate) async fn receive(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<Query>,
    Extension(buffered): Extension<Buffered>,
) -> Result<Response, Problem> {
    let wait_ms = within("wait_ms", query.wait_ms.unwrap_or(0), 0..=WAIT_MS_MAX)?;
    let max = within("max", query.max.unwrap_or(1), 1..=BATCH_MAX as u64)?;
    if let Some(lease_ms) = query.lease_ms {
        within("lease_ms", lease_ms, 1..=LEASE_MS_MAX)?;
    }
    if query.consumer.as_ref().is_some_and(|name| !(1..=NAME_BYTES_MAX).contains(&name.len())) {
        return Err(Problem::invalid(format!("consumer: it must be 1 to {NAME_BYTES_MAX} bytes")));
    }
    let queue: Arc<str> = queue.into();
    let group: GroupName = query.group.as_deref().unwrap_or(DEFAULT_GROUP).into();
    let turn = Turn::begin(&app, &queue, &group, query.consumer.as_deref());
    let request = Request::Receive {
        group: Arc::clone(&group),
        consumer: turn.consumer,
        max: max as u32,
        bytes_max: app.body_bytes_max(),
        lease_ms: query.lease_ms,
        wait_ms,
    };
    let answer = app.begin(&queue, request);
    let broker = Arc::clone(app.broker());
    // Not awaited here: this ends when its client goes, and what comes after that must be released.
    let (sender, mut receiver) = oneshot::channel();
    tokio::spawn(async move {
        let reply = answer.wait(Duration::from_millis(wait_ms)).await;
        drop(sender.send(reply.map(|reply| Taken::new(broker, queue, group, reply))));
    });
    let taken = tokio::select! {
        biased;
        taken = &mut receiver => taken,
        () = Phase::Draining.reached(app.phase()) => {
            turn.leave();
            let taken = receiver.await;
            // The queue may have ended without a word. It leases nothing beyond that.
            if matches!(taken, Ok(Ok(_))) { taken } else { Ok(Ok(Taken::nothing(&turn))) }
        }
    };
    turn.end();
    let Taken { messages, held } = taken.map_err(|_| Problem::unanswered())??;
    let body = Bytes::from(json!({ "messages": messages }).to_string());
    let mut response = Response::new(Body::new(Messages::new(body, held, buffered)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Messages that a consumer has been given.
struct Taken {
    messages: Vec<Value>,
    held: Held,
}

impl Taken {
    fn new(broker: Arc<dyn Broker>, queue: Arc<str>, group: GroupName, reply: Reply) -> Self {
        let deliveries = if let Reply::Received(deliveries) = reply { deliveries } else { Vec::new() };
        let receipts = deliveries.iter().map(|delivery| delivery.receipt).collect();
        let held = Held { broker, queue, group, receipts };
        Self { messages: deliveries.iter().map(show).collect(), held }
    }

    fn nothing(turn: &Turn) -> Self {
        let broker = Arc::clone(turn.app.broker());
        Self::new(broker, Arc::clone(&turn.queue), Arc::clone(&turn.group), Reply::Done)
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

/// Consumers of this door: who has a number, and which request of theirs is under way.
#[derive(Default)]
pub(crate) struct Consumers {
    next: AtomicU64,
    names: RandomState,
    /// The newest request of each consumer with a name that has one, by the consumer's number.
    under_way: Mutex<HashMap<u64, u64>>,
}

/// A request to receive, from its beginning to its end. If it ends early, the queue hears of it.
struct Turn {
    app: App,
    queue: Arc<str>,
    group: GroupName,
    consumer: u64,
    number: u64,
    is_over: bool,
}

impl Turn {
    fn begin(app: &App, queue: &Arc<str>, group: &GroupName, name: Option<&str>) -> Self {
        let consumers = app.consumers();
        let number = consumers.next.fetch_add(1, Ordering::Relaxed);
        let hash = |name| consumers.names.hash_one((queue, group, name)) >> 2 | IS_NAMED;
        let consumer = name.map_or(number, hash) | OF_HTTP;
        if name.is_some() {
            // The queue ends an older request of the same consumer.
            consumers.lock().insert(consumer, number);
        }
        Self {
            app: app.clone(),
            queue: Arc::clone(queue),
            group: Arc::clone(group),
            consumer,
            number,
            is_over: false,
        }
    }

    /// Lets the queue answer at once. With a name the consumer may come back; without one, nobody has its number again.
    fn leave(&self) {
        let (group, consumer) = (Arc::clone(&self.group), self.consumer);
        let request = if consumer & IS_NAMED == 0 {
            Request::Leave { group, consumer }
        } else {
            Request::StopWaiting { group, consumer }
        };
        // The answer to what the consumer waited for says more than this one's.
        self.app.broker().ask(&self.queue, request, Box::new(drop));
    }

    /// The queue has answered.
    fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let consumers = self.app.consumers();
        let mut under_way = consumers.lock();
        let newest = under_way.get(&self.consumer).copied();
        if newest == Some(self.number) {
            under_way.remove(&self.consumer);
        }
        drop(under_way);
        let is_newest = newest.is_none_or(|newest| newest == self.number);
        if !self.is_over && is_newest {
            self.leave();
        }
    }
}

impl Consumers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, u64>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
