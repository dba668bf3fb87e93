//! A broker that is made up: queues in memory, without time. It remembers what it was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mainstem_admin::{Broker, Reply as Answer};
use mainstem_log::{Batch, BatchBuilder};
use mainstem_queue::{
    Config, Delivery, GroupInfo, Info, Message, NewMessage, Payload, Plain, Receipt, Refusal, Reply, Request,
    Settlement, Verdict,
};
use serde_json::{Map, Value};

/// Longest anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// When all messages here have come, ms since 1970.
pub(crate) const ARRIVED_MS: u64 = 1_700_000_000_000;
/// The life of every queue.
const LIFE: u32 = 42;

/// A message with this body is refused as one too many.
pub(crate) const ONE_TOO_MANY: &[u8] = b"one too many";

#[derive(Default)]
pub(crate) struct Fake {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<String, Queue>,
    asked: Vec<Request>,
    bindings: BTreeMap<String, Map<String, Value>>,
    faults: Vec<String>,
    /// Queues whose state cannot be read.
    broken: BTreeSet<String>,
}

#[derive(Default)]
struct Queue {
    settings: Vec<(String, String)>,
    messages: Vec<NewMessage>,
    ready: BTreeSet<u64>,
    /// By offset: how often it was delivered.
    counts: BTreeMap<u64, u32>,
    leased: BTreeSet<u64>,
    waiting: Vec<(u64, u32, Answer)>,
}

impl Fake {
    /// With one queue, `q`.
    pub(crate) fn new() -> Arc<Self> {
        let fake = Self::default();
        fake.state.lock().unwrap().queues.insert("q".into(), Queue::default());
        Arc::new(fake)
    }

    /// Waits until it has been asked for something like this.
    pub(crate) fn wait_for(&self, is_it: impl Fn(&Request) -> bool) -> Request {
        self.wait_for_several(1, is_it).pop().unwrap()
    }

    /// The same, until that has happened so many times.
    pub(crate) fn wait_for_several(&self, count: usize, is_it: impl Fn(&Request) -> bool) -> Vec<Request> {
        let state = self.state.lock().unwrap();
        let of = |state: &State| state.asked.iter().filter(|asked| is_it(asked)).cloned().collect();
        let wait = self.changed.wait_timeout_while(state, PATIENCE, |state| {
            let found: Vec<Request> = of(state);
            found.len() < count
        });
        let (state, waited) = wait.unwrap();
        assert!(!waited.timed_out(), "it was asked for {:?} only", state.asked);
        of(&state)
    }

    /// How often it has been asked for something like this.
    pub(crate) fn count(&self, is_it: impl Fn(&Request) -> bool) -> usize {
        self.state.lock().unwrap().asked.iter().filter(|asked| is_it(asked)).count()
    }

    /// Says that something is wrong.
    pub(crate) fn fail(&self, fault: &str) {
        self.state.lock().unwrap().faults.push(fault.into());
    }

    /// Makes a queue of which nothing can be read.
    pub(crate) fn break_queue(&self, queue: &str) {
        let mut state = self.state.lock().unwrap();
        state.queues.insert(queue.into(), Queue::default());
        state.broken.insert(queue.into());
    }

    /// Puts messages into `q`.
    pub(crate) fn put(self: &Arc<Self>, bodies: &[&[u8]]) {
        let message = |body: &&[u8]| NewMessage { value: body.to_vec(), ..NewMessage::default() };
        let messages = bodies.iter().map(message).collect();
        Broker::ask(self.as_ref(), "q", Request::Send(messages), Box::new(drop));
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
        Payload::first(&Plain::copy(&Batch::parse(builder.finish()).unwrap()).unwrap()).unwrap()
    }

    fn lease(&mut self, max: u32) -> Vec<Delivery> {
        let offsets: Vec<u64> = self.ready.iter().copied().take(max as usize).collect();
        let mut leases = Vec::new();
        for offset in offsets {
            self.ready.remove(&offset);
            self.leased.insert(offset);
            let count = self.counts.entry(offset).or_default();
            *count += 1;
            leases.push(Delivery {
                receipt: Receipt { offset, count: *count, life: LIFE },
                first_delivered_ms: ARRIVED_MS + 1,
                lease_until_ms: ARRIVED_MS + 30_000,
                payload: self.payload(offset),
            });
        }
        leases
    }

    fn settle(&mut self, settlement: &Settlement) -> Result<(), Refusal> {
        let Receipt { offset, count, life } = settlement.receipt;
        if (self.counts.get(&offset), life) != (Some(&count), LIFE) || !self.leased.contains(&offset) {
            return Err(Refusal::Stale);
        }
        match settlement.verdict {
            Verdict::Extend(_) => {}
            Verdict::Release | Verdict::Unsent | Verdict::Nack(_) => {
                self.leased.remove(&offset);
                self.ready.insert(offset);
            }
            Verdict::Ack | Verdict::Reject => {
                self.leased.remove(&offset);
            }
        }
        Ok(())
    }

