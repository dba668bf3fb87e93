//! Requests over thousands of partitions, and batches that decompress to a multiple of their size: no turn does more
//! than a bounded part, other clients are served in between, and what waits keeps its order.

mod kit;

use kit::turns::{ask_in_parts, check_shard, check_turn, turns_until};
use kit::{Broker, batch, fetch_request, produce_request, values};
use mainstem_compress::{Compression, compress};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_kafka::api::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_kafka::api::describe_transactions::DescribeTransactionsRequest;
use mainstem_kafka::api::end_txn::EndTxnRequest;
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest};
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};
use mainstem_kafka::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_log::{Batch, BatchBuilder, BatchKind, HEADER_BYTES, Origin, repack};

const PARTITIONS: i32 = 1000;
/// Version of `Fetch`.
const FETCH: i16 = 12;

/// A record for each partition of a topic.
fn to_all_partitions(broker: &Broker, topic: &str) -> ProduceRequest {
    let partition =
        |index| PartitionProduceData { index, records: Some(batch(broker.unix_ms(), &["value"])) };
    let data = TopicProduceData {
        name: topic.into(),
        partition_data: (0..PARTITIONS).map(partition).collect(),
        ..TopicProduceData::default()
    };
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![data], ..ProduceRequest::default() }
}

#[test]
fn a_produce_to_a_thousand_new_partitions_lets_others_in_between() {
    let mut broker = Broker::new(2);
    broker.create_topic("many", PARTITIONS);
    broker.create_topic("few", 2);
    let (large, small) = (broker.connect(0), broker.connect(0));
    let request = to_all_partitions(&broker, "many");
    broker.send(large, 9, &request);
    broker.turn(1);
    let records = batch(broker.unix_ms(), &["value"]);
    broker.send(small, 9, &produce_request("few", 0, records.clone()));
    broker.send(small, 9, &produce_request("few", 1, records));
    for _ in 0..2 {
        let (response, turns) = turns_until::<ProduceRequest>(&mut broker, small, 9, check_turn);
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
        assert!(turns < 20, "a small request waits for {turns} turns");
    }
    let (response, turns) = turns_until::<ProduceRequest>(&mut broker, large, 9, check_turn);
    let parts = &response.responses[0].partition_responses;
    assert!(parts.len() == PARTITIONS as usize && parts.iter().all(|part| part.error_code == 0));
    assert!(turns > 100, "the partitions are opened over many turns, not in {turns}");
    // The partitions are open now.
    broker.send(large, 9, &request);
    let (_, turns) = turns_until::<ProduceRequest>(&mut broker, large, 9, check_turn);
    assert!(turns < 100, "{turns} turns");
}

#[test]
fn what_waits_for_a_partition_keeps_its_order() {
    let mut broker = Broker::new(1);
    broker.create_topic("many", PARTITIONS);
    let (large, other) = (broker.connect(0), broker.connect(0));
    let request = to_all_partitions(&broker, "many");
    broker.send(large, 9, &request);
    for value in ["a", "b", "c"] {
        let records = batch(broker.unix_ms(), &[value]);
        broker.send(other, 9, &produce_request("many", PARTITIONS - 1, records));
    }
    broker.run();
    let reader = broker.connect(0);
    let (_, values) = broker.fetch(reader, "many", PARTITIONS - 1, 0);
    assert_eq!(values, ["value", "a", "b", "c"]);
}

