//! A fake broker: queues in memory, without timers. It records all requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mainstem_admin::{Broker, ConnectionPermit, MemoryUsage, PhaseDurations, ReplyCallback, TurnDurations};
use mainstem_log::{Batch, BatchBuilder};
use mainstem_queue_core::{
    Config, Delivery, Disposition, GroupInfo, Info, NewMessage, Payload, PeekedMessage, QueueError, Receipt,
    Redriven, Reply, Request, Settlement, UncompressedBatch,
};
use serde_json::{Map, Value};

/// Longest wait in these tests.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Arrival time of all messages, Unix time in ms.
pub(crate) const ARRIVED_MS: u64 = 1_700_000_000_000;
/// The incarnation of every queue.
const INCARNATION: u32 = 42;

/// A message with this body is rejected because the queue is full.
pub(crate) const ONE_TOO_MANY: &[u8] = b"one too many";

#[derive(Default)]
pub(crate) struct Fake {
    state: Mutex<State>,
    changed: Condvar,
    /// One clone per admitted connection.
    permits: Arc<()>,
    permits_max: Mutex<Option<usize>>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<String, Queue>,
    requests: Vec<Request>,
    bindings: BTreeMap<String, Map<String, Value>>,
    errors: Vec<String>,
    /// Queues whose state cannot be read.
    broken: BTreeSet<String>,
}

#[derive(Default)]
struct Queue {
    settings: Vec<(String, String)>,
    messages: Vec<NewMessage>,
    ready: BTreeSet<u64>,
    /// Number of deliveries, by offset.
    delivery_counts: BTreeMap<u64, u32>,
    leased: BTreeSet<u64>,
    waiting: Vec<(u64, u32, ReplyCallback)>,
}

impl Fake {
    /// A broker with one queue, `q`.
    pub(crate) fn new() -> Arc<Self> {
        let fake = Self::default();
        fake.state.lock().unwrap().queues.insert("q".into(), Queue::default());
        Arc::new(fake)
    }

    /// Limits the number of connections of an address.
    pub(crate) fn limit_address(&self, max: usize) {
        *self.permits_max.lock().unwrap() = Some(max);
    }

    /// Waits for a request that satisfies `matches`.
    pub(crate) fn wait_for(&self, matches: impl Fn(&Request) -> bool) -> Request {
        self.wait_for_several(1, matches).pop().unwrap()
    }

    /// Waits for `count` requests that satisfy `matches`.
    pub(crate) fn wait_for_several(&self, count: usize, matches: impl Fn(&Request) -> bool) -> Vec<Request> {
        let state = self.state.lock().unwrap();
        let matching =
            |state: &State| state.requests.iter().filter(|request| matches(request)).cloned().collect();
        let wait = self.changed.wait_timeout_while(state, TEST_TIMEOUT, |state| {
            let found: Vec<Request> = matching(state);
            found.len() < count
        });
        let (state, waited) = wait.unwrap();
        assert!(!waited.timed_out(), "requests so far: {:?}", state.requests);
        matching(&state)
    }

    /// Number of requests so far that satisfy `matches`.
    pub(crate) fn count(&self, matches: impl Fn(&Request) -> bool) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|request| matches(request)).count()
    }

    /// Makes the broker not ready.
    pub(crate) fn fail(&self, error: &str) {
        self.state.lock().unwrap().errors.push(error.into());
    }

    /// Creates a queue whose state cannot be read.
    pub(crate) fn break_queue(&self, queue: &str) {
        let mut state = self.state.lock().unwrap();
        state.queues.insert(queue.into(), Queue::default());
        state.broken.insert(queue.into());
    }

    /// Sends messages to `q`.
    pub(crate) fn put(self: &Arc<Self>, bodies: &[&[u8]]) {
        let message = |body: &&[u8]| NewMessage { value: body.to_vec(), ..NewMessage::default() };
        let messages = bodies.iter().map(message).collect();
        Broker::submit(self.as_ref(), "q", Request::Send(messages), Box::new(drop));
    }
}

impl Queue {
    fn payload(&self, offset: u64) -> Payload {
        let message = &self.messages[offset as usize];
        let mut builder = BatchBuilder::default();
        builder.push_with_headers(
            ARRIVED_MS.cast_signed(),
            message.key.as_deref(),
            Some(&message.value),
            if message.headers.is_empty() { &[0] } else { &message.headers },
        );
        Payload::first(&UncompressedBatch::copy(&Batch::parse(builder.finish()).unwrap()).unwrap()).unwrap()
    }

