//! The host of a shard's queues, with an owner that carries out its effects on stores in memory.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use mainstem_log::{Durability, MemoryStore, StoreAt};
use mainstem_partition::{
    Accepted, AppendResult, Catalogue, IncomingBatch, JobId, PartitionConfig, PartitionError, PartitionId,
    PartitionSpec, Partitions, ProducerLimits, Topic, TopicId, Waiter,
};
use mainstem_queue_core::{
    Config, DEFAULT_GROUP, EngineSettings, NewMessage, QueueError, Reply, Request, Tuning,
};
use mainstem_queue_server::{
    AppendTicket, CommandQueues, Context, Effect, QueueClient, QueueDirectory, QueueHost, QueueOperation,
    QueueRequest, QueueTopicConfig, ReplyTo, Requester,
};

/// Settings of a queue; `None` for a plain topic.
#[derive(Debug)]
struct TopicConfig(Option<Config>);

impl QueueTopicConfig for TopicConfig {
    fn engine_settings(&self) -> Option<EngineSettings> {
        let config = self.0.clone()?;
        Some(EngineSettings { config, durability: Durability::Fsync, message_bytes_max: 1_000 })
    }

    fn shown_settings(&self) -> Vec<(String, String)> {
        vec![("shown".into(), "yes".into())]
    }

    fn is_queue(&self) -> bool {
        self.0.is_some()
    }
}

/// The owner of the host of shard 0 of two.
struct Owner {
    host: QueueHost<TopicConfig>,
    stores: Vec<StoreAt>,
    partitions: Partitions,
    catalogue: Arc<Catalogue<TopicConfig>>,
    /// Appends in flight, by the number of their waiter.
    appends: Vec<Option<AppendTicket>>,
    /// Effects that need other shards or the controller.
    rest: Vec<Effect>,
}

/// A topic on the shard of its store.
fn topic(name: &str, id: u8, store_id: u16, queue: Option<Config>) -> Arc<Topic<TopicConfig>> {
    let config = TopicConfig(queue);
    Arc::new(Topic { name: name.into(), id: TopicId([id; 16]), store_ids: vec![store_id], config })
}

