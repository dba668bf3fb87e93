//! The engine: which requests it replies to at which time, and which effects it asks of its host.

use std::ops::Range;

use mainstem_log::{
    Batch, BatchHeader, Durability, LogAdmin, LogId, LogReader, LogWriter, MemoryStore, Options, Store,
};
use mainstem_queue_core::{
    Config, Context, DEFAULT_GROUP, Disposition, Effect, Engine, EngineOptions, EngineSettings, MessageLog,
    NewMessage, QueueError, ReplayFrom, Reply, Request, Settlement, Start, Tuning, WhenCrowded,
};

/// Longest wait of a consumer, ms.
const WAIT_MS: u64 = 1_000;

fn no_compression(_: &Batch<'_>) -> Option<Vec<u8>> {
    None
}

/// Everything committed is visible.
struct Committed(LogId);

impl MessageLog for Committed {
    fn visible_to(&self, store: &dyn Store) -> u64 {
        store.status(self.0).committed
    }

    fn skip(&self, _: Range<u64>) -> impl FnMut(&BatchHeader) -> bool {
        BatchHeader::is_control
    }
}

/// A host that carries out appends, and collects the other effects.
struct Host {
    store: MemoryStore,
    messages: LogId,
    engine: Engine<u32>,
    now_ms: u64,
    /// Batches in the log that the engine has not heard of.
    appended: Vec<(u64, u64)>,
    effects: Vec<Effect<u32>>,
}

impl Host {
    fn new(config: Config) -> Self {
        Self::with(config, Tuning::default(), WhenCrowded::Wait)
    }

    fn with(config: Config, tuning: Tuning, when_crowded: WhenCrowded) -> Self {
        let mut store = MemoryStore::new();
        let messages = store.open("messages", &Options::default()).unwrap();
        let settings = EngineSettings { config, durability: Durability::Fsync, message_bytes_max: 1_000 };
        let options = EngineOptions {
            name: "jobs".into(),
            id: "id-of-jobs",
            state_log: "state",
            messages,
            settings,
            decompress: no_compression,
            tuning,
            random: 7,
            when_crowded,
        };
        let engine = Engine::open(&mut store, options, 1).unwrap();
        Self { store, messages, engine, now_ms: 1, appended: Vec::new(), effects: Vec::new() }
    }

    fn handle(&mut self, request: Request, from: u32) {
        let Self { store, messages, engine, now_ms, .. } = self;
        engine.handle(request, from, &mut Context { store, log: &Committed(*messages), now_ms: *now_ms });
        self.collect();
    }

    fn poll(&mut self) {
        let Self { store, messages, engine, now_ms, .. } = self;
        while engine.poll(&mut Context { store, log: &Committed(*messages), now_ms: *now_ms }) {}
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(effect) = self.engine.poll_effect() {
            let Effect::Append(mut batch) = effect else {
                self.effects.push(effect);
                continue;
            };
            let appended = self.store.append(self.messages, batch.bytes()).unwrap();
            self.appended.push((batch.number(), appended.base_offset));
            self.engine.on_append_tried(batch);
        }
    }

    /// Commits a turn and polls again.
    fn commit(&mut self) {
        self.engine.end_batch();
        self.collect();
        let queue = self.engine.queue_mut();
        queue.store_events(&mut self.store, self.now_ms);
        self.store.commit();
        let mut completions = Vec::new();
        self.store.completions(&mut completions);
        for completion in completions {
            queue.on_completion(&mut self.store, &completion, self.now_ms);
        }
        for (number, base_offset) in self.appended.drain(..) {
            self.engine.on_appended(number, &Ok(base_offset));
        }
        self.poll();
    }

    /// The replies since this was last called.
    fn replies(&mut self) -> Vec<(u32, Reply)> {
        let (replies, others) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Reply { .. }));
        self.effects = others;
        let reply = |effect| match effect {
            Effect::Reply { to, reply } => Some((to, reply)),
            _ => None,
        };
        replies.into_iter().filter_map(reply).collect()
    }

    fn send(&mut self, values: &[&str]) {
        let message = |value: &&str| NewMessage { value: value.as_bytes().to_vec(), ..NewMessage::default() };
        self.handle(Request::Send(values.iter().map(message).collect()), 0);
        self.commit();
        let replies = self.replies();
        assert!(matches!(&replies[..], [(0, Reply::Sent(all))] if all.len() == values.len()), "{replies:?}");
    }

    fn receive(&mut self, max: u32, from: u32) {
        let (group, consumer, bytes_max) = (DEFAULT_GROUP.into(), from.into(), usize::MAX);
        let request = Request::Receive { group, consumer, max, bytes_max, lease_ms: None, wait_ms: WAIT_MS };
        self.handle(request, from);
        self.poll();
    }

    /// Receives messages and settles them, without a commit.
    fn settle(&mut self, max: u32, disposition: Disposition) {
        self.receive(max, 1);
        let replies = self.replies();
        let [(1, Reply::Received(deliveries))] = &replies[..] else { panic!("{replies:?}") };
        let settlement = |receipt| Settlement { receipt, disposition };
        let settlements = deliveries.iter().map(|delivery| settlement(delivery.receipt)).collect();
        self.handle(Request::Settle { group: DEFAULT_GROUP.into(), settlements }, 2);
    }
}

