//! The deletion of hundreds of topics, with the offsets that groups have committed for them: no turn does more than a
//! bounded part.

mod kit;

use kit::Broker;
use kit::turns::ask_in_parts;
use mainstem_kafka::Uuid;
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::delete_topics::{DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup};

/// Topics with these names and one partition each.
fn new_topics(names: &[String]) -> CreateTopicsRequest {
    let topic = |name: &String| CreatableTopic {
        name: name.clone(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    CreateTopicsRequest { topics: names.iter().map(topic).collect(), ..CreateTopicsRequest::default() }
}

/// Commits an offset of each of these topics in a group.
fn commit_offsets(broker: &mut Broker, group: &str, names: &[String]) {
    let client = broker.connect(0);
    let partition = OffsetCommitRequestPartition { committed_offset: 5, ..Default::default() };
    let topic = |name: &String| OffsetCommitRequestTopic {
        name: name.clone(),
        partitions: vec![partition.clone()],
        ..OffsetCommitRequestTopic::default()
    };
    let request = OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: -1,
        topics: names.iter().map(topic).collect(),
        ..OffsetCommitRequest::default()
    };
    let response = broker.ask(client, 8, &request);
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    assert!(partitions.into_iter().all(|partition| partition.error_code == 0));
}

/// The topics that a group has offsets of.
fn topics_with_offsets(broker: &mut Broker, group: &str) -> Vec<String> {
    let client = broker.connect(0);
    let group = OffsetFetchRequestGroup { group_id: group.into(), ..OffsetFetchRequestGroup::default() };
    let response = broker.ask(client, 8, &OffsetFetchRequest { groups: vec![group], ..Default::default() });
    response.groups[0].topics.iter().map(|topic| topic.name.clone()).collect()
}

#[test]
fn the_deletion_of_topics_with_offsets_in_many_groups_takes_several_turns() {
    const TOPICS: usize = 400;
    const GROUPS: usize = 20;
    let mut broker = Broker::new(2);
    let names: Vec<String> = (0..TOPICS).map(|index| format!("topic-{index:03}")).collect();
    let client = broker.connect(0);
    broker.ask(client, 7, &new_topics(&names));
    for group in 0..GROUPS {
        commit_offsets(&mut broker, &format!("group {group}"), &names);
    }
    let topics = names[10..].iter().map(|name| named(name)).collect();
    let response = ask_in_parts(&mut broker, 6, &DeleteTopicsRequest { topics, ..Default::default() });
    assert!(response.responses.iter().all(|result| result.error_code == 0));
    let deleted = response.responses.iter().map(|result| result.name.as_deref());
    assert!(deleted.eq(names[10..].iter().map(|name| Some(name.as_str()))));
    for is_restarted in [false, true] {
        if is_restarted {
            broker.restart(2);
        }
        for group in 0..GROUPS {
            assert_eq!(topics_with_offsets(&mut broker, &format!("group {group}")), &names[..10]);
        }
    }
}

#[test]
fn offsets_of_deleted_topics_are_removed_after_a_restart_that_interrupts_it() {
    let mut broker = Broker::new(1);
    let names: Vec<String> = (0..200).map(|index| format!("topic-{index}")).collect();
    let client = broker.connect(0);
    broker.ask(client, 7, &new_topics(&names));
    for group in 0..10 {
        commit_offsets(&mut broker, &format!("group {group}"), &names);
    }
    let topics = names[..90].iter().map(|name| named(name)).collect();
    broker.send(client, 6, &DeleteTopicsRequest { topics, ..DeleteTopicsRequest::default() });
    broker.turn(2);
    assert!(broker.take::<DeleteTopicsRequest>(client, 6).is_none(), "offsets are being removed");
    broker.restart(1);
    for group in 0..10 {
        assert_eq!(topics_with_offsets(&mut broker, &format!("group {group}")).len(), 110);
    }
}

/// How a client names a topic that it deletes.
fn named(name: &str) -> DeleteTopicState {
    DeleteTopicState { name: Some(name.into()), ..DeleteTopicState::default() }
}

/// A request with every kind of item: topics by name, by identifier and by both, names and identifiers that occur
/// twice, unknown ones, and an invalid item. Each of the `plain` topics occurs once.
fn mixed_request(plain: &[String], ids: &[Uuid]) -> DeleteTopicsRequest {
    let by_id = |topic_id: Uuid| DeleteTopicState { topic_id, ..DeleteTopicState::default() };
    let both = DeleteTopicState { name: Some("named".into()), topic_id: ids[0] };
    let twice = ["first", "twice", "unknown", "last"].map(named);
    let ids = ids.iter().copied().chain([ids[1], Uuid::default(), Uuid([9; 16])]).map(by_id);
    let items = twice.clone().into_iter().chain(plain.iter().map(|name| named(name))).chain(ids);
    let topics = items.chain([named("twice"), named("named"), both]).collect();
    DeleteTopicsRequest { topics, ..DeleteTopicsRequest::default() }
}

#[test]
fn a_divided_deletion_answers_like_an_undivided_one() {
    let plain: Vec<String> = (0..300).map(|index| format!("plain-{index:03}")).collect();
    let others: Vec<String> = ["first", "last", "named", "twice"].map(String::from).into();
    let answers = [&plain[..], &[]].map(|plain| {
        let mut broker = Broker::new(2);
        let client = broker.connect(0);
        broker.ask(client, 7, &new_topics(&[plain, &others].concat()));
        let ids = ["first", "last"].map(|name| broker.metadata(client, Some(name)).topics[0].topic_id);
        let request = mixed_request(plain, &ids);
        let response = if plain.is_empty() {
            broker.ask(client, 6, &request)
        } else {
            ask_in_parts(&mut broker, 6, &request)
        };
        let left = broker.metadata(client, None).topics.into_iter().map(|topic| topic.name);
        (response.responses, left.collect::<Vec<_>>())
    });
    let [(divided, left), (undivided, left_undivided)] = answers;
    let is_plain = |result: &&DeletableTopicResult| {
        result.name.as_deref().is_some_and(|name| name.starts_with("plain-"))
    };
    let codes = |results: &[DeletableTopicResult]| -> Vec<_> {
        let others = results.iter().filter(|result| !is_plain(result));
        others.map(|result| (result.name.clone(), result.error_code, result.error_message.clone())).collect()
    };
    assert_eq!(codes(&divided), codes(&undivided));
    assert_eq!(divided.iter().filter(is_plain).filter(|result| result.error_code == 0).count(), plain.len());
    assert_eq!(left, left_undivided);
}