impl Owner {
    fn new(commands: CommandQueues) -> Self {
        let mut stores = vec![StoreAt::new(0, Box::new(MemoryStore::new()))];
        let mut catalogue = Catalogue::default();
        catalogue.put(topic("jobs", 1, 0, Some(Config { length_max: 3, ..Config::default() })));
        catalogue.put(topic("far", 2, 1, Some(Config::default())));
        catalogue.put(topic("plain", 3, 0, None));
        Self {
            host: QueueHost::new(0, commands, Tuning::default()),
            partitions: Partitions::restore(&mut stores, ProducerLimits::default()).unwrap(),
            stores,
            catalogue: Arc::new(catalogue),
            appends: Vec::new(),
            rest: Vec::new(),
        }
    }

    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut QueueHost<TopicConfig>, &mut Context<'_, TopicConfig>) -> T,
    ) -> T {
        let Self { host, stores, partitions, catalogue, .. } = self;
        let owner_of_store = |store_id| usize::from(store_id);
        let mut cx = Context { stores, partitions, catalogue, owner_of_store: &owner_of_store, now_ms: 1 };
        let result = call(host, &mut cx);
        if self.host.begin_effects() {
            while let Some(effect) = self.host.poll_effect() {
                self.carry_out(effect);
            }
        }
        result
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Append { id, mut batch, ticket } => {
                self.append(id, batch.bytes(), ticket);
                self.host.on_append_tried(id, batch);
            }
            Effect::AppendTransfer { id, batch, ticket, .. } => self.append(id, &batch, ticket),
            Effect::Open { id, request } => {
                self.open(id);
                self.call(|host, cx| host.route(cx, request));
            }
            Effect::SetTimer(_) | Effect::RequestTurn => {}
            effect => self.rest.push(effect),
        }
    }

    fn open(&mut self, id: PartitionId) {
        let topic = self.catalogue.topic_by_id(id.topic).unwrap();
        let config = Arc::new(PartitionConfig { is_managed: true, ..PartitionConfig::default() });
        let spec = PartitionSpec { id, topic: Arc::clone(&topic.name), config, store: 0 };
        if !self.partitions.contains(&id) {
            self.partitions.open(spec, &mut *self.stores[0].store, 1).unwrap();
        }
        self.call(|host, cx| host.open(cx, id, 7)).unwrap();
    }

    fn try_append(&mut self, id: PartitionId, incoming: &IncomingBatch<'_>) -> Result<(), PartitionError> {
        let waiter = Waiter { job: JobId { shard: 0, job: self.appends.len() as u64 - 1 }, part: 0 };
        let store = &mut *self.stores[0].store;
        let verification = mainstem_coordinator::producer::TxnVerification::Unknown;
        let accepted = self.partitions.append(id, store, incoming, 1, verification, waiter)?;
        assert!(matches!(accepted, Accepted::Pending { .. }));
        Ok(())
    }

    fn append(&mut self, id: PartitionId, batch: &[u8], ticket: AppendTicket) {
        self.appends.push(Some(ticket));
        self.try_append(id, &IncomingBatch::parse_internal(batch).unwrap()).unwrap();
    }

    /// A producer appends messages without the host.
    fn produce(&mut self, id: PartitionId, values: &[&str]) -> Result<(), PartitionError> {
        let mut builder = mainstem_log::BatchBuilder::default();
        for value in values {
            builder.push(1, None, Some(value.as_bytes()));
        }
        let bytes = builder.finish().to_vec();
        self.appends.push(None);
        self.try_append(id, &IncomingBatch::parse(&bytes).unwrap())
    }

    /// One turn: polls, appends, commits, and hands over the completions.
    fn turn(&mut self) {
        self.call(QueueHost::begin_poll);
        if let Some(id) = self.host.next_unopened() {
            self.open(id);
        }
        while self.host.has_ready() {
            self.call(QueueHost::poll_next);
        }
        self.call(|host, cx| host.end_poll(cx.now_ms));
        self.call(QueueHost::end_batches);
        self.call(QueueHost::append_events);
        let (mut completions, mut results) = (Vec::new(), Vec::new());
        self.stores[0].store.commit();
        self.stores[0].store.completions(&mut completions);
        for completion in completions {
            if !self.call(|host, cx| host.on_completion(cx, 0, &completion)) {
                self.partitions.on_completion(0, &*self.stores[0].store, &completion, &mut results);
            }
        }
        for AppendResult { waiter, outcome } in results {
            let Some(ticket) = self.appends[waiter.job.job as usize].take() else { continue };
            let base = outcome.map(|info| info.base_offset).map_err(|_| QueueError::Storage);
            self.call(|host, cx| host.on_appended(cx, ticket, &base));
        }
        self.call(QueueHost::take_partition_events);
        self.host.deliver_client_replies();
    }

    fn request(&mut self, queue: &str, request: Request, token: u64) {
        self.call(|host, cx| host.request(cx, queue, request, token));
    }
}

const JOBS: PartitionId = PartitionId { topic: TopicId([1; 16]), index: 0 };

fn send(values: &[&str]) -> Request {
    let message =
        |value: &&str| NewMessage { key: None, value: value.as_bytes().to_vec(), headers: Vec::new() };
    Request::Send(values.iter().map(message).collect())
}

fn owner() -> Owner {
    Owner::new(CommandQueues::new(2))
}