#[test]
fn a_settlement_is_confirmed_when_it_is_durable() {
    let mut host = Host::new(Config::default());
    host.poll();
    host.send(&["a"]);
    host.settle(1, Disposition::Ack);
    host.poll();
    assert!(host.replies().is_empty(), "the event is not durable");
    host.commit();
    let replies = host.replies();
    assert!(matches!(&replies[..], [(2, Reply::Settled(all))] if all == &[Ok(())]), "{replies:?}");
}

#[test]
fn a_send_is_confirmed_with_offsets_when_its_batch_is_durable() {
    let mut host = Host::new(Config { length_max: 2, ..Config::default() });
    host.poll();
    let message = || NewMessage { value: b"x".to_vec(), ..NewMessage::default() };
    host.handle(Request::Send(vec![message()]), 1);
    let large = NewMessage { value: vec![0; 2_000], ..NewMessage::default() };
    host.handle(Request::Send(vec![large, message(), message()]), 2);
    assert!(host.replies().is_empty());
    host.commit();
    let replies = host.replies();
    let [(1, Reply::Sent(first)), (2, Reply::Sent(second))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(first, &[Ok(0)]);
    assert_eq!(second, &[Err(QueueError::TooLarge { most: 1_000 }), Ok(1), Err(QueueError::Full)]);
}

#[test]
fn limits_hold_across_the_batches_of_one_request() {
    let mut host = Host::new(Config { length_max: 3, ..Config::default() });
    host.poll();
    let message = NewMessage { value: vec![0; 800], ..NewMessage::default() };
    host.handle(Request::Send(vec![message; 6]), 1);
    host.commit();
    let replies = host.replies();
    let [(1, Reply::Sent(outcomes))] = &replies[..] else { panic!("{replies:?}") };
    let full = Err(QueueError::Full);
    assert_eq!(outcomes, &[Ok(0), Ok(1), Ok(2), full.clone(), full.clone(), full]);
}

#[test]
fn a_failed_batch_makes_room_again() {
    let mut host = Host::new(Config { length_max: 1, ..Config::default() });
    host.poll();
    let message = NewMessage { value: b"x".to_vec(), ..NewMessage::default() };
    host.handle(Request::Send(vec![message]), 1);
    host.engine.end_batch();
    let Some(Effect::Append(batch)) = host.engine.poll_effect() else { panic!("no batch") };
    host.engine.on_appended(batch.number(), &Err(QueueError::Storage));
    host.engine.on_append_tried(batch);
    host.collect();
    let replies = host.replies();
    assert!(matches!(&replies[..], [(1, Reply::Sent(all))] if all == &[Err(QueueError::Storage)]));
    host.send(&["y"]);
}

#[test]
fn a_failed_batch_of_another_producer_makes_room_again() {
    let mut host = Host::new(Config { bytes_max: 100, ..Config::default() });
    host.poll();
    let empty = host.store.status(host.messages);
    host.engine.on_foreign_append(3, 60);
    host.engine.on_foreign_append(5, 30);
    assert_eq!(host.engine.room(&empty), [u64::MAX, 10]);
    assert!(host.engine.admits(&empty, 1, 10) && !host.engine.admits(&empty, 1, 11));
    host.engine.on_foreign_append_failed(3);
    assert_eq!(host.engine.room(&empty)[1], 40, "the log has the first one");
    host.engine.on_foreign_append_failed(0);
    assert_eq!(host.engine.room(&empty)[1], 100);
}

#[test]
fn a_wait_ends_with_a_message_or_at_its_deadline() {
    let mut host = Host::new(Config::default());
    host.receive(1, 1);
    host.receive(1, 2);
    assert!(host.replies().is_empty());
    assert_eq!(host.engine.next_due(host.now_ms), Some(1 + WAIT_MS));
    host.handle(Request::Send(vec![NewMessage { value: b"a".to_vec(), ..NewMessage::default() }]), 0);
    host.commit();
    let replies = host.replies();
    assert!(matches!(&replies[..], [(0, _), (1, Reply::Received(all))] if all.len() == 1), "{replies:?}");
    host.now_ms += WAIT_MS;
    host.poll();
    let replies = host.replies();
    assert!(matches!(&replies[..], [(2, Reply::Received(all))] if all.is_empty()), "{replies:?}");
}

#[test]
fn a_group_for_later_messages_gets_none_that_was_stored_before_it() {
    let mut host = Host::new(Config { start: Start::Latest, ..Config::default() });
    let later = || {
        let (group, bytes_max) = ("later".into(), usize::MAX);
        Request::Receive { group, consumer: 1, max: 9, bytes_max, lease_ms: None, wait_ms: 0 }
    };
    let message = NewMessage { value: b"before".to_vec(), ..NewMessage::default() };
    host.handle(Request::Send(vec![message]), 0);
    host.engine.end_batch();
    host.collect();
    // The message is visible, and the engine has not been polled since.
    host.store.commit();
    host.handle(later(), 7);
    host.poll();
    host.commit();
    let replies = host.replies();
    let received: Vec<_> = replies.iter().filter(|(to, _)| *to == 7).collect();
    assert!(matches!(&received[..], [(7, Reply::Received(all))] if all.is_empty()), "{received:?}");
    host.send(&["after"]);
    host.handle(later(), 8);
    host.poll();
    let replies = host.replies();
    assert!(matches!(&replies[..], [(8, Reply::Received(all))] if all.len() == 1), "{replies:?}");
}

#[test]
fn ready_messages_are_shared_among_those_who_wait() {
    let mut host = Host::new(Config::default());
    host.receive(9, 1);
    host.receive(9, 2);
    host.handle(Request::Send(vec![NewMessage::default(); 4]), 0);
    host.commit();
    let counts = host.replies().into_iter().filter_map(|(to, reply)| match reply {
        Reply::Received(deliveries) => Some((to, deliveries.len())),
        _ => None,
    });
    assert_eq!(counts.collect::<Vec<_>>(), [(1, 2), (2, 2)]);
}

#[test]
fn a_transfer_leaves_when_it_is_durable_and_is_retried_after_a_failure() {
    let mut host = Host::new(Config::default());
    host.poll();
    host.send(&["bad"]);
    host.settle(1, Disposition::Reject);
    host.poll();
    assert!(!host.engine.is_transferring(), "the event is not durable");
    host.commit();
    host.replies();
    for attempt in 0..2 {
        let [Effect::Transfer { queue, messages, durability }] = &host.effects[..] else {
            panic!("{:?}", host.effects)
        };
        assert_eq!((queue.as_str(), messages.len(), *durability), ("jobs.dead", 1, Durability::Fsync));
        host.effects.clear();
        if attempt == 0 {
            host.engine.on_transferred(&Reply::Refused(QueueError::Busy), host.now_ms);
            host.poll();
            assert!(host.effects.is_empty(), "the retry waits");
            host.now_ms = host.engine.next_due(host.now_ms).unwrap();
            host.poll();
        }
    }
    assert_eq!(host.engine.machine().needed_from(), 0);
    host.engine.on_transferred(&Reply::Sent(vec![Ok(0)]), host.now_ms);
    assert_eq!(host.engine.machine().needed_from(), 1, "it is settled");
}

#[test]
fn a_replay_into_a_full_queue_waits_only_where_others_can_settle() {
    for (when_crowded, ends) in [(WhenCrowded::Wait, false), (WhenCrowded::Proceed, true)] {
        let tuning = Tuning { at_once: 2, known_max: 4, ..Tuning::default() };
        let config = Config { retention_ms: 60_000, ..Config::default() };
        let mut host = Host::with(config, tuning, when_crowded);
        host.poll();
        host.send(&["x"; 2]);
        host.settle(2, Disposition::Ack);
        host.commit();
        host.replies();
        host.send(&["x"; 12]);
        host.handle(Request::Replay { group: DEFAULT_GROUP.into(), from: ReplayFrom::Offset(0) }, 1);
        for _ in 0..50 {
            host.commit();
        }
        let replies = host.replies();
        assert_eq!(matches!(replies[..], [(1, Reply::Count(2))]), ends, "{when_crowded:?}: {replies:?}");
        assert_eq!(replies.is_empty(), !ends, "{when_crowded:?}: {replies:?}");
    }
}

#[test]
fn settled_messages_are_truncated_when_their_settlement_is_durable() {
    let mut host = Host::new(Config::default());
    host.poll();
    host.send(&["a", "b"]);
    host.settle(2, Disposition::Ack);
    let trim = |host: &mut Host| host.engine.trim(&mut host.store, 1);
    assert!(trim(&mut host));
    host.collect();
    assert!(host.effects.is_empty(), "not durable");
    host.commit();
    host.replies();
    assert!(trim(&mut host), "it looks again");
    host.collect();
    assert!(matches!(host.effects[..], [Effect::Truncate(2)]), "{:?}", host.effects);
    assert!(!trim(&mut host), "nothing is left");
}

#[test]
fn a_deleted_queue_refuses_all_its_requesters() {
    let mut host = Host::new(Config::default());
    host.handle(Request::Info, 1);
    host.engine.close();
    host.collect();
    host.poll();
    host.receive(1, 2);
    host.handle(Request::Send(vec![NewMessage::default()]), 3);
    host.handle(Request::Redrive { max: 1 }, 4);
    host.engine.close();
    host.collect();
    let mut refused: Vec<u32> = host
        .replies()
        .into_iter()
        .filter(|(_, reply)| matches!(reply, Reply::Refused(QueueError::UnknownQueue)))
        .map(|(to, _)| to)
        .collect();
    refused.sort_unstable();
    assert_eq!(refused, [1, 2, 3, 4]);
}