#[test]
fn queries_to_a_thousand_partitions_and_their_deletion_take_several_turns() {
    let mut broker = Broker::new(2);
    broker.create_topic("many", PARTITIONS);
    let client = broker.connect(0);
    let request = to_all_partitions(&broker, "many");
    assert!(broker.ask(client, 9, &request).responses.len() == 1);
    let partition = |partition_index| ListOffsetsPartition {
        partition_index,
        timestamp: 5,
        ..ListOffsetsPartition::default()
    };
    let topics =
        vec![ListOffsetsTopic { name: "many".into(), partitions: (0..PARTITIONS).map(partition).collect() }];
    // After a restart, each partition must be opened first.
    for is_restarted in [false, true] {
        if is_restarted {
            broker.restart(2);
        }
        let client = broker.connect(0);
        let request =
            ListOffsetsRequest { topics: topics.clone(), replica_id: -1, ..ListOffsetsRequest::default() };
        broker.send(client, 8, &request);
        let (response, turns) = turns_until::<ListOffsetsRequest>(&mut broker, client, 8, check_turn);
        let parts = &response.topics[0].partitions;
        assert!(parts.len() == PARTITIONS as usize && parts.iter().all(|part| part.offset == 0));
        assert!(turns > 20, "{turns} turns");
    }
    let client = broker.connect(0);
    let topic = DeleteTopicState { name: Some("many".into()), ..DeleteTopicState::default() };
    broker.send(client, 6, &DeleteTopicsRequest { topics: vec![topic], ..DeleteTopicsRequest::default() });
    let (response, _) = turns_until::<DeleteTopicsRequest>(&mut broker, client, 6, check_turn);
    assert_eq!(response.responses[0].error_code, 0);
    let mut turns = 0;
    while !broker.partition_logs().is_empty() {
        broker.turn(1);
        check_turn(&mut broker);
        turns += 1;
    }
    assert!(turns > 100, "{turns} turns");
}

/// One record that compresses to almost nothing.
fn bomb(broker: &Broker, bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(broker.unix_ms(), None, Some(&vec![0; bytes]));
    let plain = builder.finish().to_vec();
    let mut bomb = Vec::new();
    let records = compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap();
    repack(&Batch::parse(&plain).unwrap().header, Compression::Zstd, &records, &mut bomb);
    bomb
}

#[test]
fn a_batch_that_decompresses_to_much_is_checked_over_several_turns_in_order() {
    let mut broker = Broker::new(1);
    broker.create_topic("t", 2);
    let client = broker.connect(0);
    let bomb = bomb(&broker, 32 << 20);
    assert!(bomb.len() < 64 * 1024);
    broker.send(client, 9, &produce_request("t", 0, bomb));
    let records = batch(broker.unix_ms(), &["behind"]);
    broker.send(client, 9, &produce_request("t", 0, records.clone()));
    let other = broker.connect(0);
    broker.send(other, 9, &produce_request("t", 1, records));
    let (_, turns) = turns_until::<ProduceRequest>(&mut broker, other, 9, |_| {});
    assert!(turns < 10, "another partition waits for {turns} turns");
    let (first, turns) = turns_until::<ProduceRequest>(&mut broker, client, 9, |_| {});
    assert!(turns > 20, "{turns} turns");
    let (second, _) = turns_until::<ProduceRequest>(&mut broker, client, 9, |_| {});
    let offset = |response: &mainstem_kafka::api::produce::ProduceResponse| {
        let part = &response.responses[0].partition_responses[0];
        assert_eq!(ErrorCode::from_code(part.error_code), Some(ErrorCode::None));
        part.base_offset
    };
    assert_eq!((offset(&first), offset(&second)), (0, 1));
}

/// One record with this many bytes that do not compress.
fn noise(broker: &Broker, bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let value: Vec<u8> = (0..bytes).map(|_| next()).collect();
    let mut builder = BatchBuilder::default();
    builder.push(broker.unix_ms(), None, Some(&value));
    builder.finish().to_vec()
}

/// The batches of a partition, as they are stored.
fn stored(broker: &mut Broker, topic: &str) -> Vec<u8> {
    let client = broker.connect(0);
    let response = broker.ask::<FetchRequest>(client, FETCH, &fetch_request(topic, 0, 0, 0));
    response.responses[0].partitions[0].records.clone().unwrap_or_default()
}