    /// Messages for those who wait.
    fn deal(&mut self) -> Vec<(Answer, Reply)> {
        let mut answers = Vec::new();
        while !self.waiting.is_empty() && !self.ready.is_empty() {
            let (_, max, answer) = self.waiting.remove(0);
            answers.push((answer, Reply::Received(self.lease(max))));
        }
        answers
    }
}

impl State {
    fn ask(&mut self, name: &str, request: Request, answer: Answer) -> Vec<(Answer, Reply)> {
        if let Request::Create { settings } = &request {
            return vec![(answer, self.create(name, settings))];
        }
        if self.broken.contains(name) {
            return vec![(answer, Reply::Refused(Refusal::Storage))];
        }
        let Some(queue) = self.queues.get_mut(name) else {
            return vec![(answer, Reply::Refused(Refusal::UnknownQueue))];
        };
        let reply = match request {
            Request::Create { .. } => unreachable!("done above"),
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
                        outcomes.push(Err(Refusal::Full));
                        continue;
                    }
                    let offset = queue.messages.len() as u64;
                    queue.messages.push(message);
                    queue.ready.insert(offset);
                    outcomes.push(Ok(offset));
                }
                let mut answers = queue.deal();
                answers.push((answer, Reply::Sent(outcomes)));
                return answers;
            }
            Request::Receive { consumer, max, wait_ms, .. } => {
                if queue.ready.is_empty() && wait_ms > 0 {
                    let older = queue.waiting.extract_if(.., |(waits, _, _)| *waits == consumer);
                    let ended = older.map(|(_, _, older)| (older, Reply::Received(Vec::new()))).collect();
                    queue.waiting.push((consumer, max, answer));
                    return ended;
                }
                Reply::Received(queue.lease(max))
            }
            Request::Leave { consumer, .. } | Request::StopWaiting { consumer, .. } => {
                let mut answers = vec![(answer, Reply::Done)];
                let leaves = |(waits, _, _): &mut (u64, u32, Answer)| *waits == consumer;
                for (_, _, answer) in queue.waiting.extract_if(.., leaves) {
                    answers.push((answer, Reply::Received(Vec::new())));
                }
                return answers;
            }
            Request::Settle { settlements, .. } => {
                let outcomes = settlements.iter().map(|settlement| queue.settle(settlement)).collect();
                let mut answers = queue.deal();
                answers.push((answer, Reply::Settled(outcomes)));
                return answers;
            }
            Request::Peek { from, max, .. } => {
                let offsets = queue.ready.range(from..).take(max as usize);
                let message = |offset: &u64| Message {
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
            Request::Redrive { max } => Reply::Count(max.min(3)),
            Request::Replay { .. } => Reply::Count(2),
            Request::RemoveGroup { .. } => Reply::Done,
        };
        vec![(answer, reply)]
    }

    fn create(&mut self, name: &str, settings: &[(String, String)]) -> Reply {
        let pairs = settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        if let Err(fault) = Config::from_pairs(pairs) {
            return Reply::Refused(Refusal::Invalid(fault.0));
        }
        match self.queues.get(name) {
            Some(queue) if queue.settings == settings => Reply::Done,
            Some(_) => Reply::Refused(Refusal::Exists),
            None => {
                self.queues.insert(name.into(), Queue { settings: settings.into(), ..Queue::default() });
                Reply::Done
            }
        }
    }
}

impl Broker for Fake {
    fn ask(&self, queue: &str, request: Request, reply: Answer) {
        let mut state = self.state.lock().unwrap();
        state.asked.push(request.clone());
        let answers = state.ask(queue, request, reply);
        drop(state);
        self.changed.notify_all();
        for (answer, reply) in answers {
            answer(reply);
        }
    }

    fn queues(&self) -> Vec<Arc<str>> {
        self.state.lock().unwrap().queues.keys().map(|name| name.as_str().into()).collect()
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

    fn bind(&self, name: &str, binding: Map<String, Value>, reply: Answer) {
        let mut state = self.state.lock().unwrap();
        let answer = if !binding.contains_key("kind") {
            Reply::Refused(Refusal::Invalid("kind: it must be said".into()))
        } else if state.bindings.get(name).is_some_and(|known| *known != binding) {
            Reply::Refused(Refusal::Exists)
        } else {
            state.bindings.insert(name.into(), binding);
            Reply::Done
        };
        drop(state);
        reply(answer);
    }

    fn unbind(&self, name: &str, reply: Answer) {
        self.state.lock().unwrap().bindings.remove(name);
        reply(Reply::Done);
    }

    fn faults(&self) -> Vec<String> {
        self.state.lock().unwrap().faults.clone()
    }
}
