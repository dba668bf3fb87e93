//! Rolling, retention and compaction follow what is due, in slices of the shard's turns.

mod kit;

use kit::{Broker, Client, batch, produce_request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::fetch::FetchResponse;
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_kafka_server::Config;
use mainstem_log::BatchBuilder;

/// Units of a turn, see `work.rs` of the runtime.
const TURN_UNITS: u64 = 10_000;

fn set_configs(broker: &mut Broker, client: Client, topic: &str, configs: &[(&str, &str)]) {
    let config = |(name, value): &(&str, &str)| AlterableConfig {
        name: (*name).into(),
        config_operation: 0,
        value: Some((*value).into()),
    };
    let resource = AlterConfigsResource {
        resource_type: 2,
        resource_name: topic.into(),
        configs: configs.iter().map(config).collect(),
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let response = broker.ask(client, 1, &request);
    assert_eq!(response.responses[0].error_code, 0, "{response:?}");
}

fn put(broker: &mut Broker, client: Client, key: &str, value: &str) {
    let mut builder = BatchBuilder::default();
    builder.push(broker.unix_ms(), Some(key.as_bytes()), Some(value.as_bytes()));
    let request = produce_request("t", 0, builder.finish().to_vec());
    let response = broker.ask::<ProduceRequest>(client, 9, &request);
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
}

/// The values of the partition after a restart, which reads them from disk.
fn stored(broker: &mut Broker) -> Vec<String> {
    broker.restart(1);
    let client = broker.connect(0);
    broker.fetch(client, "t", 0, 0).1
}

fn log_start(response: &FetchResponse) -> i64 {
    response.responses[0].partitions[0].log_start_offset
}

#[test]
fn partitions_due_at_once_leave_room_for_clients() {
    const PARTITIONS: i32 = 1_000;
    let mut broker = Broker::on_disk(1, Config::default());
    broker.create_topic_with("t", PARTITIONS, &[("retention.ms", "60000")]);
    broker.create_topic("other", 1);
    let client = broker.connect(0);
    for index in 0..PARTITIONS {
        assert_eq!(broker.produce(client, "t", index, &["old"]).error_code, 0);
    }
    assert_eq!(broker.produce(client, "other", 0, &["first"]).error_code, 0);
    broker.pass(59_000);
    assert_eq!(log_start(&broker.fetch(client, "t", 0, 0).0), 0);
    broker.skip(1_500);
    let records = batch(broker.unix_ms(), &["second"]);
    broker.send(client, 9, &produce_request("other", 0, records));
    let (mut turns, mut answered_after) = (0, None);
    while broker.charged(0) > 0 || turns < 100 {
        assert!(broker.charged(0) < TURN_UNITS, "{} units in one turn", broker.charged(0));
        broker.turn(1);
        turns += 1;
        if answered_after.is_none() && broker.take::<ProduceRequest>(client, 9).is_some() {
            answered_after = Some(turns);
        }
    }
    assert!(turns > PARTITIONS, "{turns} turns for {PARTITIONS} partitions");
    assert!(answered_after.is_some_and(|turns| turns < 10), "answered after {answered_after:?} turns");
    for index in 0..PARTITIONS {
        let (response, values) = broker.fetch(client, "t", index, 1);
        assert_eq!((log_start(&response), values.len()), (1, 0));
    }
}

#[test]
fn a_partition_is_compacted_when_its_records_reach_the_maximum_lag() {
    let mut broker = Broker::on_disk(1, Config::default());
    let configs = [("cleanup.policy", "compact"), ("max.compaction.lag.ms", "60000")];
    broker.create_topic_with("t", 1, &configs);
    let client = broker.connect(0);
    for value in ["1", "2", "3"] {
        put(&mut broker, client, "key", value);
    }
    broker.pass(58_000);
    assert_eq!(stored(&mut broker), ["1", "2", "3"]);
    broker.pass(4_000);
    assert_eq!(stored(&mut broker), ["3"]);
}

#[test]
fn records_younger_than_the_minimum_lag_are_not_compacted() {
    let mut broker = Broker::on_disk(1, Config::default());
    let configs = [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"), ("segment.ms", "1000")];
    broker.create_topic_with("t", 1, &configs);
    let client = broker.connect(0);
    set_configs(&mut broker, client, "t", &[("min.compaction.lag.ms", "60000")]);
    for value in ["1", "2", "3"] {
        put(&mut broker, client, "key", value);
        broker.pass(3_000);
    }
    broker.pass(45_000);
    assert_eq!(stored(&mut broker), ["1", "2", "3"]);
    broker.pass(30_000);
    assert_eq!(stored(&mut broker), ["3"]);
}

#[test]
fn new_settings_are_due_at_once() {
    let mut broker = Broker::on_disk(1, Config::default());
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    assert_eq!(broker.produce(client, "t", 0, &["old"]).error_code, 0);
    broker.pass(10_000);
    assert_eq!(broker.fetch(client, "t", 0, 0).1, ["old"]);
    set_configs(&mut broker, client, "t", &[("retention.ms", "5000")]);
    broker.pass(2_000);
    let (response, _) = broker.fetch(client, "t", 0, 0);
    let code = ErrorCode::from_code(response.responses[0].partitions[0].error_code);
    assert_eq!(code, Some(ErrorCode::OffsetOutOfRange));
}