    fn lease(&mut self, max: u32) -> Vec<Delivery> {
        let offsets: Vec<u64> = self.ready.iter().copied().take(max as usize).collect();
        let mut leases = Vec::new();
        for offset in offsets {
            self.ready.remove(&offset);
            self.leased.insert(offset);
            let count = self.delivery_counts.entry(offset).or_default();
            *count += 1;
            leases.push(Delivery {
                receipt: Receipt { offset, count: *count, incarnation: INCARNATION },
                first_delivered_ms: ARRIVED_MS + 1,
                lease_until_ms: ARRIVED_MS + 30_000,
                payload: self.payload(offset),
            });
        }
        leases
    }

    fn settle(&mut self, settlement: &Settlement) -> Result<(), QueueError> {
        let Receipt { offset, count, incarnation } = settlement.receipt;
        if (self.delivery_counts.get(&offset), incarnation) != (Some(&count), INCARNATION)
            || !self.leased.contains(&offset)
        {
            return Err(QueueError::Stale);
        }
        match settlement.disposition {
            Disposition::Extend(_) => {}
            Disposition::Release | Disposition::Unsent | Disposition::Nack(_) => {
                self.leased.remove(&offset);
                self.ready.insert(offset);
            }
            Disposition::Ack | Disposition::Reject => {
                self.leased.remove(&offset);
            }
        }
        Ok(())
    }

    /// Leases messages to waiting consumers.
    fn serve_waiting(&mut self) -> Vec<(ReplyCallback, Reply)> {
        let mut replies = Vec::new();
        while !self.waiting.is_empty() && !self.ready.is_empty() {
            let (_, max, reply_to) = self.waiting.remove(0);
            replies.push((reply_to, Reply::Received(self.lease(max))));
        }
        replies
    }
}

impl State {
    fn handle(
        &mut self,
        name: &str,
        request: Request,
        reply_to: ReplyCallback,
    ) -> Vec<(ReplyCallback, Reply)> {
        if let Request::Create { settings } = &request {
            return vec![(reply_to, self.create(name, settings))];
        }
        if self.broken.contains(name) {
            return vec![(reply_to, Reply::Refused(QueueError::Storage))];
        }
        let Some(queue) = self.queues.get_mut(name) else {
            return vec![(reply_to, Reply::Refused(QueueError::UnknownQueue))];
        };
        let reply = match request {
            Request::Create { .. } => unreachable!("handled above"),
            Request::Configure { settings } => {
                queue.settings = settings;
                Reply::Done
            }
            Request::Delete => {
                self.queues.remove(name);
                Reply::Done
            }
            Request::Send(messages) => {
                let mut outcomes = Vec::new();
                for message in messages {
                    if message.value == ONE_TOO_MANY {
                        outcomes.push(Err(QueueError::Full));
                        continue;
                    }
                    let offset = queue.messages.len() as u64;
                    queue.messages.push(message);
                    queue.ready.insert(offset);
                    outcomes.push(Ok(offset));
                }
                let mut replies = queue.serve_waiting();
                replies.push((reply_to, Reply::Sent(outcomes)));
                return replies;
            }
            Request::Receive { consumer, max, wait_ms, .. } => {
                if queue.ready.is_empty() && wait_ms > 0 {
                    let older = queue.waiting.extract_if(.., |(waits, _, _)| *waits == consumer);
                    let ended = older.map(|(_, _, older)| (older, Reply::Received(Vec::new()))).collect();
                    queue.waiting.push((consumer, max, reply_to));
                    return ended;
                }
                Reply::Received(queue.lease(max))
            }
            Request::Leave { consumer, .. } | Request::StopWaiting { consumer, .. } => {
                let mut replies = vec![(reply_to, Reply::Done)];
                let leaves = |(waits, _, _): &mut (u64, u32, ReplyCallback)| *waits == consumer;
                for (_, _, reply_to) in queue.waiting.extract_if(.., leaves) {
                    replies.push((reply_to, Reply::Received(Vec::new())));
                }
                return replies;
            }
            Request::Settle { settlements, .. } => {
                let outcomes = settlements.iter().map(|settlement| queue.settle(settlement)).collect();
                let mut replies = queue.serve_waiting();
                replies.push((reply_to, Reply::Settled(outcomes)));
                return replies;
            }
            Request::Peek { from, max, .. } => {
                let offsets = queue.ready.range(from..).take(max as usize);
                let message = |offset: &u64| PeekedMessage {
                    offset: *offset,
                    count: 0,
                    state: "ready",
                    payload: queue.payload(*offset),
                };
                Reply::Peeked(offsets.map(message).collect())
            }
            Request::Info => Reply::Info(Box::new(Info {
                name: name.into(),
                settings: queue.settings.clone(),
                messages: queue.ready.len() as u64,
                oldest_ms: Some(ARRIVED_MS),
                groups: vec![GroupInfo { name: "default".into(), ..GroupInfo::default() }],
                ..Info::default()
            })),
            Request::Purge { .. } => Reply::Count(std::mem::take(&mut queue.ready).len() as u64),
            Request::Redrive { max } => Reply::Redriven(Redriven { moved: max.min(3), skipped: 2 }),
            Request::Replay { .. } => Reply::Count(2),
            Request::RemoveGroup { .. } => Reply::Done,
        };
        vec![(reply_to, reply)]
    }

