//! Two transactional producers and a plain one on a broker with shards over stores in memory: they write, end
//! transactions, use old epochs and wrong sequences, and the broker restarts in between.
//!
//! A reader of committed records sees each acknowledged record of a committed transaction once and in order, and none
//! of an aborted or open one.

#![no_main]

#[path = "../../crates/kafka-server/tests/kit/mod.rs"]
mod kit;

use arbitrary::Arbitrary;
use kit::{Broker, Client};
use libfuzzer_sys::fuzz_target;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use mainstem_kafka::api::end_txn::{EndTxnRequest, EndTxnResponse};
use mainstem_kafka::api::fetch::{FetchRequest, FetchResponse};
use mainstem_kafka::api::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_log::{BatchBuilder, BatchKind, Origin, batches};

const TOPIC: &str = "topic";
const PARTITIONS: usize = 2;
const IDS: [&str; 2] = ["before-kip-890", "since-kip-890"];
/// Steps of one input that are played.
const STEPS_MAX: usize = 60;
const TIMEOUT_MS: i32 = 10_000;
const OK: i16 = ErrorCode::None as i16;

#[derive(Arbitrary, Debug)]
enum Step {
    Init { id: bool },
    Write { id: bool, partition: bool, is_stale: bool, sequence_delta: i8 },
    WritePlain { partition: bool },
    End { id: bool, is_committed: bool, is_stale: bool },
    Read { partition: bool },
    Pass { tenths: u8 },
    Restart { shards: u8 },
    Reconnect { shard: u8 },
}

/// What readers of committed records may see of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its transaction is open.
    Open,
    Committed,
    Aborted,
    /// A request failed, so either is possible.
    Unknown,
}

struct Record {
    partition: usize,
    fate: Fate,
}

/// A transactional producer as its client sees it.
#[derive(Default)]
struct Producer {
    id: i64,
    epoch: i16,
    is_ready: bool,
    sequences: [i32; PARTITIONS],
    /// Numbers of the records of the open transaction.
    open: Vec<usize>,
}

struct World {
    broker: Broker,
    client: Client,
    shards: usize,
    producers: [Producer; 2],
    /// The value of a record is its index.
    records: Vec<Record>,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, PARTITIONS as i32);
    let client = broker.connect(0);
    let producers = [Producer::default(), Producer::default()];
    let mut world = World { broker, client, shards: 2, producers, records: Vec::new() };
    for step in steps.iter().take(STEPS_MAX) {
        world.play(step);
    }
    world.finish();
});

impl World {
    fn play(&mut self, step: &Step) {
        match *step {
            Step::Init { id } => self.init(id.into()),
            Step::Write { id, partition, is_stale, sequence_delta } => {
                let producer = &self.producers[usize::from(id)];
                if producer.is_ready {
                    let epoch = producer.epoch - i16::from(is_stale);
                    let sequence = producer.sequences[usize::from(partition)];
                    // Mostly the right one.
                    let sequence = if sequence_delta > 100 { sequence + 1 } else { sequence };
                    self.write(id.into(), partition.into(), epoch, sequence);
                }
            }
            Step::WritePlain { partition } => self.write_plain(partition.into()),
            Step::End { id, is_committed, is_stale } => self.end(id.into(), is_committed, is_stale),
            Step::Read { partition } => {
                self.read(partition.into());
            }
            Step::Pass { tenths } => self.broker.pass(u64::from(tenths) * 100),
            Step::Restart { shards } => {
                self.shards = usize::from(shards % 3) + 1;
                self.broker.crash(self.shards);
                self.client = self.broker.connect(0);
            }
            Step::Reconnect { shard } => {
                self.broker.hang_up(self.client);
                self.client = self.broker.connect(usize::from(shard) % self.shards);
            }
        }
    }

    fn init(&mut self, id: usize) {
        let request = InitProducerIdRequest {
            transactional_id: Some(IDS[id].into()),
            transaction_timeout_ms: TIMEOUT_MS,
            ..InitProducerIdRequest::default()
        };
        let response: InitProducerIdResponse = self.broker.ask(self.client, 5, &request);
        if response.error_code == OK {
            self.settle(id, Fate::Aborted);
            let (id_, epoch) = (response.producer_id, response.producer_epoch);
            self.producers[id] = Producer { id: id_, epoch, is_ready: true, ..Producer::default() };
        }
    }

    /// The records of the open transaction have this fate, unless a failed request left it unknown.
    fn settle(&mut self, id: usize, fate: Fate) {
        for number in std::mem::take(&mut self.producers[id].open) {
            if self.records[number].fate == Fate::Open {
                self.records[number].fate = fate;
            }
        }
    }

    fn push(&mut self, partition: usize) -> usize {
        self.records.push(Record { partition, fate: Fate::Unknown });
        self.records.len() - 1
    }

