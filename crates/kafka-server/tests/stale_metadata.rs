//! Clients with stale metadata: requests with another leader epoch, a deleted topic's id, or a missing partition.

mod kit;

use kit::{Broker, Client, fetch_request, values};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest};
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::offset_for_leader_epoch::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_log::batches;

fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error code")
}

/// Leader epochs that a client sends, and the error for each.
const EPOCHS: [(i32, ErrorCode); 4] = [
    (-1, ErrorCode::None),
    (0, ErrorCode::None),
    (1, ErrorCode::UnknownLeaderEpoch),
    (-2, ErrorCode::FencedLeaderEpoch),
];

#[test]
fn every_request_with_another_leader_epoch_fails() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    broker.produce(client, "t", 0, &["a", "b"]);
    for (current_leader_epoch, expected) in EPOCHS {
        // An error is returned at once; the fetch does not wait.
        let mut fetch = fetch_request("t", 0, 2, 0);
        if expected != ErrorCode::None {
            fetch.max_wait_ms = 30_000;
        }
        fetch.topics[0].partitions[0].current_leader_epoch = current_leader_epoch;
        let fetched = broker.ask(client, 12, &fetch);
        assert_eq!(code(fetched.responses[0].partitions[0].error_code), expected);

        let partition = ListOffsetsPartition { partition_index: 0, current_leader_epoch, timestamp: -1 };
        let topics = vec![ListOffsetsTopic { name: "t".into(), partitions: vec![partition] }];
        let list = ListOffsetsRequest { replica_id: -1, topics, ..ListOffsetsRequest::default() };
        let listed = broker.ask(client, 8, &list).topics[0].partitions[0].clone();
        let result = if expected == ErrorCode::None { (2, 0) } else { (-1, -1) };
        assert_eq!(code(listed.error_code), expected);
        assert_eq!((listed.offset, listed.leader_epoch), result);

        let (result, epoch, end) = end_of_epoch(&mut broker, client, current_leader_epoch, 0);
        assert_eq!(result, expected);
        assert_eq!((epoch, end), if expected == ErrorCode::None { (0, 2) } else { (-1, -1) });
    }
}

/// Sends `OffsetForLeaderEpoch`. Returns the error, the epoch and its end offset.
fn end_of_epoch(
    broker: &mut Broker,
    client: Client,
    current_leader_epoch: i32,
    leader_epoch: i32,
) -> (ErrorCode, i32, i64) {
    let partition = OffsetForLeaderPartition { partition: 0, current_leader_epoch, leader_epoch };
    let topics = vec![OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] }];
    let request = OffsetForLeaderEpochRequest { replica_id: -1, topics };
    let end = broker.ask(client, 4, &request).topics[0].partitions[0].clone();
    (code(end.error_code), end.leader_epoch, end.end_offset)
}

#[test]
fn unknown_leader_epochs_have_no_end_offset() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    broker.produce(client, "t", 0, &["a"]);
    for unknown in [1, 7, -1] {
        assert_eq!(end_of_epoch(&mut broker, client, 0, unknown), (ErrorCode::None, -1, -1));
    }
    let mut fetch = fetch_request("t", 0, 1, 0);
    for (last_fetched_epoch, expected) in [(0, ErrorCode::None), (1, ErrorCode::OffsetOutOfRange)] {
        fetch.topics[0].partitions[0].last_fetched_epoch = last_fetched_epoch;
        let fetched = broker.ask(client, 12, &fetch);
        assert_eq!(code(fetched.responses[0].partitions[0].error_code), expected);
    }
}

/// The epoch in the producer's batch is ignored, and a new topic of the same name starts at 0 again.
#[test]
fn all_batches_have_epoch_0_also_after_a_topic_is_created_again() {
    let mut broker = Broker::new(2);
    for _ in 0..2 {
        broker.create_topic("t", 1);
        let client = broker.connect(1);
        let mut records = kit::batch(broker.unix_ms(), &["a"]);
        records[12..16].copy_from_slice(&9_i32.to_be_bytes());
        let produced = broker.ask(client, 9, &kit::produce_request("t", 0, records));
        assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
        let (fetched, _) = broker.fetch(client, "t", 0, 0);
        let records = fetched.responses[0].partitions[0].records.clone().expect("records");
        assert_eq!(batches(&records).count(), 1);
        assert_eq!(records[12..16], 0_i32.to_be_bytes());
        let metadata = broker.metadata(client, Some("t"));
        assert_eq!(metadata.topics[0].partitions[0].leader_epoch, 0);
        assert_eq!(end_of_epoch(&mut broker, client, 0, 0), (ErrorCode::None, 0, 1));
        delete(&mut broker, "t");
    }
}