#[test]
fn batches_that_their_topic_compresses_anew_let_others_in_between_and_keep_their_order() {
    let mut broker = Broker::new(1);
    broker.create_topic("other", 1);
    for (codec, name) in [("gzip", Compression::Gzip), ("zstd", Compression::Zstd)] {
        broker.create_topic_with(codec, 1, &[("compression.type", codec), ("max.message.bytes", "5000000")]);
        let (large, small) = (broker.connect(0), broker.connect(0));
        let plain = noise(&broker, 4 << 20);
        broker.send(large, 9, &produce_request(codec, 0, plain.clone()));
        let behind = batch(broker.unix_ms(), &["behind"]);
        broker.send(large, 9, &produce_request(codec, 0, behind.clone()));
        broker.send(small, 9, &produce_request("other", 0, behind));
        let (_, turns) = turns_until::<ProduceRequest>(&mut broker, small, 9, check_one);
        assert!(turns < 10, "another partition waits for {turns} turns");
        for (offset, turns_min) in [(0, 10), (1, 1)] {
            let (response, turns) = turns_until::<ProduceRequest>(&mut broker, large, 9, check_one);
            assert!(turns >= turns_min, "{codec}: {turns} turns");
            let part = &response.responses[0].partition_responses[0];
            assert_eq!((part.error_code, part.base_offset), (0, offset));
        }
        let stored = stored(&mut broker, codec);
        let first = Batch::parse_unchecked(&stored).unwrap();
        assert_eq!(first.header.compression(), name);
        let records = mainstem_compress::batch::decompress_records(&first, 5 << 20).unwrap();
        assert!(*records == plain[HEADER_BYTES..], "the records are not those that were sent");
    }
}

#[track_caller]
fn check_one(broker: &mut Broker) {
    check_shard(broker, 0);
}

#[test]
fn a_transactional_batch_that_is_compressed_anew_waits_for_its_verification_too() {
    let mut broker = Broker::new(1);
    broker.create_topic_with("zipped", 1, &[("compression.type", "gzip"), ("max.message.bytes", "5000000")]);
    let client = broker.connect(0);
    let init = InitProducerIdRequest {
        transactional_id: Some("tx".into()),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
    };
    let producer = broker.ask::<InitProducerIdRequest>(client, 4, &init);
    assert_eq!(producer.error_code, 0);
    for (sequence, bytes) in [(0, 1 << 20), (1, 100), (2, 1 << 20)] {
        let plain = noise(&broker, bytes);
        let mut builder = BatchBuilder::default();
        let record = Batch::parse(&plain).unwrap().records().next().unwrap().unwrap();
        builder.push(broker.unix_ms(), None, record.value);
        let origin = Origin {
            producer_id: producer.producer_id,
            producer_epoch: producer.producer_epoch,
            base_sequence: sequence,
            kind: BatchKind::Transactional,
        };
        let sent = builder.finish_as(&origin).bytes().to_vec();
        let mut request = produce_request("zipped", 0, sent);
        request.transactional_id = Some("tx".into());
        // Since version 12 the coordinator adds the partition by itself.
        broker.send(client, 12, &request);
    }
    for offset in 0..3 {
        let (response, _) = turns_until::<ProduceRequest>(&mut broker, client, 12, check_one);
        let part = &response.responses[0].partition_responses[0];
        assert_eq!((part.error_code, part.base_offset), (0, offset));
    }
}

#[test]
fn what_waits_for_a_deleted_partition_is_refused() {
    let mut broker = Broker::new(1);
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    let bomb = bomb(&broker, 32 << 20);
    broker.send(client, 9, &produce_request("t", 0, bomb));
    broker.turn(1);
    let admin = broker.connect(0);
    let topic = DeleteTopicState { name: Some("t".into()), ..DeleteTopicState::default() };
    let request = DeleteTopicsRequest { topics: vec![topic], ..DeleteTopicsRequest::default() };
    assert_eq!(broker.ask(admin, 6, &request).responses[0].error_code, 0);
    let response = broker.take::<ProduceRequest>(client, 9).expect("a response");
    let code = response.responses[0].partition_responses[0].error_code;
    assert_eq!(ErrorCode::from_code(code), Some(ErrorCode::UnknownTopicOrPartition));
}

/// A fetch of all partitions of a topic, from `offset` on.
fn from_all_partitions(topic: &str, offset: i64, max_wait_ms: i32) -> FetchRequest {
    let mut request = fetch_request(topic, 0, offset, max_wait_ms);
    let first = request.topics[0].partitions[0].clone();
    let partition = |partition| FetchPartition { partition, ..first.clone() };
    request.topics[0].partitions = (0..PARTITIONS).map(partition).collect();
    request
}