#[test]
fn a_request_opens_its_queue_and_is_answered_when_it_is_durable() {
    let mut owner = owner();
    owner.request("jobs", send(&["a", "b"]), 7);
    assert!(owner.host.is_open(JOBS), "without waiting for a turn");
    assert!(owner.host.take_replies().is_empty(), "nothing is durable");
    owner.turn();
    let replies = owner.host.take_replies();
    assert!(matches!(&replies[..], [(7, Reply::Sent(offsets))] if *offsets == [Ok(0), Ok(1)]), "{replies:?}");
    owner.turn();
    let request = Request::Receive {
        group: DEFAULT_GROUP.into(),
        consumer: 1,
        max: 9,
        bytes_max: 999,
        lease_ms: None,
        wait_ms: 0,
    };
    owner.request("jobs", request, 8);
    (0..3).for_each(|_| owner.turn());
    let replies = owner.host.take_replies();
    assert!(matches!(&replies[..], [(8, Reply::Received(taken))] if taken.len() == 2), "{replies:?}");
    owner.request("jobs", Request::Info, 9);
    owner.turn();
    let replies = owner.host.take_replies();
    let [(9, Reply::Info(info))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((info.messages, info.settings.len()), (2, 1));
}

#[test]
fn requests_go_to_the_shard_of_their_queue_or_to_the_controller() {
    let mut owner = owner();
    owner.request("far", send(&["a"]), 1);
    assert!(
        matches!(&owner.rest[..], [Effect::SendRequest { shard: 1, request }] if &*request.queue == "far")
    );
    owner.rest.clear();
    owner.request("unknown", send(&["a"]), 2);
    assert!(matches!(&owner.rest[..], [Effect::Administer(request)] if &*request.queue == "unknown"));
    owner.rest.clear();
    owner.request("jobs", Request::Delete, 3);
    assert!(matches!(&owner.rest[..], [Effect::Administer(_)]), "it changes the catalogue");
    owner.request("plain", send(&["a"]), 4);
    let replies = owner.host.take_replies();
    assert!(matches!(&replies[..], [(4, Reply::Refused(QueueError::NotAQueue))]), "{replies:?}");
}

#[test]
fn replies_find_requesters_of_all_kinds() {
    let mut owner = owner();
    let request =
        |to| QueueRequest { queue: "plain".into(), operation: QueueOperation::Request(Request::Info), to };
    let job = ReplyTo { shard: 0, requester: Requester::Job(5) };
    owner.call(|host, cx| host.route(cx, request(job)));
    let other = ReplyTo { shard: 1, requester: Requester::Token(6) };
    owner.call(|host, cx| host.route(cx, request(other)));
    assert!(matches!(
        &owner.rest[..],
        [Effect::ReplyToJob { job: 5, .. }, Effect::SendReply { to, .. }] if *to == other
    ));
}

/// All queues are on shard 0.
#[derive(Debug)]
struct Directory;

impl QueueDirectory for Directory {
    fn shard_of_queue(&self, _: &str) -> usize {
        0
    }

    fn queues(&self) -> Vec<Arc<str>> {
        vec!["jobs".into()]
    }

    fn is_topic(&self, _: &str) -> bool {
        false
    }
}

#[test]
fn other_threads_get_their_replies_after_the_commit_and_a_refusal_once_the_host_drains() {
    let commands = CommandQueues::new(2);
    let client = QueueClient::new(Arc::new(Directory), commands.clone());
    let mut owner = Owner::new(commands);
    let ask = |request: Request| -> Receiver<Reply> {
        let (sender, receiver) = channel();
        client.send("jobs", request, Box::new(move |reply| sender.send(reply).unwrap()));
        receiver
    };
    let sent = ask(send(&["a"]));
    owner.call(QueueHost::begin_poll);
    assert!(sent.try_recv().is_err(), "nothing is committed");
    owner.turn();
    assert!(matches!(sent.try_recv(), Ok(Reply::Sent(_))));
    owner.call(QueueHost::drain);
    let refused = ask(send(&["b"]));
    owner.turn();
    assert!(matches!(refused.try_recv(), Ok(Reply::Refused(QueueError::Busy))));
}

#[test]
fn producers_share_the_limits_of_the_queue_and_a_settled_message_makes_room() {
    let mut owner = owner();
    owner.open(JOBS);
    assert_eq!(owner.produce(JOBS, &["a", "b"]), Ok(()));
    assert_eq!(owner.produce(JOBS, &["c", "d"]), Err(PartitionError::Full), "in the same turn");
    owner.request("jobs", send(&["c", "d"]), 1);
    (0..3).for_each(|_| owner.turn());
    let replies = owner.host.take_replies();
    let [(1, Reply::Sent(sent))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(sent[..], [Ok(2), Err(QueueError::Full)]);
    assert_eq!(owner.produce(JOBS, &["d"]), Err(PartitionError::Full));
    owner.request("jobs", Request::Purge { group: None }, 2);
    (0..3).for_each(|_| owner.turn());
    assert_eq!(owner.produce(JOBS, &["d", "e", "f"]), Ok(()));
}

#[test]
fn a_deleted_queue_refuses_its_requesters_and_its_state_log_is_removed() {
    let mut owner = owner();
    owner.request("jobs", send(&["a"]), 1);
    owner.call(|host, cx| host.remove(cx, JOBS));
    let replies = owner.host.take_replies();
    assert!(matches!(&replies[..], [(1, Reply::Refused(QueueError::UnknownQueue))]), "{replies:?}");
    assert!(!owner.host.is_open(JOBS));
    assert!(matches!(&owner.rest[..], [Effect::RemoveStateLog { store: 0, .. }]));
    owner.rest.clear();
    owner.call(|host, cx| host.remove(cx, JOBS));
    let state = format!("q-{}", JOBS.topic.to_hex());
    assert!(matches!(&owner.rest[..], [Effect::RemoveClosedStateLog(name)] if *name == state));
}