fn delete(broker: &mut Broker, name: &str) {
    let client = broker.connect(0);
    let request = DeleteTopicsRequest { topic_names: vec![name.into()], ..DeleteTopicsRequest::default() };
    assert_eq!(broker.ask(client, 5, &request).responses[0].error_code, 0);
}

fn topic_id(broker: &mut Broker, client: Client) -> Uuid {
    broker.metadata(client, Some("t")).topics[0].topic_id
}

/// A fetch by topic ID, as part of a session if `session_id` is not 0.
fn by_id(topic_id: Uuid, session_id: i32, session_epoch: i32, max_wait_ms: i32) -> FetchRequest {
    let mut request = fetch_request("", 0, 0, max_wait_ms);
    request.topics[0].topic_id = topic_id;
    if session_epoch > 0 {
        request.topics.clear();
    }
    FetchRequest { session_id, session_epoch, ..request }
}

#[test]
fn the_id_of_a_deleted_topic_is_unknown() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let id = topic_id(&mut broker, client);
    let whole = by_id(id, 0, -1, 0);
    let result = |response: mainstem_kafka::api::fetch::FetchResponse| {
        code(response.responses[0].partitions[0].error_code)
    };
    assert_eq!(result(broker.ask(client, 13, &whole)), ErrorCode::None);
    // The shard of the reader may learn of the deletion after the response to DeleteTopics.
    delete(&mut broker, "t");
    assert_eq!(result(broker.ask(client, 13, &whole)), ErrorCode::UnknownTopicId);
    broker.create_topic("t", 1);
    assert_eq!(result(broker.ask(client, 13, &whole)), ErrorCode::UnknownTopicId);
}

/// As in Kafka, a session continues with the name that the topic ID had.
#[test]
fn a_fetch_session_distinguishes_a_deleted_topic_from_its_replacement() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let id = topic_id(&mut broker, client);
    let session = broker.ask(client, 13, &by_id(id, 0, 0, 0)).session_id;
    assert_ne!(session, 0);
    // A waiting fetch is answered as soon as the topic is deleted.
    broker.send(client, 13, &by_id(id, session, 1, 30_000));
    broker.run();
    assert!(broker.take::<FetchRequest>(client, 13).is_none());
    delete(&mut broker, "t");
    let result = |response: mainstem_kafka::api::fetch::FetchResponse| {
        code(response.responses[0].partitions[0].error_code)
    };
    let waited = broker.take::<FetchRequest>(client, 13).expect("a response");
    assert_eq!(result(waited), ErrorCode::UnknownTopicOrPartition);
    let next = broker.ask(client, 13, &by_id(id, session, 2, 30_000));
    assert_eq!(result(next), ErrorCode::UnknownTopicOrPartition);
    broker.create_topic("t", 1);
    let next = broker.ask(client, 13, &by_id(id, session, 3, 30_000));
    assert_eq!(result(next), ErrorCode::InconsistentTopicId);
    let by_name =
        broker.ask(client, 12, &FetchRequest { session_id: session, session_epoch: 4, ..by_id(id, 0, 4, 0) });
    assert_eq!(code(by_name.error_code), ErrorCode::FetchSessionTopicIdError);
}

/// Like Kafka: a fetch of only unknown partitions is answered at once; otherwise it waits for the others.
#[test]
fn an_unknown_partition_does_not_end_the_wait_for_others() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let (client, other) = (broker.connect(1), broker.connect(0));
    let unknown = FetchPartition { partition: 7, partition_max_bytes: 1024, ..FetchPartition::default() };
    let mut alone = fetch_request("t", 0, 0, 30_000);
    alone.topics[0].partitions = vec![unknown.clone()];
    let result = broker.ask(client, 12, &alone);
    assert_eq!(code(result.responses[0].partitions[0].error_code), ErrorCode::UnknownTopicOrPartition);

    let mut both = fetch_request("t", 0, 0, 30_000);
    both.topics[0].partitions.push(unknown);
    broker.send(client, 12, &both);
    broker.run();
    assert!(broker.take::<FetchRequest>(client, 12).is_none(), "it waits");
    broker.produce(other, "t", 0, &["news"]);
    let result = broker.take::<FetchRequest>(client, 12).expect("a response");
    assert_eq!(values(&result), ["news"]);
    assert_eq!(code(result.responses[0].partitions[1].error_code), ErrorCode::UnknownTopicOrPartition);
}
