//! The node as administrators see it: one log directory, one voter.

mod kit;

use kit::Broker;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_replica_log_dirs::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use mainstem_kafka::api::describe_log_dirs::DescribeLogDirsRequest;
use mainstem_kafka::api::describe_quorum::{DescribeQuorumRequest, RequestPartitionData, RequestTopicData};

#[test]
fn partitions_stay_in_the_only_directory() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let client = broker.connect(1);
    let dirs = broker.ask(client, 4, &DescribeLogDirsRequest { topics: None });
    let here = dirs.results[0].log_dir.clone();
    let topic = |name: &str, partitions: &[i32]| AlterReplicaLogDirTopic {
        name: name.into(),
        partitions: partitions.into(),
    };
    let topics = vec![topic("t", &[0, 1, 2]), topic("x", &[0])];
    for version in 1..=2 {
        let dirs = [here.clone(), format!("{here}-2")];
        let dirs = dirs.map(|path| AlterReplicaLogDir { path, topics: topics.clone() });
        let response = broker.ask(client, version, &AlterReplicaLogDirsRequest { dirs: dirs.into() });
        let codes = response.results.iter().flat_map(|topic| &topic.partitions);
        let codes: Vec<_> =
            codes.map(|partition| ErrorCode::from_code(partition.error_code).unwrap()).collect();
        let (unknown, elsewhere) = (ErrorCode::UnknownTopicOrPartition, ErrorCode::LogDirNotFound);
        assert_eq!(codes[..4], [ErrorCode::None, ErrorCode::None, unknown, unknown]);
        assert_eq!(codes[4..], [elsewhere; 4]);
    }
}

#[test]
fn the_only_node_is_the_only_voter() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    let requested = |topic: &str, partitions: &[i32]| {
        let partition = |index: &i32| RequestPartitionData { partition_index: *index };
        let partitions = partitions.iter().map(partition).collect();
        vec![RequestTopicData { topic_name: topic.into(), partitions }]
    };
    let mut ends = Vec::new();
    for version in 0..=2 {
        broker.create_topic(&format!("t{version}"), 1);
        let request = DescribeQuorumRequest { topics: requested("__cluster_metadata", &[0]) };
        let response = broker.ask(client, version, &request);
        assert_eq!(response.error_code, 0);
        assert_eq!(response.topics[0].topic_name, "__cluster_metadata");
        let [partition] = &response.topics[0].partitions[..] else { panic!("{response:?}") };
        assert_eq!((partition.error_code, partition.leader_id, partition.leader_epoch), (0, 1, 0));
        assert_eq!(partition.current_voters.len(), 1);
        assert_eq!(partition.current_voters[0].log_end_offset, partition.high_watermark);
        assert!(partition.observers.is_empty());
        assert_eq!(response.nodes.len(), usize::from(version == 2));
        ends.push(partition.high_watermark);
    }
    assert!(ends.is_sorted_by(|one, next| one < next), "it grows with each change: {ends:?}");

    for topics in [
        requested("t0", &[0]),
        requested("__cluster_metadata", &[1]),
        requested("__cluster_metadata", &[0, 1]),
    ] {
        let response = broker.ask(client, 2, &DescribeQuorumRequest { topics });
        let codes = response.topics[0].partitions.iter().map(|partition| partition.error_code);
        assert!(codes.into_iter().all(|code| code == ErrorCode::UnknownTopicOrPartition as i16));
    }
    let response = broker.ask(client, 2, &DescribeQuorumRequest::default());
    assert!(response.topics.is_empty());
}