/// A broker whose topic has a record in each partition.
fn with_records(shards: usize) -> Broker {
    let mut broker = Broker::new(shards);
    broker.create_topic("many", PARTITIONS);
    let client = broker.connect(0);
    let request = to_all_partitions(&broker, "many");
    assert!(broker.ask(client, 9, &request).responses.len() == 1);
    broker
}

#[test]
fn a_fetch_of_a_thousand_partitions_is_read_over_several_turns() {
    for shards in [1, 2] {
        let mut broker = with_records(shards);
        let (large, small) = (broker.connect(0), broker.connect(0));
        broker.send(large, FETCH, &from_all_partitions("many", 0, 0));
        broker.turn(1);
        broker.send(small, FETCH, &fetch_request("many", 7, 0, 0));
        let check = |broker: &mut Broker| (0..shards).for_each(|shard| check_shard(broker, shard));
        let (response, turns) = turns_until::<FetchRequest>(&mut broker, small, FETCH, check);
        assert_eq!(values(&response), ["value"]);
        assert!(turns < 20, "a small fetch waits for {turns} turns");
        let (response, turns) = turns_until::<FetchRequest>(&mut broker, large, FETCH, check);
        assert_eq!(values(&response).len(), PARTITIONS as usize);
        assert!(turns >= 4, "the partitions are read over several turns, not in {turns}");
    }
}

#[test]
fn a_record_that_arrives_between_the_slices_of_a_fetch_wakes_it() {
    for (shards, index) in [(1, 0), (2, 0), (2, 1), (2, PARTITIONS - 1)] {
        let mut broker = with_records(shards);
        let producer = broker.connect(0);
        for (turns, offset) in (1..8).zip(1..) {
            let large = broker.connect(0);
            let mut request = from_all_partitions("many", 1, 60_000);
            let mut partitions = request.topics[0].partitions.iter_mut();
            let partition = partitions.find(|partition| partition.partition == index);
            partition.unwrap().fetch_offset = offset;
            broker.send(large, FETCH, &request);
            broker.turn(turns);
            let records = batch(broker.unix_ms(), &["new"]);
            broker.send(producer, 9, &produce_request("many", index, records));
            let (response, _) = turns_until::<FetchRequest>(&mut broker, large, FETCH, |_| {});
            assert_eq!(values(&response), ["new"], "{shards} shards, partition {index}, {turns} turns");
            assert!(broker.take::<ProduceRequest>(producer, 9).is_some());
            broker.hang_up(large);
        }
    }
}

#[test]
fn a_connection_may_close_between_the_slices_of_a_fetch() {
    let mut broker = with_records(2);
    let large = broker.connect(0);
    broker.send(large, FETCH, &from_all_partitions("many", 1, 60_000));
    broker.turn(1);
    broker.hang_up(large);
    broker.run();
    let producer = broker.connect(0);
    let request = to_all_partitions(&broker, "many");
    assert!(broker.ask(producer, 9, &request).responses.len() == 1);
}