    fn write(&mut self, id: usize, partition: usize, epoch: i16, sequence: i32) {
        let number = self.push(partition);
        let producer_id = self.producers[id].id;
        // The first producer adds its partitions itself, the second leaves that to the broker (KIP-890).
        if id == 0 && !self.add_partition(partition, producer_id, epoch) {
            return;
        }
        let mut builder = BatchBuilder::default();
        builder.push(self.broker.unix_ms(), None, Some(number.to_string().as_bytes()));
        let origin = Origin {
            producer_id,
            producer_epoch: epoch,
            base_sequence: sequence,
            kind: BatchKind::Transactional,
        };
        let records = builder.finish_as(&origin).bytes().to_vec();
        let request = ProduceRequest {
            transactional_id: Some(IDS[id].into()),
            ..kit::produce_request(TOPIC, partition as i32, records)
        };
        let response = self.broker.ask(self.client, if id == 0 { 11 } else { 12 }, &request);
        let error = response.responses[0].partition_responses[0].error_code;
        let producer = &mut self.producers[id];
        if error == OK && epoch == producer.epoch {
            assert_eq!(sequence, producer.sequences[partition], "a gap in the sequence was accepted");
            producer.sequences[partition] += 1;
            producer.open.push(number);
            self.records[number].fate = Fate::Open;
        }
        assert!(error != OK || epoch == self.producers[id].epoch, "an old epoch was accepted");
    }

    fn add_partition(&mut self, partition: usize, producer_id: i64, epoch: i16) -> bool {
        let topic = AddPartitionsToTxnTopic { name: TOPIC.into(), partitions: vec![partition as i32] };
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: IDS[0].into(),
            v3_and_below_producer_id: producer_id,
            v3_and_below_producer_epoch: epoch,
            v3_and_below_topics: vec![topic],
            ..AddPartitionsToTxnRequest::default()
        };
        let response = self.broker.ask(self.client, 3, &request);
        response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == OK
    }

    fn write_plain(&mut self, partition: usize) {
        let number = self.push(partition);
        let value = number.to_string();
        let response = self.broker.produce(self.client, TOPIC, partition as i32, &[&value]);
        assert_eq!(response.error_code, OK);
        self.records[number].fate = Fate::Committed;
    }

    fn end(&mut self, id: usize, is_committed: bool, is_stale: bool) {
        let producer = &self.producers[id];
        if !producer.is_ready {
            return;
        }
        let request = EndTxnRequest {
            transactional_id: IDS[id].into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch - i16::from(is_stale),
            committed: is_committed,
        };
        let response: EndTxnResponse = self.broker.ask(self.client, if id == 0 { 4 } else { 5 }, &request);
        if is_stale {
            // At most the repetition of an earlier request, without an effect.
            return;
        }
        if response.error_code != OK {
            self.settle(id, Fate::Unknown);
            return;
        }
        self.settle(id, if is_committed { Fate::Committed } else { Fate::Aborted });
        if id == 1
            && (response.producer_id, response.producer_epoch)
                != (self.producers[1].id, self.producers[1].epoch)
        {
            let (id, epoch) = (response.producer_id, response.producer_epoch);
            self.producers[1] = Producer { id, epoch, is_ready: true, ..Producer::default() };
        }
    }

    /// Reads the committed records of a partition and checks them. Returns their numbers.
    fn read(&mut self, partition: usize) -> Vec<usize> {
        let fetch = kit::fetch_request(TOPIC, partition as i32, 0, 0);
        let request = FetchRequest { isolation_level: 1, ..fetch };
        let response: FetchResponse = self.broker.ask(self.client, 12, &request);
        let values = committed(&response);
        assert!(values.is_sorted_by(|a, b| a < b), "out of order or repeated: {values:?}");
        for &number in &values {
            let Record { partition: of, fate } = self.records[number];
            assert_eq!(of, partition);
            assert!(matches!(fate, Fate::Committed | Fate::Unknown), "record {number} is {fate:?}");
        }
        values
    }

    /// Ends what is open; then each committed record is visible.
    fn finish(&mut self) {
        for _ in 0..5 {
            for id in 0..IDS.len() {
                self.init(id);
            }
            self.broker.pass(1_000);
        }
        for partition in 0..PARTITIONS {
            let seen = self.read(partition);
            let committed = self
                .records
                .iter()
                .enumerate()
                .filter(|(_, record)| record.partition == partition && record.fate == Fate::Committed);
            for (number, _) in committed {
                assert!(seen.contains(&number), "record {number} is missing: {seen:?}");
            }
        }
    }
}

/// The values of committed records in a response, as a client of `read_committed` computes them.
fn committed(response: &FetchResponse) -> Vec<usize> {
    let partition = &response.responses[0].partitions[0];
    assert_eq!(partition.error_code, OK);
    let mut aborted = partition.aborted_transactions.clone().unwrap_or_default();
    let mut skipped: Vec<i64> = Vec::new();
    let mut values = Vec::new();
    for batch in batches(partition.records.as_deref().unwrap_or_default()) {
        let header = batch.header;
        aborted.retain(|one| {
            let has_begun = one.first_offset < header.end_offset().cast_signed();
            skipped.extend(has_begun.then_some(one.producer_id));
            !has_begun
        });
        if header.is_control() {
            skipped.retain(|id| *id != header.producer_id);
        } else if !header.is_transactional() || !skipped.contains(&header.producer_id) {
            let number = |value: Option<&[u8]>| {
                std::str::from_utf8(value.unwrap_or_default())
                    .ok()
                    .and_then(|text| text.parse::<usize>().ok())
            };
            values.extend(batch.records().filter_map(|record| number(record.expect("a record").value)));
        }
    }
    values
}