    fn create(&mut self, name: &str, settings: &[(String, String)]) -> Reply {
        let pairs = settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        if let Err(error) = Config::from_pairs(pairs) {
            return Reply::Refused(QueueError::Invalid(error.0));
        }
        match self.queues.get(name) {
            Some(queue) if queue.settings == settings => Reply::Done,
            Some(_) => Reply::Refused(QueueError::Exists),
            None => {
                self.queues.insert(name.into(), Queue { settings: settings.into(), ..Queue::default() });
                Reply::Done
            }
        }
    }
}

impl Broker for Fake {
    fn admit(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        assert!(peer.is_loopback());
        let open = Arc::strong_count(&self.permits) - 1;
        let is_full = self.permits_max.lock().unwrap().is_some_and(|max| open >= max);
        (!is_full).then(|| Box::new(Arc::clone(&self.permits)) as ConnectionPermit)
    }

    fn submit(&self, queue: &str, request: Request, reply: ReplyCallback) {
        let mut state = self.state.lock().unwrap();
        state.requests.push(request.clone());
        let replies = state.handle(queue, request, reply);
        drop(state);
        self.changed.notify_all();
        for (reply_to, reply) in replies {
            reply_to(reply);
        }
    }

    fn queues(&self) -> Vec<Arc<str>> {
        self.state.lock().unwrap().queues.keys().map(|name| name.as_str().into()).collect()
    }

    fn is_topic(&self, _name: &str) -> bool {
        false
    }

    fn bindings(&self) -> Vec<Map<String, Value>> {
        let state = self.state.lock().unwrap();
        let shown = state.bindings.iter().map(|(name, binding)| {
            let mut binding = binding.clone();
            binding.insert("name".into(), name.as_str().into());
            binding
        });
        shown.collect()
    }

    fn add_binding(&self, name: &str, binding: Map<String, Value>, reply: ReplyCallback) {
        let mut state = self.state.lock().unwrap();
        let result = if !binding.contains_key("kind") {
            Reply::Refused(QueueError::Invalid("kind: missing".into()))
        } else if state.bindings.get(name).is_some_and(|known| *known != binding) {
            Reply::Refused(QueueError::Exists)
        } else {
            state.bindings.insert(name.into(), binding);
            Reply::Done
        };
        drop(state);
        reply(result);
    }

    fn remove_binding(&self, name: &str, reply: ReplyCallback) {
        self.state.lock().unwrap().bindings.remove(name);
        reply(Reply::Done);
    }

    fn memory(&self) -> MemoryUsage {
        MemoryUsage::default()
    }

    fn turn_durations(&self) -> TurnDurations {
        let total = PhaseDurations { shard: 0, phase: "total", buckets: vec![3, 1], sum_ns: 2_000 };
        TurnDurations { bounds_us: &[500], series: vec![total] }
    }

    fn errors(&self) -> Vec<String> {
        self.state.lock().unwrap().errors.clone()
    }
}