#[test]
fn requests_over_hundreds_of_topics_and_groups_are_handled_in_parts_with_one_response() {
    const TOPICS: usize = 500;
    let mut broker = Broker::new(2);
    let names: Vec<String> = (0..TOPICS).map(|index| format!("topic {index}").replace(' ', "-")).collect();
    let topic = |name: &String| CreatableTopic {
        name: name.clone(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    // Two names occur twice, far from each other.
    let topics = names.iter().chain(["topic-0", "topic-499"].map(String::from).iter()).map(topic).collect();
    let request = CreateTopicsRequest { topics, ..CreateTopicsRequest::default() };
    let response = ask_in_parts(&mut broker, 7, &request);
    assert_eq!(response.topics.len(), TOPICS);
    let refused = response.topics.iter().filter(|topic| topic.error_code != 0);
    let refused: Vec<_> = refused.map(|topic| (topic.name.as_str(), topic.error_code)).collect();
    let invalid = ErrorCode::InvalidRequest as i16;
    assert_eq!(refused, [("topic-0", invalid), ("topic-499", invalid)], "names that occur twice");

    let resource = |name: &String| AlterConfigsResource {
        resource_type: 2,
        resource_name: name.clone(),
        configs: vec![AlterableConfig {
            name: "retention.ms".into(),
            config_operation: 0,
            value: Some("12345".into()),
        }],
    };
    let resources = names.iter().map(resource).collect();
    let request = IncrementalAlterConfigsRequest { resources, validate_only: false };
    let response = ask_in_parts(&mut broker, 1, &request);
    let refused = response.responses.iter().filter(|response| response.error_code != 0);
    assert_eq!((response.responses.len(), refused.count()), (TOPICS, 2));

    let resource = |name: &String| DescribeConfigsResource {
        resource_type: 2,
        resource_name: name.clone(),
        configuration_keys: Some(vec!["retention.ms".into()]),
    };
    let resources = names.iter().map(resource).collect();
    let request = DescribeConfigsRequest { resources, ..DescribeConfigsRequest::default() };
    let response = ask_in_parts(&mut broker, 4, &request);
    let described = response.results.iter().map(|result| result.resource_name.as_str());
    assert!(described.eq(names.iter().map(String::as_str)), "in the order of the request");
    let values = response.results.iter().flat_map(|result| &result.configs);
    assert_eq!(values.filter(|config| config.value.as_deref() == Some("12345")).count(), TOPICS - 2);

    let more = |name: &String| CreatePartitionsTopic { name: name.clone(), count: 2, ..Default::default() };
    let topics = names.iter().chain(&names).map(more).collect();
    let request = CreatePartitionsRequest { topics, timeout_ms: 1000, validate_only: false };
    let response = ask_in_parts(&mut broker, 3, &request);
    assert_eq!(response.results.len(), TOPICS);
    assert!(response.results.iter().all(|result| result.error_code == invalid), "each occurs twice");

    let groups_names = (0..2 * TOPICS).map(|index| format!("group {index}")).collect();
    let response = ask_in_parts(&mut broker, 2, &DeleteGroupsRequest { groups_names });
    assert_eq!(response.results.len(), 2 * TOPICS);
}

#[test]
fn the_end_of_a_transaction_over_a_thousand_partitions_takes_several_turns() {
    for (shards, committed) in [(1, true), (2, false)] {
        let mut broker = Broker::new(shards);
        broker.create_topic("many", PARTITIONS);
        let client = broker.connect(0);
        let init = InitProducerIdRequest {
            transactional_id: Some("tx".into()),
            transaction_timeout_ms: 60_000,
            producer_id: -1,
            producer_epoch: -1,
        };
        let producer = broker.ask::<InitProducerIdRequest>(client, 4, &init);
        let (producer_id, producer_epoch) = (producer.producer_id, producer.producer_epoch);
        let topic = AddPartitionsToTxnTopic { name: "many".into(), partitions: (0..PARTITIONS).collect() };
        let add = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: "tx".into(),
            v3_and_below_producer_id: producer_id,
            v3_and_below_producer_epoch: producer_epoch,
            v3_and_below_topics: vec![topic],
            ..AddPartitionsToTxnRequest::default()
        };
        broker.ask(client, 3, &add);
        let end = EndTxnRequest { transactional_id: "tx".into(), producer_id, producer_epoch, committed };
        broker.send(client, 3, &end);
        let check = |broker: &mut Broker| (0..shards).for_each(|shard| check_shard(broker, shard));
        let (response, _) = turns_until::<EndTxnRequest>(&mut broker, client, 3, check);
        assert_eq!(response.error_code, 0);
        let expected = if committed { "CompleteCommit" } else { "CompleteAbort" };
        let describe = DescribeTransactionsRequest { transactional_ids: vec!["tx".into()] };
        let mut turns = 0;
        let state = loop {
            let other = broker.connect(0);
            broker.send(other, 0, &describe);
            let (response, more) = turns_until::<DescribeTransactionsRequest>(&mut broker, other, 0, check);
            turns += more;
            if response.transaction_states[0].transaction_state == expected {
                break response.transaction_states[0].clone();
            }
            assert!(response.transaction_states[0].transaction_state.starts_with("Prepare"));
        };
        assert!(state.topics.is_empty() && turns > 20, "{turns} turns");
        // Each partition has its marker.
        let offsets = (0..PARTITIONS).map(|partition_index| ListOffsetsPartition {
            partition_index,
            timestamp: -1,
            ..ListOffsetsPartition::default()
        });
        let topics = vec![ListOffsetsTopic { name: "many".into(), partitions: offsets.collect() }];
        let request = ListOffsetsRequest { topics, replica_id: -1, ..ListOffsetsRequest::default() };
        let response = broker.ask(client, 8, &request);
        assert!(response.topics[0].partitions.iter().all(|partition| partition.offset == 1));
    }
}

#[test]
fn metadata_of_thousands_of_topics_is_answered_in_parts_like_that_of_few() {
    const TOPICS: usize = 2_000;
    let mut broker = Broker::new(2);
    let client = broker.connect(0);
    let names: Vec<String> = (0..TOPICS).map(|index| format!("topic-{index:04}")).collect();
    let topic = |name: &String| CreatableTopic {
        name: name.clone(),
        num_partitions: 2,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let topics = names.iter().map(topic).collect();
    broker.ask(client, 7, &CreateTopicsRequest { topics, ..CreateTopicsRequest::default() });
    let requested = |name: &str| MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
    let request = |topics| MetadataRequest {
        topics,
        allow_auto_topic_creation: false,
        include_topic_authorized_operations: true,
        ..MetadataRequest::default()
    };
    let unknown = ["unknown", "not valid"];
    let all: Vec<_> = names.iter().map(String::as_str).chain(unknown).map(requested).collect();
    for version in [8, 9, 12, 13] {
        let mut few = Vec::new();
        for part in all.chunks(100) {
            few.extend(broker.ask(client, version, &request(Some(part.to_vec()))).topics);
        }
        let many = ask_in_parts(&mut broker, version, &request(Some(all.clone())));
        assert_eq!(many.topics, few, "version {version}");
        let of_all = ask_in_parts(&mut broker, version, &request(None));
        assert_eq!(of_all.topics, few[..TOPICS], "version {version}");
        assert_eq!((of_all.brokers.len(), of_all.error_code), (1, 0));
    }
}

#[test]
fn completions_of_many_turns_are_delivered_in_several() {
    let mut broker = Broker::new(1);
    broker.create_topic("many", 3_000);
    let client = broker.connect(0);
    let records = batch(broker.unix_ms(), &["value"]);
    let partition = |index| PartitionProduceData { index, records: Some(records.clone()) };
    let data = |partitions: std::ops::Range<i32>| TopicProduceData {
        name: "many".into(),
        partition_data: partitions.map(partition).collect(),
        ..TopicProduceData::default()
    };
    broker.set_stuck(true);
    // Two requests, because one over more partitions is handled in parts.
    for partitions in [0..1_500, 1_500..3_000] {
        let topic_data = vec![data(partitions)];
        broker.send(
            client,
            9,
            &ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..Default::default() },
        );
    }
    broker.turn(3_500);
    broker.set_stuck(false);
    let mut all_turns = 0;
    for _ in 0..2 {
        let (response, turns) = turns_until::<ProduceRequest>(&mut broker, client, 9, |_| {});
        assert!(response.responses[0].partition_responses.iter().all(|part| part.error_code == 0));
        all_turns += turns;
    }
    assert!((2..10).contains(&all_turns), "{all_turns} turns");
}

#[test]
fn a_connection_may_close_while_its_request_is_handled_in_parts() {
    let mut broker = Broker::new(2);
    for shard in [0, 1] {
        let client = broker.connect(shard);
        let topic = |index| CreatableTopic {
            name: format!("topic-{shard}-{index}"),
            num_partitions: 1,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let topics = (0..200).map(topic).collect();
        broker.send(client, 7, &CreateTopicsRequest { topics, ..CreateTopicsRequest::default() });
        broker.turn(3);
        broker.hang_up(client);
        broker.run();
    }
    let client = broker.connect(0);
    let known = broker.metadata(client, None).topics.len();
    assert!(
        (200..400).contains(&known),
        "the rest of a request whose connection has closed is dropped: {known}"
    );
}
